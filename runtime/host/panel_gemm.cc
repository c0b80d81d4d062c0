#include "runtime/host/panel_gemm.h"

#include <immintrin.h>

#include <algorithm>
#include <memory>

#define TPU_AVX2 __attribute__((target("avx2,fma")))

namespace tpu::host {
namespace {

constexpr int64_t kRows = 6;                // by
constexpr int64_t kCols = 16;               // are 12 registers of sums
constexpr int64_t kMostPacked = 256 << 10;  // elements of the right side: 1 MiB, of the second level cache
constexpr int64_t kMostDepth = kMostPacked / kCols;

// c[6 x 16] (+)= sum over p of a[i * row_stride + p * depth_stride] * b[p * 16 + j].
TPU_AVX2 __attribute__((always_inline)) inline void Multiply(int64_t depth, const float* a, int64_t row_stride,
                                                             int64_t depth_stride, const float* b, float* c,
                                                             int64_t ldc, bool accumulate) {
  __m256 sums[kRows][2];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) sums[i][0] = sums[i][1] = _mm256_setzero_ps();
#pragma GCC unroll 4
  for (int64_t p = 0; p < depth; ++p) {
    const __m256 left = _mm256_load_ps(b), right = _mm256_load_ps(b + 8);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m256 x = _mm256_broadcast_ss(a + i * row_stride);
      sums[i][0] = _mm256_fmadd_ps(x, left, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(x, right, sums[i][1]);
    }
    a += depth_stride;
    b += kCols;
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    float* to = c + i * ldc;
    if (accumulate) {
      sums[i][0] = _mm256_add_ps(sums[i][0], _mm256_loadu_ps(to));
      sums[i][1] = _mm256_add_ps(sums[i][1], _mm256_loadu_ps(to + 8));
    }
    _mm256_storeu_ps(to, sums[i][0]);
    _mm256_storeu_ps(to + 8, sums[i][1]);
  }
}

// The same where one of the strides is 1, which the addressing then knows.
TPU_AVX2 void MultiplyRows(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                           bool accumulate) {
  Multiply(depth, a, lda, 1, b, c, ldc, accumulate);
}
TPU_AVX2 void MultiplyColumns(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                              bool accumulate) {
  Multiply(depth, a, 1, lda, b, c, ldc, accumulate);
}

TPU_AVX2 inline void Transpose(__m256 (&r)[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int half = 0; half < 8; half += 4) {
    u[half] = _mm256_shuffle_ps(t[half], t[half + 2], 0x44);
    u[half + 1] = _mm256_shuffle_ps(t[half], t[half + 2], 0xEE);
    u[half + 2] = _mm256_shuffle_ps(t[half + 1], t[half + 3], 0x44);
    u[half + 3] = _mm256_shuffle_ps(t[half + 1], t[half + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// A panel of op(B): out[p * 16 + j], zeros beyond `cols`. b: its first element.
TPU_AVX2 void Pack(const float* b, int64_t ldb, bool transposed, int64_t depth, int64_t cols, float* out) {
  int64_t p = 0;
  if (cols == kCols && transposed) {
    for (; p + 8 <= depth; p += 8) {
      for (int64_t half = 0; half < kCols; half += 8) {
        __m256 r[8];
        for (int64_t j = 0; j < 8; ++j) r[j] = _mm256_loadu_ps(b + (half + j) * ldb + p);
        Transpose(r);
        for (int64_t j = 0; j < 8; ++j) _mm256_store_ps(out + (p + j) * kCols + half, r[j]);
      }
    }
  } else if (cols == kCols) {
    for (; p < depth; ++p) {
      _mm256_store_ps(out + p * kCols, _mm256_loadu_ps(b + p * ldb));
      _mm256_store_ps(out + p * kCols + 8, _mm256_loadu_ps(b + p * ldb + 8));
    }
  }
  for (; p < depth; ++p) {
    for (int64_t j = 0; j < kCols; ++j)
      out[p * kCols + j] = j >= cols ? 0 : transposed ? b[j * ldb + p] : b[p * ldb + j];
  }
}

// Fewer than 6 rows or 16 columns: through copies that are padded.
TPU_AVX2 void MultiplyEdge(const GemmStep& g, int64_t depth, const float* a, const float* b, float* c, int64_t rows,
                           int64_t cols, float* scratch) {
  alignas(32) float sums[kRows * kCols];
  for (int64_t p = 0; p < depth; ++p) {
    for (int64_t i = 0; i < kRows; ++i) {
      scratch[p * kRows + i] = i >= rows ? 0 : g.trans_a ? a[p * g.lda + i] : a[i * g.lda + p];
    }
  }
  MultiplyColumns(depth, scratch, kRows, b, sums, kCols, false);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      float& to = c[i * g.ldc + j];
      to = g.accumulate ? to + sums[i * kCols + j] : sums[i * kCols + j];
    }
  }
}

// This thread's own, aligned; kept, since such products come by the thousand.
float* Scratch() {
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t(64)); }
  };
  thread_local const std::unique_ptr<float, Free> scratch(
      static_cast<float*>(::operator new[]((kMostPacked + kMostDepth * kRows) * sizeof(float), std::align_val_t(64))));
  return scratch.get();
}

}  // namespace

bool PanelsServe(const GemmStep& g) {
  static const bool machine =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && !__builtin_cpu_supports("avx512f");
  return machine && g.triangle != Triangle::kNone && g.dtype == DType::kFloat32 && g.out_dtype == DType::kFloat32 &&
         g.k <= kMostDepth && (g.n + kCols - 1) / kCols * kCols * g.k <= kMostPacked;
}

void MultiplyPanels(const GemmStep& g, const float* a, const float* b, float* c, int64_t row, int64_t rows) {
  const int64_t last = row + rows;
  const int64_t first_depth = g.triangle == Triangle::kLhsUpper ? std::min(g.k, row) : 0;
  const int64_t last_depth = g.triangle == Triangle::kLhsLower ? std::min(g.k, last) : g.k;
  const int64_t cols = g.triangle == Triangle::kResultLower ? std::min(g.n, last) : g.n;
  const int64_t packed_depth = last_depth - first_depth;
  float* const packed = Scratch();
  for (int64_t col = 0; col < cols; col += kCols) {
    const float* from = b + (g.trans_b ? col * g.ldb + first_depth : first_depth * g.ldb + col);
    Pack(from, g.ldb, g.trans_b, packed_depth, std::min(kCols, cols - col), packed + col * packed_depth);
  }
  for (int64_t col = 0; col < cols; col += kCols) {
    const float* const panel = packed + col * packed_depth;
    const int64_t width = std::min(kCols, cols - col);
    for (int64_t i = row; i < last; i += kRows) {
      const int64_t height = std::min(kRows, last - i);
      if (g.triangle == Triangle::kResultLower && col >= i + height) continue;
      const int64_t begin = g.triangle == Triangle::kLhsUpper ? std::min(g.k, i) : 0;
      const int64_t end = g.triangle == Triangle::kLhsLower ? std::min(g.k, i + height) : g.k;
      const float* const left = a + (g.trans_a ? begin * g.lda + i : i * g.lda + begin);
      const float* const right = panel + (begin - first_depth) * kCols;
      float* const to = c + i * g.ldc + col;
      if (height < kRows || width < kCols) {
        MultiplyEdge(g, end - begin, left, right, to, height, width, packed + kMostPacked);
      } else if (g.trans_a) {
        MultiplyColumns(end - begin, left, g.lda, right, to, g.ldc, g.accumulate);
      } else {
        MultiplyRows(end - begin, left, g.lda, right, to, g.ldc, g.accumulate);
      }
    }
  }
}

}  // namespace tpu::host
