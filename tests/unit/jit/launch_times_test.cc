#include "jit/launch_times.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tpu {
namespace {

// Launches that take `nanoseconds` and a per cent more or less; of `disturbed` of them others take up to as much again.
std::vector<int64_t> Launches(std::mt19937& random, double nanoseconds, int count, double disturbed) {
  std::normal_distribution<double> noise(1, 0.01);
  std::uniform_real_distribution<double> uniform;
  std::vector<int64_t> launches;
  for (int i = 0; i < count; ++i) {
    const double others = uniform(random) < disturbed ? uniform(random) : 0;
    launches.push_back(static_cast<int64_t>(nanoseconds * noise(random) * (1 + others)));
  }
  return launches;
}

int TimesFaster(double nanoseconds, int count, double disturbed) {
  std::mt19937 random(0);
  int faster = 0;
  for (int i = 0; i < 1000; ++i) {
    const LaunchTimes these(Launches(random, nanoseconds, count, disturbed));
    faster += these.FasterThan(LaunchTimes(Launches(random, 1e6, count, disturbed)));
  }
  return faster;
}

TEST(LaunchTimes, ProgramsThatAreAlikeAreHardlyEverTakenForFaster) {
  for (int count : {9, 16, 40}) {
    for (double disturbed : {0.0, 0.3, 0.7, 1.0}) EXPECT_LE(TimesFaster(1e6, count, disturbed), 20);
  }
}

TEST(LaunchTimes, WhatIsFasterIsFoundWhereLittleElseRuns) {
  for (int count : {16, 40}) EXPECT_GE(TimesFaster(0.95e6, count, 0.1), 950);
}

TEST(LaunchTimes, WhatIsMuchFasterIsFoundBesideOthers) { EXPECT_GE(TimesFaster(0.5e6, 16, 0.7), 950); }

TEST(LaunchTimes, NoLaunches) {
  const LaunchTimes none({});
  EXPECT_EQ(none.median(), 0);
  EXPECT_FALSE(none.FasterThan(none));
}

}  // namespace
}  // namespace tpu
