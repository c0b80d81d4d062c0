// memcpy of the host device: large copies run on the pool's threads and bypass the cache.
//
// Used for uploads, downloads and copy steps. Any thread.
#pragma once

#include <cstddef>

namespace tpu::host {

// The two do not overlap, unless they are the same.
void CopyBytes(void* to, const void* from, size_t bytes);

}  // namespace tpu::host
