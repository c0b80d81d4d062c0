// tpu.dot as a GemmStep: which operands the matrix library can read where they lie, and with what strides.
//
// The prepare-dots pass has made every dot canonical: lhs [batch.., m, k], rhs [batch.., k, n], either of which may be
// turned. Any thread.
#pragma once

#include "compiler/host/loop_nest.h"
#include "compiler/ir/dialect.h"
#include "runtime/host/plan.h"

namespace tpu::host {

// True when `operand` (a view) of the dot needs no copy.
bool DotReadsInPlace(ir::DotOp dot, mlir::Value operand);

struct GemmSource {
  mlir::Value a, b;  // values that exist in memory
  GemmStep step;
};
GemmSource PlanGemm(ir::DotOp dot);

}  // namespace tpu::host
