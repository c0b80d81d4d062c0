#include "runtime/host/conv_winograd.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/host/conv_words.h"
#include "runtime/host/lanes.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"
#include "runtime/machine.h"

namespace tpu::host {
namespace {

constexpr int64_t kTile = 2, kWindow = 4;       // positions of y and elements of x that a tile has in each dim
constexpr int64_t kPlanes = kWindow * kWindow;  // products
constexpr int64_t kTaps = 9;
constexpr int64_t kApart = 16;   // words between planes
constexpr int64_t kVector = 32;  // tiles that a panel takes at once

// Words of a task's tiles: half of the second level cache, and of their sums: a quarter of it.
int64_t LeftWords() {
  constexpr int64_t kMostBytes = 1 << 20;
  return std::min(SecondLevelCache(), kMostBytes) / 2 / static_cast<int64_t>(sizeof(float));
}
int64_t SumWords() { return LeftWords() / 2; }

// Tiles [at, at + count) of one row of tiles: of image `image`, from column `col` of tiles on.
struct Run {
  int64_t image, row, col, at, count;
};

struct Cutting {
  int64_t rows, cols, tiles;  // of tiles: of an image, of all images
  int64_t block, blocks;      // tiles of a task
  int64_t outs;               // channels of y at once

  explicit Cutting(const ConvStep& c)
      : rows(CeilDiv(c.rows.out, kTile)), cols(CeilDiv(c.cols.out, kTile)), tiles(c.batch * rows * cols) {
    const int64_t fit = LeftWords() / (kPlanes * c.in) / kVector * kVector;
    const int64_t share = RoundUp(CeilDiv(tiles, 2 * NumThreads()), kVector);
    block = std::clamp(std::min(fit, share), kVector, 8 * kVector);
    blocks = CeilDiv(tiles, block);
    outs = std::max(kPanelRows, SumWords() / (kPlanes * block) / kPanelRows * kPanelRows);
  }
  std::vector<Run> Runs(int64_t first, int64_t count) const {
    std::vector<Run> runs;
    for (int64_t at = 0; at < count;) {
      const int64_t tile = first + at, row = tile / cols;
      const int64_t some = std::min(count - at, cols - tile % cols);
      runs.push_back({row / rows, row % rows, tile % cols, at, some});
      at += some;
    }
    return runs;
  }
};

#define TPU_KERNELS "runtime/host/conv_winograd_kernels.h"
#include "runtime/host/each_instruction_set.h"

struct Transforms {
  decltype(&avx2::TransformWeights) weights;
  decltype(&avx2::TransformInput) input;
  decltype(&avx2::TransformOutput) output;
  decltype(&avx2::TransformGradient) gradient;
  decltype(&avx2::TransformSums) sums;
};
const Transforms& TransformsOfMachine() {
  static const Transforms transforms =
      UsableInstructions().avx512
          ? Transforms{avx512::TransformWeights, avx512::TransformInput, avx512::TransformOutput,
                       avx512::TransformGradient, avx512::TransformSums}
          : Transforms{avx2::TransformWeights, avx2::TransformInput, avx2::TransformOutput, avx2::TransformGradient,
                       avx2::TransformSums};
  return transforms;
}

// B^T d B of the tiles of some runs, all channels.
void TransformInputs(const ConvStep& c, const std::vector<Run>& runs, const float* x, int64_t block, float* to,
                     int64_t plane) {
  for (int64_t i = 0; i < c.in; ++i) {
    for (const Run& run : runs) {
      const float* const image = x + (run.image * c.in + i) * c.rows.in * c.cols.in;
      std::array<const float*, kWindow> window;
      for (int64_t r = 0; r < kWindow; ++r) {
        const int64_t row = run.row * kTile + r - c.rows.low;
        window[r] = row >= 0 && row < c.rows.in ? image + row * c.cols.in : nullptr;
      }
      TransformsOfMachine().input(window, run.col * kTile - c.cols.low, c.cols.in, run.count, to + i * block + run.at,
                                  plane);
    }
  }
}

std::vector<int32_t> Every(int64_t step, int64_t count) {
  std::vector<int32_t> offsets;
  for (int64_t i = 0; i < count; ++i) offsets.push_back(static_cast<int32_t>(i * step));
  return offsets;
}

}  // namespace

bool BetterByWinograd(const ConvStep& c) {
  constexpr int64_t kLeastChannels = 16, kLeastCols = 10, kLeastTiles = 192;  // for which transforming pays
  constexpr int64_t kMostSums = 1 << 20;  // of a thread's part of the gradient of the weight
  const auto fits = [](const ConvStep::Dim& d) {
    return d.kernel == 3 && d.stride == 1 && d.dilation == 1 && d.spread == 1;
  };
  const bool forward = c.kind == ConvStep::Kind::kForward;
  return c.dtype == DType::kFloat32 && c.groups == 1 && fits(c.rows) && fits(c.cols) &&
         std::min(c.in, c.out) >= kLeastChannels && c.cols.out >= kLeastCols && Cutting(c).tiles >= kLeastTiles &&
         Product({kPlanes, c.in, c.out}) <= (forward ? kMostElements : kMostSums);
}

bool ForwardByWinograd(const ConvStep& c, const float* x, const float* w, float* y) {
  const Cutting cutting(c);
  std::atomic<bool> finite{true};
  const int64_t block = cutting.block, y_image = c.rows.out * c.cols.out;
  thread_local KeptWords kept_weights;
  // Planes whose strides were a power of two would share few lines of the cache.
  const int64_t weight_plane = c.out * c.in + kApart;
  const Scratch weights(kept_weights, kPlanes * weight_plane);
  float* const u = weights.data();
  ParallelFor(c.out, CeilDiv(1 << 11, c.in), [&](int64_t begin, int64_t end) {
    TransformsOfMachine().weights(w + begin * c.in * kTaps, (end - begin) * c.in, u + begin * c.in, weight_plane);
  });
  const std::vector<int32_t> depths = Every(1, c.in), rows = Every(block, c.in), cols = Every(1, block);
  ParallelFor(cutting.blocks, 1, [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept_left, kept_sums;
    const int64_t left_plane = c.in * block + kApart, sum_plane = cutting.outs * block + kApart;
    const Scratch left(kept_left, kPlanes * left_plane), sums(kept_sums, kPlanes * sum_plane);
    bool all = true;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task * block, count = std::min(block, cutting.tiles - first);
      const std::vector<Run> runs = cutting.Runs(first, count);
      TransformInputs(c, runs, x, block, left.data(), left_plane);
      for (int64_t out = 0; out < c.out; out += cutting.outs) {
        const int64_t outs = std::min(cutting.outs, c.out - out);
        for (int64_t t = 0; t < kPlanes; ++t) {
          MultiplyGathered({.dtype = c.dtype,
                            .accumulate = false,
                            .m = outs,
                            .n = count,
                            .k = c.in,
                            .lda = c.in,
                            .ldc = block,
                            .a = u + t * weight_plane + out * c.in,
                            .depths = depths.data(),
                            .b = left.data() + t * left_plane,
                            .rows = rows.data(),
                            .cols = cols.data(),
                            .c_cols = cols.data(),
                            .c = sums.data() + t * sum_plane});
        }
        for (int64_t o = 0; o < outs; ++o) {
          for (const Run& run : runs) {
            const int64_t row = run.row * kTile, col = run.col * kTile;
            float* const top = y + (run.image * c.out + out + o) * y_image + row * c.cols.out + col;
            all &=
                TransformsOfMachine().output(sums.data() + o * block + run.at, sum_plane, run.count, c.cols.out - col,
                                             top, row + 1 < c.rows.out ? top + c.cols.out : nullptr);
          }
        }
      }
    }
    if (!all) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load(std::memory_order_relaxed);
}

bool WeightByWinograd(const ConvStep& c, const float* x, const float* y, float* w) {
  const Cutting cutting(c);
  const int64_t block = cutting.block, parts = std::min<int64_t>(NumThreads(), cutting.blocks);
  const int64_t y_image = c.rows.out * c.cols.out, sum_plane = c.out * c.in + kApart;
  const std::vector<int32_t> depths = Every(1, block), rows = Every(c.in, block), cols = Every(1, c.in);
  thread_local KeptWords kept_sums;
  const Scratch all_sums(kept_sums, parts * kPlanes * sum_plane);
  float* const sums = all_sums.data();
  ParallelFor(parts, 1, [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept_right, kept_left, kept_turned;
    const int64_t right_plane = c.in * block + kApart, left_plane = c.out * block + kApart;
    const Scratch right(kept_right, kPlanes * right_plane), left(kept_left, kPlanes * left_plane);
    const Scratch turned(kept_turned, c.in * block);
    for (int64_t part = begin; part < end; ++part) {
      const int64_t from = cutting.blocks * part / parts;
      for (int64_t task = from; task < cutting.blocks * (part + 1) / parts; ++task) {
        const int64_t first = task * block, count = std::min(block, cutting.tiles - first);
        const std::vector<Run> runs = cutting.Runs(first, count);
        TransformInputs(c, runs, x, block, right.data(), right_plane);
        for (int64_t o = 0; o < c.out; ++o) {
          for (const Run& run : runs) {
            const int64_t row = run.row * kTile, col = run.col * kTile;
            const float* const top = y + (run.image * c.out + o) * y_image + row * c.cols.out + col;
            TransformsOfMachine().gradient(top, row + 1 < c.rows.out ? top + c.cols.out : nullptr, c.cols.out - col,
                                           run.count, left.data() + o * block + run.at, left_plane);
          }
        }
        for (int64_t t = 0; t < kPlanes; ++t) {
          TransposePanel(right.data() + t * right_plane, block, c.in, count, turned.data(), c.in);
          MultiplyGathered({.dtype = c.dtype,
                            .accumulate = task != from,
                            .m = c.out,
                            .n = c.in,
                            .k = count,
                            .lda = block,
                            .ldc = c.in,
                            .a = left.data() + t * left_plane,
                            .depths = depths.data(),
                            .b = turned.data(),
                            .rows = rows.data(),
                            .cols = cols.data(),
                            .c_cols = cols.data(),
                            .c = sums + (part * kPlanes + t) * sum_plane});
        }
      }
    }
  });
  std::atomic<bool> finite{true};
  ParallelFor(c.out, CeilDiv(1 << 11, c.in), [&](int64_t begin, int64_t end) {
    if (!TransformsOfMachine().sums(sums + begin * c.in, sum_plane, parts, (end - begin) * c.in,
                                    w + begin * c.in * kTaps)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite.load(std::memory_order_relaxed);
}

}  // namespace tpu::host
