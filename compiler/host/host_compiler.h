// Module -> Program: the host compiler below the import of fragments, for the backend, tools and tests.
//
// Any thread, with a module in a context of its own. Writes every stage to Flags::dump when that is set.
#pragma once

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "compiler/tuning.h"
#include "mlir/IR/BuiltinOps.h"
#include "runtime/program.h"

namespace tpu::host {

// Rewrites the module's one function to fused form and makes its program. `name` names dumps. Cancelled once
// `cancelled`.
absl::StatusOr<Program> CompileModule(mlir::ModuleOp module, const std::string& name, const Tuning& tuning = {},
                                      const std::atomic<bool>* cancelled = nullptr);

}  // namespace tpu::host
