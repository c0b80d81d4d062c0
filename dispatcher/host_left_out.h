// Results that ATen's kernels for CPUs leave out at tier 0, because nobody needs them there, where those of other
// devices, and so the lowering and PyTorch's inference, give them: beside bags of embeddings, what their derivatives
// find out by themselves; of batch norm in evaluation, the statistics that it was given.
//
// Called by RunCall on stream threads. Owns nothing.
#pragma once

#include <ATen/core/stack.h>

namespace tpu {

// Replaces the arguments on the stack by all results, as op.callBoxed does, and returns true. False, and nothing done,
// for other operators.
bool CallWithLeftOut(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace tpu
