#include "runtime/host/conv_winograd.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/host/conv_words.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"

#define TPU_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))

namespace tpu::host {
namespace {

constexpr int64_t kTile = 2, kWindow = 4;       // positions of y and elements of x that a tile has in each dim
constexpr int64_t kPlanes = kWindow * kWindow;  // products
constexpr int64_t kTaps = 9;
constexpr int64_t kLanes = 16;
constexpr int64_t kVector = 32;                               // tiles that a panel takes at once
constexpr int64_t kLeftWords = 1 << 17, kSumWords = 1 << 16;  // of a task's tiles, in the second level cache

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
    const int64_t fit = kLeftWords / (kPlanes * c.in) / kVector * kVector;
    const int64_t share = RoundUp(CeilDiv(tiles, 2 * NumThreads()), kVector);
    block = std::clamp(std::min(fit, share), kVector, 8 * kVector);
    blocks = CeilDiv(tiles, block);
    outs = std::max(kPanelRows, kSumWords / (kPlanes * block) / kPanelRows * kPanelRows);
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

TPU_AVX512 __m512i Lanes(int first, int second, int step) {  // first, second, first + step, second + step, ..
  alignas(64) std::array<int32_t, kLanes> lanes;
  for (int i = 0; i < kLanes; i += 2) lanes[i] = first + i / 2 * step, lanes[i + 1] = second + i / 2 * step;
  return _mm512_load_si512(lanes.data());
}

// Of lanes [low, high).
__mmask16 Mask(int64_t low, int64_t high) {
  const auto below = [](int64_t n) { return (uint32_t{1} << std::clamp<int64_t>(n, 0, kLanes)) - 1; };
  return static_cast<__mmask16>(below(high) & ~below(low));
}

// Masked stores are slow on AMD's processors.
TPU_AVX512 void Store(float* to, int64_t count, __m512 lanes) {
  if (count >= kLanes) return _mm512_storeu_ps(to, lanes);
  if (count > 0) _mm512_mask_storeu_ps(to, Mask(0, count), lanes);
}

// G g G^T of windows g one after the other, a plane for each element.
TPU_AVX512 void TransformWeights(const float* windows, int64_t count, float* to, int64_t plane) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = std::min(kLanes, count - i);
    alignas(64) float taps[kTaps][kLanes] = {};
    for (int64_t l = 0; l < lanes; ++l) {
      for (int64_t t = 0; t < kTaps; ++t) taps[t][l] = windows[(i + l) * kTaps + t];
    }
    const __m512 half = _mm512_set1_ps(0.5f);
    const auto spread = [=](__m512 a, __m512 b, __m512 c, __m512(&r)[kWindow]) TPU_AVX512 {
      const __m512 ends = _mm512_add_ps(a, c);
      r[0] = a;
      r[1] = _mm512_mul_ps(half, _mm512_add_ps(ends, b));
      r[2] = _mm512_mul_ps(half, _mm512_sub_ps(ends, b));
      r[3] = c;
    };
    __m512 rows[3][kWindow];
    for (int64_t s = 0; s < 3; ++s) {
      spread(_mm512_load_ps(taps[s]), _mm512_load_ps(taps[3 + s]), _mm512_load_ps(taps[6 + s]), rows[s]);
    }
    for (int64_t r = 0; r < kWindow; ++r) {
      __m512 row[kWindow];
      spread(rows[0][r], rows[1][r], rows[2][r], row);
      for (int64_t s = 0; s < kWindow; ++s) Store(to + (r * kWindow + s) * plane + i, lanes, row[s]);
    }
  }
}

// Of four rows of an image, null where they are beyond it, from column `from` on: B^T d B of `count` tiles, a plane for
// each element.
TPU_AVX512 void TransformInput(const std::array<const float*, kWindow>& rows, int64_t from, int64_t width,
                               int64_t count, float* to, int64_t plane) {
  const __m512i even = Lanes(0, 2, 4), odd = Lanes(1, 3, 4);
  for (int64_t q = 0; q < count; q += kLanes) {
    const int64_t col = from + kTile * q;
    // Columns from `col` on, then those two further, sixteen and sixteen.
    __m512 d[4][kWindow];
    for (int64_t part = 0; part < 4; ++part) {
      const int64_t at = col + part % 2 * kLanes + part / 2 * kTile;
      const __mmask16 inside = Mask(-at, width - at);
      __m512 x[kWindow];
      for (int64_t r = 0; r < kWindow; ++r) {
        x[r] = rows[r] != nullptr ? _mm512_maskz_loadu_ps(inside, rows[r] + at) : _mm512_setzero_ps();
      }
      d[part][0] = _mm512_sub_ps(x[0], x[2]);
      d[part][1] = _mm512_add_ps(x[1], x[2]);
      d[part][2] = _mm512_sub_ps(x[2], x[1]);
      d[part][3] = _mm512_sub_ps(x[1], x[3]);
    }
    for (int64_t r = 0; r < kWindow; ++r) {
      const __m512 a = _mm512_permutex2var_ps(d[0][r], even, d[1][r]),
                   b = _mm512_permutex2var_ps(d[0][r], odd, d[1][r]);
      const __m512 c = _mm512_permutex2var_ps(d[2][r], even, d[3][r]),
                   e = _mm512_permutex2var_ps(d[2][r], odd, d[3][r]);
      float* const first = to + r * kWindow * plane + q;
      _mm512_storeu_ps(first, _mm512_sub_ps(a, c));
      _mm512_storeu_ps(first + plane, _mm512_add_ps(b, c));
      _mm512_storeu_ps(first + 2 * plane, _mm512_sub_ps(c, b));
      _mm512_storeu_ps(first + 3 * plane, _mm512_sub_ps(b, e));
    }
  }
}

// A^T m A of `count` tiles: two rows of y of `width` columns, the second null where it is beyond the image. Whether all
// are finite.
TPU_AVX512 bool TransformOutput(const float* from, int64_t plane, int64_t count, int64_t width, float* top,
                                float* bottom) {
  const __m512i low = Lanes(0, kLanes, 1), high = Lanes(kLanes / 2, kLanes + kLanes / 2, 1);
  __m512 zeros = _mm512_setzero_ps();  // but for infinities and NaN, which are NaN here
  const auto put = [&](float* to, int64_t columns, __mmask16 some, const __m512(&s)[kWindow]) TPU_AVX512 {
    const __m512 a = _mm512_add_ps(_mm512_add_ps(s[0], s[1]), s[2]), b = _mm512_sub_ps(_mm512_sub_ps(s[1], s[2]), s[3]);
    zeros = _mm512_mask3_fmadd_ps(a, _mm512_setzero_ps(), zeros, some);
    zeros = _mm512_mask3_fmadd_ps(b, _mm512_setzero_ps(), zeros, some);
    Store(to, columns, _mm512_permutex2var_ps(a, low, b));
    Store(to + kLanes, columns - kLanes, _mm512_permutex2var_ps(a, high, b));
  };
  for (int64_t q = 0; q < count; q += kLanes) {
    const int64_t columns = std::min(kTile * (count - q), width - kTile * q);
    __m512 first[kWindow], second[kWindow];
    for (int64_t s = 0; s < kWindow; ++s) {
      __m512 m[kWindow];
      for (int64_t r = 0; r < kWindow; ++r) m[r] = _mm512_loadu_ps(from + (r * kWindow + s) * plane + q);
      first[s] = _mm512_add_ps(_mm512_add_ps(m[0], m[1]), m[2]);
      second[s] = _mm512_sub_ps(_mm512_sub_ps(m[1], m[2]), m[3]);
    }
    const __mmask16 some = Mask(0, count - q);
    put(top + kTile * q, columns, some, first);
    if (bottom != nullptr) put(bottom + kTile * q, columns, some, second);
  }
  return _mm512_cmp_ps_mask(zeros, zeros, _CMP_UNORD_Q) == 0;
}

// Of two rows of y of `width` columns, null where they are beyond it: A y A^T of `count` tiles.
TPU_AVX512 void TransformGradient(const float* top, const float* bottom, int64_t width, int64_t count, float* to,
                                  int64_t plane) {
  const __m512i even = Lanes(0, 2, 4), odd = Lanes(1, 3, 4);
  for (int64_t q = 0; q < count; q += kLanes) {
    __m512 columns[2][kWindow];
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t at = kTile * q + half * kLanes;
      const __mmask16 inside = Mask(0, width - at);
      const __m512 a = _mm512_maskz_loadu_ps(inside, top + at);
      const __m512 b = bottom != nullptr ? _mm512_maskz_loadu_ps(inside, bottom + at) : _mm512_setzero_ps();
      columns[half][0] = a;
      columns[half][1] = _mm512_add_ps(a, b);
      columns[half][2] = _mm512_sub_ps(a, b);
      columns[half][3] = _mm512_sub_ps(_mm512_setzero_ps(), b);
    }
    for (int64_t r = 0; r < kWindow; ++r) {
      const __m512 a = _mm512_permutex2var_ps(columns[0][r], even, columns[1][r]);
      const __m512 b = _mm512_permutex2var_ps(columns[0][r], odd, columns[1][r]);
      float* const first = to + r * kWindow * plane + q;
      _mm512_storeu_ps(first, a);
      _mm512_storeu_ps(first + plane, _mm512_add_ps(a, b));
      _mm512_storeu_ps(first + 2 * plane, _mm512_sub_ps(a, b));
      _mm512_storeu_ps(first + 3 * plane, _mm512_sub_ps(_mm512_setzero_ps(), b));
    }
  }
}

// G^T u G of `count` windows, u the sums of `parts` times kPlanes planes. Whether all are finite.
TPU_AVX512 bool TransformSums(const float* sums, int64_t plane, int64_t parts, int64_t count, float* windows) {
  const __m512 half = _mm512_set1_ps(0.5f);
  const auto gather = [=](__m512 a, __m512 b, __m512 c, __m512 d, __m512(&r)[3]) TPU_AVX512 {
    const __m512 both = _mm512_mul_ps(half, _mm512_add_ps(b, c));
    r[0] = _mm512_add_ps(a, both);
    r[1] = _mm512_mul_ps(half, _mm512_sub_ps(b, c));
    r[2] = _mm512_add_ps(both, d);
  };
  bool finite = true;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t lanes = std::min(kLanes, count - i);
    __m512 columns[kWindow][3];
    for (int64_t s = 0; s < kWindow; ++s) {
      __m512 u[kWindow];
      for (int64_t r = 0; r < kWindow; ++r) {
        u[r] = _mm512_setzero_ps();
        for (int64_t part = 0; part < parts; ++part) {
          const float* const from = sums + (part * kPlanes + r * kWindow + s) * plane + i;
          u[r] = _mm512_add_ps(u[r], _mm512_maskz_loadu_ps(Mask(0, lanes), from));
        }
      }
      gather(u[0], u[1], u[2], u[3], columns[s]);
    }
    alignas(64) float taps[kTaps][kLanes];
    for (int64_t r = 0; r < 3; ++r) {
      __m512 row[3];
      gather(columns[0][r], columns[1][r], columns[2][r], columns[3][r], row);
      for (int64_t s = 0; s < 3; ++s) _mm512_store_ps(taps[r * 3 + s], row[s]);
    }
    for (int64_t l = 0; l < lanes; ++l) {
      for (int64_t t = 0; t < kTaps; ++t) {
        windows[(i + l) * kTaps + t] = taps[t][l];
        finite &= std::isfinite(taps[t][l]);
      }
    }
  }
  return finite;
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
      TransformInput(window, run.col * kTile - c.cols.low, c.cols.in, run.count, to + i * block + run.at, plane);
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
  const int64_t weight_plane = c.out * c.in + kLanes;
  const Scratch weights(kept_weights, kPlanes * weight_plane);
  float* const u = weights.data();
  ParallelFor(c.out, CeilDiv(1 << 11, c.in), [&](int64_t begin, int64_t end) {
    TransformWeights(w + begin * c.in * kTaps, (end - begin) * c.in, u + begin * c.in, weight_plane);
  });
  const std::vector<int32_t> depths = Every(1, c.in), rows = Every(block, c.in), cols = Every(1, block);
  ParallelFor(cutting.blocks, 1, [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept_left, kept_sums;
    const int64_t left_plane = c.in * block + kLanes, sum_plane = cutting.outs * block + kLanes;
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
            all &= TransformOutput(sums.data() + o * block + run.at, sum_plane, run.count, c.cols.out - col, top,
                                   row + 1 < c.rows.out ? top + c.cols.out : nullptr);
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
  const int64_t y_image = c.rows.out * c.cols.out, sum_plane = c.out * c.in + kLanes;
  const std::vector<int32_t> depths = Every(1, block), rows = Every(c.in, block), cols = Every(1, c.in);
  thread_local KeptWords kept_sums;
  const Scratch all_sums(kept_sums, parts * kPlanes * sum_plane);
  float* const sums = all_sums.data();
  ParallelFor(parts, 1, [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept_right, kept_left, kept_turned;
    const int64_t right_plane = c.in * block + kLanes, left_plane = c.out * block + kLanes;
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
            TransformGradient(top, row + 1 < c.rows.out ? top + c.cols.out : nullptr, c.cols.out - col, run.count,
                              left.data() + o * block + run.at, left_plane);
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
    if (!TransformSums(sums + begin * c.in, sum_plane, parts, (end - begin) * c.in, w + begin * c.in * kTaps)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite.load(std::memory_order_relaxed);
}

}  // namespace tpu::host
