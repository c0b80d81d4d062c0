// Layers of recurrent cells. PyTorch multiplies the input of each step by itself on every device but the CPU, where, as
// here, one product takes all steps: what is left of a step is a product with its state and a cell. Layers with
// projections, packed sequences and arguments that don't fit are PyTorch's.
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_thnn_fused_gru_cell.h>
#include <ATen/ops/_thnn_fused_lstm_cell.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <torch/library.h>

#include <tuple>
#include <utility>
#include <vector>

#include "dispatcher/recurrent.h"

namespace tpu {
namespace {

using at::Tensor;
using at::TensorList;
using Cells = aten::Cells<TensorMath>;

enum class Kind { kLstm, kGru, kTanh, kRelu };

int64_t Gates(Kind kind) { return kind == Kind::kLstm ? 4 : kind == Kind::kGru ? 3 : 1; }

// What torch.nn's layers are told.
struct Options {
  Kind kind;
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

struct State {
  Tensor h, c;  // c: of an LSTM
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

// The weight as the right side of products, in autocast's type where that is on: cast once for all steps.
Tensor RightSide(const Tensor& weight) {
  if (!at::autocast::is_autocast_enabled(at::kPrivateUse1)) return weight.t();
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kPrivateUse1), weight, at::kPrivateUse1).t();
}

// Whether a cell consists of operators that all can derive and trace: where forward derivatives are asked for, of which
// PyTorch has none for its cells, and while a graph is traced, when it does not know what each cell returns.
bool IsTakenApart(const Tensor& gates) {
  return gates.key_set().has(c10::DispatchKey::Python) || gates._fw_grad(0).defined();
}

State LstmStep(const Tensor& input, const Tensor& hidden, const Tensor& c, bool apart) {
  if (apart) {
    auto [next_h, next_c, gates] = Cells::Lstm(input + hidden, c);
    return {std::move(next_h), std::move(next_c)};
  }
  auto [next_h, next_c, workspace] = at::_thnn_fused_lstm_cell(input, hidden, c);
  return {std::move(next_h), std::move(next_c)};
}

State Step(Kind kind, const Tensor& input, const State& state, const Tensor& right, const Tensor& bias) {
  const Tensor hidden = bias.defined() ? at::addmm(bias, state.h, right) : at::mm(state.h, right);
  const bool apart = IsTakenApart(input) || IsTakenApart(hidden);
  if (kind == Kind::kLstm) return LstmStep(input, hidden, state.c, apart);
  if (kind == Kind::kGru) {
    return {
        apart ? Cells::Gru(input, hidden, state.h)[0] : std::get<0>(at::_thnn_fused_gru_cell(input, hidden, state.h)),
        {}};
  }
  const Tensor sum = input + hidden;
  return {kind == Kind::kTanh ? sum.tanh() : sum.relu(), {}};
}

// The states h of all steps, in the order of the input's, and the last state.
std::pair<Tensor, State> RunLayer(Kind kind, const Tensor& input, int64_t time, bool backwards, State state,
                                  const Weights& w) {
  // A GRU's hidden bias is no summand of its own; the others' is added once for all steps.
  const bool sums = kind != Kind::kGru && w.input_bias.defined();
  const std::vector<Tensor> steps =
      at::linear(input, w.input, sums ? w.input_bias + w.hidden_bias : w.input_bias).unbind(time);
  const Tensor right = RightSide(w.hidden), bias = sums ? Tensor() : w.hidden_bias;
  std::vector<Tensor> outputs(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const size_t t = backwards ? steps.size() - 1 - i : i;
    state = Step(kind, steps[t], state, right, bias);
    outputs[t] = state.h;
  }
  return {at::stack(outputs, 0), std::move(state)};
}

struct Results {
  Tensor output, h, c;
};

Results Run(const Options& o, const Tensor& input, TensorList states, TensorList params) {
  const bool lstm = o.kind == Kind::kLstm;
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
  const Options o{Kind::kLstm, has_biases, num_layers, dropout, train, bidirectional, batch_first};
  if (hx.size() != 2 || !Fits(o, input, hx, params)) {
    return at::native::lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  }
  auto [output, h, c] = Run(o, input, hx, params);
  return {std::move(output), std::move(h), std::move(c)};
}

// The layers with one state; `theirs` is PyTorch's.
template <Kind kKind, auto theirs>
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
  m.impl("gru.input", &OneState<Kind::kGru, static_cast<Theirs>(&at::native::gru)>);
  m.impl("rnn_tanh.input", &OneState<Kind::kTanh, static_cast<Theirs>(&at::native::rnn_tanh)>);
  m.impl("rnn_relu.input", &OneState<Kind::kRelu, static_cast<Theirs>(&at::native::rnn_relu)>);
}

// They consist of operators, above autograd and below.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { Register(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { Register(m); }

}  // namespace
}  // namespace tpu
