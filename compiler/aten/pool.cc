// Pooling over the last dims, forward and backward; the windows themselves as columns, and their sum.
#include <algorithm>
#include <array>
#include <numeric>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

// One number for every dim, or one each.
Shape Spread(Shape list, size_t n, int64_t otherwise) {
  if (list.empty()) return Shape(n, otherwise);
  if (list.size() == 1) return Shape(n, list[0]);
  return list;
}

// The window over x's last n dims that gives `out`; with ceil_mode the last one may hang over: more padding above.
ir::Window MakeWindow(Ints x, Ints out, Ints kernel, Ints stride, Ints padding, Ints dilation) {
  size_t n = kernel.size();
  ir::Window w{Shape(kernel), Shape(stride.empty() ? kernel : stride), Shape(dilation), Shape(padding), Shape(padding)};
  for (size_t i = 0; i < n; ++i) {
    int64_t size = x[x.size() - n + i], count = out[out.size() - n + i];
    int64_t span = w.dilation[i] * (w.window[i] - 1) + 1;
    w.high[i] = std::max<int64_t>(0, (count - 1) * w.strides[i] + span - size - w.low[i]);
  }
  return w;
}

// A window that stands in one place alone is cut to what it covers of x: it may be much larger, in ceil_mode.
ir::Window Cut(ir::Window w, Ints x, Ints out) {
  size_t n = w.window.size();
  for (size_t i = 0; i < n; ++i) {
    if (out[out.size() - n + i] != 1 || w.dilation[i] != 1) continue;
    w.window[i] = std::min(x[x.size() - n + i], w.window[i] - w.low[i]);
    w.low[i] = w.high[i] = 0;
  }
  return w;
}

Shape Prefix(Ints dims, size_t n) { return Shape(dims.begin(), dims.end() - n); }

Lowering MaxPool(size_t n) {  // (x, kernel, stride, padding, dilation, ceil_mode) -> values, indices
  return [n](AtenCall& c) -> Result {
    Tensor x = c.tensor(0);
    Shape stride = c.ints(2);
    ir::Window w =
        MakeWindow(x.dims(), c.result_dims(), Spread(c.ints(1), n, 1), stride.empty() ? Shape() : Spread(stride, n, 1),
                   Spread(c.ints(3), n, 0), Spread(c.ints(4), n, 1));
    w = Cut(w, x.dims(), c.result_dims());
    // Code for each place of a window: the CPU's kernel is as quick where there are many.
    constexpr int64_t kMostPlaces = 128;
    if (c.num_results() > 1 && c.host_kernels() && NumElements(w.window) > kMostPlaces) return Result::Decline();
    Tensor values = ir::WindowReduce(ir::ReduceKind::max, x, w);
    if (c.num_results() == 1) return values;
    return {values, ir::WindowArgReduce(ir::ExtremumKind::max, x, w)};
  };
}

// dy where `indices` (flat over the last n dims) say, added or the last of several.
Tensor AtIndices(ir::ScatterKind kind, Tensor dy, Tensor indices, Ints x, size_t n) {
  Shape outer = Prefix(x, n);
  int64_t planes = NumElements(outer), area = NumElements(x.take_back(n));
  Shape rows{planes, planes == 0 ? 0 : dy.elements() / planes};
  Tensor base = dy.emitter().Constant(dy.dtype(), 0, {planes, area});
  Tensor sum = ir::Scatter(kind, base, ir::Reshape(indices, rows), ir::Reshape(dy, rows), 1);
  return ir::Reshape(sum, x);
}

Lowering MaxPoolBackward(size_t n, int indices) {  // (dy, x, ..., indices)
  return [n, indices](AtenCall& c) -> Result {
    return AtIndices(ir::ScatterKind::add, c.as(0, OpMath(c.result_dtype())), c.as(indices, DType::kInt64),
                     c.result_dims(), n);
  };
}

Lowering MaxUnpool(size_t n) {  // (x, indices, output_size, ...)
  return [n](AtenCall& c) -> Result {
    if (c.tensor(0).elements() == 0) return c.emitter().Constant(c.result_dtype(), 0, c.result_dims());
    return AtIndices(ir::ScatterKind::set, c.tensor(0), c.as(1, DType::kInt64), c.result_dims(), n);
  };
}

struct Average {
  ir::Window window;
  Tensor divisor;  // for each output position, or one number
};

// (x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override), arguments from `first` on.
Average ReadAverage(AtenCall& c, int first, size_t n, Ints x, Ints out, DType dtype) {
  Shape stride = c.ints(first + 1);
  Shape padding = Spread(c.ints(first + 2), n, 0);
  Average a;
  const ir::Window whole = MakeWindow(x, out, Spread(c.ints(first), n, 1),
                                      stride.empty() ? Shape() : Spread(stride, n, 1), padding, Shape(n, 1));
  a.window = Cut(whole, x, out);
  if (c.has(first + 5)) {
    a.divisor = c.emitter().Constant(dtype, static_cast<double>(c.integer(first + 5)));
    return a;
  }
  // Positions that count: the padded input's, or the input's alone; what ceil_mode hangs over never counts.
  bool with_padding = c.boolean(first + 4, true);
  Shape area(x.end() - n, x.end());
  ir::Window counting = whole;
  for (size_t i = 0; with_padding && i < n; ++i) {
    area[i] += 2 * padding[i];
    counting.low[i] = 0;
    counting.high[i] = std::max<int64_t>(0, whole.high[i] - padding[i]);
  }
  counting = Cut(counting, area, out);
  bool uniform = llvm::all_of(counting.low, [](int64_t v) { return v == 0; }) &&
                 llvm::all_of(counting.high, [](int64_t v) { return v == 0; });
  a.divisor = uniform ? c.emitter().Constant(dtype, static_cast<double>(NumElements(counting.window)))
                      : ir::WindowReduce(ir::ReduceKind::sum, c.emitter().Constant(dtype, 1, area), counting);
  return a;
}

Lowering AvgPool(size_t n) {
  return [n](AtenCall& c) -> Result {
    Tensor x = c.as(0, OpMath(c.result_dtype()));
    if (!IsFloat(x.dtype())) return Result::Decline();
    Average a = ReadAverage(c, 1, n, x.dims(), c.result_dims(), x.dtype());
    return ir::WindowReduce(ir::ReduceKind::sum, x, a.window) / a.divisor;
  };
}

// Each slice along d, `times` times.
Tensor Repeat(Tensor x, int64_t d, int64_t times) {
  Shape spread(x.dims()), along, merged(x.dims());
  spread.insert(spread.begin() + d + 1, times);
  for (int64_t k = 0; k < x.rank(); ++k) along.push_back(k <= d ? k : k + 1);
  merged[d] *= times;
  return ir::Reshape(ir::BroadcastAlong(x, spread, along), merged);
}

// The sum, for each input position, of what the windows that hold it carry. That is one window, or none, where they lie
// side by side; else dy is spread out by the stride, with windows of the same size over it.
Tensor SpreadBack(Tensor dy, const ir::Window& w, Ints x) {
  size_t n = w.window.size(), lead = x.size() - n;
  bool apart = true;
  for (size_t i = 0; i < n; ++i) apart &= w.strides[i] == w.window[i] || dy.size(lead + i) == 1;
  for (size_t i = 0; apart && i < n; ++i) {
    const int64_t d = lead + i, covered = dy.size(d) * w.window[i], last = std::min(w.low[i] + x[d], covered);
    Shape high(x.size(), 0);
    high[d] = w.low[i] + x[d] - last;
    dy = ir::SliceDim(Repeat(dy, d, w.window[i]), d, w.low[i], last);
    if (high[d] > 0) dy = ir::Pad(dy, 0, Shape(x.size(), 0), high);
  }
  if (apart) return dy;
  Shape low(x.size(), 0), high(x.size(), 0), interior(x.size(), 0);
  for (size_t i = 0; i < n; ++i) {
    int64_t reach = w.window[i] - 1, size = x[lead + i];
    interior[lead + i] = w.strides[i] - 1;
    int64_t spread = (dy.size(lead + i) - 1) * w.strides[i] + 1;
    low[lead + i] = reach;
    high[lead + i] = std::max<int64_t>(0, size + w.low[i] + reach - spread - reach);
  }
  Tensor padded = ir::Pad(dy, dy.emitter().Constant(dy.dtype(), 0), low, high, interior);
  ir::Window one{w.window, Shape(n, 1), Shape(n, 1), Shape(n, 0), Shape(n, 0)};
  Tensor sums = ir::WindowReduce(ir::ReduceKind::sum, padded, one);
  for (size_t i = 0; i < n; ++i) {
    sums = ir::SliceDim(sums, lead + i, w.low[i], w.low[i] + x[lead + i]);
  }
  return sums;
}

Lowering AvgPoolBackward(size_t n) {  // (dy, x, kernel, ...)
  return [n](AtenCall& c) -> Result {
    Tensor dy = c.as(0, OpMath(c.result_dtype()));
    Average a = ReadAverage(c, 2, n, c.result_dims(), dy.dims(), dy.dtype());
    return SpreadBack(dy / a.divisor, a.window, c.result_dims());
  };
}

// Adaptive pooling whose input divides evenly is pooling; other sizes go one dim at a time. Which input positions are
// averaged for the output positions `o`: from `start` to before `end`.
struct Windows {
  Tensor start, end;
};
Windows AdaptiveWindows(Tensor o, int64_t in, int64_t out) {
  auto number = [&](int64_t v) { return o.emitter().Integer(DType::kInt64, v); };
  return {o * number(in) / number(out), ((o + 1) * number(in) + number(out - 1)) / number(out)};
}

int64_t Widest(int64_t in, int64_t out) {
  int64_t widest = 0;
  for (int64_t o = 0; o < out; ++o) widest = std::max(widest, ((o + 1) * in + out - 1) / out - o * in / out);
  return widest;
}

// x with dim d averaged to `out` windows. What is not in a window has no part in it: infinity by a weight of 0 had.
Tensor AverageAlong(Tensor x, int64_t d, int64_t out) {
  Emitter& e = x.emitter();
  const int64_t in = x.size(d);
  const int64_t widest = Widest(in, out);
  Shape spread(x.dims());
  spread[d] = out;
  spread.insert(spread.begin() + d + 1, widest);
  auto [first, before] = AdaptiveWindows(e.Iota(DType::kInt64, {out, widest}, 0), in, out);
  Tensor at = first + e.Iota(DType::kInt64, {out, widest}, 1);
  Tensor inside = ir::BroadcastAlong(at < before, spread, {d, d + 1});
  Tensor positions = ir::Reshape(ir::Min(at, static_cast<double>(in - 1)), {out * widest});
  Tensor sum = ir::Sum(ir::Select(inside, ir::Reshape(ir::Take(x, positions, d), spread), 0), {d + 1});
  auto [start, end] = AdaptiveWindows(e.Iota(DType::kInt64, {out}, 0), in, out);
  return sum / ir::BroadcastAlong(ir::Convert(end - start, x.dtype()), sum.dims(), {d});
}

// The matrix of weights would be larger than most tensors.
bool IsTooLong(int64_t in, int64_t out) { return in * out > (1 << 20); }

// dy with dim d, of averages, spread to the `in` positions that they are of: by a matrix of weights.
Tensor SpreadAlong(Tensor dy, int64_t d, int64_t in) {
  Emitter& e = dy.emitter();
  const int64_t out = dy.size(d);
  Tensor i = e.Iota(DType::kInt64, {out, in}, 1);
  auto [start, end] = AdaptiveWindows(e.Iota(DType::kInt64, {out, in}, 0), in, out);
  Tensor weights = ir::Convert((i >= start) & (i < end), dy.dtype()) / ir::Convert(end - start, dy.dtype());
  return WeighAlong(dy, weights, d);
}

Lowering AdaptiveAvgPool(size_t n) {  // (x, output_size)
  return [n](AtenCall& c) -> Result {
    Tensor x = c.as(0, OpMath(c.result_dtype()));
    size_t lead = x.rank() - n;
    Shape ratio;
    bool even = true, whole = true;
    for (size_t i = 0; i < n; ++i) {
      int64_t in = x.size(lead + i), out = c.result_dims()[lead + i];
      if (out == 0 || in == 0) return Result::Decline();
      even = even && in % out == 0;
      whole = whole && out == 1;
      ratio.push_back(in / out);
    }
    if (whole) {
      Shape dims;
      for (size_t i = 0; i < n; ++i) dims.push_back(lead + i);
      return ir::Sum(x, dims, true) / static_cast<double>(CountAlong(x, dims));
    }
    if (even) {
      ir::Window w{ratio, ratio, Shape(n, 1), Shape(n, 0), Shape(n, 0)};
      return ir::WindowReduce(ir::ReduceKind::sum, x, w) / static_cast<double>(NumElements(ratio));
    }
    for (size_t i = 0; i < n; ++i) x = AverageAlong(x, lead + i, c.result_dims()[lead + i]);
    return x;
  };
}

Lowering AdaptiveAvgPoolBackward(size_t n) {  // (dy, x)
  return [n](AtenCall& c) -> Result {
    Tensor dy = c.as(0, OpMath(c.result_dtype()));
    size_t lead = dy.rank() - n;
    for (size_t i = 0; i < n; ++i) {
      int64_t in = c.result_dims()[lead + i], out = dy.size(lead + i);
      if (out == 0 || in == 0) return Result::Decline();
      if (in % out == 0) {
        dy = Repeat(dy / static_cast<double>(in / out), lead + i, in / out);
      } else if (IsTooLong(in, out)) {
        return Result::Decline();
      } else {
        dy = SpreadAlong(dy, lead + i, in);
      }
    }
    return dy;
  };
}

// Where windows stand along one dim: elements `dilation` apart, each window `stride` from the one before.
struct Places {
  int64_t kernel, dilation, padding, stride, size, count;
  int64_t padded() const { return size + 2 * padding; }
  int64_t reach() const { return (count - 1) * stride + 1; }  // from one element of the first to that of the last
  bool tiles() const { return stride == kernel && dilation == 1; }
  // How many elements of a window are beside those of the next.
  int64_t tile() const { return dilation == 1 && kernel % stride == 0 ? stride : 1; }
};

// (kernel, dilation, padding, stride), arguments from `first` on, for the last two of `dims`.
std::array<Places, 2> ReadPlaces(AtenCall& c, int first, Ints dims) {
  std::array<Places, 2> both;
  for (size_t i = 0; i < 2; ++i) {
    const auto number = [&](int k) { return Spread(c.ints(first + k), 2, 1)[i]; };
    Places p{number(0), number(1), number(2), number(3), dims[dims.size() - 2 + i], 0};
    p.count = (p.padded() - p.dilation * (p.kernel - 1) - 1) / p.stride + 1;
    both[i] = p;
  }
  return both;
}

// x with dim d, padded, as [kernel, count].
Tensor WindowsAlong(Tensor x, int64_t d, const Places& p) {
  Shape padding(x.rank(), 0);
  padding[d] = p.padding;
  if (p.padding != 0) x = ir::Pad(x, 0, padding, padding);
  if (p.tiles()) {
    Shape tiles(x.dims());
    tiles[d] = p.count;
    tiles.insert(tiles.begin() + d + 1, p.kernel);
    return ir::SwapDims(ir::Reshape(ir::SliceDim(x, d, 0, p.count * p.kernel), tiles), d, d + 1);
  }
  llvm::SmallVector<Tensor> parts;
  for (int64_t k = 0; k < p.kernel; ++k) {
    const int64_t start = k * p.dilation;
    parts.push_back(ir::Unsqueeze(ir::SliceDim(x, d, start, start + p.reach(), p.stride), d));
  }
  return ir::Concat(parts, d);
}

// The inverse: dims d and d + 1, [kernel, count], as one of `size`, where windows that meet are summed.
Tensor SumOfWindows(Tensor x, int64_t d, const Places& p) {
  const int64_t tile = p.tile();
  Shape dims(x.dims());
  dims.erase(dims.begin() + d);
  dims[d] = p.count * tile;
  Shape low(dims.size(), 0), high(dims.size(), 0), interior(dims.size(), 0);
  interior[d] = p.stride / tile - 1;
  Tensor sum;
  for (int64_t k = 0; k < p.kernel; k += tile) {
    low[d] = k * p.dilation;
    high[d] = p.padded() - low[d] - p.reach() - (tile - 1);
    const Tensor part = ir::Reshape(ir::SwapDims(ir::SliceDim(x, d, k, k + tile), d, d + 1), dims);
    const Tensor placed = ir::Pad(part, x.emitter().Constant(x.dtype(), 0), low, high, interior);
    sum = sum ? sum + placed : placed;
  }
  return ir::SliceDim(sum, d, p.padding, p.padding + p.size);
}

Result ImageToColumns(AtenCall& c) {  // (x, kernel, dilation, padding, stride)
  const Tensor x = c.tensor(0);
  if (x.elements() == 0) return c.emitter().Constant(x.dtype(), 0, c.result_dims());
  const auto [rows, columns] = ReadPlaces(c, 1, x.dims());
  const int64_t d = x.rank() - 2;
  const Tensor windows = WindowsAlong(WindowsAlong(x, d + 1, columns), d, rows);  // [kh, oh, kw, ow]
  return ir::Reshape(ir::SwapDims(windows, d + 1, d + 2), c.result_dims());
}

Result ColumnsToImage(AtenCall& c) {  // (columns, size, kernel, dilation, padding, stride)
  const Tensor x = c.as(0, OpMath(c.result_dtype()));
  if (x.elements() == 0) return c.emitter().Constant(x.dtype(), 0, c.result_dims());
  const auto [rows, columns] = ReadPlaces(c, 2, c.result_dims());
  Shape dims = Prefix(c.result_dims(), 2);
  const auto d = static_cast<int64_t>(dims.size());
  dims.append({rows.kernel, columns.kernel, rows.count, columns.count});
  const Tensor windows = ir::SwapDims(ir::Reshape(x, dims), d + 1, d + 2);
  return SumOfWindows(SumOfWindows(windows, d + 2, columns), d, rows);
}

Result UnfoldBackward(AtenCall& c) {  // (windows, sizes, dim, size, step): each window, in the last dim, back in place
  constexpr int64_t kMostParts = 32;
  const Tensor x = c.as(0, OpMath(c.result_dtype()));
  Shape dims(c.result_dims());
  if (x.elements() == 0) return c.emitter().Constant(x.dtype(), 0, dims);
  if (dims.empty()) return ir::Reshape(x, dims);
  const int64_t rank = dims.size(), d = c.dim(2, rank);
  const Places p{c.integer(3), 1, 0, c.integer(4), dims[d], x.size(d)};
  Shape order(rank), merged(dims);
  std::iota(order.begin(), order.end(), 0);
  order.insert(order.begin() + d, rank);
  const Tensor windows = ir::Transpose(x, order);  // [size, count] in place of the dim
  if (p.kernel / p.tile() <= kMostParts) return SumOfWindows(windows, d, p);
  const auto place = [&](int64_t k) { return c.emitter().Iota(DType::kInt64, {p.kernel, p.count}, k); };
  merged[d] = p.kernel * p.count;
  return ir::ScatterRows(ir::ScatterKind::add, c.emitter().Constant(x.dtype(), 0, dims),
                         Flat(place(0) + place(1) * static_cast<double>(p.stride)), ir::Reshape(windows, merged), d);
}

// Adaptive pooling is pooling of what its windows hold, side by side: the last position of a shorter one once more.
// The CPU's kernel is as quick where windows are large.
Lowering AdaptiveMaxPool(size_t n) {  // (x, output_size) -> values, indices
  return [n](AtenCall& c) -> Result {
    Tensor x = c.tensor(0);
    const size_t lead = x.rank() - n;
    if (x.elements() == 0 || NumElements(c.result_dims()) == 0) return Result::Decline();
    Emitter& e = c.emitter();
    Shape window;
    llvm::SmallVector<Tensor> positions;
    for (size_t i = 0; i < n; ++i) {
      const int64_t in = x.size(lead + i), out = c.result_dims()[lead + i], widest = Widest(in, out);
      const auto [start, end] = AdaptiveWindows(e.Iota(DType::kInt64, {out, widest}, 0), in, out);
      positions.push_back(Flat(ir::Min(start + e.Iota(DType::kInt64, {out, widest}, 1), end - 1)));
      if (out * widest != in) x = ir::Take(x, positions.back(), lead + i);
      window.push_back(widest);
    }
    if (c.host_kernels() && NumElements(window) > 32) return Result::Decline();
    const ir::Window w{window, window, Shape(n, 1), Shape(n, 0), Shape(n, 0)};
    Tensor rest = ir::WindowArgReduce(ir::ExtremumKind::max, x, w), index = rest;
    if (x.dims() != c.tensor(0).dims()) {  // where the positions taken stood
      index = Tensor();
      int64_t step = 1;
      for (size_t i = n; i-- > 0;) {
        const auto size = static_cast<double>(x.size(lead + i));
        const Tensor term = ir::Take(positions[i], ir::Rem(rest, size), 0) * static_cast<double>(step);
        index = index ? index + term : term;
        rest = rest / size;
        step *= c.tensor(0).size(lead + i);
      }
    }
    return {ir::WindowReduce(ir::ReduceKind::max, x, w), index};
  };
}

}  // namespace

void RegisterPool(Registry& r) {
  r.Add("aten::max_pool2d_with_indices", MaxPool(2));
  r.Add("aten::max_pool3d_with_indices", MaxPool(3));
  r.Add("aten::max_pool2d_with_indices_backward", MaxPoolBackward(2, 7));
  r.Add("aten::max_pool3d_with_indices_backward", MaxPoolBackward(3, 7));
  r.Add("aten::adaptive_max_pool2d", AdaptiveMaxPool(2));
  r.Add("aten::adaptive_max_pool3d", AdaptiveMaxPool(3));
  r.Add("aten::adaptive_max_pool2d_backward", MaxPoolBackward(2, 2));
  r.Add("aten::adaptive_max_pool3d_backward", MaxPoolBackward(3, 2));
  r.Add("aten::max_unpool2d", MaxUnpool(2));
  r.Add("aten::max_unpool3d", MaxUnpool(3));
  r.Add("aten::avg_pool2d", AvgPool(2));
  r.Add("aten::avg_pool3d", AvgPool(3));
  r.Add("aten::avg_pool2d_backward", AvgPoolBackward(2));
  r.Add("aten::avg_pool3d_backward", AvgPoolBackward(3));
  r.Add({"aten::_adaptive_avg_pool2d", "aten::adaptive_avg_pool2d"}, AdaptiveAvgPool(2));
  r.Add({"aten::_adaptive_avg_pool3d", "aten::adaptive_avg_pool3d"}, AdaptiveAvgPool(3));
  r.Add("aten::_adaptive_avg_pool2d_backward", AdaptiveAvgPoolBackward(2));
  r.Add("aten::_adaptive_avg_pool3d_backward", AdaptiveAvgPoolBackward(3));
  r.Add("aten::im2col", ImageToColumns);
  r.Add("aten::col2im", ColumnsToImage);
  r.Add("aten::unfold_backward", UnfoldBackward);
}

}  // namespace tpu::aten
