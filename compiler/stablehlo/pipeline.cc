// The order of the passes before StableHLO is written, and why each stands where it does. Fusion, tiling and memory are
// the target's own affair.
#include "compiler/stablehlo/pipeline.h"

#include "compiler/passes/lower_aten.h"
#include "compiler/passes/passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Transforms/Passes.h"

namespace tpu::stablehlo {

void AddPrimitivePasses(mlir::OpPassManager& passes) {
  mlir::OpPassManager& function = passes.nest<mlir::func::FuncOp>();
  // Calls become primitives first: everything below sees only those and the calls that stay calls.
  function.addPass(CreateLowerAtenPass(/*host_kernels=*/false));
  // Where a window has its extremum, in simpler primitives: StableHLO has windows of values only.
  function.addPass(CreateDecomposeWindowsPass(/*indices_only=*/true));
  // Folds casts and constants, while functions are still one op each.
  function.addPass(mlir::createCanonicalizerPass());
}

void AddTargetPasses(mlir::OpPassManager& passes) {
  mlir::OpPassManager& function = passes.nest<mlir::func::FuncOp>();
  // Then what StableHLO has no operation for, or defines otherwise.
  function.addPass(CreateExpandFloat8Pass());
  function.addPass(CreateExpandMathPass());
  // Equal primitives once: shorter text, quicker compiles.
  function.addPass(mlir::createCSEPass());
}

}  // namespace tpu::stablehlo
