// Generated kernels against plain loops: pointwise, views, reductions, indices.
#include <cmath>
#include <numeric>

#include "absl/strings/str_replace.h"
#include "llvm/Support/CommandLine.h"
#include "tests/unit/compiler/host_testing.h"

namespace tpu::host {
namespace {

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, float relative = 1e-5f,
                float absolute = 1e-6f) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << "at " << i << " got " << got[i];
    } else if (std::isinf(want[i])) {
      ASSERT_EQ(got[i], want[i]) << "at " << i;
    } else {
      ASSERT_NEAR(got[i], want[i], absolute + relative * std::abs(want[i])) << "at " << i;
    }
  }
}

std::string Sized(const char* text, int64_t n) { return absl::StrReplaceAll(text, {{"$N", std::to_string(n)}}); }

TEST(Pointwise, EverySizeOfTail) {
  for (int64_t n : {1, 7, 8, 9, 31, 33, 100, 4097, 1000003}) {
    auto a = Ramp(n), b = Ramp(n, 0.2f, 1.0f);
    auto got = RunFor<float>(Sized(R"(func.func @fragment(%a: tensor<$Nxf32>, %b: tensor<$Nxf32>) -> tensor<$Nxf32> {
      %0 = tpu.add %a, %b : tensor<$Nxf32>
      %1 = tpu.mul %0, %a : tensor<$Nxf32>
      return %1 : tensor<$Nxf32> })",
                                   n),
                             {Pack(a), Pack(b)});
    std::vector<float> want(n);
    for (int64_t i = 0; i < n; ++i) want[i] = (a[i] + b[i]) * a[i];
    ExpectNear(got, want);
  }
}

// Those that object_code.cc switches passes off by.
TEST(CodeGenerator, HasItsOptions) {
  for (const char* name : {"disable-lsr", "disable-post-ra"}) {
    EXPECT_EQ(llvm::cl::getRegisteredOptions().count(name), 1u) << name;
  }
}

TEST(Pointwise, SizesShareOneCode) {
  constexpr char kText[] = R"(
    func.func @fragment(%a: tensor<640000xf32>, %b: tensor<1280000xf32>) -> (tensor<640000xf32>, tensor<1280000xf32>) {
      %0 = tpu.mul %a, %a : tensor<640000xf32>
      %1 = tpu.mul %b, %b : tensor<1280000xf32>
      return %0, %1 : tensor<640000xf32>, tensor<1280000xf32> })";
  const std::vector<Step> steps = StepsOf(kText);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].kernel.kernel, steps[1].kernel.kernel);
  const auto a = Ramp(640000), b = Ramp(1280000);
  for (size_t i = 0; i < 2; ++i) {
    std::vector<float> want = i == 0 ? a : b;
    for (float& x : want) x *= x;
    EXPECT_EQ(RunFor<float>(kText, {Pack(a), Pack(b)}, i), want);
  }
}

TEST(Pointwise, WhatAHalfTypeHoldsStaysItsBits) {
  std::vector<uint16_t> all(1 << 16);
  std::iota(all.begin(), all.end(), 0);
  const Bytes yes = Pack(std::vector<uint8_t>(all.size(), 1));
  for (const char* half : {"bf16", "f16"}) {
    const std::string text = absl::StrReplaceAll(
        R"(func.func @fragment(%m: tensor<65536xi1>, %x: tensor<65536xH>) -> (tensor<65536xH>, tensor<65536xH>) {
      %w = tpu.convert %x : (tensor<65536xH>) -> tensor<65536xf32>
      %z = tpu.constant dense<1.5> : tensor<65536xf32>
      %s = tpu.select %m, %w, %z : tensor<65536xi1>, tensor<65536xf32>
      %h = tpu.convert %s : (tensor<65536xf32>) -> tensor<65536xH>
      %n = tpu.neg %x : tensor<65536xH>
      return %h, %n : tensor<65536xH>, tensor<65536xH> })",
        {{"H", half}});
    for (size_t output : {0, 1}) {
      const auto got = RunFor<uint16_t>(text, {yes, Pack(all)}, output);
      ASSERT_EQ(got.size(), all.size());
      for (size_t i = 0; i < all.size(); ++i) {
        const size_t want = output == 1 ? i ^ 0x8000 : i;
        // The CPU's conversions of f16 make signalling NaNs quiet, where there are any left.
        const bool nan = std::string(half) == "f16" && (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0;
        ASSERT_EQ(nan ? got[i] | 0x200 : got[i], nan ? want | 0x200 : want) << half << " output " << output;
      }
    }
  }
}

TEST(Pointwise, ScalarsBroadcast) {
  auto got = RunFor<float>(
      R"(func.func @fragment(%a: tensor<3x5xf32>, %s: tensor<f64>, %b: tensor<5xf32>, %c: tensor<3x1xf32>) -> tensor<3x5xf32> {
      %0 = tpu.convert %s : (tensor<f64>) -> tensor<f32>
      %1 = tpu.broadcast %0 [] : (tensor<f32>) -> tensor<3x5xf32>
      %2 = tpu.broadcast %b [1] : (tensor<5xf32>) -> tensor<3x5xf32>
      %3 = tpu.broadcast %c [0, 1] : (tensor<3x1xf32>) -> tensor<3x5xf32>
      %4 = tpu.mul %a, %1 : tensor<3x5xf32>
      %5 = tpu.add %4, %2 : tensor<3x5xf32>
      %6 = tpu.add %5, %3 : tensor<3x5xf32>
      return %6 : tensor<3x5xf32> })",
      {Pack(Ramp(15)), Pack(std::vector<double>{2.5}), Pack(Ramp(5)), Pack(Ramp(3))});
  auto a = Ramp(15), b = Ramp(5), c = Ramp(3);
  std::vector<float> want(15);
  for (int i = 0; i < 15; ++i) want[i] = a[i] * 2.5f + b[i % 5] + c[i / 5];
  ExpectNear(got, want);
}

TEST(Views, TransposeSliceReshapeReverse) {
  auto a = Ramp(24);
  auto got = RunFor<float>(R"(func.func @fragment(%a: tensor<2x3x4xf32>) -> tensor<8xf32> {
      %0 = tpu.transpose %a [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
      %1 = tpu.slice %0 [0, 0, 1] to [4, 2, 2] by [1, 1, 1] : (tensor<4x2x3xf32>) -> tensor<4x2x1xf32>
      %2 = tpu.reverse %1 [0] : tensor<4x2x1xf32>
      %3 = tpu.reshape %2 : (tensor<4x2x1xf32>) -> tensor<8xf32>
      %4 = tpu.exp %3 : tensor<8xf32>
      return %4 : tensor<8xf32> })",
                           {Pack(a)});
  std::vector<float> want;
  for (int i = 3; i >= 0; --i) {
    for (int j = 0; j < 2; ++j) want.push_back(std::exp(a[j * 12 + 1 * 4 + i]));
  }
  ExpectNear(got, want);
}

TEST(Views, PadConcatStridedSlice) {
  auto a = Ramp(10), b = Ramp(6);
  auto got = RunFor<float>(R"(func.func @fragment(%a: tensor<10xf32>, %b: tensor<6xf32>) -> tensor<14xf32> {
      %z = tpu.constant dense<7.0> : tensor<f32>
      %0 = tpu.slice %a [1] to [10] by [3] : (tensor<10xf32>) -> tensor<3xf32>
      %1 = tpu.pad %0, %z low [2] high [1] interior [1] : (tensor<3xf32>, tensor<f32>) -> tensor<8xf32>
      %2 = tpu.concat %1, %b along 0 : (tensor<8xf32>, tensor<6xf32>) -> tensor<14xf32>
      return %2 : tensor<14xf32> })",
                           {Pack(a), Pack(b)});
  std::vector<float> want = {7, 7, a[1], 7, a[4], 7, a[7], 7};
  want.insert(want.end(), b.begin(), b.end());
  ExpectNear(got, want);
}

// [5, 300] of `type` with its last columns first, three more around each row, and every row reversed.
template <typename T>
void ExpectRowsTurned(const std::string& type) {
  constexpr int64_t kRows = 5, kWidth = 300, kCut = 177;
  std::vector<T> x(kRows * kWidth);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(i * 7919 % 113);
  const auto got = RunText(absl::StrReplaceAll(R"(
    func.func @fragment(%x: tensor<5x300x$T>, %z: tensor<$T>) -> (tensor<5x300x$T>, tensor<5x306x$T>, tensor<5x300x$T>) {
      %0 = tpu.slice %x [0, 177] to [5, 300] by [1, 1] : (tensor<5x300x$T>) -> tensor<5x123x$T>
      %1 = tpu.slice %x [0, 0] to [5, 177] by [1, 1] : (tensor<5x300x$T>) -> tensor<5x177x$T>
      %2 = tpu.concat %0, %1 along 1 : (tensor<5x123x$T>, tensor<5x177x$T>) -> tensor<5x300x$T>
      %3 = tpu.pad %x, %z low [0, 3] high [0, 3] interior [0, 0] : (tensor<5x300x$T>, tensor<$T>) -> tensor<5x306x$T>
      %4 = tpu.reverse %x [1] : tensor<5x300x$T>
      return %2, %3, %4 : tensor<5x300x$T>, tensor<5x306x$T>, tensor<5x300x$T>
    })",
                                               {{"$T", type}}),
                           {Pack(x), Pack(std::vector<T>{T{9}})});
  ASSERT_TRUE(got.ok()) << type << ": " << got.status();
  const auto rolled = Unpack<T>((*got)[0]), padded = Unpack<T>((*got)[1]), reversed = Unpack<T>((*got)[2]);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kWidth; ++j) {
      const T* row = &x[i * kWidth];
      ASSERT_EQ(rolled[i * kWidth + j], row[(j + kCut) % kWidth]) << type << " " << i << " " << j;
      ASSERT_EQ(reversed[i * kWidth + j], row[kWidth - 1 - j]) << type << " " << i << " " << j;
      ASSERT_EQ(padded[i * (kWidth + 6) + j + 3], row[j]) << type << " " << i << " " << j;
    }
    for (int64_t j : {0, 1, 2, 303, 304, 305}) ASSERT_EQ(padded[i * (kWidth + 6) + j], T{9}) << type << " " << j;
  }
}

TEST(Views, RowsOfEveryElementAreTurned) {
  ExpectRowsTurned<float>("f32");
  ExpectRowsTurned<double>("f64");
  ExpectRowsTurned<int8_t>("i8");
  ExpectRowsTurned<int16_t>("i16");
  ExpectRowsTurned<int32_t>("i32");
  ExpectRowsTurned<int64_t>("i64");
}

// Lanes beyond a piece's end divide by what lies in the piece: nothing there is no zero divisor.
TEST(Views, PiecesThatDivideReportNothing) {
  std::vector<int32_t> x(100), y(100);
  for (int i = 0; i < 100; ++i) x[i] = 5 * i, y[i] = i % 4 + 1;
  const auto got = RunFor<int32_t>(R"(func.func @fragment(%x: tensor<100xi32>, %y: tensor<100xi32>) -> tensor<200xi32> {
      %0 = tpu.div %x, %y : tensor<100xi32>
      %1 = tpu.concat %x, %0 along 0 : (tensor<100xi32>, tensor<100xi32>) -> tensor<200xi32>
      return %1 : tensor<200xi32> })",
                                   {Pack(x), Pack(y)});
  ASSERT_EQ(got.size(), 200u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(got[100 + i], x[i] / y[i]) << i;
}

TEST(Views, UpdateSlice) {
  auto a = Ramp(20), b = Ramp(4, 0.1f, 10);
  auto got = RunFor<float>(R"(func.func @fragment(%a: tensor<4x5xf32>, %b: tensor<2x2xf32>) -> tensor<4x5xf32> {
      %0 = tpu.update_slice %b into %a at [1, 0] by [2, 3] : tensor<2x2xf32> into tensor<4x5xf32>
      return %0 : tensor<4x5xf32> })",
                           {Pack(a), Pack(b)});
  auto want = a;
  want[5] = b[0], want[8] = b[1], want[15] = b[2], want[18] = b[3];
  ExpectNear(got, want);
}

// Vectors along two to four positions would be as short: items are of the loop around them, too.
TEST(Woven, ShortInnermostLoopsAreOfTheItemsAround) {
  for (int64_t times : {2, 3, 4}) {
    constexpr int64_t kRows = 5, kColumns = 28;
    const std::string text = absl::StrReplaceAll(R"(func.func @fragment(%a: tensor<5x28xf32>) -> tensor<5x$Mxf32> {
      %0 = tpu.broadcast %a [0, 1] : (tensor<5x28xf32>) -> tensor<5x28x$Nxf32>
      %1 = tpu.reshape %0 : (tensor<5x28x$Nxf32>) -> tensor<5x$Mxf32>
      %2 = tpu.mul %1, %1 : tensor<5x$Mxf32>
      return %2 : tensor<5x$Mxf32> })",
                                                 {{"$N", std::to_string(times)}, {"$M", std::to_string(28 * times)}});
    const std::vector<Step> steps = StepsOf(text);
    ASSERT_EQ(steps.size(), 1u);
    EXPECT_GE(steps[0].kernel.block, kColumns * times);
    const auto a = Ramp(kRows * kColumns);
    std::vector<float> want;
    for (float x : a) want.insert(want.end(), times, x * x);
    EXPECT_EQ(RunFor<float>(text, {Pack(a)}), want);
  }
}

TEST(Reduce, RowsColumnsMiddleAll) {
  for (auto [n, m, k] : {std::array<int64_t, 3>{3, 5, 7}, {64, 33, 40}, {2, 1000, 130}, {1, 1, 9}, {300, 7, 1024}}) {
    auto x = Ramp(n * m * k);
    for (int dim = 0; dim < 3; ++dim) {
      std::array<int64_t, 3> size{n, m, k};
      std::string in = absl::StrCat(n, "x", m, "x", k, "xf32"), out;
      for (int d = 0; d < 3; ++d) {
        if (d != dim) absl::StrAppend(&out, size[d], "x");
      }
      auto got = RunFor<float>(
          absl::StrCat("func.func @fragment(%x: tensor<", in, ">) -> tensor<", out, "f32> { %0 = tpu.reduce sum %x [",
                       dim, "] : (tensor<", in, ">) -> tensor<", out, "f32> return %0 : tensor<", out, "f32> }"),
          {Pack(x)});
      std::vector<double> sum(n * m * k / size[dim], 0.0);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < m; ++j) {
          for (int64_t l = 0; l < k; ++l) {
            int64_t at = dim == 0 ? j * k + l : dim == 1 ? i * k + l : i * m + j;
            sum[at] += x[(i * m + j) * k + l];
          }
        }
      }
      ExpectNear(got, std::vector<float>(sum.begin(), sum.end()), 2e-6f, 2e-5f * std::sqrt(size[dim]));
    }
  }
}

TEST(Reduce, AllElementsAccurately) {
  int64_t n = 1000003;
  auto x = Ramp(n, 0.37f, 0.0f);
  auto got = RunFor<float>(Sized(R"(func.func @fragment(%x: tensor<$Nxf32>) -> tensor<f32> {
     %0 = tpu.reduce sum %x [0] : (tensor<$Nxf32>) -> tensor<f32>
     return %0 : tensor<f32> })",
                                 n),
                           {Pack(x)});
  double want = std::accumulate(x.begin(), x.end(), 0.0);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_NEAR(got[0], want, 1e-6 * want);
}

TEST(Reduce, MaxPropagatesNaNAndArgMaxIsFirst) {
  std::vector<float> x = {1, 5, 5, 2, NAN, 9, -1, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
  const char* text = R"(func.func @fragment(%x: tensor<3x4xf32>) -> (tensor<3xf32>, tensor<3xi64>) {
     %0 = tpu.reduce max %x [1] : (tensor<3x4xf32>) -> tensor<3xf32>
     %1 = tpu.arg_reduce max %x along 1 : (tensor<3x4xf32>) -> tensor<3xi64>
     return %0, %1 : tensor<3xf32>, tensor<3xi64> })";
  ExpectNear(RunFor<float>(text, {Pack(x)}), {5, NAN, -INFINITY});
  EXPECT_EQ(RunFor<int64_t>(text, {Pack(x)}, 1), (std::vector<int64_t>{1, 0, 0}));
}

TEST(Row, SoftmaxIsOneKernel) {
  const char* text = R"(func.func @fragment(%x: tensor<33x100xf32>) -> tensor<33x100xf32> {
     %0 = tpu.reduce max %x [1] : (tensor<33x100xf32>) -> tensor<33xf32>
     %1 = tpu.broadcast %0 [0] : (tensor<33xf32>) -> tensor<33x100xf32>
     %2 = tpu.sub %x, %1 : tensor<33x100xf32>
     %3 = tpu.exp %2 : tensor<33x100xf32>
     %4 = tpu.reduce sum %3 [1] : (tensor<33x100xf32>) -> tensor<33xf32>
     %5 = tpu.broadcast %4 [0] : (tensor<33xf32>) -> tensor<33x100xf32>
     %6 = tpu.div %3, %5 : tensor<33x100xf32>
     return %6 : tensor<33x100xf32> })";
  auto x = Ramp(3300);
  x[105] = INFINITY;
  x[301] = NAN;
  x[402] = -INFINITY;
  std::vector<float> want(3300);
  for (int i = 0; i < 33; ++i) {
    float most = -INFINITY;
    double sum = 0;
    for (int j = 0; j < 100; ++j)
      most = std::isnan(x[i * 100 + j]) ? NAN : std::isnan(most) ? most : std::max(most, x[i * 100 + j]);
    for (int j = 0; j < 100; ++j) sum += std::exp(x[i * 100 + j] - most);
    for (int j = 0; j < 100; ++j) want[i * 100 + j] = std::exp(x[i * 100 + j] - most) / sum;
  }
  ExpectNear(RunFor<float>(text, {Pack(x)}), want);
  EXPECT_EQ(StepsOf(text).size(), 1u);
}

// A lane each, which adds up in order, among the last rows, too.
TEST(Row, ShortRowsGoSideBySide) {
  constexpr int64_t kRows = 67, kColumns = 10;
  const char* text = R"(func.func @fragment(%x: tensor<67x10xf32>) -> (tensor<67x10xf32>, tensor<67xf32>) {
     %0 = tpu.reduce sum %x [1] : (tensor<67x10xf32>) -> tensor<67xf32>
     %1 = tpu.broadcast %0 [0] : (tensor<67xf32>) -> tensor<67x10xf32>
     %2 = tpu.sub %x, %1 : tensor<67x10xf32>
     return %2, %0 : tensor<67x10xf32>, tensor<67xf32> })";
  EXPECT_EQ(StepsOf(text).size(), 1u);
  const auto x = Ramp(kRows * kColumns, 0.37f);
  std::vector<float> sums(kRows, 0), rest = x;
  for (int64_t i = 0; i < kRows * kColumns; ++i) sums[i / kColumns] += x[i];
  for (int64_t i = 0; i < kRows * kColumns; ++i) rest[i] -= sums[i / kColumns];
  EXPECT_EQ(RunFor<float>(text, {Pack(x)}), rest);
  EXPECT_EQ(RunFor<float>(text, {Pack(x)}, 1), sums);
}

TEST(Row, WhatIsTheSameForAWholeRowIsComputedAgain) {
  auto a = Ramp(24, 0.05f);
  auto got = RunFor<float>(R"(func.func @fragment(%a: tensor<3x8xf32>) -> tensor<3x8xf32> {
      %0 = tpu.exp %a : tensor<3x8xf32>
      %1 = tpu.reduce sum %0 [0, 1] : (tensor<3x8xf32>) -> tensor<f32>
      %2 = tpu.broadcast %1 [] : (tensor<f32>) -> tensor<3x8xf32>
      %3 = tpu.mul %0, %2 : tensor<3x8xf32>
      %4 = tpu.iota 0 : tensor<3xf32>
      %5 = tpu.exp %4 : tensor<3xf32>
      %6 = tpu.broadcast %5 [0] : (tensor<3xf32>) -> tensor<3x8xf32>
      %7 = tpu.add %3, %6 : tensor<3x8xf32>
      return %7 : tensor<3x8xf32> })",
                           {Pack(a)});
  std::vector<float> want(24);
  float sum = 0;
  for (float x : a) sum += std::exp(x);
  for (int i = 0; i < 24; ++i) want[i] = std::exp(a[i]) * sum + std::exp(static_cast<float>(i / 8));
  ExpectNear(got, want);
}

TEST(Index, TakeAndItsError) {
  const char* text = R"(func.func @fragment(%w: tensor<6x16xf32>, %i: tensor<3xi64>) -> tensor<3x16xf32> {
     %0 = tpu.take %w at %i along 0 : (tensor<6x16xf32>, tensor<3xi64>) -> tensor<3x16xf32>
     return %0 : tensor<3x16xf32> })";
  auto w = Ramp(96);
  auto got = RunFor<float>(text, {Pack(w), Pack(std::vector<int64_t>{5, 0, 3})});
  std::vector<float> want;
  for (int row : {5, 0, 3}) want.insert(want.end(), w.begin() + row * 16, w.begin() + row * 16 + 16);
  ExpectNear(got, want);
  auto bad = RunText(text, {Pack(w), Pack(std::vector<int64_t>{5, 6, 3})});
  EXPECT_EQ(bad.status().code(), absl::StatusCode::kOutOfRange) << bad.status();
}

// One kernel: %0 takes, %1 is %0's, %2 doubles, %3 divides integers. An error leaves the others theirs.
TEST(Index, TheResultsThatAnErrorSpoilsAreKnown) {
  const char* text = R"(func.func @fragment(%w: tensor<4xf32>, %i: tensor<4xi64>, %n: tensor<4xi64>)
         -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi64>) {
     %0 = tpu.take %w at %i along 0 : (tensor<4xf32>, tensor<4xi64>) -> tensor<4xf32>
     %1 = tpu.mul %0, %w : tensor<4xf32>
     %2 = tpu.add %w, %w : tensor<4xf32>
     %3 = tpu.div %i, %n : tensor<4xi64>
     return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi64> })";
  const std::vector<Step> steps = StepsOf(text);
  ASSERT_EQ(steps.size(), 1u);
  ASSERT_EQ(steps[0].kernel.sure.size(), 1u);
  const auto program = CompileText(text);
  const auto executable = TestDevice().Load(*program);
  const std::vector<float> w = {1, 2, 3, 4};
  const std::vector<int64_t> bad = {0, 4, 1, 2}, n = {1, 1, 1, 1};
  std::vector<Argument> inputs(3);
  inputs[0].buffer = *TestDevice().MakeValue({DType::kFloat32, {4}}, w.data());
  inputs[1].buffer = *TestDevice().MakeValue({DType::kInt64, {4}}, bad.data());
  inputs[2].buffer = *TestDevice().MakeValue({DType::kInt64, {4}}, n.data());
  std::vector<BufferRef> outputs(4);
  EXPECT_EQ((*executable)->Launch(absl::MakeSpan(inputs), absl::MakeSpan(outputs), nullptr).code(),
            absl::StatusCode::kOutOfRange);
  for (const int i : {0, 1, 3}) EXPECT_FALSE(outputs[i]) << i;
  ASSERT_TRUE(outputs[2]);
  EXPECT_EQ(static_cast<const float*>(outputs[2]->data())[3], 8);
}

TEST(Slices, OfOneValueShareTheirKernel) {
  const auto x = Ramp(6 * 64);
  std::string key;
  for (const int64_t at : {1, 2, 4}) {  // rows at and at - 1, which is the first that is read
    const std::string text =
        absl::StrReplaceAll(R"(func.func @fragment(%x: tensor<6x64xf32>) -> tensor<1x64xf32> {
      %0 = tpu.slice %x [$A, 0] to [$B, 64] by [1, 1] : (tensor<6x64xf32>) -> tensor<1x64xf32>
      %1 = tpu.slice %x [$Z, 0] to [$A, 64] by [1, 1] : (tensor<6x64xf32>) -> tensor<1x64xf32>
      %2 = tpu.sub %0, %1 : tensor<1x64xf32>
      return %2 : tensor<1x64xf32> })",
                            {{"$Z", absl::StrCat(at - 1)}, {"$A", absl::StrCat(at)}, {"$B", absl::StrCat(at + 1)}});
    std::vector<float> want(64);
    for (int64_t i = 0; i < 64; ++i) want[i] = x[at * 64 + i] - x[(at - 1) * 64 + i];
    EXPECT_EQ(RunFor<float>(text, {Pack(x)}), want);
    auto program = CompileText(text);
    ASSERT_TRUE(program.ok()) << program.status();
    auto plan = Plan::Parse(program->bytes);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_EQ(plan->kernels.size(), 1u);
    if (at == 2) key = plan->kernels[0].key;
    if (at > 2) {
      EXPECT_EQ(plan->kernels[0].key, key);
    }
  }
}

TEST(Dot, TransposesAreReadInPlace) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      std::string a = ta ? "7x5" : "5x7", b = tb ? "6x7" : "7x6";
      std::string text = absl::StrCat("func.func @fragment(%a: tensor<", a, "xf32>, %b: tensor<", b,
                                      "xf32>) -> tensor<5x6xf32> { %0 = tpu.dot %a, %b batch [] x [] contract [",
                                      ta ? 0 : 1, "] x [", tb ? 1 : 0, "] : (tensor<", a, "xf32>, tensor<", b,
                                      "xf32>) -> tensor<5x6xf32> return %0 : tensor<5x6xf32> }");
      auto x = Ramp(35), y = Ramp(42);
      std::vector<float> want(30);
      for (int i = 0; i < 5; ++i) {
        for (int j = 0; j < 6; ++j) {
          for (int k = 0; k < 7; ++k)
            want[i * 6 + j] += (ta ? x[k * 5 + i] : x[i * 7 + k]) * (tb ? y[j * 7 + k] : y[k * 6 + j]);
        }
      }
      ExpectNear(RunFor<float>(text, {Pack(x), Pack(y)}), want, 1e-5f, 1e-5f);
      EXPECT_EQ(StepsOf(text).size(), 1u);
    }
  }
}

}  // namespace
}  // namespace tpu::host
