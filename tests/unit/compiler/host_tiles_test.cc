// Tile loops: which steps run together, and that their results are what they are apart.
#include <algorithm>
#include <cmath>

#include "tests/unit/compiler/host_testing.h"

namespace tpu::host {
namespace {

std::vector<TileLoop> LoopsOf(const std::string& text) {
  auto program = CompileText(text);
  EXPECT_TRUE(program.ok()) << program.status();
  if (!program.ok()) return {};
  auto plan = Plan::Parse(program->bytes);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? plan->tile_loops : std::vector<TileLoop>();
}

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

TEST(TileLoops, ProductsAndWhatLiesBetweenShareALoopOverTheBatch) {
  const std::vector<TileLoop> loops = LoopsOf(kAttention);
  ASSERT_EQ(loops.size(), 1u);
  EXPECT_EQ(loops[0].count, 3u);
  EXPECT_EQ(loops[0].tiles, 16);

  const int64_t batch = 16, length = 128, width = 32;
  const auto q = Ramp(batch * length * width, 0.1f, -0.7f), k = Ramp(batch * length * width, 0.2f, -1.5f);
  const auto v = Ramp(batch * length * width);
  const auto got = RunFor<float>(kAttention, {Pack(q), Pack(k), Pack(v)});
  ASSERT_EQ(got.size(), q.size());
  std::vector<double> row(length);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < length; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < length; ++j) {
        double s = 0;
        for (int64_t d = 0; d < width; ++d) s += q[(b * length + i) * width + d] * k[(b * length + j) * width + d];
        sum += row[j] = s * s;
      }
      for (int64_t d = 0; d < width; ++d) {
        double y = 0;
        for (int64_t j = 0; j < length; ++j) y += row[j] / sum * v[(b * length + j) * width + d];
        ASSERT_NEAR(got[(b * length + i) * width + d], y, 1e-4) << b << " " << i << " " << d;
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
