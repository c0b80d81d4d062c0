// Scatters, scans, sorting, pooling; plans: donation, aliases, empty values.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_replace.h"
#include "tests/unit/compiler/host_testing.h"

namespace tpu::host {
namespace {

TEST(Scatter, RowsAddUpInOrder) {
  const char* text = R"(func.func @fragment(%i: tensor<4xi64>, %u: tensor<4x70xf32>) -> tensor<5x70xf32> {
    %z = tpu.constant dense<0.0> : tensor<5x70xf32>
    %0 = tpu.scatter_rows add %u into %z at %i along 0 : (tensor<5x70xf32>, tensor<4xi64>, tensor<4x70xf32>) -> tensor<5x70xf32>
    return %0 : tensor<5x70xf32> })";
  auto u = Ramp(280);
  std::vector<int64_t> at = {3, 0, 3, 4};
  std::vector<float> want(350, 0.0f);
  for (int i = 0; i < 4; ++i) {
    for (int c = 0; c < 70; ++c) want[at[i] * 70 + c] += u[i * 70 + c];
  }
  EXPECT_EQ(RunFor<float>(text, {Pack(at), Pack(u)}), want);
  EXPECT_EQ(StepsOf(text).size(), 1u);
  at[2] = -1;
  EXPECT_EQ(RunText(text, {Pack(at), Pack(u)}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(Scatter, AlongEveryDim) {
  for (int dim : {0, 1}) {
    std::string text = absl::StrCat(
        "func.func @fragment(%b: tensor<4x3xf32>, %i: tensor<2x3xi64>, %u: tensor<2x3xf32>) -> tensor<4x3xf32> {"
        "%0 = tpu.scatter set %u into %b at %i along ",
        dim, " : (tensor<4x3xf32>, tensor<2x3xi64>, tensor<2x3xf32>) -> tensor<4x3xf32> return %0 : tensor<4x3xf32> }");
    std::vector<float> b = Ramp(12), u = {1, 2, 3, 4, 5, 6}, want = b;
    std::vector<int64_t> at = {2, 0, 1, 1, 2, 0};
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 3; ++j) {
        int64_t k = at[i * 3 + j];
        want[dim == 0 ? k * 3 + j : i * 3 + k] = u[i * 3 + j];
      }
    }
    EXPECT_EQ(RunFor<float>(text, {Pack(b), Pack(at), Pack(u)}), want) << dim;
  }
}

// Of sums of 2000 taken rows, which go to 300 and to places beyond, each must be what it is in order.
void CheckSums(const std::string& order, std::vector<int64_t> to) {
  constexpr int64_t kFrom = 50, kRows = 300, kWidth = 37;
  const auto count = static_cast<int64_t>(to.size());
  const std::string text = absl::StrReplaceAll(
      R"(func.func @fragment(%x: tensor<50x37xf32>, %i: tensor<COUNTxi64>, %to: tensor<COUNTxi64>, %w: tensor<COUNTxf32>)
          -> tensor<300x37xf32> {
    %0 = tpu.sum_taken %x at %i times %w to ORDER %to
        : (tensor<50x37xf32>, tensor<COUNTxi64>, tensor<COUNTxi64>, tensor<COUNTxf32>) -> tensor<300x37xf32>
    return %0 : tensor<300x37xf32> })",
      {{"COUNT", absl::StrCat(count)}, {"ORDER", order}});
  const std::vector<float> x = Ramp(kFrom * kWidth), w = Ramp(count);
  std::vector<int64_t> from;
  for (int64_t i = 0; i < count; ++i) from.push_back(i * 7919 % kFrom);
  std::vector<float> want(kRows * kWidth, 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    if (to[i] < 0 || to[i] >= kRows) continue;
    for (int64_t c = 0; c < kWidth; ++c) want[to[i] * kWidth + c] += w[i] * x[from[i] * kWidth + c];
  }
  EXPECT_EQ(RunFor<float>(text, {Pack(x), Pack(from), Pack(to), Pack(w)}), want) << order << count;
  from[count / 2] = kFrom;
  EXPECT_EQ(RunText(text, {Pack(x), Pack(from), Pack(to), Pack(w)}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(SumTaken, AddsInOrderAndLeavesOut) {
  for (int64_t count : {1, 16, 37, 2000}) {
    std::vector<int64_t> to;
    for (int64_t i = 0; i < count; ++i) to.push_back((i * 31 + 5) % 310 - 3);
    CheckSums("", to);
    std::sort(to.begin(), to.end());
    CheckSums("sorted", to);
  }
}

TEST(SumTaken, WidensHalves) {
  const char* text = R"(func.func @fragment(%x: tensor<2x1xf16>, %i: tensor<3xi64>) -> tensor<2x1xf32> {
    %0 = tpu.sum_taken %x at %i to %i : (tensor<2x1xf16>, tensor<3xi64>, tensor<3xi64>) -> tensor<2x1xf32>
    return %0 : tensor<2x1xf32> })";
  const std::vector<uint16_t> x = {0x3c01, 0x6800};  // 1 + 2^-10, 2048
  EXPECT_EQ(RunFor<float>(text, {Pack(x), Pack<int64_t>({1, 0, 1})}), (std::vector<float>{1.0009765625f, 4096}));
}

TEST(Scan, RunsAlongBothDims) {
  for (int dim : {0, 1}) {
    std::string text =
        absl::StrCat("func.func @fragment(%x: tensor<5x8xf32>) -> tensor<5x8xf32> { %0 = tpu.scan sum %x along ", dim,
                     " : tensor<5x8xf32> return %0 : tensor<5x8xf32> }");
    auto x = Ramp(40);
    std::vector<float> want(40);
    for (int i = 0; i < 5; ++i) {
      for (int j = 0; j < 8; ++j) {
        double sum = 0;
        for (int k = 0; k <= (dim == 0 ? i : j); ++k) sum += dim == 0 ? x[k * 8 + j] : x[i * 8 + k];
        want[i * 8 + j] = static_cast<float>(sum);
      }
    }
    EXPECT_EQ(RunFor<float>(text, {Pack(x)}), want) << dim;
  }
}

TEST(Sort, IsStableAndPutsNaNLast) {
  const char* text = R"(func.func @fragment(%x: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xi64>) {
    %v, %i = tpu.sort %x along 0 descending false : (tensor<6xf32>) -> (tensor<6xf32>, tensor<6xi64>)
    return %v, %i : tensor<6xf32>, tensor<6xi64> })";
  EXPECT_EQ(RunFor<int64_t>(text, {Pack(std::vector<float>{2, NAN, 1, 2, -INFINITY, 1})}, 1),
            (std::vector<int64_t>{4, 2, 5, 0, 3, 1}));
}

TEST(Pool, MaxAndItsIndicesWithPadding) {
  const char* text = R"(func.func @fragment(%x: tensor<1x4x4xf32>) -> (tensor<1x2x2xf32>, tensor<1x2x2xi64>) {
    %0 = tpu.window_reduce max %x window [3, 3] strides [2, 2] dilation [1, 1] padding [1, 1] [1, 1] : (tensor<1x4x4xf32>) -> tensor<1x2x2xf32>
    %1 = tpu.window_arg_reduce max %x window [3, 3] strides [2, 2] dilation [1, 1] padding [1, 1] [1, 1] : (tensor<1x4x4xf32>) -> tensor<1x2x2xi64>
    return %0, %1 : tensor<1x2x2xf32>, tensor<1x2x2xi64> })";
  std::vector<float> x = {1, 5, 2, 0, 3, 4, 9, 1, 0, -1, 2, 2, 7, 7, 3, NAN};
  auto values = RunFor<float>(text, {Pack(x)});
  ASSERT_EQ(values.size(), 4u);
  EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + 3), (std::vector<float>{5, 9, 7}));
  EXPECT_TRUE(std::isnan(values[3]));
  EXPECT_EQ(RunFor<int64_t>(text, {Pack(x)}, 1), (std::vector<int64_t>{1, 6, 12, 15}));
}

TEST(Plan, OneOutputMayLieOverADonatedInput) {
  const char* text =
      R"(func.func @fragment(%a: tensor<64xf32>, %b: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
    %0 = tpu.add %b, %b : tensor<64xf32>
    %1 = tpu.reverse %b [0] : tensor<64xf32>
    %2 = tpu.mul %a, %1 : tensor<64xf32>
    return %0, %2 : tensor<64xf32>, tensor<64xf32> })";
  auto program = CompileText(text);
  ASSERT_TRUE(program.ok()) << program.status();
  auto plan = Plan::Parse(program->bytes);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // b is read backwards too: only a may be written over, by one of them.
  EXPECT_EQ(plan->outputs[0].may_overwrite + plan->outputs[1].may_overwrite, -1);
}

TEST(Plan, AScatterWritesOverItsBaseUnlessThatIsReadLater) {
  const std::string scatter =
      R"(func.func @fragment(%b: tensor<5x3xf32>, %i: tensor<2xi64>, %u: tensor<2x3xf32>) -> %R {
    %0 = tpu.scatter_rows add %u into %b at %i along 0 : (tensor<5x3xf32>, tensor<2xi64>, tensor<2x3xf32>) -> tensor<5x3xf32>
    )";
  const std::string one = "tensor<5x3xf32>", two = "(tensor<5x3xf32>, tensor<5x3xf32>)";
  const std::string alone = absl::StrReplaceAll(scatter + "return %0 : tensor<5x3xf32> }", {{"%R", one}});
  const std::string read = absl::StrReplaceAll(
      scatter + "%1 = tpu.neg %b : tensor<5x3xf32> return %0, %1 : tensor<5x3xf32>, tensor<5x3xf32> }", {{"%R", two}});
  const auto base = Ramp(15), updates = Ramp(6);
  auto want = base;
  for (int c = 0; c < 3; ++c) {
    want[12 + c] += updates[c];
    want[3 + c] += updates[3 + c];
  }
  for (const std::string& text : {alone, read}) {
    auto program = CompileText(text);
    ASSERT_TRUE(program.ok()) << program.status();
    EXPECT_EQ(Plan::Parse(program->bytes)->outputs[0].may_overwrite, text == alone ? 0 : -1);
    auto results = RunText(text, {Pack(base), Pack(std::vector<int64_t>{4, 1}), Pack(updates)}, /*donate=*/true);
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_EQ(Unpack<float>((*results)[0]), want);
  }
}

TEST(Plan, WhatNothingReadsIsWrittenOver) {
  const char* text =
      R"(func.func @fragment(%a: tensor<5x3xf32>, %b: tensor<5x3xf32>, %n: tensor<f32>) -> tensor<5x3xf32> {
    %0 = tpu.broadcast %n [] : (tensor<f32>) -> tensor<5x3xf32>
    return %0 : tensor<5x3xf32> })";
  auto program = CompileText(text);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(Plan::Parse(program->bytes)->outputs[0].may_overwrite, 0);
}

TEST(Plan, ScattersIntoEachOthersResultsShareOneTemporary) {
  const char* text =
      R"(func.func @fragment(%b: tensor<64x16xf32>, %i: tensor<2xi64>, %u: tensor<2x16xf32>) -> tensor<64x16xf32> {
    %0 = tpu.scatter_rows add %u into %b at %i along 0 : (tensor<64x16xf32>, tensor<2xi64>, tensor<2x16xf32>) -> tensor<64x16xf32>
    %1 = tpu.scatter_rows add %u into %0 at %i along 0 : (tensor<64x16xf32>, tensor<2xi64>, tensor<2x16xf32>) -> tensor<64x16xf32>
    %2 = tpu.scatter_rows add %u into %1 at %i along 0 : (tensor<64x16xf32>, tensor<2xi64>, tensor<2x16xf32>) -> tensor<64x16xf32>
    return %2 : tensor<64x16xf32> })";
  auto program = CompileText(text);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(Plan::Parse(program->bytes)->arena_bytes, 64 * 16 * sizeof(float));
  auto want = Ramp(64 * 16);
  for (int c = 0; c < 16; ++c) {
    for (int row : {0, 1}) {
      for (int times = 0; times < 3; ++times) want[(row == 0 ? 63 : 5) * 16 + c] += Ramp(32)[row * 16 + c];
    }
  }
  const std::vector<Bytes> inputs = {Pack(Ramp(64 * 16)), Pack(std::vector<int64_t>{63, 5}), Pack(Ramp(32))};
  EXPECT_EQ(RunFor<float>(text, inputs), want);
}

TEST(Plan, DonatedInputsAreReadBeforeTheyAreWritten) {
  const char* text =
      R"(func.func @fragment(%a: tensor<1000xf32>, %b: tensor<1000xf32>) -> (tensor<1000xf32>, tensor<1000xf32>) {
    %0 = tpu.add %b, %b : tensor<1000xf32>
    %1 = tpu.mul %a, %b : tensor<1000xf32>
    return %0, %1 : tensor<1000xf32>, tensor<1000xf32> })";
  auto a = Ramp(1000), b = Ramp(1000, 0.2f, 1);
  auto results = RunText(text, {Pack(a), Pack(b)}, /*donate=*/true);
  ASSERT_TRUE(results.ok()) << results.status();
  auto first = Unpack<float>((*results)[0]), second = Unpack<float>((*results)[1]);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(first[i], b[i] + b[i]);
    EXPECT_EQ(second[i], a[i] * b[i]);
  }
}

TEST(Plan, ReshapesAndInputsAreNotCopied) {
  const char* text = R"(func.func @fragment(%a: tensor<6xf32>) -> (tensor<2x3xf32>, tensor<3x2xf32>, tensor<6xf32>) {
    %0 = tpu.reshape %a : (tensor<6xf32>) -> tensor<2x3xf32>
    %1 = tpu.neg %a : tensor<6xf32>
    %2 = tpu.reshape %1 : (tensor<6xf32>) -> tensor<3x2xf32>
    return %0, %2, %1 : tensor<2x3xf32>, tensor<3x2xf32>, tensor<6xf32> })";
  auto a = Ramp(6);
  EXPECT_EQ(RunFor<float>(text, {Pack(a)}, 0), a);
  for (float& x : a) x = -x;
  auto negated = RunFor<float>(text, {Pack(Ramp(6))}, 1);
  EXPECT_EQ(negated, a);
  EXPECT_EQ(RunFor<float>(text, {Pack(Ramp(6))}, 2), a);
  EXPECT_EQ(StepsOf(text).size(), 1u);
}

TEST(Plan, EmptyValues) {
  const char* text = R"(func.func @fragment(%a: tensor<0x4xf32>) -> (tensor<0x4xf32>, tensor<4xf32>, tensor<4x0xf32>) {
    %0 = tpu.neg %a : tensor<0x4xf32>
    %1 = tpu.reduce sum %a [0] : (tensor<0x4xf32>) -> tensor<4xf32>
    %2 = tpu.transpose %0 [1, 0] : (tensor<0x4xf32>) -> tensor<4x0xf32>
    return %0, %1, %2 : tensor<0x4xf32>, tensor<4xf32>, tensor<4x0xf32> })";
  EXPECT_EQ(RunFor<float>(text, {Bytes()}, 1), std::vector<float>(4, 0.0f));
}

}  // namespace
}  // namespace tpu::host
