#include "runtime/host/failures.h"

#include <algorithm>

namespace tpu::host {

void Failures::Fail(size_t step, const absl::Status& error) {
  if (first_.ok()) first_ = error;
  const Step& s = plan_.steps[step];
  for (uint32_t i = s.num_inputs; i < s.slots.size(); ++i) {
    const std::vector<uint32_t>& sure = s.kernel.sure;
    if (std::find(sure.begin(), sure.end(), i) == sure.end()) Lose(s, s.slots[i]);
  }
}

void Failures::LeaveOut(size_t step, const absl::Status& error) {
  if (first_.ok()) first_ = error;
  left_out_[step] = true;
  LoseResults(plan_.steps[step]);
}

bool Failures::LeaveOutIfLost(size_t step) {
  if (!WorksOnLost(plan_.steps[step])) return false;
  LeaveOut(step, first_);
  return true;
}

void Failures::Spread(size_t step) {
  const Step& s = plan_.steps[step];
  if (WorksOnLost(s)) LoseResults(s);
}

void Failures::LoseResults(const Step& step) {
  for (uint32_t i = step.num_inputs; i < step.slots.size(); ++i) Lose(step, step.slots[i]);
}

// What it writes, too: a part of that may be there already.
bool Failures::WorksOnLost(const Step& step) const {
  return std::any_of(step.slots.begin(), step.slots.end(), [&](uint32_t slot) { return lost_[slot]; });
}

// With the slots of the same bytes: other temporaries there live at other times.
void Failures::Lose(const Step& step, uint32_t slot) {
  lost_[slot] = true;
  const Slot& lost = plan_.slots[slot];
  if (lost.kind != Slot::Kind::kOutput && lost.kind != Slot::Kind::kCall) return;
  for (size_t i = 0; i < lost_.size(); ++i) {
    const Slot& other = plan_.slots[i];
    if (other.kind != lost.kind || other.index != lost.index) continue;
    const bool meet = other.offset < lost.offset + lost.bytes && lost.offset < other.offset + other.bytes;
    if (meet || step.kind == Step::Kind::kCall) lost_[i] = true;  // a call makes the whole buffer
  }
}

bool Failures::Lost(size_t output) const {
  const OutputSpec& spec = plan_.outputs[output];
  const bool call = spec.kind == OutputSpec::Kind::kCall;
  if (!call && spec.kind != OutputSpec::Kind::kFresh) return false;
  for (size_t i = 0; i < lost_.size(); ++i) {
    const Slot& slot = plan_.slots[i];
    if (!lost_[i] || slot.kind != (call ? Slot::Kind::kCall : Slot::Kind::kOutput)) continue;
    if (slot.index == (call ? spec.source : output)) return true;
  }
  return false;
}

bool Failures::Written(size_t output) const {
  for (size_t i = 0; i < plan_.steps.size(); ++i) {
    const Step& step = plan_.steps[i];
    if (left_out_[i]) continue;
    if (step.kind == Step::Kind::kCopy) {  // from the very input: nothing was copied
      const Slot& from = plan_.slots[step.slots[0]];
      if (from.kind == Slot::Kind::kInput && static_cast<int>(from.index) == plan_.outputs[output].may_overwrite)
        continue;
    }
    for (size_t j = step.num_inputs; j < step.slots.size(); ++j) {
      const Slot& slot = plan_.slots[step.slots[j]];
      if (slot.kind == Slot::Kind::kOutput && slot.index == output) return true;
    }
  }
  return false;
}

}  // namespace tpu::host
