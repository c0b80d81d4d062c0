// Whether one way of running the same work is faster than another, told by launches of both in turn.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace tpu {

// Of some launches, in nanoseconds. None: zeros.
struct LaunchTimes {
  int64_t least = 0, quarter = 0, median = 0;

  static LaunchTimes Of(absl::Span<const int64_t> launches);
  // So much that it is worth an exchange.
  bool FasterThan(const LaunchTimes& other) const;
  // By the median or the quarter alone, which errs where other processes disturb: more launches would tell.
  bool PerhapsFasterThan(const LaunchTimes& other) const;
};

}  // namespace tpu
