// The numbered constraints of the ops' descriptions. Messages start with the number.
#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"

namespace tpu::ir {
namespace {

using mlir::ArrayRef;
using mlir::LogicalResult;
using mlir::success;

bool Increasing(ArrayRef<int64_t> dims, int64_t rank) {
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0 || dims[i] >= rank || (i > 0 && dims[i] <= dims[i - 1])) return false;
  }
  return true;
}

template <typename Op>
LogicalResult VerifyDim(Op op, int64_t rank) {
  int64_t dim = op.getDim();
  if (dim < 0 || dim >= rank) return op.emitOpError("C1: dim ") << dim << " must be in [0, " << rank << ")";
  return success();
}

template <typename Op>
LogicalResult VerifyScatter(Op op, bool rows) {
  auto base = TensorTypeOf(op.getBase()), indices = TensorTypeOf(op.getIndices()),
       updates = TensorTypeOf(op.getUpdates());
  if (base.getElementType() != updates.getElementType()) {
    return op.emitOpError("C1: base and updates must have one element type");
  }
  if (base.getRank() != updates.getRank() || indices.getRank() != (rows ? 1 : base.getRank())) {
    return op.emitOpError("C1: ranks of base, indices and updates do not fit");
  }
  if (mlir::failed(VerifyDim(op, base.getRank()))) return mlir::failure();
  int64_t dim = op.getDim();
  for (int64_t d = 0; d < base.getRank(); ++d) {
    int64_t want = !rows ? indices.getDimSize(d) : d == dim ? indices.getDimSize(0) : base.getDimSize(d);
    bool fits = updates.getDimSize(d) == want && (rows || d == dim || want <= base.getDimSize(d));
    if (!fits) return op.emitOpError("C2: updates do not fit indices and base in dim ") << d;
  }
  return success();
}

}  // namespace

LogicalResult IotaOp::verify() { return VerifyDim(*this, TensorTypeOf(getResult()).getRank()); }

LogicalResult ReshapeOp::verify() {
  if (TensorTypeOf(getX()).getNumElements() != TensorTypeOf(getResult()).getNumElements()) {
    return emitOpError("C1: operand and result must have as many elements");
  }
  return success();
}

// Checked in full by inferReturnTypes.
LogicalResult TransposeOp::verify() { return success(); }
LogicalResult SliceOp::verify() { return success(); }

LogicalResult BroadcastOp::verify() {
  auto x = TensorTypeOf(getX()), result = TensorTypeOf(getResult());
  if (int64_t(getDims().size()) != x.getRank() || !Increasing(getDims(), result.getRank())) {
    return emitOpError("C1: dims must give an increasing result dim for each operand dim");
  }
  for (auto [i, d] : llvm::enumerate(getDims())) {
    if (x.getDimSize(i) != 1 && x.getDimSize(i) != result.getDimSize(d)) {
      return emitOpError("C2: operand dim ") << i << " must be 1 or equal result dim " << d;
    }
  }
  return success();
}

LogicalResult ReverseOp::verify() {
  if (!Increasing(getDims(), TensorTypeOf(getX()).getRank())) {
    return emitOpError("C1: dims must be strictly increasing and < rank");
  }
  return success();
}

LogicalResult PadOp::verify() {
  auto value = TensorTypeOf(getValue());
  if (value.getRank() != 0 || value.getElementType() != TensorTypeOf(getX()).getElementType()) {
    return emitOpError("C2: value must have rank 0 and the operand's element type");
  }
  return success();
}

LogicalResult ConcatOp::verify() {
  auto first = TensorTypeOf(getInputs()[0]);
  for (mlir::Value v : getInputs()) {
    auto type = TensorTypeOf(v);
    bool fits = type.getElementType() == first.getElementType();
    for (int64_t d = 0; d < first.getRank(); ++d) {
      fits = fits && (d == int64_t(getDim()) || type.getDimSize(d) == first.getDimSize(d));
    }
    if (!fits) return emitOpError("C2: operands must agree in element type and in every dim but `dim`");
  }
  return success();
}

LogicalResult UpdateSliceOp::verify() {
  auto base = TensorTypeOf(getBase()), src = TensorTypeOf(getSrc());
  size_t rank = base.getRank();
  if (getStart().size() != rank || getStride().size() != rank || src.getRank() != base.getRank() ||
      src.getElementType() != base.getElementType()) {
    return emitOpError("C1: one start and stride for each dim; src must have base's rank and element type");
  }
  for (size_t i = 0; i < rank; ++i) {
    if (getStart()[i] < 0 || getStride()[i] < 1) return emitOpError("C1: start must be >= 0 and stride >= 1");
    if (src.getDimSize(i) > 0 && getStart()[i] + (src.getDimSize(i) - 1) * getStride()[i] >= base.getDimSize(i)) {
      return emitOpError("C2: the window must lie inside base in dim ") << i;
    }
  }
  return success();
}

LogicalResult BitcastOp::verify() {
  auto from = TensorTypeOf(getX()), to = TensorTypeOf(getResult());
  int64_t from_bytes = BytesOf(from.getElementType()), to_bytes = BytesOf(to.getElementType());
  if (from.getRank() != to.getRank() || (from.getRank() == 0 && from_bytes != to_bytes)) {
    return emitOpError("C1: operand and result must have one rank, and rank 0 equal element sizes");
  }
  for (int64_t d = 0; d < from.getRank(); ++d) {
    bool last = d == from.getRank() - 1;
    if (from.getDimSize(d) * (last ? from_bytes : 1) != to.getDimSize(d) * (last ? to_bytes : 1)) {
      return emitOpError("C1: dims must be equal, the last one in bytes");
    }
  }
  return success();
}

LogicalResult ReduceOp::verify() {
  bool boolean = getKind() == ReduceKind::all || getKind() == ReduceKind::any;
  if (boolean && !TensorTypeOf(getX()).getElementType().isInteger(1)) return emitOpError("C2: all and any are of i1");
  return success();
}

LogicalResult ArgReduceOp::verify() { return success(); }

LogicalResult DotOp::verify() {
  auto lhs = TensorTypeOf(getLhs()), rhs = TensorTypeOf(getRhs()), result = TensorTypeOf(getResult());
  if (getLhsBatch().size() != getRhsBatch().size() || getLhsContract().size() != getRhsContract().size()) {
    return emitOpError("C1: batch and contracted dims must pair up");
  }
  auto named_once = [](ArrayRef<int64_t> a, ArrayRef<int64_t> b, int64_t rank) {
    llvm::SmallVector<bool> seen(rank, false);
    for (int64_t d : llvm::concat<const int64_t>(a, b)) {
      if (d < 0 || d >= rank || seen[d]) return false;
      seen[d] = true;
    }
    return true;
  };
  if (!named_once(getLhsBatch(), getLhsContract(), lhs.getRank()) ||
      !named_once(getRhsBatch(), getRhsContract(), rhs.getRank())) {
    return emitOpError("C2: every dim must be named at most once and be < rank");
  }
  auto equal_sizes = [&](ArrayRef<int64_t> a, ArrayRef<int64_t> b) {
    return llvm::all_of(llvm::zip(a, b),
                        [&](auto p) { return lhs.getDimSize(std::get<0>(p)) == rhs.getDimSize(std::get<1>(p)); });
  };
  if (!equal_sizes(getLhsBatch(), getRhsBatch()) || !equal_sizes(getLhsContract(), getRhsContract())) {
    return emitOpError("C1: paired dims must have equal sizes");
  }
  if (lhs.getElementType() != rhs.getElementType() ||
      BytesOf(result.getElementType()) < BytesOf(lhs.getElementType())) {
    return emitOpError("C3: operands must have one element type, the result that or a wider one");
  }
  if (result.getShape() !=
      ArrayRef<int64_t>(DotShape(lhs, rhs, getLhsBatch(), getRhsBatch(), getLhsContract(), getRhsContract()))) {
    return emitOpError("C4: result dims must be batch, lhs free, rhs free");
  }
  const int64_t named = static_cast<int64_t>(getLhsBatch().size() + getLhsContract().size());
  if (getTriangle() != Triangle::none &&
      (getLhsContract().size() != 1 || lhs.getRank() != named + 1 || rhs.getRank() != named + 1)) {
    return emitOpError("C5: a triangle needs one free dim of each operand and one contracted dim");
  }
  return success();
}

static bool IsOfMatrices(mlir::Type element) {
  if (auto complex = mlir::dyn_cast<mlir::ComplexType>(element)) element = complex.getElementType();
  return element.isF32() || element.isF64();
}

LogicalResult CholeskyOp::verify() {
  auto shape = TensorTypeOf(getX()).getShape();
  if (shape.size() < 2 || shape.back() != shape[shape.size() - 2]) return emitOpError("C1: matrices must be square");
  if (!IsOfMatrices(getX().getType().getElementType())) return emitOpError("C2: elements must be of f32 or f64");
  return success();
}

LogicalResult TriangularSolveOp::verify() {
  auto a = TensorTypeOf(getA()), b = TensorTypeOf(getB());
  const int64_t rank = a.getRank();
  if (rank < 2 || a.getShape().drop_back() != b.getShape().drop_back() ||
      a.getDimSize(rank - 1) != a.getDimSize(rank - 2) || TensorTypeOf(getResult()) != b) {
    return emitOpError("C1: matrices must be square, and of as many rows as what they are solved for");
  }
  if (a.getElementType() != b.getElementType() || !IsOfMatrices(a.getElementType())) {
    return emitOpError("C2: elements must be of f32 or f64");
  }
  return success();
}

LogicalResult ConvOp::verify() {
  auto lhs = TensorTypeOf(getLhs()), rhs = TensorTypeOf(getRhs()), result = TensorTypeOf(getResult());
  const int64_t rank = lhs.getRank(), features = getFeatureGroups(), batches = getBatchGroups();
  const unsigned first = getSwapped() ? 1 : 0, second = 1 - first;
  auto one_each = [&](ArrayRef<int64_t> list) { return static_cast<int64_t>(list.size()) == rank - 2; };
  if (rank < 2 || rhs.getRank() != rank || result.getRank() != rank || !one_each(getStrides()) || !one_each(getLow()) ||
      !one_each(getHigh()) || !one_each(getBaseDilation()) || !one_each(getDilation())) {
    return emitOpError("C1: operands, result and attributes must agree in their number of dims");
  }
  if (features < 1 || batches < 1 || (features > 1 && batches > 1) ||
      lhs.getDimSize(second) != rhs.getDimSize(second) * features ||
      rhs.getDimSize(first) % (features * batches) != 0 || lhs.getDimSize(first) % batches != 0) {
    return emitOpError("C2: channels and groups must fit together");
  }
  if (lhs.getElementType() != rhs.getElementType() ||
      BytesOf(result.getElementType()) < BytesOf(lhs.getElementType())) {
    return emitOpError("C3: operands must have one element type, the result that or a wider one");
  }
  if (result.getShape() != ArrayRef<int64_t>(ConvShape(lhs, rhs, getStrides(), getLow(), getHigh(), getBaseDilation(),
                                                       getDilation(), batches, getSwapped()))) {
    return emitOpError("C4: result dims must follow from the operands and the window");
  }
  return success();
}

LogicalResult ScanOp::verify() {
  if (getKind() == ReduceKind::all || getKind() == ReduceKind::any) {
    return emitOpError("C2: kind must be sum, prod, max or min");
  }
  return VerifyDim(*this, TensorTypeOf(getX()).getRank());
}

LogicalResult WindowReduceOp::verify() {
  if (getKind() == ReduceKind::all || getKind() == ReduceKind::any) {
    return emitOpError("C3: kind must be sum, prod, max or min");
  }
  return success();
}
LogicalResult WindowArgReduceOp::verify() { return success(); }

LogicalResult SortOp::verify() { return VerifyDim(*this, TensorTypeOf(getX()).getRank()); }

LogicalResult TakeOp::verify() { return VerifyDim(*this, TensorTypeOf(getX()).getRank()); }

LogicalResult TakeAlongOp::verify() {
  auto x = TensorTypeOf(getX()), indices = TensorTypeOf(getIndices());
  if (x.getRank() != indices.getRank()) return emitOpError("C1: operand and indices must have one rank");
  if (mlir::failed(VerifyDim(*this, x.getRank()))) return mlir::failure();
  for (int64_t d = 0; d < x.getRank(); ++d) {
    if (d != int64_t(getDim()) && indices.getDimSize(d) > x.getDimSize(d)) {
      return emitOpError("C2: indices must be no larger than the operand in dim ") << d;
    }
  }
  return success();
}

LogicalResult ScatterOp::verify() { return VerifyScatter(*this, false); }
LogicalResult ScatterRowsOp::verify() { return VerifyScatter(*this, true); }

LogicalResult SumTakenOp::verify() {
  auto x = TensorTypeOf(getX()), result = TensorTypeOf(getResult()), from = TensorTypeOf(getFrom());
  const auto listed = [&](mlir::Value v) { return TensorTypeOf(v).getShape() == from.getShape(); };
  if (x.getRank() != 2 || result.getRank() != 2 || x.getDimSize(1) != result.getDimSize(1) || from.getRank() != 1 ||
      !listed(getTo()) || (getWeights() && !listed(getWeights()))) {
    return emitOpError("C1: x and result must be rows of one width, from, to and weights lists of one size");
  }
  const bool wide = x.getElementType().isF16() || x.getElementType().isBF16();
  const bool fits = result.getElementType() == x.getElementType() || (wide && result.getElementType().isF32());
  if (!fits || (getWeights() && TensorTypeOf(getWeights()).getElementType() != result.getElementType())) {
    return emitOpError("C2: the result's elements must be x's, or f32 for a half type, and the weights' the result's");
  }
  return success();
}

LogicalResult RandomBitsOp::verify() {
  if (TensorTypeOf(getSeed()).getRank() != 0 || TensorTypeOf(getOffset()).getRank() != 0) {
    return emitOpError("C1: seed and offset must have rank 0");
  }
  return success();
}

LogicalResult AtenOp::verify() {
  int64_t next = 0;
  auto covers = [&](int64_t first, int64_t count) {
    bool in_order = first == next && count >= 0 && first + count <= int64_t(getOperands().size());
    next = first + count;
    return in_order;
  };
  for (mlir::Attribute a : getArguments()) {
    bool ok = true, scalar = false;
    int64_t first = next;
    if (auto t = mlir::dyn_cast<TensorArgAttr>(a)) {
      ok = covers(t.getFirst(), 1);
    } else if (auto s = mlir::dyn_cast<ScalarArgAttr>(a)) {
      ok = covers(s.getFirst(), 1);
      scalar = true;
    } else if (auto l = mlir::dyn_cast<TensorListArgAttr>(a)) {
      ok = covers(l.getFirst(), l.getCount() - int64_t(l.getAbsent().size()));
    } else if (auto n = mlir::dyn_cast<ScalarListArgAttr>(a)) {
      ok = covers(n.getFirst(), n.getCount());
      scalar = true;
    }
    if (!ok) return emitOpError("C1: argument ") << a << " does not name the next operands";
    for (; scalar && first < next; ++first) {
      if (TensorTypeOf(getOperands()[first]).getRank() != 0) {
        return emitOpError("C2: scalar operand ") << first << " must have rank 0";
      }
    }
  }
  return success();
}

}  // namespace tpu::ir
