// The cells of LSTM and GRU, and their gradients.
#include <initializer_list>

#include "compiler/aten/cells.h"
#include "compiler/aten/families.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

struct Math {
  using Tensor = aten::Tensor;
  static Tensor Sigmoid(Tensor x) { return ir::Logistic(x); }
  static Tensor Tanh(Tensor x) { return ir::Tanh(x); }
  static Tensor Part(Tensor x, int64_t i, int64_t n) {
    const int64_t width = x.size(1) / n;
    return ir::SliceDim(x, 1, i * width, (i + 1) * width);
  }
  static Tensor Join(std::initializer_list<Tensor> parts) { return ir::Concat(parts, 1); }
};

// The gates, argument i of the call, with their bias.
Tensor Biased(AtenCall& c, int i, int bias) { return c.has(bias) ? In(c, i) + In(c, bias) : In(c, i); }

// (input_gates, hidden_gates, cx, input_bias, hidden_bias)
Result LstmCell(AtenCall& c) {
  const auto [hy, cy, workspace] = Cells<Math>::Lstm(Biased(c, 0, 3) + Biased(c, 1, 4), In(c, 2));
  return {hy, cy, workspace};
}

// (grad_hy, grad_cy, cx, cy, workspace, has_bias)
Result LstmCellBackward(AtenCall& c) {
  if (!c.has(0) && !c.has(1)) return Result::Decline();
  const Tensor cx = In(c, 2), hy = c.has(0) ? In(c, 0) : c.emitter().Constant(cx.dtype(), 0, cx.dims());
  const Tensor cy = c.has(1) ? In(c, 1) : Tensor();
  const auto [gates, state] = Cells<Math>::LstmBackward(hy, c.has(1) ? &cy : nullptr, cx, In(c, 3), In(c, 4));
  return Asked(c, {true, true, c.boolean(5)}, {gates, state, ir::Sum(gates, {0})});
}

// (input_gates, hidden_gates, hx, input_bias, hidden_bias)
Result GruCell(AtenCall& c) {
  const auto [hy, workspace] = Cells<Math>::Gru(Biased(c, 0, 3), Biased(c, 1, 4), In(c, 2));
  return {hy, workspace};
}

// (grad_hy, workspace, has_bias)
Result GruCellBackward(AtenCall& c) {
  const auto [input, hidden, state] = Cells<Math>::GruBackward(In(c, 0), In(c, 1));
  const bool bias = c.boolean(2);
  return Asked(c, {true, true, true, bias, bias}, {input, hidden, state, ir::Sum(input, {0}), ir::Sum(hidden, {0})});
}

}  // namespace

void RegisterRecurrent(Registry& r) {
  r.Add("aten::_thnn_fused_lstm_cell", LstmCell);
  r.Add("aten::_thnn_fused_lstm_cell_backward_impl", LstmCellBackward);
  r.Add("aten::_thnn_fused_gru_cell", GruCell);
  r.Add("aten::_thnn_fused_gru_cell_backward", GruCellBackward);
}

}  // namespace tpu::aten
