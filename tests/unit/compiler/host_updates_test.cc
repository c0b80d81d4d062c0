// Updates in place: parts of a large value are computed where they belong, and nothing else is touched.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_replace.h"
#include "tests/unit/compiler/host_testing.h"

namespace tpu::host {
namespace {

// `text` with a bucket of 2^16 floats for $B.
std::string WithBucket(const std::string& text) { return absl::StrReplaceAll(text, {{"$B", "tensor<65536xf32>"}}); }

struct Outcome {
  std::vector<float> bucket;  // the first output
  std::vector<std::vector<float>> rest;
  bool in_place = false;  // the first output has the first input's memory
};

Outcome OutcomeOf(const std::string& text, const std::vector<std::vector<float>>& inputs, bool donate) {
  Outcome outcome;
  auto program = CompileText(text);
  EXPECT_TRUE(program.ok()) << program.status();
  if (!program.ok()) return outcome;
  Device& device = TestDevice();
  auto executable = device.Load(*program);
  std::vector<Argument> arguments(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    arguments[i].buffer =
        *device.MakeValue({DType::kFloat32, {static_cast<int64_t>(inputs[i].size())}}, inputs[i].data());
    arguments[i].donated = donate;
  }
  const void* const memory = arguments[0].buffer->data();
  std::vector<BufferRef> outputs(program->outputs.size());
  const absl::Status status = (*executable)->Launch(absl::MakeSpan(arguments), absl::MakeSpan(outputs), nullptr);
  EXPECT_TRUE(status.ok()) << status;
  if (!status.ok()) return outcome;
  outcome.in_place = outputs[0]->data() == memory;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const float* data = static_cast<const float*>(outputs[i]->data());
    outcome.rest.emplace_back(data, data + outputs[i]->bytes() / sizeof(float));
  }
  outcome.bucket = std::move(outcome.rest.front());
  outcome.rest.erase(outcome.rest.begin());
  return outcome;
}

// A product, scaled; a vector as it is; and the base's own elements, doubled.
const std::string kWritten = WithBucket(R"(
  func.func @fragment(%bucket: $B, %x: tensor<8x64xf32>, %y: tensor<8x32xf32>, %bias: tensor<100xf32>) -> $B {
    %half = tpu.constant dense<0.5> : tensor<64x32xf32>
    %w = tpu.dot %x, %y batch [] x [] contract [0] x [0]
        : (tensor<8x64xf32>, tensor<8x32xf32>) -> tensor<64x32xf32>
    %scaled = tpu.mul %w, %half : tensor<64x32xf32>
    %flat = tpu.reshape %scaled : (tensor<64x32xf32>) -> tensor<2048xf32>
    %0 = tpu.update_slice %flat into %bucket at [1000] by [1] : tensor<2048xf32> into $B
    %1 = tpu.update_slice %bias into %0 at [13] by [1] : tensor<100xf32> into $B
    %own = tpu.slice %bucket [5000] to [9000] by [1] : ($B) -> tensor<4000xf32>
    %twice = tpu.add %own, %own : tensor<4000xf32>
    %2 = tpu.update_slice %twice into %1 at [5000] by [1] : tensor<4000xf32> into $B
    return %2 : $B
  })");

std::vector<float> Expected(std::vector<float> bucket, const std::vector<float>& x, const std::vector<float>& y,
                            const std::vector<float>& bias) {
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 32; ++j) {
      float sum = 0;
      for (int k = 0; k < 8; ++k) sum += x[k * 64 + i] * y[k * 32 + j];
      bucket[1000 + i * 32 + j] = 0.5f * sum;
    }
  }
  std::copy(bias.begin(), bias.end(), bucket.begin() + 13);
  for (int i = 5000; i < 9000; ++i) bucket[i] *= 2;
  return bucket;
}

TEST(UpdatesInPlace, WriteTheirPartsOnly) {
  const auto bucket = Ramp(65536), x = Ramp(512, 0.2f), y = Ramp(256, 0.3f), bias = Ramp(100, 0.1f);
  const auto want = Expected(bucket, x, y, bias);
  for (bool donate : {true, false}) {
    const Outcome got = OutcomeOf(kWritten, {bucket, x, y, bias}, donate);
    EXPECT_EQ(got.in_place, donate);
    ASSERT_EQ(got.bucket.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.bucket[i], want[i], 1e-4) << i;
  }
  int64_t items = 0;
  for (const Step& step : StepsOf(kWritten)) {
    if (step.kind == Step::Kind::kKernel) items += step.kernel.extent();
  }
  EXPECT_LT(items, 8);  // none of them over the bucket's 65536 elements
}

TEST(UpdatesInPlace, AProductIsWrittenWhereItBelongs) {
  const std::string text = WithBucket(R"(
    func.func @fragment(%bucket: $B, %x: tensor<8x64xf32>, %y: tensor<8x32xf32>) -> $B {
      %w = tpu.dot %x, %y batch [] x [] contract [0] x [0]
          : (tensor<8x64xf32>, tensor<8x32xf32>) -> tensor<64x32xf32>
      %flat = tpu.reshape %w : (tensor<64x32xf32>) -> tensor<2048xf32>
      %0 = tpu.update_slice %flat into %bucket at [7] by [1] : tensor<2048xf32> into $B
      return %0 : $B
    })");
  const std::vector<Step> steps = StepsOf(text);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].kind, Step::Kind::kCopy);  // of the bucket, over itself where it is donated
  EXPECT_EQ(steps[1].kind, Step::Kind::kGemm);
  const auto bucket = Ramp(65536), x = Ramp(512, 0.2f), y = Ramp(256, 0.3f);
  EXPECT_EQ(OutcomeOf(text, {bucket, x, y}, true).bucket, OutcomeOf(text, {bucket, x, y}, false).bucket);
}

TEST(UpdatesInPlace, OtherReadersOfTheBaseSeeItsOldElements) {
  const std::string text = WithBucket(R"(
    func.func @fragment(%bucket: $B, %y: tensor<1000xf32>) -> ($B, $B) {
      %0 = tpu.update_slice %y into %bucket at [500] by [1] : tensor<1000xf32> into $B
      %1 = tpu.add %0, %bucket : $B
      return %0, %1 : $B, $B
    })");
  const auto bucket = Ramp(65536), y = Ramp(1000, 0.1f);
  for (bool donate : {true, false}) {
    const Outcome got = OutcomeOf(text, {bucket, y}, donate);
    EXPECT_FALSE(got.in_place);
    ASSERT_EQ(got.rest.size(), 1u);
    for (int i = 0; i < 65536; ++i) {
      const float now = i >= 500 && i < 1500 ? y[i - 500] : bucket[i];
      ASSERT_EQ(got.bucket[i], now) << i;
      ASSERT_EQ(got.rest[0][i], now + bucket[i]) << i;
    }
  }
}

TEST(UpdatesInPlace, ElementsThatMoveAreNotWrittenOverBeforeTheyAreRead) {
  const std::string text = WithBucket(R"(
    func.func @fragment(%bucket: $B) -> $B {
      %from = tpu.slice %bucket [0] to [30000] by [1] : ($B) -> tensor<30000xf32>
      %0 = tpu.update_slice %from into %bucket at [100] by [1] : tensor<30000xf32> into $B
      return %0 : $B
    })");
  const auto bucket = Ramp(65536);
  for (bool donate : {true, false}) {
    const Outcome got = OutcomeOf(text, {bucket}, donate);
    for (int i = 0; i < 65536; ++i) {
      ASSERT_EQ(got.bucket[i], i >= 100 && i < 30100 ? bucket[i - 100] : bucket[i]) << i;
    }
  }
}

TEST(UpdatesInPlace, BitsThatAKernelGivesAreThoseOfAllParts) {
  const std::string text = WithBucket(R"(
    func.func @fragment(%bucket: $B, %x: tensor<32768xf32>, %y: tensor<1000xf32>)
        -> (tensor<65536xi32>, tensor<65536xi32>) {
      %0 = tpu.update_slice %y into %bucket at [500] by [1] : tensor<1000xf32> into $B
      %1 = tpu.bitcast %0 : ($B) -> tensor<65536xi32>
      %2 = tpu.neg %x : tensor<32768xf32>
      %3 = tpu.add %x, %x : tensor<32768xf32>
      %4 = tpu.concat %2, %3 along 0 : (tensor<32768xf32>, tensor<32768xf32>) -> $B
      %5 = tpu.bitcast %4 : ($B) -> tensor<65536xi32>
      return %1, %5 : tensor<65536xi32>, tensor<65536xi32>
    })");
  const auto bucket = Ramp(65536), x = Ramp(32768), y = Ramp(1000, 0.1f);
  for (bool donate : {true, false}) {
    const Outcome got = OutcomeOf(text, {bucket, x, y}, donate);
    ASSERT_EQ(got.rest.size(), 1u);
    for (int i = 0; i < 65536; ++i) {
      ASSERT_EQ(got.bucket[i], i >= 500 && i < 1500 ? y[i - 500] : bucket[i]) << i;
      ASSERT_EQ(got.rest[0][i], i < 32768 ? -x[i] : 2 * x[i - 32768]) << i;
    }
  }
}

TEST(UpdatesInPlace, PartsInManyRunsAreCopiedRunByRun) {
  // Of 32 x 64 x 32: [:, 3:5] written, [:, 9] added to, [:, :, 7] of [:, 9] moved there from [:, :, 8].
  const std::string text = absl::StrReplaceAll(R"(
    func.func @fragment(%x: $B, %y: tensor<32x2x32xf32>, %z: tensor<32x1x32xf32>) -> $B {
      %0 = tpu.update_slice %y into %x at [0, 3, 0] by [1, 1, 1] : tensor<32x2x32xf32> into $B
      %old = tpu.slice %x [0, 9, 0] to [32, 10, 32] by [1, 1, 1] : ($B) -> tensor<32x1x32xf32>
      %sum = tpu.add %old, %z : tensor<32x1x32xf32>
      %1 = tpu.update_slice %sum into %0 at [0, 9, 0] by [1, 1, 1] : tensor<32x1x32xf32> into $B
      %from = tpu.slice %x [0, 10, 8] to [32, 64, 9] by [1, 1, 1] : ($B) -> tensor<32x54x1xf32>
      %2 = tpu.update_slice %from into %1 at [0, 10, 7] by [1, 1, 1] : tensor<32x54x1xf32> into $B
      return %2 : $B
    })",
                                               {{"$B", "tensor<32x64x32xf32>"}});
  const auto x = Ramp(65536), y = Ramp(2048, 0.1f), z = Ramp(1024, 0.3f);
  std::vector<float> want = x;
  const auto at = [](int i, int j, int k) { return (i * 64 + j) * 32 + k; };
  for (int i = 0; i < 32; ++i) {
    for (int k = 0; k < 32; ++k) {
      for (int j : {0, 1}) want[at(i, 3 + j, k)] = y[(i * 2 + j) * 32 + k];
      want[at(i, 9, k)] += z[i * 32 + k];
    }
    for (int j = 10; j < 64; ++j) want[at(i, j, 7)] = x[at(i, j, 8)];
  }
  for (bool donate : {true, false}) {
    const Outcome got = OutcomeOf(text, {x, y, z}, donate);
    EXPECT_EQ(got.in_place, donate);
    EXPECT_EQ(got.bucket, want);
  }
  int64_t items = 0;
  for (const Step& step : StepsOf(text)) {
    if (step.kind == Step::Kind::kKernel) items += step.kernel.rows * step.kernel.row;
  }
  EXPECT_LE(items, 32 * 32 + 32 * 54);  // the sum and what moves, not the 65536 elements
}

TEST(UpdatesInPlace, AStackIsMadeOfWhatIsComputedInIt) {
  const std::string text = R"(
    func.func @fragment(%x: tensor<128x8xf32>, %y: tensor<8x200xf32>)
        -> (tensor<3x128x200xf32>, tensor<128x200xf32>) {
      %p = tpu.dot %x, %y batch [] x [] contract [1] x [0]
          : (tensor<128x8xf32>, tensor<8x200xf32>) -> tensor<128x200xf32>
      %q = tpu.dot %p, %y batch [] x [] contract [1] x [1]
          : (tensor<128x200xf32>, tensor<8x200xf32>) -> tensor<128x8xf32>
      %r = tpu.dot %q, %y batch [] x [] contract [1] x [0]
          : (tensor<128x8xf32>, tensor<8x200xf32>) -> tensor<128x200xf32>
      %p1 = tpu.reshape %p : (tensor<128x200xf32>) -> tensor<1x128x200xf32>
      %r1 = tpu.reshape %r : (tensor<128x200xf32>) -> tensor<1x128x200xf32>
      %0 = tpu.concat %p1, %r1, %p1 along 0 : (tensor<1x128x200xf32>, tensor<1x128x200xf32>, tensor<1x128x200xf32>)
          -> tensor<3x128x200xf32>
      %1 = tpu.add %p, %r : tensor<128x200xf32>
      return %0, %1 : tensor<3x128x200xf32>, tensor<128x200xf32>
    })";
  int kernels = 0, copies = 0;
  for (const Step& step : StepsOf(text)) {
    kernels += step.kind == Step::Kind::kKernel ? 1 : 0;
    copies += step.kind == Step::Kind::kCopy ? 1 : 0;
  }
  EXPECT_EQ(kernels, 1);  // of the sum
  EXPECT_EQ(copies, 1);   // of what is wanted twice
  const auto x = Ramp(1024, 0.01f), y = Ramp(1600, 0.02f);
  const Outcome got = OutcomeOf(text, {x, y}, false);
  ASSERT_EQ(got.bucket.size(), 3u * 25600);
  std::vector<float> q(1024);
  const auto times_y = [&](const std::vector<float>& left) {
    std::vector<float> product(25600);
    for (int i = 0; i < 25600; ++i) {
      for (int k = 0; k < 8; ++k) product[i] += left[i / 200 * 8 + k] * y[k * 200 + i % 200];
    }
    return product;
  };
  const std::vector<float> p = times_y(x);
  for (int i = 0; i < 1024; ++i) {
    for (int k = 0; k < 200; ++k) q[i] += p[i / 8 * 200 + k] * y[i % 8 * 200 + k];
  }
  const std::vector<float> r = times_y(q);
  for (int i = 0; i < 25600; ++i) {
    const float tolerance = 1e-4f * std::max(1.0f, std::abs(r[i]));
    ASSERT_NEAR(got.bucket[i], p[i], 1e-4) << i;
    ASSERT_NEAR(got.bucket[25600 + i], r[i], tolerance) << i;
    ASSERT_NEAR(got.bucket[51200 + i], p[i], 1e-4) << i;
    ASSERT_NEAR(got.rest[0][i], p[i] + r[i], tolerance) << i;
  }
}

}  // namespace
}  // namespace tpu::host
