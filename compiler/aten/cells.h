// The cells of LSTM and GRU, and their gradients, over any tensors with arithmetic: for the lowerings (recurrent.cc)
// and for the host kernels of tier 0 (dispatcher/recurrent.cc), which PyTorch lacks.
//
// `Math` has Tensor, Sigmoid, Tanh, Part (the i-th of n parts of equal width that lie beside each other) and Join
// (which puts parts so). Biases are added, and their gradients summed, by the caller.
#pragma once

#include <array>

namespace tpu::aten {

template <typename Math>
class Cells {
 public:
  using Tensor = typename Math::Tensor;

  // hy, cy and the workspace: the four gates.
  static std::array<Tensor, 3> Lstm(const Tensor& gates, const Tensor& cx) {
    const Tensor in = Math::Sigmoid(Math::Part(gates, 0, 4)), forget = Math::Sigmoid(Math::Part(gates, 1, 4)),
                 cell = Math::Tanh(Math::Part(gates, 2, 4)), out = Math::Sigmoid(Math::Part(gates, 3, 4));
    const Tensor cy = forget * cx + in * cell;
    return {out * Math::Tanh(cy), cy, Math::Join({in, forget, cell, out})};
  }

  // The gradients of the gates and of cx. `grad_cy` may be null.
  static std::array<Tensor, 2> LstmBackward(const Tensor& grad_hy, const Tensor* grad_cy, const Tensor& cx,
                                            const Tensor& cy, const Tensor& workspace) {
    const Tensor in = Math::Part(workspace, 0, 4), forget = Math::Part(workspace, 1, 4),
                 cell = Math::Part(workspace, 2, 4), out = Math::Part(workspace, 3, 4), tanh_cy = Math::Tanh(cy);
    Tensor state = grad_hy * out * TanhSlope(tanh_cy);
    if (grad_cy != nullptr) state = state + *grad_cy;
    return {Math::Join({state * cell * SigmoidSlope(in), state * cx * SigmoidSlope(forget),
                        state * in * TanhSlope(cell), grad_hy * tanh_cy * SigmoidSlope(out)}),
            state * forget};
  }

  // hy and the workspace: reset, update and new gates, the former state, and the hidden part of the new gate.
  static std::array<Tensor, 2> Gru(const Tensor& input, const Tensor& hidden, const Tensor& hx) {
    const Tensor reset = Math::Sigmoid(Math::Part(input, 0, 3) + Math::Part(hidden, 0, 3)),
                 update = Math::Sigmoid(Math::Part(input, 1, 3) + Math::Part(hidden, 1, 3)),
                 last = Math::Part(hidden, 2, 3);
    const Tensor fresh = Math::Tanh(Math::Part(input, 2, 3) + reset * last);
    return {(hx - fresh) * update + fresh, Math::Join({reset, update, fresh, hx, last})};
  }

  // The gradients of the input's gates, of the hidden gates and of hx.
  static std::array<Tensor, 3> GruBackward(const Tensor& grad, const Tensor& workspace) {
    const Tensor reset = Math::Part(workspace, 0, 5), update = Math::Part(workspace, 1, 5),
                 fresh = Math::Part(workspace, 2, 5), hx = Math::Part(workspace, 3, 5),
                 last = Math::Part(workspace, 4, 5);
    const Tensor g_update = grad * (hx - fresh) * SigmoidSlope(update);
    const Tensor g_fresh = grad * (1.0 - update) * TanhSlope(fresh);
    const Tensor g_reset = g_fresh * last * SigmoidSlope(reset);
    return {Math::Join({g_reset, g_update, g_fresh}), Math::Join({g_reset, g_update, g_fresh * reset}), grad * update};
  }

 private:
  static Tensor SigmoidSlope(const Tensor& y) { return y * (1.0 - y); }
  static Tensor TanhSlope(const Tensor& y) { return 1.0 - y * y; }
};

}  // namespace tpu::aten
