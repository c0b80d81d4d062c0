// Bags of embeddings at tier 0: ATen's kernel for CPUs leaves out results that its derivatives find out by themselves,
// where those of other devices, and so the lowering and PyTorch's inference, give them.
//
// Called by RunCall on stream threads. Owns nothing.
#pragma once

#include <ATen/core/stack.h>

namespace tpu {

// Replaces the arguments on the stack by the results, as op.callBoxed does, and returns true. False, and nothing done,
// for other operators.
bool SumBags(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace tpu
