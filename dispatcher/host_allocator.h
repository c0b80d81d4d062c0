// CPU tensors in device memory: while a HostAllocatorScope is open on a thread, what ATen allocates there comes from
// the device's allocator, and AdoptTensor turns such a tensor into a Buffer without copying.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/device.h"

namespace tpu {

class HostAllocatorScope {
 public:
  explicit HostAllocatorScope(Device& device);
  ~HostAllocatorScope();
  HostAllocatorScope(const HostAllocatorScope&) = delete;

 private:
  Device* const former_;
};

// The buffer's memory for a CPU storage that holds a reference to it.
c10::DataPtr HoldBuffer(const BufferRef& buffer);
// A row-major CPU tensor's memory. Keeps the tensor alive when its memory is not the device's.
BufferRef AdoptTensor(const at::Tensor& tensor);

}  // namespace tpu
