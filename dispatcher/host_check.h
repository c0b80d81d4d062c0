// Errors that PyTorch's kernels find and its shape inference does not, so that they are raised at the call.
//
// Called by Infer once for each distinct signature, without locks of ours. Touches none of the call's own data.
#pragma once

#include <ATen/core/stack.h>

#include <exception>

#include "dispatcher/calls.h"

namespace tpu {

// What the CPU's kernel said.
struct HostCheck {
  std::exception_ptr complaint;
  bool as_inferred = true;  // false: it gives results other sizes than shape inference does
  bool accepted = false;    // it gave results; or is a library's, which isn't tried: it may do more than compute
  bool draws = true;        // false: it gave results and left the generator where it was (attention without dropout)

  // False: the call runs at once, on its own data, which decides. A complaint that stays the same whatever stand-ins
  // hold is most likely about shapes and types; what is not as inferred, and has no lowering, is a workspace that
  // depends on the device. `call` is described.
  bool AllowsToRecord(const Call& call) const;
};

// Runs the CPU's kernel on stand-ins of the same kinds. Of `call` only the arguments are described; `inferred` is what
// shape inference returned, and gets the kernel's element types and strides where these differ. Large calls are tried
// on shrunk stand-ins, once for all calls that shrink to the same.
HostCheck CheckOnHost(const Operator& op, const Call& call, const Collected& collected,
                      at::ArrayRef<c10::IValue> arguments, torch::jit::Stack& inferred);

// Raises what the CPU's kernel of an operator that draws says of its numbers (probabilities, bounds, deviations), which
// signatures don't hold: for every call, but the kernel runs once for each of its numbers.
void CheckNumbers(const Operator& op, const Call& call, const Collected& collected,
                  at::ArrayRef<c10::IValue> arguments);

}  // namespace tpu
