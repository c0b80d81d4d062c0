// Registers of f32, under the same names for each instruction set. What is written once for all of them is included by
// each_instruction_set.h.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runtime/host/narrow_float.h"

#define TPU_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TPU_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define TPU_INLINE __attribute__((always_inline)) inline

namespace tpu::host {

// Bits [low, high) of as many as there are lanes at most.
inline uint32_t BitsBetween(int64_t low, int64_t high) {
  const auto below = [](int64_t n) { return (uint32_t{1} << std::clamp<int64_t>(n, 0, 16)) - 1; };
  return below(high) & ~below(low);
}

namespace avx2 {

constexpr int64_t kLanes = 8;
using Lanes = __m256;
using Mask = __m256i;

TPU_AVX2 TPU_INLINE Lanes Zeros() { return _mm256_setzero_ps(); }
TPU_AVX2 TPU_INLINE Lanes Every(float x) { return _mm256_set1_ps(x); }
TPU_AVX2 TPU_INLINE Lanes AddProduct(Lanes sum, Lanes x, Lanes y) { return _mm256_fmadd_ps(x, y, sum); }

// Of the lanes whose bits are set.
TPU_AVX2 TPU_INLINE Mask MaskOf(uint32_t bits) {
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), each), each);
}
TPU_AVX2 TPU_INLINE Lanes Only(Lanes x, Mask some) { return _mm256_and_ps(x, _mm256_castsi256_ps(some)); }
TPU_AVX2 TPU_INLINE bool AnyNaN(Lanes x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }

TPU_AVX2 TPU_INLINE Lanes Load(const float* from) { return _mm256_loadu_ps(from); }
TPU_AVX2 TPU_INLINE __m256i Bits(const BFloat16* from) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
TPU_AVX2 TPU_INLINE Lanes Load(const BFloat16* from) { return _mm256_castsi256_ps(_mm256_slli_epi32(Bits(from), 16)); }
TPU_AVX2 TPU_INLINE Lanes Load(const _Float16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
TPU_AVX2 TPU_INLINE Lanes Load(const float* from, Mask some) { return _mm256_maskload_ps(from, some); }
TPU_AVX2 TPU_INLINE void Store(float* to, Lanes x) { _mm256_storeu_ps(to, x); }
// The first `count`, zeros behind them.
TPU_AVX2 TPU_INLINE Lanes LoadFirst(const float* from, int64_t count) {
  return count >= kLanes ? Load(from) : Load(from, MaskOf(BitsBetween(0, count)));
}
TPU_AVX2 TPU_INLINE Lanes LoadFirst(const BFloat16* from, int64_t count) {
  BFloat16 some[kLanes] = {};
  if (count < kLanes) from = static_cast<BFloat16*>(std::memcpy(some, from, static_cast<size_t>(count) * sizeof *from));
  return Load(from);
}
// Masked stores are slow on AMD's processors: four, two and one of them.
TPU_AVX2 TPU_INLINE void StoreFirst(float* to, int64_t count, Lanes x) {
  if (count >= kLanes) return Store(to, x);
  if (count <= 0) return;
  __m128 left = _mm256_castps256_ps128(x);
  if ((count & 4) != 0) {
    _mm_storeu_ps(to, left);
    to += 4, left = _mm256_extractf128_ps(x, 1);
  }
  if ((count & 2) != 0) {
    _mm_storel_pi(reinterpret_cast<__m64*>(to), left);
    to += 2, left = _mm_movehl_ps(left, left);
  }
  if ((count & 1) != 0) _mm_store_ss(to, left);
}

// Lanes 0, 2, 4, .. of x, then those of y; 1, 3, 5, ..
TPU_AVX2 TPU_INLINE Lanes Evens(Lanes x, Lanes y) {
  const __m256d pairs = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0x88));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(pairs, 0xD8));
}
TPU_AVX2 TPU_INLINE Lanes Odds(Lanes x, Lanes y) {
  const __m256d pairs = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0xDD));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(pairs, 0xD8));
}
// Lanes of x and of y in turn: of their first halves, of their second ones.
TPU_AVX2 TPU_INLINE Lanes AlternateFirst(Lanes x, Lanes y) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y), 0x20);
}
TPU_AVX2 TPU_INLINE Lanes AlternateSecond(Lanes x, Lanes y) {
  return _mm256_permute2f128_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y), 0x31);
}

}  // namespace avx2

namespace avx512 {

constexpr int64_t kLanes = 16;
using Lanes = __m512;
using Mask = __mmask16;

TPU_AVX512 TPU_INLINE Lanes Zeros() { return _mm512_setzero_ps(); }
TPU_AVX512 TPU_INLINE Lanes Every(float x) { return _mm512_set1_ps(x); }
TPU_AVX512 TPU_INLINE Lanes AddProduct(Lanes sum, Lanes x, Lanes y) { return _mm512_fmadd_ps(x, y, sum); }
// Of lanes that are pairs of bf16.
TPU_AVX512 TPU_INLINE Lanes AddPairProducts(Lanes sum, Lanes x, Lanes y) {
  return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
}

TPU_AVX512 TPU_INLINE Mask MaskOf(uint32_t bits) { return static_cast<Mask>(bits); }
TPU_AVX512 TPU_INLINE Lanes Only(Lanes x, Mask some) { return _mm512_maskz_mov_ps(some, x); }
TPU_AVX512 TPU_INLINE bool AnyNaN(Lanes x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }

TPU_AVX512 TPU_INLINE Lanes Load(const float* from) { return _mm512_loadu_ps(from); }
TPU_AVX512 TPU_INLINE Lanes Load(const float* from, Mask some) { return _mm512_maskz_loadu_ps(some, from); }
TPU_AVX512 TPU_INLINE Lanes Load(const BFloat16* from, Mask some) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from)), 16));
}
TPU_AVX512 TPU_INLINE Lanes Load(const _Float16* from, Mask some) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, from));
}
TPU_AVX512 TPU_INLINE void Store(float* to, Lanes x) { _mm512_storeu_ps(to, x); }
template <typename T>
TPU_AVX512 TPU_INLINE Lanes LoadFirst(const T* from, int64_t count) {
  return Load(from, MaskOf(BitsBetween(0, count)));
}
TPU_AVX512 TPU_INLINE void StoreFirst(float* to, int64_t count, Lanes x) {
  if (count >= kLanes) return Store(to, x);
  if (count > 0) _mm512_mask_storeu_ps(to, MaskOf(BitsBetween(0, count)), x);
}
TPU_AVX512 TPU_INLINE void StoreFirst(BFloat16* to, int64_t count, Lanes x) {
  _mm256_mask_storeu_epi16(to, MaskOf(BitsBetween(0, count)), (__m256i)_mm512_cvtneps_pbh(x));
}

TPU_AVX512 TPU_INLINE Lanes Evens(Lanes x, Lanes y) {
  const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_permutex2var_ps(x, order, y);
}
TPU_AVX512 TPU_INLINE Lanes Odds(Lanes x, Lanes y) {
  const __m512i order = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return _mm512_permutex2var_ps(x, order, y);
}
TPU_AVX512 TPU_INLINE Lanes AlternateFirst(Lanes x, Lanes y) {
  const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return _mm512_permutex2var_ps(x, order, y);
}
TPU_AVX512 TPU_INLINE Lanes AlternateSecond(Lanes x, Lanes y) {
  const __m512i order = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  return _mm512_permutex2var_ps(x, order, y);
}

}  // namespace avx512
}  // namespace tpu::host
