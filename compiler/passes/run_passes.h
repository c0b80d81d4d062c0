// Runs a backend's pipeline: diagnostics become a status, and every stage is written to Flags::dump when that is set.
//
// Called by the backends, on any thread, with a module in a context of its own.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"

namespace tpu {

// `name` names the dumped files.
absl::Status RunPasses(mlir::PassManager& passes, mlir::ModuleOp module, const std::string& name);
// One more stage, written as the passes' are: DIR/NAME.STAGE, if stages are dumped at all.
void DumpStage(const std::string& name, const std::string& stage, const std::string& text);

}  // namespace tpu
