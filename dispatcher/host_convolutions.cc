#include "dispatcher/host_convolutions.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/flip.h>

#include <array>
#include <utility>
#include <vector>

namespace tpu {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

bool IsPlain(const Tensor& t) {
  const bool packed = t.dim() == 3 || (t.dim() == 4 && t.suggest_memory_format() == c10::MemoryFormat::Contiguous);
  const bool type = t.scalar_type() == c10::kFloat || t.scalar_type() == c10::kBFloat16;
  return packed && type && t.layout() == c10::kStrided && t.device().is_cpu() && t.numel() > 0;
}

// As an image, of one row where it is a signal.
Tensor Image(const Tensor& t) { return (t.dim() == 3 ? t.unsqueeze(2) : t).contiguous(); }

// In the rank and type of an operand.
Tensor Like(const Tensor& operand, const Tensor& result) {
  return (operand.dim() == 3 ? result.squeeze(2) : result).to(operand.scalar_type());
}

// The three sliding products that serve all convolutions (compiler/aten/conv.cc), of images, in f32: undefined where
// the device leaves one to the library.
class Products {
 public:
  // arguments: stride, padding, dilation, transposed, output_padding, groups.
  Products(Device& device, const c10::IValue* arguments, int64_t rank)
      : transposed(arguments[3].toBool()),
        device_(device),
        stride_(Pair(arguments[0], rank, 1)),
        padding_(Pair(arguments[1], rank, 0)),
        dilation_(Pair(arguments[2], rank, 1)),
        output_padding_(Pair(arguments[4], rank, 0)),
        groups_(arguments[5].toInt()) {}

  // y, x, w: the sizes of the result.
  Tensor Forward(const Tensor& x, const Tensor& w, at::IntArrayRef y) const {
    return Run(Moved(Convolution::Kind::kForward, x, y, w.sizes()), x, w, y);
  }

  Tensor WeightGradient(const Tensor& x, const Tensor& y, at::IntArrayRef w) const {
    return Run(Moved(Convolution::Kind::kWeight, x, y.sizes(), w), x, y, w);
  }

  Tensor InputGradient(const Tensor& y, const Tensor& w, at::IntArrayRef x) const {
    const int64_t out = w.size(0) / groups_, in = w.size(1);  // of a group
    Convolution c = Of(Convolution::Kind::kForward, y, out * groups_, x, in * groups_, w.sizes());
    for (size_t d = 0; d < 2; ++d) {
      Convolution::Dim& dim = Dim(c, d);
      dim.low = dim.dilation * (dim.kernel - 1) - padding_[d];
      dim.spread = stride_[d];
    }
    if (!device_.Convolve(c, nullptr, nullptr, nullptr)) return {};  // before the weight is turned
    const Tensor turned = w.view({groups_, out, in, w.size(2), w.size(3)}).transpose(1, 2).flip({3, 4}).contiguous();
    return Run(c, y, turned, x);
  }

  Sizes ResultSizes(const Tensor& x, const Tensor& w) const {
    return transposed ? at::native::conv_input_size(x.sizes(), w.sizes(), padding_, output_padding_, stride_, dilation_,
                                                    groups_)
                      : at::native::conv_output_size(x.sizes(), w.sizes(), padding_, stride_, dilation_);
  }

  // Whether the window covers the image: nothing slides, and the library's product of matrices is the better way.
  bool Covers(at::IntArrayRef image, at::IntArrayRef window) const {
    return groups_ == 1 && padding_ == Sizes{0, 0} && image.slice(2) == window.slice(2);
  }

  const bool transposed;

 private:
  // Of rows, of which a signal has one, and of columns.
  static Sizes Pair(const c10::IValue& argument, int64_t rank, int64_t of_one_row) {
    Sizes list = argument.toIntVector();
    if (list.size() == 1) list.push_back(list[0]);
    if (rank == 3) list[0] = of_one_row;
    return list;
  }
  static Convolution::Dim& Dim(Convolution& c, size_t d) { return d == 0 ? c.rows : c.cols; }

  // From an image of `in` channels; to: the sizes of the other one, of `out` channels.
  Convolution Of(Convolution::Kind kind, const Tensor& image, int64_t in, at::IntArrayRef to, int64_t out,
                 at::IntArrayRef window) const {
    Convolution c;
    c.kind = kind;
    c.dtype = image.scalar_type() == c10::kFloat ? DType::kFloat32 : DType::kBFloat16;
    c.batch = image.size(0);
    c.in = in;
    c.out = out;
    c.groups = groups_;
    for (size_t d = 0; d < 2; ++d) {
      Dim(c, d) = {.in = image.sizes()[d + 2], .out = to[d + 2], .kernel = window[d + 2], .dilation = dilation_[d]};
    }
    return c;
  }

  // The window `w` moved over x; y: the sizes of what it makes.
  Convolution Moved(Convolution::Kind kind, const Tensor& x, at::IntArrayRef y, at::IntArrayRef w) const {
    Convolution c = Of(kind, x, w[1] * groups_, y, w[0], w);
    for (size_t d = 0; d < 2; ++d) {
      Dim(c, d).stride = stride_[d];
      Dim(c, d).low = padding_[d];
    }
    return c;
  }

  Tensor Run(const Convolution& c, const Tensor& a, const Tensor& b, at::IntArrayRef sizes) const {
    Tensor result = at::empty(sizes, a.options().dtype(c10::kFloat));
    const bool done = device_.Convolve(c, a.const_data_ptr(), b.const_data_ptr(), result.mutable_data_ptr<float>());
    return done ? result : Tensor();
  }

  Device& device_;
  const Sizes stride_, padding_, dilation_, output_padding_;
  const int64_t groups_;
};

// (x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
bool Forward(Device& device, torch::jit::Stack& stack) {
  const auto first = stack.end() - 9;
  const Tensor &x = first[0].toTensor(), &w = first[1].toTensor();
  if (!IsPlain(x) || !IsPlain(w) || x.dim() != w.dim() || x.scalar_type() != w.scalar_type()) return false;
  const Products products(device, &first[3], x.dim());
  const Tensor image = Image(x), window = Image(w);
  const Sizes sizes = products.ResultSizes(image, window);
  if (products.Covers(products.transposed ? at::IntArrayRef(sizes) : image.sizes(), window.sizes())) return false;
  Tensor y =
      products.transposed ? products.InputGradient(image, window, sizes) : products.Forward(image, window, sizes);
  if (!y.defined()) return false;
  if (first[2].isTensor()) y.add_(first[2].toTensor().view({-1, 1, 1}));
  y = Like(x, y);
  stack.erase(first, stack.end());
  stack.emplace_back(std::move(y));
  return true;
}

// (dy, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)
bool Backward(Device& device, torch::jit::Stack& stack) {
  const auto first = stack.end() - 11;
  const Tensor &dy = first[0].toTensor(), &x = first[1].toTensor(), &w = first[2].toTensor();
  for (const Tensor& t : {dy, x, w}) {
    if (!IsPlain(t) || t.dim() != x.dim() || t.scalar_type() != x.scalar_type()) return false;
  }
  const Products products(device, &first[4], x.dim());
  const c10::List<bool> mask = first[10].toBoolList();
  const Tensor gradient = Image(dy), image = Image(x), window = Image(w);
  if (products.Covers((products.transposed ? gradient : image).sizes(), window.sizes())) return false;
  std::array<Tensor, 3> results;
  if (mask[0]) {
    results[0] = products.transposed ? products.Forward(gradient, window, image.sizes())
                                     : products.InputGradient(gradient, window, image.sizes());
    if (!results[0].defined()) return false;
    results[0] = Like(x, results[0]);
  }
  if (mask[1]) {
    results[1] = products.transposed ? products.WeightGradient(gradient, image, window.sizes())
                                     : products.WeightGradient(image, gradient, window.sizes());
    if (!results[1].defined()) return false;
    results[1] = Like(w, results[1]);
  }
  if (mask[2]) results[2] = gradient.sum({0, 2, 3});
  stack.erase(first, stack.end());
  for (Tensor& result : results) stack.emplace_back(std::move(result));
  return true;
}

}  // namespace

bool ConvolveOnDevice(Device& device, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (!op.schema().overload_name().empty()) return false;
  if (op.schema().name() == "aten::convolution") return Forward(device, stack);
  return op.schema().name() == "aten::convolution_backward" && Backward(device, stack);
}

}  // namespace tpu
