#include "runtime/host/narrow_float.h"

#include "runtime/machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tpu::host {
namespace {

constexpr size_t kLanes = 8;

#if defined(__x86_64__)
// They return how many they converted.
__attribute__((target("avx,f16c"))) size_t WidenLanes(const _Float16* from, size_t count, float* to) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}
__attribute__((target("avx,f16c"))) size_t NarrowLanes(const float* from, size_t count, _Float16* to) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m128i narrow = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), narrow);
  }
  return i;
}

// Of each lane the half that a bfloat16 keeps, in its low bits.
__attribute__((target("avx2"))) inline __m256i RoundLanes(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256 kept = _mm256_blendv_ps(_mm256_castsi256_ps(nearest), _mm256_castsi256_ps(quiet), is_nan);
  return _mm256_srli_epi32(_mm256_castps_si256(kept), 16);
}
__attribute__((target("avx2"))) size_t NarrowLanes(const float* from, size_t count, BFloat16* to) {
  size_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    const __m256i low = RoundLanes(_mm256_loadu_ps(from + i)), high = RoundLanes(_mm256_loadu_ps(from + i + kLanes));
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0b11011000);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), halves);
  }
  if (i + kLanes <= count) {
    const __m256i last = RoundLanes(_mm256_loadu_ps(from + i));
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(last), _mm256_extracti128_si256(last, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
    i += kLanes;
  }
  return i;
}
#else
size_t WidenLanes(const _Float16*, size_t, float*) { return 0; }
size_t NarrowLanes(const float*, size_t, _Float16*) { return 0; }
size_t NarrowLanes(const float*, size_t, BFloat16*) { return 0; }
#endif

}  // namespace

void Widen(const _Float16* from, size_t count, float* to) {
  for (size_t i = UsableInstructions().f16c ? WidenLanes(from, count, to) : 0; i < count; ++i)
    to[i] = static_cast<float>(from[i]);
}
void Narrow(const float* from, size_t count, _Float16* to) {
  for (size_t i = UsableInstructions().f16c ? NarrowLanes(from, count, to) : 0; i < count; ++i)
    to[i] = static_cast<_Float16>(from[i]);
}
void Widen(const BFloat16* from, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}
void Narrow(const float* from, size_t count, BFloat16* to) {
  for (size_t i = UsableInstructions().avx2 ? NarrowLanes(from, count, to) : 0; i < count; ++i)
    to[i] = static_cast<BFloat16>(from[i]);
}

}  // namespace tpu::host
