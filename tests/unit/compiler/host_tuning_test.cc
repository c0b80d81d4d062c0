// Tunings: what is offered for a program, and that programs of other tunings compute the same.
#include <algorithm>

#include "absl/strings/str_replace.h"
#include "compiler/host/candidates.h"
#include "runtime/host/conv.h"
#include "tests/unit/compiler/host_testing.h"

namespace tpu::host {
namespace {

// Softmax over rows and, apart from it, a sum over columns.
constexpr char kKernels[] = R"(
  func.func @fragment(%x: tensor<200x333xf32>, %y: tensor<200x333xf32>)
      -> (tensor<200x333xf32>, tensor<333xf32>, tensor<200x333xf32>) {
    %s = tpu.add %x, %y : tensor<200x333xf32>
    %e = tpu.exp %s : tensor<200x333xf32>
    %sum = tpu.reduce sum %e [1] : (tensor<200x333xf32>) -> tensor<200xf32>
    %b = tpu.broadcast %sum [0] : (tensor<200xf32>) -> tensor<200x333xf32>
    %p = tpu.div %e, %b : tensor<200x333xf32>
    %c = tpu.reduce sum %y [0] : (tensor<200x333xf32>) -> tensor<333xf32>
    %t = tpu.mul %x, %y : tensor<200x333xf32>
    return %p, %c, %t : tensor<200x333xf32>, tensor<333xf32>, tensor<200x333xf32>
  })";

// Read along its columns, beside what is read along its rows.
constexpr char kTurned[] = R"(
  func.func @fragment(%x: tensor<200x333xf32>, %y: tensor<200x333xf32>) -> tensor<333x200xf32> {
    %z = tpu.reshape %y : (tensor<200x333xf32>) -> tensor<333x200xf32>
    %t = tpu.transpose %x [1, 0] : (tensor<200x333xf32>) -> tensor<333x200xf32>
    %s = tpu.add %t, %z : tensor<333x200xf32>
    return %s : tensor<333x200xf32>
  })";

// No loop nest.
constexpr char kScan[] = R"(
  func.func @fragment(%x: tensor<2000x100xf32>) -> tensor<2000x100xf32> {
    %y = tpu.scan sum %x along 1 : tensor<2000x100xf32>
    return %y : tensor<2000x100xf32>
  })";

// A product, a square and a product; 200 = 12 panels and a part.
constexpr char kProducts[] = R"(
  func.func @fragment(%x: tensor<200x96xf32>, %w: tensor<96x160xf32>, %v: tensor<160x70xf32>) -> tensor<200x70xf32> {
    %h = tpu.dot %x, %w batch [] x [] contract [1] x [0]
        : (tensor<200x96xf32>, tensor<96x160xf32>) -> tensor<200x160xf32>
    %a = tpu.mul %h, %h : tensor<200x160xf32>
    %y = tpu.dot %a, %v batch [] x [] contract [1] x [0]
        : (tensor<200x160xf32>, tensor<160x70xf32>) -> tensor<200x70xf32>
    return %y : tensor<200x70xf32>
  })";

std::vector<Tuning> Offered(const std::string& text, const Tuning& best = {},
                            const std::vector<KernelTime>& measured = {}) {
  auto program = CompileText(text, best);
  EXPECT_TRUE(program.ok()) << program.status();
  std::vector<Tuning> offered;
  if (!program.ok()) return offered;
  for (const Candidate& candidate : Candidates(*program, best, measured)) offered.push_back(candidate.tuning);
  return offered;
}

bool TurnsProducts(const Tuning& tuning) { return tuning.products != 0; }

TEST(HostTuning, ProductsAreTurnedOnlyWhereThereAreSome) {
  for (const Tuning& tuning : Offered(kKernels)) EXPECT_FALSE(TurnsProducts(tuning)) << tuning.ToString();
  Tuning best;
  best.products = 1;
  int kinds = 0;
  for (const Tuning& tuning : Offered(kProducts, best)) {
    EXPECT_TRUE(tuning.products & 1) << tuning.ToString();  // one knob at a time, never back
    kinds += tuning.products == 3 ? 1 : 0;
  }
  EXPECT_EQ(kinds, 1);
}

TEST(HostTuning, WhatTakesLongestIsTurnedFirst) {
  const auto first = [](int64_t product, int64_t square) {
    const std::vector<KernelTime> measured = {
        {"dot 200x160x96", 10, product, 0}, {"mul", 10, square, 0}, {"something else", 10, 1'000'000'000, 0}};
    const std::vector<Tuning> offered = Offered(kProducts, {}, measured);
    EXPECT_FALSE(offered.empty());
    return offered.empty() ? "" : offered[0].ToString();
  };
  EXPECT_EQ(first(50'000'000, 1000), "products=1");
  EXPECT_EQ(first(1000, 50'000'000), UsualPrefetch() > 0 ? "prefetch=0" : "prefetch=2048");
  EXPECT_EQ(Offered(kProducts)[0].ToString(), "products=1");  // as estimated
}

TEST(HostTuning, KernelsComputeTheSameBitsUnderEveryTuning) {
  for (const char* text : {kKernels, kTurned}) {
    const std::vector<Bytes> inputs = {Pack(Ramp(200 * 333)), Pack(Ramp(200 * 333, 0.2f, 1.0f))};
    const auto expected = RunText(text, inputs);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const std::vector<Tuning> offered = Offered(text);
    EXPECT_FALSE(offered.empty());
    for (const Tuning& tuning : offered) {
      const auto got = RunText(text, inputs, false, tuning);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_EQ(*got, *expected) << tuning.ToString();
    }
  }
}

TEST(HostTuning, OrderOfLoopsAndSizeOfTasksCanBeTurned) {
  const auto changes = [](const char* text, int Tuning::* knob, int value) {
    Tuning turned;
    turned.*knob = value;
    const auto usual = CompileText(text), other = CompileText(text, turned);
    EXPECT_TRUE(usual.ok() && other.ok()) << usual.status() << other.status();
    return usual.ok() && other.ok() && usual->bytes != other->bytes;
  };
  EXPECT_TRUE(changes(kTurned, &Tuning::tile, 0));
  EXPECT_FALSE(changes(kKernels, &Tuning::tile, 0));
  EXPECT_TRUE(changes(kKernels, &Tuning::task_us, 100));
  EXPECT_TRUE(changes(kScan, &Tuning::task_us, 100));
}

// Whether the code asks memory for what it will read, which a tuning can leave out.
bool AsksAhead(const std::string& text) {
  Tuning ahead, none;
  ahead.prefetch = 2048;
  none.prefetch = 0;
  const auto with = CompileText(text, ahead), without = CompileText(text, none);
  EXPECT_TRUE(with.ok() && without.ok()) << with.status() << without.status();
  return with.ok() && without.ok() && with->bytes != without->bytes;
}

TEST(HostTuning, WhatIsReadInLongRunsIsAskedForAhead) {
  EXPECT_TRUE(AsksAhead(kKernels));
  const auto square = [](const std::string& type) {
    return "func.func @fragment(%x: " + type + ") -> " + type + " { %y = tpu.mul %x, %x : " + type +
           " return %y : " + type + " }";
  };
  EXPECT_TRUE(AsksAhead(square("tensor<64x64xf32>")));
  EXPECT_FALSE(AsksAhead(square("tensor<63x64xf32>")));  // less than 16 KiB
  EXPECT_TRUE(AsksAhead(R"(
    func.func @fragment(%x: tensor<64x640xf32>) -> tensor<640xf32> {
      %y = tpu.reduce sum %x [0] : (tensor<64x640xf32>) -> tensor<640xf32>
      return %y : tensor<640xf32>
    })"));
  EXPECT_FALSE(AsksAhead(R"(
    func.func @fragment(%x: tensor<256x256xf32>) -> tensor<256x16xf32> {
      %y = tpu.slice %x [0, 0] to [256, 16] by [1, 1] : (tensor<256x256xf32>) -> tensor<256x16xf32>
      %z = tpu.mul %y, %y : tensor<256x16xf32>
      return %z : tensor<256x16xf32>
    })"));  // rows of 64 bytes, a KiB apart
}

TEST(HostTuning, ProductsAreThoseOfPlainLoopsUnderEveryTuning) {
  const auto x = Ramp(200 * 96, 0.1f, -0.7f), w = Ramp(96 * 160, 0.2f, -1.5f), v = Ramp(160 * 70);
  for (const Tuning& tuning : Offered(kProducts)) {
    const auto got = RunText(kProducts, {Pack(x), Pack(w), Pack(v)}, false, tuning);
    ASSERT_TRUE(got.ok()) << got.status();
    const auto y = Unpack<float>((*got)[0]);
    std::vector<double> row(160);
    for (int64_t i = 0; i < 200; ++i) {
      for (int64_t j = 0; j < 160; ++j) {
        double h = 0;
        for (int64_t p = 0; p < 96; ++p) h += x[i * 96 + p] * w[p * 160 + j];
        row[j] = h * h;
      }
      for (int64_t j = 0; j < 70; ++j) {
        double sum = 0, size = 0;
        for (int64_t p = 0; p < 160; ++p) {
          sum += row[p] * v[p * 70 + j];
          size += std::abs(row[p] * v[p * 70 + j]);
        }
        ASSERT_NEAR(y[i * 70 + j], sum, 1e-5 * size) << tuning.ToString() << " " << i << " " << j;
      }
    }
  }
}

// A convolution, and the gradients of one, of images of 6 x 9.
std::string Convolution(const std::string& stride, int groups = 1) {
  const std::string y = stride == "2, 2" ? "tensor<2x8x3x5xf32>" : "tensor<2x8x6x9xf32>";
  const std::string w = absl::StrCat("tensor<8x", 4 / groups, "x3x3xf32>");
  return "func.func @fragment(%x: tensor<2x4x6x9xf32>, %w: " + w + ", %b: tensor<8xf32>, %dy: " + y + ") -> (" + y +
         ", tensor<2x4x6x9xf32>, " + w + ", tensor<8xf32>) {\n" +
         R"(%y = tpu.aten "aten::convolution"(%x, %w, %b) [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.tensor<2>, array<i64: )" +
         stride + ">, array<i64: 1, 1>, array<i64: 1, 1>, false, array<i64: 0, 0>, " + absl::StrCat(groups) +
         "] {node = 0 : i64} : (tensor<2x4x6x9xf32>, " + w + ", tensor<8xf32>) -> " + y + "\n" +
         R"(%g:3 = tpu.aten "aten::convolution_backward"(%dy, %x, %w) [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.tensor<2>, )" +
         "array<i64: 8>, array<i64: " + stride + ">, array<i64: 1, 1>, array<i64: 1, 1>, false, array<i64: 0, 0>, " +
         absl::StrCat(groups) + ", array<i1: true, true, true>] {node = 1 : i64} : (" + y + ", tensor<2x4x6x9xf32>, " +
         w + ") -> (tensor<2x4x6x9xf32>, " + w + ", tensor<8xf32>)\n" + "return %y, %g#0, %g#1, %g#2 : " + y +
         ", tensor<2x4x6x9xf32>, " + w + ", tensor<8xf32>\n}";
}

// Calls that are left in the program when convolutions are not to be the library's.
int64_t CallsLeft(const std::string& text) {
  const auto program = CompileText(text, {.convolutions = 1});
  EXPECT_TRUE(program.ok()) << program.status();
  const auto plan = Plan::Parse(program->bytes);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return std::count_if(plan->steps.begin(), plan->steps.end(),
                       [](const Step& step) { return step.kind == Step::Kind::kCall; });
}

class HostConvolutions : public testing::Test {
  void SetUp() override {
    ConvStep small;
    small.rows = small.cols = {.in = 1, .out = 1};
    if (!CanConvolve(small)) GTEST_SKIP() << "this processor has no panels";
  }
};

TEST_F(HostConvolutions, AreOfferedByWhatTheCallsTook) {
  const std::vector<KernelTime> calls = {{"aten::convolution", 10, 50'000'000, 0}};
  EXPECT_EQ(Offered(Convolution("1, 1"), {.convolutions = 0}, calls)[0].convolutions, 1);
  for (const Tuning& tuning : Offered(kKernels))
    EXPECT_EQ(tuning.convolutions, Tuning().convolutions) << tuning.ToString();
}

TEST_F(HostConvolutions, StayCallsWhereTheDeviceHasNoStep) {
  EXPECT_EQ(CallsLeft(Convolution("1, 1")), 0);
  EXPECT_EQ(CallsLeft(Convolution("2, 2")), 0);
  EXPECT_EQ(CallsLeft(Convolution("1, 1", 2)), 0);
  EXPECT_EQ(CallsLeft(absl::StrReplaceAll(Convolution("1, 1"), {{"f32", "f64"}})), 2);
}

// A window that covers the image: products of matrices.
TEST_F(HostConvolutions, ThatDoNotSlideAreNone) {
  const std::string text = absl::StrReplaceAll(
      Convolution("1, 1"),
      {{"x3x3xf32", "x6x9xf32"},
       {"tensor<2x8x6x9", "tensor<2x8x1x1"},
       {"i64: 1, 1>, array<i64: 1, 1>, array<i64: 1, 1>", "i64: 1, 1>, array<i64: 0, 0>, array<i64: 1, 1>"}});
  const auto program = CompileText(text, {.convolutions = 1});
  ASSERT_TRUE(program.ok()) << program.status();
  const auto plan = Plan::Parse(program->bytes);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const Step& step : plan->steps) {
    EXPECT_TRUE(step.kind == Step::Kind::kGemm || step.kind == Step::Kind::kKernel) << step.label;
  }
}

TEST_F(HostConvolutions, AreThoseOfPlainLoops) {
  for (const int groups : {1, 2, 4}) {
    const size_t in = 4 / groups;
    const auto x = Ramp(2 * 4 * 6 * 9, 0.1f, -0.7f), w = Ramp(8 * in * 9, 0.2f, -1.5f), b = Ramp(8),
               dy = Ramp(2 * 8 * 6 * 9);
    const auto got =
        RunText(Convolution("1, 1", groups), {Pack(x), Pack(w), Pack(b), Pack(dy)}, false, {.convolutions = 1});
    ASSERT_TRUE(got.ok()) << got.status();
    std::vector<double> y(dy.size()), dx(x.size()), dw(w.size()), db(b.size());
    for (size_t i = 0; i < dy.size(); ++i) {
      const size_t n = i / (8 * 54), o = i / 54 % 8, row = i % 54 / 9, col = i % 9;
      y[i] = b[o];
      db[o] += dy[i];
      for (size_t j = 0; j < in * 9; ++j) {
        const size_t c = o * groups / 8 * in + j / 9, at_row = row + j % 9 / 3 - 1, at_col = col + j % 3 - 1;
        if (at_row >= 6 || at_col >= 9) continue;
        const size_t at = ((n * 4 + c) * 6 + at_row) * 9 + at_col;
        y[i] += double{x[at]} * w[o * in * 9 + j];
        dx[at] += double{dy[i]} * w[o * in * 9 + j];
        dw[o * in * 9 + j] += double{dy[i]} * x[at];
      }
    }
    const std::vector<double>* const expected[] = {&y, &dx, &dw, &db};
    for (size_t r = 0; r < 4; ++r) {
      const auto found = Unpack<float>((*got)[r]);
      ASSERT_EQ(found.size(), expected[r]->size());
      for (size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], (*expected[r])[i], 2e-4) << r << " " << i << " of " << groups;
    }
  }
}

}  // namespace
}  // namespace tpu::host
