// ATen's CPU kernels as the ready kernels of the embedded device: tier 0, operators without a lowering, and operators
// that can't be deferred.
//
// RunCall is the engine's CallRunner and runs on stream threads, or as if on one; RunNow runs on the caller's. Memory
// that the kernels allocate meanwhile is the device's own, so that results are adopted, not copied, and count against
// its size.
#pragma once

#include <ATen/core/stack.h>

#include "absl/status/status.h"
#include "dispatcher/calls.h"
#include "runtime/device.h"

namespace tpu {

absl::Status RunCall(Device& device, const Call& call, absl::Span<const KernelInput> inputs,
                     absl::Span<BufferRef> outputs);

// PyTorch's error for tensors of several devices; those of the CPU that are numbers may be beside others.
void CheckOneDevice(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

// Reads every argument, runs the operator on the host, and replaces the arguments on the stack by the results on the
// device.
void RunNow(const Operator& op, torch::jit::Stack& stack);
// The same as a kernel.
void RunNowBoxed(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Installs the allocator described above; once, at load.
void InstallHostAllocator();

}  // namespace tpu
