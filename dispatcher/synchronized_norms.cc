// The steps of torch.nn.SyncBatchNorm, which PyTorch has for GPUs alone, in operators that are recorded: moments of
// this rank's part, those of all ranks, the normalization, and its gradients. Channels lie along dim 1; counts are of
// elements in a channel.
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/var_mean.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "dispatcher/structured.h"

namespace tpu {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

// The type that moments of `t` have.
Tensor Precise(const Tensor& t) { return t.to(at::toOpMathType(t.scalar_type())); }

std::vector<int64_t> AllButChannels(const Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < input.dim(); ++d) dims.push_back(d);
  return dims;
}

// A number for each channel, in the shape that broadcasts over `input`.
Tensor Over(const Tensor& input, const Tensor& channels) {
  TORCH_CHECK(input.dim() >= 2, "tpu: a norm of channels expects at least 2 dimensions, got ", input.dim());
  std::vector<int64_t> sizes(input.dim(), 1);
  sizes[1] = channels.numel();
  return channels.reshape(sizes);
}

// (input) -> mean, 1 / deviation
std::tuple<Tensor, Tensor> Moments(const Tensor& input, double eps) {
  const auto [variance, mean] = at::var_mean(Precise(input), AllButChannels(input), /*correction=*/at::Scalar(0));
  return {mean, at::rsqrt(variance + eps)};
}

void Follow(const Optional& running, const Tensor& now, double momentum) {
  if (Given(running)) running->copy_(Precise(*running) * (1 - momentum) + now * momentum);
}

// (N, C), (N, C), counts (N) of N ranks -> those of all together
std::tuple<Tensor, Tensor> GatherMoments(const Tensor&, const Tensor& means, const Tensor& inverse_deviations,
                                         const Optional& running_mean, const Optional& running_variance,
                                         double momentum, double eps, const Tensor& counts) {
  const Tensor m = Precise(means), weights = counts.to(m.scalar_type()).unsqueeze(1), total = weights.sum();
  const Tensor mean = (m * weights).sum(0) / total;
  const Tensor variances = Precise(inverse_deviations).pow(-2) - eps;
  const Tensor squares = ((variances + (m - mean).square()) * weights).sum(0);
  Follow(running_mean, mean, momentum);
  Follow(running_variance, squares / (total - 1), momentum);
  return {mean, at::rsqrt(squares / total + eps)};
}

std::tuple<Tensor, Tensor> GatherMomentsOfEqualParts(const Tensor& input, const Tensor& means,
                                                     const Tensor& inverse_deviations, const Optional& running_mean,
                                                     const Optional& running_variance, double momentum, double eps,
                                                     int64_t count) {
  const Tensor counts = means.new_full({means.size(0)}, count, at::kDouble);
  return GatherMoments(input, means, inverse_deviations, running_mean, running_variance, momentum, eps, counts);
}

Tensor Normalize(const Tensor& input, const Optional& weight, const Optional& bias, const Tensor& mean,
                 const Tensor& inverse_deviation, double) {
  Tensor y = (input - Over(input, mean)) * Over(input, inverse_deviation);
  if (Given(weight)) y = y * Over(input, *weight);
  if (Given(bias)) y = y + Over(input, *bias);
  return y.to(input.scalar_type());
}

// -> sum of gradients, of their products with the distance to the mean, gradients of weight and bias
std::tuple<Tensor, Tensor, Tensor, Tensor> SumGradients(const Tensor& grad, const Tensor& input, const Tensor& mean,
                                                        const Tensor& inverse_deviation, const Optional& weight,
                                                        bool for_input, bool for_weight, bool for_bias) {
  const std::vector<int64_t> dims = AllButChannels(input);
  const Tensor dy = Precise(grad), sum = dy.sum(dims), products = (dy * (input - Over(input, mean))).sum(dims);
  const auto like_weight = [&](bool wanted, const Tensor& t) {
    return wanted ? t.to(Given(weight) ? weight->scalar_type() : input.scalar_type()) : Tensor();
  };
  return {for_input ? sum : Tensor(), for_input ? products : Tensor(),
          like_weight(for_weight, products * inverse_deviation), like_weight(for_bias, sum)};
}

// The sums and counts are those of all ranks.
Tensor InputGradient(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& inverse_deviation,
                     const Optional& weight, const Tensor& sum, const Tensor& products, const Tensor& counts) {
  const Tensor total = counts.sum();
  const Tensor slope = products / total * inverse_deviation.square();
  const Tensor scale = Given(weight) ? inverse_deviation * *weight : inverse_deviation;
  const Tensor centered = grad - Over(input, sum / total) - (input - Over(input, mean)) * Over(input, slope);
  return (centered * Over(input, scale)).to(input.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("batch_norm_stats", &Moments);
  m.impl("batch_norm_gather_stats", &GatherMomentsOfEqualParts);
  m.impl("batch_norm_gather_stats_with_counts", &GatherMoments);
  m.impl("batch_norm_elemt", &Normalize);
  m.impl("batch_norm_backward_reduce", &SumGradients);
  m.impl("batch_norm_backward_elemt", &InputGradient);
}

}  // namespace tpu
