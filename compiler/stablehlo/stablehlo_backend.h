// Fragment -> StableHLO text: the backend of devices behind the PJRT C API.
//
// Made by the composition root and tools. Programs have format "stablehlo"; what was recorded and has no lowering makes
// Compile fail with Unimplemented, naming the operator. Any thread.
#pragma once

#include <memory>

#include "compiler/backend.h"
#include "mlir/IR/BuiltinOps.h"

namespace tpu::stablehlo {

std::unique_ptr<CompilerBackend> MakeStablehloBackend();

// The module's one function as a program. `name` names dumps.
absl::StatusOr<Program> CompileModule(mlir::ModuleOp module, const std::string& name);

}  // namespace tpu::stablehlo
