// Reductions. Half types are accumulated in f32, small integers in i64, as PyTorch does.
#include <algorithm>
#include <cmath>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {

using ir::ExtremumKind;
using ir::ReduceKind;

int64_t CountAlong(Tensor x, Ints dims) {
  int64_t count = 1;
  for (int64_t d : dims) count *= x.size(d);
  return count;
}

Moments MomentsAlong(Tensor x, Ints dims) {
  const Tensor mean = ir::Sum(x, dims, true) / static_cast<double>(CountAlong(x, dims)), centred = x - mean;
  return {mean, centred, ir::Sum(centred * centred, dims, true)};
}

Shape AllDims(Tensor x) { return OtherDims(x.rank(), {}); }

Shape OtherDims(int64_t rank, Ints dims) {
  Shape others;
  for (int64_t d = 0; d < rank; ++d) {
    if (!llvm::is_contained(dims, d)) others.push_back(d);
  }
  return others;
}

Tensor VectorNorm(Tensor x, double order, Ints dims) {
  Tensor size = ir::Abs(x);
  if (order == 2) return ir::Sqrt(ir::Sum(x * x, dims, true));
  if (order == 1) return ir::Sum(size, dims, true);
  if (order == 0) return ir::Sum(ir::Convert(ir::Ne(x, 0), x.dtype()), dims, true);
  if (std::isinf(order)) return ir::Reduce(order > 0 ? ReduceKind::max : ReduceKind::min, size, dims, true);
  return ir::Pow(ir::Sum(PowStatic(size, order, size.dtype()), dims, true), 1 / order);
}

namespace {

// The operand in the type that a sum into the result's type is done in.
Tensor Accumulated(AtenCall& c) { return c.as(0, OpMath(c.result_dtype())); }

Tensor Dropped(Tensor kept, AtenCall& c, int result = 0) { return ir::Reshape(kept, c.result_dims(result)); }

// max or min, also of bools.
Tensor Extremum(ExtremumKind kind, Tensor x, Ints dims) {
  bool max = kind == ExtremumKind::max;
  if (x.dtype() == DType::kBool) return ir::Reduce(max ? ReduceKind::any : ReduceKind::all, x, dims, true);
  return ir::Reduce(max ? ReduceKind::max : ReduceKind::min, x, dims, true);
}

// (x, dims, keepdim, dtype)
Result SumOver(AtenCall& c, const Shape& dims) { return Dropped(ir::Sum(Accumulated(c), dims, true), c); }
Result MeanOver(AtenCall& c, const Shape& dims) {
  Tensor x = Accumulated(c);
  return Dropped(ir::Sum(x, dims, true) / static_cast<double>(CountAlong(x, dims)), c);
}

Lowering ExtremumOver(ExtremumKind kind, bool all) {
  return [kind, all](AtenCall& c) -> Result {
    Tensor x = c.tensor(0);
    return Dropped(Extremum(kind, x, all ? AllDims(x) : c.dims(1, x.rank())), c);
  };
}

// (x, dim, keepdim) -> values, indices
Lowering ExtremumWithIndex(ExtremumKind kind) {
  return [kind](AtenCall& c) -> Result {
    Tensor x = c.tensor(0);
    if (x.rank() == 0) return {x, c.emitter().Constant(DType::kInt64, 0)};
    int64_t dim = c.dim(1, x.rank());
    Tensor wide = x.dtype() == DType::kBool ? ir::Convert(x, DType::kUInt8) : x;
    return {Dropped(Extremum(kind, x, {dim}), c), Dropped(ir::ArgReduce(kind, wide, dim), c, 1)};
  };
}

Lowering Index(ExtremumKind kind) {  // (x, dim?, keepdim)
  return [kind](AtenCall& c) -> Result {
    Tensor x = c.tensor(0);
    if (x.elements() == 0) return Result::Decline();
    if (!c.has(1) || x.rank() == 0) x = Flat(x);
    return Dropped(ir::ArgReduce(kind, x, c.has(1) ? c.dim(1, x.rank()) : 0), c);
  };
}

Lowering Truth(ReduceKind kind, bool all) {  // (x, dim | dims, keepdim)
  return [kind, all](AtenCall& c) -> Result {
    Tensor x = c.as(0, DType::kBool);
    return Dropped(ir::Reduce(kind, x, all ? AllDims(x) : c.dims(1, x.rank(), !c.has(1)), true), c);
  };
}

// (x, dims, correction, keepdim); which results: the (root of the) variance, and the mean.
Lowering Variance(bool root, bool with_mean) {
  return [root, with_mean](AtenCall& c) -> Result {
    Tensor x = c.as(0, OpMath(c.result_dtype()));
    Shape dims = c.dims(1, x.rank());
    Moments m = MomentsAlong(x, dims);
    double freedom = static_cast<double>(CountAlong(x, dims)) - c.real(2, 1);
    // What the mean was off by, which counts where it is much greater than the deviations (Chan, Golub, LeVeque:
    // Algorithms for Computing the Sample Variance, 1983).
    const Tensor left = ir::Sum(m.centred, dims, true);
    const Tensor corrected = ir::Max(m.squares - left * (left / static_cast<double>(CountAlong(x, dims))), 0);
    Tensor variance = ir::Select(IsFinite(m.squares), corrected, m.squares) / std::max(freedom, 0.0);
    if (root) variance = ir::Sqrt(variance);
    if (!with_mean) return Dropped(variance, c);
    return {Dropped(variance, c), Dropped(m.mean, c, 1)};
  };
}

Lowering Norm(int order, int dims) {
  return [order, dims](AtenCall& c) -> Result {
    if (!IsFloat(c.result_dtype()) || (c.has(order) && !c.is_static(order))) return Result::Decline();
    Tensor x = c.as(0, OpMath(c.result_dtype()));
    return Dropped(VectorNorm(x, c.real(order, 2), c.dims(dims, x.rank())), c);
  };
}

Result Renorm(AtenCall& c) {  // (x, order, dim, most): slices along dim whose norm is larger get that
  const DType type = c.result_dtype();
  const Tensor x = c.as(0, OpMath(type)), most = c.as(3, x.dtype());
  if (!IsFloat(type) || x.elements() == 0) return Result::Decline();
  const Tensor norm = VectorNorm(x, c.real(1), OtherDims(x.rank(), {c.dim(2, x.rank())}));
  return x * Operand(ir::Select(norm > most, most / (norm + 1e-7), 1), type);
}

Result Trace(AtenCall& c) {
  const Tensor x = Accumulated(c);
  if (x.elements() == 0) return c.emitter().Constant(x.dtype(), 0);
  const int64_t n = std::min(x.size(0), x.size(1)), step = x.size(1) + 1;
  return ir::Sum(ir::SliceDim(Flat(x), 0, 0, (n - 1) * step + 1, step), {0});
}

Result LogSumExp(AtenCall& c) {
  Tensor x = In(c, 0);
  Shape dims = c.dims(1, x.rank());
  if (x.elements() == 0) return Result::Decline();
  Tensor greatest = ir::Reduce(ReduceKind::max, x, dims, true);
  Tensor shift = ir::Select(ir::Eq(ir::Abs(greatest), std::numeric_limits<double>::infinity()), 0, greatest);
  return Dropped(ir::Log(ir::Sum(ir::Exp(x - shift), dims, true)) + shift, c);
}

Result AMinMax(AtenCall& c) {  // (x, dim?, keepdim)
  Tensor x = c.tensor(0);
  Shape dims = c.has(1) ? Shape{c.dim(1, x.rank())} : AllDims(x);
  if (x.rank() == 0) dims.clear();
  return {Dropped(Extremum(ExtremumKind::min, x, dims), c), Dropped(Extremum(ExtremumKind::max, x, dims), c, 1)};
}

}  // namespace

void RegisterReduce(Registry& r) {
  r.Add("aten::sum", [](AtenCall& c) -> Result { return SumOver(c, AllDims(c.tensor(0))); });
  r.Add("aten::sum.dim_IntList", [](AtenCall& c) -> Result { return SumOver(c, c.dims(1, c.tensor(0).rank())); });
  r.Add("aten::trace", Trace);
  r.Add("aten::mean", [](AtenCall& c) -> Result { return MeanOver(c, AllDims(c.tensor(0))); });
  r.Add("aten::mean.dim", [](AtenCall& c) -> Result { return MeanOver(c, c.dims(1, c.tensor(0).rank())); });
  r.Add("aten::nansum", [](AtenCall& c) -> Result {
    Tensor x = Accumulated(c);
    if (IsFloat(x.dtype())) x = ir::Select(IsNan(x), 0, x);
    return Dropped(ir::Sum(x, c.dims(1, x.rank()), true), c);
  });
  r.Add("aten::prod", [](AtenCall& c) -> Result {
    Tensor x = Accumulated(c);
    return Dropped(ir::Reduce(ReduceKind::prod, x, AllDims(x), true), c);
  });
  r.Add("aten::prod.dim_int", [](AtenCall& c) -> Result {
    Tensor x = Accumulated(c);
    if (x.rank() == 0) return x;
    return Dropped(ir::Reduce(ReduceKind::prod, x, {c.dim(1, x.rank())}, true), c);
  });
  r.Add("aten::count_nonzero.dim_IntList", [](AtenCall& c) -> Result {
    Tensor x = ir::Convert(c.as(0, DType::kBool), DType::kInt64);
    return Dropped(ir::Sum(x, c.dims(1, x.rank()), true), c);
  });

  r.Add("aten::amax", ExtremumOver(ExtremumKind::max, false));
  r.Add("aten::amin", ExtremumOver(ExtremumKind::min, false));
  r.Add("aten::max", ExtremumOver(ExtremumKind::max, true));
  r.Add("aten::min", ExtremumOver(ExtremumKind::min, true));
  r.Add("aten::max.dim", ExtremumWithIndex(ExtremumKind::max));
  r.Add("aten::min.dim", ExtremumWithIndex(ExtremumKind::min));
  r.Add("aten::aminmax", AMinMax);
  r.Add("aten::argmax", Index(ExtremumKind::max));
  r.Add("aten::argmin", Index(ExtremumKind::min));

  r.Add("aten::all", Truth(ReduceKind::all, true));
  r.Add({"aten::all.dim", "aten::all.dims"}, Truth(ReduceKind::all, false));
  r.Add("aten::any", Truth(ReduceKind::any, true));
  r.Add({"aten::any.dim", "aten::any.dims"}, Truth(ReduceKind::any, false));

  r.Add("aten::var.correction", Variance(false, false), kStaticScalars);
  r.Add("aten::std.correction", Variance(true, false), kStaticScalars);
  r.Add("aten::var_mean.correction", Variance(false, true), kStaticScalars);
  r.Add("aten::std_mean.correction", Variance(true, true), kStaticScalars);

  r.Add("aten::renorm", Renorm, kStaticScalars);
  r.Add("aten::linalg_vector_norm", Norm(1, 2), kStaticScalars);
  r.Add({"aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype"}, Norm(1, 2), kStaticScalars);
  r.Add({"aten::norm.Scalar", "aten::norm.ScalarOpt_dtype"}, Norm(1, 99), kStaticScalars);
  r.Add("aten::logsumexp", LogSumExp);
}

}  // namespace tpu::aten
