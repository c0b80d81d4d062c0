// What the compiler knows of operators by name, for layers that must not see MLIR.
#pragma once

#include <string>
#include <vector>

namespace tpu::aten {

// Every operator with a lowering or a library call, like "aten::add.Tensor", sorted.
std::vector<std::string> LoweredOperators();

}  // namespace tpu::aten
