#include "runtime/host/panel_gemm.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <type_traits>
#include <vector>

#include "runtime/host/matrix_library.h"
#include "runtime/host/narrow_float.h"

#define TPU_AVX2 __attribute__((target("avx2,fma")))
#define TPU_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define TPU_INLINE __attribute__((always_inline)) inline

namespace tpu::host {
namespace {

// Packed operands consist of words: an f32, or two bf16 that are neighbours along the depth.
constexpr int64_t kDepth = 384;      // words of a pass
constexpr int64_t kBlockRows = 192;  // of A, packed: 288 KiB, of the second level cache
constexpr int64_t kBlockCols = 768;  // of B, packed: 1.1 MiB
constexpr int64_t kSumRows = 384;    // of C, whose sums are kept in f32 where C is narrower, by kBlockCols
constexpr int64_t kMostPacked = kDepth * kBlockCols;
constexpr int64_t kMostRows = 8, kMostCols = 32;

// A kernel: c[kRows x kCols] (+)= sum over p of a[i * row_stride + p * depth_stride] * b[p * kCols + j]. Rows, Columns
// and Packed are the same where strides are known, and so the addressing.
// Written for each instruction set: a function's target can't depend on a template's argument.
struct Avx2 {
  static constexpr int64_t kRows = 6;   // by
  static constexpr int64_t kCols = 16;  // are 12 registers of sums

  TPU_AVX2 static TPU_INLINE void Multiply(int64_t depth, const float* a, int64_t row_stride, int64_t depth_stride,
                                           const float* b, float* c, int64_t ldc, bool accumulate) {
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
  TPU_AVX2 static void Rows(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                            bool accumulate) {
    Multiply(depth, a, lda, 1, b, c, ldc, accumulate);
  }
  TPU_AVX2 static void Columns(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                               bool accumulate) {
    Multiply(depth, a, 1, lda, b, c, ldc, accumulate);
  }
};

// Of words that are f32 (T = float) or pairs of bf16. For f32 it uses nothing that only machines with bf16 have.
template <typename T>
struct Avx512 {
  static constexpr int64_t kRows = 8;   // by
  static constexpr int64_t kCols = 32;  // are 16 registers of sums

  TPU_AVX512 static TPU_INLINE __m512 AddProduct(__m512 sum, __m512 x, __m512 y) {
    if constexpr (std::is_same_v<T, float>) {
      return _mm512_fmadd_ps(x, y, sum);
    } else {
      return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
    }
  }
  TPU_AVX512 static TPU_INLINE void Multiply(int64_t depth, const float* a, int64_t row_stride, int64_t depth_stride,
                                             const float* b, float* c, int64_t ldc, bool accumulate) {
    __m512 sums[kRows][2];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int64_t p = 0; p < depth; ++p) {
      const __m512 left = _mm512_load_ps(b), right = _mm512_load_ps(b + 16);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const __m512 x = _mm512_set1_ps(a[i * row_stride]);
        sums[i][0] = AddProduct(sums[i][0], x, left);
        sums[i][1] = AddProduct(sums[i][1], x, right);
      }
      a += depth_stride;
      b += kCols;
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      float* to = c + i * ldc;
      if (accumulate) {
        sums[i][0] = _mm512_add_ps(sums[i][0], _mm512_loadu_ps(to));
        sums[i][1] = _mm512_add_ps(sums[i][1], _mm512_loadu_ps(to + 16));
      }
      _mm512_storeu_ps(to, sums[i][0]);
      _mm512_storeu_ps(to + 16, sums[i][1]);
    }
  }
  TPU_AVX512 static void Rows(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                              bool accumulate) {
    Multiply(depth, a, lda, 1, b, c, ldc, accumulate);
  }
  TPU_AVX512 static void Columns(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                                 bool accumulate) {
    Multiply(depth, a, 1, lda, b, c, ldc, accumulate);
  }
  TPU_AVX512 static void Packed(int64_t depth, const float* a, const float* b, float* c, int64_t ldc, bool accumulate) {
    Multiply(depth, a, 1, kRows, b, c, ldc, accumulate);
  }
};

TPU_AVX2 inline void Transpose(__m256 (&r)[8]) {
  __m256 t[8], u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 8; half += 4) {
    u[half] = _mm256_shuffle_ps(t[half], t[half + 2], 0x44);
    u[half + 1] = _mm256_shuffle_ps(t[half], t[half + 2], 0xEE);
    u[half + 2] = _mm256_shuffle_ps(t[half + 1], t[half + 3], 0x44);
    u[half + 3] = _mm256_shuffle_ps(t[half + 1], t[half + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// The words of a row of elements.
inline float Word(const float* row, int64_t p, int64_t /*depth*/) { return row[p]; }
inline float Word(const BFloat16* row, int64_t p, int64_t depth) {
  const uint32_t high = 2 * p + 1 < depth ? row[2 * p + 1].bits : 0;
  return std::bit_cast<float>(high << 16 | row[2 * p].bits);
}
// Word p of eight neighbouring columns of elements, whose next row is `stride` further.
TPU_AVX2 inline __m256 Words(const float* from, int64_t stride, int64_t p) {
  return _mm256_loadu_ps(from + p * stride);
}
TPU_AVX2 inline __m256 Words(const BFloat16* from, int64_t stride, int64_t p) {
  const auto load = [&](int64_t row) TPU_AVX2 {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + row * stride)));
  };
  return _mm256_castsi256_ps(_mm256_or_si256(load(2 * p), _mm256_slli_epi32(load(2 * p + 1), 16)));
}

// A panel: out[p * kWidth + j], in words; zeros beyond `width`. `along_depth`: element (p, j) is from[j * stride + p],
// else from[p * stride + j].
template <int64_t kWidth, typename T>
TPU_AVX2 void Pack(const T* from, int64_t stride, bool along_depth, int64_t depth, int64_t width, float* out) {
  constexpr int64_t kElements = sizeof(float) / sizeof(T);  // of a word
  const int64_t whole = depth / kElements, words = (depth + kElements - 1) / kElements;
  const bool by_eights = kWidth % 8 == 0 && width == kWidth;
  int64_t p = 0;
  if (by_eights && along_depth) {
    for (; p + 8 <= whole; p += 8) {
      for (int64_t part = 0; part < kWidth; part += 8) {
        __m256 r[8];
#pragma GCC unroll 8
        for (int64_t j = 0; j < 8; ++j) {
          r[j] = _mm256_loadu_ps(reinterpret_cast<const float*>(from + (part + j) * stride + p * kElements));
        }
        Transpose(r);
#pragma GCC unroll 8
        for (int64_t j = 0; j < 8; ++j) _mm256_store_ps(out + (p + j) * kWidth + part, r[j]);
      }
    }
  } else if (by_eights) {
    for (; p < whole; ++p) {
#pragma GCC unroll 4
      for (int64_t part = 0; part < kWidth; part += 8) {
        _mm256_store_ps(out + p * kWidth + part, Words(from + part, stride, p));
      }
    }
  }
  for (; p < words; ++p) {
    for (int64_t j = 0; j < kWidth; ++j) {
      if (j >= width) {
        out[p * kWidth + j] = 0;
      } else if (along_depth) {
        out[p * kWidth + j] = Word(from + j * stride, p, depth);
      } else {
        T column[kElements] = {};
        for (int64_t e = 0; e < kElements && p * kElements + e < depth; ++e) {
          column[e] = from[(p * kElements + e) * stride + j];
        }
        out[p * kWidth + j] = Word(column, 0, kElements);
      }
    }
  }
}

// Fewer than kRows rows or kCols columns: through copies that are padded.
template <typename Kernel>
void MultiplyEdge(const GemmStep& g, int64_t depth, const float* a, const float* b, float* c, int64_t rows,
                  int64_t cols, float* scratch) {
  constexpr int64_t kRows = Kernel::kRows, kCols = Kernel::kCols;
  alignas(64) float sums[kRows * kCols];
  Pack<kRows>(a, g.lda, !g.trans_a, depth, rows, scratch);
  Kernel::Columns(depth, scratch, kRows, b, sums, kCols, false);
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
  thread_local const std::unique_ptr<float, Free> scratch(static_cast<float*>(::operator new[](
      (kMostPacked + std::max(kMostPacked / kMostCols * kMostRows, kDepth * kBlockRows)) * sizeof(float),
      std::align_val_t(64))));
  return scratch.get();
}

template <typename Kernel>
void Multiply(const GemmStep& g, const float* a, const float* b, float* c, int64_t row, int64_t rows) {
  constexpr int64_t kRows = Kernel::kRows, kCols = Kernel::kCols;
  const int64_t last = row + rows;
  const int64_t first_depth = g.triangle == Triangle::kLhsUpper ? std::min(g.k, row) : 0;
  const int64_t last_depth = g.triangle == Triangle::kLhsLower ? std::min(g.k, last) : g.k;
  const int64_t cols = g.triangle == Triangle::kResultLower ? std::min(g.n, last) : g.n;
  const int64_t packed_depth = last_depth - first_depth;
  float* const packed = Scratch();
  for (int64_t col = 0; col < cols; col += kCols) {
    const float* from = b + (g.trans_b ? col * g.ldb + first_depth : first_depth * g.ldb + col);
    Pack<kCols>(from, g.ldb, g.trans_b, packed_depth, std::min(kCols, cols - col), packed + col * packed_depth);
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
        MultiplyEdge<Kernel>(g, end - begin, left, right, to, height, width, packed + kMostPacked);
      } else if (g.trans_a) {
        Kernel::Columns(end - begin, left, g.lda, right, to, g.ldc, g.accumulate);
      } else {
        Kernel::Rows(end - begin, left, g.lda, right, to, g.ldc, g.accumulate);
      }
    }
  }
}

// Some of 16 neighbours.
TPU_AVX512 inline __m512 Load(__mmask16 some, const float* from) { return _mm512_maskz_loadu_ps(some, from); }
TPU_AVX512 inline __m512 Load(__mmask16 some, const BFloat16* from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from)), 16));
}
TPU_AVX512 inline void Store(__mmask16 some, float* to, __m512 v) { _mm512_mask_storeu_ps(to, some, v); }
TPU_AVX512 inline void Store(__mmask16 some, BFloat16* to, __m512 v) {  // rounds as BFloat16(float) does
  const __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
  const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(high, _mm512_set1_epi32(1)));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i result = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
  _mm512_mask_cvtepi32_storeu_epi16(to, some, result);
}

// Sums to their place, rounded to Out.
template <typename Out>
TPU_AVX512 void Put(const float* sums, int64_t stride, int64_t rows, int64_t cols, Out* to, int64_t ldc, bool add) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; j += 16) {
      const auto some = static_cast<__mmask16>((uint32_t{1} << std::min<int64_t>(16, cols - j)) - 1);
      const __m512 sum = Load(some, sums + i * stride + j);
      Out* const place = to + i * ldc + j;
      Store(some, place, add ? _mm512_add_ps(Load(some, place), sum) : sum);
    }
  }
}

// C = (C where `accumulate`) + op(A) op(B). Each pass rounds to Out: more than one only into f32.
template <typename T, typename Out>
void MultiplyWhole(const GemmBlock& g, Out* c, int64_t ldc, bool accumulate) {
  using Kernel = Avx512<T>;
  constexpr int64_t kRows = Kernel::kRows, kCols = Kernel::kCols;
  constexpr int64_t kElements = sizeof(float) / sizeof(T);
  const T* const a = static_cast<const T*>(g.a);
  const T* const b = static_cast<const T*>(g.b);
  float* const packed_b = Scratch();
  float* const packed_a = packed_b + kMostPacked;
  alignas(64) float edge[kRows * kCols];
  // Rows that consist of whole words are read where they lie, which hides what it takes to fetch them.
  const bool in_place = !g.trans_a && g.k % kElements == 0 && g.lda % kElements == 0 &&
                        reinterpret_cast<uintptr_t>(a) % alignof(float) == 0;
  for (int64_t col = 0; col < g.n; col += kBlockCols) {
    const int64_t cols = std::min(kBlockCols, g.n - col);
    for (int64_t p = 0; p < g.k; p += kDepth * kElements) {
      const int64_t depth = std::min(kDepth * kElements, g.k - p), words = (depth + kElements - 1) / kElements;
      const bool add = accumulate || p > 0;
      for (int64_t j = 0; j < cols; j += kCols) {
        Pack<kCols>(b + (g.trans_b ? (col + j) * g.ldb + p : p * g.ldb + col + j), g.ldb, g.trans_b, depth,
                    std::min(kCols, cols - j), packed_b + j * words);
      }
      for (int64_t row = 0; row < g.m; row += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, g.m - row);
        const auto left = [&](int64_t i) { return a + (g.trans_a ? p * g.lda + row + i : (row + i) * g.lda + p); };
        for (int64_t i = in_place ? rows / kRows * kRows : 0; i < rows; i += kRows) {
          Pack<kRows>(left(i), g.lda, !g.trans_a, depth, std::min(kRows, rows - i), packed_a + i * words);
        }
        for (int64_t j = 0; j < cols; j += kCols) {
          for (int64_t i = 0; i < rows; i += kRows) {
            const float* const right = packed_b + j * words;
            Out* const to = c + (row + i) * ldc + col + j;
            const int64_t height = std::min(kRows, rows - i), width = std::min(kCols, cols - j);
            const bool summed_in_place = std::is_same_v<Out, float> && height == kRows && width == kCols;
            float* const tile = summed_in_place ? reinterpret_cast<float*>(to) : edge;
            const int64_t stride = summed_in_place ? ldc : kCols;
            const bool sum = summed_in_place && add;
            if (in_place && height == kRows) {
              const float* const rows_of_a = reinterpret_cast<const float*>(left(i));
              Kernel::Rows(words, rows_of_a, g.lda / kElements, right, tile, stride, sum);
            } else {
              Kernel::Packed(words, packed_a + i * words, right, tile, stride, sum);
            }
            if (!summed_in_place) Put(edge, kCols, height, width, to, ldc, add);
          }
        }
      }
    }
  }
}

// The same into bf16, rounded once: over several passes sums are kept in f32.
void MultiplyNarrow(const GemmBlock& g) {
  if (g.k <= kDepth * 2) return MultiplyWhole<BFloat16>(g, static_cast<BFloat16*>(g.c), g.ldc, g.accumulate);
  thread_local std::vector<float> sums(kSumRows * kBlockCols);
  for (int64_t col = 0; col < g.n; col += kBlockCols) {
    for (int64_t row = 0; row < g.m; row += kSumRows) {
      GemmBlock part = g;
      part.n = std::min(kBlockCols, g.n - col), part.m = std::min(kSumRows, g.m - row);
      part.a = static_cast<const BFloat16*>(g.a) + row * (g.trans_a ? 1 : g.lda);
      part.b = static_cast<const BFloat16*>(g.b) + col * (g.trans_b ? g.ldb : 1);
      MultiplyWhole<BFloat16>(part, sums.data(), part.n, false);
      Put(sums.data(), part.n, part.m, part.n, static_cast<BFloat16*>(g.c) + row * g.ldc + col, g.ldc, g.accumulate);
    }
  }
}

bool HasAvx512() {
  static const bool has =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return has;
}

}  // namespace

bool PanelsServe(const GemmStep& g) {
  static const bool machine = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return machine && g.triangle != Triangle::kNone && g.dtype == DType::kFloat32 && g.out_dtype == DType::kFloat32 &&
         g.k <= kMostPacked / kMostCols && (g.n + kMostCols - 1) / kMostCols * kMostCols * g.k <= kMostPacked;
}

void MultiplyPanels(const GemmStep& g, const float* a, const float* b, float* c, int64_t row, int64_t rows) {
  HasAvx512() ? Multiply<Avx512<float>>(g, a, b, c, row, rows) : Multiply<Avx2>(g, a, b, c, row, rows);
}

bool PanelBlock(const GemmBlock& g) {
  static const bool bf16 = __builtin_cpu_supports("avx512bf16"), intel = __builtin_cpu_is("intel");
  // Panels that are half empty cost as much as full ones.
  if (g.m < 2 * kMostRows || g.k < kMostCols || 4 * g.n < 3 * ((g.n + kMostCols - 1) / kMostCols * kMostCols))
    return false;
  if (g.dtype == DType::kBFloat16 && bf16) {
    if (g.out_dtype == DType::kFloat32) {
      MultiplyWhole<BFloat16>(g, static_cast<float*>(g.c), g.ldc, g.accumulate);
    } else {
      MultiplyNarrow(g);
    }
    return true;
  }
  if (g.dtype != DType::kFloat32 || !HasAvx512() || (intel && GetMatrixLibrary().sgemm != nullptr)) return false;
  MultiplyWhole<float>(g, static_cast<float*>(g.c), g.ldc, g.accumulate);
  return true;
}

}  // namespace tpu::host
