// Convolutions at tier 0: by the device's own kernels where those are better than the library that ATen calls
// (Device::Convolve), and so in the numbers that compiled code gives.
//
// Called by RunCall on stream threads. Owns nothing.
#pragma once

#include <ATen/core/stack.h>

#include "runtime/device.h"

namespace tpu {

// Replaces the arguments on the stack by the results, as op.callBoxed does, and returns true. False, and nothing done,
// where ATen's kernel serves: other operators and types, images whose channels lie last, what the device leaves to it.
bool ConvolveOnDevice(Device& device, const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace tpu
