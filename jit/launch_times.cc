#include "jit/launch_times.h"

#include <algorithm>
#include <cmath>

namespace tpu {
namespace {

bool Less(int64_t time, int64_t than) {
  constexpr double kWorthIt = 0.97;
  return static_cast<double>(time) <= kWorthIt * static_cast<double>(than);
}
// One in a hundred is, of samples that are compared once.
constexpr double kHardlyByChance = 2.33;

}  // namespace

LaunchTimes::LaunchTimes(absl::Span<const int64_t> launches) : sorted_(launches.begin(), launches.end()) {
  std::sort(sorted_.begin(), sorted_.end());
}

double LaunchTimes::Score(const LaunchTimes& other) const {
  const auto n = static_cast<double>(sorted_.size()), m = static_cast<double>(other.sorted_.size());
  double shorter = 0;
  for (int64_t time : sorted_) {
    const auto [first, last] = std::equal_range(other.sorted_.begin(), other.sorted_.end(), time);
    shorter += static_cast<double>(other.sorted_.end() - last) + static_cast<double>(last - first) / 2;
  }
  return (shorter - n * m / 2) / std::sqrt(n * m * (n + m + 1) / 12);
}

bool LaunchTimes::FasterThan(const LaunchTimes& other) const {
  return Less(median(), other.median()) && Less(quarter(), other.quarter()) && Score(other) >= kHardlyByChance;
}

bool LaunchTimes::PerhapsFasterThan(const LaunchTimes& other) const {
  return Less(median(), other.median()) || Less(quarter(), other.quarter());
}

}  // namespace tpu
