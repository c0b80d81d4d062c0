#include "runtime/host/executable.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "runtime/host/host_device.h"
#include "runtime/host/plan_family.h"
#include "runtime/host/tile_cut.h"
#include "tests/support/function_loader.h"

namespace tpu::host {
namespace {

void Add(void** p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    static_cast<float*>(p[2])[i] = static_cast<float*>(p[0])[i] + static_cast<float*>(p[1])[i];
  }
}
void AddScalar(void** p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    static_cast<float*>(p[2])[i] = static_cast<float*>(p[0])[i] + static_cast<float>(*static_cast<double*>(p[1]));
  }
}
void Take(void** p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    int64_t at = static_cast<int64_t*>(p[1])[i];
    if (at < 0 || at >= 4) {
      __atomic_store_n(static_cast<int64_t*>(p[3]), 1, __ATOMIC_RELAXED);
      at = 0;
    }
    static_cast<float*>(p[2])[i] = static_cast<float*>(p[0])[at];
  }
}
// Takes beside a sum that no index can spoil.
void TakeAndAdd(void** p, int64_t begin, int64_t end) {
  Take(std::array<void*, 4>{p[0], p[1], p[2], p[4]}.data(), begin, end);
  Add(std::array<void*, 3>{p[0], p[0], p[3]}.data(), begin, end);
}
void NegateRow(void** p, int64_t begin, int64_t end) {
  for (int64_t i = begin * 8; i < end * 8; ++i) static_cast<float*>(p[0])[i] *= -1;
}

using Kind = Slot::Kind;

Slot MakeSlot(Kind kind, uint32_t index, uint64_t bytes, uint64_t offset = 0) {
  return {.kind = kind, .index = index, .offset = offset, .bytes = bytes};
}

Step Kernel(uint32_t kernel, std::vector<uint32_t> slots, int64_t extent, int64_t grain = 1 << 14) {
  Step step;
  step.label = "kernel " + std::to_string(kernel);
  step.slots = std::move(slots);
  step.num_inputs = static_cast<uint32_t>(step.slots.size()) - 1;
  step.kernel = {.kernel = kernel, .rows = extent, .grain = grain};
  return step;
}

Step Call(int node, uint32_t num_inputs, std::vector<uint32_t> slots) {
  Step step;
  step.kind = Step::Kind::kCall;
  step.label = "call";
  step.slots = std::move(slots);
  step.num_inputs = num_inputs;
  step.call.node = node;
  return step;
}

class ExecutableTest : public testing::Test {
 protected:
  std::unique_ptr<Executable> Load(const Plan& plan) {
    Program program{.format = "host", .bytes = plan.Serialize()};
    program.inputs.resize(plan.num_inputs);
    program.outputs.resize(plan.outputs.size());
    absl::StatusOr<std::unique_ptr<Executable>> executable = device_->Load(program);
    EXPECT_TRUE(executable.ok()) << executable.status();
    return executable.ok() ? *std::move(executable) : nullptr;
  }
  BufferRef Upload(const std::vector<float>& values) {
    return *device_->MakeValue({DType::kFloat32, {static_cast<int64_t>(values.size())}}, values.data());
  }
  static const float* Floats(const BufferRef& buffer) { return static_cast<const float*>(buffer->data()); }

  // output = (in0 + in1) + in0, by a temporary.
  static Plan TwoAdds(int64_t n, int64_t grain) {
    const uint64_t bytes = static_cast<uint64_t>(n) * 4;
    Plan plan;
    plan.num_inputs = 2;
    plan.arena_bytes = bytes;
    plan.slots = {MakeSlot(Kind::kInput, 0, bytes), MakeSlot(Kind::kInput, 1, bytes), MakeSlot(Kind::kTemp, 0, bytes),
                  MakeSlot(Kind::kOutput, 0, bytes)};
    plan.kernels = {{"add", "add"}};
    plan.steps = {Kernel(0, {0, 1, 2}, n, grain), Kernel(0, {2, 0, 3}, n, grain)};
    plan.outputs = {{.may_overwrite = 1, .bytes = bytes}};
    return plan;
  }

  // Four floats, two indices.
  std::vector<Argument> FloatsAndIndices(int64_t i, int64_t j) {
    const int64_t at[] = {i, j};
    return {{.buffer = Upload({1, 2, 3, 4})}, {.buffer = *device_->MakeValue({DType::kInt64, {2}}, at)}};
  }

  FunctionLoader loader_{{{"add", Add},
                          {"add_scalar", AddScalar},
                          {"take", Take},
                          {"take_and_add", TakeAndAdd},
                          {"negate_row", NegateRow}}};
  std::unique_ptr<Device> device_ = MakeHostDevice(0, 1 << 30, &loader_);
};

TEST_F(ExecutableTest, RunsKernelsOverATemporary) {
  auto executable = Load(TwoAdds(100000, 1000));
  std::vector<float> x(100000), y(100000, 0.5f);
  std::iota(x.begin(), x.end(), 0.0f);
  Argument inputs[] = {{.buffer = Upload(x)}, {.buffer = Upload(y)}};
  BufferRef output[1];
  ASSERT_TRUE(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
  for (int i = 0; i < 100000; ++i) ASSERT_EQ(Floats(output[0])[i], 2 * x[i] + 0.5f);
  EXPECT_EQ(executable->calls_per_launch(), 0);
}

// The eighth launch and one of 16 after it; kernels of one label count as one.
TEST_F(ExecutableTest, TimesSomeLaunchesKernelByKernel) {
  auto launch = [&](Executable& executable, int times) {
    for (int i = 0; i < times; ++i) {
      Argument inputs[] = {{.buffer = Upload(std::vector<float>(100000))},
                           {.buffer = Upload(std::vector<float>(100000))}};
      BufferRef output[1];
      ASSERT_TRUE(executable.Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
    }
  };
  auto executable = Load(TwoAdds(100000, 1000));
  launch(*executable, 7);
  EXPECT_TRUE(executable->kernel_times().empty());
  launch(*executable, 17);
  const std::vector<KernelTime> times = executable->kernel_times();
  ASSERT_EQ(times.size(), 1);
  EXPECT_EQ(times[0].label, "kernel 0");
  EXPECT_EQ(times[0].runs, 2);
  EXPECT_GT(times[0].nanoseconds, 0);
  EXPECT_EQ(times[0].bytes, 2 * 3 * 400000);  // of both

  Plan tiled = TwoAdds(100000, 1000);
  tiled.tile_loops = {{.first = 0, .count = 2, .parts = 10}};
  executable = Load(tiled);
  launch(*executable, 8);
  ASSERT_EQ(executable->kernel_times().size(), 1);
  EXPECT_EQ(executable->kernel_times()[0].label, "kernel 0; kernel 0");
  EXPECT_EQ(executable->kernel_times()[0].bytes, 4 * 400000);

  executable = Load(TwoAdds(4, 4));  // microseconds: not timed
  launch(*executable, 40);
  EXPECT_TRUE(executable->kernel_times().empty());
}

TEST_F(ExecutableTest, OverwritesADonatedInputOnlyWhenItIsTheLastReference) {
  auto executable = Load(TwoAdds(4, 1));
  Argument inputs[] = {{.buffer = Upload({1, 2, 3, 4})}, {.buffer = Upload({1, 1, 1, 1}), .donated = true}};
  const void* donated = inputs[1].buffer->data();
  BufferRef output[1];
  ASSERT_TRUE(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
  EXPECT_EQ(output[0]->data(), donated);
  EXPECT_EQ(Floats(output[0])[3], 9);

  inputs[1].buffer = Upload({1, 1, 1, 1});
  BufferRef held = inputs[1].buffer;
  ASSERT_TRUE(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
  EXPECT_NE(output[0]->data(), held->data());
  EXPECT_EQ(Floats(held)[3], 1);
}

TEST_F(ExecutableTest, PassesScalarsAndSharesUnchangedInputs) {
  Plan plan;
  plan.num_inputs = 2;
  plan.slots = {MakeSlot(Kind::kInput, 0, 16), MakeSlot(Kind::kInput, 1, 8), MakeSlot(Kind::kOutput, 0, 16)};
  plan.kernels = {{"add_scalar", "add_scalar"}};
  plan.steps = {Kernel(0, {0, 1, 2}, 4)};
  plan.outputs = {{.bytes = 16},
                  {.kind = OutputSpec::Kind::kInput, .source = 0, .bytes = 16},
                  {.kind = OutputSpec::Kind::kOutput, .source = 0, .bytes = 16}};
  auto executable = Load(plan);
  Argument inputs[2] = {{.buffer = Upload({1, 2, 3, 4})}, {}};
  const double scalar = 10;
  std::memcpy(&inputs[1].scalar_bits, &scalar, 8);
  BufferRef outputs[3];
  ASSERT_TRUE(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(outputs), nullptr).ok());
  EXPECT_EQ(Floats(outputs[0])[2], 13);
  EXPECT_EQ(outputs[1], inputs[0].buffer);
  EXPECT_EQ(outputs[2], outputs[0]);
}

TEST_F(ExecutableTest, AKernelsErrorNamesItsStep) {
  Plan plan;
  plan.num_inputs = 2;
  plan.slots = {MakeSlot(Kind::kInput, 0, 16), MakeSlot(Kind::kInput, 1, 16), MakeSlot(Kind::kOutput, 0, 8)};
  plan.kernels = {{"take", "take"}};
  plan.steps = {Kernel(0, {0, 1, 2}, 2)};
  plan.steps[0].label = "gather";
  plan.outputs = {{.bytes = 8}};
  auto executable = Load(plan);
  BufferRef index = *device_->Allocate(16);
  Argument inputs[] = {{.buffer = Upload({1, 2, 3, 4})}, {.buffer = index}};
  BufferRef output[1];
  auto launch = [&](int64_t i, int64_t j) {
    const int64_t at[] = {i, j};
    std::memcpy(index->data(), at, 16);
    return executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr);
  };
  EXPECT_TRUE(launch(0, 3).ok());
  EXPECT_EQ(launch(0, 4), absl::OutOfRangeError("index out of range in gather"));
  EXPECT_TRUE(launch(1, 1).ok());
}

// A product and a kernel over its rows, tile by tile: each tile of the kernel follows its tile of the product.
TEST_F(ExecutableTest, RunsStepsTileByTile) {
  constexpr int64_t kM = 300, kN = 8, kK = 5;
  Plan plan;
  plan.num_inputs = 2;
  plan.slots = {MakeSlot(Kind::kInput, 0, kM * kK * 4), MakeSlot(Kind::kInput, 1, kK * kN * 4),
                MakeSlot(Kind::kOutput, 0, kM * kN * 4)};
  plan.kernels = {{"negate_row", "negate_row"}};
  Step step;
  step.kind = Step::Kind::kGemm;
  step.slots = {0, 1, 2};
  step.num_inputs = 2;
  step.gemm = {.m = kM, .n = kN, .k = kK, .lda = kK, .ldb = kN, .ldc = kN};
  plan.steps = {step, Kernel(0, {2}, kM)};
  plan.outputs = {{.bytes = kM * kN * 4}};
  for (int64_t parts : {1, 4, 100}) {
    plan.tile_loops = {{.first = 0, .count = 2, .parts = parts}};
    auto executable = Load(plan);
    Argument inputs[] = {{.buffer = Upload(std::vector<float>(kM * kK, 2))},
                         {.buffer = Upload(std::vector<float>(kK * kN, 3))}};
    BufferRef output[1];
    ASSERT_TRUE(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
    for (int i = 0; i < kM * kN; ++i) ASSERT_EQ(Floats(output[0])[i], -30) << parts;
  }
}

// (in0 in1, negated) in2: what lies between is nowhere whole. Row i of in0 is i, in1 ones, in2 doubles.
TEST_F(ExecutableTest, AValueOfATileLoopsOwnHasRoomForATileOfEachThread) {
  constexpr int64_t kM = 3200, kN = 8, kK = 2;
  Plan plan;
  plan.num_inputs = 3;
  plan.slots = {MakeSlot(Kind::kInput, 0, kM * kK * 4), MakeSlot(Kind::kInput, 1, kK * kN * 4),
                MakeSlot(Kind::kTile, 0, kM * kN * 4, 64), MakeSlot(Kind::kInput, 2, kN * kN * 4),
                MakeSlot(Kind::kOutput, 0, kM * kN * 4)};
  plan.kernels = {{"negate_row", "negate_row"}};
  Step first, second;
  first.kind = second.kind = Step::Kind::kGemm;
  first.slots = {0, 1, 2}, second.slots = {2, 3, 4};
  first.num_inputs = second.num_inputs = 2;
  first.gemm = {.m = kM, .n = kN, .k = kK, .lda = kK, .ldb = kN, .ldc = kN};
  second.gemm = {.m = kM, .n = kN, .k = kN, .lda = kN, .ldb = kN, .ldc = kN};
  plan.steps = {first, Kernel(0, {2}, kM), second};
  plan.outputs = {{.bytes = kM * kN * 4}};
  std::vector<float> rows(kM * kK), twice(kN * kN);
  for (int64_t i = 0; i < kM * kK; ++i) rows[static_cast<size_t>(i)] = static_cast<float>(i / kK);
  for (size_t i = 0; i < kN; ++i) twice[i * kN + i] = 2;
  const TileLoop loops[] = {{.parts = 1},
                            {.parts = 4},
                            {.parts = 100},
                            {.parts = 3200, .of_group = 320, .of_tile = 110},
                            {.parts = 1600, .of_group = 1600, .of_tile = 511}};
  for (const TileLoop& loop : loops) {
    plan.tile_loops = {loop};
    plan.tile_loops[0].count = 3;
    plan.thread_bytes = 64 + BytesOfTile(loop, kM * kN * 4);
    auto executable = Load(plan);
    ASSERT_NE(executable, nullptr);
    Argument inputs[] = {
        {.buffer = Upload(rows)}, {.buffer = Upload(std::vector<float>(kK * kN, 1))}, {.buffer = Upload(twice)}};
    BufferRef output[1];
    ASSERT_TRUE(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
    for (int64_t i = 0; i < kM * kN; ++i) ASSERT_EQ(Floats(output[0])[i], -4.0f * (i / kN)) << loop.of_tile << " " << i;
  }
}

// (in0 in1).T in2, two matrices: the tiles of one add up what they give its product.
TEST_F(ExecutableTest, TilesOfAMatrixAddUpAProductByItsDepth) {
  constexpr int64_t kM = 8, kN = 4, kK = 64, kWidth = 2;
  Plan plan;
  plan.num_inputs = 3;
  plan.slots = {MakeSlot(Kind::kInput, 0, 2 * kK * kWidth * 4), MakeSlot(Kind::kInput, 1, kWidth * kM * 4),
                MakeSlot(Kind::kTile, 0, 2 * kK * kM * 4), MakeSlot(Kind::kInput, 2, 2 * kK * kN * 4),
                MakeSlot(Kind::kOutput, 0, 2 * kM * kN * 4)};
  Step first, second;
  first.kind = second.kind = Step::Kind::kGemm;
  first.slots = {0, 1, 2}, second.slots = {2, 3, 4};
  first.num_inputs = second.num_inputs = 2;
  first.gemm = {.m = kK, .n = kM, .k = kWidth, .lda = kWidth, .ldb = kM, .ldc = kM};
  first.gemm.batch = {2}, first.gemm.stride_a = {kK * kWidth}, first.gemm.stride_b = {0};
  first.gemm.stride_c = {kK * kM};
  second.gemm = {.trans_a = true, .m = kM, .n = kN, .k = kK, .lda = kM, .ldb = kN, .ldc = kN};
  second.gemm.batch = {2}, second.gemm.stride_a = {kK * kM}, second.gemm.stride_b = {kK * kN};
  second.gemm.stride_c = {kM * kN};
  plan.steps = {first, second};
  plan.outputs = {{.bytes = 2 * kM * kN * 4}};
  std::vector<float> rows(2 * kK * kWidth), weights(kWidth * kM), others(2 * kK * kN);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 13);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 5);
  for (size_t i = 0; i < others.size(); ++i) others[i] = static_cast<float>(i % 7);
  std::vector<float> expected(2 * kM * kN, 0);
  for (size_t b = 0; b < 2; ++b) {
    for (size_t p = b * kK; p < (b + 1) * kK; ++p) {
      for (size_t i = 0; i < kM; ++i) {
        const float left = rows[2 * p] * weights[i] + rows[2 * p + 1] * weights[kM + i];
        for (size_t j = 0; j < kN; ++j) expected[(b * kM + i) * kN + j] += left * others[p * kN + j];
      }
    }
  }
  const TileLoop loops[] = {{.parts = 2},
                            {.parts = 8, .of_group = 4},
                            {.parts = 128, .of_group = 64, .of_tile = 1},
                            {.parts = 128, .of_group = 64, .of_tile = 27},
                            {.parts = 64, .of_group = 32, .of_tile = 50}};
  for (const TileLoop& loop : loops) {
    plan.tile_loops = {loop};
    plan.tile_loops[0].count = 2;
    plan.thread_bytes = BytesOfTile(loop, 2 * kK * kM * 4);
    auto executable = Load(plan);
    ASSERT_NE(executable, nullptr);
    Argument inputs[] = {{.buffer = Upload(rows)}, {.buffer = Upload(weights)}, {.buffer = Upload(others)}};
    BufferRef output[1];
    ASSERT_TRUE(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(Floats(output[0])[i], expected[i]) << loop.of_group << " " << loop.of_tile << " " << i;
    }
  }
  plan.tile_loops[0].of_group = 16;  // half of a matrix
  EXPECT_FALSE(Plan::Parse(plan.Serialize()).ok());
}

TEST_F(ExecutableTest, ReportsAnIndexOutOfRangeFromATile) {
  Plan plan;
  plan.num_inputs = 2;
  plan.slots = {MakeSlot(Kind::kInput, 0, 16), MakeSlot(Kind::kInput, 1, 16), MakeSlot(Kind::kOutput, 0, 8)};
  plan.kernels = {{"take", "take"}};
  plan.steps = {Kernel(0, {0, 1, 2}, 2)};
  plan.steps[0].label = "gather";
  plan.tile_loops = {{.first = 0, .count = 1, .parts = 2}};
  plan.outputs = {{.bytes = 8}};
  auto executable = Load(plan);
  BufferRef index = *device_->Allocate(16);
  const int64_t at[] = {0, 4};
  std::memcpy(index->data(), at, 16);
  Argument inputs[] = {{.buffer = Upload({1, 2, 3, 4})}, {.buffer = index}};
  BufferRef output[1];
  EXPECT_EQ(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr),
            absl::OutOfRangeError("index out of range in gather"));
}

// out0 takes; out1 = in2 + in2, over in2; out2 = out0 + in3, over in3; out3: out0 through node 7.
TEST_F(ExecutableTest, AfterAnErrorOnlyWhatDependsOnItIsLeftOut) {
  Plan plan;
  plan.num_inputs = 4;
  plan.num_call_buffers = 1;
  plan.slots = {MakeSlot(Kind::kInput, 0, 16), MakeSlot(Kind::kInput, 1, 16), MakeSlot(Kind::kInput, 2, 16),
                MakeSlot(Kind::kInput, 3, 8),  MakeSlot(Kind::kOutput, 0, 8), MakeSlot(Kind::kOutput, 1, 16),
                MakeSlot(Kind::kOutput, 2, 8), MakeSlot(Kind::kCall, 0, 8)};
  plan.kernels = {{"take", "take"}, {"add", "add"}};
  plan.steps = {Kernel(0, {0, 1, 4}, 2), Kernel(1, {4, 3, 6}, 2), Call(7, 1, {4, 7}), Kernel(1, {2, 2, 5}, 4)};
  plan.outputs = {{.bytes = 8},
                  {.may_overwrite = 2, .bytes = 16},
                  {.may_overwrite = 3, .bytes = 8},
                  {.kind = OutputSpec::Kind::kCall, .source = 0, .bytes = 8},
                  {.kind = OutputSpec::Kind::kOutput, .source = 0, .bytes = 8},
                  {.kind = OutputSpec::Kind::kInput, .source = 0, .bytes = 16}};
  auto executable = Load(plan);
  int calls = 0;
  auto identity = [&](int, absl::Span<const Argument> in, absl::Span<BufferRef> out) {
    ++calls;
    out[0] = in[0].buffer;
    return absl::OkStatus();
  };
  for (const bool wrong : {false, true, false}) {
    std::vector<Argument> inputs = FloatsAndIndices(wrong ? 4 : 3, 0);
    inputs.push_back({.buffer = Upload({5, 6, 7, 8}), .donated = true});
    inputs.push_back({.buffer = Upload({9, 10}), .donated = true});
    const void* const memory = inputs[2].buffer->data();
    BufferRef outputs[6];
    calls = 0;
    const absl::Status status = executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(outputs), identity);
    EXPECT_EQ(status, wrong ? absl::OutOfRangeError("index out of range in kernel 0") : absl::OkStatus());
    EXPECT_EQ(calls, wrong ? 0 : 1);
    for (const int i : {0, 2, 3, 4}) EXPECT_EQ(outputs[i] == nullptr, wrong) << i;
    EXPECT_EQ(outputs[1]->data(), memory);
    EXPECT_EQ(Floats(outputs[1])[3], 16);
    EXPECT_EQ(outputs[5], inputs[0].buffer);
    if (!wrong) {
      EXPECT_EQ(Floats(outputs[2])[0], 13);
      continue;
    }
    EXPECT_EQ(inputs[2].buffer, nullptr) << "it was written over";
    ASSERT_NE(inputs[3].buffer, nullptr) << "nothing was written there";
    EXPECT_EQ(Floats(inputs[3].buffer)[1], 10);
  }
}

TEST_F(ExecutableTest, AKernelsSureResultsHoldWhateverItFindsWrong) {
  Plan plan;
  plan.num_inputs = 2;
  plan.slots = {MakeSlot(Kind::kInput, 0, 16), MakeSlot(Kind::kInput, 1, 16), MakeSlot(Kind::kOutput, 0, 8),
                MakeSlot(Kind::kOutput, 1, 8), MakeSlot(Kind::kOutput, 2, 8)};
  plan.kernels = {{"take_and_add", "take_and_add"}, {"add", "add"}};
  plan.steps = {Kernel(0, {0, 1, 2, 3}, 2), Kernel(1, {3, 3, 4}, 2)};
  plan.steps[0].num_inputs = 2;
  plan.steps[0].kernel.sure = {3};
  plan.outputs = {{.bytes = 8}, {.bytes = 8}, {.bytes = 8}};
  for (const bool tiled : {false, true}) {
    if (tiled) plan.tile_loops = {{.first = 0, .count = 2, .parts = 2}};
    auto executable = Load(plan);
    std::vector<Argument> inputs = FloatsAndIndices(0, -1);
    BufferRef outputs[3];
    EXPECT_EQ(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(outputs), nullptr).code(),
              absl::StatusCode::kOutOfRange);
    EXPECT_EQ(outputs[0], nullptr);
    EXPECT_EQ(Floats(outputs[1])[1], 4);
    EXPECT_EQ(Floats(outputs[2])[1], 8);
  }
}

// Parts of output 0: one takes, the other adds. Output 1 reads the one, output 2 the other, output 3 the whole.
TEST_F(ExecutableTest, AnErrorInAPartIsOneOfTheWhole) {
  Plan plan;
  plan.num_inputs = 2;
  plan.slots = {MakeSlot(Kind::kInput, 0, 16),    MakeSlot(Kind::kInput, 1, 16), MakeSlot(Kind::kOutput, 0, 16),
                MakeSlot(Kind::kOutput, 0, 8, 8), MakeSlot(Kind::kOutput, 0, 8), MakeSlot(Kind::kOutput, 1, 8),
                MakeSlot(Kind::kOutput, 2, 8),    MakeSlot(Kind::kOutput, 3, 16)};
  plan.kernels = {{"take", "take"}, {"add", "add"}};
  plan.steps = {Kernel(0, {0, 1, 3}, 2), Kernel(1, {0, 0, 4}, 2), Kernel(1, {3, 3, 5}, 2), Kernel(1, {4, 4, 6}, 2),
                Kernel(1, {2, 2, 7}, 4)};
  plan.outputs = {{.bytes = 16}, {.bytes = 8}, {.bytes = 8}, {.bytes = 16}};
  for (const bool tiled : {false, true}) {
    if (tiled) plan.tile_loops = {{.first = 0, .count = 4, .parts = 2}};
    auto executable = Load(plan);
    std::vector<Argument> inputs = FloatsAndIndices(99, 1);
    BufferRef outputs[4];
    EXPECT_EQ(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(outputs), nullptr).code(),
              absl::StatusCode::kOutOfRange);
    for (const int i : {0, 1, 3}) EXPECT_EQ(outputs[i], nullptr) << i;
    EXPECT_EQ(Floats(outputs[2])[1], 8);
  }
}

// in0 + in0 (a temporary) goes to node 7, whose result is an output and an operand of the last kernel.
TEST_F(ExecutableTest, HandsNodesToTheRunner) {
  Plan plan;
  plan.num_inputs = 1;
  plan.num_call_buffers = 1;
  plan.arena_bytes = 64;
  plan.slots = {MakeSlot(Kind::kInput, 0, 16), MakeSlot(Kind::kTemp, 0, 16), MakeSlot(Kind::kCall, 0, 16),
                MakeSlot(Kind::kOutput, 1, 16)};
  plan.kernels = {{"add", "add"}};
  plan.steps = {Kernel(0, {0, 0, 1}, 4), Call(7, 1, {1, 2}), Kernel(0, {2, 0, 3}, 4)};
  plan.outputs = {{.kind = OutputSpec::Kind::kCall, .source = 0, .bytes = 16}, {.bytes = 16}};
  auto executable = Load(plan);
  EXPECT_EQ(executable->calls_per_launch(), 1);
  Argument inputs[] = {{.buffer = Upload({1, 2, 3, 4})}};
  BufferRef outputs[2];
  // The runner gives its operand back as the result: it lies in the arena, so the launch has to copy it out.
  auto identity = [](int node, absl::Span<const Argument> in, absl::Span<BufferRef> out) {
    EXPECT_EQ(node, 7);
    out[0] = in[0].buffer;
    return absl::OkStatus();
  };
  ASSERT_TRUE(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(outputs), identity).ok());
  EXPECT_EQ(Floats(outputs[0])[1], 4);
  EXPECT_EQ(Floats(outputs[1])[1], 6);

  auto fails = [](int, absl::Span<const Argument>, absl::Span<BufferRef>) { return absl::AbortedError("no"); };
  EXPECT_EQ(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(outputs), fails), absl::AbortedError("no"));
  EXPECT_EQ(outputs[0], nullptr);
  EXPECT_EQ(outputs[1], nullptr);
  auto too_small = [&](int, absl::Span<const Argument>, absl::Span<BufferRef> out) {
    out[0] = *device_->Allocate(8);
    return absl::OkStatus();
  };
  EXPECT_EQ(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(outputs), too_small).code(),
            absl::StatusCode::kInternal);
}

// in0 + in0, computed into a part of output 0, and a constant go to nodes whose results are outputs of their own.
TEST_F(ExecutableTest, AResultLiesInNoConstantAndNoOtherOutput) {
  Plan plan;
  plan.num_inputs = 1;
  plan.num_call_buffers = 2;
  plan.constants = std::string(16, '\0');
  plan.slots = {MakeSlot(Kind::kInput, 0, 16), MakeSlot(Kind::kOutput, 0, 16, 64), MakeSlot(Kind::kConstant, 0, 16),
                MakeSlot(Kind::kCall, 0, 16), MakeSlot(Kind::kCall, 1, 16)};
  plan.kernels = {{"add", "add"}};
  plan.steps = {Kernel(0, {0, 0, 1}, 4), Call(0, 1, {1, 3}), Call(1, 1, {2, 4})};
  plan.outputs = {{.bytes = 128},
                  {.kind = OutputSpec::Kind::kCall, .source = 0, .bytes = 16},
                  {.kind = OutputSpec::Kind::kCall, .source = 1, .bytes = 16}};
  auto executable = Load(plan);
  Argument inputs[] = {{.buffer = Upload({1, 2, 3, 4})}};
  BufferRef outputs[3];
  std::vector<const void*> operands;
  auto identity = [&](int, absl::Span<const Argument> in, absl::Span<BufferRef> out) {
    operands.push_back(in[0].buffer->data());
    out[0] = in[0].buffer;
    return absl::OkStatus();
  };
  ASSERT_TRUE(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(outputs), identity).ok());
  EXPECT_EQ(Floats(outputs[1])[1], 4);
  EXPECT_EQ(Floats(outputs[2])[1], 0);
  EXPECT_NE(outputs[1]->data(), operands[0]);
  EXPECT_NE(outputs[2]->data(), operands[1]);
}

// The input is a number: the runner finds it by itself, and as a tensor.
TEST_F(ExecutableTest, HandsNumbersToTheRunner) {
  Plan plan;
  plan.num_inputs = 1;
  plan.num_call_buffers = 1;
  plan.slots = {MakeSlot(Kind::kInput, 0, 8), MakeSlot(Kind::kCall, 0, 8)};
  plan.steps = {Call(3, 1, {0, 1})};
  plan.outputs = {{.kind = OutputSpec::Kind::kCall, .source = 0, .bytes = 8}};
  auto executable = Load(plan);
  Argument inputs[] = {{.scalar_bits = 42}};
  BufferRef output[1];
  auto identity = [](int, absl::Span<const Argument> in, absl::Span<BufferRef> out) {
    EXPECT_EQ(in[0].scalar_bits, 42u);
    out[0] = in[0].buffer;
    return absl::OkStatus();
  };
  ASSERT_TRUE(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), identity).ok());
  EXPECT_EQ(*static_cast<const uint64_t*>(output[0]->data()), 42u);
}

TEST_F(ExecutableTest, RefusesInputsThatAreTooSmall) {
  auto executable = Load(TwoAdds(8, 1));
  Argument inputs[] = {{.buffer = Upload({1, 2, 3, 4})}, {.buffer = Upload({1, 1, 1, 1})}};
  BufferRef output[1];
  EXPECT_EQ(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ExecutableTest, RefusesProgramsOfOtherFormats) {
  Program program{.format = "stablehlo", .bytes = TwoAdds(4, 1).Serialize()};
  EXPECT_EQ(device_->Load(program).status().code(), absl::StatusCode::kInvalidArgument);
  auto family = PlanFamily::Join({TwoAdds(4, 1), TwoAdds(6, 1), TwoAdds(8, 1)}, {{4}, {6}, {8}});
  ASSERT_TRUE(family.ok()) << family.status();
  program.bytes = family->Serialize();
  EXPECT_EQ(device_->LoadFamily(program).status().code(), absl::StatusCode::kInvalidArgument);
  program.format = "host-family";
  EXPECT_TRUE(device_->LoadFamily(program).ok());
}

TEST_F(ExecutableTest, LoadsEqualKernelsOnce) {
  Plan plan = TwoAdds(4, 1);
  plan.kernels[0].key = "loaded once";
  const int before = loader_.loads();
  {
    auto first = Load(plan), second = Load(plan);
    EXPECT_EQ(loader_.loads(), before + 1);
  }
  auto third = Load(plan);
  EXPECT_EQ(loader_.loads(), before + 2) << "code goes with its last executable";
}

TEST_F(ExecutableTest, LaunchesFromManyThreads) {
  auto executable = Load(TwoAdds(5000, 100));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      BufferRef x = Upload(std::vector<float>(5000, static_cast<float>(t)));
      BufferRef y = Upload(std::vector<float>(5000, 1));
      for (int i = 0; i < 50; ++i) {
        Argument inputs[] = {{.buffer = x}, {.buffer = y}};
        BufferRef output[1];
        ASSERT_TRUE(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr).ok());
        ASSERT_EQ(Floats(output[0])[4999], static_cast<float>(2 * t + 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tpu::host
