// Errors that PyTorch's kernels find and its shape inference does not, so that they are raised at the call.
//
// Called by Infer once for each distinct signature, without locks of ours. Touches none of the call's own data.
#pragma once

#include <ATen/core/stack.h>

#include "dispatcher/calls.h"

namespace tpu {

// Runs the CPU's kernel on stand-ins of the same kinds. A complaint that stays the same whatever the stand-ins hold is
// most likely about shapes and types: false, and the call runs at once, on its own data, which decides. `call` is
// described; `inferred` is what shape inference returned, and gets the kernel's element types where these differ. False
// too when there is no lowering and the kernel leaves results empty that shape inference thinks full, or the reverse:
// workspaces that depend on the device.
// Large calls are tried on shrunk stand-ins, once for all calls that shrink to the same.
bool CheckOnHost(const Operator& op, const Call& call, const Collected& collected, at::ArrayRef<c10::IValue> arguments,
                 torch::jit::Stack& inferred);

}  // namespace tpu
