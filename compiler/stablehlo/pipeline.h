// The passes before emission, and the one place where their order is written (pipeline.cc).
//
// Used by the StableHLO backend and tpu-opt. Each call makes new passes: any thread with a context of its own.
#pragma once

#include "mlir/Pass/PassManager.h"

namespace tpu::stablehlo {

// aten calls -> primitives.
void AddPrimitivePasses(mlir::OpPassManager& passes);
// Primitives -> those that EmitModule takes.
void AddTargetPasses(mlir::OpPassManager& passes);

}  // namespace tpu::stablehlo
