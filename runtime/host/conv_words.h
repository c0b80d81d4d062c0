// Operands of convolutions as words (panel_gemm.h). Included by conv.cc and conv_taps.cc.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/host/narrow_float.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"
#include "runtime/host/plan.h"

namespace tpu::host {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The convolution of words (panel_gemm.h): of bf16, a word is a pair of channels where a product sums over channels, of
// images where it sums over positions.
inline ConvStep InWords(ConvStep c) {
  if (c.dtype == DType::kBFloat16) {
    int64_t& paired = c.kind == ConvStep::Kind::kForward ? c.in : c.batch;
    paired = CeilDiv(paired, 2);
  }
  return c;
}

// This thread's own, kept for the next convolution.
inline float* Scratch(std::vector<float>& kept, int64_t words) {
  if (static_cast<int64_t>(kept.size()) < words) kept.resize(static_cast<size_t>(words));
  return kept.data();
}

// Rows of words from rows of elements: f32s as they are; bf16 in pairs from two rows, of which the second may be missing
// and then is zero.
template <typename T>
struct WordRows {
  const T* first;
  const T* second;

  // The words of number `word` of `rows` rows, `stride` apart.
  WordRows(const T* from, int64_t word, int64_t rows, int64_t stride)
      : first(from + word * kEach * stride), second(word * kEach + 1 < rows ? first + stride : nullptr) {}
  // From element `at` on, `step` apart.
  void Copy(int64_t at, int64_t step, int64_t count, float* to) const {
    const T* const even = first + at;
    const T* const odd = second != nullptr ? second + at : nullptr;
    if constexpr (kEach == 1) {
      if (step == 1) return (void)std::memcpy(to, even, static_cast<size_t>(count) * sizeof(float));
      for (int64_t q = 0; q < count; ++q) to[q] = even[q * step];
    } else {
      if (step == 1) return PairWords(even, odd, count, to);
      for (int64_t q = 0; q < count; ++q) {
        const uint32_t high = odd != nullptr ? odd[q * step].bits : 0;
        to[q] = std::bit_cast<float>(high << 16 | even[q * step].bits);
      }
    }
  }

 private:
  static constexpr int64_t kEach = sizeof(float) / sizeof(T);
};

// The weight with words of channels outside of taps.
template <typename T>
const float* WeightWords(const ConvStep& step, const T* w) {
  if constexpr (std::is_same_v<T, float>) {
    return w;
  } else {
    thread_local std::vector<float> kept;
    const int64_t in = InWords(step).in, taps = step.rows.kernel * step.cols.kernel;
    float* const words = Scratch(kept, step.out * in * taps);
    ParallelFor(step.out, CeilDiv(1 << 14, in * taps), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        for (int64_t i = 0; i < in; ++i) {
          WordRows<T>(w + o * step.in * taps, i, step.in, taps).Copy(0, 1, taps, words + (o * in + i) * taps);
        }
      }
    });
    return words;
  }
}

}  // namespace tpu::host
