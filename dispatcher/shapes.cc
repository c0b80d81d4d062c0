// What operators return that are neither structured nor made of structured ones, for structured.h: those that programs
// call first and most. By the Meta key they run hundreds of Python functions, the first of which imports for a second.
// What isn't plain (mistakes, rare types) the Meta key is asked of. Sizes that only the CPU's kernel looks at are left
// to host_check.h.
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Generator.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/PixelShuffle.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/relu_native.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/rsub_native.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/unfold_native.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <vector>

#include "dispatcher/structured.h"

namespace tpu {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Generator = std::optional<at::Generator>;

// Of the sizes to which the operands broadcast, with strides as TensorIterator gives them.
at::Tensor Elementwise(std::initializer_list<const at::Tensor*> operands, c10::ScalarType type) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).check_all_same_device(false);
  config.declare_static_dtype_and_device(type, (*operands.begin())->device());
  config.add_owned_output(at::Tensor());
  for (const at::Tensor* operand : operands) config.add_owned_const_input(*operand);
  return config.build().output();
}

at::Tensor Where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  CheckPlain(condition.scalar_type() == c10::kBool);
  return Elementwise({&condition, &self, &other}, at::result_type(self, other));
}

at::Tensor Abs(const at::Tensor& self) {
  CheckPlain(self.scalar_type() != c10::kBool);
  return Elementwise({&self}, c10::toRealValueType(self.scalar_type()));
}
at::Tensor Angle(const at::Tensor& self) {
  CheckPlain(self.is_complex() || self.is_floating_point());
  return Abs(self);
}
at::Tensor& Conjugate(const at::Tensor& self, at::Tensor& out) {
  CheckPlain(self.is_complex() && self.scalar_type() == out.scalar_type() && self.sizes() == out.sizes());
  return out;
}

at::Tensor Test(const at::Tensor& self) { return Elementwise({&self}, c10::kBool); }
at::Tensor Compare(const at::Tensor& self, const at::Tensor& other) { return Elementwise({&self, &other}, c10::kBool); }

at::Tensor FloorDivide(const at::Tensor& self, const at::Tensor& other) {
  const c10::ScalarType type = at::result_type(self, other);
  CheckPlain(!at::isComplexType(type) && type != c10::kBool);
  return Elementwise({&self, &other}, type);
}

at::Tensor Shift(const at::Tensor& self, const at::Tensor& other) {
  const c10::ScalarType type = at::result_type(self, other);
  CheckPlain(c10::isIntegralType(type, /*includeBool=*/false));
  return Elementwise({&self, &other}, type);
}
at::Tensor ShiftByNumber(const at::Tensor& self, const at::Scalar& other) {
  const c10::ScalarType type = at::result_type(self, other);
  CheckPlain(c10::isIntegralType(type, /*includeBool=*/false));
  return Elementwise({&self}, type);
}
at::Tensor& ShiftInPlace(at::Tensor& self, const at::Scalar& other) {
  CheckPlain(at::result_type(self, other) == self.scalar_type() &&
             c10::isIntegralType(self.scalar_type(), /*includeBool=*/false));
  return self;
}

at::Tensor& MaskedFill(at::Tensor& self, const at::Tensor& mask) {
  CheckPlain(mask.scalar_type() == c10::kBool && at::is_expandable_to(mask.sizes(), self.sizes()));
  return self;
}
at::Tensor& MaskedFillScalar(at::Tensor& self, const at::Tensor& mask, const at::Scalar& value) {
  CheckPlain(!value.isComplex() || self.is_complex());
  return MaskedFill(self, mask);
}
at::Tensor& MaskedFillTensor(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  CheckPlain(value.dim() == 0 && (!value.is_complex() || self.is_complex()));
  return MaskedFill(self, mask);
}
at::Tensor& Fill(at::Tensor& self, const at::Scalar&) { return self; }
at::Tensor& Zero(at::Tensor& self) { return self; }

at::Tensor Dot(const at::Tensor& self, const at::Tensor& other) {
  CheckPlain(self.dim() == 1 && self.sizes() == other.sizes() && self.scalar_type() == other.scalar_type());
  return at::empty({}, self.options());
}

// PyTorch's own knows bf16 alone.
at::Tensor GroupedProduct(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& offsets,
                          const std::optional<at::Tensor>&, std::optional<c10::ScalarType> type) {
  const bool batched = a.dim() == 3 && b.dim() == 3, grouped = offsets && offsets->dim() == 1;
  CheckPlain((batched || grouped) && (a.dim() == 2 || a.dim() == 3) && (b.dim() == 2 || b.dim() == 3));
  std::vector<int64_t> sizes{a.size(-2), b.size(-1)};
  if (batched) sizes.insert(sizes.begin(), a.size(0));
  if (a.dim() == 2 && b.dim() == 2) sizes.insert(sizes.begin(), offsets->size(0));
  return at::empty(sizes, a.options().dtype(type.value_or(a.scalar_type())));
}

at::Tensor Deviation(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>&,
                     bool keepdim) {
  CheckPlain(self.is_floating_point());
  return at::sum(self, dim, keepdim);
}
at::Tensor LogSumExp(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
  CheckPlain(self.is_floating_point());
  return at::sum(self, dim, keepdim);
}
Two DeviationAndMean(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>&,
                     bool keepdim) {
  CheckPlain(self.is_floating_point());
  return {at::sum(self, dim, keepdim), at::sum(self, dim, keepdim)};
}

at::Tensor Flip(const at::Tensor& self, at::IntArrayRef dims) {
  at::dim_list_to_bitset(dims, self.dim());
  return at::empty_like(self, at::MemoryFormat::Preserve);
}

at::Tensor LogCumulativeSum(const at::Tensor& self, int64_t) {  // has no inference of PyTorch's at all
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

at::Tensor IndexSelect(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  CheckPlain(self.dim() > 0 && index.dim() == 1 &&
             (index.scalar_type() == c10::kLong || index.scalar_type() == c10::kInt) && dim >= 0 && dim < self.dim() &&
             self.numel() > 0);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[static_cast<size_t>(dim)] = index.numel();
  return at::empty(sizes, self.options());
}

Two LogSigmoid(const at::Tensor& self) {
  CheckPlain(self.is_floating_point());
  return {at::empty_like(self, at::MemoryFormat::Contiguous), at::empty_like(self, at::MemoryFormat::Contiguous)};
}

// PyTorch's kernel for other devices than the CPU makes them row-major.
at::Tensor Shuffled(const at::Tensor& self, int64_t channels, int64_t height, int64_t width) {
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().end() - 3);
  sizes.insert(sizes.end(), {channels, height, width});
  return at::empty(sizes, self.options().memory_format(self.suggest_memory_format()));
}
at::Tensor PixelShuffle(const at::Tensor& self, int64_t factor) {
  at::native::check_pixel_shuffle_shapes(self, factor);
  return Shuffled(self, self.size(-3) / factor / factor, self.size(-2) * factor, self.size(-1) * factor);
}
at::Tensor PixelUnshuffle(const at::Tensor& self, int64_t factor) {
  at::native::check_pixel_unshuffle_shapes(self, factor);
  if (self.numel() == 0) return at::empty(self.sizes(), self.options());  // as the CPU's kernel does
  return Shuffled(self, self.size(-3) * factor * factor, self.size(-2) / factor, self.size(-1) / factor);
}

Two Dropout(const at::Tensor& self, double p, std::optional<bool>) {
  CheckPlain(self.is_floating_point() && p >= 0 && p <= 1);
  return {Elementwise({&self}, self.scalar_type()), Elementwise({&self}, c10::kBool)};
}
at::Tensor DropoutBackward(const at::Tensor& grad, const at::Tensor& mask, double) {
  CheckPlain(grad.is_floating_point() && mask.scalar_type() == c10::kBool);
  return Elementwise({&grad, &mask}, grad.scalar_type());
}

at::Tensor Multinomial(const at::Tensor& self, int64_t samples, bool replacement, Generator) {
  CheckPlain(self.is_floating_point() && (self.dim() == 1 || self.dim() == 2) && samples > 0 && self.numel() > 0 &&
             (replacement || samples <= self.size(-1)));
  TORCH_CHECK(self.size(-1) <= 1 << 24, "number of categories cannot exceed 2^24");  // PyTorch's own limit
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.back() = samples;
  return at::empty(sizes, self.options().dtype(c10::kLong));
}

// --- convolutions and attention ---

at::Tensor Convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  const auto dims = static_cast<size_t>(input.dim());
  const auto each = [dims](at::IntArrayRef list, int64_t least) {
    return list.size() + 2 == dims && std::all_of(list.begin(), list.end(), [=](int64_t n) { return n >= least; });
  };
  CheckPlain(dims > 2 && weight.dim() == input.dim() && input.numel() > 0 && weight.numel() > 0 && groups > 0 &&
             weight.scalar_type() == input.scalar_type() && weight.size(0) % groups == 0 && each(stride, 1) &&
             each(padding, 0) && each(dilation, 1) && each(output_padding, 0));
  const int64_t channels = transposed ? weight.size(0) : weight.size(1) * groups;
  CheckPlain(input.size(1) == channels);
  const std::vector<int64_t> sizes =
      transposed ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding, output_padding, stride, dilation,
                                               groups)
                 : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  CheckPlain(std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n > 0; }));
  for (size_t d = 2; d < dims && !transposed; ++d) {  // rounded towards zero, a size may seem to be one
    const auto i = static_cast<int64_t>(d);
    CheckPlain(input.size(i) + 2 * padding[d - 2] > dilation[d - 2] * (weight.size(i) - 1));
  }
  if (bias && bias->defined()) {
    CheckPlain(bias->dim() == 1 && bias->size(0) == sizes[1] && bias->scalar_type() == input.scalar_type());
  }
  return at::empty(sizes, input.options().memory_format(input.suggest_memory_format()));
}

Three ConvolutionBackward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                          at::OptionalIntArrayRef bias_sizes, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, bool,
                          at::IntArrayRef, int64_t, std::array<bool, 3> wanted) {
  CheckPlain(grad.numel() > 0 && input.numel() > 0 && weight.numel() > 0 && grad.dim() == input.dim() &&
             grad.scalar_type() == input.scalar_type() && weight.scalar_type() == input.scalar_type() &&
             (!wanted[2] || bias_sizes.has_value()));
  const auto like = [&](bool is_wanted, at::IntArrayRef sizes) {
    return is_wanted ? at::empty(sizes, grad.options()) : at::Tensor();
  };
  return {like(wanted[0], input.sizes()), like(wanted[1], weight.sizes()),
          like(wanted[2], bias_sizes.value_or(at::IntArrayRef()))};
}

// The CPU's, which other devices take.
Two Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double, bool,
              const std::optional<at::Tensor>&, std::optional<double>) {
  CheckPlain(query.dim() == 4 && key.dim() == 4 && value.sizes() == key.sizes() && query.size(3) == key.size(3) &&
             query.numel() > 0 && key.numel() > 0 && query.is_floating_point() &&
             query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type());
  const auto type = at::toOpMathType(query.scalar_type());
  const at::Tensor sums = at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(type));
  return {at::empty_like(query), sums.transpose(1, 2)};
}

Three AttentionBackward(const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const at::Tensor&, const at::Tensor&, double, bool, const std::optional<at::Tensor>&,
                        std::optional<double>) {
  CheckPlain(grad.sizes() == query.sizes() && query.dim() == 4 && key.dim() == 4 && value.dim() == 4);
  const auto like = [](const at::Tensor& t) {  // a position's heads side by side
    return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2);
  };
  return {like(query), like(key), like(value)};
}

// --- numbers in a row ---

at::Tensor& Arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  CheckPlain(!start.isComplex() && !end.isComplex() && !step.isComplex());
  out.resize_({out.scalar_type() == c10::kLong ? at::native::compute_arange_size<int64_t>(start, end, step)
                                               : at::native::compute_arange_size<double>(start, end, step)});
  return out;
}
at::Tensor& ArangeFromZero(const at::Scalar& end, at::Tensor& out) { return Arange(0, end, 1, out); }
at::Tensor& Linspace(const at::Scalar& start, const at::Scalar& end, int64_t steps, at::Tensor& out) {
  CheckPlain(steps >= 0 && !start.isComplex() && !end.isComplex() && at::isFloatingType(out.scalar_type()));
  out.resize_({steps});
  return out;
}
at::Tensor& Logspace(const at::Scalar& start, const at::Scalar& end, int64_t steps, double, at::Tensor& out) {
  return Linspace(start, end, steps, out);
}
at::Tensor& Eye(int64_t rows, int64_t columns, at::Tensor& out) {
  CheckPlain(rows >= 0 && columns >= 0);
  out.resize_({rows, columns});
  return out;
}
at::Tensor& SquareEye(int64_t rows, at::Tensor& out) { return Eye(rows, rows, out); }
at::Tensor& Full(at::IntArrayRef sizes, const at::Scalar&, at::Tensor& out) {
  out.resize_(sizes);
  return out;
}
at::Tensor Zeros(at::IntArrayRef sizes, std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
                 std::optional<c10::Device>, std::optional<bool>) {
  return at::empty(sizes, at::TensorOptions(c10::kPrivateUse1).dtype(type));
}
at::Tensor Coordinates(int64_t positions, std::optional<c10::ScalarType> type) {
  const c10::ScalarType integer = type.value_or(c10::kLong);
  CheckPlain(integer == c10::kLong || integer == c10::kInt);
  return at::empty({2, positions}, at::TensorOptions(c10::kPrivateUse1).dtype(integer));
}
at::Tensor LowerTriangle(int64_t rows, int64_t columns, int64_t offset, std::optional<c10::ScalarType> type,
                         std::optional<c10::Layout> layout, std::optional<c10::Device>, std::optional<bool>) {
  at::native::check_args(rows, columns, layout);
  return Coordinates(at::native::get_tril_size(rows, columns, offset), type);
}
at::Tensor UpperTriangle(int64_t rows, int64_t columns, int64_t offset, std::optional<c10::ScalarType> type,
                         std::optional<c10::Layout> layout, std::optional<c10::Device>, std::optional<bool>) {
  at::native::check_args(rows, columns, layout);
  return Coordinates(rows * columns - at::native::get_tril_size(rows, columns, offset - 1), type);
}
at::Tensor& Permutation(int64_t n, Generator, at::Tensor& out) {
  CheckPlain(n >= 0 && out.scalar_type() == c10::kLong);
  out.resize_({n});
  return out;
}

// --- activations and others, element by element ---

at::Tensor Roll(const at::Tensor& self, at::IntArrayRef shifts, at::IntArrayRef dims) {
  const auto within = [&](int64_t d) { return d >= -self.dim() && d < self.dim(); };
  CheckPlain(!shifts.empty() && self.numel() > 0 &&
             (dims.empty() ? shifts.size() == 1 : dims.size() == shifts.size()) &&
             std::all_of(dims.begin(), dims.end(), within));
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

at::Tensor Activation(const at::Tensor& self) {
  CheckPlain(self.is_floating_point());
  return Elementwise({&self}, self.scalar_type());
}

at::Tensor ActivationBackward(const at::Tensor& grad, const at::Tensor& self) {
  CheckPlain(self.is_floating_point() && grad.scalar_type() == self.scalar_type());
  return Elementwise({&grad, &self}, self.scalar_type());
}

at::Tensor HardTanhBackward(const at::Tensor& grad, const at::Tensor& self, const at::Scalar&, const at::Scalar&) {
  return ActivationBackward(grad, self);
}
at::Tensor LogSigmoidBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor&) {
  return ActivationBackward(grad, self);
}
at::Tensor HalvesBackward(const at::Tensor& grad, const at::Tensor& self, int64_t) {
  CheckPlain(self.is_floating_point() && grad.scalar_type() == self.scalar_type() && self.dim() > 0);
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}
Two ParametricReluBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& weight) {
  CheckPlain(at::is_expandable_to(weight.sizes(), self.sizes()) && weight.scalar_type() == self.scalar_type());
  return {ActivationBackward(grad, self), ActivationBackward(grad, self)};
}

at::Tensor RandomLeakyRelu(const at::Tensor& self, at::Tensor& noise, const at::Scalar&, const at::Scalar&, bool,
                           Generator) {
  CheckPlain(noise.sizes() == self.sizes() && noise.scalar_type() == self.scalar_type());
  return Activation(self);
}
at::Tensor& RandomLeakyReluInPlace(at::Tensor& self, at::Tensor& noise, const at::Scalar&, const at::Scalar&, bool,
                                   Generator) {
  CheckPlain(self.is_floating_point() && noise.sizes() == self.sizes() && noise.scalar_type() == self.scalar_type());
  return self;
}

at::Tensor HardTanh(const at::Tensor& self, const at::Scalar&, const at::Scalar&) { return Activation(self); }
at::Tensor& ActivationInPlace(at::Tensor& self) {
  CheckPlain(self.is_floating_point());
  return self;
}
at::Tensor& HardTanhInPlace(at::Tensor& self, const at::Scalar&, const at::Scalar&) { return ActivationInPlace(self); }
at::Tensor ParametricRelu(const at::Tensor& self, const at::Tensor& weight) {
  CheckPlain(self.is_floating_point() && self.scalar_type() == weight.scalar_type() &&
             at::is_expandable_to(weight.sizes(), self.sizes()));
  return Elementwise({&self, &weight}, self.scalar_type());
}

at::Tensor Logit(const at::Tensor& self, std::optional<double>) { return Activation(self); }

at::Tensor& Complex(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  CheckPlain(self.scalar_type() == other.scalar_type() &&
             (self.scalar_type() == c10::kFloat || self.scalar_type() == c10::kDouble) &&
             out.scalar_type() == c10::toComplexType(self.scalar_type()));
  out.resize_(at::infer_size(self.sizes(), other.sizes()));
  return out;
}

// --- elements by their indices ---

at::Tensor& IndexFill(at::Tensor& self, int64_t, const at::Tensor& index, const at::Scalar& value) {
  CheckPlain(self.dim() > 0 && index.scalar_type() == c10::kLong && (!value.isComplex() || self.is_complex()));
  return self;
}
at::Tensor& IndexFillTensor(at::Tensor& self, int64_t, const at::Tensor& index, const at::Tensor& value) {
  CheckPlain(self.dim() > 0 && index.scalar_type() == c10::kLong && value.dim() == 0);
  CheckPlain(!value.is_complex() || self.is_complex());
  return self;
}
at::Tensor& IndexPut(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices, const at::Tensor& values,
                     bool) {
  CheckPlain(values.scalar_type() == self.scalar_type());
  for (const std::optional<at::Tensor>& index : indices) {
    CheckPlain(!index || !index->defined() || index->scalar_type() == c10::kLong);
  }
  return self;
}
// -> the bags, and where they lie, how large they are, and which elements are the largest.
Four EmbeddingBag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool, int64_t mode,
                  bool, const std::optional<at::Tensor>& weights, bool include_last, int64_t) {
  constexpr int64_t kSum = 0, kMax = 2;
  CheckPlain(weight.is_floating_point() && weight.dim() == 2 && indices.dim() == 1 && offsets.dim() == 1 &&
             offsets.numel() > 0 && (indices.scalar_type() == c10::kLong || indices.scalar_type() == c10::kInt) &&
             offsets.scalar_type() == indices.scalar_type());
  CheckPlain(!weights || !weights->defined() || (mode == kSum && weights->sizes() == indices.sizes()));
  const int64_t bags = offsets.size(0) - (include_last ? 1 : 0), width = weight.size(1);
  const at::Tensor largest =
      mode == kMax ? at::empty({bags, width}, indices.options()) : at::empty({0}, indices.options());
  return {at::empty({bags, width}, weight.options()), at::empty(indices.sizes(), indices.options()),
          at::empty(offsets.sizes(), indices.options()), largest};
}
at::Tensor EmbeddingBagBackward(const at::Tensor& grad, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                const at::Tensor&, int64_t rows, bool, int64_t, const std::optional<at::Tensor>&,
                                int64_t) {
  CheckPlain(grad.dim() == 2 && rows > 0);
  return at::empty({rows, grad.size(1)}, grad.options());
}
at::Tensor UnfoldBackward(const at::Tensor& grad, at::IntArrayRef sizes, int64_t, int64_t, int64_t) {
  return at::empty(sizes, grad.options());
}
at::Tensor& MaskedScatter(at::Tensor& self, const at::Tensor& mask, const at::Tensor& source) {
  CheckPlain(self.scalar_type() == source.scalar_type());
  return MaskedFill(self, mask);
}
at::Tensor MaskedScatterBackward(const at::Tensor& grad, const at::Tensor& mask, at::IntArrayRef sizes) {
  CheckPlain(mask.scalar_type() == c10::kBool);
  return at::empty(sizes, grad.options());
}
at::Tensor Take(const at::Tensor& self, const at::Tensor& index) {
  CheckPlain(index.scalar_type() == c10::kLong && self.numel() > 0);
  return at::empty(index.sizes(), self.options());
}
// --- random numbers: what they refuse, the CPU's kernel is asked (host_check.h) ---

at::Tensor& Draw(at::Tensor& self, double, double, Generator) { return self; }
at::Tensor& DrawByOne(at::Tensor& self, double, Generator) { return self; }
at::Tensor Drawn(const at::Tensor& self, Generator) {
  CheckPlain(self.is_floating_point());
  return at::empty(self.sizes(), self.options());
}
at::Tensor DrawnOfTwo(const at::Tensor& self, const at::Tensor& other, Generator) {
  CheckPlain(self.sizes() == other.sizes() && self.scalar_type() == other.scalar_type());
  return Drawn(self, {});
}
at::Tensor DrawnAround(const at::Tensor& mean, double, Generator) { return Drawn(mean, {}); }
at::Tensor DrawnWithin(double, const at::Tensor& deviation, Generator) { return Drawn(deviation, {}); }
at::Tensor& RandomFrom(at::Tensor& self, int64_t, std::optional<int64_t>, Generator) { return self; }
at::Tensor& RandomTo(at::Tensor& self, int64_t, Generator) { return self; }

TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("__ilshift__.Scalar", &ShiftInPlace);
  m.impl("__irshift__.Scalar", &ShiftInPlace);
  m.impl("__lshift__.Scalar", &ShiftByNumber);
  m.impl("__lshift__.Tensor", &Shift);
  m.impl("__rshift__.Scalar", &ShiftByNumber);
  m.impl("__rshift__.Tensor", &Shift);
  m.impl("_embedding_bag", &EmbeddingBag);
  m.impl("_embedding_bag_dense_backward", &EmbeddingBagBackward);
  m.impl("_embedding_bag_forward_only", &EmbeddingBag);
  m.impl("_grouped_mm", &GroupedProduct);
  m.impl("_logcumsumexp", &LogCumulativeSum);
  m.impl("_prelu_kernel", &ParametricRelu);
  m.impl("_prelu_kernel_backward", &ParametricReluBackward);
  m.impl("_scaled_dot_product_flash_attention_for_cpu", &Attention);
  m.impl("_scaled_dot_product_flash_attention_for_cpu_backward", &AttentionBackward);
  m.impl("_standard_gamma", &Drawn);
  m.impl("abs", &Abs);
  m.impl("angle", &Angle);
  m.impl("arange.out", &ArangeFromZero);
  m.impl("arange.start_out", &Arange);
  m.impl("bernoulli_.float", &DrawByOne);
  m.impl("binomial", &DrawnOfTwo);
  m.impl("cauchy_", &Draw);
  m.impl("complex.out", &Complex);
  m.impl("conj_physical.out", &Conjugate);
  m.impl("convolution", &Convolution);
  m.impl("convolution_backward", &ConvolutionBackward);
  m.impl("dot", &Dot);
  m.impl("exponential_", &DrawByOne);
  m.impl("eye.m_out", &Eye);
  m.impl("eye.out", &SquareEye);
  m.impl("fill_.Scalar", &Fill);
  m.impl("flip", &Flip);
  m.impl("floor_divide", &FloorDivide);
  m.impl("full.out", &Full);
  m.impl("geometric_", &DrawByOne);
  m.impl("glu_backward", &HalvesBackward);
  m.impl("hardswish", &Activation);
  m.impl("hardswish_", &ActivationInPlace);
  m.impl("hardswish_backward", &ActivationBackward);
  m.impl("hardtanh", &HardTanh);
  m.impl("hardtanh_", &HardTanhInPlace);
  m.impl("hardtanh_backward", &HardTanhBackward);
  m.impl("index_fill_.int_Scalar", &IndexFill);
  m.impl("index_fill_.int_Tensor", &IndexFillTensor);
  m.impl("index_put_", &IndexPut);
  m.impl("index_select", &IndexSelect);
  m.impl("isnan", &Test);
  m.impl("linspace.out", &Linspace);
  m.impl("log_normal_", &Draw);
  m.impl("log_sigmoid_backward", &LogSigmoidBackward);
  m.impl("log_sigmoid_forward", &LogSigmoid);
  m.impl("logical_and", &Compare);
  m.impl("logical_not", &Test);
  m.impl("logical_or", &Compare);
  m.impl("logical_xor", &Compare);
  m.impl("logit", &Logit);
  m.impl("logspace.out", &Logspace);
  m.impl("logsumexp", &LogSumExp);
  m.impl("masked_fill_.Scalar", &MaskedFillScalar);
  m.impl("masked_fill_.Tensor", &MaskedFillTensor);
  m.impl("masked_scatter_", &MaskedScatter);
  m.impl("masked_scatter_backward", &MaskedScatterBackward);
  m.impl("mish_backward", &ActivationBackward);
  m.impl("multinomial", &Multinomial);
  m.impl("native_dropout", &Dropout);
  m.impl("native_dropout_backward", &DropoutBackward);
  m.impl("normal.Tensor_Tensor", &DrawnOfTwo);
  m.impl("normal.Tensor_float", &DrawnAround);
  m.impl("normal.float_Tensor", &DrawnWithin);
  m.impl("normal_", &Draw);
  m.impl("pixel_shuffle", &PixelShuffle);
  m.impl("pixel_unshuffle", &PixelUnshuffle);
  m.impl("poisson", &Drawn);
  m.impl("polar.out", &Complex);
  m.impl("random_.from", &RandomFrom);
  m.impl("random_.to", &RandomTo);
  m.impl("randperm.generator_out", &Permutation);
  m.impl("relu", &at::native::relu);
  m.impl("relu_", &at::native::relu_);
  m.impl("roll", &Roll);
  m.impl("rrelu_with_noise", &RandomLeakyRelu);
  m.impl("rrelu_with_noise_", &RandomLeakyReluInPlace);
  m.impl("rsub.Tensor", [](const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
    return at::native::rsub(self, other, alpha);
  });
  m.impl("std.correction", &Deviation);
  m.impl("std_mean.correction", &DeviationAndMean);
  m.impl("take", &Take);
  m.impl("tril_indices", &LowerTriangle);
  m.impl("triu_indices", &UpperTriangle);
  m.impl("unfold", &at::native::unfold);
  m.impl("unfold_backward", &UnfoldBackward);
  m.impl("uniform_", &Draw);
  m.impl("var.correction", &Deviation);
  m.impl("var_mean.correction", &DeviationAndMean);
  m.impl("where.self", &Where);
  m.impl("zero_", &Zero);
  m.impl("zeros", &Zeros);
}

}  // namespace
}  // namespace tpu
