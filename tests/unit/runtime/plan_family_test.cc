#include "runtime/host/plan_family.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "runtime/host/arena.h"
#include "runtime/polynomial.h"

namespace tpu {
namespace {

constexpr Polynomial Of(std::initializer_list<int64_t> terms) {
  Polynomial p;
  std::copy(terms.begin(), terms.end(), p.terms.begin());
  return p;
}

std::vector<SizePoint> EachWithEach(absl::Span<const int64_t> first, absl::Span<const int64_t> second) {
  std::vector<SizePoint> points;
  for (int64_t a : first) {
    for (int64_t b : second) points.push_back({a, b});
  }
  return points;
}

std::vector<int64_t> ValuesOf(const Polynomial& p, absl::Span<const SizePoint> points) {
  std::vector<int64_t> values;
  for (const SizePoint& point : points) values.push_back(p.At(point));
  return values;
}

TEST(Polynomial, GoesThroughItsPoints) {
  const SizePoint points[] = {{13}, {14}, {33}, {61}};
  for (const Polynomial& p : {Of({7}), Of({-3, 5}), Of({2, -1, 4}), Of({0, 0, 9}), Of({INT64_MAX})}) {
    EXPECT_EQ(Polynomial::Through(points, ValuesOf(p, points)), p);
  }
}

TEST(Polynomial, FollowsTwoSizes) {
  const std::vector<SizePoint> grid = EachWithEach({3, 5, 34, 127}, {7, 11, 26, 241});
  const SizePoint seen[] = {{8, 33}, {5, 20}, {12, 47}, {8, 21}, {40, 40}};
  for (const Polynomial& p : {Of({6}), Of({0, 1}), Of({0, 0, 0, 1}), Of({0, 0, 0, 0, 384}), Of({0, -64, 0, 0, 64}),
                              Of({4, 0, 0, 1}), Of({0, 0, 0, 0, 0, 0, 0, 12}), Of({2, 0, 0, 0, 0, 0, 0, 0, 3})}) {
    EXPECT_EQ(Polynomial::Through(grid, ValuesOf(p, grid)), p);
    EXPECT_EQ(Polynomial::Through(seen, ValuesOf(p, seen)), p);
  }
  const Polynomial padded = Of({4, 2, 0, 2, 1});  // (a + 2) (b + 2)
  EXPECT_EQ(Polynomial::Through(grid, ValuesOf(padded, grid)), padded);
}

TEST(Polynomial, RefusesWhatIsNone) {
  const SizePoint points[] = {{13}, {14}, {33}, {61}};
  EXPECT_FALSE(Polynomial::Through(points, {6, 7, 16, 30}));               // half of the size
  EXPECT_FALSE(Polynomial::Through(points, {1, 2, 4, 9}));                 // nothing at all
  EXPECT_FALSE(Polynomial::Through(points, {INT64_MAX, 0, 1, 2}));         // beyond what sizes are
  EXPECT_FALSE(Polynomial::Through(points, {2197, 2744, 35937, 226981}));  // cubes
  const SizePoint three[] = {{13}, {14}, {33}};
  EXPECT_FALSE(
      Polynomial::Through(three, ValuesOf(Of({2, -1, 4}), three)));  // on some parabola three points always are
}

TEST(Polynomial, FollowsOneOfManyPlaces) {
  const SizePoint points[] = {{3, 50, 7, 900}, {14, 20, 7, 300}, {5, 80, 9, 301}, {40, 0, 1, 0}};
  for (const auto& [fixed, place, times] : {std::tuple{8, 0, 4}, {0, 1, -3}, {-5, 2, 1}, {1 << 30, 3, 1 << 16}}) {
    std::vector<int64_t> values;
    for (const SizePoint& point : points) values.push_back(fixed + times * point[place]);
    const auto p = Polynomial::Through(points, values);
    ASSERT_TRUE(p);
    EXPECT_FALSE(p->fixed());
    const SizePoint other{17, 19, 23, 29};
    EXPECT_EQ(p->At(other), fixed + times * other[place]);
    ByteWriter out;
    p->Write(out);
    const std::string bytes = std::move(out).Take();
    Polynomial again;
    ByteReader in(bytes), few(bytes);
    EXPECT_TRUE(again.Read(in, 4) && again == *p);
    EXPECT_EQ(again.Read(few, place), false);  // of fewer places it is none
  }
  EXPECT_FALSE(Polynomial::Through(points, {53, 34, 85, 40}));    // the sum of two
  EXPECT_FALSE(Polynomial::Through(points, {1, 7, 2, 20}));       // half of one
  EXPECT_FALSE(Polynomial::Through(points, {9, 196, 25, 1600}));  // a square
  EXPECT_TRUE(Polynomial::Through(points, {6, 6, 6, 6})->fixed());
}

TEST(Polynomial, RefusesWhatFollowsTwoSizesOtherwise) {
  const std::vector<SizePoint> grid = EachWithEach({3, 5, 34, 127}, {7, 11, 26, 241});
  const auto refuses = [&](auto number) {
    std::vector<int64_t> values;
    for (const SizePoint& point : grid) values.push_back(number(point[0], point[1]));
    EXPECT_FALSE(Polynomial::Through(grid, values)) << values[1];
  };
  refuses([](int64_t a, int64_t b) { return std::max(a, b); });
  refuses([](int64_t a, int64_t b) { return a * b / 2; });
  refuses([](int64_t a, int64_t b) { return (a + 7) / 8 * b; });
  refuses([](int64_t a, int64_t b) { return a * a * a * b; });
  refuses([](int64_t a, int64_t b) { return a % b; });
  refuses([](int64_t a, int64_t b) { return a * b + (a == 34 && b == 26 ? 1 : 0); });
  const SizePoint huge[] = {{int64_t{1} << 40, 3}, {5, 7}, {7, 11}};
  EXPECT_FALSE(Polynomial::Through(huge, {1, 2, 3}));
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
  Step dot{.kind = Step::Kind::kGemm, .label = "dot", .slots = {0, 1, 2}, .num_inputs = 2};
  dot.gemm = {.m = size, .n = 4, .k = 8, .lda = 8, .ldb = 4, .ldc = 4};
  Step copy{.kind = Step::Kind::kCopy, .label = "copy", .slots = {2, 3}, .num_inputs = 1};
  plan.steps = {dot, copy};
  return plan;
}

const SizePoint kSizes[] = {{13}, {14}, {37}, {61}};

PlanFamily Family() { return *PlanFamily::Join({PlanAt(13), PlanAt(14), PlanAt(37), PlanAt(61)}, kSizes); }

TEST(PlanFamily, GivesThePlanOfEverySize) {
  const PlanFamily family = Family();
  for (int64_t size = 13; size <= 61; ++size)
    EXPECT_EQ(family.At({size})->Serialize(), PlanAt(size).Serialize()) << size;
  EXPECT_EQ(family.At({12}).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(family.At({62}).status().code(), absl::StatusCode::kOutOfRange);
}

// The same of [rows, size] by [size, 4].
Plan PlanAt(int64_t rows, int64_t size) {
  Plan plan = PlanAt(rows);
  plan.slots[0].bytes = static_cast<uint64_t>(rows * size * 4);
  plan.slots[1].bytes = static_cast<uint64_t>(size * 4 * 4);
  plan.steps[0].gemm.k = plan.steps[0].gemm.lda = size;
  return plan;
}

const std::vector<SizePoint> kPairs = EachWithEach({3, 5, 14, 31}, {7, 11, 26, 61});

std::vector<Plan> PlansAtPairs() {
  std::vector<Plan> plans;
  for (const SizePoint& pair : kPairs) plans.push_back(PlanAt(pair[0], pair[1]));
  return plans;
}

TEST(PlanFamily, GivesThePlanOfEveryPairOfSizes) {
  const auto family = PlanFamily::Parse(PlanFamily::Join(PlansAtPairs(), kPairs)->Serialize());
  ASSERT_TRUE(family.ok());
  for (int64_t rows = 3; rows <= 31; ++rows) {
    for (int64_t size = 7; size <= 61; ++size) {
      EXPECT_EQ(family->At({rows, size})->Serialize(), PlanAt(rows, size).Serialize()) << rows << " by " << size;
    }
  }
  for (const SizePoint& beyond : {SizePoint{2, 7}, {32, 7}, {3, 6}, {3, 62}, {3}, {3, 7, 7}}) {
    EXPECT_EQ(family->At(beyond).status().code(), absl::StatusCode::kOutOfRange);
  }
}

TEST(PlanFamily, RefusesPairsOfWhichOneIsNotLikeTheOthers) {
  std::vector<Plan> plans = PlansAtPairs();
  plans[4].steps[0].gemm.n = 3;
  EXPECT_EQ(PlanFamily::Join(std::move(plans), kPairs).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(PlanFamily, SurvivesItsBytes) {
  const std::string bytes = Family().Serialize();
  EXPECT_EQ(PlanFamily::Parse(bytes)->At({40})->Serialize(), PlanAt(40).Serialize());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(PlanFamily::Parse(bytes.substr(0, size)).ok()) << size;
}

TEST(PlanFamily, ADamagedNumberIsNoPlan) {
  PlanFamily family = Family();
  for (PlanFamily::Number& number : family.numbers) number.value.terms[1] *= 3;
  family.numbers[0].value.terms[0] -= 1 << 20;
  EXPECT_FALSE(family.At({40}).ok());
  family = Family();
  family.numbers.back().place = 1 << 20;
  EXPECT_FALSE(family.At({40}).ok());
}

// Four matrices [size, 8] by [8, 4] and what that gives by [4, 4], each in a tile of its own.
Plan TilesAt(int64_t size) {
  Plan plan;
  plan.num_inputs = 3;
  const auto bytes = [](int64_t elements) { return static_cast<uint64_t>(elements) * 4; };
  plan.slots = {{Slot::Kind::kInput, 0, 0, bytes(4 * size * 8)},
                {Slot::Kind::kInput, 1, 0, bytes(8 * 4)},
                {Slot::Kind::kTile, 0, 0, bytes(4 * size * 4)},
                {Slot::Kind::kInput, 2, 0, bytes(4 * 4)},
                {Slot::Kind::kOutput, 0, 0, bytes(4 * size * 4)}};
  plan.outputs = {{.bytes = bytes(4 * size * 4)}};
  Step first{.kind = Step::Kind::kGemm, .label = "dot", .slots = {0, 1, 2}, .num_inputs = 2};
  first.gemm = {.m = size, .n = 4, .k = 8, .lda = 8, .ldb = 4, .ldc = 4, .batch = {4}};
  first.gemm.stride_a = {size * 8}, first.gemm.stride_b = {0}, first.gemm.stride_c = {size * 4};
  Step second{.kind = Step::Kind::kGemm, .label = "dot", .slots = {2, 3, 4}, .num_inputs = 2};
  second.gemm = {.m = size, .n = 4, .k = 4, .lda = 4, .ldb = 4, .ldc = 4, .batch = {4}};
  second.gemm.stride_a = second.gemm.stride_c = {size * 4}, second.gemm.stride_b = {0};
  plan.steps = {first, second};
  plan.tile_loops = {{.first = 0, .count = 2, .parts = 4}};
  PlaceTemporaries(plan);
  return plan;
}

TEST(PlanFamily, HasTileLoops) {
  const auto joined = PlanFamily::Join({TilesAt(13), TilesAt(14), TilesAt(37), TilesAt(61)}, kSizes);
  ASSERT_TRUE(joined.ok()) << joined.status();
  auto family = PlanFamily::Parse(joined->Serialize());
  ASSERT_TRUE(family.ok()) << family.status();
  for (int64_t size = 13; size <= 61; ++size) {
    EXPECT_EQ(family->At({size})->Serialize(), TilesAt(size).Serialize()) << size;
  }
  // A damaged number of parts.
  Plan other = TilesAt(40);
  other.tile_loops[0].parts = 5;
  const std::vector<int64_t> numbers = TilesAt(40).Split().numbers, others = other.Split().numbers;
  const auto differ = std::mismatch(numbers.begin(), numbers.end(), others.begin());
  for (int64_t parts : {-4, 0, 3}) {
    PlanFamily damaged = *family;
    Polynomial value;
    value.terms[0] = parts;
    damaged.numbers.push_back({static_cast<uint32_t>(differ.first - numbers.begin()), value});
    std::sort(damaged.numbers.begin(), damaged.numbers.end(),
              [](const auto& a, const auto& b) { return a.place < b.place; });
    EXPECT_EQ(damaged.At({40}).status().code(), absl::StatusCode::kInvalidArgument) << parts;
    damaged.plan.tile_loops[0].parts = parts;
    EXPECT_FALSE(PlanFamily::Parse(damaged.Serialize()).ok()) << parts;
  }
}

TEST(PlanFamily, RefusesPlansThatDifferInMore) {
  Plan other = PlanAt(37);
  other.steps.pop_back();
  other.slots.pop_back();
  other.outputs.clear();
  EXPECT_EQ(PlanFamily::Join({PlanAt(13), PlanAt(14), other, PlanAt(61)}, kSizes).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Plan odd = PlanAt(37);
  odd.steps[0].gemm.k = 7;
  EXPECT_EQ(PlanFamily::Join({PlanAt(13), PlanAt(14), odd, PlanAt(61)}, kSizes).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace host
}  // namespace tpu
