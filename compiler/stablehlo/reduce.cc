// Many elements to one: reductions, products, scans, windows, sorting.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/stablehlo/emit.h"
#include "llvm/ADT/TypeSwitch.h"

namespace tpu::stablehlo {
namespace {

const char* Combiner(ir::ReduceKind kind) {
  constexpr const char* kNames[] = {"add", "multiply", "maximum", "minimum", "and", "or"};
  return kNames[static_cast<int>(kind)];
}

// The identity of `kind`, of rank 0.
Val Identity(Writer& w, ir::ReduceKind kind, mlir::Type element) {
  const auto type = mlir::RankedTensorType::get({}, element);
  switch (kind) {
    case ir::ReduceKind::max:
      return w.Lowest(element);
    case ir::ReduceKind::min:
      return w.Highest(element);
    case ir::ReduceKind::prod:
    case ir::ReduceKind::all:
      return w.Splat(type, 1);
    default:
      return w.Splat(type, 0);
  }
}

// Running sums and products of half types keep the precision of f32.
bool Widens(ir::ReduceKind kind, const Val& x) {
  return (x.element().isF16() || x.element().isBF16()) && (kind == ir::ReduceKind::sum || kind == ir::ReduceKind::prod);
}

Val Widened(Writer& w, ir::ReduceKind kind, Val x) {
  return Widens(kind, x) ? w.Convert(x, mlir::Float32Type::get(x.type.getContext())) : x;
}

Val Reduce(Emission& e, ir::ReduceOp op) {
  Val given = e.Of(op.getX()), x = Widened(e.w, op.getKind(), given);
  Val init = Identity(e.w, op.getKind(), x.element());
  return e.w.Convert(e.w.Reduce(Combiner(op.getKind()), x, init, op.getDims()), given.element());
}

// Pairs of an element and where it stands; the better one stays, of equals the first.
Val ArgReduce(Emission& e, ir::ArgReduceOp op) {
  Writer& w = e.w;
  Val x = e.Of(op.getX());
  const int64_t dim = static_cast<int64_t>(op.getDim());
  mlir::Builder b(x.type.getContext());
  const mlir::Type index = x.dims()[dim] < INT32_MAX ? b.getI32Type() : b.getI64Type();
  const bool max = op.getKind() == ir::ExtremumKind::max;
  Val init = max ? w.Lowest(x.element()) : w.Highest(x.element());
  Val last = w.Highest(index);
  Val where = w.Iota(WithElement(x.type, index), dim);
  const std::string body =
      w.Region({x.element(), index, x.element(), index}, [&](llvm::ArrayRef<Val> a) -> llvm::SmallVector<Val> {
        Val better = w.Compare(max ? "GT" : "LT", a[0], a[2]);
        Val equal = w.Compare("EQ", a[0], a[2]);
        if (x.is_float()) {
          Val left = w.IsNan(a[0]), right = w.IsNan(a[2]);
          better = w.Or(better, w.And(left, w.Not(right)));
          equal = w.Or(equal, w.And(left, right));
        }
        Val take = w.Or(better, w.And(equal, w.Compare("LT", a[1], a[3])));
        return {w.Select(take, a[0], a[2]), w.Select(take, a[1], a[3])};
      });
  const auto result = ir::TensorTypeOf(op.getResult());
  auto both = w.Ops("reduce", {x, where, init, last}, {WithDims(x.type, result.getShape()), WithElement(result, index)},
                    absl::StrCat("dimensions = ", Array({dim})), body);
  return w.Convert(both[1], b.getI64Type());
}

// Unless it is told otherwise a TPU rounds f32 operands to bf16, which is what "medium" allows.
std::string PrecisionConfig(mlir::Type element, ir::Precision asked) {
  constexpr const char* kNames[] = {"HIGHEST", "HIGH", "DEFAULT"};
  const char* precision = element.isF64() ? "HIGHEST" : element.isF32() ? kNames[static_cast<int>(asked)] : "DEFAULT";
  return absl::StrCat("precision_config = [#stablehlo<precision ", precision, ">, #stablehlo<precision ", precision,
                      ">]");
}

Val Dot(Emission& e, ir::DotOp op) {
  Writer& w = e.w;
  Val lhs = e.Of(op.getLhs()), rhs = e.Of(op.getRhs());
  const auto result = ir::TensorTypeOf(op.getResult());
  const std::string numbers =
      absl::StrCat("dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = ", List(op.getLhsBatch()),
                   ", rhs_batching_dimensions = ", List(op.getRhsBatch()),
                   ", lhs_contracting_dimensions = ", List(op.getLhsContract()),
                   ", rhs_contracting_dimensions = ", List(op.getRhsContract()), ">");
  return w.Op("dot_general", {lhs, rhs}, result,
              absl::StrCat(numbers, ", ", PrecisionConfig(lhs.element(), op.getPrecision())));
}

// Pairs of padding, one a dim: "dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>".
std::string Padding(Ints low, Ints high) {
  std::vector<std::string> pairs;
  pairs.reserve(low.size());
  for (size_t d = 0; d < low.size(); ++d) pairs.push_back(absl::StrCat("[", low[d], ", ", high[d], "]"));
  return absl::StrCat("dense<[", absl::StrJoin(pairs, ", "), "]> : tensor<", low.size(), "x2xi64>");
}

Val WindowReduce(Writer& w, ir::ReduceKind kind, Val given, Ints window, Ints strides, Ints dilation, Ints low,
                 Ints high, mlir::RankedTensorType result) {
  if (given.rank() == 0) return given;
  Val x = Widened(w, kind, given);
  const std::string body = w.Region({x.element(), x.element()}, [&](llvm::ArrayRef<Val> a) {
    return llvm::SmallVector<Val>{w.Op(Combiner(kind), {a[0], a[1]}, a[0].type)};
  });
  Val reduced = w.Op("reduce_window", {x, Identity(w, kind, x.element())}, WithElement(result, x.element()),
                     absl::StrCat("window_dimensions = ", Array(window), ", window_strides = ", Array(strides),
                                  ", window_dilations = ", Array(dilation), ", padding = ", Padding(low, high)),
                     body);
  return w.Convert(reduced, given.element());
}

Val Conv(Emission& e, ir::ConvOp op) {
  Val lhs = e.Of(op.getLhs()), rhs = e.Of(op.getRhs());
  std::vector<std::string> spatial;
  for (size_t d = 0; d < op.getStrides().size(); ++d) spatial.push_back(absl::StrCat(d));
  const char* const operand = op.getSwapped() ? "f, b" : "b, f";
  const std::string space = spatial.empty() ? "" : absl::StrCat(", ", absl::StrJoin(spatial, ", "));
  const std::string padding = spatial.empty() ? "dense<> : tensor<0x2xi64>" : Padding(op.getLow(), op.getHigh());
  return e.w.Op(
      "convolution", {lhs, rhs}, ir::TensorTypeOf(op.getResult()),
      absl::StrCat("dimension_numbers = #stablehlo.conv<[", operand, space, "]x[", op.getSwapped() ? "i, o" : "o, i",
                   space, "]->[", operand, space, "]>, window_strides = ", Array(op.getStrides()),
                   ", padding = ", padding, ", lhs_dilation = ", Array(op.getBaseDilation()),
                   ", rhs_dilation = ", Array(op.getDilation()), ", feature_group_count = ", op.getFeatureGroups(),
                   " : i64, batch_group_count = ", op.getBatchGroups(), " : i64, ",
                   PrecisionConfig(lhs.element(), ir::Precision::highest)));
}

Val Fft(Emission& e, ir::FftOp op) {
  constexpr const char* kNames[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  return e.w.Op("fft", {e.Of(op.getX())}, ir::TensorTypeOf(op.getResult()),
                absl::StrCat("fft_type = #stablehlo<fft_type ", kNames[static_cast<int>(op.getKind())],
                             ">, fft_length = ", Array(op.getLengths())));
}

Val Cholesky(Emission& e, ir::CholeskyOp op) {
  return e.w.Op("cholesky", {e.Of(op.getX())}, ir::TensorTypeOf(op.getResult()), "lower = true");
}

Val TriangularSolve(Emission& e, ir::TriangularSolveOp op) {
  const auto text = [](bool flag) { return flag ? "true" : "false"; };
  return e.w.Op("triangular_solve", {e.Of(op.getA()), e.Of(op.getB())}, ir::TensorTypeOf(op.getResult()),
                absl::StrCat("left_side = true, lower = ", text(!op.getUpper()), ", unit_diagonal = ",
                             text(op.getUnitDiagonal()), ", transpose_a = #stablehlo<transpose NO_TRANSPOSE>"));
}

// A list over the last dims as one over all of them.
Dims OverAll(Ints last, int64_t rank, int64_t rest) {
  Dims all(rank - static_cast<int64_t>(last.size()), rest);
  all.append(last.begin(), last.end());
  return all;
}

Val Window(Emission& e, ir::WindowReduceOp op) {
  Val x = e.Of(op.getX());
  const int64_t rank = x.rank();
  return WindowReduce(e.w, op.getKind(), x, OverAll(op.getWindow(), rank, 1), OverAll(op.getStrides(), rank, 1),
                      OverAll(op.getDilation(), rank, 1), OverAll(op.getPaddingLow(), rank, 0),
                      OverAll(op.getPaddingHigh(), rank, 0), ir::TensorTypeOf(op.getResult()));
}

// Every prefix is a window that begins in the padding.
Val Scan(Emission& e, ir::ScanOp op) {
  Val x = e.Of(op.getX());
  if (x.type.getNumElements() == 0) return x;
  const int64_t rank = x.rank(), dim = static_cast<int64_t>(op.getDim());
  Dims window(rank, 1), one(rank, 1), low(rank, 0), zero(rank, 0);
  window[dim] = x.dims()[dim];
  low[dim] = x.dims()[dim] - 1;
  return WindowReduce(e.w, op.getKind(), x, window, one, one, low, zero, x.type);
}

void Sort(Emission& e, ir::SortOp op) {
  Writer& w = e.w;
  Val x = e.Of(op.getX());
  const int64_t dim = static_cast<int64_t>(op.getDim());
  mlir::Builder b(x.type.getContext());
  const mlir::Type index = x.dims()[dim] < INT32_MAX ? b.getI32Type() : b.getI64Type();
  Val where = w.Iota(WithElement(x.type, index), dim);
  const std::string body =
      w.Region({x.element(), x.element(), index, index}, [&](llvm::ArrayRef<Val> a) -> llvm::SmallVector<Val> {
        const bool down = op.getDescending();
        Val first = w.Compare(down ? "GT" : "LT", a[0], a[1]);
        if (!x.is_float()) return {first};
        Val left = w.IsNan(a[0]), right = w.IsNan(a[1]);
        return {w.Or(first, down ? w.And(left, w.Not(right)) : w.And(right, w.Not(left)))};
      });
  auto sorted = w.Ops("sort", {x, where}, {x.type, where.type},
                      absl::StrCat("dimension = ", dim, " : i64, is_stable = true"), body);
  e.Set(op.getValues(), sorted[0]);
  e.Set(op.getIndices(), w.Convert(sorted[1], b.getI64Type()));
}

}  // namespace

bool EmitReduction(Emission& e, mlir::Operation* op) {
  return llvm::TypeSwitch<mlir::Operation*, bool>(op)
      .Case<ir::ReduceOp>([&](ir::ReduceOp o) { return e.Set(o.getResult(), Reduce(e, o)), true; })
      .Case<ir::ArgReduceOp>([&](ir::ArgReduceOp o) { return e.Set(o.getResult(), ArgReduce(e, o)), true; })
      .Case<ir::DotOp>([&](ir::DotOp o) { return e.Set(o.getResult(), Dot(e, o)), true; })
      .Case<ir::ConvOp>([&](ir::ConvOp o) { return e.Set(o.getResult(), Conv(e, o)), true; })
      .Case<ir::FftOp>([&](ir::FftOp o) { return e.Set(o.getResult(), Fft(e, o)), true; })
      .Case<ir::CholeskyOp>([&](ir::CholeskyOp o) { return e.Set(o.getResult(), Cholesky(e, o)), true; })
      .Case<ir::TriangularSolveOp>(
          [&](ir::TriangularSolveOp o) { return e.Set(o.getResult(), TriangularSolve(e, o)), true; })
      .Case<ir::WindowReduceOp>([&](ir::WindowReduceOp o) { return e.Set(o.getResult(), Window(e, o)), true; })
      .Case<ir::ScanOp>([&](ir::ScanOp o) { return e.Set(o.getResult(), Scan(e, o)), true; })
      .Case<ir::SortOp>([&](ir::SortOp o) { return Sort(e, o), true; })
      .Default([](mlir::Operation*) { return false; });
}

}  // namespace tpu::stablehlo
