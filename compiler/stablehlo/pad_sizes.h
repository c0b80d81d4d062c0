// One function at several values of one size, or of two -> the same at the largest, right for all smaller ones, too.
//
// A device whose compiler wants fixed sizes runs it for any size up to that, on values that are padded: dims as at the
// largest, the elements that are there first. What the padding holds never matters: where a primitive would mix it in,
// elements are masked, or moved together before.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "llvm/ADT/ArrayRef.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "runtime/polynomial.h"

namespace tpu::stablehlo {

// Changes the last of `functions`, which are of primitives; `points` are their sizes, the largest last. Its last
// arguments are the sizes then, an i64 each. FailedPrecondition where the functions differ in more than sizes, or a
// primitive can't be padded.
absl::Status PadSizes(llvm::ArrayRef<mlir::func::FuncOp> functions, absl::Span<const SizePoint> points);

}  // namespace tpu::stablehlo
