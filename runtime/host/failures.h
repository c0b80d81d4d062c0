// What failed in one launch of a plan, and which values that leaves out: a step that works on what a failed one should
// have written fails too. Made by executable.cc at the first failure, on the thread of the launch, and told of steps in
// their order.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "runtime/host/plan.h"

namespace tpu::host {

class Failures {
 public:
  explicit Failures(const Plan& plan) : plan_(plan), lost_(plan.slots.size()), left_out_(plan.steps.size()) {}

  // The step has run and found this: what it writes is lost, but for the sure results of a kernel.
  void Fail(size_t step, const absl::Status& error);
  // The step is not run, because of this: what it writes is lost.
  void LeaveOut(size_t step, const absl::Status& error);
  // The step is left out if it works on what is lost; says whether.
  bool LeaveOutIfLost(size_t step);
  // Likewise of a step that has run, beside the one that failed.
  void Spread(size_t step);

  const absl::Status& first() const { return first_; }
  bool Lost(size_t output) const;
  bool Written(size_t output) const;  // by a step that has run

 private:
  bool WorksOnLost(const Step& step) const;
  void LoseResults(const Step& step);
  void Lose(const Step& step, uint32_t slot);

  const Plan& plan_;
  absl::Status first_;
  std::vector<bool> lost_;      // slots
  std::vector<bool> left_out_;  // steps
};

}  // namespace tpu::host
