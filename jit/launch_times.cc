#include "jit/launch_times.h"

#include <algorithm>
#include <vector>

namespace tpu {
namespace {

constexpr double kWorthIt = 0.97;

}  // namespace

LaunchTimes LaunchTimes::Of(absl::Span<const int64_t> launches) {
  if (launches.empty()) return {};
  std::vector<int64_t> sorted(launches.begin(), launches.end());
  std::sort(sorted.begin(), sorted.end());
  return {sorted[0], sorted[sorted.size() / 4], sorted[sorted.size() / 2]};
}

bool LaunchTimes::FasterThan(const LaunchTimes& other) const {
  const auto less = [](int64_t time, int64_t than) {
    return static_cast<double>(time) <= kWorthIt * static_cast<double>(than);
  };
  // Both, because either alone errs where other processes disturb.
  return less(median, other.median) && less(quarter, other.quarter);
}

}  // namespace tpu
