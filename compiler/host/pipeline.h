// The host compiler's passes and the one place where their order is written (pipeline.cc).
//
// Used by the host backend, tpu-opt and tests. The passes that ask what one loop nest can hold are made here; the
// others come from compiler/passes, which knows no device. Each call makes new passes: any thread with a context of its
// own.
#pragma once

#include <memory>

#include "compiler/tuning.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassManager.h"

namespace tpu::host {

std::unique_ptr<mlir::Pass> CreatePlaceUpdatesPass();
std::unique_ptr<mlir::Pass> CreateFusePass(const Tuning& tuning = {});
// Attribute of a function compiled at several sizes: what fusion has joined. Set beforehand, fusion joins the same.
constexpr llvm::StringLiteral kFusedLike = "tpu.fused_like";

// aten calls -> fused primitives.
void BuildHostPipeline(mlir::OpPassManager& passes, const Tuning& tuning = {});
// The passes by name, for tpu-opt.
void RegisterHostPasses();

}  // namespace tpu::host
