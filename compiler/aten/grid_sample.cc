// Sampling of images where a grid says: neighbours are gathered and weighed; gradients are scattered to them.
#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

enum Padding { kZeros = 0, kBorder = 1, kReflection = 2 };

// One coordinate of all samples, in pixels, and its derivative by what the grid says: [n, samples].
struct Coordinate {
  Tensor at, slope;
};

// What is no number is 0, as in the CPU's kernels, but for samples that may lie outside.
Coordinate Locate(Tensor says, int64_t pixels, int64_t padding, bool corners) {
  const auto size = static_cast<double>(pixels), last = size - 1, scale = (corners ? last : size) / 2;
  Tensor at = (says + 1) * scale, slope = says.emitter().Constant(says.dtype(), scale, says.dims());
  if (!corners) at = at - 0.5;
  if (padding == kReflection) {
    const double low = corners ? 0 : -0.5, span = corners ? last : size;
    if (span == 0) return {at * 0, slope * 0};
    const Tensor rest = ir::Rem(ir::Abs(at - low), 2 * span), back = rest > span;
    slope = ir::Select(ir::Ne(at < low, back), -slope, slope);
    at = ir::Select(back, 2 * span - rest, rest) + low;
  }
  if (padding != kZeros) {
    slope = ir::Select((at > 0) & (at < last), slope, 0);
    at = ir::Select(at > 0, ir::Min(at, last), 0);
  }
  return {at, slope};
}

// A pixel that a sample weighs, along one dim: its position, its weight, and the weight's derivative.
struct Neighbour {
  Tensor position, weight;
  double slope;
};

llvm::SmallVector<Neighbour> Neighbours(Tensor at, bool nearest) {
  if (nearest) return {{ir::RoundEven(at), at.emitter().Constant(at.dtype(), 1, at.dims()), 0}};
  const Tensor low = ir::Floor(at), beyond = at - low;
  return {{low, 1.0 - beyond, -1}, {low + 1, beyond, 1}};
}

struct Samples {
  Tensor image;  // [n, channels, pixels]
  Coordinate x, y;
  llvm::SmallVector<Neighbour> columns, rows;
  int64_t width, height;
  Shape dims;  // [n, channels, samples]

  Tensor OfAll(Tensor of_sample) const { return ir::BroadcastAlong(of_sample, dims, {0, 2}); }
};

// (image, grid, interpolation, padding, corners), from argument `first`. Of half types PyTorch rounds the coordinates.
std::optional<Samples> Read(AtenCall& c, int first) {
  const DType type = c.promoted();
  const Tensor image = c.as(first, type), grid = c.as(first + 1, type);
  const int64_t mode = c.integer(first + 2), padding = c.integer(first + 3), n = image.size(0);
  if (!IsFloat(type) || OpMath(type) != type || mode > 1 || image.elements() == 0 || grid.elements() == 0)
    return std::nullopt;
  Samples s;
  s.height = image.size(2);
  s.width = image.size(3);
  s.dims = {n, image.size(1), grid.size(1) * grid.size(2)};
  s.image = ir::Reshape(image, {n, image.size(1), s.height * s.width});
  const auto coordinate = [&](int64_t k, int64_t pixels) {
    const Tensor says = ir::Reshape(ir::SliceDim(grid, 3, k, k + 1), {n, s.dims[2]});
    return Locate(says, pixels, padding, c.boolean(first + 4));
  };
  s.x = coordinate(0, s.width);
  s.y = coordinate(1, s.height);
  s.columns = Neighbours(s.x.at, mode == 1);
  s.rows = Neighbours(s.y.at, mode == 1);
  return s;
}

struct Pixel {
  Tensor inside, index;  // [n, channels, samples]; that of the first pixel where it is outside

  Pixel(const Samples& s, const Neighbour& row, const Neighbour& column) {
    const Tensor x = column.position, y = row.position;
    const Tensor is_inside =
        (x >= 0) & (x < static_cast<double>(s.width)) & (y >= 0) & (y < static_cast<double>(s.height));
    const auto whole = [&](Tensor t) { return ir::Convert(ir::Select(is_inside, t, 0), DType::kInt64); };
    inside = s.OfAll(is_inside);
    index = s.OfAll(whole(y) * static_cast<double>(s.width) + whole(x));
  }
  Tensor Value(const Samples& s) const { return ir::Select(inside, ir::TakeAlong(s.image, index, 2), 0); }
};

Result Forward(AtenCall& c) {
  const std::optional<Samples> s = Read(c, 0);
  if (!s) return Result::Decline();
  Tensor sum;
  for (const Neighbour& row : s->rows) {
    for (const Neighbour& column : s->columns) {
      const Tensor term = Pixel(*s, row, column).Value(*s) * s->OfAll(column.weight * row.weight);
      sum = sum ? sum + term : term;
    }
  }
  return ir::Reshape(sum, c.result_dims());
}

Result Backward(AtenCall& c) {  // (dy, image, grid, interpolation, padding, corners, mask)
  const std::optional<Samples> s = Read(c, 1);
  if (!s) return Result::Decline();
  const Tensor dy = ir::Reshape(c.as(0, s->image.dtype()), s->dims);
  const Tensor none = c.emitter().Constant(dy.dtype(), 0, s->x.at.dims());
  Tensor image = c.emitter().Constant(dy.dtype(), 0, s->image.dims()), x = none, y = none;
  const llvm::SmallVector<bool> mask = c.booleans(6);
  for (const Neighbour& row : s->rows) {
    for (const Neighbour& column : s->columns) {
      const Pixel pixel(*s, row, column);
      const Tensor update = ir::Select(pixel.inside, dy * s->OfAll(column.weight * row.weight), 0);
      if (mask.empty() || mask[0]) image = ir::Scatter(ir::ScatterKind::add, image, pixel.index, update, 2);
      if (column.slope == 0) continue;
      const Tensor both = ir::Sum(dy * pixel.Value(*s), {1});
      x = x + both * row.weight * column.slope;
      y = y + both * column.weight * row.slope;
    }
  }
  const Tensor of_grid = ir::Concat({ir::Unsqueeze(x * s->x.slope, 2), ir::Unsqueeze(y * s->y.slope, 2)}, 2);
  return Asked(c, mask, {ir::Reshape(image, c.tensor(1).dims()), ir::Reshape(of_grid, c.tensor(2).dims())});
}

}  // namespace

void RegisterGridSample(Registry& r) {
  r.Add("aten::grid_sampler_2d", Forward);
  r.Add("aten::grid_sampler_2d_backward", Backward);
}

}  // namespace tpu::aten
