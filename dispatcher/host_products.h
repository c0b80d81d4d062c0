// Products of f32 matrices at tier 0: by the device's own kernels where those are better than the library that ATen
// calls (Device::Multiply), and so in the numbers that compiled code gives.
//
// Called by RunCall on stream threads. Owns nothing.
#pragma once

#include <ATen/core/stack.h>

#include "runtime/device.h"

namespace tpu {

// Replaces the arguments on the stack by the result, as op.callBoxed does, and returns true. False, and nothing done,
// where ATen's kernel serves: other operators and types, factors other than 1, what the device leaves to it.
bool MultiplyOnDevice(Device& device, const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Gives the operands of products by groups on the stack, if op is that, rows of whole 16 bytes: ATen's kernel asks for
// them.
void AlignGroups(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace tpu
