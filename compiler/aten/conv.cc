// Convolutions, forward and backward, transposed or not, in groups. A device with host kernels leaves them to its
// library.
//
// Three sliding products serve all of it: forward(x, w), the gradient of its input, and the gradient of its weight; a
// transposed convolution is the second one. Where the window covers the whole image nothing slides: they are products
// of matrices.
#include "compiler/aten/families.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

struct Geometry {
  Shape stride, padding, dilation;
  int64_t groups = 1;
};

Shape Repeated(Shape list, size_t n) {
  if (list.size() == 1) list.resize(n, list[0]);
  return list;
}

// (.., stride, padding, dilation, transposed, output_padding, groups) from argument `first` on.
Geometry GeometryOf(AtenCall& c, int first, int64_t spatial) {
  const size_t n = static_cast<size_t>(spatial);
  return {Repeated(c.ints(first), n), Repeated(c.ints(first + 1), n), Repeated(c.ints(first + 2), n),
          c.integer(first + 5, 1)};
}

Shape Spatial(Tensor x) { return Shape(x.dims().drop_front(2)); }

Shape Axes(int64_t rank) {
  Shape axes;
  for (int64_t d = 2; d < rank; ++d) axes.push_back(d);
  return axes;
}

// Spatial sizes: whether the window w lies on the image x in one way, of which y is made.
bool Covers(Ints x, Ints w, const Geometry& g, Ints y) {
  const auto all = [](Ints list, int64_t value) { return llvm::all_of(list, [&](int64_t i) { return i == value; }); };
  return g.groups == 1 && all(g.padding, 0) && all(y, 1) && x == w;
}

// As a matrix: a row for each image, or for each of a weight's channels.
Tensor Rows(Tensor x) { return ir::Reshape(x, {x.size(0), x.elements() / x.size(0)}); }

// The sum over dim a of x and dim b of y, as a tensor of dims.
Tensor Matrix(Tensor x, int64_t a, Tensor y, int64_t b, Shape dims) {
  return ir::Reshape(ir::Dot(Rows(x), Rows(y), {}, {}, {a}, {b}, OpMath(x.dtype())), dims);
}

Shape Outer(int64_t rows, int64_t columns, Ints spatial) {
  Shape dims{rows, columns};
  dims.append(spatial.begin(), spatial.end());
  return dims;
}

// size: the spatial sizes of the result; that of a transposed one's gradient may end before the last window that fits.
Tensor Forward(Tensor x, Tensor w, const Geometry& g, Ints size) {
  if (Covers(Spatial(x), Spatial(w), g, size)) return Matrix(x, 1, w, 1, Outer(x.size(0), w.size(0), size));
  const Shape ones(g.stride.size(), 1);
  Shape high;
  for (size_t d = 0; d < size.size(); ++d) {
    const int64_t span = (size[d] - 1) * g.stride[d] + (w.size(d + 2) - 1) * g.dilation[d] + 1;
    high.push_back(span - x.size(d + 2) - g.padding[d]);
  }
  return ir::Conv(x, w, {g.stride, g.padding, high, ones, g.dilation}, g.groups, 1, OpMath(x.dtype()));
}

// The weight [g * O', I', k..] of the forward product as that of the product backwards: [g * I', O', k.. reversed].
Tensor Backwards(Tensor w, int64_t groups) {
  const int64_t out = w.size(0) / groups, in = w.size(1);
  Shape split{groups, out, in}, permutation{0, 2, 1}, joined{groups * in, out};
  for (int64_t d = 2; d < w.rank(); ++d) {
    split.push_back(w.size(d));
    permutation.push_back(d + 1);
    joined.push_back(w.size(d));
  }
  Tensor turned = ir::Reshape(ir::Transpose(ir::Reshape(w, split), permutation), joined);
  return w.rank() > 2 ? ir::Reverse(turned, Axes(w.rank())) : turned;
}

// size: the spatial sizes of the input.
Tensor InputGradient(Tensor dy, Tensor w, const Geometry& g, Ints size) {
  if (Covers(size, Spatial(w), g, Spatial(dy))) return Matrix(dy, 1, w, 0, Outer(dy.size(0), w.size(1), size));
  const Shape ones(g.stride.size(), 1);
  Shape low, high;
  for (size_t d = 0; d < size.size(); ++d) {
    const int64_t span = g.dilation[d] * (w.size(d + 2) - 1);
    low.push_back(span - g.padding[d]);
    high.push_back(size[d] + span - low[d] - ((dy.size(d + 2) - 1) * g.stride[d] + 1));
  }
  return ir::Conv(dy, Backwards(w, g.groups), {ones, low, high, g.stride, g.dilation}, g.groups, 1, OpMath(dy.dtype()));
}

// size: the spatial sizes of the weight.
Tensor WeightGradient(Tensor x, Tensor dy, const Geometry& g, Ints size) {
  if (Covers(Spatial(x), size, g, Spatial(dy))) return Matrix(dy, 0, x, 0, Outer(dy.size(1), x.size(1), size));
  const Shape ones(g.stride.size(), 1);
  Shape high;
  for (size_t d = 0; d < size.size(); ++d) {
    const int64_t span = (dy.size(d + 2) - 1) * g.stride[d] + 1;
    high.push_back((size[d] - 1) * g.dilation[d] + span - x.size(d + 2) - g.padding[d]);
  }
  return ir::Conv(x, dy, {g.dilation, g.padding, high, ones, g.stride}, 1, g.groups, OpMath(x.dtype()),
                  /*swapped=*/true);
}

// (x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
Result Convolution(AtenCall& c) {
  Tensor x = c.tensor(0), w = c.tensor(1);
  if (!IsFloat(x.dtype()) || x.dtype() != w.dtype() || x.elements() == 0) return Result::Decline();
  const Geometry g = GeometryOf(c, 3, x.rank() - 2);
  const Shape size(c.result_dims().drop_front(2));
  Tensor y = c.boolean(6) ? InputGradient(x, w, g, size) : Forward(x, w, g, size);
  if (!c.has(2)) return y;
  Shape channel(x.rank(), 1);
  channel[1] = y.size(1);
  return y + ir::Reshape(c.as(2, y.dtype()), channel);
}

// (dy, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)
Result ConvolutionBackward(AtenCall& c) {
  Tensor dy = c.tensor(0), x = c.tensor(1), w = c.tensor(2);
  if (!IsFloat(x.dtype()) || x.dtype() != w.dtype() || x.elements() == 0) return Result::Decline();
  const Geometry g = GeometryOf(c, 4, x.rank() - 2);
  const bool transposed = c.boolean(7);
  const llvm::SmallVector<bool> mask = c.booleans(10);
  const auto asked = [&](size_t i) { return i >= mask.size() || mask[i]; };
  Tensor dx, dw, db;
  if (asked(0)) dx = transposed ? Forward(dy, w, g, Spatial(x)) : InputGradient(dy, w, g, Spatial(x));
  if (asked(1)) dw = transposed ? WeightGradient(dy, x, g, Spatial(w)) : WeightGradient(x, dy, g, Spatial(w));
  if (asked(2)) {
    Shape outer = Axes(dy.rank());
    outer.push_back(0);
    db = ir::Sum(ir::Convert(dy, OpMath(dy.dtype())), outer);
  }
  return Asked(c, mask, {dx, dw, db});
}

}  // namespace

void RegisterConvolution(Registry& r) {
  r.Add("aten::convolution", Convolution, kLibraryCall | kHostKernelFirst | kTunable);
  r.Add("aten::convolution_backward", ConvolutionBackward, kLibraryCall | kHostKernelFirst | kTunable);
}

}  // namespace tpu::aten
