// The cells of LSTM and GRU, and their gradients.
#include "compiler/aten/families.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

Tensor In(AtenCall& c, int i) { return c.as(i, c.float_compute()); }

// Gate number i of those of `size` columns beside each other.
Tensor Gate(Tensor gates, int64_t i, int64_t size) { return ir::SliceDim(gates, 1, i * size, (i + 1) * size); }
// The gates, argument i of the call, with their bias.
Tensor Biased(AtenCall& c, int i, int bias) { return c.has(bias) ? In(c, i) + In(c, bias) : In(c, i); }
Tensor SigmoidSlope(Tensor y) { return y * (1.0 - y); }
Tensor TanhSlope(Tensor y) { return 1.0 - y * y; }

// (input_gates, hidden_gates, cx, input_bias, hidden_bias). Workspace: the four gates.
Result LstmCell(AtenCall& c) {
  const Tensor gates = Biased(c, 0, 3) + Biased(c, 1, 4), cx = In(c, 2);
  const int64_t size = cx.size(1);
  const Tensor in = ir::Logistic(Gate(gates, 0, size)), forget = ir::Logistic(Gate(gates, 1, size)),
               cell = ir::Tanh(Gate(gates, 2, size)), out = ir::Logistic(Gate(gates, 3, size));
  const Tensor cy = forget * cx + in * cell;
  return {out * ir::Tanh(cy), cy, ir::Concat({in, forget, cell, out}, 1)};
}

// (grad_hy, grad_cy, cx, cy, workspace, has_bias)
Result LstmCellBackward(AtenCall& c) {
  if (!c.has(0) && !c.has(1)) return Result::Decline();
  const Tensor cx = In(c, 2), tanh_cy = ir::Tanh(In(c, 3)), workspace = In(c, 4);
  const int64_t size = cx.size(1);
  const Tensor in = Gate(workspace, 0, size), forget = Gate(workspace, 1, size), cell = Gate(workspace, 2, size),
               out = Gate(workspace, 3, size);
  const Tensor hy = c.has(0) ? In(c, 0) : c.emitter().Constant(cx.dtype(), 0, cx.dims());
  Tensor state = hy * out * TanhSlope(tanh_cy);
  if (c.has(1)) state = state + In(c, 1);
  const Tensor gates = ir::Concat({state * cell * SigmoidSlope(in), state * cx * SigmoidSlope(forget),
                                   state * in * TanhSlope(cell), hy * tanh_cy * SigmoidSlope(out)},
                                  1);
  return Asked(c, {true, true, c.boolean(5)}, {gates, state * forget, ir::Sum(gates, {0})});
}

// (input_gates, hidden_gates, hx, input_bias, hidden_bias). Workspace: reset, update and new gates, the former state,
// and the hidden part of the new gate.
Result GruCell(AtenCall& c) {
  const Tensor input = Biased(c, 0, 3), hidden = Biased(c, 1, 4), hx = In(c, 2);
  const int64_t size = hx.size(1);
  const Tensor reset = ir::Logistic(Gate(input, 0, size) + Gate(hidden, 0, size)),
               update = ir::Logistic(Gate(input, 1, size) + Gate(hidden, 1, size)), last = Gate(hidden, 2, size);
  const Tensor fresh = ir::Tanh(Gate(input, 2, size) + reset * last);
  return {(hx - fresh) * update + fresh, ir::Concat({reset, update, fresh, hx, last}, 1)};
}

// (grad_hy, workspace, has_bias)
Result GruCellBackward(AtenCall& c) {
  const Tensor grad = In(c, 0), workspace = In(c, 1);
  const int64_t size = grad.size(1);
  const Tensor reset = Gate(workspace, 0, size), update = Gate(workspace, 1, size), fresh = Gate(workspace, 2, size),
               hx = Gate(workspace, 3, size), last = Gate(workspace, 4, size);
  const Tensor g_update = grad * (hx - fresh) * SigmoidSlope(update);
  const Tensor g_fresh = grad * (1.0 - update) * TanhSlope(fresh);
  const Tensor g_reset = g_fresh * last * SigmoidSlope(reset);
  const Tensor input = ir::Concat({g_reset, g_update, g_fresh}, 1);
  const Tensor hidden = ir::Concat({g_reset, g_update, g_fresh * reset}, 1);
  const bool bias = c.boolean(2);
  return Asked(c, {true, true, true, bias, bias},
               {input, hidden, grad * update, ir::Sum(input, {0}), ir::Sum(hidden, {0})});
}

}  // namespace

void RegisterRecurrent(Registry& r) {
  r.Add("aten::_thnn_fused_lstm_cell", LstmCell);
  r.Add("aten::_thnn_fused_lstm_cell_backward_impl", LstmCellBackward);
  r.Add("aten::_thnn_fused_gru_cell", GruCell);
  r.Add("aten::_thnn_fused_gru_cell_backward", GruCellBackward);
}

}  // namespace tpu::aten
