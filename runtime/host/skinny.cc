#include "runtime/host/skinny.h"

#include <algorithm>
#include <vector>

#include "runtime/host/matrix_library.h"
#include "runtime/host/narrow_float.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define TPU_AVX2 __attribute__((target("avx2,fma,f16c")))
#endif

namespace tpu::host {

#if defined(__x86_64__)
namespace {

constexpr int64_t kMostRows = 8;
constexpr int64_t kLanes = 8;

TPU_AVX2 inline __m256 LoadWide(const float* p) { return _mm256_loadu_ps(p); }
TPU_AVX2 inline __m256 LoadWide(const BFloat16* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
TPU_AVX2 inline __m256 LoadWide(const _Float16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

TPU_AVX2 inline float Sum(__m256 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

// sums[i * n + j + 0..J) = dot(a row i, b row j): M rows of A by J rows of B, each read once. Unrolled, so that the
// sums are registers.
template <int M, int J, typename T>
TPU_AVX2 void Dots(const float* a, int64_t lda, int64_t k, const T* b, int64_t ldb, float* sums, int64_t n) {
  __m256 acc[M][J];
  _Pragma("GCC unroll 8") for (int i = 0; i < M; ++i) {
    _Pragma("GCC unroll 8") for (int j = 0; j < J; ++j) acc[i][j] = _mm256_setzero_ps();
  }
  int64_t p = 0;
  for (; p + kLanes <= k; p += kLanes) {
    __m256 x[J];
    _Pragma("GCC unroll 8") for (int j = 0; j < J; ++j) x[j] = LoadWide(b + j * ldb + p);
    _Pragma("GCC unroll 8") for (int i = 0; i < M; ++i) {
      const __m256 y = _mm256_loadu_ps(a + i * lda + p);
      _Pragma("GCC unroll 8") for (int j = 0; j < J; ++j) acc[i][j] = _mm256_fmadd_ps(x[j], y, acc[i][j]);
    }
  }
  _Pragma("GCC unroll 8") for (int i = 0; i < M; ++i) {
    _Pragma("GCC unroll 8") for (int j = 0; j < J; ++j) {
      float sum = Sum(acc[i][j]);
      for (int64_t q = p; q < k; ++q) sum += a[i * lda + q] * static_cast<float>(b[j * ldb + q]);
      sums[i * n + j] = sum;
    }
  }
}

template <int M, typename T>
void DotRows(const float* a, int64_t lda, int64_t k, const T* b, int64_t ldb, float* sums, int64_t n) {
  constexpr int kAtOnce = M <= 2 ? 4 : M <= 6 ? 2 : 1;
  int64_t j = 0;
  for (; j + kAtOnce <= n; j += kAtOnce) Dots<M, kAtOnce>(a, lda, k, b + j * ldb, ldb, sums + j, n);
  for (; j < n; ++j) Dots<M, 1>(a, lda, k, b + j * ldb, ldb, sums + j, n);
}

// sums[0..n) += a[0..4) times four rows of B.
template <typename T>
TPU_AVX2 void AddFourRows(const float* a, const T* b, int64_t ldb, float* sums, int64_t n) {
  const __m256 x0 = _mm256_set1_ps(a[0]), x1 = _mm256_set1_ps(a[1]);
  const __m256 x2 = _mm256_set1_ps(a[2]), x3 = _mm256_set1_ps(a[3]);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    __m256 sum = _mm256_loadu_ps(sums + j);
    sum = _mm256_fmadd_ps(x0, LoadWide(b + j), sum);
    sum = _mm256_fmadd_ps(x1, LoadWide(b + ldb + j), sum);
    sum = _mm256_fmadd_ps(x2, LoadWide(b + 2 * ldb + j), sum);
    sum = _mm256_fmadd_ps(x3, LoadWide(b + 3 * ldb + j), sum);
    _mm256_storeu_ps(sums + j, sum);
  }
  for (; j < n; ++j) {
    for (int q = 0; q < 4; ++q) sums[j] += a[q] * static_cast<float>(b[q * ldb + j]);
  }
}

// B stored untransposed: its rows, times one element of A each, are added up in pieces of columns that stay in cache.
template <typename T>
void AddRows(const float* a, int64_t lda, int64_t m, int64_t k, const T* b, int64_t ldb, float* sums, int64_t n) {
  constexpr int64_t kColumns = 2048;
  std::fill(sums, sums + m * n, 0.0f);
  for (int64_t j = 0; j < n; j += kColumns) {
    const int64_t width = std::min(kColumns, n - j);
    int64_t p = 0;
    for (; p + 4 <= k; p += 4) {
      for (int64_t i = 0; i < m; ++i) AddFourRows(a + i * lda + p, b + p * ldb + j, ldb, sums + i * n + j, width);
    }
    for (; p < k; ++p) {
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t q = 0; q < width; ++q)
          sums[i * n + j + q] += a[i * lda + p] * static_cast<float>(b[p * ldb + j + q]);
      }
    }
  }
}

template <typename T>
void Store(const GemmBlock& g, const float* sums, int64_t column_stride) {
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      T& out = static_cast<T*>(g.c)[i * g.ldc + j * column_stride];
      out = static_cast<T>(g.accumulate ? static_cast<float>(out) + sums[i * g.n + j] : sums[i * g.n + j]);
    }
  }
}

template <typename T>
void Skinny(const GemmBlock& g, int64_t column_stride) {
  thread_local std::vector<float> scratch;
  // Rows of A whose strides were a power of two would share few lines of the cache.
  const int64_t lda = (g.k + 15) / 16 * 16 + 16;
  scratch.resize(static_cast<size_t>(g.m * (lda + g.n)));
  float* a = scratch.data();
  float* sums = a + g.m * lda;
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t p = 0; p < g.k; ++p) {
      a[i * lda + p] = static_cast<float>(static_cast<const T*>(g.a)[g.trans_a ? p * g.lda + i : i * g.lda + p]);
    }
  }
  const T* b = static_cast<const T*>(g.b);
  if (g.trans_b) {
    using Rows = void (*)(const float*, int64_t, int64_t, const T*, int64_t, float*, int64_t);
    constexpr Rows kByRows[kMostRows] = {DotRows<1, T>, DotRows<2, T>, DotRows<3, T>, DotRows<4, T>,
                                         DotRows<5, T>, DotRows<6, T>, DotRows<7, T>, DotRows<8, T>};
    kByRows[g.m - 1](a, lda, g.k, b, g.ldb, sums, g.n);
  } else {
    AddRows(a, lda, g.m, g.k, b, g.ldb, sums, g.n);
  }
  g.out_dtype == DType::kFloat32 ? Store<float>(g, sums, column_stride) : Store<T>(g, sums, column_stride);
}

}  // namespace

bool SkinnyBlock(const GemmBlock& block) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!has_avx2 || block.k == 0) return false;
  GemmBlock g = block;
  int64_t column_stride = 1;
  if (g.n == 1 && g.m > kMostRows) {
    // One column: the transposed product has one row, whose elements lie ldc apart.
    g.m = 1, g.n = block.m;
    g.a = block.b, g.lda = block.ldb, g.trans_a = !block.trans_b;
    g.b = block.a, g.ldb = block.lda, g.trans_b = !block.trans_a;
    column_stride = block.ldc;
  }
  if (g.m > kMostRows) return false;
  switch (g.dtype) {
    case DType::kFloat32:
      if (GetMatrixLibrary().sgemm != nullptr && (g.m == 1 || !g.trans_b)) return false;
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
