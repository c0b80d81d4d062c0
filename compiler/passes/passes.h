// The compiler's passes and the one place where their order is written (pipeline.cc).
//
// Used by the host backend, tpu-opt and tests. Passes run on `func.func @fragment`; each call makes new passes, so any
// thread with a context of its own.
#pragma once

#include <memory>

#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassManager.h"

namespace tpu {

std::unique_ptr<mlir::Pass> CreateDecomposeWindowsPass();
std::unique_ptr<mlir::Pass> CreatePrepareDotsPass();
std::unique_ptr<mlir::Pass> CreateSplitReductionsPass();
std::unique_ptr<mlir::Pass> CreateFusePass();

// aten calls -> fused primitives, for the host.
void BuildHostPipeline(mlir::OpPassManager& passes);
// The passes by name, for tpu-opt.
void RegisterHostPasses();

}  // namespace tpu
