#include "runtime/host/tile_cut.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/host/gemm.h"

namespace tpu::host {

int64_t FinestCut(Walk walk) {
  while (!walk.sizes.empty()) {
    int64_t positions = 1, part = walk.count;
    bool apart = walk.low >= 0;
    for (size_t i = 0; apart && i < walk.sizes.size(); ++i) {
      positions *= walk.sizes[i];
      apart = part % walk.sizes[i] == 0;
      part /= walk.sizes[i];
      apart &= walk.sizes[i] == 1 || walk.strides[i] == part;
    }
    if (apart && walk.high < part) return positions;
    const int64_t reach = walk.strides.back() * (walk.sizes.back() - 1);
    (reach < 0 ? walk.low : walk.high) += reach;
    walk.sizes.pop_back();
    walk.strides.pop_back();
  }
  return 1;
}

bool SumsOverTiles(const GemmStep& g) {
  return g.trans_a && !g.trans_b && !g.accumulate && !g.batch.empty() && g.k > 0 &&
         (g.out_dtype == DType::kFloat32 || g.out_dtype == DType::kFloat64);
}

bool IsByDepth(const TileLoop& loop, const Step& step) {
  return step.kind == Step::Kind::kGemm && loop.of_group > 1 && SumsOverTiles(step.gemm);
}

int64_t ExtentIn(const TileLoop& loop, const Step& step) {
  if (step.kind == Step::Kind::kKernel) return step.kernel.extent();
  return IsByDepth(loop, step) ? DepthsOf(step.gemm) : RowsOf(step.gemm);
}

uint64_t BytesOfTile(const TileLoop& loop, uint64_t bytes) {
  return bytes / static_cast<uint64_t>(loop.parts) * static_cast<uint64_t>(std::min(loop.of_tile, loop.of_group));
}

absl::Status CheckTiles(const TileLoop& loop) {
  if (loop.parts >= 1 && loop.of_tile >= 1 && loop.of_group >= 1 && loop.parts % loop.of_group == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("host plan: a tile loop of ", loop.parts, " parts, ", loop.of_group,
                                                 " of a group, ", loop.of_tile, " of a tile"));
}

std::array<int64_t, 3> CutsOf(const GemmStep& g, const std::array<int64_t, 3>& elements, bool by_depth) {
  auto cut = [&](int64_t offset, const std::vector<int64_t>& strides, int64_t row, int64_t rest, int64_t count) {
    Walk walk{g.batch, strides, offset, offset + rest, count};
    walk.sizes.push_back(by_depth ? g.k : g.m);
    walk.strides.push_back(row);
    return FinestCut(std::move(walk));
  };
  if (by_depth) {
    return {cut(g.offset_a, g.stride_a, g.lda, g.m - 1, elements[0]),
            cut(g.offset_b, g.stride_b, g.ldb, g.n - 1, elements[1]),
            cut(g.offset_c, g.stride_c, 0, (g.m - 1) * g.ldc + g.n - 1, elements[2])};
  }
  const int64_t a = g.trans_a ? (g.k - 1) * g.lda : g.k - 1;
  const int64_t b = g.trans_b ? (g.n - 1) * g.ldb + g.k - 1 : (g.k - 1) * g.ldb + g.n - 1;
  return {cut(g.offset_a, g.stride_a, g.trans_a ? 1 : g.lda, a, elements[0]),
          cut(g.offset_b, g.stride_b, 0, b, elements[1]), cut(g.offset_c, g.stride_c, g.ldc, g.n - 1, elements[2])};
}

}  // namespace tpu::host
