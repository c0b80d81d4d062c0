// Kernels that are no loop nest: scatters, sums of taken rows, running scans and sorting.
//
// Each reads its operands from memory and writes its results; a scatter finds its base where its result is to be.
// Parallel over positions that no two of whose writes meet, so results never depend on the number of threads. Called by
// the plan builder on compile threads.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "compiler/host/kernel_compiler.h"
#include "llvm/ADT/SmallVector.h"
#include "mlir/IR/Operation.h"

namespace tpu::host {

bool IsSpecialOp(mlir::Operation* op);
// True when the op makes this operand (a splat constant) itself.
bool IsMadeInside(mlir::Operation* op, mlir::Value operand);
// What the op's result must hold before its kernel runs, or null: the base of a scatter, if it isn't made inside.
mlir::Value BaseOf(mlir::Operation* op);
// Its operands in the order of its pointers; the results follow.
llvm::SmallVector<mlir::Value> SpecialInputs(mlir::Operation* op);
KernelWriter SpecialWriter(mlir::Operation* op, const Tuning& tuning);

}  // namespace tpu::host

// Called by sort kernels: one line of `count` keys, `stride` elements apart. dtype is tpu::DType's number.
extern "C" void tpu_host_sort(int64_t dtype, const void* keys, void* values, int64_t* indices, int64_t count,
                              int64_t stride, int64_t descending);
