// The one boxed kernel: records any ATen or torch.library operator from its schema.
//
// Registered for PrivateUse1 as the fallback of every operator that needs a kernel, and by name for those that PyTorch
// would otherwise take apart though the compiler has a lowering.
#pragma once

#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "dispatcher/calls.h"

namespace tpu {

// Records the call whose arguments are on the stack, and leaves its returns there.
void Record(Operator& op, torch::jit::Stack* stack);
// The same of arguments that have been collected, as reading views records, too. Adds to `collected`. False, and
// nothing done, where another thread wrote what was read: collect them again.
bool Record(Operator& op, Collected& collected, torch::jit::Stack* stack);

// `lowered`: names like "aten::add.Tensor". Their in-place forms are registered too. Operators that are composites for
// autograd are left to PyTorch. Called once, at load.
void RegisterOperators(const std::vector<std::string>& lowered);

}  // namespace tpu
