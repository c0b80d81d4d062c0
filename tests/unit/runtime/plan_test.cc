#include "runtime/host/plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "absl/status/status.h"
#include "runtime/host/conv.h"

namespace tpu::host {
namespace {

// One of everything.
Plan FullPlan() {
  Plan plan;
  plan.num_inputs = 2;
  plan.num_call_buffers = 1;
  plan.arena_bytes = 4096;
  plan.constants = std::string(64, 'c');
  plan.kernels = {{"key", "object"}, {"other", std::string("\0\1", 2)}};
  plan.slots = {{Slot::Kind::kInput, 0, 0, 1024},   {Slot::Kind::kInput, 1, 0, 8},   {Slot::Kind::kTemp, 0, 512, 1024},
                {Slot::Kind::kCall, 0, 0, 256},     {Slot::Kind::kOutput, 0, 0, 64}, {Slot::Kind::kConstant, 0, 32, 32},
                {Slot::Kind::kTemp, 0, 2048, 1024}, {Slot::Kind::kOutput, 1, 0, 16}};
  plan.outputs = {{.may_overwrite = 0, .bytes = 64},
                  {.bytes = 16},
                  {.kind = OutputSpec::Kind::kInput, .source = 1, .bytes = 8},
                  {.kind = OutputSpec::Kind::kOutput, .source = 0, .bytes = 64},
                  {.kind = OutputSpec::Kind::kCall, .source = 0, .bytes = 256}};
  Step kernel{.kind = Step::Kind::kKernel, .label = "add", .slots = {0, 1, 2}, .num_inputs = 2};
  kernel.kernel = {.rows = 256, .grain = 64, .sure = {2}};
  Step gemm{.kind = Step::Kind::kGemm, .label = "dot", .slots = {0, 2, 6}, .num_inputs = 2};
  gemm.gemm = {.trans_a = true,
               .accumulate = true,
               .m = 4,
               .n = 8,
               .k = 3,
               .lda = 4,
               .ldb = 8,
               .ldc = 8,
               .offset_b = 16,
               .batch = {2, 3},
               .stride_a = {36, 12},
               .stride_b = {0, 24},
               .stride_c = {96, 32}};
  Step call{.kind = Step::Kind::kCall, .label = "aten::sort", .slots = {6, 1, 3, 7}, .num_inputs = 2, .call = {5}};
  Step copy{.kind = Step::Kind::kCopy, .label = "", .slots = {5, 4}, .num_inputs = 1, .copy = {8, {2, 2}, {32, 16}}};
  plan.steps = {kernel, gemm, call, copy};
  plan.tile_loops = {{.first = 0, .count = 2, .parts = 8}};
  return plan;
}

// x [2, 3, 5, 6] and w [4, 3, 3, 3], or y: [2, 4, 5, 6].
Plan Convolution(ConvStep::Kind kind) {
  const bool forward = kind == ConvStep::Kind::kForward;
  Plan plan;
  plan.num_inputs = 2;
  plan.outputs = {{.bytes = forward ? 960u : 432u}};
  plan.slots = {{Slot::Kind::kInput, 0, 0, 720},
                {Slot::Kind::kInput, 1, 0, forward ? 432u : 960u},
                {Slot::Kind::kOutput, 0, 0, forward ? 960u : 432u}};
  Step step{.kind = Step::Kind::kConv, .label = "conv", .slots = {0, 1, 2}, .num_inputs = 2};
  step.conv = {.kind = kind, .batch = 2, .in = 3, .out = 4};
  step.conv.rows = {.in = 5, .out = 5, .kernel = 3, .low = 1};
  step.conv.cols = {.in = 6, .out = 6, .kernel = 3, .low = 1};
  plan.steps = {step};
  return plan;
}

TEST(Plan, ConvolutionsStayInTheirSlots) {
  if (!CanConvolve(Convolution(ConvStep::Kind::kForward).steps[0].conv)) GTEST_SKIP() << "this processor has no panels";
  const std::pair<const char*, void (*)(Plan&)> changes[] = {
      {"more images", [](Plan& p) { p.steps[0].conv.batch = 3; }},
      {"more channels", [](Plan& p) { p.steps[0].conv.in = 4; }},
      {"more results", [](Plan& p) { p.steps[0].conv.out = 5; }},
      {"more rows", [](Plan& p) { p.steps[0].conv.rows.in = 6; }},
      {"more columns of the result", [](Plan& p) { p.steps[0].conv.cols.out = 7; }},
      {"a larger window", [](Plan& p) { p.steps[0].conv.cols.kernel = 4; }},
      {"no stride", [](Plan& p) { p.steps[0].conv.rows.stride = 0; }},
      {"elements that are spread by nothing", [](Plan& p) { p.steps[0].conv.cols.spread = 0; }},
      {"sizes that overflow", [](Plan& p) { p.steps[0].conv.batch = INT64_MAX; }},
      {"padding that overflows", [](Plan& p) { p.steps[0].conv.rows.low = INT64_MIN; }},
      {"an element type without panels", [](Plan& p) { p.steps[0].conv.dtype = DType::kInt32; }},
      {"groups that do not divide the channels", [](Plan& p) { p.steps[0].conv.groups = 2; }},
      {"no groups", [](Plan& p) { p.steps[0].conv.groups = 0; }},
      {"an unknown kind", [](Plan& p) { p.steps[0].conv.kind = static_cast<ConvStep::Kind>(2); }},
      {"two operands", [](Plan& p) { p.steps[0].slots.pop_back(); }},
      {"a result that is an input", [](Plan& p) { p.steps[0].slots[2] = 1; }},
  };
  for (const auto kind : {ConvStep::Kind::kForward, ConvStep::Kind::kWeight}) {
    const absl::StatusOr<Plan> parsed = Plan::Parse(Convolution(kind).Serialize());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->steps[0].conv.cols.in, 6);
    for (const auto& [what, change] : changes) {
      Plan plan = Convolution(kind);
      change(plan);
      EXPECT_EQ(Plan::Parse(plan.Serialize()).status().code(), absl::StatusCode::kInvalidArgument) << what;
    }
  }
}

TEST(Plan, ComesBackAsItWas) {
  const Plan plan = FullPlan();
  const std::string bytes = plan.Serialize();
  absl::StatusOr<Plan> parsed = Plan::Parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->Serialize(), bytes);
  EXPECT_EQ(parsed->steps[1].gemm.stride_a, plan.steps[1].gemm.stride_a);
  EXPECT_EQ(parsed->tile_loops[0].parts, 8);
  EXPECT_EQ(parsed->steps[2].call.node, 5);
  EXPECT_EQ(parsed->steps[3].copy.strides, plan.steps[3].copy.strides);
  EXPECT_EQ(parsed->steps[0].label, "add");
  EXPECT_EQ(parsed->steps[0].num_inputs, 2u);
  EXPECT_EQ(parsed->steps[0].kernel.sure, std::vector<uint32_t>{2});
  EXPECT_EQ(parsed->kernels[1].object, plan.kernels[1].object);
  EXPECT_EQ(parsed->outputs[0].may_overwrite, 0);
  EXPECT_EQ(parsed->outputs[1].may_overwrite, -1);
  EXPECT_EQ(parsed->slots[2].offset, 512u);
  EXPECT_EQ(parsed->constants, plan.constants);
}

TEST(Plan, RefusesWhatReachesOutsideItsSlots) {
  const std::pair<const char*, std::function<void(Plan&)>> changes[] = {
      {"temp outside the arena", [](Plan& p) { p.slots[2].offset = 4096; }},
      {"temp whose end overflows", [](Plan& p) { p.slots[2].offset = UINT64_MAX - 8; }},
      {"constant outside", [](Plan& p) { p.slots[5].bytes = 33; }},
      {"input number", [](Plan& p) { p.slots[1].index = 2; }},
      {"output number", [](Plan& p) { p.slots[4].index = 9; }},
      {"slot larger than its output", [](Plan& p) { p.slots[4].bytes = 65; }},
      {"slot of an output that is an input", [](Plan& p) { p.slots[4].index = 2; }},
      {"slot number", [](Plan& p) { p.steps[0].slots[1] = 8; }},
      {"more runs than there are", [](Plan& p) { p.steps[3].copy = {.run = 12, .sizes = {3}, .strides = {20}}; }},
      {"runs beyond the destination", [](Plan& p) { p.steps[3].copy = {.run = 8, .sizes = {4}, .strides = {20}}; }},
      {"runs whose places overflow",
       [](Plan& p) { p.steps[3].copy = {.run = 8, .sizes = {2}, .strides = {INT64_MAX}}; }},
      {"runs before the destination", [](Plan& p) { p.steps[3].copy = {.run = 8, .sizes = {4}, .strides = {-8}}; }},
      {"runs in dims without strides", [](Plan& p) { p.steps[3].copy = {.run = 8, .sizes = {2, 2}, .strides = {16}}; }},
      {"runs of nothing", [](Plan& p) { p.steps[3].copy = {.run = 0, .sizes = {4}, .strides = {16}}; }},
      {"kernel number", [](Plan& p) { p.steps[0].kernel.kernel = 2; }},
      {"negative extent", [](Plan& p) { p.steps[0].kernel.rows = -1; }},
      {"block whose end overflows", [](Plan& p) { p.steps[0].kernel.block = INT64_MAX; }},
      {"no grain", [](Plan& p) { p.steps[0].kernel.grain = 0; }},
      {"product beyond A", [](Plan& p) { p.steps[1].gemm.batch[0] = 9; }},
      {"product beyond B", [](Plan& p) { p.steps[1].gemm.offset_b = 256; }},
      {"product beyond C", [](Plan& p) { p.steps[1].gemm.ldc = 64; }},
      {"product whose extent overflows", [](Plan& p) { p.steps[1].gemm.stride_c[0] = INT64_MAX; }},
      {"product whose last row is beyond 128 bits of bytes",
       [](Plan& p) {
         constexpr int64_t kHuge = int64_t{1} << 62;
         p.tile_loops.clear();
         p.steps[1].gemm = {.dtype = DType::kComplex128,
                            .out_dtype = DType::kComplex128,
                            .trans_a = true,
                            .m = 1,
                            .n = 1,
                            .k = kHuge + 1,
                            .lda = kHuge,
                            .ldb = kHuge,
                            .ldc = 1};
       }},
      {"product of nothing whose depth over the batch overflows",
       [](Plan& p) {
         p.tile_loops.clear();
         p.steps[1].gemm = {.trans_a = true,
                            .k = int64_t{1} << 50,
                            .batch = {int64_t{1} << 40},
                            .stride_a = {0},
                            .stride_b = {0},
                            .stride_c = {0}};
       }},
      {"negative offset", [](Plan& p) { p.steps[1].gemm.offset_a = -1; }},
      {"rows that overlap", [](Plan& p) { p.steps[1].gemm.ldc = 7; }},
      {"a stride for each batch", [](Plan& p) { p.steps[1].gemm.stride_a.pop_back(); }},
      {"four batch dimensions",
       [](Plan& p) {
         GemmStep& g = p.steps[1].gemm;
         g.batch.assign(4, 1), g.stride_a.assign(4, 0), g.stride_b.assign(4, 0), g.stride_c.assign(4, 0);
       }},
      {"kernel into an input", [](Plan& p) { p.steps[0].num_inputs = 1; }},
      {"copy that reads its destination", [](Plan& p) { p.steps[3].num_inputs = 2; }},
      {"product of one operand", [](Plan& p) { p.steps[1].num_inputs = 1; }},
      {"product into an input", [](Plan& p) { p.steps[1].slots[2] = 0; }},
      {"product of opaque values", [](Plan& p) { p.steps[1].gemm.dtype = DType::kOpaque32; }},
      {"product into another type", [](Plan& p) { p.steps[1].gemm.out_dtype = DType::kInt32; }},
      {"unknown method", [](Plan& p) { p.steps[1].gemm.method = static_cast<Method>(3); }},
      {"unknown triangle", [](Plan& p) { p.steps[1].gemm.triangle = static_cast<Triangle>(4); }},
      {"tile loop beyond the steps", [](Plan& p) { p.tile_loops[0].count = UINT32_MAX; }},
      {"tile loop of nothing", [](Plan& p) { p.tile_loops[0].count = 0; }},
      {"tile loops that overlap", [](Plan& p) { p.tile_loops.push_back({1, 1, 1}); }},
      {"tile loop over a call", [](Plan& p) { p.tile_loops[0].count = 3; }},
      {"parts that do not divide a kernel", [](Plan& p) { p.tile_loops[0].parts = 3; }},
      {"parts that do not divide a product", [](Plan& p) { p.tile_loops[0].parts = 16; }},
      {"no parts", [](Plan& p) { p.tile_loops[0].parts = 0; }},
      {"no parts of a group", [](Plan& p) { p.tile_loops[0].of_group = 0; }},
      {"no parts of a tile", [](Plan& p) { p.tile_loops[0].of_tile = 0; }},
      {"groups that do not divide all", [](Plan& p) { p.tile_loops[0].of_group = 3; }},
      {"call buffer before it is made", [](Plan& p) { p.steps[0].slots[0] = 3; }},
      {"call with too many inputs", [](Plan& p) { p.steps[2].num_inputs = 5; }},
      {"call into a temporary", [](Plan& p) { p.steps[2].slots[3] = 6; }},
      {"copy beyond its destination",
       [](Plan& p) {
         p.steps[3].copy = {};
         p.steps[3].slots = {0, 4};
       }},
      {"copy into a constant", [](Plan& p) { p.steps[3].slots = {5, 5}; }},
      {"overwritten input", [](Plan& p) { p.outputs[0].may_overwrite = 2; }},
      {"a later output", [](Plan& p) { p.outputs[3].source = 3; }},
      {"call buffer nobody makes", [](Plan& p) { p.steps.erase(p.steps.begin() + 2); }},
      {"unknown step", [](Plan& p) { p.steps[3].kind = static_cast<Step::Kind>(77); }},
      {"unknown element type", [](Plan& p) { p.steps[1].gemm.dtype = static_cast<DType>(40); }},
  };
  for (const auto& [what, change] : changes) {
    Plan plan = FullPlan();
    change(plan);
    EXPECT_EQ(Plan::Parse(plan.Serialize()).status().code(), absl::StatusCode::kInvalidArgument) << what;
  }
}

TEST(Plan, RefusesTilesThatLeaveTheirPart) {
  // Eight products of 4 x 3 by 3 x 8, whose results a kernel changes in place before they are multiplied again.
  const auto make = [] {
    Plan plan;
    plan.num_inputs = 2;
    plan.thread_bytes = 192;
    plan.kernels = {{"key", "object"}};
    plan.slots = {{Slot::Kind::kInput, 0, 0, 384},
                  {Slot::Kind::kInput, 1, 0, 96},
                  {Slot::Kind::kTile, 0, 64, 1024},
                  {Slot::Kind::kInput, 1, 0, 96},
                  {Slot::Kind::kOutput, 0, 0, 384}};
    plan.outputs = {{.bytes = 384}};
    Step first{.kind = Step::Kind::kGemm, .label = "dot", .slots = {0, 1, 2}, .num_inputs = 2}, second = first;
    first.gemm = {.m = 4, .n = 8, .k = 3, .lda = 3, .ldb = 8, .ldc = 8};
    first.gemm.batch = {8}, first.gemm.stride_a = {12}, first.gemm.stride_b = {0}, first.gemm.stride_c = {32};
    second.gemm = {.m = 4, .n = 3, .k = 8, .lda = 8, .ldb = 3, .ldc = 3};
    second.gemm.batch = {8}, second.gemm.stride_a = {32}, second.gemm.stride_b = {0}, second.gemm.stride_c = {12};
    second.slots = {2, 3, 4};
    plan.steps = {first, {.kind = Step::Kind::kKernel, .slots = {2}, .kernel = {.rows = 8}}, second};
    plan.tile_loops = {{.first = 0, .count = 3, .parts = 8}};
    return plan;
  };
  ASSERT_TRUE(Plan::Parse(make().Serialize()).ok()) << Plan::Parse(make().Serialize()).status();
  const std::pair<const char*, std::function<void(Plan&)>> changes[] = {
      {"beyond the thread's part", [](Plan& p) { p.slots[2].offset = 128; }},
      {"an end that overflows", [](Plan& p) { p.slots[2].offset = UINT64_MAX - 8; }},
      {"fewer, larger parts", [](Plan& p) { p.tile_loops[0].parts = 4; }},
      {"tiles of several parts", [](Plan& p) { p.tile_loops[0].of_group = p.tile_loops[0].of_tile = 2; }},
      {"bytes that parts do not divide", [](Plan& p) { p.slots[2].bytes = 1028; }},
      {"used before the loop", [](Plan& p) { p.tile_loops[0] = {.first = 1, .count = 2, .parts = 8}; }},
      {"used behind the loop", [](Plan& p) { p.tile_loops[0].count = 2; }},
      {"used in no loop", [](Plan& p) { p.tile_loops.clear(); }},
      {"a result that moves on otherwise", [](Plan& p) { p.steps[0].gemm.stride_c = {16}; }},
      {"an operand that every tile reads", [](Plan& p) { p.steps[2].gemm.stride_a = {0}; }},
      {"a product of nothing", [](Plan& p) { p.steps[2].gemm.n = 0; }},
      {"a huge part", [](Plan& p) { p.thread_bytes = uint64_t{1} << 50; }},
  };
  for (const auto& [what, change] : changes) {
    Plan plan = make();
    change(plan);
    EXPECT_EQ(Plan::Parse(plan.Serialize()).status().code(), absl::StatusCode::kInvalidArgument) << what;
  }
}

TEST(Plan, EveryTruncationIsRefused) {
  const std::string bytes = FullPlan().Serialize();
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(Plan::Parse(bytes.substr(0, size)).ok()) << size;
  EXPECT_FALSE(Plan::Parse(bytes + "x").ok());
}

// Damage is refused or gives another consistent plan (which then serialises and parses to itself); never a crash.
TEST(Plan, SurvivesRandomDamage) {
  const std::string good = FullPlan().Serialize();
  std::mt19937 random(7);
  int survived = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string bytes = good;
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      const size_t at = random() % bytes.size();
      bytes[at] = random() % 2 ? static_cast<char>(random()) : static_cast<char>(bytes[at] ^ (1 << random() % 8));
    }
    absl::StatusOr<Plan> plan = Plan::Parse(bytes);
    if (!plan.ok()) continue;
    ++survived;
    EXPECT_EQ(plan->Serialize(), bytes);
  }
  EXPECT_GT(survived, 0);
}

}  // namespace
}  // namespace tpu::host
