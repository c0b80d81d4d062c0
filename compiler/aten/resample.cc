// Upsampling: nearest (positions taken along each dim), linear and cubic (neighbours weighed along each dim; gradients
// of few positions are summed by a matrix of weights), antialiased (all that is under a filter weighed along each dim).
#include <bit>
#include <cmath>
#include <vector>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
std::array<Weight, 4> CubicWeights(Tensor t) {
  constexpr double kA = -0.75;
  const auto near = [](Tensor x) {
    return Weight{((kA + 2) * x - (kA + 3)) * x * x + 1, (3 * (kA + 2) * x - 2 * (kA + 3)) * x};
  };
  const auto far = [](Tensor x) {
    return Weight{((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA, (3 * kA * x - 10 * kA) * x + 8 * kA};
  };
  const auto beyond = [](Weight w) { return Weight{w.value, -w.slope}; };  // of 1 - t
  return {far(t + 1), near(t), beyond(near(1.0 - t)), beyond(far(2.0 - t))};
}

namespace {

// Input steps for one output step, as PyTorch's area_pixel_compute_scale gives it: in the type in which it computes
// positions (f32 for nearest neighbours).
template <typename Real>
double Scale(int64_t in, int64_t out, double given) {
  if (given > 0) return static_cast<Real>(1.0 / given);
  return static_cast<Real>(in) / static_cast<Real>(out);
}

// Where each output position of a nearest-neighbour resampling reads. exact: pixel centres are matched. None where
// PyTorch's kernels differ: for equal and doubled sizes some of them take no notice of a given scale.
std::optional<Shape> NearestPositions(int64_t in, int64_t out, double given, bool exact) {
  const auto scale = static_cast<float>(Scale<float>(in, out, given));
  const bool differ = !exact && (out == in || out == 2 * in);
  Shape positions;
  for (int64_t o = 0; o < out; ++o) {
    float at = exact ? (o + 0.5f) * scale : o * scale;
    positions.push_back(std::min<int64_t>(static_cast<int64_t>(std::floor(at)), in - 1));
    if (differ && positions.back() != o * in / out) return std::nullopt;
  }
  return positions;
}

// Each position is read equally often, in a row.
bool Repeats(Ints positions, int64_t in) {
  const int64_t out = positions.size();
  if (in == 0 || out % in != 0) return false;
  for (int64_t o = 0; o < out; ++o) {
    if (positions[o] != o / (out / in)) return false;
  }
  return true;
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
      const std::optional<Shape> positions = NearestPositions(in, out, c.real(2 + i), exact);
      if (!positions) return Result::Decline();
      x = Repeats(*positions, in) ? Repeat(x, d, out / in)
                                  : ir::Take(x, c.emitter().Dense(DType::kInt64, *positions), d);
    }
    return x;
  }

  Result Backward(AtenCall& c) const {  // (dy, output_size, input_size, scales...)
    Tensor dy = c.as(0, OpMath(c.result_dtype()));
    for (int i = 0; i < n; ++i) {
      int64_t d = dy.rank() - n + i, in = c.result_dims()[d], out = dy.size(d);
      bool known = !c.has(3 + i) || c.is_static(3 + i);
      if (!known) return Result::Decline();
      const std::optional<Shape> positions = NearestPositions(in, out, c.real(3 + i), exact);
      if (!positions) return Result::Decline();
      if (out == in && Repeats(*positions, in)) continue;
      Shape dims(dy.dims());
      dims[d] = in;
      if (Repeats(*positions, in)) {
        dims.insert(dims.begin() + d + 1, out / in);
        dy = ir::Sum(ir::Reshape(dy, dims), {d + 1});
      } else {
        dy = ir::ScatterRows(ir::ScatterKind::add, c.emitter().Constant(dy.dtype(), 0, dims),
                             c.emitter().Dense(DType::kInt64, *positions), dy, d);
      }
    }
    return dy;
  }

  // Each slice along d, `times` times.
  static Tensor Repeat(Tensor x, int64_t d, int64_t times) {
    if (times == 1) return x;
    Shape spread(x.dims()), along, merged(x.dims());
    spread.insert(spread.begin() + d + 1, times);
    for (int64_t k = 0; k < x.rank(); ++k) along.push_back(k <= d ? k : k + 1);
    merged[d] *= times;
    return ir::Reshape(ir::BroadcastAlong(x, spread, along), merged);
  }
};

// Linear and cubic: an output position weighs the two or four input positions around it.
struct Weighed {
  static constexpr int64_t kMostSummed = 128;  // output positions, of a matrix of weights that sums gradients

  int n;
  bool cubic;

  // One input position for each output position, and its weight: [out] each, in the type in which PyTorch computes
  // positions.
  struct Neighbour {
    Tensor position, weight;
  };

  llvm::SmallVector<Neighbour> Neighbours(Emitter& e, DType dtype, int64_t in, int64_t out, bool corners,
                                          double given) const {
    const auto step = dtype == DType::kFloat64 ? &Scale<double> : &Scale<float>;
    const double scale = !corners ? step(in, out, given) : out > 1 ? step(in - 1, out - 1, 0) : 0;
    const auto last = static_cast<double>(in - 1);
    Tensor o = e.Iota(dtype, {out}, 0);
    Tensor at = corners ? o * scale : (o + 0.5) * scale - 0.5;
    if (!cubic) at = ir::Max(at, 0);
    Tensor low = ir::Min(ir::Floor(at), last), t = ir::Min(ir::Max(at - low, 0), 1);
    if (!cubic) return {{low, 1.0 - t}, {ir::Min(low + 1, last), t}};
    llvm::SmallVector<Neighbour> four;
    for (auto [i, weight] : llvm::enumerate(CubicWeights(t))) {
      four.push_back({ir::Min(ir::Max(low + (static_cast<double>(i) - 1), 0), last), weight.value});
    }
    return four;
  }

  // [out, in]: the weight of each input position in each output position.
  static Tensor Weights(llvm::ArrayRef<Neighbour> neighbours, int64_t in) {
    Tensor sum;
    for (const Neighbour& b : neighbours) {
      const Shape dims{b.position.size(0), in};
      Tensor i = b.position.emitter().Iota(b.position.dtype(), dims, 1);
      Tensor term =
          ir::Select(ir::Eq(i, ir::BroadcastAlong(b.position, dims, {0})), ir::BroadcastAlong(b.weight, dims, {0}), 0);
      sum = sum ? sum + term : term;
    }
    return sum;
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
      if (from == to) {
        // A given scale is taken notice of by some of PyTorch's cubic kernels only.
        if (cubic && !c.boolean(corners) && c.real(corners + 1 + i) > 0) return Result::Decline();
        continue;
      }
      const auto neighbours = Neighbours(c.emitter(), x.dtype(), backward ? to : from, backward ? from : to,
                                         c.boolean(corners), c.real(corners + 1 + i));
      if (backward && from <= kMostSummed) {
        x = WeighAlong(x, Weights(neighbours, to), d);
        continue;
      }
      Shape dims(x.dims());
      dims[d] = to;
      Tensor sum = backward ? c.emitter().Constant(x.dtype(), 0, dims) : Tensor();
      for (const Neighbour& b : neighbours) {
        Tensor position = ir::Convert(b.position, DType::kInt64);
        Tensor term = backward ? x : ir::Take(x, position, d);
        term = term * ir::BroadcastAlong(b.weight, term.dims(), {d});
        sum = backward ? ir::ScatterRows(ir::ScatterKind::add, sum, position, term, d) : sum ? sum + term : term;
      }
      x = sum;
    }
    return x;
  }
};

// Antialiased: an output position weighs all input positions under its filter, which is wider where the image shrinks.
struct Filter {
  double reach;  // to either side
  double (*at)(double distance);
};
constexpr double kCubic = -0.5;
constexpr Filter kLinearFilter{1, [](double x) { return std::max(0.0, 1 - x); }};
constexpr Filter kCubicFilter{2, [](double x) {
                                if (x < 1) return ((kCubic + 2) * x - (kCubic + 3)) * x * x + 1;
                                return x < 2 ? (((x - 5) * x + 8) * x - 4) * kCubic : 0;
                              }};

struct Term {
  int64_t position;
  double weight;
};
using Sums = std::vector<std::vector<Term>>;  // of each position along a dim, what it is the sum of

template <typename Real>
Sums FilteredSums(const Filter& filter, int64_t in, int64_t out, bool corners, double given) {
  const Real scale = !corners ? Scale<Real>(in, out, given) : out > 1 ? Scale<Real>(in - 1, out - 1, 0) : 0;
  const Real wider = std::max<Real>(scale, 1), narrower = 1 / wider, reach = filter.reach * wider;
  Sums sums(out);
  for (int64_t o = 0; o < out; ++o) {
    const Real center = scale * (o + 0.5);
    const auto end = std::min(static_cast<int64_t>(center + reach + 0.5), in);
    double total = 0;
    for (int64_t i = std::max<int64_t>(center - reach + 0.5, 0); i < end; ++i) {
      sums[o].push_back({i, filter.at(std::abs(static_cast<Real>((i - center + 0.5) * narrower)))});
      total += sums[o].back().weight;
    }
    for (Term& t : sums[o]) t.weight /= total != 0 ? total : 1;
  }
  return sums;
}

// The sums that give the gradients of what `sums` weigh.
Sums Transposed(const Sums& sums, int64_t in) {
  Sums by_input(in);
  for (auto [o, terms] : llvm::enumerate(sums)) {
    for (const Term& t : terms) by_input[t.position].push_back({static_cast<int64_t>(o), t.weight});
  }
  return by_input;
}

// Bytes are weighed by 16 bits, with as many of them behind the point as the largest weight leaves.
int BitsBehindPoint(const Sums& sums) {
  double most = 0;
  for (const auto& terms : sums) {
    for (const Term& t : terms) most = std::max(most, t.weight);
  }
  int bits = 0;
  while (bits < 22 && static_cast<int>(0.5 + most * (1 << (bits + 1))) < (1 << 15)) ++bits;
  return bits;
}

// What is under no filter has no part: infinity by a weight of 0 had.
Tensor SumAlong(Tensor x, const Sums& sums, int64_t d) {
  Emitter& e = x.emitter();
  const bool bytes = x.dtype() == DType::kUInt8, doubles = x.dtype() == DType::kFloat64;
  const int bits = bytes ? BitsBehindPoint(sums) : 0;
  size_t widest = 1;
  for (const auto& terms : sums) widest = std::max(widest, terms.size());
  Shape positions, weights;
  for (const auto& terms : sums) {
    for (size_t k = 0; k < widest; ++k) {
      const auto [position, weight] = k < terms.size() ? terms[k] : Term{-1, 0};
      positions.push_back(position);
      weights.push_back(bytes     ? std::llround(weight * (1 << bits))
                        : doubles ? std::bit_cast<int64_t>(weight)
                                  : std::bit_cast<int32_t>(static_cast<float>(weight)));
    }
  }
  Shape spread(x.dims());
  spread[d] = sums.size();
  spread.insert(spread.begin() + d + 1, widest);
  const auto of_all = [&](Tensor t) {
    return ir::BroadcastAlong(ir::Reshape(t, {spread[d], spread[d + 1]}), spread, {d, d + 1});
  };
  const Tensor at = e.Dense(DType::kInt64, positions);
  Tensor weight = e.Dense(doubles ? DType::kInt64 : DType::kInt32, weights);
  if (!bytes) weight = ir::Bitcast(weight, x.dtype());
  const Tensor taken = ir::Convert(ir::Reshape(ir::Take(x, ir::Max(at, 0), d), spread), weight.dtype());
  const Tensor sum = ir::Sum(ir::Select(of_all(at >= 0), taken * of_all(weight), 0), {d + 1});
  if (!bytes) return sum;
  const Tensor rounded = ir::Shr(sum + static_cast<double>(1 << (bits - 1)), static_cast<double>(bits));
  return ir::Convert(ir::Min(ir::Max(rounded, 0), 255), DType::kUInt8);
}

// forward (x, output_size, align_corners, scales...), backward (dy, output_size, input_size, align_corners, scales...)
Lowering Antialiased(const Filter& filter, bool backward) {
  return [=](AtenCall& c) -> Result {
    Tensor x = c.as(0, OpMath(c.result_dtype()));
    const bool bytes = x.dtype() == DType::kUInt8, precise = bytes || x.dtype() == DType::kFloat64;
    if (bytes && c.host_kernels()) return Result::Decline();  // the CPU's kernel has instructions for them
    const int corners = backward ? 3 : 2;
    for (int i : {1, 0}) {
      const int64_t d = x.rank() - 2 + i, from = x.size(d), to = c.result_dims()[d];
      const auto sums =
          (precise ? FilteredSums<double> : FilteredSums<float>)(filter, backward ? to : from, backward ? from : to,
                                                                 c.boolean(corners), c.real(corners + 1 + i));
      x = SumAlong(x, backward ? Transposed(sums, to) : sums, d);
    }
    return x;
  };
}

}  // namespace

void RegisterResample(Registry& r) {
  for (bool cubic : {false, true}) {
    const std::string name = std::string("aten::_upsample_bi") + (cubic ? "cubic" : "linear") + "2d_aa";
    const Filter& filter = cubic ? kCubicFilter : kLinearFilter;
    r.Add(name, Antialiased(filter, false), kStaticScalars);
    r.Add(name + "_backward", Antialiased(filter, true), kStaticScalars);
  }
  for (int n = 1; n <= 3; ++n) {
    std::string dims = std::to_string(n) + "d";
    for (bool exact : {false, true}) {
      std::string name = std::string(exact ? "aten::_upsample_nearest_exact" : "aten::upsample_nearest") + dims;
      Nearest nearest{n, exact};
      r.Add(name, [nearest](AtenCall& c) { return nearest.Forward(c); }, kStaticScalars);
      r.Add(name + "_backward", [nearest](AtenCall& c) { return nearest.Backward(c); }, kStaticScalars);
    }
    const char* linear[] = {"linear", "bilinear", "trilinear"};
    for (bool cubic : {false, true}) {
      if (cubic && n != 2) continue;
      std::string name = std::string("aten::upsample_") + (cubic ? "bicubic" : linear[n - 1]) + dims;
      Weighed kind{n, cubic};
      r.Add(name, [kind](AtenCall& c) { return kind.Resample(c, false); }, kStaticScalars);
      r.Add(name + "_backward", [kind](AtenCall& c) { return kind.Resample(c, true); }, kStaticScalars);
    }
  }
}

}  // namespace tpu::aten
