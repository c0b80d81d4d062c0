// The recording kernel without boxing, for the few C++ signatures that most small operations have. Same path as the
// boxed kernel (record.h), which also takes every call that is new or out of the ordinary: boxing costs a heap
// allocation and, for tensors that Python holds, Python's lock.
//
// Used by RegisterOperators. Signatures are matched against schemas; no operator is named here.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace tpu {

// The kernel for the operator, if its signature is one of those.
std::optional<c10::KernelFunction> TypedKernel(const c10::OperatorHandle& op);

}  // namespace tpu
