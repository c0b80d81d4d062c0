// Fragment -> MLIR: a module with one `func.func @fragment` whose ops are the recorded calls (tpu.aten).
//
// Called by the backends on the compile pool, each with a context of its own.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "compiler/fragment.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"

namespace tpu {

// Inputs are the function's arguments (scalars of rank 0: i1, i64, f64, complex<f64>), outputs what it returns, in the
// fragment's order. Loads the dialects it needs.
mlir::OwningOpRef<mlir::ModuleOp> ImportFragment(mlir::MLIRContext& context, const Fragment& fragment);

struct ImportedFragments {
  std::vector<mlir::OwningOpRef<mlir::ModuleOp>> owned;
  std::vector<mlir::ModuleOp> modules;
};
// Each as a module of its own.
ImportedFragments ImportFragments(mlir::MLIRContext& context, absl::Span<const Fragment> fragments);

}  // namespace tpu
