// Tile loops: which steps run together, and that their results are what they are apart.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/host/matrix_library.h"
#include "runtime/host/panel_gemm.h"
#include "tests/unit/compiler/host_testing.h"
#include "tests/unit/runtime/plain_sgemm.h"

namespace tpu::host {
namespace {

Plan PlanOf(const std::string& text) {
  auto program = CompileText(text);
  EXPECT_TRUE(program.ok()) << program.status();
  if (!program.ok()) return {};
  auto plan = Plan::Parse(program->bytes);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan();
}
std::vector<TileLoop> LoopsOf(const std::string& text) { return PlanOf(text).tile_loops; }

// (q @ k.T) ** 2 over its row's sum, times v; 16 matrices.
constexpr char kAttention[] = R"(
  func.func @fragment(%q: tensor<16x128x32xf32>, %k: tensor<16x128x32xf32>, %v: tensor<16x128x32xf32>)
      -> tensor<16x128x32xf32> {
    %s = tpu.dot %q, %k batch [0] x [0] contract [2] x [2]
        : (tensor<16x128x32xf32>, tensor<16x128x32xf32>) -> tensor<16x128x128xf32>
    %e = tpu.mul %s, %s : tensor<16x128x128xf32>
    %sum = tpu.reduce sum %e [2] : (tensor<16x128x128xf32>) -> tensor<16x128xf32>
    %b = tpu.broadcast %sum [0, 1] : (tensor<16x128xf32>) -> tensor<16x128x128xf32>
    %p = tpu.div %e, %b : tensor<16x128x128xf32>
    %y = tpu.dot %p, %v batch [0] x [0] contract [2] x [1]
        : (tensor<16x128x128xf32>, tensor<16x128x32xf32>) -> tensor<16x128x32xf32>
    return %y : tensor<16x128x32xf32>
  })";

// Of matrix b of kAttention's scores: row i of them, squared, over their sum.
std::vector<double> WeightsOf(const std::vector<float>& q, const std::vector<float>& k, int64_t length, int64_t width,
                              int64_t b, int64_t i) {
  std::vector<double> row(static_cast<size_t>(length));
  double sum = 0;
  for (int64_t j = 0; j < length; ++j) {
    double s = 0;
    for (int64_t d = 0; d < width; ++d) s += q[(b * length + i) * width + d] * k[(b * length + j) * width + d];
    sum += row[j] = s * s;
  }
  for (double& weight : row) weight /= sum;
  return row;
}

TEST(TileLoops, ProductsAndWhatLiesBetweenShareALoopOverTheBatch) {
  const Plan plan = PlanOf(kAttention);
  ASSERT_EQ(plan.tile_loops.size(), 1u);
  EXPECT_EQ(plan.tile_loops[0].count, 3u);
  EXPECT_EQ(plan.tile_loops[0].parts, 16);
  // What lies between is nowhere whole: a thread has room for one matrix of scores, which the weights are written over.
  EXPECT_EQ(plan.arena_bytes, 0u);
  EXPECT_EQ(plan.thread_bytes, 128u * 128 * 4);

  const int64_t batch = 16, length = 128, width = 32;
  const auto q = Ramp(batch * length * width, 0.1f, -0.7f), k = Ramp(batch * length * width, 0.2f, -1.5f);
  const auto v = Ramp(batch * length * width);
  const auto got = RunFor<float>(kAttention, {Pack(q), Pack(k), Pack(v)});
  ASSERT_EQ(got.size(), q.size());
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < length; ++i) {
      const std::vector<double> row = WeightsOf(q, k, length, width, b, i);
      for (int64_t d = 0; d < width; ++d) {
        double y = 0;
        for (int64_t j = 0; j < length; ++j) y += row[j] * v[(b * length + j) * width + d];
        ASSERT_NEAR(got[(b * length + i) * width + d], y, 1e-4) << b << " " << i << " " << d;
      }
    }
  }
}

// The same over so many positions that one matrix of scores is too large, and the weights turned, times u.
void TestALargeMatrix(int64_t length) {
  std::string text = absl::StrReplaceAll(
      kAttention, {{"%v: tensor<16x128x32xf32>)", "%v: tensor<16x128x32xf32>, %u: tensor<16x128x32xf32>)"},
                   {"-> tensor<16x128x32xf32> {", "-> (tensor<16x128x32xf32>, tensor<16x128x32xf32>) {"},
                   {"return %y : tensor<16x128x32xf32>", R"(%z = tpu.dot %p, %u batch [0] x [0] contract [1] x [1]
        : (tensor<16x128x128xf32>, tensor<16x128x32xf32>) -> tensor<16x128x32xf32>
    return %y, %z : tensor<16x128x32xf32>, tensor<16x128x32xf32>)"}});
  text = absl::StrReplaceAll(text, {{"tensor<16", "tensor<8"}, {"x128", absl::StrCat("x", length)}});
  const Plan plan = PlanOf(text);
  ASSERT_EQ(plan.tile_loops.size(), 1u);
  const TileLoop& loop = plan.tile_loops[0];
  EXPECT_EQ(loop.count, 4u);
  EXPECT_GT(loop.tiles_of_group(), 1);
  EXPECT_EQ(loop.groups(), 8);
  EXPECT_EQ(plan.arena_bytes, 0u);
  EXPECT_LE(plan.thread_bytes, 4u << 20);

  const int64_t batch = 8, width = 32;
  const auto q = Ramp(batch * length * width, 0.001f, -0.7f), k = Ramp(batch * length * width, 0.002f, -1.5f);
  const auto v = Ramp(batch * length * width), u = Ramp(batch * length * width, 0.01f, -3);
  const std::vector<Bytes> inputs = {Pack(q), Pack(k), Pack(v), Pack(u)};
  const auto y = RunFor<float>(text, inputs, 0), z = RunFor<float>(text, inputs, 1);
  std::vector<double> turned(length * width, 0);
  const int64_t b = 5;
  for (int64_t i = 0; i < length; ++i) {
    const std::vector<double> row = WeightsOf(q, k, length, width, b, i);
    std::vector<double> out(width, 0);
    for (int64_t j = 0; j < length; ++j) {
      for (int64_t d = 0; d < width; ++d) {
        out[d] += row[j] * v[(b * length + j) * width + d];
        turned[j * width + d] += row[j] * u[(b * length + i) * width + d];
      }
    }
    for (int64_t d = 0; d < width; ++d) {
      ASSERT_NEAR(y[(b * length + i) * width + d], out[d], 1e-3 * (1 + std::abs(out[d]))) << i << " " << d;
    }
  }
  for (int64_t at = 0; at < length * width; ++at) {
    ASSERT_NEAR(z[b * length * width + at], turned[at], 1e-3 * (1 + std::abs(turned[at]))) << at;
  }
}
TEST(TileLoops, ALargeMatrixIsTakenBySomeRowsAtATime) {
  TestALargeMatrix(1024);
  TestALargeMatrix(1021);
}

// x @ w by row times a row, times v.
TEST(TileLoops, ProductsOfFewRowsShareALoop) {
  SetMatrixLibrary({.name = "plain", .sgemm = PlainSgemm});
  const int64_t rows = 48, width = 32;
  const std::string text = R"(
    func.func @fragment(%x: tensor<48x32xf32>, %w: tensor<32x32xf32>, %v: tensor<32x32xf32>, %b: tensor<32xf32>)
        -> tensor<48x32xf32> {
      %s = tpu.dot %x, %w batch [] x [] contract [1] x [0]
          : (tensor<48x32xf32>, tensor<32x32xf32>) -> tensor<48x32xf32>
      %r = tpu.broadcast %b [1] : (tensor<32xf32>) -> tensor<48x32xf32>
      %e = tpu.mul %s, %r : tensor<48x32xf32>
      %y = tpu.dot %e, %v batch [] x [] contract [1] x [0]
          : (tensor<48x32xf32>, tensor<32x32xf32>) -> tensor<48x32xf32>
      return %y : tensor<48x32xf32>
    })";
  const std::vector<TileLoop> loops = LoopsOf(text);
  if (PanelsFirst()) {
    EXPECT_TRUE(loops.empty());
  } else {
    ASSERT_EQ(loops.size(), 1u);
    EXPECT_EQ(loops[0].count, 3u);
    EXPECT_EQ(loops[0].parts, 3);
  }
  const auto x = Ramp(rows * width, 0.01f, -0.7f), w = Ramp(width * width, 0.01f, -0.1f), v = Ramp(width * width),
             b = Ramp(width);
  const auto got = RunFor<float>(text, {Pack(x), Pack(w), Pack(v), Pack(b)});
  SetMatrixLibrary({});
  ASSERT_EQ(got.size(), x.size());
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<double> scaled(width, 0);
    for (int64_t j = 0; j < width; ++j) {
      for (int64_t d = 0; d < width; ++d) scaled[j] += x[i * width + d] * w[d * width + j];
      scaled[j] *= b[j];
    }
    for (int64_t j = 0; j < width; ++j) {
      double y = 0;
      for (int64_t d = 0; d < width; ++d) y += scaled[d] * v[d * width + j];
      ASSERT_NEAR(got[i * width + j], y, 1e-4 * (1 + std::abs(y))) << i << " " << j;
    }
  }
}

// The base is made in a loop that ends after the scatter's turn.
TEST(TileLoops, AScatterComesAfterTheLoopThatMakesItsBase) {
  const std::string scattered = absl::StrReplaceAll(
      kAttention,
      {{"%v: tensor<16x128x32xf32>)", "%v: tensor<16x128x32xf32>, %i: tensor<1xi64>, %u: tensor<1x128x128xf32>)"},
       {"-> tensor<16x128x32xf32> {", "-> (tensor<16x128x32xf32>, tensor<16x128x128xf32>) {"},
       {"%y = tpu.dot", R"(%r = tpu.scatter_rows add %u into %p at %i along 0
        : (tensor<16x128x128xf32>, tensor<1xi64>, tensor<1x128x128xf32>) -> tensor<16x128x128xf32>
    %y = tpu.dot)"},
       {"return %y : tensor<16x128x32xf32>", "return %y, %r : tensor<16x128x32xf32>, tensor<16x128x128xf32>"}});
  ASSERT_EQ(LoopsOf(scattered).size(), 1u);
  const auto q = Ramp(16 * 128 * 32), v = Ramp(16 * 128 * 32), u = Ramp(128 * 128);
  const std::vector<Bytes> inputs = {Pack(q), Pack(q), Pack(v), Pack(std::vector<int64_t>{3}), Pack(u)};
  const auto got = RunFor<float>(scattered, inputs, 1);
  std::vector<Bytes> nowhere = inputs;
  nowhere[4] = Pack(std::vector<float>(128 * 128, 0.0f));
  auto want = RunFor<float>(scattered, nowhere, 1);
  for (int64_t at = 0; at < 128 * 128; ++at) want[3 * 128 * 128 + at] += u[at];
  EXPECT_EQ(got, want);
  EXPECT_NEAR(std::accumulate(want.begin(), want.begin() + 128, 0.0), 1.0, 1e-4);  // rows of weights
}

// The scores are read again behind the weights, which so have a place of their own; the sum takes neither's.
TEST(TileLoops, WhatIsReadLaterIsNotWrittenOver) {
  constexpr char kText[] = R"(
    func.func @fragment(%q: tensor<16x128x128xf32>, %k: tensor<16x128x128xf32>) -> tensor<16x128x128xf32> {
      %s = tpu.dot %q, %k batch [0] x [0] contract [2] x [2]
          : (tensor<16x128x128xf32>, tensor<16x128x128xf32>) -> tensor<16x128x128xf32>
      %e = tpu.mul %s, %s : tensor<16x128x128xf32>
      %t = tpu.dot %e, %k batch [0] x [0] contract [2] x [1]
          : (tensor<16x128x128xf32>, tensor<16x128x128xf32>) -> tensor<16x128x128xf32>
      %u = tpu.dot %s, %t batch [0] x [0] contract [2] x [1]
          : (tensor<16x128x128xf32>, tensor<16x128x128xf32>) -> tensor<16x128x128xf32>
      return %u : tensor<16x128x128xf32>
    })";
  const Plan plan = PlanOf(kText);
  ASSERT_EQ(plan.tile_loops.size(), 1u);
  EXPECT_EQ(plan.tile_loops[0].count, 4u);
  EXPECT_EQ(plan.thread_bytes, 3u * 128 * 128 * 4);
  // Each row of q picks a column: scores are k turned.
  std::vector<float> q(16 * 128 * 128, 0), k(16 * 128 * 128);
  for (size_t i = 0; i < q.size(); ++i) q[i] = i % (128 * 128) % 129 == 0 ? 1 : 0, k[i] = static_cast<float>(i % 7) - 3;
  const auto got = RunFor<float>(kText, {Pack(q), Pack(k)});
  ASSERT_EQ(got.size(), k.size());
  const auto at = [&](size_t b, size_t i, size_t j) { return static_cast<double>(k[(b * 128 + i) * 128 + j]); };
  for (size_t b : {0, 15}) {
    for (size_t i = 0; i < 128; i += 31) {
      for (size_t j = 0; j < 128; j += 17) {
        double expected = 0;
        for (size_t p = 0; p < 128; ++p) {
          double t = 0;
          for (size_t r = 0; r < 128; ++r) t += at(b, r, p) * at(b, r, p) * at(b, r, j);
          expected += at(b, p, i) * t;
        }
        ASSERT_NEAR(got[(b * 128 + i) * 128 + j], expected, 1e-4 * std::abs(expected) + 1e-2)
            << b << " " << i << " " << j;
      }
    }
  }
}

TEST(TileLoops, NotWhereATileNeedsOthersResults) {
  // The second product contracts over the batch of the first.
  EXPECT_TRUE(LoopsOf(R"(
    func.func @fragment(%q: tensor<16x128x32xf32>, %k: tensor<16x128x32xf32>, %w: tensor<16x64xf32>)
        -> tensor<16384x64xf32> {
      %s = tpu.dot %q, %k batch [0] x [0] contract [2] x [2]
          : (tensor<16x128x32xf32>, tensor<16x128x32xf32>) -> tensor<16x128x128xf32>
      %y = tpu.dot %s, %w batch [] x [] contract [0] x [0]
          : (tensor<16x128x128xf32>, tensor<16x64xf32>) -> tensor<128x128x64xf32>
      %z = tpu.reshape %y : (tensor<128x128x64xf32>) -> tensor<16384x64xf32>
      return %z : tensor<16384x64xf32>
    })")
                  .empty());
}

TEST(TileLoops, AValueThatIsReadWholeEndsThem) {
  // Every row of the second product reads all of the first.
  EXPECT_TRUE(LoopsOf(R"(
    func.func @fragment(%a: tensor<1024x512xf32>, %b: tensor<512x512xf32>, %c: tensor<4096x1024xf32>)
        -> tensor<4096x512xf32> {
      %x = tpu.dot %a, %b batch [] x [] contract [1] x [0]
          : (tensor<1024x512xf32>, tensor<512x512xf32>) -> tensor<1024x512xf32>
      %y = tpu.dot %c, %x batch [] x [] contract [1] x [0]
          : (tensor<4096x1024xf32>, tensor<1024x512xf32>) -> tensor<4096x512xf32>
      return %y : tensor<4096x512xf32>
    })")
                  .empty());
}

// What is read before a tile loop's end is not written over by it.
TEST(TileLoops, DonatedInputsThatOtherTilesReadStay) {
  constexpr char kText[] = R"(
    func.func @fragment(%q: tensor<16x128x128xf32>, %k: tensor<16x128x128xf32>)
        -> (tensor<16x128x128xf32>, tensor<16x128x128xf32>) {
      %s = tpu.dot %q, %k batch [0] x [0] contract [2] x [2]
          : (tensor<16x128x128xf32>, tensor<16x128x128xf32>) -> tensor<16x128x128xf32>
      %t = tpu.add %s, %q : tensor<16x128x128xf32>
      %u = tpu.dot %t, %k batch [0] x [0] contract [2] x [1]
          : (tensor<16x128x128xf32>, tensor<16x128x128xf32>) -> tensor<16x128x128xf32>
      %w = tpu.add %u, %q : tensor<16x128x128xf32>
      return %t, %w : tensor<16x128x128xf32>, tensor<16x128x128xf32>
    })";
  EXPECT_EQ(LoopsOf(kText).size(), 1u);
  const auto q = Ramp(16 * 128 * 128, 0.1f, -0.7f), k = Ramp(16 * 128 * 128, 0.1f, -0.8f);
  const auto kept = RunText(kText, {Pack(q), Pack(k)}, false), donated = RunText(kText, {Pack(q), Pack(k)}, true);
  ASSERT_TRUE(kept.ok() && donated.ok());
  EXPECT_EQ((*kept)[0], (*donated)[0]);
  EXPECT_EQ((*kept)[1], (*donated)[1]);
}

}  // namespace
}  // namespace tpu::host
