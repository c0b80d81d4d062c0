// The cells of LSTM and GRU, which PyTorch takes as one operator on every device but the CPU: their host kernels, which
// PyTorch lacks (the process's CPU tensors have them, too), in terms of others, and what they return. Half types are
// rounded once, as by the lowerings.
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "dispatcher/structured.h"

namespace tpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor Biased(const Tensor& gates, const OptionalTensor& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}
bool Has(const OptionalTensor& t) { return t && t->defined(); }
Tensor Wide(const Tensor& t) { return t.to(at::toOpMathType(t.scalar_type())); }
OptionalTensor Wide(const OptionalTensor& t) { return Has(t) ? OptionalTensor(Wide(*t)) : std::nullopt; }
// The results in the type of the call's tensors.
template <typename... Tensors>
std::tuple<Tensors...> Narrow(c10::ScalarType type, const Tensors&... results) {
  return {results.defined() ? results.to(type) : results...};
}
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
  const std::vector<Tensor> g =
      Gates(Biased(Wide(input_gates), Wide(input_bias)) + Biased(Wide(hidden_gates), Wide(hidden_bias)), 4);
  const Tensor in = g[0].sigmoid(), forget = g[1].sigmoid(), cell = g[2].tanh(), out = g[3].sigmoid();
  const Tensor cy = forget * Wide(cx) + in * cell;
  return Narrow(cx.scalar_type(), out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1));
}

std::tuple<Tensor, Tensor, Tensor> LstmCellBackward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                    const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                    bool has_bias) {
  if (!Has(grad_hy) && !Has(grad_cy)) return {};
  const std::vector<Tensor> g = Gates(Wide(workspace), 4);
  const Tensor &in = g[0], &forget = g[1], &cell = g[2], &out = g[3];
  const Tensor tanh_cy = Wide(cy).tanh();
  const Tensor hy = Has(grad_hy) ? Wide(*grad_hy) : at::zeros_like(tanh_cy);
  Tensor c = hy * out * TanhSlope(tanh_cy);
  if (Has(grad_cy)) c = c + Wide(*grad_cy);
  const Tensor gates = at::cat({c * cell * SigmoidSlope(in), c * Wide(cx) * SigmoidSlope(forget),
                                c * in * TanhSlope(cell), hy * tanh_cy * SigmoidSlope(out)},
                               1);
  return Narrow(cx.scalar_type(), gates, c * forget, has_bias ? gates.sum(0) : Tensor());
}

// Workspace: reset, update and new gates, the former state, and the hidden part of the new gate.
std::tuple<Tensor, Tensor> GruCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                   const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const std::vector<Tensor> i = Gates(Biased(Wide(input_gates), Wide(input_bias)), 3);
  const std::vector<Tensor> h = Gates(Biased(Wide(hidden_gates), Wide(hidden_bias)), 3);
  const Tensor reset = (i[0] + h[0]).sigmoid(), update = (i[1] + h[1]).sigmoid();
  const Tensor fresh = (i[2] + reset * h[2]).tanh(), former = Wide(hx);
  return Narrow(hx.scalar_type(), (former - fresh) * update + fresh, at::cat({reset, update, fresh, former, h[2]}, 1));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> GruCellBackward(const Tensor& grad_hy, const Tensor& workspace,
                                                                   bool has_bias) {
  const Tensor grad = Wide(grad_hy);
  const std::vector<Tensor> w = Gates(Wide(workspace), 5);
  const Tensor &reset = w[0], &update = w[1], &fresh = w[2], &hx = w[3], &hidden = w[4];
  const Tensor g_update = grad * (hx - fresh) * SigmoidSlope(update);
  const Tensor g_fresh = grad * (1 - update) * TanhSlope(fresh);
  const Tensor g_reset = g_fresh * hidden * SigmoidSlope(reset);
  const Tensor input = at::cat({g_reset, g_update, g_fresh}, 1);
  const Tensor state = at::cat({g_reset, g_update, g_fresh * reset}, 1);
  return Narrow(grad_hy.scalar_type(), input, state, grad * update, has_bias ? input.sum(0) : Tensor(),
                has_bias ? state.sum(0) : Tensor());
}

// --- what they return ---

void CheckPlainCell(const Tensor& gates, int64_t n, const Tensor& state) {
  CheckPlain(state.dim() == 2 && gates.dim() == 2 && state.is_floating_point() && gates.size(0) == state.size(0) &&
             gates.size(1) == n * state.size(1) && gates.scalar_type() == state.scalar_type());
}
Tensor Row(const Tensor& state, int64_t n) { return at::empty({state.size(0), n * state.size(1)}, state.options()); }
Tensor Bias(const Tensor& state, int64_t n) { return at::empty({n * state.size(1)}, state.options()); }

void CheckPlainBias(const OptionalTensor& bias, int64_t n, const Tensor& state) {
  CheckPlain(!Has(bias) ||
             (bias->dim() == 1 && bias->size(0) == n * state.size(1) && bias->scalar_type() == state.scalar_type()));
}

std::tuple<Tensor, Tensor, Tensor> OfLstmCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                              const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  for (const Tensor& gates : {input_gates, hidden_gates}) CheckPlainCell(gates, 4, cx);
  for (const OptionalTensor& bias : {input_bias, hidden_bias}) CheckPlainBias(bias, 4, cx);
  return {Row(cx, 1), Row(cx, 1), Row(cx, 4)};
}
std::tuple<Tensor, Tensor, Tensor> OfLstmCellBackward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  CheckPlainCell(workspace, 4, cx);
  CheckPlainCell(cy, 1, cx);
  for (const OptionalTensor& grad : {grad_hy, grad_cy}) {
    if (Has(grad)) CheckPlainCell(*grad, 1, cx);
  }
  if (!Has(grad_hy) && !Has(grad_cy)) return {};
  return {Row(cx, 4), Row(cx, 1), has_bias ? Bias(cx, 4) : Tensor()};
}
std::tuple<Tensor, Tensor> OfGruCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                     const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  for (const Tensor& gates : {input_gates, hidden_gates}) CheckPlainCell(gates, 3, hx);
  for (const OptionalTensor& bias : {input_bias, hidden_bias}) CheckPlainBias(bias, 3, hx);
  return {Row(hx, 1), Row(hx, 5)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> OfGruCellBackward(const Tensor& grad, const Tensor& workspace,
                                                                     bool has_bias) {
  CheckPlainCell(workspace, 5, grad);
  const auto bias = [&] { return has_bias ? Bias(grad, 3) : Tensor(); };
  return {Row(grad, 3), Row(grad, 3), Row(grad, 1), bias(), bias()};
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_thnn_fused_lstm_cell", &LstmCell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &LstmCellBackward);
  m.impl("_thnn_fused_gru_cell", &GruCell);
  m.impl("_thnn_fused_gru_cell_backward", &GruCellBackward);
}
TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("_thnn_fused_lstm_cell", &OfLstmCell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &OfLstmCellBackward);
  m.impl("_thnn_fused_gru_cell", &OfGruCell);
  m.impl("_thnn_fused_gru_cell_backward", &OfGruCellBackward);
}

}  // namespace
}  // namespace tpu
