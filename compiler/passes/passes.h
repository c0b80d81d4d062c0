// The passes that know no device, on `func.func @fragment`.
//
// Used by the backends' pipelines (host/pipeline.cc, stablehlo/pipeline.cc). Each call makes a new pass, so any thread
// with a context of its own.
#pragma once

#include <memory>

#include "mlir/Pass/Pass.h"

namespace tpu {

// indices_only: window_reduce stays, for targets that have it.
std::unique_ptr<mlir::Pass> CreateDecomposeWindowsPass(bool indices_only = false);
std::unique_ptr<mlir::Pass> CreateExpandFloat8Pass();
std::unique_ptr<mlir::Pass> CreateExpandMathPass();
std::unique_ptr<mlir::Pass> CreatePrepareDotsPass();
std::unique_ptr<mlir::Pass> CreateShareSoftmaxPass();
std::unique_ptr<mlir::Pass> CreateSplitConcatsPass();
std::unique_ptr<mlir::Pass> CreateSplitReductionsPass();

}  // namespace tpu
