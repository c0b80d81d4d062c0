// Pass prepare-dots: every dot becomes [batch.., m, k] x [batch.., k, n], either of which may be turned, by views of
// its operands; right sides that repeat by groups of the batch get a batch dim for these, where they lie once; products
// that no matrix library serves (integers, bool), or not well (of depth 1, of small matrices and one vector each, many
// small ones, of few rows with weights that are widened first), become multiplications and sums.
#include <numeric>

#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"
#include "compiler/passes/passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tpu {
namespace {

using mlir::RankedTensorType;
using mlir::Value;
using Dims = llvm::SmallVector<int64_t>;

constexpr int64_t kLanes = 8;  // of a sum's vectors: where rhs has fewer columns, they lie along k instead
constexpr int64_t kSmallElements = 1 << 14;  // of a matrix whose product with a vector is no more than a call
// Multiplications of one product of a batch that takes no longer than a call: any, and by whole vectors along rhs.
constexpr int64_t kSmallProduct = 1 << 9, kSmallProductOfVectors = 1 << 12;
// Rows for each of which a right side is widened anew while it is summed, rather than once into memory.
constexpr int64_t kWidenedRows = 4;

int64_t SizeOf(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= shape[d];
  return n;
}

Value Reshape(mlir::OpBuilder& b, mlir::Location loc, Value x, llvm::ArrayRef<int64_t> dims) {
  auto type = ir::TensorTypeOf(x);
  if (type.getShape() == dims) return x;
  return ir::ReshapeOp::create(b, loc, RankedTensorType::get(dims, type.getElementType()), x);
}

// The operand as [batch.., first group, second group].
Value Arrange(mlir::OpBuilder& b, mlir::Location loc, Value x, llvm::ArrayRef<int64_t> batch,
              llvm::ArrayRef<int64_t> first, llvm::ArrayRef<int64_t> second) {
  auto shape = ir::TensorTypeOf(x).getShape();
  Dims permutation(batch);
  permutation.append(first.begin(), first.end());
  permutation.append(second.begin(), second.end());
  Dims sizes;
  for (int64_t d : batch) sizes.push_back(shape[d]);
  sizes.push_back(SizeOf(shape, first));
  sizes.push_back(SizeOf(shape, second));
  bool moves = false;
  for (size_t i = 0; i < permutation.size(); ++i) moves |= permutation[i] != static_cast<int64_t>(i);
  if (moves) x = ir::TransposeOp::create(b, loc, x, permutation);
  return Reshape(b, loc, x, sizes);
}

// Whether the operand's own order is batch, second group, first group: turned, it needs no transpose. Products that
// read one value both ways then read the same matrix.
bool LiesTurned(llvm::ArrayRef<int64_t> batch, llvm::ArrayRef<int64_t> first, llvm::ArrayRef<int64_t> second) {
  Dims order(batch);
  order.append(second.begin(), second.end());
  order.append(first.begin(), first.end());
  return !first.empty() && !second.empty() && llvm::is_sorted(order);
}

// A matrix that is computed here, for one reader, from narrower elements: quantized weights.
struct Widened {
  bool turned;  // the narrow elements lie by the second dim, then the first
};
std::optional<Widened> WidenedFrom(Value v, unsigned bits) {
  mlir::Operation* op = v.getDefiningOp();
  const mlir::RankedTensorType type = ir::TensorTypeOf(v);
  if (op == nullptr || !op->hasOneUse() || type.getRank() != 2) return std::nullopt;
  if (auto transpose = mlir::dyn_cast<ir::TransposeOp>(op)) {
    std::optional<Widened> below = WidenedFrom(transpose.getX(), bits);
    if (below) below->turned ^= !llvm::is_sorted(transpose.getPermutation());
    return below;
  }
  if (!op->hasTrait<mlir::OpTrait::Elementwise>()) return std::nullopt;
  for (Value operand : op->getOperands()) {
    const mlir::Type element = ir::TensorTypeOf(operand).getElementType();
    if (mlir::isa<ir::ConvertOp>(op) && 8 * ir::BytesOf(element) < bits) {
      bool turned = false;
      for (auto view = operand.getDefiningOp<ir::TransposeOp>(); view;
           view = view.getX().getDefiningOp<ir::TransposeOp>()) {
        turned ^= !llvm::is_sorted(view.getPermutation());
      }
      return Widened{turned};
    }
    if (const auto below = WidenedFrom(operand, bits)) return below;
  }
  return std::nullopt;
}

// In f32 at least, as the sums are.
Value Wide(mlir::OpBuilder& b, mlir::Location loc, Value v) {
  const mlir::RankedTensorType type = ir::TensorTypeOf(v);
  auto element = mlir::dyn_cast<mlir::FloatType>(type.getElementType());
  if (!element || element.getWidth() >= 32) return v;
  return b.createOrFold<ir::ConvertOp>(loc, RankedTensorType::get(type.getShape(), b.getF32Type()), v);
}

// sum over k of lhs[.., m, k] * rhs[.., k, n], or rhs[.., n, k] where it is turned: of products [.., m, k, n] or
// [.., m, n, k], along whose last dim rhs lies side by side.
Value MultiplyAndSum(mlir::OpBuilder& b, mlir::Location loc, Value lhs, Value rhs, bool turned, mlir::Type out) {
  auto left = ir::TensorTypeOf(lhs).getShape(), right = ir::TensorTypeOf(rhs).getShape();
  const auto m = static_cast<int64_t>(left.size()) - 2, k = turned ? m + 2 : m + 1;
  Dims sizes(left.drop_back());
  sizes.append(right.take_back(2).begin(), right.take_back(2).end());
  auto type = RankedTensorType::get(sizes, ir::TensorTypeOf(lhs).getElementType());
  Dims left_dims(m);
  std::iota(left_dims.begin(), left_dims.end(), 0);
  Dims right_dims = left_dims;
  left_dims.append({m, k});
  right_dims.append({m + 1, m + 2});
  Value product = ir::MulOp::create(b, loc, Value(ir::BroadcastOp::create(b, loc, type, lhs, left_dims)),
                                    Value(ir::BroadcastOp::create(b, loc, type, rhs, right_dims)));
  const bool summed = sizes[k] != 1;
  sizes.erase(sizes.begin() + k);
  Value sum = summed ? ir::ReduceOp::create(b, loc, ir::ReduceKind::sum, product, Dims{k}).getResult()
                     : Reshape(b, loc, product, sizes);
  auto sum_type = ir::TensorTypeOf(sum);
  if (sum_type.getElementType() == out) return sum;
  return ir::ConvertOp::create(b, loc, RankedTensorType::get(sum_type.getShape(), out), sum);
}

// The same product with the operands exchanged: the bytes of its result are the same if lhs or rhs is a vector.
ir::DotOp Exchanged(ir::DotOp op, llvm::ArrayRef<int64_t> left_free, llvm::ArrayRef<int64_t> right_free) {
  mlir::OpBuilder b(op);
  auto type = ir::TensorTypeOf(op.getResult());
  auto left = ir::TensorTypeOf(op.getLhs()).getShape(), right = ir::TensorTypeOf(op.getRhs()).getShape();
  Dims sizes(type.getShape().take_front(op.getLhsBatch().size()));
  for (int64_t d : right_free) sizes.push_back(right[d]);
  for (int64_t d : left_free) sizes.push_back(left[d]);
  auto exchanged =
      ir::DotOp::create(b, op.getLoc(), RankedTensorType::get(sizes, type.getElementType()), op.getRhs(), op.getLhs(),
                        op.getRhsBatch(), op.getLhsBatch(), op.getRhsContract(), op.getLhsContract());
  op.getResult().replaceAllUsesWith(Reshape(b, op.getLoc(), exchanged.getResult(), type.getShape()));
  op.erase();
  return exchanged;
}

// The batch dim of a right side [batch.., r, c] whose elements repeat by groups of it (keys for several heads of
// queries), and the value in which the groups are dims of their own.
struct Repeated {
  int64_t dim;
  Value value;
};
std::optional<Repeated> RepeatedIn(Value rhs) {
  auto reshape = rhs.getDefiningOp<ir::ReshapeOp>();
  auto wide = reshape ? reshape.getX().getDefiningOp<ir::BroadcastOp>() : ir::BroadcastOp();
  if (!wide) return std::nullopt;
  const auto shape = ir::TensorTypeOf(rhs).getShape(), parts = ir::TensorTypeOf(wide.getResult()).getShape();
  const auto from = ir::TensorTypeOf(wide.getX()).getShape();
  if (parts.size() != shape.size() + 1) return std::nullopt;
  size_t dim = 0;
  while (dim < shape.size() && shape[dim] == parts[dim]) ++dim;
  if (dim + 2 >= shape.size() || shape.drop_front(dim + 1) != parts.drop_front(dim + 2)) return std::nullopt;
  for (auto [place, size] : llvm::zip_equal(wide.getDims(), from)) {
    if (place == static_cast<int64_t>(dim) + 1 && size != 1) return std::nullopt;
  }
  return Repeated{static_cast<int64_t>(dim), wide.getResult()};
}

// open: for several sizes, which must be served alike where they lie on either side of a bound.
void Prepare(ir::DotOp op, bool open) {
  mlir::OpBuilder b(op);
  mlir::Location loc = op.getLoc();
  auto lhs_shape = ir::TensorTypeOf(op.getLhs()).getShape(), rhs_shape = ir::TensorTypeOf(op.getRhs()).getShape();
  auto free_dims = [](llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> batch, llvm::ArrayRef<int64_t> contract) {
    Dims dims;
    for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
      if (!llvm::is_contained(batch, d) && !llvm::is_contained(contract, d)) dims.push_back(d);
    }
    return dims;
  };
  Dims left_free = free_dims(lhs_shape, op.getLhsBatch(), op.getLhsContract());
  Dims right_free = free_dims(rhs_shape, op.getRhsBatch(), op.getRhsContract());
  const mlir::Type element = ir::TensorTypeOf(op.getLhs()).getElementType();
  const int64_t rows = SizeOf(lhs_shape, left_free), cols = SizeOf(rhs_shape, right_free);
  const int64_t depth = SizeOf(lhs_shape, op.getLhsContract());
  const bool real = element.isF32() || element.isF64() || element.isBF16() || element.isF16();
  const bool rhs_lies_turned = LiesTurned(op.getRhsBatch(), op.getRhsContract(), right_free);
  const int64_t most = std::min(rows, cols) == 1                ? kSmallElements
                       : op.getLhsBatch().empty()               ? 0
                       : cols % kLanes == 0 && !rhs_lies_turned ? kSmallProductOfVectors
                                                                : kSmallProduct;
  const bool small = real && op.getTriangle() == ir::Triangle::none &&
                     (depth == 1 || (rows == 1 && cols == 1) || (!open && rows * cols * depth <= most));
  // The sum runs along rhs, as it lies: let that be the matrix.
  if (small && cols == 1 && rows > 1 && depth > 1) return Prepare(Exchanged(op, left_free, right_free), open);
  const auto widened = !open && op.getLhsBatch().empty() && rows <= kWidenedRows && right_free.size() == 1 &&
                               op.getRhsContract().size() == 1 && element.isIntOrFloat()
                           ? WidenedFrom(op.getRhs(), element.getIntOrFloatBitWidth())
                           : std::nullopt;
  const bool library = !small && !widened && (mlir::isa<mlir::FloatType>(element) || !element.isIntOrFloat());
  const bool turn_left = library && LiesTurned(op.getLhsBatch(), left_free, op.getLhsContract());
  const bool turn_right =
      widened ? (op.getRhsContract()[0] == 1) != widened->turned : rhs_lies_turned || (!library && cols < kLanes);
  Value lhs = library ? op.getLhs() : Wide(b, loc, op.getLhs());
  lhs = turn_left ? Arrange(b, loc, lhs, op.getLhsBatch(), op.getLhsContract(), left_free)
                  : Arrange(b, loc, lhs, op.getLhsBatch(), left_free, op.getLhsContract());
  Value rhs = library ? op.getRhs() : Wide(b, loc, op.getRhs());
  rhs = turn_right ? Arrange(b, loc, rhs, op.getRhsBatch(), right_free, op.getRhsContract())
                   : Arrange(b, loc, rhs, op.getRhsBatch(), op.getRhsContract(), right_free);
  constexpr int64_t kMostBatchDims = 3;  // of a step
  const auto repeated = library ? RepeatedIn(rhs) : std::nullopt;
  if (repeated && ir::TensorTypeOf(rhs).getRank() - 2 < kMostBatchDims) {
    rhs = repeated->value;
    Dims split(ir::TensorTypeOf(lhs).getShape());
    const auto parts = ir::TensorTypeOf(rhs).getShape().slice(repeated->dim, 2);
    split[repeated->dim] = parts[1];
    split.insert(split.begin() + repeated->dim, parts[0]);
    lhs = Reshape(b, loc, lhs, split);
  }
  auto left = ir::TensorTypeOf(lhs), right = ir::TensorTypeOf(rhs);
  mlir::Type out = ir::TensorTypeOf(op.getResult()).getElementType();
  Value result;
  if (!library) {
    result = MultiplyAndSum(b, loc, lhs, rhs, turn_right, out);
  } else {
    Dims batch, sizes;
    int64_t rank = left.getRank();
    for (int64_t d = 0; d < rank - 2; ++d) {
      batch.push_back(d);
      sizes.push_back(left.getDimSize(d));
    }
    const int64_t left_contract = turn_left ? rank - 2 : rank - 1, right_contract = turn_right ? rank - 1 : rank - 2;
    sizes.push_back(left.getDimSize(2 * rank - 3 - left_contract));
    sizes.push_back(right.getDimSize(2 * rank - 3 - right_contract));
    result = ir::DotOp::create(b, loc, RankedTensorType::get(sizes, out), lhs, rhs, batch, batch, Dims{left_contract},
                               Dims{right_contract}, op.getTriangle(), op.getPrecision(), op.getAgain());
  }
  op.getResult().replaceAllUsesWith(Reshape(b, loc, result, ir::TensorTypeOf(op.getResult()).getShape()));
  op.erase();
}

struct PrepareDots : mlir::PassWrapper<PrepareDots, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(PrepareDots)
  llvm::StringRef getArgument() const override { return "prepare-dots"; }
  llvm::StringRef getDescription() const override { return "Bring dots to the form that matrix libraries take"; }
  void runOnOperation() override {
    llvm::SmallVector<ir::DotOp> dots;
    getOperation().walk([&](ir::DotOp op) { dots.push_back(op); });
    for (ir::DotOp op : dots) Prepare(op, HasOpenSizes(getOperation()));
  }
};

}  // namespace

std::unique_ptr<mlir::Pass> CreatePrepareDotsPass() { return std::make_unique<PrepareDots>(); }

}  // namespace tpu
