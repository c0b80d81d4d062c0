// Shapes, strides, types and errors from PyTorch's structured kernels: the part of a CPU kernel that computes them,
// without the part that computes elements, and without Python, where the Meta key has mostly Python. Others that
// programs call first and most have such kernels of ours.
//
// Asked by Infer, and by the check of a call with stand-ins. Touches none of the call's own data; holds no locks. Any
// thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string_view>

#include "dispatcher/calls.h"

namespace tpu {

// The CPU's kernel is a structured one.
bool HasStructuredKernel(const c10::OperatorHandle& op);
// The operator of this name does the same for each tensor of its lists, one after the other: _foreach_add.
bool IsForEach(std::string_view name);
// The operator has a structured kernel, or one of *shapes.cc, norms.cc or recurrent.cc, or is made of others.
bool IsStructured(const c10::OperatorHandle& op);
// For InferStructured.
at::Tensor StructuredStandIn(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType type,
                             c10::DeviceIndex device);
// For kernels of InferStructured: of what is not plain, the Meta key is asked.
inline void CheckPlain(bool plain) { TORCH_CHECK_NOT_IMPLEMENTED(plain, "tpu: asks the Meta key"); }
inline bool Given(const std::optional<at::Tensor>& t) { return t && t->defined(); }
// This thread is in InferStructured: what is made meanwhile are stand-ins.
bool InferringStructured();
// From arguments to returns, none of which holds elements. Raises what PyTorch raises. False, with the stack spoiled,
// where the kernel asks for elements after all.
bool InferStructured(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// What the operator returned for stand-ins, and these: out= arguments have the result's sizes.
struct Inference {
  torch::jit::Stack arguments, returns;
};
// Of InferStructured, or else the Meta key, by stand-ins for the arguments' tensors of `device`. Nothing where PyTorch
// has no inference for the operator.
std::optional<Inference> AskPyTorch(const Operator& op, at::ArrayRef<c10::IValue> arguments, c10::DeviceType device);

}  // namespace tpu
