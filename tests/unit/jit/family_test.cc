#include "jit/family.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "gtest/gtest.h"
#include "tests/unit/jit/call.h"

namespace tpu {
namespace {

// Of [sizes..., 24] elements and one dim of all the sizes' product.
Fragment At(const SizePoint& sizes) {
  TensorType type{DType::kFloat32, {sizes.begin(), sizes.end()}};
  type.dims.push_back(24);
  auto call = MakeCall("aten::reshape", 1, type);
  call->results = {{DType::kFloat32, {type.elements()}}};
  call->value_types.clear();
  Fragment fragment;
  fragment.nodes = {{call, 0, 0}};
  fragment.operands = {InputId(0)};
  fragment.inputs = call->operands;
  fragment.outputs = {0};
  fragment.num_results = 1;
  return fragment;
}

// A program that only tells which sizes it was asked for.
class Echo final : public ExecutableFamily {
 public:
  explicit Echo(std::vector<SizePoint>* asked) : asked_(asked) {}
  absl::StatusOr<std::unique_ptr<Executable>> At(absl::Span<const int64_t> sizes) override {
    asked_->emplace_back(sizes.begin(), sizes.end());
    return std::unique_ptr<Executable>();
  }

 private:
  std::vector<SizePoint>* const asked_;
};

class FragmentFamilyTest : public testing::Test {
 protected:
  void Serve(const FragmentFamily::Order& order, std::vector<SizePoint>* asked) {
    std::vector<std::unique_ptr<ExecutableFamily>> programs;
    programs.push_back(std::make_unique<Echo>(asked));
    family_.Set(order, std::move(programs));
  }
  // Whether a fragment of these sizes makes the family ask for a program.
  bool Adds(const SizePoint& sizes) { return family_.Add(At(sizes)); }
  // By which of the two programs it would run.
  std::string By(const SizePoint& sizes) {
    one_.clear();
    two_.clear();
    family_.At(At(sizes), 0);
    return !one_.empty() ? "one" : !two_.empty() ? "two" : "none";
  }

  FragmentFamily family_{At({8, 20})};
  std::vector<SizePoint> one_, two_;
};

class PaddedFamilyTest : public testing::Test {
 protected:
  // Whether a fragment of these sizes makes the family ask for a program, which it then gets. Its largest sizes.
  SizePoint StepFor(const SizePoint& sizes) {
    if (!family_.Add(At(sizes))) return {};
    const auto order = family_.Take();
    if (!order) return {};
    EXPECT_EQ(order->points.back(), order->range.most);
    std::vector<std::unique_ptr<ExecutableFamily>> programs;
    programs.push_back(std::make_unique<Echo>(&asked_[order->range.most]));
    family_.Set(*order, std::move(programs));
    return order->range.most;
  }
  // The largest sizes of the program that it would run by.
  SizePoint By(const SizePoint& sizes) {
    for (auto& [step, asked] : asked_) asked.clear();
    family_.At(At(sizes), 0);
    for (auto& [step, asked] : asked_) {
      if (!asked.empty()) return step;
    }
    return {};
  }

  FragmentFamily family_{At({8, 20}), Families::kPadded};
  std::map<SizePoint, std::vector<SizePoint>> asked_;
};

TEST_F(PaddedFamilyTest, HasAProgramForEachStepThatIsMet) {
  EXPECT_EQ(StepFor({8, 20}), SizePoint());
  EXPECT_EQ(StepFor({8, 33}), SizePoint());
  EXPECT_EQ(StepFor({8, 90}), SizePoint{96});
  EXPECT_EQ(By({8, 20}), SizePoint{96});
  EXPECT_EQ(By({8, 97}), SizePoint());
  const uint32_t version = family_.version();
  EXPECT_EQ(StepFor({8, 35}), SizePoint{48});
  EXPECT_NE(family_.version(), version);
  EXPECT_EQ(By({8, 48}), SizePoint{48});
  EXPECT_EQ(By({8, 20}), SizePoint{48});
  EXPECT_EQ(By({8, 49}), SizePoint{96});
  EXPECT_EQ(StepFor({8, 48}), SizePoint());
  EXPECT_EQ(StepFor({8, 97}), SizePoint{128});
  EXPECT_EQ(By({8, 60}), SizePoint{96});
}

TEST_F(PaddedFamilyTest, StepsOfTwoSizesAreCrossed) {
  for (const SizePoint& sizes : {SizePoint{4, 20}, {7, 33}, {12, 47}}) EXPECT_EQ(StepFor(sizes), SizePoint());
  EXPECT_EQ(StepFor({5, 64}), (SizePoint{16, 64}));
  EXPECT_EQ(By({16, 30}), (SizePoint{16, 64}));
  EXPECT_EQ(StepFor({20, 20}), (SizePoint{24, 24}));
  EXPECT_EQ(By({17, 24}), (SizePoint{24, 24}));
  EXPECT_EQ(By({17, 25}), SizePoint());
}

TEST_F(PaddedFamilyTest, NoNumberIsAMultipleByChanceAtAllPoints) {
  for (const int64_t size : {20, 33}) family_.Add(At({8, size}));
  ASSERT_TRUE(family_.Add(At({8, 47})));
  const auto order = family_.Take();
  ASSERT_TRUE(order);
  EXPECT_EQ(order->points.size(), 4);
  EXPECT_EQ(order->points[1][0], order->points[0][0] + 1);
}

TEST_F(FragmentFamilyTest, FollowsOneSizeAfterThree) {
  EXPECT_FALSE(Adds({8, 20}) || Adds({8, 33}));
  EXPECT_TRUE(Adds({8, 47}));
  EXPECT_TRUE(family_.wanted());
  const auto order = family_.Take();
  ASSERT_TRUE(order);
  EXPECT_LE(order->range.least[0], 20);
  EXPECT_GT(order->range.most[0], 47);
  for (size_t i = 0; i < order->points.size(); ++i) {
    EXPECT_EQ(order->fragments[i].StableKey(), At({8, order->points[i][0]}).StableKey());
  }
  Serve(*order, &one_);
  EXPECT_EQ(By({8, 30}), "one");
  EXPECT_EQ(By({9, 30}), "none");
}

TEST_F(FragmentFamilyTest, FollowsTwoSizesAfterFour) {
  EXPECT_FALSE(Adds({4, 20}) || Adds({7, 33}) || Adds({12, 47}));
  EXPECT_TRUE(Adds({5, 64}));
  const auto order = family_.Take();
  ASSERT_TRUE(order);
  std::set<int64_t> values[2];
  for (size_t i = 0; i < order->points.size(); ++i) {
    const SizePoint& point = order->points[i];
    ASSERT_EQ(point.size(), 2);
    EXPECT_LE(std::gcd(point[0], point[1]), 2) << point[0] << " by " << point[1];
    for (size_t d = 0; d < 2; ++d) values[d].insert(point[d]);
    EXPECT_EQ(order->fragments[i].StableKey(), At(point).StableKey());
  }
  EXPECT_EQ(order->points.size(), values[0].size() * values[1].size());
  for (size_t d = 0; d < 2; ++d) {
    EXPECT_GE(values[d].size(), 4);
    int64_t divisor = 0;  // of all differences: remainders by it are one at all of them
    for (const int64_t value : values[d]) divisor = std::gcd(divisor, value - *values[d].begin());
    EXPECT_EQ(divisor, 1);
    EXPECT_EQ(order->range.least[d], *values[d].begin());
    EXPECT_EQ(order->range.most[d], *values[d].rbegin());
    EXPECT_EQ(order->points.back()[d], order->range.most[d]);
  }
  Serve(*order, &two_);
  for (const SizePoint& sizes : {SizePoint{6, 30}, {30, 30}, {30, 6 * 30}, {40, 10}}) EXPECT_EQ(By(sizes), "two");
  EXPECT_EQ(By({2, 30}), "none");
  EXPECT_FALSE(Adds({6, 30}));
}

TEST_F(FragmentFamilyTest, IsWidenedToASecondSize) {
  for (const int64_t length : {20, 33, 47}) Adds({8, length});
  const auto one = family_.Take();
  ASSERT_TRUE(one);
  Serve(*one, &one_);
  EXPECT_FALSE(Adds({5, 64}));
  EXPECT_TRUE(Adds({12, 50}));
  EXPECT_EQ(By({8, 30}), "one");
  const auto two = family_.Take();
  ASSERT_TRUE(two);
  EXPECT_EQ(two->range.least.size(), 2);
  Serve(*two, &two_);
  EXPECT_EQ(By({8, 30}), "one");
  EXPECT_EQ(By({9, 30}), "two");
}

TEST_F(FragmentFamilyTest, WhereNoProgramForTwoCanBeMadeOneSizeIsStillFollowed) {
  for (const SizePoint& sizes : {SizePoint{4, 20}, {7, 33}, {12, 47}, {5, 64}}) Adds(sizes);
  ASSERT_TRUE(family_.wanted());
  while (family_.Take()) {
  }
  EXPECT_FALSE(family_.wanted() || family_.ready());
  EXPECT_FALSE(Adds({9, 40}) || Adds({9, 60}));
  EXPECT_TRUE(Adds({9, 70}));
  EXPECT_EQ(family_.Take()->range.least.size(), 1);
}

TEST_F(FragmentFamilyTest, ARangeThatCantBeWidenedIsNotTriedAgain) {
  for (const int64_t length : {20, 33, 47}) Adds({8, length});
  Serve(*family_.Take(), &one_);
  EXPECT_TRUE(Adds({8, 5000}));
  while (family_.Take()) {
  }
  EXPECT_FALSE(Adds({8, 6000}));
  EXPECT_EQ(By({8, 30}), "one");
  EXPECT_EQ(By({8, 5000}), "none");
}

TEST_F(FragmentFamilyTest, WhatFollowsNoSizesIsLeftAlone) {
  const int64_t odd[] = {20, 33, 47, 64, 51, 29, 90, 31, 77, 26, 58, 83, 22, 95, 41, 68, 37, 55};
  for (size_t i = 0; i < std::size(odd); ++i) {
    Fragment fragment = At({odd[i], odd[(i * 7 + 3) % std::size(odd)]});
    fragment.inputs[0].type.dims[2] = 24 + odd[(i * 5 + 1) % std::size(odd)] % 13;  // what no two sizes give
    EXPECT_FALSE(family_.Add(fragment)) << i;
  }
  EXPECT_FALSE(family_.wanted() || family_.ready());
}

// Windows of `rows` rows of [100, 8] elements, the first of them at these elements.
Fragment WindowsAt(const std::vector<int64_t>& begins, int64_t rows = 4) {
  const TensorType base{DType::kFloat32, {100, 8}}, window{DType::kFloat32, {rows, 8}};
  Fragment fragment;
  fragment.inputs = {{base, false}};
  for (const int64_t begin : begins) {
    auto call = MakeCall("tpu::view", 1, base);
    call->results = {window};
    call->value_types.clear();
    call->arguments.resize(4);
    call->arguments[0].kind = CallArgument::Kind::kTensor;
    call->arguments[1].attribute = std::vector<int64_t>{rows, 8};
    call->arguments[2].attribute = std::vector<int64_t>{8, 1};
    call->arguments[3].attribute = begin;
    fragment.nodes.push_back({call, fragment.num_results, fragment.num_results});
    fragment.operands.push_back(InputId(0));
    fragment.outputs.push_back(static_cast<ValueId>(fragment.num_results++));
  }
  return fragment;
}

class FamilyOfPlacesTest : public testing::TestWithParam<Families> {
 protected:
  bool Adds(const std::vector<int64_t>& begins) { return family_.Add(WindowsAt(begins)); }
  // Adds those of which the last makes it ask, and serves that.
  FragmentFamily::Order OrderAfter(std::initializer_list<std::vector<int64_t>> begins) {
    for (const auto& b : begins) EXPECT_EQ(Adds(b), &b == begins.end() - 1) << b[0];
    auto order = family_.Take();
    if (!order) throw std::runtime_error("nothing to make");
    std::vector<std::unique_ptr<ExecutableFamily>> programs;
    programs.push_back(std::make_unique<Echo>(&asked_));
    family_.Set(*order, std::move(programs));
    return *std::move(order);
  }
  // At which places it would run; none: by no program of the family.
  SizePoint Places(const std::vector<int64_t>& begins, int64_t rows = 4) {
    asked_.clear();
    family_.At(WindowsAt(begins, rows), 0);
    return asked_.empty() ? SizePoint() : asked_[0];
  }

  FragmentFamily family_{WindowsAt({0, 0, 0}), GetParam()};
  std::vector<SizePoint> asked_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, FamilyOfPlacesTest,
                         testing::Values(Families::kNone, Families::kOpen, Families::kPadded));

TEST_P(FamilyOfPlacesTest, EachMovesOnItsOwnFromRowToRow) {
  const auto order = OrderAfter({{80, 8, 80}, {320, 48, 320}, {16, 720, 16}, {160, 400, 160}});
  EXPECT_TRUE(order.places);
  EXPECT_EQ(order.points[0], (SizePoint{10, 1}));  // the third goes with the first
  EXPECT_EQ(order.range.least, (SizePoint{0, 1}));
  EXPECT_EQ(order.range.most, (SizePoint{96, 93}));
  EXPECT_EQ(Places({0, 8, 0}), (SizePoint{0, 1}));
  EXPECT_EQ(Places({768, 400, 768}), (SizePoint{96, 50}));
  EXPECT_EQ(Places({80, 80, 80}), (SizePoint{10, 10}));
  EXPECT_EQ(Places({768, 400, 760}), SizePoint());  // the third elsewhere
  EXPECT_EQ(Places({84, 400, 84}), SizePoint());    // in the middle of a row
  EXPECT_EQ(Places({80, 80, 80}, 3), SizePoint());  // another size
  EXPECT_FALSE(Adds({240, 88, 240}));
}

TEST_P(FamilyOfPlacesTest, OfAnyTwoEachIsFirstWhereTheOtherIsLast) {
  const auto order = OrderAfter({{80, 8, 400}, {320, 48, 16}, {16, 720, 48}, {160, 400, 720}});
  const SizePoint &least = order.range.least, &most = order.range.most;
  ASSERT_EQ(least.size(), 3);
  for (size_t a = 0; a < 3; ++a) {
    for (size_t b = 0; b < 3; ++b) {
      const auto is_corner = [&](const SizePoint& p) { return p[a] == least[a] && p[b] == most[b]; };
      EXPECT_TRUE(a == b || std::any_of(order.points.begin(), order.points.end(), is_corner)) << a << " " << b;
    }
  }
  EXPECT_EQ(order.points.size(), order.fragments.size());
}

TEST_P(FamilyOfPlacesTest, OneThatGoesAheadKeepsTheOthersWithinReach) {
  const auto order = OrderAfter({{8, 40, 0}, {16, 48, 0}, {24, 56, 0}, {32, 64, 0}});
  EXPECT_EQ(order.range.least, SizePoint{0});
  EXPECT_EQ(order.range.most, SizePoint{92});
  EXPECT_EQ(Places({0, 32, 0}), SizePoint{0});
  EXPECT_EQ(Places({736, 768, 0}), SizePoint{92});
  EXPECT_EQ(Places({736, 768, 8}), SizePoint());
}

TEST_P(FamilyOfPlacesTest, AlongARowTheyStayInIt) {
  FragmentFamily family(WindowsAt({0}), GetParam());
  const auto columns = [](int64_t begin) {
    Fragment f = WindowsAt({begin});
    auto call = std::make_shared<Call>(*f.nodes[0].call);
    call->arguments[1].attribute = std::vector<int64_t>{100, 2};
    call->results = {{DType::kFloat32, {100, 2}}};
    f.nodes[0].call = call;
    return f;
  };
  for (const int64_t begin : {1, 4, 2}) EXPECT_FALSE(family.Add(columns(begin)));
  ASSERT_TRUE(family.Add(columns(3)));
  const auto order = family.Take();
  ASSERT_TRUE(order);
  EXPECT_EQ(order->range.least, SizePoint{0});
  EXPECT_EQ(order->range.most, SizePoint{6});
}

TEST_P(FamilyOfPlacesTest, AroundTheEndsOfRowsTheyGoAnywhere) {
  const auto order = OrderAfter({{4, 0, 0}, {13, 0, 0}, {30, 0, 0}, {7, 0, 0}});
  EXPECT_EQ(order.range.least, SizePoint{0});
  EXPECT_EQ(order.range.most, SizePoint{768});
}

}  // namespace
}  // namespace tpu
