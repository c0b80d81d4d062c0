// Shapes, strides, types and errors from PyTorch's structured kernels: the part of a CPU kernel that computes them,
// without the part that computes elements, and without Python, where the Meta key has mostly Python. Norms, whose
// Python runs hundreds of functions, are among them.
//
// Asked by Infer before it asks the Meta key. Touches none of the call's own data; holds no locks. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "dispatcher/calls.h"

namespace tpu {

// The operator has a structured kernel, or is a norm.
bool IsStructured(const c10::OperatorHandle& op);
// A tensor of the same kind as `t`, for InferStructured.
at::Tensor StructuredStandIn(const at::Tensor& t);
// From arguments to returns, none of which holds elements. Raises what PyTorch raises. False, with the stack spoiled,
// where the kernel asks for elements after all.
bool InferStructured(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace tpu
