// Tunings: what is offered for a program, and that programs of other tunings compute the same.
#include "compiler/host/candidates.h"
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
  return program.ok() ? Candidates(*program, best, measured) : std::vector<Tuning>();
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
  EXPECT_EQ(first(1000, 50'000'000), "prefetch=0");
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
  Tuning none;
  none.prefetch = 0;
  const auto with = CompileText(text), without = CompileText(text, none);
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

}  // namespace
}  // namespace tpu::host
