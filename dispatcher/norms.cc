// What norms return, for structured.h: they are not structured, and by the Meta key each runs hundreds of Python
// functions (1 to 3 ms). Of cases that are not plain (mixed types, no elements, strides of their own) the Meta key is
// asked.
#include <ATen/OpMathType.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "dispatcher/structured.h"

namespace tpu {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Optional = std::optional<at::Tensor>;

void CheckPlainInput(const at::Tensor& input) {
  CheckPlain(at::isFloatingType(input.scalar_type()) && input.numel() > 0);
}

// A weight or another tensor with a number for each channel.
bool IsPlainParameter(const Optional& t, int64_t channels, c10::ScalarType type) {
  return !Given(t) || (t->dim() == 1 && t->numel() == channels && t->scalar_type() == type);
}

at::Tensor Moments(const at::Tensor& input, at::IntArrayRef sizes) {
  return at::empty(sizes, input.options().dtype(at::toOpMathType(input.scalar_type())));
}

Three LayerNorm(const at::Tensor& input, at::IntArrayRef normalized, const Optional& weight, const Optional& bias,
                double) {
  CheckPlainInput(input);
  at::native::_check_layer_norm_inputs(input, normalized, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()));
  std::vector<int64_t> rows(input.sizes().begin(), input.sizes().end());
  std::fill(rows.end() - static_cast<ptrdiff_t>(normalized.size()), rows.end(), 1);
  return {at::empty(input.sizes(), input.options()), Moments(input, rows), Moments(input, rows)};
}

Three LayerNormBackward(const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef normalized, const at::Tensor&,
                        const at::Tensor&, const Optional& weight, const Optional& bias, std::array<bool, 3> wanted) {
  CheckPlainInput(input);
  CheckPlain(grad.sizes() == input.sizes());
  const auto like = [&](bool is_wanted, at::IntArrayRef sizes, const Optional& t) {
    return is_wanted && Given(t) ? at::empty(sizes, t->options()) : at::Tensor();
  };
  return {like(wanted[0], input.sizes(), input), like(wanted[1], normalized, weight),
          like(wanted[2], normalized, bias)};
}

// As the CPU's kernels make results of norms of channels, whatever the strides of `input`.
at::Tensor Like(const at::Tensor& input) {
  return at::empty_like(input, input.options(), input.suggest_memory_format());
}

Three BatchNorm(const at::Tensor& input, const Optional& weight, const Optional& bias, const Optional& running_mean,
                const Optional& running_variance) {
  CheckPlainInput(input);
  CheckPlain(input.dim() >= 2);
  const int64_t channels = input.size(1);
  for (const Optional* t : {&weight, &bias, &running_mean, &running_variance}) {
    CheckPlain(IsPlainParameter(*t, channels, input.scalar_type()));
  }
  return {Like(input), Moments(input, {channels}), Moments(input, {channels})};
}

// `running_mean` and `running_variance` are written; their sizes stay.
Three BatchNormWithStatistics(const at::Tensor& input, const Optional& weight, const Optional& bias,
                              at::Tensor& running_mean, at::Tensor& running_variance, bool, double, double) {
  return BatchNorm(input, weight, bias, running_mean, running_variance);
}

Three BatchNormWithoutStatistics(const at::Tensor& input, const Optional& weight, const Optional& bias, bool training,
                                 double, double) {
  CheckPlain(training);
  return BatchNorm(input, weight, bias, {}, {});
}

// Gradients of a norm whose parameters have a number for each channel.
Three ChannelGradients(const at::Tensor& grad, const at::Tensor& input, const Optional& weight,
                       std::array<bool, 3> wanted) {
  CheckPlainInput(input);
  CheckPlain(input.dim() >= 2);
  CheckPlain(grad.sizes() == input.sizes() && grad.scalar_type() == input.scalar_type() &&
             (Given(weight) || !(wanted[1] || wanted[2])) &&
             IsPlainParameter(weight, input.size(1), input.scalar_type()));
  const auto parameter = [&](bool is_wanted) { return is_wanted ? at::empty_like(*weight) : at::Tensor(); };
  return {wanted[0] ? Like(input) : at::Tensor(), parameter(wanted[1]), parameter(wanted[2])};
}

Three BatchNormBackward(const at::Tensor& grad, const at::Tensor& input, const Optional& weight, const Optional&,
                        const Optional&, const Optional&, const Optional&, bool, double, std::array<bool, 3> wanted) {
  return ChannelGradients(grad, input, weight, wanted);
}

void CheckPlainGroups(const at::Tensor& input, int64_t batch, int64_t channels, int64_t positions, int64_t groups) {
  CheckPlain(input.dim() >= 2 && input.is_contiguous() && input.size(0) == batch && input.size(1) == channels &&
             input.numel() == batch * channels * positions && groups > 0 && channels % groups == 0);
}

Three GroupNorm(const at::Tensor& input, const Optional& weight, const Optional& bias, int64_t batch, int64_t channels,
                int64_t positions, int64_t groups, double) {
  CheckPlainInput(input);
  CheckPlainGroups(input, batch, channels, positions, groups);
  for (const Optional* t : {&weight, &bias}) CheckPlain(IsPlainParameter(*t, channels, input.scalar_type()));
  return {at::empty_like(input), Moments(input, {batch, groups}), Moments(input, {batch, groups})};
}

Three GroupNormBackward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor&,
                        const Optional& weight, int64_t batch, int64_t channels, int64_t positions, int64_t groups,
                        std::array<bool, 3> wanted) {
  CheckPlainGroups(input, batch, channels, positions, groups);
  CheckPlain(mean.dim() == 2 && mean.size(0) == batch && mean.size(1) == groups);
  return ChannelGradients(grad, input, weight, wanted);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("native_layer_norm", &LayerNorm);
  m.impl("native_layer_norm_backward", &LayerNormBackward);
  m.impl("_native_batch_norm_legit", &BatchNormWithStatistics);
  m.impl("_native_batch_norm_legit.no_stats", &BatchNormWithoutStatistics);
  m.impl("native_batch_norm_backward", &BatchNormBackward);
  m.impl("native_group_norm", &GroupNorm);
  m.impl("native_group_norm_backward", &GroupNormBackward);
}

}  // namespace
}  // namespace tpu
