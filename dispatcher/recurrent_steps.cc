#include "dispatcher/recurrent_steps.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_thnn_fused_gru_cell.h>
#include <ATen/ops/_thnn_fused_gru_cell_backward.h>
#include <ATen/ops/_thnn_fused_lstm_cell.h>
#include <ATen/ops/_thnn_fused_lstm_cell_backward_impl.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "dispatcher/recurrent.h"

namespace tpu {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Cells = aten::Cells<TensorMath>;

// What the steps leave, in the order in which they are taken.
struct Trace {
  variable_list h, c, workspace;  // the last two: of cells that have them
};

std::optional<Tensor> OptionalOf(const Tensor& t) { return t.defined() ? std::optional<Tensor>(t) : std::nullopt; }

// Whether a cell consists of operators that all can derive and trace: where forward derivatives are asked for, of which
// PyTorch has none for its cells, and while a graph is traced, when it does not know what each cell returns.
bool IsTakenApart(const Tensor& t) {
  return t.defined() && (t.key_set().has(c10::DispatchKey::Python) || t._fw_grad(0).defined());
}

// Where in the time each step is, and the other way round.
size_t PlaceOf(const Steps& s, size_t step, size_t count) { return s.backwards ? count - 1 - step : step; }

// What the steps have, in the order of time.
variable_list InTime(const Steps& s, variable_list of_steps) {
  if (s.backwards) std::reverse(of_steps.begin(), of_steps.end());
  return of_steps;
}

void TakeStep(CellKind kind, const Tensor& input, const Tensor& hidden, const CellState& before, Trace& trace) {
  const bool apart = IsTakenApart(input) || IsTakenApart(hidden);
  switch (kind) {
    case CellKind::kLstm: {
      if (apart) {
        auto [h, c, gates] = Cells::Lstm(input + hidden, before.c);
        trace.h.push_back(std::move(h));
        trace.c.push_back(std::move(c));
        return;
      }
      auto [h, c, workspace] = at::_thnn_fused_lstm_cell(input, hidden, before.c);
      trace.h.push_back(std::move(h));
      trace.c.push_back(std::move(c));
      trace.workspace.push_back(std::move(workspace));
      return;
    }
    case CellKind::kGru: {
      if (apart) {
        trace.h.push_back(Cells::Gru(input, hidden, before.h)[0]);
        return;
      }
      auto [h, workspace] = at::_thnn_fused_gru_cell(input, hidden, before.h);
      trace.h.push_back(std::move(h));
      trace.workspace.push_back(std::move(workspace));
      return;
    }
    case CellKind::kTanh:
      trace.h.push_back((input + hidden).tanh());
      return;
    case CellKind::kRelu:
      trace.h.push_back((input + hidden).relu());
      return;
  }
}

// Whether the weight is worth turning around once: products of more rows would pack it anew at each step.
bool OfManySteps(const Steps& s, size_t steps) {
  constexpr size_t kSteps = 8;
  constexpr int64_t kRows = 16;
  return steps >= kSteps && !IsTakenApart(s.weight) && s.first.h.size(0) > kRows;
}

Trace TakeSteps(const Steps& s) {
  const std::vector<Tensor> inputs = s.gates.unbind(s.time);
  const Tensor right = OfManySteps(s, inputs.size()) ? s.weight.t().contiguous() : s.weight.t();
  Trace trace;
  CellState state = s.first;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor hidden = s.bias.defined() ? at::addmm(s.bias, state.h, right) : at::mm(state.h, right);
    TakeStep(s.kind, inputs[PlaceOf(s, i, inputs.size())], hidden, state, trace);
    state.h = trace.h.back();
    if (s.kind == CellKind::kLstm) state.c = trace.c.back();
  }
  return trace;
}

std::pair<Tensor, CellState> Outcome(const Steps& s, const Trace& trace) {
  return {at::stack(InTime(s, trace.h), 0), {trace.h.back(), trace.c.empty() ? Tensor() : trace.c.back()}};
}

// Gradients of what the steps read.
struct StepsGradient {
  Tensor gates, weight, bias;
  CellState first;
};

// From the gradients of the states of all steps and of the last state, either of which may be undefined, not all.
StepsGradient Backward(const Steps& s, const Trace& trace, const Tensor& output, CellState state) {
  const size_t count = trace.h.size();
  const std::vector<Tensor> outputs = output.defined() ? output.unbind(0) : std::vector<Tensor>(count);
  variable_list inputs(count), hiddens(count), former(count);  // hiddens: where they aren't the input's
  for (size_t i = count; i-- > 0;) {
    const Tensor& own = outputs[PlaceOf(s, i, count)];
    if (own.defined()) state.h = state.h.defined() ? state.h + own : own;
    former[i] = i > 0 ? trace.h[i - 1] : s.first.h;
    switch (s.kind) {
      case CellKind::kLstm:
        std::tie(inputs[i], state.c, std::ignore) = at::_thnn_fused_lstm_cell_backward_impl(
            OptionalOf(state.h), OptionalOf(state.c), i > 0 ? trace.c[i - 1] : s.first.c, trace.c[i],
            trace.workspace[i], false);
        state.h = inputs[i].mm(s.weight);
        break;
      case CellKind::kGru:
        std::tie(inputs[i], hiddens[i], state.h, std::ignore, std::ignore) =
            at::_thnn_fused_gru_cell_backward(state.h, trace.workspace[i], false);
        state.h = at::addmm(state.h, hiddens[i], s.weight);
        break;
      case CellKind::kTanh:
        inputs[i] = at::tanh_backward(state.h, trace.h[i]);
        state.h = inputs[i].mm(s.weight);
        break;
      case CellKind::kRelu:
        inputs[i] = at::threshold_backward(state.h, trace.h[i], 0);
        state.h = inputs[i].mm(s.weight);
        break;
    }
  }
  const auto all = [&](variable_list of_steps) { return at::stack(InTime(s, std::move(of_steps)), s.time); };
  StepsGradient gradient;
  gradient.gates = all(std::move(inputs));
  const Tensor hidden = hiddens[0].defined() ? all(std::move(hiddens)) : gradient.gates;
  gradient.weight = hidden.flatten(0, 1).t().mm(all(std::move(former)).flatten(0, 1));
  if (s.bias.defined()) gradient.bias = hidden.sum({0, 1});
  gradient.first = std::move(state);
  return gradient;
}

class StepsFunction : public torch::autograd::Function<StepsFunction> {
 public:
  static constexpr size_t kArguments = 8;

  static variable_list forward(AutogradContext* context, const Tensor& gates, const Tensor& weight,
                               const std::optional<Tensor>& bias, const Tensor& h, const std::optional<Tensor>& c,
                               int64_t kind, int64_t time, bool backwards) {
    const Steps s{static_cast<CellKind>(kind), time, backwards, gates, weight, bias.value_or(Tensor()),
                  {h, c.value_or(Tensor())}};
    const Trace trace = TakeSteps(s);
    context->set_materialize_grads(false);
    context->saved_data["kind"] = kind;
    context->saved_data["time"] = time;
    context->saved_data["backwards"] = backwards;
    variable_list saved{s.gates, s.weight, s.bias, s.first.h, s.first.c};
    for (const variable_list* of_steps : {&trace.h, &trace.c, &trace.workspace}) {
      saved.insert(saved.end(), of_steps->begin(), of_steps->end());
    }
    context->save_for_backward(std::move(saved));
    auto [output, last] = Outcome(s, trace);
    variable_list results{std::move(output), std::move(last.h)};
    if (last.c.defined()) results.push_back(std::move(last.c));
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (std::none_of(grads.begin(), grads.end(), [](const Tensor& grad) { return grad.defined(); })) {
      return variable_list(kArguments);
    }
    const variable_list saved = context->get_saved_variables();
    const Steps s{static_cast<CellKind>(context->saved_data["kind"].toInt()),
                  context->saved_data["time"].toInt(),
                  context->saved_data["backwards"].toBool(),
                  saved[0],
                  saved[1],
                  saved[2],
                  {saved[3], saved[4]}};
    const StepsGradient g =
        at::GradMode::is_enabled() ? Derivable(s, grads) : Backward(s, TraceOf(s, saved), grads[0], StateOf(grads));
    return {g.gates, g.weight, g.bias, g.first.h, g.first.c, {}, {}, {}};
  }

 private:
  static CellState StateOf(const variable_list& grads) { return {grads[1], grads.size() > 2 ? grads[2] : Tensor()}; }

  static Trace TraceOf(const Steps& s, const variable_list& saved) {
    const auto count = s.gates.size(s.time);
    auto next = saved.begin() + 5;
    Trace trace;
    for (variable_list* of_steps : {&trace.h, &trace.c, &trace.workspace}) {
      if (next == saved.end() || (of_steps == &trace.c && s.kind != CellKind::kLstm)) continue;
      of_steps->assign(next, next + count);
      next += count;
    }
    return trace;
  }

  // As above by operators that are recorded, for second derivatives: the steps are taken once more.
  static StepsGradient Derivable(const Steps& s, const variable_list& grads) {
    const auto [output, last] = Outcome(s, TakeSteps(s));
    variable_list outputs, output_grads, inputs;
    const Tensor* const outcome[] = {&output, &last.h, &last.c};
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      outputs.push_back(*outcome[i]);
      output_grads.push_back(grads[i]);
    }
    StepsGradient gradient;
    const std::pair<const Tensor*, Tensor*> read[] = {{&s.gates, &gradient.gates},
                                                      {&s.weight, &gradient.weight},
                                                      {&s.bias, &gradient.bias},
                                                      {&s.first.h, &gradient.first.h},
                                                      {&s.first.c, &gradient.first.c}};
    std::vector<Tensor*> wanted;
    for (const auto& [input, grad] : read) {
      if (!input->defined() || !input->requires_grad()) continue;
      inputs.push_back(*input);
      wanted.push_back(grad);
    }
    variable_list found = torch::autograd::grad(outputs, inputs, output_grads, true, true, true);
    for (size_t i = 0; i < wanted.size(); ++i) *wanted[i] = std::move(found[i]);
    return gradient;
  }
};

// Functions of one's own can't be transformed (torch.func), nor traced and derived forwards as these are.
bool IsOneNode(const Steps& s) {
  if (!at::GradMode::is_enabled() || c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradPrivateUse1) ||
      c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) {
    return false;
  }
  bool derived = false;
  for (const Tensor* t : {&s.gates, &s.weight, &s.bias, &s.first.h, &s.first.c}) {
    if (IsTakenApart(*t)) return false;
    derived |= t->defined() && t->requires_grad();
  }
  return derived;
}

}  // namespace

std::pair<Tensor, CellState> RunSteps(const Steps& s) {
  if (!IsOneNode(s)) return Outcome(s, TakeSteps(s));
  variable_list results = StepsFunction::apply(s.gates, s.weight, OptionalOf(s.bias), s.first.h, OptionalOf(s.first.c),
                                               static_cast<int64_t>(s.kind), s.time, s.backwards);
  return {results[0], {results[1], results.size() > 2 ? results[2] : Tensor()}};
}

}  // namespace tpu
