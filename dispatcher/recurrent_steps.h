// One direction of a recurrent layer, once its input has been multiplied for all steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace tpu {

enum class CellKind : int8_t { kLstm, kGru, kTanh, kRelu };

struct CellState {
  at::Tensor h, c;  // [batch, hidden]; c: of an LSTM
};

struct Steps {
  CellKind kind;
  int64_t time;  // the dim of `gates` along which the steps lie
  bool backwards;
  at::Tensor gates;   // [time, batch, gates * hidden], or batch first: the input's part
  at::Tensor weight;  // [gates * hidden, hidden]
  at::Tensor bias;    // [gates * hidden]: of the hidden part, or undefined
  CellState first;
};

// The states h of all steps, [time, batch, hidden] in the order of the gates', and the last state. Where autograd
// records, all steps are one node of its graph (as cuDNN's layers are), so that the weight's gradient is one product.
std::pair<at::Tensor, CellState> RunSteps(const Steps& steps);

}  // namespace tpu
