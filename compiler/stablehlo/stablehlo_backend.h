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
// One function at these sizes, the largest last, as a program for values that are padded up to these: of format
// "stablehlo-padded" (runtime/pjrt/padded.h). FailedPrecondition where there is none.
absl::StatusOr<Program> CompilePadded(absl::Span<const mlir::ModuleOp> modules, absl::Span<const SizePoint> points,
                                      const std::string& name);

}  // namespace tpu::stablehlo
