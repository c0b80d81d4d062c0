// Pass split-reductions: a long reduction with few results becomes a reduction of fixed parts and one over the parts.
//
// The number of parts depends on shapes only, so results don't depend on the number of threads; summing parts also
// keeps float sums accurate. Only single-dim patterns that stay views are split: [kept..., reduced...] of few rows, and
// [reduced..., kept...], of a few columns many rows side by side. What does not divide is reduced apart and joined with
// the others.
#include <algorithm>

#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"
#include "compiler/passes/passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tpu {
namespace {

constexpr int64_t kMinElements = 1 << 16;  // less is done before a second core has started
constexpr int64_t kPartElements = 1 << 14;
constexpr int64_t kMaxParts = 64;
constexpr int64_t kLanes = 16;     // of vectors: where there are fewer columns, rows go side by side
constexpr int64_t kShortSum = 64;  // rows that are summed in f32 there, before the sums are added up in f64

using mlir::RankedTensorType;
using mlir::Value;

Value Reshape(mlir::OpBuilder& b, mlir::Location loc, Value x, llvm::ArrayRef<int64_t> dims) {
  auto type = ir::TensorTypeOf(x);
  if (type.getShape() == dims) return x;
  return ir::ReshapeOp::create(b, loc, RankedTensorType::get(dims, type.getElementType()), x);
}

Value Reduce(mlir::OpBuilder& b, mlir::Location loc, ir::ReduceKind kind, Value x, llvm::ArrayRef<int64_t> dims) {
  return ir::ReduceOp::create(b, loc, kind, x, dims);
}

Value Convert(mlir::OpBuilder& b, mlir::Location loc, Value x, mlir::Type element) {
  return ir::ConvertOp::create(b, loc, RankedTensorType::get(ir::TensorTypeOf(x).getShape(), element), x);
}

Value Slice(mlir::OpBuilder& b, mlir::Location loc, Value x, int64_t dim, int64_t from, int64_t to) {
  auto shape = ir::TensorTypeOf(x).getShape();
  llvm::SmallVector<int64_t> start(shape.size(), 0), limit(shape), stride(shape.size(), 1);
  start[dim] = from;
  limit[dim] = to;
  return ir::SliceOp::create(b, loc, x, start, limit, stride);
}

// Reduces `dim` of x (rank 3: outer, reduced, inner) in parts.
Value ReduceInParts(mlir::OpBuilder& b, mlir::Location loc, ir::ReduceKind kind, Value x, int64_t parts) {
  auto shape = llvm::to_vector(ir::TensorTypeOf(x).getShape());
  const mlir::Type element = ir::TensorTypeOf(x).getElementType();
  int64_t together = 1;  // rows side by side
  if (shape[2] > 1 && shape[2] < kLanes) {
    together = std::max<int64_t>(shape[1] / parts / kShortSum / kLanes, 1) * kLanes;
  }
  int64_t each = shape[1] / parts / together, even = each * parts * together;
  Value head = even == shape[1] ? x : Slice(b, loc, x, 1, 0, even);
  head = Reduce(b, loc, kind, Reshape(b, loc, head, {shape[0], parts, each, together * shape[2]}), {2});
  head = Reshape(b, loc, head, {shape[0], parts * together, shape[2]});
  const bool widen = together > 1 && kind == ir::ReduceKind::sum && element.isF32();
  Value result = Reduce(b, loc, kind, widen ? Convert(b, loc, head, b.getF64Type()) : head, {1});
  if (widen) result = Convert(b, loc, result, element);
  if (even == shape[1]) return result;
  Value tail = Reduce(b, loc, kind, Slice(b, loc, x, 1, even, shape[1]), {1});
  switch (kind) {
    case ir::ReduceKind::sum:
      return ir::AddOp::create(b, loc, result, tail);
    case ir::ReduceKind::prod:
      return ir::MulOp::create(b, loc, result, tail);
    case ir::ReduceKind::max:
      return ir::MaxOp::create(b, loc, result, tail);
    case ir::ReduceKind::min:
      return ir::MinOp::create(b, loc, result, tail);
    case ir::ReduceKind::all:
      return ir::AndOp::create(b, loc, result, tail);
    case ir::ReduceKind::any:
      return ir::OrOp::create(b, loc, result, tail);
  }
  return result;
}

void Split(ir::ReduceOp op) {
  auto shape = ir::TensorTypeOf(op.getX()).getShape();
  // Runs of kept and reduced dims: only one reduced run is split.
  int64_t outer = 1, reduced = 1, inner = 1;
  int stage = 0;
  for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
    if (shape[d] == 1) continue;
    bool is_reduced = llvm::is_contained(op.getDims(), d);
    if (is_reduced && stage == 0) stage = 1;
    if (!is_reduced && stage == 1) stage = 2;
    if (is_reduced && stage == 2) return;
    (stage == 0 ? outer : stage == 1 ? reduced : inner) *= shape[d];
  }
  int64_t elements = outer * reduced * inner;
  if (elements < kMinElements || reduced < 64) return;
  // Enough independent work as it is: rows, or blocks of columns. Column kernels keep one accumulator a column, so a
  // long column is split for accuracy too.
  if (inner == 1 && outer >= 32) return;
  if (inner > 1 && outer >= 16 && reduced <= 4096) return;
  int64_t part = std::max<int64_t>(kPartElements, inner * 16);
  int64_t parts = std::min({elements / part, kMaxParts, reduced / 16});
  if (parts < 2) return;
  // An exact division if one is near.
  for (int64_t p = parts; p > parts / 2; --p) {
    if (reduced % p == 0) {
      parts = p;
      break;
    }
  }
  mlir::OpBuilder b(op);
  mlir::Location loc = op.getLoc();
  Value x = Reshape(b, loc, op.getX(), {outer, reduced, inner});
  // Half-precision sums stay wide between the parts.
  auto element = ir::TensorTypeOf(op.getX()).getElementType();
  bool half = element.isF16() || element.isBF16();
  if (half) x = Convert(b, loc, x, b.getF32Type());
  Value result = ReduceInParts(b, loc, op.getKind(), x, parts);
  if (half) result = Convert(b, loc, result, element);
  result = Reshape(b, loc, result, ir::TensorTypeOf(op.getResult()).getShape());
  op.getResult().replaceAllUsesWith(result);
  op.erase();
}

struct SplitReductions : mlir::PassWrapper<SplitReductions, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(SplitReductions)
  llvm::StringRef getArgument() const override { return "split-reductions"; }
  llvm::StringRef getDescription() const override { return "Split long reductions with few results into parts"; }
  void runOnOperation() override {
    if (HasOpenSizes(getOperation())) return;  // how many parts a size has follows no polynomial
    llvm::SmallVector<ir::ReduceOp> reduces;
    getOperation().walk([&](ir::ReduceOp op) { reduces.push_back(op); });
    for (ir::ReduceOp op : reduces) Split(op);
  }
};

}  // namespace

std::unique_ptr<mlir::Pass> CreateSplitReductionsPass() { return std::make_unique<SplitReductions>(); }

}  // namespace tpu
