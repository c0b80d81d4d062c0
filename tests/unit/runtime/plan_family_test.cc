#include "runtime/host/plan_family.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "runtime/polynomial.h"

namespace tpu {
namespace {

TEST(Polynomial, GoesThroughItsPoints) {
  const int64_t sizes[] = {13, 14, 33, 61};
  for (const Polynomial p : {Polynomial{{7, 0, 0}}, Polynomial{{-3, 5, 0}}, Polynomial{{2, -1, 4}}}) {
    std::vector<int64_t> values;
    for (int64_t s : sizes) values.push_back(p.At(s));
    const auto found = Polynomial::Through(sizes, values);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->coefficients, p.coefficients);
  }
}

TEST(Polynomial, RefusesWhatIsNone) {
  const int64_t sizes[] = {13, 14, 33, 61};
  EXPECT_FALSE(Polynomial::Through(sizes, {6, 7, 16, 30}));               // half of the size
  EXPECT_FALSE(Polynomial::Through(sizes, {1, 2, 4, 9}));                 // nothing at all
  EXPECT_FALSE(Polynomial::Through(sizes, {INT64_MAX, 0, 1, 2}));         // beyond what sizes are
  EXPECT_FALSE(Polynomial::Through(sizes, {2197, 2744, 35937, 226981}));  // cubes
}

}  // namespace

namespace host {
namespace {

// One product of [size, 8] by [8, 4], by way of a temporary.
Plan PlanAt(int64_t size) {
  Plan plan;
  plan.num_inputs = 2;
  const auto bytes = [](int64_t elements) { return static_cast<uint64_t>(elements) * 4; };
  plan.slots = {{Slot::Kind::kInput, 0, 0, bytes(size * 8)},
                {Slot::Kind::kInput, 1, 0, bytes(8 * 4)},
                {Slot::Kind::kTemp, 0, 0, bytes(size * 4)},
                {Slot::Kind::kOutput, 0, 0, bytes(size * 4)}};
  plan.outputs = {{.bytes = bytes(size * 4)}};
  plan.arena_bytes = (bytes(size * 4) + 63) / 64 * 64;
  Step dot{.kind = Step::Kind::kGemm, .label = "dot", .slots = {0, 1, 2}};
  dot.gemm = {.m = size, .n = 4, .k = 8, .lda = 8, .ldb = 4, .ldc = 4};
  Step copy{.kind = Step::Kind::kCopy, .label = "copy", .slots = {2, 3}};
  plan.steps = {dot, copy};
  return plan;
}

PlanFamily Family() { return *PlanFamily::Join({PlanAt(13), PlanAt(14), PlanAt(37), PlanAt(61)}, {13, 14, 37, 61}); }

TEST(PlanFamily, GivesThePlanOfEverySize) {
  const PlanFamily family = Family();
  for (int64_t size = 13; size <= 61; ++size) EXPECT_EQ(family.At(size)->Serialize(), PlanAt(size).Serialize()) << size;
  EXPECT_EQ(family.At(12).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(family.At(62).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(PlanFamily, SurvivesItsBytes) {
  const std::string bytes = Family().Serialize();
  EXPECT_EQ(PlanFamily::Parse(bytes)->At(40)->Serialize(), PlanAt(40).Serialize());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(PlanFamily::Parse(bytes.substr(0, size)).ok()) << size;
}

TEST(PlanFamily, ADamagedNumberIsNoPlan) {
  PlanFamily family = Family();
  for (PlanFamily::Number& number : family.numbers) number.value.coefficients[1] *= 3;
  family.numbers[0].value.coefficients[0] -= 1 << 20;
  EXPECT_FALSE(family.At(40).ok());
  family = Family();
  family.numbers.back().place = 1 << 20;
  EXPECT_FALSE(family.At(40).ok());
}

TEST(PlanFamily, ReadsNoneWithTileLoops) {
  PlanFamily family = Family();
  family.plan.tile_loops = {{.first = 0, .count = 1, .tiles = 1}};
  EXPECT_FALSE(PlanFamily::Parse(family.Serialize()).ok());
}

TEST(PlanFamily, RefusesPlansThatDifferInMore) {
  Plan other = PlanAt(37);
  other.steps.pop_back();
  other.slots.pop_back();
  other.outputs.clear();
  EXPECT_EQ(PlanFamily::Join({PlanAt(13), PlanAt(14), other, PlanAt(61)}, {13, 14, 37, 61}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Plan odd = PlanAt(37);
  odd.steps[0].gemm.k = 7;
  EXPECT_EQ(PlanFamily::Join({PlanAt(13), PlanAt(14), odd, PlanAt(61)}, {13, 14, 37, 61}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace host
}  // namespace tpu
