// The one boxed kernel: records any ATen or torch.library operator from its schema.
//
// Registered for PrivateUse1 as the fallback of every operator that needs a kernel, and by name for those that PyTorch
// would otherwise take apart though the compiler has a lowering.
#pragma once

#include <string>
#include <vector>

namespace tpu {

// `lowered`: names like "aten::add.Tensor". Their in-place forms are registered too. Operators that are composites for
// autograd are left to PyTorch. Called once, at load.
void RegisterOperators(const std::vector<std::string>& lowered);

}  // namespace tpu
