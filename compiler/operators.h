// What the compiler knows of operators by name, for layers that must not see MLIR.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tpu::aten {

// Every operator with a lowering or a library call, like "aten::add.Tensor", sorted.
std::vector<std::string> LoweredOperators();
// The operator multiplies matrices: Call::precision is part of what it means.
bool HasProducts(std::string_view op);

}  // namespace tpu::aten
