// The cells of LSTM and GRU, which PyTorch takes as one operator on every device but the CPU: in terms of others.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace tpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor Biased(const Tensor& gates, const OptionalTensor& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}
bool Has(const OptionalTensor& t) { return t && t->defined(); }
// Gates beside each other, `n` in a row.
std::vector<Tensor> Gates(const Tensor& t, int64_t n) {
  TORCH_CHECK(t.dim() == 2 && t.size(1) % n == 0, "Expected ", n, " gates of one size in a row, got ", t.sizes());
  return t.chunk(n, 1);
}
Tensor SigmoidSlope(const Tensor& y) { return y * (1 - y); }
Tensor TanhSlope(const Tensor& y) { return 1 - y * y; }

// Workspace: the four gates.
std::tuple<Tensor, Tensor, Tensor> LstmCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                            const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const std::vector<Tensor> g = Gates(Biased(input_gates, input_bias) + Biased(hidden_gates, hidden_bias), 4);
  const Tensor in = g[0].sigmoid(), forget = g[1].sigmoid(), cell = g[2].tanh(), out = g[3].sigmoid();
  const Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> LstmCellBackward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                    const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                    bool has_bias) {
  if (!Has(grad_hy) && !Has(grad_cy)) return {};
  const std::vector<Tensor> g = Gates(workspace, 4);
  const Tensor &in = g[0], &forget = g[1], &cell = g[2], &out = g[3];
  const Tensor tanh_cy = cy.tanh();
  const Tensor hy = Has(grad_hy) ? *grad_hy : at::zeros_like(cy);
  Tensor c = hy * out * TanhSlope(tanh_cy);
  if (Has(grad_cy)) c = c + *grad_cy;
  const Tensor gates = at::cat({c * cell * SigmoidSlope(in), c * cx * SigmoidSlope(forget), c * in * TanhSlope(cell),
                                hy * tanh_cy * SigmoidSlope(out)},
                               1);
  return {gates, c * forget, has_bias ? gates.sum(0) : Tensor()};
}

// Workspace: reset, update and new gates, the former state, and the hidden part of the new gate.
std::tuple<Tensor, Tensor> GruCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                   const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const std::vector<Tensor> i = Gates(Biased(input_gates, input_bias), 3);
  const std::vector<Tensor> h = Gates(Biased(hidden_gates, hidden_bias), 3);
  const Tensor reset = (i[0] + h[0]).sigmoid(), update = (i[1] + h[1]).sigmoid();
  const Tensor fresh = (i[2] + reset * h[2]).tanh();
  return {(hx - fresh) * update + fresh, at::cat({reset, update, fresh, hx, h[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> GruCellBackward(const Tensor& grad, const Tensor& workspace,
                                                                   bool has_bias) {
  const std::vector<Tensor> w = Gates(workspace, 5);
  const Tensor &reset = w[0], &update = w[1], &fresh = w[2], &hx = w[3], &hidden = w[4];
  const Tensor g_update = grad * (hx - fresh) * SigmoidSlope(update);
  const Tensor g_fresh = grad * (1 - update) * TanhSlope(fresh);
  const Tensor g_reset = g_fresh * hidden * SigmoidSlope(reset);
  const Tensor input = at::cat({g_reset, g_update, g_fresh}, 1);
  const Tensor state = at::cat({g_reset, g_update, g_fresh * reset}, 1);
  return {input, state, grad * update, has_bias ? input.sum(0) : Tensor(), has_bias ? state.sum(0) : Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &LstmCell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &LstmCellBackward);
  m.impl("_thnn_fused_gru_cell", &GruCell);
  m.impl("_thnn_fused_gru_cell_backward", &GruCellBackward);
}

}  // namespace
}  // namespace tpu
