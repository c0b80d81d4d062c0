// Whether one way of running the same work is faster than another, told by launches of both in turn.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tpu {

// Some launches, in nanoseconds.
class LaunchTimes {
 public:
  explicit LaunchTimes(absl::Span<const int64_t> launches);
  // 0: there are none.
  int64_t least() const { return sorted_.empty() ? 0 : sorted_.front(); }
  int64_t median() const { return sorted_.empty() ? 0 : sorted_[sorted_.size() / 2]; }
  // So much that it is worth an exchange, and hardly by chance.
  bool FasterThan(const LaunchTimes& other) const;
  // By the median or the quarter alone, which errs where other processes disturb: more launches would tell.
  bool PerhapsFasterThan(const LaunchTimes& other) const;

 private:
  int64_t quarter() const { return sorted_.empty() ? 0 : sorted_[sorted_.size() / 4]; }
  // By how many standard deviations more of the pairs have the shorter launch here than of two samples of one kind
  // (H. B. Mann, D. R. Whitney: On a test of whether one of two random variables is stochastically larger, 1947).
  double Score(const LaunchTimes& other) const;

  std::vector<int64_t> sorted_;
};

}  // namespace tpu
