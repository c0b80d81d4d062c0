// What was decided by how windows of one value lie to each other.
//
// A function that is compiled at several sizes for one program keeps a record of it, an attribute: a window that lies
// before another at one size and behind it at the next meets it at some size in between, though the function is the
// same at both. Used by rewrites and passes, on the function they work on, and by those that join such functions.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "runtime/polynomial.h"

namespace tpu::ir {

// From now on the function keeps a record.
void KeepWindowsOf(mlir::func::FuncOp function);

// Along `dim`, what is at hand lies `distance` behind the end of what was written (below zero: before its begin). Does
// nothing where the function that `op` is in keeps no record.
void RecordApart(mlir::Operation* op, int64_t dim, int64_t distance);
// It lies within what was written, at these distances, zero or above, from its begin and its end.
void RecordInside(mlir::Operation* op, int64_t dim, int64_t from_begin, int64_t from_end);

// FailedPrecondition where the records, at these points, are not of one kind for all between.
absl::Status CheckWindows(absl::Span<const mlir::func::FuncOp> functions, absl::Span<const SizePoint> points);

}  // namespace tpu::ir
