#include "runtime/host/skinny.h"

#include <algorithm>
#include <vector>

#include "runtime/host/matrix_library.h"
#include "runtime/host/narrow_float.h"
#include "runtime/host/rounding.h"
#include "runtime/machine.h"

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own, of vectors it leaves undefined on purpose
#include "runtime/host/lanes.h"
#pragma GCC diagnostic pop
#endif

namespace tpu::host {

#if defined(__x86_64__)
namespace {

constexpr int64_t kMostRows = 8;
// By AVX-512, where B's rows lie as they are read: from there on packing B pays, and pairs of bf16 are served.
constexpr int64_t kMostWideRows = 16, kMostPairRows = 15;
constexpr int64_t kLanes = 8;
// Rows of B that are multiplied at once.
constexpr int64_t kTileCols = 4;
// How products are cut. Columns: their sums stay in cache. Depth: sums are taken in passes, which keep long ones
// accurate (dot products have a sum in each lane of a vector).
struct Pieces {
  int64_t cols, depth;
};
constexpr Pieces kDotPieces = {256, 1 << 14}, kAddPieces = {2048, 512};

// How a tile of dot products is computed: sums[i * stride + j] = dot(A's row i, B's row j), i < M, j < kTileCols,
// from M rows of A, up to kTileRows, which are padded with zeros to whole vectors. Unrolled, so that the sums are
// registers.
struct Avx2 {
  static constexpr int kTileRows = 2;

  TPU_AVX2 static TPU_INLINE float Sum(__m256 v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }

  template <int M, typename T>
  TPU_AVX2 static void Dots(const float* a, int64_t lda, int64_t k, const T* const (&b)[kTileCols], float* sums,
                            int64_t stride) {
    __m256 acc[M][kTileCols];
    _Pragma("GCC unroll 8") for (int i = 0; i < M; ++i) {
      _Pragma("GCC unroll 8") for (int j = 0; j < kTileCols; ++j) acc[i][j] = _mm256_setzero_ps();
    }
    int64_t p = 0;
    for (; p + kLanes <= k; p += kLanes) {
      __m256 x[kTileCols];
      _Pragma("GCC unroll 8") for (int j = 0; j < kTileCols; ++j) x[j] = avx2::Load(b[j] + p);
      _Pragma("GCC unroll 8") for (int i = 0; i < M; ++i) {
        const __m256 y = _mm256_loadu_ps(a + i * lda + p);
        _Pragma("GCC unroll 8") for (int j = 0; j < kTileCols; ++j) acc[i][j] = _mm256_fmadd_ps(x[j], y, acc[i][j]);
      }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < M; ++i) {
      _Pragma("GCC unroll 8") for (int j = 0; j < kTileCols; ++j) {
        float sum = Sum(acc[i][j]);
        for (int64_t q = p; q < k; ++q) sum += a[i * lda + q] * static_cast<float>(b[j][q]);
        sums[i * stride + j] = sum;
      }
    }
  }
};

struct Avx512 {
  static constexpr int kTileRows = 4;

  // The sum of each of 16 vectors' lanes.
  TPU_AVX512 static TPU_INLINE __m512 Sums(const __m512 (&v)[16]) {
    __m512 pairs[8], quarters[4];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; ++i) {
      pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < 4; ++i) {
      const __m512 x = pairs[2 * i], y = pairs[2 * i + 1];
      quarters[i] = _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xEE));
    }
    return Joined(Joined(quarters[0], quarters[1]), Joined(quarters[2], quarters[3]));
  }
  TPU_AVX512 static TPU_INLINE __m512 Joined(__m512 x, __m512 y) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xDD));
  }

  template <int M, typename T>
  TPU_AVX512 static void Dots(const float* a, int64_t lda, int64_t k, const T* const (&b)[kTileCols], float* sums,
                              int64_t stride) {
    __m512 acc[16];
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) acc[i] = _mm512_setzero_ps();
    const auto add = [&](int64_t p, __mmask16 lanes) TPU_AVX512 __attribute__((always_inline)) {
      __m512 x[kTileCols];
      _Pragma("GCC unroll 8") for (int j = 0; j < kTileCols; ++j) {
        x[j] = avx512::Load(b[j] + p, lanes);
        asm("" : "+v"(x[j]));  // read once, not by each multiplication
      }
      _Pragma("GCC unroll 8") for (int i = 0; i < M; ++i) {
        const __m512 y = _mm512_loadu_ps(a + i * lda + p);
        _Pragma("GCC unroll 8") for (int j = 0; j < kTileCols; ++j) {
          acc[i * kTileCols + j] = _mm512_fmadd_ps(x[j], y, acc[i * kTileCols + j]);
        }
      }
    };
    int64_t p = 0;
    for (; p + 16 <= k; p += 16) add(p, 0xffff);
    if (p < k) add(p, static_cast<__mmask16>((1u << (k - p)) - 1));
    alignas(64) float tile[16];
    _mm512_store_ps(tile, Sums(acc));
    for (int i = 0; i < M; ++i) std::copy_n(tile + i * kTileCols, kTileCols, sums + i * stride);
  }
};

// sums[i * stride + j] = dot(A's row i, B's row j) for j < n, by tiles whose rows of B stay in the first level cache
// for all rows of A; up to kTileCols - 1 more columns are written.
template <typename Simd, typename T>
void DotRows(const float* a, int64_t lda, int64_t m, int64_t k, const T* b, int64_t ldb, float* sums, int64_t stride,
             int64_t n) {
  using Dots = void (*)(const float*, int64_t, int64_t, const T* const(&)[kTileCols], float*, int64_t);
  constexpr Dots kByRows[] = {Simd::template Dots<1, T>, Simd::template Dots<2, T>,
                              Simd::template Dots<std::min(3, Simd::kTileRows), T>,
                              Simd::template Dots<std::min(4, Simd::kTileRows), T>};
  const int64_t rows = CeilDiv(m, CeilDiv(m, Simd::kTileRows));
  for (int64_t j = 0; j < n; j += kTileCols) {
    const T* rows_of_b[kTileCols];
    for (int64_t q = 0; q < kTileCols; ++q) rows_of_b[q] = b + std::min(j + q, n - 1) * ldb;
    for (int64_t i = 0; i < m; i += rows) {
      kByRows[std::min(rows, m - i) - 1](a + i * lda, lda, k, rows_of_b, sums + i * stride + j, stride);
    }
  }
}

// sums[0..n) += a[0..4) times four rows of B.
template <typename T>
TPU_AVX2 void AddFourRows(const float* a, const T* b, int64_t ldb, float* sums, int64_t n) {
  const __m256 x0 = _mm256_set1_ps(a[0]), x1 = _mm256_set1_ps(a[1]);
  const __m256 x2 = _mm256_set1_ps(a[2]), x3 = _mm256_set1_ps(a[3]);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    __m256 sum = _mm256_loadu_ps(sums + j);
    sum = _mm256_fmadd_ps(x0, avx2::Load(b + j), sum);
    sum = _mm256_fmadd_ps(x1, avx2::Load(b + ldb + j), sum);
    sum = _mm256_fmadd_ps(x2, avx2::Load(b + 2 * ldb + j), sum);
    sum = _mm256_fmadd_ps(x3, avx2::Load(b + 3 * ldb + j), sum);
    _mm256_storeu_ps(sums + j, sum);
  }
  for (; j < n; ++j) {
    for (int q = 0; q < 4; ++q) sums[j] += a[q] * static_cast<float>(b[q * ldb + j]);
  }
}

// sums[i * stride + j] = row i of A times column j of B, stored untransposed, for j < n: B's rows, times one element of
// A each, are added up.
template <typename T>
void AddRows(const float* a, int64_t lda, int64_t m, int64_t k, const T* b, int64_t ldb, float* sums, int64_t stride,
             int64_t n) {
  std::fill(sums, sums + m * stride, 0.0f);
  int64_t p = 0;
  for (; p + 4 <= k; p += 4) {
    for (int64_t i = 0; i < m; ++i) AddFourRows(a + i * lda + p, b + p * ldb, ldb, sums + i * stride, n);
  }
  for (; p < k; ++p) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) sums[i * stride + j] += a[i * lda + p] * static_cast<float>(b[p * ldb + j]);
    }
  }
}

// Columns [begin, begin + depth) of A, widened, each row padded with zeros to whole vectors.
template <typename T>
void CopyRows(const GemmBlock& g, int64_t begin, int64_t depth, float* to, int64_t ld) {
  for (int64_t i = 0; i < g.m; ++i, to += ld) {
    const T* const from = static_cast<const T*>(g.a) + (g.trans_a ? begin * g.lda + i : i * g.lda + begin);
    const int64_t step = g.trans_a ? g.lda : 1;
    if (step == 1) {
      for (int64_t p = 0; p < depth; ++p) to[p] = static_cast<float>(from[p]);
    } else {
      for (int64_t p = 0; p < depth; ++p) to[p] = static_cast<float>(from[p * step]);
    }
    std::fill(to + depth, to + ld, 0.0f);
  }
}

// C's columns [begin, end) (+)= the sums.
template <typename T>
void Store(const GemmBlock& g, int64_t begin, int64_t end, const float* sums, int64_t stride, int64_t column_stride) {
  for (int64_t i = 0; i < g.m; ++i) {
    T* const row = static_cast<T*>(g.c) + i * g.ldc;
    const float* const from = sums + i * stride - begin;
    if (column_stride == 1 && !g.accumulate) {
      for (int64_t j = begin; j < end; ++j) row[j] = static_cast<T>(from[j]);
      continue;
    }
    for (int64_t j = begin; j < end; ++j) {
      T& out = row[j * column_stride];
      out = static_cast<T>(g.accumulate ? static_cast<float>(out) + from[j] : from[j]);
    }
  }
}

template <typename T>
void Skinny(const GemmBlock& g, int64_t column_stride) {
  thread_local std::vector<float> scratch;
  thread_local std::vector<double> totals;
  const Pieces most = g.trans_b ? kDotPieces : kAddPieces;
  const bool long_sums = g.k > most.depth;
  // Rows of A whose strides were a power of two would share few lines of the cache.
  const int64_t lda = RoundUp(std::min(g.k, most.depth), 16) + 16;
  const int64_t stride = RoundUp(std::min(g.n, most.cols), kTileCols);
  constexpr size_t kAlignment = 64 / sizeof(float);
  scratch.resize(static_cast<size_t>(g.m * (lda + stride)) + kAlignment);
  float* a = scratch.data();
  a += (kAlignment - reinterpret_cast<uintptr_t>(a) / sizeof(float) % kAlignment) % kAlignment;
  float* const sums = a + g.m * lda;
  const auto store = g.out_dtype == DType::kFloat32 ? Store<float> : Store<T>;
  const auto dot_rows = UsableInstructions().avx512 ? DotRows<Avx512, T> : DotRows<Avx2, T>;
  const auto multiply = g.trans_b ? dot_rows : AddRows<T>;
  const int64_t step_p = g.trans_b ? 1 : g.ldb, step_j = g.trans_b ? g.ldb : 1;
  for (int64_t j = 0; j < g.n; j += most.cols) {
    const int64_t width = std::min(most.cols, g.n - j);
    if (long_sums) totals.assign(static_cast<size_t>(g.m * stride), 0);
    for (int64_t p = 0; p < g.k; p += most.depth) {
      const int64_t depth = std::min(most.depth, g.k - p);
      if (j == 0 || long_sums) CopyRows<T>(g, p, depth, a, lda);
      multiply(a, lda, g.m, depth, static_cast<const T*>(g.b) + j * step_j + p * step_p, g.ldb, sums, stride, width);
      for (size_t i = 0; long_sums && i < totals.size(); ++i) totals[i] += sums[i];
    }
    for (size_t i = 0; long_sums && i < totals.size(); ++i) sums[i] = static_cast<float>(totals[i]);
    store(g, j, j + width, sums, stride, column_stride);
  }
}

int64_t MostRows(const GemmBlock& g) {
  if (!g.trans_b || !UsableInstructions().avx512) return kMostRows;
  return g.dtype == DType::kBFloat16 ? kMostPairRows : kMostWideRows;
}

}  // namespace

bool SkinnyBlock(const GemmBlock& block) {
  if (!UsableInstructions().avx2 || block.k == 0) return false;
  GemmBlock g = block;
  int64_t column_stride = 1;
  if (g.n == 1 && g.m > kMostRows) {
    // One column: the transposed product has one row, whose elements lie ldc apart.
    g.m = 1, g.n = block.m;
    g.a = block.b, g.lda = block.ldb, g.trans_a = !block.trans_b;
    g.b = block.a, g.ldb = block.lda, g.trans_b = !block.trans_a;
    column_stride = block.ldc;
  }
  if (g.m > MostRows(g)) return false;
  switch (g.dtype) {
    case DType::kFloat32:
      if (GetMatrixLibrary().sgemm != nullptr && (!g.trans_b || (g.m == 1 && !UsableInstructions().avx512)))
        return false;
      Skinny<float>(g, column_stride);
      return true;
    case DType::kBFloat16:
      Skinny<BFloat16>(g, column_stride);
      return true;
    case DType::kFloat16:
      Skinny<_Float16>(g, column_stride);
      return true;
    default:
      return false;
  }
}

#else

bool SkinnyBlock(const GemmBlock&) { return false; }

#endif

}  // namespace tpu::host
