// The cells of LSTM and GRU, which PyTorch takes as one operator on every device but the CPU: their host kernels, which
// PyTorch lacks (the process's CPU tensors have them, too), and what they return. Half types are rounded once, as by
// the lowerings.
#include "dispatcher/recurrent.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "dispatcher/structured.h"

namespace tpu {
namespace {

using at::Tensor;
using Cells = aten::Cells<TensorMath>;
using OptionalTensor = std::optional<Tensor>;

Tensor Wide(const Tensor& t) { return t.to(at::toOpMathType(t.scalar_type())); }
Tensor Biased(const Tensor& gates, const OptionalTensor& bias) {
  return Given(bias) ? Wide(gates) + Wide(*bias) : Wide(gates);
}
// The results in the type of the call's tensors.
template <typename... Tensors>
std::tuple<Tensors...> Narrow(c10::ScalarType type, const Tensors&... results) {
  return {results.defined() ? results.to(type) : results...};
}

std::tuple<Tensor, Tensor, Tensor> LstmCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                            const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto [hy, cy, workspace] =
      Cells::Lstm(Biased(input_gates, input_bias) + Biased(hidden_gates, hidden_bias), Wide(cx));
  return Narrow(cx.scalar_type(), hy, cy, workspace);
}

std::tuple<Tensor, Tensor, Tensor> LstmCellBackward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                    const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                    bool has_bias) {
  if (!Given(grad_hy) && !Given(grad_cy)) return {};
  const Tensor state = Wide(cx), hy = Given(grad_hy) ? Wide(*grad_hy) : at::zeros_like(state);
  const Tensor grad = Given(grad_cy) ? Wide(*grad_cy) : Tensor();
  const auto [gates, grad_cx] =
      Cells::LstmBackward(hy, grad.defined() ? &grad : nullptr, state, Wide(cy), Wide(workspace));
  return Narrow(cx.scalar_type(), gates, grad_cx, has_bias ? gates.sum(0) : Tensor());
}

std::tuple<Tensor, Tensor> GruCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                   const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto [hy, workspace] = Cells::Gru(Biased(input_gates, input_bias), Biased(hidden_gates, hidden_bias), Wide(hx));
  return Narrow(hx.scalar_type(), hy, workspace);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> GruCellBackward(const Tensor& grad_hy, const Tensor& workspace,
                                                                   bool has_bias) {
  const auto [input, hidden, state] = Cells::GruBackward(Wide(grad_hy), Wide(workspace));
  return Narrow(grad_hy.scalar_type(), input, hidden, state, has_bias ? input.sum(0) : Tensor(),
                has_bias ? hidden.sum(0) : Tensor());
}

// --- what they return ---

void CheckPlainCell(const Tensor& gates, int64_t n, const Tensor& state) {
  CheckPlain(state.dim() == 2 && gates.dim() == 2 && state.is_floating_point() && gates.size(0) == state.size(0) &&
             gates.size(1) == n * state.size(1) && gates.scalar_type() == state.scalar_type());
}
Tensor Row(const Tensor& state, int64_t n) { return at::empty({state.size(0), n * state.size(1)}, state.options()); }
Tensor Bias(const Tensor& state, int64_t n) { return at::empty({n * state.size(1)}, state.options()); }

void CheckPlainBias(const OptionalTensor& bias, int64_t n, const Tensor& state) {
  CheckPlain(!Given(bias) ||
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
    if (Given(grad)) CheckPlainCell(*grad, 1, cx);
  }
  if (!Given(grad_hy) && !Given(grad_cy)) return {};
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
