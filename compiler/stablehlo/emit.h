// Primitives -> StableHLO text: one function a family of the dialect, one table where operations map one to one.
//
// Called by the StableHLO backend and tpu-opt with a function that holds primitives only (a pass of the pipeline has
// expanded those that StableHLO lacks). Within StableHLO 1.13. Any thread, with a module in a context of its own.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/stablehlo/writer.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "runtime/pjrt/module.h"

namespace tpu::stablehlo {

// The function's distinct results that are no arguments become the module's; donation is tf.aliasing_output.
// Unimplemented, naming the operator, when a recorded call is left in the function.
absl::StatusOr<pjrt::Module> EmitModule(mlir::func::FuncOp function);

// What a family's function sees: the module so far, and the values of the function.
struct Emission {
  Writer w;
  llvm::DenseMap<mlir::Value, Val> values;
  std::vector<Val> checks;  // i1 of rank 0, each true when an index was out of range

  Val Of(mlir::Value v) const { return values.find(v)->second; }
  void Set(mlir::Value v, Val val) { values[v] = std::move(val); }
};

// Each emits `op` if it is of its family; false: it is not.
bool EmitElementwise(Emission& e, mlir::Operation* op);
bool EmitShape(Emission& e, mlir::Operation* op);
bool EmitReduction(Emission& e, mlir::Operation* op);
bool EmitIndex(Emission& e, mlir::Operation* op);

}  // namespace tpu::stablehlo
