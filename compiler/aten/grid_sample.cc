// Sampling of images and volumes where a grid says: neighbours are gathered and weighed; gradients are scattered to
// them. Cubic sampling follows Keys, "Cubic convolution interpolation for digital image processing" (1981), as PyTorch.
#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

enum Mode { kLinear = 0, kNearest = 1, kCubic = 2 };
enum Padding { kZeros = 0, kBorder = 1, kReflection = 2 };

// One coordinate of all samples, in pixels, and its derivative by what the grid says: [n, samples].
struct Coordinate {
  Tensor at, slope;
};

constexpr double kOutside = -100;  // of every image

// Along one dim: how many pixels there are, and what is beyond them.
struct Line {
  int64_t pixels, padding;
  bool corners;

  Coordinate InPixels(Tensor says) const {
    const auto size = static_cast<double>(pixels), scale = (corners ? size - 1 : size) / 2;
    const Tensor at = (says + 1) * scale;
    return {corners ? at : at - 0.5, says.emitter().Constant(says.dtype(), scale, says.dims())};
  }

  // A coordinate beyond them is led back, unless it is in zeros.
  Coordinate Padded(Coordinate x) const {
    auto [at, slope] = x;
    if (padding == kZeros) return x;
    const auto size = static_cast<double>(pixels), last = size - 1;
    if (padding == kReflection) {
      const double low = corners ? 0 : -0.5, span = corners ? last : size;
      if (span == 0) return {at * 0, slope * 0};
      const Tensor rest = ir::Rem(ir::Abs(at - low), 2 * span), back = rest > span;
      slope = ir::Select(ir::Ne(at < low, back), -slope, slope);
      at = ir::Select(back, 2 * span - rest, rest) + low;
    }
    return {ir::Select(at > 0, ir::Min(at, last), 0), ir::Select((at > 0) & (at < last), slope, 0)};
  }

  // `strange_at`: where a sample is whose coordinate is no number or, of an image padded with zeros, infinite.
  Coordinate Locate(Tensor says, std::optional<double> strange_at) const {
    const Coordinate said = InPixels(says), found = Padded(said);
    if (!strange_at) return found;
    const Tensor strange = padding == kBorder ? IsNan(said.at) : ir::Not(IsFinite(said.at));
    return {ir::Select(strange, *strange_at, found.at), found.slope};
  }
};

// A pixel that a sample weighs, along one dim: its position, its weight, and the weight's derivative.
struct Neighbour {
  Tensor position, weight, slope;
};
using Neighbours = llvm::SmallVector<Neighbour>;

Neighbours Of(Tensor at, int64_t mode, const Line& line) {
  const auto constant = [&](double value) { return at.emitter().Constant(at.dtype(), value, at.dims()); };
  if (mode == kNearest) return {{ir::RoundEven(at), constant(1), constant(0)}};
  const Tensor low = ir::Floor(at), beyond = at - low;
  if (mode == kLinear) return {{low, 1.0 - beyond, constant(-1)}, {low + 1, beyond, constant(1)}};
  Neighbours neighbours;
  for (auto [i, weight] : llvm::enumerate(CubicWeights(beyond))) {
    const Tensor position = low + (static_cast<double>(i) - 1);
    neighbours.push_back({line.Padded({position, at}).at, weight.value, weight.slope});
  }
  return neighbours;
}

struct Samples {
  Tensor image;  // [n, channels, pixels]
  Shape sizes;   // of the image's dims behind those; what follows is by these
  llvm::SmallVector<Coordinate> at;
  llvm::SmallVector<Neighbours> neighbours;
  Shape dims;  // [n, channels, samples]

  Tensor OfAll(Tensor of_sample) const { return ir::BroadcastAlong(of_sample, dims, {0, 2}); }
  size_t pixels() const {  // that a sample weighs
    size_t product = 1;
    for (const Neighbours& along : neighbours) product *= along.size();
    return product;
  }
};

// (image, grid, interpolation, padding, corners), from argument `first`. Of half types PyTorch rounds the coordinates.
// The CPU's kernels for volumes take what is no number as the last pixel where none is outside, and those for their
// gradients as outside.
std::optional<Samples> Read(AtenCall& c, int first) {
  const DType type = c.promoted();
  const Tensor image = c.as(first, type), grid = c.as(first + 1, type);
  const int64_t mode = c.integer(first + 2), padding = c.integer(first + 3), n = image.size(0), last = grid.rank() - 1;
  if (!IsFloat(type) || OpMath(type) != type || mode > kCubic || image.elements() == 0 || grid.elements() == 0)
    return std::nullopt;
  Samples s;
  s.sizes = Shape(image.dims().drop_front(2));
  s.dims = {n, image.size(1), NumElements(grid.dims().slice(1, s.sizes.size()))};
  s.image = ir::Reshape(image, {n, image.size(1), NumElements(s.sizes)});
  for (auto [d, size] : llvm::enumerate(s.sizes)) {
    const auto k = static_cast<int64_t>(s.sizes.size() - 1 - d);  // the grid says x first
    const Tensor says = ir::Reshape(ir::SliceDim(grid, last, k, k + 1), {n, s.dims[2]});
    std::optional<double> strange_at;  // as the CPU's kernel of volumes has it
    if (s.sizes.size() == 3) strange_at = padding != kZeros && first == 0 ? static_cast<double>(size - 1) : kOutside;
    const Line line{size, padding, c.boolean(first + 4)};
    s.at.push_back(mode == kCubic ? line.InPixels(says) : line.Locate(says, strange_at));
    s.neighbours.push_back(Of(s.at.back().at, mode, line));
  }
  return s;
}

struct Pixel {
  llvm::SmallVector<Neighbour> along;  // each dim
  Tensor inside, index;                // [n, channels, samples]; that of the first pixel where it is outside

  Pixel(const Samples& s, size_t which) {
    Tensor is_inside, flat;
    for (auto [d, size] : llvm::enumerate(s.sizes)) {
      along.push_back(s.neighbours[d][which % s.neighbours[d].size()]);
      which /= s.neighbours[d].size();
      const Tensor at = along[d].position, here = (at >= 0) & (at < static_cast<double>(size));
      is_inside = d == 0 ? here : is_inside & here;
    }
    for (auto [d, size] : llvm::enumerate(s.sizes)) {
      const Tensor at = ir::Convert(ir::Select(is_inside, along[d].position, 0), DType::kInt64);
      flat = d == 0 ? at : flat * static_cast<double>(size) + at;
    }
    inside = s.OfAll(is_inside);
    index = s.OfAll(flat);
  }
  Tensor Value(const Samples& s) const { return ir::Select(inside, ir::TakeAlong(s.image, index, 2), 0); }
  // The product of its weights along all dims but `left_out`.
  Tensor Weight(size_t left_out) const {
    Tensor product;
    for (size_t d = along.size(); d-- > 0;) {
      if (d != left_out) product = product ? product * along[d].weight : along[d].weight;
    }
    return product;
  }
  Tensor Weight() const { return Weight(along.size()); }
};

Result Forward(AtenCall& c) {
  const std::optional<Samples> s = Read(c, 0);
  if (!s) return Result::Decline();
  Tensor sum;
  for (size_t i = 0; i < s->pixels(); ++i) {
    const Pixel pixel(*s, i);
    const Tensor term = pixel.Value(*s) * s->OfAll(pixel.Weight());
    sum = sum ? sum + term : term;
  }
  return ir::Reshape(sum, c.result_dims());
}

Result Backward(AtenCall& c) {  // (dy, image, grid, interpolation, padding, corners, mask)
  const std::optional<Samples> s = Read(c, 1);
  if (!s) return Result::Decline();
  const Tensor dy = ir::Reshape(c.as(0, s->image.dtype()), s->dims);
  Tensor image = c.emitter().Constant(dy.dtype(), 0, s->image.dims());
  llvm::SmallVector<Tensor> slopes(s->sizes.size(), c.emitter().Constant(dy.dtype(), 0, s->at[0].at.dims()));
  const llvm::SmallVector<bool> mask = c.booleans(6);
  for (size_t i = 0; i < s->pixels(); ++i) {
    const Pixel pixel(*s, i);
    const Tensor update = ir::Select(pixel.inside, dy * s->OfAll(pixel.Weight()), 0);
    if (mask.empty() || mask[0]) image = ir::Scatter(ir::ScatterKind::add, image, pixel.index, update, 2);
    if (s->pixels() == 1) continue;  // the nearest
    const Tensor all = ir::Sum(dy * pixel.Value(*s), {1});
    for (size_t d = 0; d < slopes.size(); ++d) slopes[d] = slopes[d] + all * pixel.Weight(d) * pixel.along[d].slope;
  }
  llvm::SmallVector<Tensor> of_grid;  // x first
  for (size_t d = slopes.size(); d-- > 0;) of_grid.push_back(ir::Unsqueeze(slopes[d] * s->at[d].slope, 2));
  return Asked(c, mask,
               {ir::Reshape(image, c.tensor(1).dims()), ir::Reshape(ir::Concat(of_grid, 2), c.tensor(2).dims())});
}

}  // namespace

void RegisterGridSample(Registry& r) {
  r.Add({"aten::grid_sampler_2d", "aten::grid_sampler_3d"}, Forward);
  r.Add({"aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward"}, Backward);
}

}  // namespace tpu::aten
