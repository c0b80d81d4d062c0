// Attention. scaled_dot_product_attention: where the CPU has its flash kernel, that operator is recorded (the compiler
// knows its meaning, tier 0 its kernel); elsewhere PyTorch takes it apart. The layers of torch.nn as single operators,
// which models in inference call: taken apart into that.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_native_multi_head_attention_native.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/_transformer_encoder_layer_fwd_native.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &_fused_sdp_choice_cpp)
}  // namespace at::native

namespace tpu {
namespace {

using at::Tensor;

// (B, T, 3 D) -> three times (B, heads, T, D / heads): queries, keys, values
std::array<Tensor, 3> Heads(const Tensor& qkv, int64_t heads) {
  const auto parts = qkv.unflatten(-1, {3, heads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
  return {parts[0], parts[1], parts[2]};
}

std::tuple<Tensor, Tensor, Tensor> SplitHeads(const Tensor& qkv, const Tensor& bias, int64_t heads) {
  TORCH_CHECK(heads > 0 && qkv.dim() == 3 && qkv.size(2) % (3 * heads) == 0, "Expected (B, T, 3 D) with a D of ", heads,
              " heads, got ", qkv.sizes());
  const auto [q, k, v] = Heads(qkv + bias, heads);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  return {(q * scale).contiguous(), k.contiguous(), v.contiguous()};
}

std::tuple<Tensor, Tensor> MultiHeadAttention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t dim,
                                              int64_t heads, const Tensor& qkv_weight, const Tensor& qkv_bias,
                                              const Tensor& out_weight, const Tensor& out_bias,
                                              const std::optional<Tensor>& mask, bool need_weights, bool average,
                                              std::optional<int64_t> mask_type) {
  TORCH_CHECK(heads > 0, "Expected a positive number of heads, got ", heads);
  const bool plain = query.is_same(key) && query.is_same(value) && !mask && !need_weights && query.dim() == 3 &&
                     query.size(2) == dim && qkv_weight.sizes() == at::IntArrayRef({3 * dim, dim}) &&
                     qkv_bias.sizes() == at::IntArrayRef({3 * dim}) && dim % heads == 0 && query.numel() != 0;
  if (!plain) {
    return at::native::native_multi_head_attention_cpu(query, key, value, dim, heads, qkv_weight, qkv_bias, out_weight,
                                                       out_bias, mask, need_weights, average, mask_type);
  }
  const auto [q, k, v] = Heads(at::linear(query, qkv_weight, qkv_bias), heads);
  const Tensor context = at::scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2);
  return {at::linear(context, out_weight, out_bias), Tensor()};
}

Tensor LinearAndActivation(const Tensor& bias, const Tensor& x, const Tensor& weight, const at::Scalar& beta,
                           const at::Scalar& alpha, bool use_gelu) {
  Tensor y = at::addmm(bias, x, weight, beta, alpha);
  return use_gelu ? at::gelu_(y) : at::relu_(y);
}

// What a mask of one of PyTorch's three kinds (0: (T, T); 1: (B, T), of keys; 2: as the scores) says of each score.
Tensor OfScores(const Tensor& mask, const Tensor& scores, std::optional<int64_t> type) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be a boolean tensor");
  if (mask.dim() != 2 || scores.dim() != 4) type = 2;
  TORCH_CHECK(type, "Mask Type should be defined");
  TORCH_CHECK(*type >= 0 && *type <= 2,
              "Mask Type should be 0 (src_mask) or 1 (src_key_padding_mask), or 2 (default_mask)");
  if (*type == 2) {
    TORCH_CHECK(mask.sizes() == scores.sizes(), "For mask_type == 2 mask shape should match input shape");
    return mask;
  }
  const int64_t keys = scores.size(3);
  if (*type == 0) {
    TORCH_CHECK(mask.size(0) == scores.size(2) && mask.size(1) == keys,
                "For mask_type == 0 mask shape should be (L, L)");
    return mask;
  }
  TORCH_CHECK(mask.size(0) == scores.size(0) && mask.size(1) == keys, "For mask_type == 1 mask shape should be (B, L)");
  return mask.view({mask.size(0), 1, 1, keys});
}

Tensor MaskedSoftmax(const Tensor& scores, const Tensor& mask, std::optional<int64_t> dim,
                     std::optional<int64_t> mask_type) {
  const Tensor out = OfScores(mask, scores, mask_type);
  return at::_softmax(scores.masked_fill(out, -std::numeric_limits<double>::infinity()), dim.value_or(-1), false);
}

Tensor MaskedSoftmaxBackward(const Tensor& grad, const Tensor& output, const Tensor& mask, std::optional<int64_t> dim) {
  TORCH_CHECK(mask.scalar_type() == at::kBool && mask.sizes() == output.sizes(),
              "Mask should be a boolean tensor of the output's shape");
  return at::_softmax_backward_data(grad, output.masked_fill(mask, 0), dim.value_or(-1), output.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &at::native::_fused_sdp_choice_cpp);
  m.impl("_native_multi_head_attention", &MultiHeadAttention);
  m.impl("_transformer_encoder_layer_fwd", &at::native::transformer_encoder_layer_forward);
  m.impl("_addmm_activation", &LinearAndActivation);
  m.impl("_transform_bias_rescale_qkv", &SplitHeads);
  m.impl("_masked_softmax", &MaskedSoftmax);
  m.impl("_masked_softmax_backward", &MaskedSoftmaxBackward);
}

}  // namespace tpu
