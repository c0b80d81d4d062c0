#include "compiler/ir/builder.h"

#include <algorithm>
#include <numeric>

namespace tpu::ir {
namespace {

mlir::Attribute Number(mlir::Type type, double value) {
  mlir::Builder b(type.getContext());
  if (mlir::isa<mlir::FloatType>(type)) return b.getFloatAttr(type, value);
  if (auto complex = mlir::dyn_cast<mlir::ComplexType>(type)) {
    return b.getArrayAttr(
        {b.getFloatAttr(complex.getElementType(), value), b.getFloatAttr(complex.getElementType(), 0)});
  }
  if (type.isInteger(1)) return b.getBoolAttr(value != 0);
  return b.getIntegerAttr(type, static_cast<int64_t>(value));
}

// Both operands with the dims they broadcast to. What does not fit is left alone: the verifier rejects the op.
void Align(Tensor& a, Tensor& b) {
  if (a.dims() == b.dims()) return;
  std::optional<Shape> dims = BroadcastDims(a.dims(), b.dims());
  if (!dims) return;
  a = BroadcastTo(a, *dims);
  b = BroadcastTo(b, *dims);
}

template <typename Op>
Tensor Binary(Tensor a, Tensor b) {
  Align(a, b);
  return a.emitter().Make<Op>(a.type(), a.value(), b.value());
}

Tensor Compare(CompareKind kind, Tensor a, Tensor b) {
  Align(a, b);
  return a.emitter().Make<CompareOp>(a.emitter().Type(DType::kBool, a.dims()), kind, a.value(), b.value());
}

// The dims of x with one element for each place of the window.
Shape PlacesOf(const Window& w, Tensor x) {
  Shape dims(x.dims());
  for (size_t i = 0; i < w.window.size(); ++i) {
    int64_t& size = dims[dims.size() - w.window.size() + i];
    size = WindowSize(size, w.low[i], w.high[i], w.window[i], w.strides[i], w.dilation[i]);
  }
  return dims;
}

Tensor Like(Tensor x, double value) { return x.emitter().Constant(x.dtype(), value, x.dims()); }

}  // namespace

Tensor Emitter::Constant(DType dtype, double value, Ints dims) {
  if (IsOpaque(dtype)) {  // no attribute holds such elements: their bits
    const size_t size = SizeOf(dtype);
    return Bitcast(Integer(size == 1 ? DType::kUInt8 : size == 2 ? DType::kUInt16 : DType::kUInt32, 0, dims), dtype);
  }
  auto type = Type(dtype, dims);
  return Make<ConstantOp>(
      type, mlir::cast<mlir::ElementsAttr>(mlir::DenseElementsAttr::get(type, Number(type.getElementType(), value))));
}

Tensor Emitter::Integer(DType dtype, int64_t value, Ints dims) {
  auto type = Type(dtype, dims);
  llvm::APInt bits(type.getElementType().getIntOrFloatBitWidth(), static_cast<uint64_t>(value), true, true);
  return Make<ConstantOp>(type, mlir::cast<mlir::ElementsAttr>(mlir::DenseElementsAttr::get(type, bits)));
}

Tensor Emitter::Dense(DType dtype, mlir::ArrayRef<int64_t> values) {
  auto type = Type(dtype, {static_cast<int64_t>(values.size())});
  llvm::SmallVector<llvm::APInt> bits;
  for (int64_t v : values) bits.emplace_back(type.getElementType().getIntOrFloatBitWidth(), uint64_t(v), true, true);
  return Make<ConstantOp>(type, mlir::cast<mlir::ElementsAttr>(mlir::DenseElementsAttr::get(type, bits)));
}

Tensor Emitter::Lowest(DType dtype, Ints dims) {
  if (IsFloat(dtype)) return Constant(dtype, -std::numeric_limits<double>::infinity(), dims);
  if (!IsSigned(dtype)) return Integer(dtype, 0, dims);
  return Integer(dtype, INT64_MIN >> (64 - 8 * SizeOf(dtype)), dims);
}

Tensor Emitter::Highest(DType dtype, Ints dims) {
  if (IsFloat(dtype)) return Constant(dtype, std::numeric_limits<double>::infinity(), dims);
  if (!IsSigned(dtype)) return Integer(dtype, -1, dims);
  return Integer(dtype, INT64_MAX >> (64 - 8 * SizeOf(dtype)), dims);
}

Tensor Emitter::Iota(DType dtype, Ints dims, int64_t dim) { return Make<IotaOp>(Type(dtype, dims), dim); }

Tensor Emitter::RandomBits(Tensor seed, Tensor offset, Ints dims) {
  return Make<RandomBitsOp>(Type(DType::kInt32, dims), seed.value(), offset.value());
}

std::optional<Shape> BroadcastDims(Ints a, Ints b) {
  Shape dims(std::max(a.size(), b.size()));
  for (size_t i = 0; i < dims.size(); ++i) {
    int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1, y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    dims[dims.size() - 1 - i] = x == 1 ? y : x;
  }
  return dims;
}

Tensor IsFinite(Tensor x) { return x.emitter().Make<IsFiniteOp>(x.emitter().Type(DType::kBool, x.dims()), x.value()); }
Tensor Real(Tensor x) { return x.emitter().Make<RealOp>(x.value()); }
Tensor Imaginary(Tensor x) { return x.emitter().Make<ImaginaryOp>(x.value()); }
Tensor Complex(Tensor real, Tensor imaginary) {
  Align(real, imaginary);
  return real.emitter().Make<ComplexOp>(real.value(), imaginary.value());
}
Tensor IsNan(Tensor x) { return Ne(x, x); }

#define TPU_BINARY(name)                                             \
  Tensor name(Tensor a, Tensor b) { return Binary<name##Op>(a, b); } \
  Tensor name(Tensor a, double b) { return name(a, Like(a, b)); }    \
  Tensor name(double a, Tensor b) { return name(Like(b, a), b); }
TPU_BINARY(Add)
TPU_BINARY(Sub)
TPU_BINARY(Mul)
TPU_BINARY(Div)
TPU_BINARY(Rem)
TPU_BINARY(Pow)
TPU_BINARY(Atan2)
TPU_BINARY(Max)
TPU_BINARY(Min)
TPU_BINARY(And)
TPU_BINARY(Or)
TPU_BINARY(Xor)
TPU_BINARY(Shl)
TPU_BINARY(Shr)
#undef TPU_BINARY
#define TPU_COMPARE(name, kind)                                                \
  Tensor name(Tensor a, Tensor b) { return Compare(CompareKind::kind, a, b); } \
  Tensor name(Tensor a, double b) { return name(a, Like(a, b)); }              \
  Tensor name(double a, Tensor b) { return name(Like(b, a), b); }
TPU_COMPARE(Eq, eq)
TPU_COMPARE(Ne, ne)
TPU_COMPARE(Lt, lt)
TPU_COMPARE(Le, le)
TPU_COMPARE(Gt, gt)
TPU_COMPARE(Ge, ge)
#undef TPU_COMPARE

Tensor Require(Tensor x, Tensor holds) { return x.emitter().Make<RequireOp>(x.type(), x.value(), holds.value()); }

Tensor Select(Tensor pred, Tensor on_true, Tensor on_false) {
  Align(on_true, on_false);
  Align(pred, on_true);
  if (on_false.dims() != on_true.dims()) on_false = BroadcastTo(on_false, on_true.dims());
  return pred.emitter().Make<SelectOp>(on_true.type(), pred.value(), on_true.value(), on_false.value());
}
Tensor Select(Tensor pred, Tensor on_true, double on_false) { return Select(pred, on_true, Like(on_true, on_false)); }
Tensor Select(Tensor pred, double on_true, Tensor on_false) { return Select(pred, Like(on_false, on_true), on_false); }

Tensor Convert(Tensor x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return x.emitter().Make<ConvertOp>(x.emitter().Type(dtype, x.dims()), x.value());
}

Tensor Bitcast(Tensor x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Shape dims(x.dims());
  if (!dims.empty()) dims.back() = dims.back() * SizeOf(x.dtype()) / SizeOf(dtype);
  return x.emitter().Make<BitcastOp>(x.emitter().Type(dtype, dims), x.value());
}

Tensor Reshape(Tensor x, Ints dims) {
  if (x.dims() == dims) return x;
  return x.emitter().Make<ReshapeOp>(x.emitter().Type(x.dtype(), dims), x.value());
}

Tensor Transpose(Tensor x, Ints permutation) {
  if (llvm::is_sorted(permutation)) return x;
  return x.emitter().Make<TransposeOp>(x.value(), permutation);
}

Tensor SwapDims(Tensor x, int64_t a, int64_t b) {
  Shape permutation(x.rank());
  std::iota(permutation.begin(), permutation.end(), 0);
  std::swap(permutation[a], permutation[b]);
  return Transpose(x, permutation);
}

Tensor BroadcastTo(Tensor x, Ints dims) {
  if (x.dims() == dims) return x;
  Shape along(x.rank());
  std::iota(along.begin(), along.end(), static_cast<int64_t>(dims.size()) - x.rank());
  return BroadcastAlong(x, dims, along);
}

Tensor BroadcastAlong(Tensor x, Ints dims, Ints along) {
  return x.emitter().Make<BroadcastOp>(x.emitter().Type(x.dtype(), dims), x.value(), along);
}

Tensor Unsqueeze(Tensor x, int64_t dim) {
  Shape dims(x.dims());
  dims.insert(dims.begin() + (dim < 0 ? dim + x.rank() + 1 : dim), 1);
  return Reshape(x, dims);
}

// Where numbers decide whether there is such a value, its type is said rather than inferred: what is tried at sizes
// that there is no such call of is rejected by the verifier, and inferring it would end the process.
Tensor Slice(Tensor x, Ints start, Ints limit, Ints stride) {
  Shape dims;
  for (int64_t d = 0; d < x.rank(); ++d) dims.push_back(SliceSize(start[d], limit[d], stride[d]));
  return x.emitter().Make<SliceOp>(x.emitter().Type(x.dtype(), dims), x.value(), start, limit, stride);
}

Tensor SliceDim(Tensor x, int64_t dim, int64_t start, int64_t limit, int64_t stride) {
  if (dim < 0) dim += x.rank();
  if (start == 0 && limit == x.size(dim) && stride == 1) return x;
  Shape starts(x.rank(), 0), limits(x.dims()), strides(x.rank(), 1);
  starts[dim] = start;
  limits[dim] = limit;
  strides[dim] = stride;
  return Slice(x, starts, limits, strides);
}

Tensor Reverse(Tensor x, Ints dims) {
  Shape sorted(dims);
  llvm::sort(sorted);
  return x.emitter().Make<ReverseOp>(x.value(), Ints(sorted));
}

Tensor Pad(Tensor x, Tensor value, Ints low, Ints high, Ints interior) {
  Shape dims;
  for (int64_t d = 0; d < x.rank(); ++d) dims.push_back(PadSize(x.size(d), low[d], high[d], interior[d]));
  return x.emitter().Make<PadOp>(x.emitter().Type(x.dtype(), dims), x.value(), value.value(), low, high, interior);
}
Tensor Pad(Tensor x, double value, Ints low, Ints high) {
  return Pad(x, x.emitter().Constant(x.dtype(), value), low, high, Shape(x.rank(), 0));
}

Tensor Concat(mlir::ArrayRef<Tensor> inputs, int64_t dim) {
  llvm::SmallVector<mlir::Value> values(inputs.begin(), inputs.end());
  return inputs[0].emitter().Make<ConcatOp>(mlir::ValueRange(values), dim);
}

Tensor UpdateSlice(Tensor base, Tensor src, Ints start, Ints stride) {
  return base.emitter().Make<UpdateSliceOp>(base.type(), base.value(), src.value(), start, stride);
}

Tensor Reduce(ReduceKind kind, Tensor x, Ints dims, bool keep) {
  Shape sorted(dims);
  llvm::sort(sorted);
  Tensor result = sorted.empty() ? x : x.emitter().Make<ReduceOp>(kind, x.value(), Ints(sorted));
  if (!keep) return result;
  Shape kept(x.dims());
  for (int64_t d : sorted) kept[d] = 1;
  return Reshape(result, kept);
}

Tensor ArgReduce(ExtremumKind kind, Tensor x, int64_t dim) {
  return x.emitter().Make<ArgReduceOp>(kind, x.value(), dim);
}
Tensor Scan(ReduceKind kind, Tensor x, int64_t dim) { return x.emitter().Make<ScanOp>(x.type(), kind, x.value(), dim); }
Tensor WindowReduce(ReduceKind kind, Tensor x, const Window& w) {
  return x.emitter().Make<WindowReduceOp>(x.emitter().Type(x.dtype(), PlacesOf(w, x)), kind, x.value(), w.window,
                                          w.strides, w.dilation, w.low, w.high);
}
Tensor WindowArgReduce(ExtremumKind kind, Tensor x, const Window& w) {
  return x.emitter().Make<WindowArgReduceOp>(x.emitter().Type(DType::kInt64, PlacesOf(w, x)), kind, x.value(), w.window,
                                             w.strides, w.dilation, w.low, w.high);
}

std::pair<Tensor, Tensor> Sort(Tensor x, int64_t dim, bool descending) {
  auto op = x.emitter().MakeOp<SortOp>(x.value(), dim, descending);
  return {x.emitter().Wrap(op.getValues()), x.emitter().Wrap(op.getIndices())};
}

Tensor Dot(Tensor a, Tensor b, Ints a_batch, Ints b_batch, Ints a_contract, Ints b_contract, DType result,
           Triangle triangle, bool again) {
  Shape dims = DotShape(a.type(), b.type(), a_batch, b_batch, a_contract, b_contract);
  return a.emitter().Make<DotOp>(a.emitter().Type(result, dims), a.value(), b.value(), a_batch, b_batch, a_contract,
                                 b_contract, triangle, a.emitter().precision(), again);
}

Tensor Fft(FftKind kind, Tensor x, Ints lengths) { return x.emitter().Make<FftOp>(kind, x.value(), lengths); }
Tensor Cholesky(Tensor x) { return x.emitter().Make<CholeskyOp>(x.type(), x.value()); }
Tensor TriangularSolve(Tensor a, Tensor b, bool upper, bool unit_diagonal) {
  return a.emitter().Make<TriangularSolveOp>(b.type(), a.value(), b.value(), upper, unit_diagonal);
}

Tensor Conv(Tensor a, Tensor b, const ConvWindow& w, int64_t feature_groups, int64_t batch_groups, DType result,
            bool swapped) {
  Shape dims =
      ConvShape(a.type(), b.type(), w.strides, w.low, w.high, w.base_dilation, w.dilation, batch_groups, swapped);
  return a.emitter().Make<ConvOp>(a.emitter().Type(result, dims), a.value(), b.value(), w.strides, w.low, w.high,
                                  w.base_dilation, w.dilation, feature_groups, batch_groups, swapped);
}

Tensor Take(Tensor x, Tensor indices, int64_t dim) { return x.emitter().Make<TakeOp>(x.value(), indices.value(), dim); }
Tensor TakeAlong(Tensor x, Tensor indices, int64_t dim) {
  return x.emitter().Make<TakeAlongOp>(x.value(), indices.value(), dim);
}
Tensor Scatter(ScatterKind kind, Tensor base, Tensor indices, Tensor updates, int64_t dim) {
  return base.emitter().Make<ScatterOp>(base.type(), kind, base.value(), indices.value(), updates.value(), dim);
}
Tensor ScatterRows(ScatterKind kind, Tensor base, Tensor indices, Tensor updates, int64_t dim) {
  return base.emitter().Make<ScatterRowsOp>(base.type(), kind, base.value(), indices.value(), updates.value(), dim);
}
Tensor SumTaken(Tensor x, Tensor from, Tensor to, int64_t rows, DType result, Tensor weights, bool sorted) {
  return x.emitter().Make<SumTakenOp>(x.emitter().Type(result, {rows, x.size(1)}), x.value(), from.value(), to.value(),
                                      weights.value(), sorted);
}

}  // namespace tpu::ir
