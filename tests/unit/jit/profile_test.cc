#include "jit/profile.h"

#include "gtest/gtest.h"

namespace tpu {
namespace {

Profile Sample() {
  Profile p;
  p.runs = {2, 40};
  p.nanoseconds = {900, 8000};
  p.compile_nanoseconds = 5;
  p.tuning = "products=1";
  p.decisions = {{"streams=5", 200, 300, false}, {"products=1", 200, 150, true}};
  p.finished = true;
  p.kernels = {{"add, exp", 3, 700, 96}};
  return p;
}

TEST(Profile, IsReadAsItWasWritten) { EXPECT_EQ(Profile::Decode(Sample().Encode()), Sample()); }

TEST(Profile, AnythingButAWholeEncodingIsNone) {
  const std::string whole = Sample().Encode();
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(Profile::Decode(whole.substr(0, size))) << size;
  EXPECT_FALSE(Profile::Decode(whole + "x"));
}

TEST(Profile, MergingAddsCountsAndKeepsWhatThisProcessDecided) {
  Profile ours = Sample();
  Profile theirs = Sample();
  theirs.tuning = "step_ns=1";
  theirs.decisions = {{"streams=5", 200, 100, true}, {"step_ns=1", 200, 180, true}};
  ours.Merge(theirs);
  EXPECT_EQ(ours.runs, (std::array<int64_t, 2>{4, 80}));
  EXPECT_EQ(ours.nanoseconds, (std::array<int64_t, 2>{1800, 16000}));
  EXPECT_EQ(ours.tuning, "products=1");
  ASSERT_EQ(ours.decisions.size(), 3);
  EXPECT_EQ(ours.decisions[0], Sample().decisions[0]);
  EXPECT_EQ(ours.decisions[2].candidate, "step_ns=1");
}

TEST(Profile, AProcessThatDecidedNothingTakesTheOthersBest) {
  Profile ours;
  ours.runs = {1, 20};
  ours.Merge(Sample());
  EXPECT_EQ(ours.tuning, "products=1");
  EXPECT_TRUE(ours.finished);
  EXPECT_EQ(ours.kernels, Sample().kernels);
  EXPECT_EQ(ours.runs[1], 60);
}

TEST(Profile, OldCountsWeighLess) {
  Profile p = Sample();
  p.Age();
  EXPECT_EQ(p.runs[1], 20);
  EXPECT_EQ(p.nanoseconds[1], 4000);
}

}  // namespace
}  // namespace tpu
