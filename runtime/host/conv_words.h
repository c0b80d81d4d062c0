// Operands of convolutions as words (panel_gemm.h). Included by conv.cc and conv_taps.cc.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <type_traits>

#include "runtime/host/copy.h"
#include "runtime/host/narrow_float.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"
#include "runtime/host/plan.h"
#include "runtime/host/rounding.h"

namespace tpu::host {

constexpr int64_t kMostElements = 1 << 28;  // of an operand or a padded image

// Of sizes that are not negative; more than kMostElements where it would not fit.
inline int64_t Product(std::initializer_list<int64_t> sizes) {
  __int128 elements = 1;
  for (int64_t size : sizes) elements = std::min<__int128>(elements * size, __int128{kMostElements} + 1);
  return static_cast<int64_t>(elements);
}

constexpr int64_t kPanelRows = 8;   // of A and C that a panel has
constexpr int64_t kHalfPanel = 16;  // columns: panels of fewer cost much more than they compute

inline bool IsSpread(const ConvStep& c) { return c.rows.spread > 1 || c.cols.spread > 1; }

// The convolution of words (panel_gemm.h): of bf16, a word is a pair of channels where a product sums over channels, of
// images where it sums over positions.
inline ConvStep InWords(ConvStep c) {
  if (c.dtype == DType::kBFloat16) {
    int64_t& paired = c.kind == ConvStep::Kind::kForward ? c.in : c.batch;
    paired = CeilDiv(paired, 2);
  }
  return c;
}

// What a thread keeps for its next convolution.
struct KeptWords {
  std::unique_ptr<float[]> words;
  int64_t count = 0;
};

// That so many elements lie in.
template <typename T>
int64_t WordsFor(int64_t elements) {
  return CeilDiv(elements * int64_t{sizeof(T)}, int64_t{sizeof(float)});
}

// Words to work with, uninitialized: a thread's kept ones, which only its pieces of work use one after the other, or
// where those would be many, some for this once.
class Scratch {
 public:
  Scratch(KeptWords& kept, int64_t count) {
    constexpr int64_t kMostKept = 1 << 24;
    const auto make = [&] { return std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count)); };
    if (count > kMostKept) {
      own_ = make();
    } else if (kept.count < count) {
      kept.words = make();
      kept.count = count;
    }
    data_ = own_ ? own_.get() : kept.words.get();
  }
  float* data() const { return data_; }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::unique_ptr<float[]> own_;
  float* data_;
};

// to[j][i] = from[i][j], which are `run` elements each.
template <typename T>
void SwapRuns(const T* from, int64_t rows, int64_t cols, int64_t run, T* to) {
  const int64_t bytes = run * int64_t{sizeof(T)};
  CopyRuns(to, from, bytes, {rows, cols}, {bytes, rows * bytes});
}

// Rows of words from rows of elements: f32s as they are; bf16 in pairs from two rows, of which the second may be
// missing and then is zero.
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

// The weight as words of channels, taps innermost: f32s where they lie.
template <typename T>
class WeightWords {
 public:
  WeightWords(const ConvStep& step, const T* w)
      : words_(kept_, kInPlace ? 0 : step.out * InWords(step).in * step.rows.kernel * step.cols.kernel) {
    if constexpr (kInPlace) {
      data_ = w;
    } else {
      const int64_t in = InWords(step).in, taps = step.rows.kernel * step.cols.kernel;
      float* const words = words_.data();
      ParallelFor(step.out, CeilDiv(1 << 14, in * taps), [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o) {
          for (int64_t i = 0; i < in; ++i) {
            WordRows<T>(w + o * step.in * taps, i, step.in, taps).Copy(0, 1, taps, words + (o * in + i) * taps);
          }
        }
      });
      data_ = words;
    }
  }
  const float* data() const { return data_; }

 private:
  static constexpr bool kInPlace = std::is_same_v<T, float>;
  static thread_local KeptWords kept_;
  const Scratch words_;
  const float* data_;
};
template <typename T>
thread_local KeptWords WeightWords<T>::kept_;

}  // namespace tpu::host
