// The passes that know no device, on `func.func @fragment`.
//
// Used by a backend's pipeline (host/pipeline.cc). Each call makes a new pass, so any thread with a context of its own.
#pragma once

#include <memory>

#include "mlir/Pass/Pass.h"

namespace tpu {

std::unique_ptr<mlir::Pass> CreateDecomposeWindowsPass();
std::unique_ptr<mlir::Pass> CreatePrepareDotsPass();
std::unique_ptr<mlir::Pass> CreateSplitReductionsPass();

}  // namespace tpu
