// Layer, RMS, group and batch normalisation, and that of weights, forward and backward.
#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

Shape LastDims(int64_t rank, int64_t count) {
  Shape dims;
  for (int64_t d = rank - count; d < rank; ++d) dims.push_back(d);
  return dims;
}
Shape FirstDims(int64_t count) { return LastDims(count, count); }

Result LayerNorm(AtenCall& c) {  // (x, shape, weight, bias, eps) -> y, mean, rstd
  Tensor x = In(c, 0);
  Shape dims = LastDims(x.rank(), c.ints(1).size());
  Moments m = MomentsAlong(x, dims);
  Tensor rstd = ir::Rsqrt(m.squares / static_cast<double>(CountAlong(x, dims)) + c.as(4, x.dtype(), 1e-5));
  Tensor y = (x - m.mean) * rstd;
  if (c.has(2)) y = y * In(c, 2);
  if (c.has(3)) y = y + In(c, 3);
  return {y, ir::Reshape(m.mean, c.result_dims(1)), ir::Reshape(rstd, c.result_dims(2))};
}

// dx of y = g(x_hat): rstd * (dxhat - mean(dxhat) - xhat * mean(dxhat * xhat)) along `dims`.
Tensor NormInputGradient(Tensor dxhat, Tensor xhat, Tensor rstd, Ints dims) {
  double n = static_cast<double>(CountAlong(xhat, dims));
  Tensor mean = ir::Sum(dxhat, dims, true) / n, slope = ir::Sum(dxhat * xhat, dims, true) / n;
  return rstd * (dxhat - mean - xhat * slope);
}

Result LayerNormBackward(AtenCall& c) {  // (dy, x, shape, mean, rstd, weight, bias, mask)
  Tensor dy = In(c, 0), x = In(c, 1);
  Shape inner = LastDims(x.rank(), c.ints(2).size()), outer = FirstDims(x.rank() - inner.size());
  Shape kept(x.dims());
  for (int64_t d : inner) kept[d] = 1;
  Tensor mean = ir::Reshape(In(c, 3), kept), rstd = ir::Reshape(In(c, 4), kept);
  Tensor xhat = (x - mean) * rstd;
  Tensor dxhat = c.has(5) ? dy * In(c, 5) : dy;
  Tensor dw = c.has(5) ? ir::Sum(dy * xhat, outer) : Tensor();
  Tensor db = c.has(6) || c.num_results() == 3 ? ir::Sum(dy, outer) : Tensor();
  return Asked(c, c.booleans(7), {NormInputGradient(dxhat, xhat, rstd, inner), dw, db});
}

Result RmsNorm(AtenCall& c) {  // (x, shape, weight, eps) -> y, rstd
  Tensor x = In(c, 0);
  Shape dims = LastDims(x.rank(), c.ints(1).size());
  double machine = x.dtype() == DType::kFloat64 ? 0x1p-52 : 0x1p-23;
  Tensor mean = ir::Sum(x * x, dims, true) / static_cast<double>(CountAlong(x, dims));
  Tensor rstd = ir::Rsqrt(mean + c.as(3, x.dtype(), machine));
  Tensor y = x * rstd;
  if (c.has(2)) y = y * In(c, 2);
  return {y, ir::Reshape(rstd, c.result_dims(1))};
}

Result RmsNormBackward(AtenCall& c) {  // (dy, x, shape, rstd, weight, mask)
  Tensor dy = In(c, 0), x = In(c, 1);
  if (static_cast<int64_t>(c.ints(2).size()) > x.rank()) return Result::Decline();
  Shape inner = LastDims(x.rank(), c.ints(2).size()), outer = FirstDims(x.rank() - inner.size());
  Shape kept(x.dims());
  for (int64_t d : inner) kept[d] = 1;
  Tensor rstd = ir::Reshape(In(c, 3), kept), xhat = x * rstd;
  Tensor dxhat = c.has(4) ? dy * In(c, 4) : dy;
  Tensor slope = ir::Sum(dxhat * xhat, inner, true) / static_cast<double>(CountAlong(x, inner));
  Tensor dw = c.has(4) ? ir::Sum(dy * xhat, outer) : Tensor();
  return Asked(c, c.booleans(5), {rstd * (dxhat - xhat * slope), dw});
}

// A vector over channels as [1, C, 1, ...] beside x.
Tensor PerChannel(Tensor v, int64_t rank) {
  Shape dims(rank, 1);
  dims[1] = v.elements();
  return ir::Reshape(v, dims);
}
Shape AllButChannel(int64_t rank) { return OtherDims(rank, {1}); }

struct BatchNormArguments {
  int weight = 1, bias = 2, mean = 3, variance = 4, momentum = 6, eps = 7;
  bool training = true;
};

// -> y, save_mean, save_rstd (both of size 0 in evaluation), and the running statistics where results are left.
Result BatchNorm(AtenCall& c, const BatchNormArguments& a) {
  Tensor x = In(c, 0);
  int64_t rank = x.rank();
  if (rank < 2) return Result::Decline();
  Shape dims = AllButChannel(rank);
  bool has_running = a.mean >= 0 && c.has(a.mean);
  Tensor eps = c.as(a.eps, x.dtype(), 1e-5), mean, rstd, new_mean, new_variance;
  if (a.training) {
    Moments m = MomentsAlong(x, dims);
    double n = static_cast<double>(CountAlong(x, dims));
    mean = m.mean;
    rstd = 1.0 / ir::Sqrt(m.squares / n + eps);
    if (has_running) {
      Tensor momentum = c.as(a.momentum, x.dtype(), 0.1), keep = 1.0 - momentum;
      Shape channels{x.size(1)};
      new_mean = keep * In(c, a.mean) + momentum * ir::Reshape(mean, channels);
      new_variance = keep * In(c, a.variance) + momentum * ir::Reshape(m.squares / (n - 1), channels);
    }
  } else {
    if (!has_running) return Result::Decline();
    mean = PerChannel(In(c, a.mean), rank);
    rstd = 1.0 / ir::Sqrt(PerChannel(In(c, a.variance), rank) + eps);
    new_mean = In(c, a.mean);
    new_variance = In(c, a.variance);
  }
  Tensor y = (x - mean) * rstd;
  if (c.has(a.weight)) y = y * PerChannel(In(c, a.weight), rank);
  if (c.has(a.bias)) y = y + PerChannel(In(c, a.bias), rank);

  llvm::SmallVector<Tensor> results{y};
  const Tensor saved_values[] = {mean, rstd};
  for (auto [i, saved] : llvm::enumerate(saved_values)) {
    Ints wanted = c.result_dims(i + 1);
    bool empty = wanted != Ints{x.size(1)};
    results.push_back(empty ? c.emitter().Constant(x.dtype(), 0, wanted) : ir::Reshape(saved, wanted));
  }
  if (c.num_results() == 4 || c.num_results() == 6) {  // _batch_norm_with_update's reserve
    results.push_back(c.emitter().Constant(c.result_dtype(3), 0, c.result_dims(3)));
  }
  if (c.num_results() >= 5) results.append({new_mean, new_variance});
  return Result(std::move(results));
}

// (x, weight, bias, running_mean, running_var, training, momentum, eps)
Result NativeBatchNorm(AtenCall& c) {
  BatchNormArguments a;
  a.training = c.boolean(5);
  return BatchNorm(c, a);
}

// (dy, x, weight, running_mean, running_var, save_mean, save_rstd, train, eps, mask)
Result BatchNormBackward(AtenCall& c) {
  Tensor dy = In(c, 0), x = In(c, 1);
  int64_t rank = x.rank();
  bool train = c.boolean(7);
  if (train ? !c.has(5) : !c.has(3)) return Result::Decline();
  Shape dims = AllButChannel(rank);
  Tensor mean = PerChannel(In(c, train ? 5 : 3), rank);
  Tensor rstd =
      train ? PerChannel(In(c, 6), rank) : 1.0 / ir::Sqrt(PerChannel(In(c, 4), rank) + c.as(8, x.dtype(), 1e-5));
  Tensor xhat = (x - mean) * rstd;
  Tensor dxhat = c.has(2) ? dy * PerChannel(In(c, 2), rank) : dy;
  Tensor dx = train ? NormInputGradient(dxhat, xhat, rstd, dims) : dxhat * rstd;
  return Asked(c, c.booleans(9), {dx, ir::Sum(dy * xhat, dims), ir::Sum(dy, dims)});
}

// (x, weight, bias, N, C, HxW, groups, eps) -> y, mean, rstd of [N, groups]
Result GroupNorm(AtenCall& c) {
  Tensor x = In(c, 0);
  int64_t n = c.integer(3), channels = c.integer(4), area = c.integer(5), groups = c.integer(6);
  Tensor grouped = ir::Reshape(x, {n, groups, channels / groups * area});
  Moments m = MomentsAlong(grouped, {2});
  Tensor rstd = 1.0 / ir::Sqrt(m.squares / static_cast<double>(grouped.size(2)) + c.as(7, x.dtype(), 1e-5));
  Tensor y = ir::Reshape((grouped - m.mean) * rstd, {n, channels, area});
  if (c.has(1)) y = y * PerChannel(In(c, 1), 3);
  if (c.has(2)) y = y + PerChannel(In(c, 2), 3);
  return {ir::Reshape(y, x.dims()), ir::Reshape(m.mean, {n, groups}), ir::Reshape(rstd, {n, groups})};
}

// (dy, x, mean, rstd, weight, N, C, HxW, groups, mask)
Result GroupNormBackward(AtenCall& c) {
  int64_t n = c.integer(5), channels = c.integer(6), area = c.integer(7), groups = c.integer(8);
  Shape per_channel{n, channels, area}, per_group{n, groups, channels / groups * area};
  Tensor x = In(c, 1), dy = ir::Reshape(In(c, 0), per_channel);
  Tensor mean = ir::Reshape(In(c, 2), {n, groups, 1}), rstd = ir::Reshape(In(c, 3), {n, groups, 1});
  Tensor xhat = (ir::Reshape(x, per_group) - mean) * rstd;
  Tensor dxhat = c.has(4) ? dy * PerChannel(In(c, 4), 3) : dy;
  Tensor dx = NormInputGradient(ir::Reshape(dxhat, per_group), xhat, rstd, {2});
  Tensor dw = ir::Sum(dy * ir::Reshape(xhat, per_channel), {0, 2});
  return Asked(c, c.booleans(9), {ir::Reshape(dx, x.dims()), dw, ir::Sum(dy, {0, 2})});
}

// Each slice of v along dim (the first or the last) at length g.
Result WeightNorm(AtenCall& c) {  // (v, g, dim) -> w, lengths
  Tensor v = In(c, 0);
  Tensor length = ir::Sqrt(ir::Sum(v * v, OtherDims(v.rank(), {c.dim(2, v.rank())}), true));
  return {v * (ir::Reshape(In(c, 1), length.dims()) / length), ir::Reshape(length, c.result_dims(1))};
}

Result WeightNormBackward(AtenCall& c) {  // (dw, v, g, lengths, dim) -> dv, dg
  Tensor dw = In(c, 0), v = In(c, 1);
  Tensor along = ir::Sum(dw * v, OtherDims(v.rank(), {c.dim(4, v.rank())}), true);
  Tensor g = ir::Reshape(In(c, 2), along.dims()), length = ir::Reshape(In(c, 3), along.dims());
  Tensor dg = along / length;
  return {g / length * (dw - v * (dg / length)), ir::Reshape(dg, c.result_dims(1))};
}

}  // namespace

void RegisterNorm(Registry& r) {
  r.Add("aten::native_layer_norm", LayerNorm);
  r.Add("aten::native_layer_norm_backward", LayerNormBackward);
  r.Add("aten::_fused_rms_norm", RmsNorm);
  r.Add("aten::_fused_rms_norm_backward", RmsNormBackward);
  r.Add({"aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_functional"},
        NativeBatchNorm);
  r.Add("aten::_native_batch_norm_legit.no_stats", [](AtenCall& c) {
    return BatchNorm(c, {.mean = -1, .variance = -1, .momentum = 4, .eps = 5, .training = c.boolean(3)});
  });
  r.Add("aten::_native_batch_norm_legit_no_training",
        [](AtenCall& c) { return BatchNorm(c, {.momentum = 5, .eps = 6, .training = false}); });
  r.Add({"aten::_batch_norm_with_update", "aten::_batch_norm_with_update_functional"},
        [](AtenCall& c) { return BatchNorm(c, {.momentum = 5, .eps = 6}); });
  r.Add({"aten::native_batch_norm_backward", "aten::batch_norm_backward"}, BatchNormBackward);
  r.Add("aten::native_group_norm", GroupNorm);
  r.Add("aten::native_group_norm_backward", GroupNormBackward);
  r.Add("aten::_weight_norm_interface", WeightNorm);
  r.Add("aten::_weight_norm_interface_backward", WeightNormBackward);
}

}  // namespace tpu::aten
