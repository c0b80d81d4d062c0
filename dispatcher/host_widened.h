// Floats of 16 bits in operators that ATen's CPU has a kernel of f32 for and none of theirs, where other devices have
// one: avg_pool3d, antialiased upsampling, losses with margins, under autocast among others. And in convolutions that
// are sooner done in f32.
//
// Called by RunCall, RunNow and CheckOnHost, on their threads. Owns nothing.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>

namespace tpu {

// The tensors of one type to another.
void ConvertTensors(torch::jit::Stack& stack, c10::ScalarType from, c10::ScalarType to);

// op.callBoxed, of a stack that holds the operator's arguments alone. Where the CPU has no kernel for what they hold,
// or a slow one, the same in f32, rounded once.
void CallWidening(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace tpu
