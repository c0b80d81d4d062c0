// Pinned host memory: the allocator behind pin_memory() and the question is_pinned() asks. Used by hooks.cc. Any
// thread.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace tpu {

at::HostAllocator& PinnedHostAllocator();
bool IsPinned(const void* pointer);

}  // namespace tpu
