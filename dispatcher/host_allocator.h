// CPU tensors in device memory: while a HostAllocatorScope is open on a thread, what ATen allocates there comes from
// the device's allocator, and AdoptTensor turns such a tensor into a Buffer without copying. Devices whose memory has
// no addresses are copied from and to instead.
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

// The buffer's elements as a CPU tensor, which holds it where it lies in its memory: a kernel may return its input, or
// a view of it.
at::Tensor HostTensor(Device& device, const BufferRef& buffer, const Dims& dims, c10::ScalarType type);
// A row-major CPU tensor's memory as a value's. Keeps the tensor alive when its memory is not the device's.
BufferRef AdoptTensor(Device& device, const at::Tensor& tensor, const TensorType& type);

}  // namespace tpu
