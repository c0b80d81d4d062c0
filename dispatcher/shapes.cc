// What operators return that are neither structured nor made of structured ones, for structured.h: those that programs
// call first and most. By the Meta key they run hundreds of Python functions, the first of which imports for a second.
// What isn't plain (mistakes, rare types) the Meta key is asked of.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Generator.h>
#include <ATen/native/PixelShuffle.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/relu_native.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/rsub_native.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/unfold_native.h>
#include <torch/library.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <vector>

#include "dispatcher/structured.h"

namespace tpu {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;
using Generator = std::optional<at::Generator>;

bool IsFloat(const at::Tensor& t) { return at::isFloatingType(t.scalar_type()); }

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
  CheckPlain(!self.is_complex() && self.scalar_type() != c10::kBool);
  return Elementwise({&self}, self.scalar_type());
}

at::Tensor Test(const at::Tensor& self) { return Elementwise({&self}, c10::kBool); }
at::Tensor Compare(const at::Tensor& self, const at::Tensor& other) { return Elementwise({&self, &other}, c10::kBool); }

at::Tensor FloorDivide(const at::Tensor& self, const at::Tensor& other) {
  const c10::ScalarType type = at::result_type(self, other);
  CheckPlain(!at::isComplexType(type) && type != c10::kBool);
  return Elementwise({&self, &other}, type);
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
  CheckPlain(IsFloat(self));
  return at::sum(self, dim, keepdim);
}
at::Tensor LogSumExp(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
  CheckPlain(IsFloat(self));
  return at::sum(self, dim, keepdim);
}
Two DeviationAndMean(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>&,
                     bool keepdim) {
  CheckPlain(IsFloat(self));
  return {at::sum(self, dim, keepdim), at::sum(self, dim, keepdim)};
}

at::Tensor Flip(const at::Tensor& self, at::IntArrayRef dims) {
  at::dim_list_to_bitset(dims, self.dim());
  return at::empty_like(self, at::MemoryFormat::Preserve);
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
  CheckPlain(IsFloat(self));
  return {at::empty_like(self, at::MemoryFormat::Contiguous), at::empty_like(self, at::MemoryFormat::Contiguous)};
}

at::Tensor MseBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target, int64_t) {
  CheckPlain(IsFloat(self) && self.sizes() == target.sizes() && self.scalar_type() == target.scalar_type() &&
             self.scalar_type() == grad.scalar_type() && at::is_expandable_to(grad.sizes(), self.sizes()));
  return at::empty_like(self, LEGACY_CONTIGUOUS_MEMORY_FORMAT);
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
  CheckPlain(IsFloat(self) && p >= 0 && p <= 1);
  return {Elementwise({&self}, self.scalar_type()), Elementwise({&self}, c10::kBool)};
}
at::Tensor DropoutBackward(const at::Tensor& grad, const at::Tensor& mask, double) {
  CheckPlain(IsFloat(grad) && mask.scalar_type() == c10::kBool);
  return Elementwise({&grad, &mask}, grad.scalar_type());
}

at::Tensor Multinomial(const at::Tensor& self, int64_t samples, bool replacement, Generator) {
  CheckPlain(IsFloat(self) && (self.dim() == 1 || self.dim() == 2) && samples > 0 && self.numel() > 0 &&
             (replacement || samples <= self.size(-1)));
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.back() = samples;
  return at::empty(sizes, self.options().dtype(c10::kLong));
}

// What they refuse, the CPU's kernel is asked (host_check.h).
at::Tensor& Draw(at::Tensor& self, double, double, Generator) { return self; }
at::Tensor& Bernoulli(at::Tensor& self, double, Generator) { return self; }
at::Tensor& RandomFrom(at::Tensor& self, int64_t, std::optional<int64_t>, Generator) { return self; }
at::Tensor& RandomTo(at::Tensor& self, int64_t, Generator) { return self; }

TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("_grouped_mm", &GroupedProduct);
  m.impl("abs", &Abs);
  m.impl("bernoulli_.float", &Bernoulli);
  m.impl("dot", &Dot);
  m.impl("fill_.Scalar", &Fill);
  m.impl("flip", &Flip);
  m.impl("floor_divide", &FloorDivide);
  m.impl("index_select", &IndexSelect);
  m.impl("isnan", &Test);
  m.impl("log_sigmoid_forward", &LogSigmoid);
  m.impl("logical_and", &Compare);
  m.impl("logical_not", &Test);
  m.impl("logical_or", &Compare);
  m.impl("logical_xor", &Compare);
  m.impl("logsumexp", &LogSumExp);
  m.impl("masked_fill_.Scalar", &MaskedFillScalar);
  m.impl("masked_fill_.Tensor", &MaskedFillTensor);
  m.impl("mse_loss_backward", &MseBackward);
  m.impl("multinomial", &Multinomial);
  m.impl("native_dropout", &Dropout);
  m.impl("native_dropout_backward", &DropoutBackward);
  m.impl("normal_", &Draw);
  m.impl("pixel_shuffle", &PixelShuffle);
  m.impl("pixel_unshuffle", &PixelUnshuffle);
  m.impl("random_.from", &RandomFrom);
  m.impl("random_.to", &RandomTo);
  m.impl("relu", &at::native::relu);
  m.impl("relu_", &at::native::relu_);
  m.impl("rsub.Tensor", [](const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
    return at::native::rsub(self, other, alpha);
  });
  m.impl("std.correction", &Deviation);
  m.impl("std_mean.correction", &DeviationAndMean);
  m.impl("unfold", &at::native::unfold);
  m.impl("uniform_", &Draw);
  m.impl("var.correction", &Deviation);
  m.impl("var_mean.correction", &DeviationAndMean);
  m.impl("where.self", &Where);
  m.impl("zero_", &Zero);
}

}  // namespace
}  // namespace tpu
