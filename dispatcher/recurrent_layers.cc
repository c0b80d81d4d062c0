// Layers of recurrent cells. PyTorch multiplies the input of each step by itself on every device but the CPU, where, as
// here, one product takes all steps: what is left of a step is a product with its state and a cell. Layers with
// projections, packed sequences and arguments that don't fit are PyTorch's.
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include <tuple>
#include <utility>
#include <vector>

#include "dispatcher/recurrent_steps.h"

namespace tpu {
namespace {

using at::Tensor;
using at::TensorList;

int64_t Gates(CellKind kind) { return kind == CellKind::kLstm ? 4 : kind == CellKind::kGru ? 3 : 1; }

// What torch.nn's layers are told.
struct Options {
  CellKind kind;
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train;
  bool bidirectional;
  bool batch_first;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t params_each() const { return has_biases ? 4 : 2; }
};

// Of one direction of a layer; without biases those are undefined.
struct Weights {
  Tensor input, hidden, input_bias, hidden_bias;
};

// Sizes may be symbols: graphs are traced for many of them.
bool HasSizes(const Tensor& t, c10::SymIntArrayRef sizes) { return t.sym_sizes().equals(sizes); }

// Whether all fits; what does not is PyTorch's to refuse.
bool Fits(const Options& o, const Tensor& input, TensorList states, TensorList params) {
  const int64_t count = o.num_layers * o.directions();
  if (input.dim() != 3 || o.num_layers < 1 || static_cast<int64_t>(params.size()) != count * o.params_each()) {
    return false;
  }
  if (input.sym_size(o.batch_first ? 1 : 0) == 0) return false;
  const auto alike = [&](const Tensor& t) {
    return t.defined() && t.layout() == at::kStrided && t.device() == input.device() &&
           (t.scalar_type() == input.scalar_type() || at::autocast::is_autocast_enabled(at::kPrivateUse1));
  };
  const c10::SymInt hidden = params[1].dim() == 2 ? params[1].sym_size(1) : c10::SymInt(-1);
  const c10::SymInt batch = input.sym_size(o.batch_first ? 0 : 1), gates = hidden * Gates(o.kind);
  for (const Tensor& state : states) {
    if (!alike(state) || !HasSizes(state, {c10::SymInt(count), batch, hidden})) return false;
  }
  for (int64_t i = 0; i < count; ++i) {
    const TensorList own = params.slice(i * o.params_each(), o.params_each());
    const c10::SymInt width = i < o.directions() ? input.sym_size(2) : hidden * o.directions();
    for (const Tensor& t : own) {
      if (!alike(t)) return false;
    }
    if (!HasSizes(own[0], {gates, width}) || !HasSizes(own[1], {gates, hidden})) return false;
    if (o.has_biases && !(HasSizes(own[2], {gates}) && HasSizes(own[3], {gates}))) return false;
  }
  return true;
}

// What the steps read, in autocast's type where that is on: cast once for all of them.
Tensor Cast(const Tensor& t) {
  if (!at::autocast::is_autocast_enabled(at::kPrivateUse1)) return t;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kPrivateUse1), t, at::kPrivateUse1);
}

std::pair<Tensor, CellState> RunLayer(CellKind kind, const Tensor& input, int64_t time, bool backwards,
                                      const CellState& first, const Weights& w) {
  // A GRU's hidden bias is no summand of its own; the others' is added once for all steps.
  const bool sums = kind != CellKind::kGru && w.input_bias.defined();
  const Tensor gates = at::linear(input, w.input, sums ? w.input_bias + w.hidden_bias : w.input_bias);
  const Tensor bias = sums ? Tensor() : Cast(w.hidden_bias);
  return RunSteps({kind, time, backwards, gates, Cast(w.hidden), bias, {Cast(first.h), Cast(first.c)}});
}

struct Results {
  Tensor output, h, c;
};

Results Run(const Options& o, const Tensor& input, TensorList states, TensorList params) {
  const bool lstm = o.kind == CellKind::kLstm;
  const std::vector<Tensor> first_h = states[0].unbind(0), first_c = lstm ? states[1].unbind(0) : std::vector<Tensor>();
  std::vector<Tensor> last_h, last_c;
  Tensor x = input;
  int64_t time = o.batch_first ? 1 : 0;
  for (int64_t layer = 0; layer < o.num_layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < o.directions(); ++direction) {
      const size_t i = last_h.size();
      const TensorList own = params.slice(static_cast<int64_t>(i) * o.params_each(), o.params_each());
      const Weights w = o.has_biases ? Weights{own[0], own[1], own[2], own[3]} : Weights{own[0], own[1], {}, {}};
      auto [output, last] = RunLayer(o.kind, x, time, direction == 1, {first_h[i], lstm ? first_c[i] : Tensor()}, w);
      outputs.push_back(std::move(output));
      last_h.push_back(std::move(last.h));
      if (lstm) last_c.push_back(std::move(last.c));
    }
    x = outputs.size() == 1 ? std::move(outputs[0]) : at::cat(outputs, -1);
    time = 0;
    if (o.train && o.dropout != 0 && layer + 1 < o.num_layers) x = at::dropout(x, o.dropout, true);
  }
  return {o.batch_first ? x.transpose(0, 1) : x, at::stack(last_h, 0), lstm ? at::stack(last_c, 0) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> Lstm(const Tensor& input, TensorList hx, TensorList params, bool has_biases,
                                        int64_t num_layers, double dropout, bool train, bool bidirectional,
                                        bool batch_first) {
  const Options o{CellKind::kLstm, has_biases, num_layers, dropout, train, bidirectional, batch_first};
  if (hx.size() != 2 || !Fits(o, input, hx, params)) {
    return at::native::lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  auto [output, h, c] = Run(o, input, hx, params);
  return {std::move(output), std::move(h), std::move(c)};
}

// The layers with one state; `theirs` is PyTorch's.
template <CellKind kKind, auto theirs>
std::tuple<Tensor, Tensor> OneState(const Tensor& input, const Tensor& hx, TensorList params, bool has_biases,
                                    int64_t num_layers, double dropout, bool train, bool bidirectional,
                                    bool batch_first) {
  const Options o{kKind, has_biases, num_layers, dropout, train, bidirectional, batch_first};
  if (!Fits(o, input, hx, params)) {
    return theirs(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  auto [output, h, c] = Run(o, input, hx, params);
  return {std::move(output), std::move(h)};
}

using Theirs = std::tuple<Tensor, Tensor> (*)(const Tensor&, const Tensor&, TensorList, bool, int64_t, double, bool,
                                              bool, bool);

void Register(torch::Library& m) {
  m.impl("lstm.input", &Lstm);
  m.impl("gru.input", &OneState<CellKind::kGru, static_cast<Theirs>(&at::native::gru)>);
  m.impl("rnn_tanh.input", &OneState<CellKind::kTanh, static_cast<Theirs>(&at::native::rnn_tanh)>);
  m.impl("rnn_relu.input", &OneState<CellKind::kRelu, static_cast<Theirs>(&at::native::rnn_relu)>);
}

// They consist of operators, above autograd and below.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { Register(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { Register(m); }

}  // namespace
}  // namespace tpu
