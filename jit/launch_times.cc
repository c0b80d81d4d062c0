#include "jit/launch_times.h"

#include <algorithm>
#include <vector>

namespace tpu {
namespace {

bool Less(int64_t time, int64_t than) {
  constexpr double kWorthIt = 0.97;
  return static_cast<double>(time) <= kWorthIt * static_cast<double>(than);
}

}  // namespace

LaunchTimes LaunchTimes::Of(absl::Span<const int64_t> launches) {
  if (launches.empty()) return {};
  std::vector<int64_t> sorted(launches.begin(), launches.end());
  std::sort(sorted.begin(), sorted.end());
  return {sorted[0], sorted[sorted.size() / 4], sorted[sorted.size() / 2]};
}

bool LaunchTimes::FasterThan(const LaunchTimes& other) const {
  return Less(median, other.median) && Less(quarter, other.quarter);
}

bool LaunchTimes::PerhapsFasterThan(const LaunchTimes& other) const {
  return Less(median, other.median) || Less(quarter, other.quarter);
}

}  // namespace tpu
