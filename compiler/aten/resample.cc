// Upsampling: nearest (positions taken along each dim) and linear (two neighbours weighed along each dim; gradients of
// few positions are summed by a matrix of weights).
#include <cmath>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

// Input steps for one output step, as PyTorch's area_pixel_compute_scale gives it: in the type in which it computes
// positions (f32 for nearest neighbours).
template <typename Real>
double Scale(int64_t in, int64_t out, double given) {
  if (given > 0) return static_cast<Real>(1.0 / given);
  return static_cast<Real>(in) / static_cast<Real>(out);
}

// Where each output position of a nearest-neighbour resampling reads. exact: pixel centres are matched.
Shape NearestPositions(int64_t in, int64_t out, double given, bool exact) {
  const auto scale = static_cast<float>(Scale<float>(in, out, given));
  Shape positions;
  for (int64_t o = 0; o < out; ++o) {
    float at = exact ? (o + 0.5f) * scale : o * scale;
    positions.push_back(std::min<int64_t>(static_cast<int64_t>(std::floor(at)), in - 1));
  }
  return positions;
}

struct Nearest {
  int n;
  bool exact;

  Result Forward(AtenCall& c) const {  // (x, output_size, scales...)
    Tensor x = c.tensor(0);
    for (int i = 0; i < n; ++i) {
      int64_t d = x.rank() - n + i, in = x.size(d), out = c.result_dims()[d];
      bool known = !c.has(2 + i) || c.is_static(2 + i);
      if (!known) return Result::Decline();
      double given = c.real(2 + i);
      if (out == in) continue;
      bool repeats = given <= 0 && out % in == 0;
      x = repeats ? Repeat(x, d, out / in)
                  : ir::Take(x, c.emitter().Dense(DType::kInt64, NearestPositions(in, out, given, exact)), d);
    }
    return x;
  }

  Result Backward(AtenCall& c) const {  // (dy, output_size, input_size, scales...)
    Tensor dy = c.as(0, OpMath(c.result_dtype()));
    for (int i = 0; i < n; ++i) {
      int64_t d = dy.rank() - n + i, in = c.result_dims()[d], out = dy.size(d);
      bool known = !c.has(3 + i) || c.is_static(3 + i);
      if (!known) return Result::Decline();
      double given = c.real(3 + i);
      if (out == in) continue;
      Shape dims(dy.dims());
      if (given <= 0 && out % in == 0) {
        dims[d] = in;
        dims.insert(dims.begin() + d + 1, out / in);
        dy = ir::Sum(ir::Reshape(dy, dims), {d + 1});
      } else {
        dims[d] = in;
        Tensor positions = c.emitter().Dense(DType::kInt64, NearestPositions(in, out, given, exact));
        dy = ir::ScatterRows(ir::ScatterKind::add, c.emitter().Constant(dy.dtype(), 0, dims), positions, dy, d);
      }
    }
    return dy;
  }

  // Each slice along d, `times` times.
  static Tensor Repeat(Tensor x, int64_t d, int64_t times) {
    Shape spread(x.dims()), along, merged(x.dims());
    spread.insert(spread.begin() + d + 1, times);
    for (int64_t k = 0; k < x.rank(); ++k) along.push_back(k <= d ? k : k + 1);
    merged[d] *= times;
    return ir::Reshape(ir::BroadcastAlong(x, spread, along), merged);
  }
};

struct Linear {
  static constexpr int64_t kMostSummed = 128;  // output positions, of a matrix of weights that sums gradients

  int n;

  // Between which input positions each of `out` output positions lies, and how far towards the higher one: [out] each,
  // in the type `dtype`, in which PyTorch computes them.
  struct Between {
    Tensor low, high, share;
  };
  static Between Neighbours(Emitter& e, DType dtype, int64_t in, int64_t out, bool corners, double given) {
    const auto step = dtype == DType::kFloat64 ? &Scale<double> : &Scale<float>;
    const double scale = !corners ? step(in, out, given) : out > 1 ? step(in - 1, out - 1, 0) : 0;
    const auto last = static_cast<double>(in - 1);
    Tensor o = e.Iota(dtype, {out}, 0);
    Tensor at = corners ? o * scale : ir::Max((o + 0.5) * scale - 0.5, 0);
    Tensor low = ir::Min(ir::Floor(at), last);
    return {low, ir::Min(low + 1, last), ir::Min(at - low, 1)};
  }

  // [out, in]: the weight of each input position in each output position.
  static Tensor Weights(const Between& b, int64_t in) {
    const int64_t out = b.low.size(0);
    const auto down = [&](Tensor v) { return ir::BroadcastAlong(v, {out, in}, {0}); };
    Tensor i = b.low.emitter().Iota(b.low.dtype(), {out, in}, 1);
    return ir::Select(ir::Eq(i, down(b.low)), down(1.0 - b.share), 0) +
           ir::Select(ir::Eq(i, down(b.high)), down(b.share), 0);
  }

  // forward (x, output_size, align_corners, scales...), backward (dy, output_size, input_size, align_corners,
  // scales...)
  Result Resample(AtenCall& c, bool backward) const {
    Tensor x = c.as(0, OpMath(c.result_dtype()));
    if (!IsFloat(x.dtype())) return Result::Decline();
    int corners = backward ? 3 : 2;
    for (int i = 0; i < n; ++i) {
      int64_t d = x.rank() - n + i, from = x.size(d), to = c.result_dims()[d];
      bool known = !c.has(corners + 1 + i) || c.is_static(corners + 1 + i);
      if (!known) return Result::Decline();
      if (from == to) continue;
      const Between b = Neighbours(c.emitter(), x.dtype(), backward ? to : from, backward ? from : to,
                                   c.boolean(corners), c.real(corners + 1 + i));
      if (backward && from <= kMostSummed) {
        x = WeighAlong(x, Weights(b, to), d);
        continue;
      }
      const auto position = [](Tensor v) { return ir::Convert(v, DType::kInt64); };
      const auto weighed = [&](Tensor v, Tensor by) { return v * ir::BroadcastAlong(by, v.dims(), {d}); };
      if (backward) {
        Shape dims(x.dims());
        dims[d] = to;
        Tensor sums = c.emitter().Constant(x.dtype(), 0, dims);
        sums = ir::ScatterRows(ir::ScatterKind::add, sums, position(b.low), weighed(x, 1.0 - b.share), d);
        x = ir::ScatterRows(ir::ScatterKind::add, sums, position(b.high), weighed(x, b.share), d);
      } else {
        x = weighed(ir::Take(x, position(b.low), d), 1.0 - b.share) +
            weighed(ir::Take(x, position(b.high), d), b.share);
      }
    }
    return x;
  }
};

}  // namespace

void RegisterResample(Registry& r) {
  for (int n = 1; n <= 3; ++n) {
    std::string dims = std::to_string(n) + "d";
    for (bool exact : {false, true}) {
      std::string name = std::string(exact ? "aten::_upsample_nearest_exact" : "aten::upsample_nearest") + dims;
      Nearest nearest{n, exact};
      r.Add(name, [nearest](AtenCall& c) { return nearest.Forward(c); }, kStaticScalars);
      r.Add(name + "_backward", [nearest](AtenCall& c) { return nearest.Backward(c); }, kStaticScalars);
    }
    const char* kind[] = {"linear", "bilinear", "trilinear"};
    std::string name = std::string("aten::upsample_") + kind[n - 1] + dims;
    Linear linear{n};
    r.Add(name, [linear](AtenCall& c) { return linear.Resample(c, false); }, kStaticScalars);
    r.Add(name + "_backward", [linear](AtenCall& c) { return linear.Resample(c, true); }, kStaticScalars);
  }
}

}  // namespace tpu::aten
