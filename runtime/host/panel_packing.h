// Operands of panels, packed: they consist of words, each an f32, to which a narrower float may have been widened, or
// two bf16 that are neighbours along the depth.
//
// Included by panel_kernels.h and panel_gemm.cc, which asks the machine what it has.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "runtime/host/lanes.h"
#include "runtime/host/narrow_float.h"

namespace tpu::host {

constexpr int64_t kWordBytes = sizeof(float);
constexpr int64_t kLineWords = 16;  // of a cache line

TPU_INLINE void Prefetch(const void* line) { _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T0); }

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

// The words of kElements each of a row of elements; eight of them.
template <int64_t kElements, typename T>
float Word(const T* row, int64_t p, int64_t depth) {
  if constexpr (kElements == 1) {
    return static_cast<float>(row[p]);
  } else {
    const uint32_t high = 2 * p + 1 < depth ? row[2 * p + 1].bits : 0;
    return std::bit_cast<float>(high << 16 | row[2 * p].bits);
  }
}
template <int64_t kElements, typename T>
TPU_AVX2 __m256 RowWords(const T* from) {
  if constexpr (kElements == 1) {
    return avx2::Load(from);
  } else {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  }
}
// Word p of eight neighbouring columns of elements, whose next row is `stride` further.
template <int64_t kElements, typename T>
TPU_AVX2 __m256 ColumnWords(const T* from, int64_t stride, int64_t p) {
  if constexpr (kElements == 1) {
    return avx2::Load(from + p * stride);
  } else {
    const __m256i even = avx2::Bits(from + 2 * p * stride), odd = avx2::Bits(from + (2 * p + 1) * stride);
    return _mm256_castsi256_ps(_mm256_or_si256(even, _mm256_slli_epi32(odd, 16)));
  }
}

// Four neighbours as words.
TPU_AVX2 inline __m128 FourWords(const float* from) { return _mm_loadu_ps(from); }
TPU_AVX2 inline __m128 FourWords(const _Float16* from) {
  return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
TPU_AVX2 inline __m128 FourWords(const BFloat16* from) {
  const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), halves));
}

// Eight words of four rows, which alternate.
template <typename T>
TPU_AVX2 void PackFourRows(const T* from, int64_t stride, float* out) {
  const __m256 a = RowWords<1>(from), b = RowWords<1>(from + stride);
  const __m256 c = RowWords<1>(from + 2 * stride), d = RowWords<1>(from + 3 * stride);
  const __m256d pairs[] = {_mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpacklo_ps(c, d)),
                           _mm256_castps_pd(_mm256_unpackhi_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(c, d))};
  // Columns q and q + 4.
  const __m256d columns[] = {_mm256_unpacklo_pd(pairs[0], pairs[1]), _mm256_unpackhi_pd(pairs[0], pairs[1]),
                             _mm256_unpacklo_pd(pairs[2], pairs[3]), _mm256_unpackhi_pd(pairs[2], pairs[3])};
#pragma GCC unroll 4
  for (int64_t q = 0; q < 4; ++q) {
    const __m256 both = _mm256_castpd_ps(columns[q]);
    _mm_store_ps(out + 4 * q, _mm256_castps256_ps128(both));
    _mm_store_ps(out + 4 * (q + 4), _mm256_extractf128_ps(both, 1));
  }
}

// Words of 32 columns: the elements of two rows, `stride` apart, alternate.
TPU_AVX512 inline void PackPairs(const BFloat16* from, int64_t stride, int64_t words, float* out) {
  alignas(64) constexpr auto kAlternate = [] {
    std::array<uint16_t, 64> order{};
    for (uint16_t i = 0; i < 64; ++i) order[i] = static_cast<uint16_t>(i / 2 + (i % 2) * 32);
    return order;
  }();
  const __m512i first = _mm512_load_si512(kAlternate.data()), second = _mm512_load_si512(kAlternate.data() + 32);
  for (int64_t p = 0; p < words; ++p) {
    const BFloat16* const even_row = from + 2 * p * stride;
    const BFloat16* const odd_row = even_row + stride;
    Prefetch(even_row + 32);  // the next panel's
    Prefetch(odd_row + 32);
    const __m512i even = _mm512_loadu_si512(even_row), odd = _mm512_loadu_si512(odd_row);
    _mm512_store_si512(out + p * 32, _mm512_permutex2var_epi16(even, first, odd));
    _mm512_store_si512(out + p * 32 + 16, _mm512_permutex2var_epi16(even, second, odd));
  }
}

// A panel of `words` of kElements each: out[p * kWidth + j]; zeros beyond `width` and `depth`. `along_depth`: element
// (p, j) is from[j * stride + p], else from[p * stride + j]. Whole vectors beyond `width` may hold anything.
template <int64_t kWidth, int64_t kElements, typename T>
TPU_AVX2 void Pack(const T* from, int64_t stride, bool along_depth, int64_t depth, int64_t width, int64_t words,
                   float* out) {
  const int64_t whole = depth / kElements;
  const bool by_eights = kWidth % 8 == 0 && width % 8 == 0;
  int64_t p = 0;
  if (by_eights && along_depth) {
    // A cache line of each row at once: where rows are a power of two apart, it would be gone by the next time.
    for (; p + 8 <= whole; p += kLineWords) {
      for (int64_t part = 0; part < width; part += 8) {
        for (int64_t q = p; q + 8 <= std::min(whole, p + kLineWords); q += 8) {
          __m256 r[8];
#pragma GCC unroll 8
          for (int64_t j = 0; j < 8; ++j) {
            r[j] = RowWords<kElements>(from + (part + j) * stride + q * kElements);
          }
          Transpose(r);
#pragma GCC unroll 8
          for (int64_t j = 0; j < 8; ++j) _mm256_store_ps(out + (q + j) * kWidth + part, r[j]);
        }
      }
    }
    p = whole / 8 * 8;
  } else if (by_eights) {
    if constexpr (kElements == 2 && kWidth == 32) {
      if (width == kWidth) {
        PackPairs(from, stride, whole, out);
        p = whole;
      }
    }
    for (; p < whole; ++p) {
#pragma GCC unroll 4
      for (int64_t part = 0; part < kWidth && part < width; part += 8) {
        if (part % kLineWords == 0) Prefetch(from + kWidth + p * stride + part);
        _mm256_store_ps(out + p * kWidth + part, ColumnWords<kElements>(from + part, stride, p));
      }
    }
  } else if constexpr (kElements == 1 && kWidth == 4) {
    if (width == kWidth && along_depth) {
      for (; p + 8 <= whole; p += 8) PackFourRows(from + p, stride, out + p * kWidth);
    } else if (width == kWidth) {
      for (; p < whole; ++p) _mm_store_ps(out + p * kWidth, FourWords(from + p * stride));
    }
  }
  for (; p < words; ++p) {
    for (int64_t j = 0; j < kWidth; ++j) {
      if (j >= width || p * kElements >= depth) {
        out[p * kWidth + j] = 0;
      } else if (along_depth) {
        out[p * kWidth + j] = Word<kElements>(from + j * stride, p, depth);
      } else {
        T column[kElements] = {};
        for (int64_t e = 0; e < kElements && p * kElements + e < depth; ++e) {
          column[e] = from[(p * kElements + e) * stride + j];
        }
        out[p * kWidth + j] = Word<kElements>(column, 0, kElements);
      }
    }
  }
}

inline bool Consecutive(const int32_t* offsets, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    if (offsets[i] != offsets[i - 1] + 1) return false;
  }
  return true;
}

// The same of words that lie anywhere: (p, j) is from[rows[p] + cols[j]].
template <int64_t kWidth>
TPU_AVX2 void PackGathered(const float* from, const int32_t* rows, int64_t depth, const int32_t* cols, int64_t width,
                           int64_t words, float* out) {
  const int64_t whole = width % 8 == 0 ? depth : 0;
  bool by_eights = true;
  for (int64_t part = 0; part + 8 <= width; part += 8) by_eights &= Consecutive(cols + part, 8);
  int64_t p = 0;
  if (by_eights) {
    for (; p < whole; ++p) {
#pragma GCC unroll 4
      for (int64_t part = 0; part < kWidth; part += 8) {
        const __m256 some = part < width ? _mm256_loadu_ps(from + rows[p] + cols[part]) : _mm256_setzero_ps();
        _mm256_store_ps(out + p * kWidth + part, some);
      }
    }
  } else {
    for (; p < whole; ++p) {
#pragma GCC unroll 4
      for (int64_t part = 0; part < kWidth; part += 8) {
        __m256 some = _mm256_setzero_ps();
        if (part < width) {
          const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(cols + part));
          some = _mm256_i32gather_ps(from + rows[p], at, sizeof(float));
        }
        _mm256_store_ps(out + p * kWidth + part, some);
      }
    }
  }
  for (; p < words; ++p) {
    for (int64_t j = 0; j < kWidth; ++j) out[p * kWidth + j] = p < depth && j < width ? from[rows[p] + cols[j]] : 0;
  }
}

// to[i]: even[i] and odd[i], or zero.
TPU_AVX512 inline void AlternateRows(const BFloat16* even, const BFloat16* odd, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += 16) {
    const auto some = static_cast<__mmask16>((uint32_t{1} << std::min<int64_t>(16, count - i)) - 1);
    __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, even + i));
    if (odd != nullptr) {
      const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, odd + i));
      words = _mm512_or_si512(words, _mm512_slli_epi32(high, 16));
    }
    _mm512_mask_storeu_epi32(to + i, some, words);
  }
}

// to[j * to_stride + i] = from[i * stride + j].
TPU_AVX2 inline void TransposeBlock(const float* from, int64_t stride, int64_t rows, int64_t cols, float* to,
                                    int64_t to_stride) {
  int64_t i = 0;
  for (; i + 8 <= rows; i += 8) {
    int64_t j = 0;
    for (; j + 8 <= cols; j += 8) {
      __m256 r[8];
#pragma GCC unroll 8
      for (int64_t e = 0; e < 8; ++e) r[e] = _mm256_loadu_ps(from + (i + e) * stride + j);
      Transpose(r);
#pragma GCC unroll 8
      for (int64_t e = 0; e < 8; ++e) _mm256_storeu_ps(to + (j + e) * to_stride + i, r[e]);
    }
    for (; j < cols; ++j) {
      for (int64_t e = 0; e < 8; ++e) to[j * to_stride + i + e] = from[(i + e) * stride + j];
    }
  }
  for (; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) to[j * to_stride + i] = from[i * stride + j];
  }
}

}  // namespace tpu::host
