// Folders and canonicalization patterns: exact rewrites only (bit for bit the same values, NaN and -0 included).
#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"
#include "compiler/ir/windows.h"
#include "mlir/IR/Matchers.h"
#include "mlir/IR/PatternMatch.h"
#include "mlir/IR/TypeUtilities.h"

namespace tpu::ir {
namespace {

using mlir::ArrayRef;
using mlir::Attribute;
using mlir::DenseElementsAttr;
using mlir::failure;
using mlir::LogicalResult;
using mlir::OpFoldResult;
using mlir::PatternRewriter;
using mlir::SmallVector;
using mlir::success;
using mlir::Type;
using mlir::Value;

bool IsIdentity(ArrayRef<int64_t> permutation) {
  for (auto [i, d] : llvm::enumerate(permutation)) {
    if (int64_t(i) != d) return false;
  }
  return true;
}

// A splat of `type` when the operand is a splat constant; null otherwise.
Attribute SplatAs(Attribute operand, Type type) {
  auto splat = mlir::dyn_cast_if_present<mlir::SplatElementsAttr>(operand);
  if (!splat) return {};
  return DenseElementsAttr::get(mlir::cast<mlir::ShapedType>(type), splat.getSplatValue<Attribute>());
}

bool IsIntSplat(Attribute operand, int64_t value) {
  auto splat = mlir::dyn_cast_if_present<mlir::SplatElementsAttr>(operand);
  if (!splat || !mlir::isa<mlir::IntegerType>(splat.getElementType())) return false;
  llvm::APInt bits = splat.getSplatValue<llvm::APInt>();
  return bits == llvm::APInt(bits.getBitWidth(), static_cast<uint64_t>(value), true, true);
}

bool IsFloatSplat(Attribute operand, double value) {
  auto splat = mlir::dyn_cast_if_present<mlir::SplatElementsAttr>(operand);
  if (!splat || !mlir::isa<mlir::FloatType>(splat.getElementType())) return false;
  return splat.getSplatValue<llvm::APFloat>().isExactlyValue(value);
}
bool IsOne(Attribute operand) { return IsIntSplat(operand, 1) || IsFloatSplat(operand, 1.0); }

bool IsBool(Type t) { return mlir::getElementTypeOrSelf(t).isInteger(1); }

// The splat of a number converted to another element type; null where the value does not survive.
Attribute ConvertSplat(mlir::SplatElementsAttr splat, mlir::ShapedType to) {
  Type from = splat.getElementType(), type = to.getElementType();
  if (mlir::isa<mlir::FloatType>(from)) {
    llvm::APFloat value = splat.getSplatValue<llvm::APFloat>();
    if (auto float_type = mlir::dyn_cast<mlir::FloatType>(type)) {
      bool loses = false;
      value.convert(float_type.getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven, &loses);
      return DenseElementsAttr::get(to, value);
    }
    return {};
  }
  auto from_int = mlir::dyn_cast<mlir::IntegerType>(from);
  if (!from_int) return {};
  llvm::APInt bits = splat.getSplatValue<llvm::APInt>();
  bool is_signed = !from_int.isUnsigned() && from_int.getWidth() != 1;
  if (auto float_type = mlir::dyn_cast<mlir::FloatType>(type)) {
    llvm::APFloat value(float_type.getFloatSemantics());
    value.convertFromAPInt(bits, is_signed, llvm::APFloat::rmNearestTiesToEven);
    return DenseElementsAttr::get(to, value);
  }
  if (auto int_type = mlir::dyn_cast<mlir::IntegerType>(type)) {
    if (int_type.getWidth() == 1) return DenseElementsAttr::get(to, llvm::APInt(1, !bits.isZero()));
    return DenseElementsAttr::get(
        to, is_signed ? bits.sextOrTrunc(int_type.getWidth()) : bits.zextOrTrunc(int_type.getWidth()));
  }
  return {};
}

// True when every value of `from` is one of `to`, so that to another type it may go by way of `to` or not.
bool IsExact(Type from, Type to) {
  if (from == to) return true;
  auto ff = mlir::dyn_cast<mlir::FloatType>(from), tf = mlir::dyn_cast<mlir::FloatType>(to);
  if (ff && tf) return ff.getWidth() < tf.getWidth();
  auto fi = mlir::dyn_cast<mlir::IntegerType>(from), ti = mlir::dyn_cast<mlir::IntegerType>(to);
  if (fi && ti) {
    if (fi.getWidth() == 1) return true;
    return fi.isUnsigned() == ti.isUnsigned() && fi.getWidth() < ti.getWidth();
  }
  if (fi && tf) return fi.getWidth() - (fi.isUnsigned() ? 0 : 1) <= unsigned(tf.getFPMantissaWidth());
  return mlir::isa<OpaqueType>(from) && tf;  // float8
}

}  // namespace

OpFoldResult ConstantOp::fold(FoldAdaptor) { return getValue(); }

OpFoldResult NegOp::fold(FoldAdaptor) {
  if (auto inner = getX().getDefiningOp<NegOp>()) return inner.getX();
  return {};
}
OpFoldResult NotOp::fold(FoldAdaptor) {
  if (auto inner = getX().getDefiningOp<NotOp>()) return inner.getX();
  return {};
}
OpFoldResult RealOp::fold(FoldAdaptor) {
  auto complex = getX().getDefiningOp<ComplexOp>();
  return complex ? complex.getReal() : Value();
}
OpFoldResult ImaginaryOp::fold(FoldAdaptor) {
  auto complex = getX().getDefiningOp<ComplexOp>();
  return complex ? complex.getImaginary() : Value();
}
OpFoldResult ComplexOp::fold(FoldAdaptor) {
  auto real = getReal().getDefiningOp<RealOp>();
  auto imaginary = getImaginary().getDefiningOp<ImaginaryOp>();
  return real && imaginary && real.getX() == imaginary.getX() ? real.getX() : Value();
}
// x + 0 is exact for integers only: -0.0 + 0.0 is 0.0; x + -0.0 is exact.
OpFoldResult AddOp::fold(FoldAdaptor a) {
  if (IsIntSplat(a.getRhs(), 0)) return getLhs();
  return {};
}
OpFoldResult SubOp::fold(FoldAdaptor a) {
  auto splat = mlir::dyn_cast_if_present<mlir::SplatElementsAttr>(a.getRhs());
  bool positive_zero =
      splat && mlir::isa<mlir::FloatType>(splat.getElementType()) && splat.getSplatValue<llvm::APFloat>().isPosZero();
  if (IsIntSplat(a.getRhs(), 0) || positive_zero) return getLhs();
  return {};
}
OpFoldResult MulOp::fold(FoldAdaptor a) {
  if (IsOne(a.getRhs())) return getLhs();
  return {};
}
OpFoldResult DivOp::fold(FoldAdaptor a) {
  if (!IsBool(getType()) && IsOne(a.getRhs())) return getLhs();
  return {};
}
OpFoldResult MaxOp::fold(FoldAdaptor) { return getLhs() == getRhs() ? getLhs() : Value(); }
OpFoldResult MinOp::fold(FoldAdaptor) { return getLhs() == getRhs() ? getLhs() : Value(); }
OpFoldResult AndOp::fold(FoldAdaptor a) {
  if (getLhs() == getRhs() || IsIntSplat(a.getRhs(), -1)) return getLhs();
  if (IsIntSplat(a.getRhs(), 0)) return a.getRhs();
  return {};
}
OpFoldResult OrOp::fold(FoldAdaptor a) {
  if (getLhs() == getRhs() || IsIntSplat(a.getRhs(), 0)) return getLhs();
  if (IsIntSplat(a.getRhs(), -1)) return a.getRhs();
  return {};
}

OpFoldResult CompareOp::fold(FoldAdaptor a) {
  bool boolean = IsBool(getLhs().getType());
  if (boolean && getKind() == CompareKind::ne && IsIntSplat(a.getRhs(), 0)) return getLhs();
  if (boolean && getKind() == CompareKind::eq && IsIntSplat(a.getRhs(), 1)) return getLhs();
  return {};
}

OpFoldResult SelectOp::fold(FoldAdaptor a) {
  if (getOnTrue() == getOnFalse()) return getOnTrue();
  if (IsIntSplat(a.getPred(), 0)) return getOnFalse();
  if (IsIntSplat(a.getPred(), 1)) return getOnTrue();
  return {};
}

OpFoldResult RequireOp::fold(FoldAdaptor a) { return IsIntSplat(a.getHolds(), 1) ? getX() : Value(); }

OpFoldResult ConvertOp::fold(FoldAdaptor a) {
  if (getX().getType() == getType()) return getX();
  if (auto splat = mlir::dyn_cast_if_present<mlir::SplatElementsAttr>(a.getX())) {
    if (Attribute converted = ConvertSplat(splat, getType())) return converted;
  }
  if (auto inner = getX().getDefiningOp<ConvertOp>()) {
    Type from = mlir::getElementTypeOrSelf(inner.getX()), through = mlir::getElementTypeOrSelf(inner);
    // What is no number is one float8 after arithmetic, and may be several before.
    const bool back = mlir::isa<OpaqueType>(from) && inner.getX().getType() == getType();
    if (IsExact(from, through) && !back) {
      getXMutable().assign(inner.getX());
      return getResult();
    }
  }
  return {};
}

OpFoldResult ReshapeOp::fold(FoldAdaptor a) {
  if (getX().getType() == getType()) return getX();
  if (Attribute splat = SplatAs(a.getX(), getType())) return splat;
  if (auto dense = mlir::dyn_cast_if_present<DenseElementsAttr>(a.getX())) return dense.reshape(getType());
  if (auto inner = getX().getDefiningOp<ReshapeOp>()) {
    getXMutable().assign(inner.getX());
    return getResult();
  }
  return {};
}

OpFoldResult TransposeOp::fold(FoldAdaptor a) {
  if (IsIdentity(getPermutation())) return getX();
  if (Attribute splat = SplatAs(a.getX(), getType())) return splat;
  if (auto inner = getX().getDefiningOp<TransposeOp>()) {
    SmallVector<int64_t> composed;
    for (int64_t d : getPermutation()) composed.push_back(inner.getPermutation()[d]);
    getXMutable().assign(inner.getX());
    setPermutation(composed);
    return getResult();
  }
  return {};
}

OpFoldResult BroadcastOp::fold(FoldAdaptor a) {
  if (getX().getType() == getType()) return getX();
  if (Attribute splat = SplatAs(a.getX(), getType())) return splat;
  if (auto inner = getX().getDefiningOp<BroadcastOp>()) {
    SmallVector<int64_t> composed;
    for (int64_t d : inner.getDims()) composed.push_back(getDims()[d]);
    getXMutable().assign(inner.getX());
    setDims(composed);
    return getResult();
  }
  return {};
}

OpFoldResult SliceOp::fold(FoldAdaptor a) {
  if (getX().getType() == getType()) return getX();
  if (Attribute splat = SplatAs(a.getX(), getType())) return splat;
  if (auto inner = getX().getDefiningOp<SliceOp>()) {
    SmallVector<int64_t> start, limit, stride;
    for (auto [i, size] : llvm::enumerate(getType().getShape())) {
      start.push_back(inner.getStart()[i] + (size == 0 ? 0 : getStart()[i] * inner.getStride()[i]));
      stride.push_back(getStride()[i] * inner.getStride()[i]);
      limit.push_back(size == 0 ? start.back() : start.back() + (size - 1) * stride.back() + 1);
    }
    getXMutable().assign(inner.getX());
    setStart(start);
    setLimit(limit);
    setStride(stride);
    return getResult();
  }
  return {};
}

OpFoldResult ReverseOp::fold(FoldAdaptor a) {
  auto runs_backwards = [&](int64_t d) { return getType().getDimSize(d) > 1; };
  if (llvm::none_of(getDims(), runs_backwards)) return getX();
  if (Attribute splat = SplatAs(a.getX(), getType())) return splat;
  auto inner = getX().getDefiningOp<ReverseOp>();
  if (inner && inner.getDims() == getDims()) return inner.getX();
  return {};
}

OpFoldResult PadOp::fold(FoldAdaptor) { return getX().getType() == getType() ? getX() : Value(); }
OpFoldResult ConcatOp::fold(FoldAdaptor) { return getInputs().size() == 1 ? getInputs()[0] : Value(); }
OpFoldResult BitcastOp::fold(FoldAdaptor) {
  if (getX().getType() == getType()) return getX();
  if (auto inner = getX().getDefiningOp<BitcastOp>()) {
    getXMutable().assign(inner.getX());
    return getResult();
  }
  return {};
}
OpFoldResult ReduceOp::fold(FoldAdaptor) { return getDims().empty() ? getX() : Value(); }

OpFoldResult UpdateSliceOp::fold(FoldAdaptor) {
  if (TensorTypeOf(getSrc()).getNumElements() == 0) return getBase();
  return getSrc().getType() == getBase().getType() ? getSrc() : Value();
}

namespace {

// slice(broadcast(x)) = broadcast(slice(x)): the slice reads no more than it needs.
struct SliceOfBroadcast : mlir::OpRewritePattern<SliceOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(SliceOp op, PatternRewriter& rewriter) const override {
    auto inner = op.getX().getDefiningOp<BroadcastOp>();
    if (!inner) return failure();
    auto x = TensorTypeOf(inner.getX());
    SmallVector<int64_t> start, limit, stride;
    for (auto [i, d] : llvm::enumerate(inner.getDims())) {
      bool repeats = x.getDimSize(i) == 1;
      if (repeats && TensorTypeOf(op).getDimSize(d) == 0) return failure();
      start.push_back(repeats ? 0 : op.getStart()[d]);
      limit.push_back(repeats ? 1 : op.getLimit()[d]);
      stride.push_back(repeats ? 1 : op.getStride()[d]);
    }
    Value sliced = SliceOp::create(rewriter, op.getLoc(), inner.getX(), start, limit, stride);
    rewriter.replaceOpWithNewOp<BroadcastOp>(op, op.getType(), sliced, inner.getDims());
    return success();
  }
};

// What was just written, or left alone, is read where it came from.
struct SliceOfUpdate : mlir::OpRewritePattern<SliceOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(SliceOp op, PatternRewriter& rewriter) const override {
    auto update = op.getX().getDefiningOp<UpdateSliceOp>();
    if (!update || op.getType().getNumElements() == 0 || TensorTypeOf(update.getSrc()).getNumElements() == 0) {
      return failure();
    }
    bool inside = true;
    SmallVector<int64_t> start, limit, ends;
    for (auto [d, size] : llvm::enumerate(TensorTypeOf(update.getSrc()).getShape())) {
      const int64_t begin = update.getStart()[d], end = begin + (size - 1) * update.getStride()[d] + 1;
      if (op.getLimit()[d] <= begin || op.getStart()[d] >= end) {
        RecordApart(op, d, op.getStart()[d] >= end ? op.getStart()[d] - end : op.getLimit()[d] - begin - 1);
        rewriter.replaceOpWithNewOp<SliceOp>(op, update.getBase(), op.getStart(), op.getLimit(), op.getStride());
        return success();
      }
      inside &= update.getStride()[d] == 1 && op.getStart()[d] >= begin && op.getLimit()[d] <= end;
      start.push_back(op.getStart()[d] - begin);
      limit.push_back(op.getLimit()[d] - begin);
      ends.push_back(end);
    }
    if (!inside) return failure();
    for (auto [d, end] : llvm::enumerate(ends)) RecordInside(op, d, start[d], end - op.getLimit()[d]);
    rewriter.replaceOpWithNewOp<SliceOp>(op, update.getSrc(), start, limit, op.getStride());
    return success();
  }
};

// What is written twice is written once.
struct UpdateOfUpdate : mlir::OpRewritePattern<UpdateSliceOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(UpdateSliceOp op, PatternRewriter& rewriter) const override {
    auto former = op.getBase().getDefiningOp<UpdateSliceOp>();
    if (!former || former.getSrc().getType() != op.getSrc().getType() || former.getStart() != op.getStart() ||
        former.getStride() != op.getStride()) {
      return failure();
    }
    rewriter.modifyOpInPlace(op, [&] { op.getBaseMutable().assign(former.getBase()); });
    return success();
  }
};

// transpose(dot(a, b)) = dot(b, a): the library writes the product as it is wanted.
struct TransposeOfDot : mlir::OpRewritePattern<TransposeOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(TransposeOp op, PatternRewriter& rewriter) const override {
    auto dot = op.getX().getDefiningOp<DotOp>();
    if (!dot || !dot->hasOneUse() || dot.getTriangle() != Triangle::none) return failure();
    const int64_t batch = static_cast<int64_t>(dot.getLhsBatch().size());
    const int64_t left =
        TensorTypeOf(dot.getLhs()).getRank() - batch - static_cast<int64_t>(dot.getLhsContract().size());
    const int64_t rank = dot.getType().getRank();
    SmallVector<int64_t> swapped;  // batch, b's own dims, a's own dims
    for (int64_t d = 0; d < batch; ++d) swapped.push_back(d);
    for (int64_t d = batch + left; d < rank; ++d) swapped.push_back(d);
    for (int64_t d = batch; d < batch + left; ++d) swapped.push_back(d);
    if (op.getPermutation() != ArrayRef<int64_t>(swapped)) return failure();
    rewriter.replaceOpWithNewOp<DotOp>(op, op.getType(), dot.getRhs(), dot.getLhs(), dot.getRhsBatch(),
                                       dot.getLhsBatch(), dot.getRhsContract(), dot.getLhsContract(), dot.getTriangle(),
                                       dot.getPrecision(), dot.getAgain());
    return success();
  }
};

// A broadcast that adds only dims of size 1 is a reshape.
struct BroadcastToReshape : mlir::OpRewritePattern<BroadcastOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(BroadcastOp op, PatternRewriter& rewriter) const override {
    if (TensorTypeOf(op.getX()).getNumElements() != op.getType().getNumElements()) return failure();
    rewriter.replaceOpWithNewOp<ReshapeOp>(op, op.getType(), op.getX());
    return success();
  }
};

// dot(transpose(a), b): name a's own dims instead, where that keeps the order of the free dims.
struct DotOfTranspose : mlir::OpRewritePattern<DotOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(DotOp op, PatternRewriter& rewriter) const override {
    SmallVector<int64_t> dims[4] = {SmallVector<int64_t>(op.getLhsBatch()), SmallVector<int64_t>(op.getLhsContract()),
                                    SmallVector<int64_t>(op.getRhsBatch()), SmallVector<int64_t>(op.getRhsContract())};
    Value lhs = Fold(op.getLhs(), dims[0], dims[1]), rhs = Fold(op.getRhs(), dims[2], dims[3]);
    if (lhs == op.getLhs() && rhs == op.getRhs()) return failure();
    rewriter.replaceOpWithNewOp<DotOp>(op, op.getType(), lhs, rhs, dims[0], dims[2], dims[1], dims[3], op.getTriangle(),
                                       op.getPrecision(), op.getAgain());
    return success();
  }
  static Value Fold(Value operand, SmallVector<int64_t>& batch, SmallVector<int64_t>& contract) {
    auto transpose = operand.getDefiningOp<TransposeOp>();
    if (!transpose) return operand;
    ArrayRef<int64_t> permutation = transpose.getPermutation();
    int64_t last_free = -1;
    for (auto [d, source] : llvm::enumerate(permutation)) {
      if (llvm::is_contained(batch, d) || llvm::is_contained(contract, d)) continue;
      if (source < last_free) return operand;
      last_free = source;
    }
    for (int64_t& d : batch) d = permutation[d];
    for (int64_t& d : contract) d = permutation[d];
    return transpose.getX();
  }
};

// The indices along `dim`, where they are the same for all that lies across it; none where they differ or cover less
// than `across` does.
Value AlongAlone(PatternRewriter& rewriter, Value indices, int64_t dim, Value across) {
  auto repeated = indices.getDefiningOp<BroadcastOp>();
  if (!repeated) return {};
  const int64_t count = TensorTypeOf(indices).getDimSize(dim);
  for (auto [d, size] : llvm::enumerate(TensorTypeOf(indices).getShape())) {
    if (int64_t(d) != dim && size != TensorTypeOf(across).getDimSize(d)) return {};
  }
  auto x = TensorTypeOf(repeated.getX());
  const auto* along = llvm::find(repeated.getDims(), dim);
  if (along == repeated.getDims().end() || x.getNumElements() != count ||
      x.getDimSize(along - repeated.getDims().begin()) != count) {
    return {};
  }
  auto type = mlir::RankedTensorType::get({count}, x.getElementType());
  return ReshapeOp::create(rewriter, repeated.getLoc(), type, repeated.getX());
}

// torch.gather of whole slices.
struct TakeAlongOfSlices : mlir::OpRewritePattern<TakeAlongOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(TakeAlongOp op, PatternRewriter& rewriter) const override {
    Value indices = AlongAlone(rewriter, op.getIndices(), op.getDim(), op.getX());
    if (!indices) return failure();
    rewriter.replaceOpWithNewOp<TakeOp>(op, op.getX(), indices, op.getDim());
    return success();
  }
};

// The same of scatters.
struct ScatterOfSlices : mlir::OpRewritePattern<ScatterOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(ScatterOp op, PatternRewriter& rewriter) const override {
    Value indices = AlongAlone(rewriter, op.getIndices(), op.getDim(), op.getBase());
    if (!indices) return failure();
    rewriter.replaceOpWithNewOp<ScatterRowsOp>(op, op.getType(), op.getKind(), op.getBase(), indices, op.getUpdates(),
                                               op.getDim());
    return success();
  }
};

// dot(convert(transpose(a)), b): what is multiplied is turned, not what is cast, which then lies as `a` does.
struct DotOfTurnedCast : mlir::OpRewritePattern<DotOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(DotOp op, PatternRewriter& rewriter) const override {
    bool changed = false;
    for (mlir::OpOperand& operand : op->getOpOperands()) {
      auto convert = operand.get().getDefiningOp<ConvertOp>();
      auto transpose = convert && convert->hasOneUse() ? convert.getX().getDefiningOp<TransposeOp>() : nullptr;
      if (!transpose) continue;
      auto type = mlir::RankedTensorType::get(TensorTypeOf(transpose.getX()).getShape(),
                                              TensorTypeOf(operand.get()).getElementType());
      Value cast = ConvertOp::create(rewriter, convert.getLoc(), type, transpose.getX());
      Value turned = TransposeOp::create(rewriter, transpose.getLoc(), cast, transpose.getPermutation());
      rewriter.modifyOpInPlace(op, [&] { operand.set(turned); });
      changed = true;
    }
    return success(changed);
  }
};

// dot(convert(a), convert(b)) of bf16 in f32: products of bf16 are exact in f32, in which they are added up anyway.
struct DotOfWidened : mlir::OpRewritePattern<DotOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(DotOp op, PatternRewriter& rewriter) const override {
    Value narrow[2];
    for (mlir::OpOperand& operand : op->getOpOperands()) {
      auto convert = operand.get().getDefiningOp<ConvertOp>();
      if (!convert || !convert.getType().getElementType().isF32() ||
          !TensorTypeOf(convert.getX()).getElementType().isBF16()) {
        return failure();
      }
      narrow[operand.getOperandNumber()] = convert.getX();
    }
    rewriter.modifyOpInPlace(op, [&] { op->setOperands(narrow); });
    return success();
  }
};

// One number into one number: slices are equal throughout, and one element of each is computed.
struct ScatterOfSplats : mlir::OpRewritePattern<ScatterRowsOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(ScatterRowsOp op, PatternRewriter& rewriter) const override {
    mlir::SplatElementsAttr base, updates;
    if (op.getType().getRank() < 2 || op.getType().getNumElements() == 0 ||
        !mlir::matchPattern(op.getBase(), mlir::m_Constant(&base)) ||
        !mlir::matchPattern(op.getUpdates(), mlir::m_Constant(&updates))) {
      return failure();
    }
    const int64_t dim = op.getDim();
    const auto thin = [&](mlir::SplatElementsAttr splat) -> Value {
      auto type = mlir::RankedTensorType::get({splat.getType().getDimSize(dim)}, splat.getElementType());
      return ConstantOp::create(rewriter, op.getLoc(), type, mlir::cast<mlir::ElementsAttr>(SplatAs(splat, type)));
    };
    Value into = thin(base);
    Value one = ScatterRowsOp::create(rewriter, op.getLoc(), into.getType(), op.getKind(), into, op.getIndices(),
                                      thin(updates), 0);
    rewriter.replaceOpWithNewOp<BroadcastOp>(op, op.getType(), one, ArrayRef<int64_t>(dim));
    return success();
  }
};

}  // namespace

void SliceOp::getCanonicalizationPatterns(mlir::RewritePatternSet& patterns, mlir::MLIRContext* context) {
  patterns.add<SliceOfBroadcast, SliceOfUpdate>(context);
}
void UpdateSliceOp::getCanonicalizationPatterns(mlir::RewritePatternSet& patterns, mlir::MLIRContext* context) {
  patterns.add<UpdateOfUpdate>(context);
}
void TransposeOp::getCanonicalizationPatterns(mlir::RewritePatternSet& patterns, mlir::MLIRContext* context) {
  patterns.add<TransposeOfDot>(context);
}
void BroadcastOp::getCanonicalizationPatterns(mlir::RewritePatternSet& patterns, mlir::MLIRContext* context) {
  patterns.add<BroadcastToReshape>(context);
}
void TakeAlongOp::getCanonicalizationPatterns(mlir::RewritePatternSet& patterns, mlir::MLIRContext* context) {
  patterns.add<TakeAlongOfSlices>(context);
}
void ScatterOp::getCanonicalizationPatterns(mlir::RewritePatternSet& patterns, mlir::MLIRContext* context) {
  patterns.add<ScatterOfSlices>(context);
}
void ScatterRowsOp::getCanonicalizationPatterns(mlir::RewritePatternSet& patterns, mlir::MLIRContext* context) {
  patterns.add<ScatterOfSplats>(context);
}
void DotOp::getCanonicalizationPatterns(mlir::RewritePatternSet& patterns, mlir::MLIRContext* context) {
  patterns.add<DotOfTranspose, DotOfTurnedCast, DotOfWidened>(context);
}

}  // namespace tpu::ir
