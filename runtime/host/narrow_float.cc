#include "runtime/host/narrow_float.h"

#include "runtime/machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tpu::host {
namespace {

constexpr size_t kLanes = 8;

#if defined(__x86_64__)
// Both return how many they converted.
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
#else
size_t WidenLanes(const _Float16*, size_t, float*) { return 0; }
size_t NarrowLanes(const float*, size_t, _Float16*) { return 0; }
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
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<BFloat16>(from[i]);
}

}  // namespace tpu::host
