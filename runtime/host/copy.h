// memcpy of the host device: large copies run on the pool's threads and bypass the cache.
//
// Used for uploads, downloads, copy steps and parts of images. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace tpu::host {

// The two do not overlap, unless they are the same.
void CopyBytes(void* to, const void* from, size_t bytes);

// Runs of `run` bytes that follow each other in `from`, each to its place: counted row-major, `strides` bytes apart.
void CopyRuns(void* to, const void* from, int64_t run, absl::Span<const int64_t> sizes,
              absl::Span<const int64_t> strides);

}  // namespace tpu::host
