#include "runtime/host/conv_products.h"

#include <algorithm>
#include <type_traits>

#include "runtime/host/conv_taps.h"
#include "runtime/host/conv_words.h"
#include "runtime/host/gemm.h"
#include "runtime/host/narrow_float.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"
#include "runtime/machine.h"

namespace tpu::host {
namespace {

constexpr int64_t kGrain = 1 << 14;    // elements to copy
constexpr int64_t kFewPositions = 64;  // images of fewer are one matrix together

int64_t PositionsOf(const ConvStep& c) { return c.rows.out * c.cols.out; }

// Whether every position is a window of one element.
bool LieInPlace(const ConvStep& c) {
  const auto in_place = [](const ConvStep::Dim& d) {
    return d.kernel == 1 && d.stride == 1 && d.spread == 1 && d.low == 0 && d.in == d.out;
  };
  return in_place(c.rows) && in_place(c.cols);
}

// Whether no element is in two windows, and no window reaches over the edge.
bool LieApart(const ConvStep& c) {
  const auto apart = [](const ConvStep::Dim& d) {
    const int64_t reach = (d.kernel - 1) * d.dilation;
    return d.spread == 1 && d.low == 0 && reach < d.stride && (d.out - 1) * d.stride + reach < d.in;
  };
  return apart(c.rows) && apart(c.cols);
}

// A row for each channel and tap, `row` apart, with what the tap meets at all positions; images `image` apart.
template <typename T>
void CopyWindows(const ConvStep& c, const T* x, int64_t row, int64_t image, T* to) {
  const int64_t taps = c.rows.kernel * c.cols.kernel, stride = c.cols.stride;
  ParallelFor(c.batch * c.in, CeilDiv(kGrain, taps * PositionsOf(c)), [&](int64_t begin, int64_t end) {
    for (int64_t channel = begin; channel < end; ++channel) {
      const T* const from = x + channel * c.rows.in * c.cols.in;
      T* at = to + channel / c.in * image + channel % c.in * taps * row;
      for (int64_t tap = 0; tap < taps; ++tap, at += row) {
        const int64_t r = tap / c.cols.kernel * c.rows.dilation, s = tap % c.cols.kernel * c.cols.dilation;
        for (int64_t p = 0; p < c.rows.out; ++p) {
          const T* const met = from + (p * c.rows.stride + r) * c.cols.in + s;
          for (int64_t q = 0; q < c.cols.out; ++q) at[p * c.cols.out + q] = met[q * stride];
        }
      }
    }
  });
}

template <typename T>
void Run(const ConvStep& c, const T* x, const T* other, float* to) {
  const int64_t positions = PositionsOf(c), depth = c.in * c.rows.kernel * c.cols.kernel;
  const bool forward = c.kind == ConvStep::Kind::kForward, in_place = LieInPlace(c);
  const bool together = c.batch > 1 && positions < kFewPositions;
  const int64_t matrices = together ? 1 : c.batch, width = c.batch * positions / matrices;
  thread_local KeptWords kept_x, kept_y;
  const Scratch copied(kept_x, in_place && !together ? 0 : WordsFor<T>(depth * c.batch * positions));
  T* const columns = copied.As<T>();
  if (!in_place) {
    CopyWindows(c, x, width, together ? positions : depth * positions, columns);
    x = columns;
  } else if (together) {
    SwapRuns(x, c.batch, c.in, positions, columns);
    x = columns;
  }
  GemmStep g;
  g.dtype = c.dtype;
  g.m = c.out;
  if (forward) {
    const Scratch result(kept_y, together ? c.out * width : 0);
    float* const y = together ? result.data() : to;
    g.n = width, g.k = depth;
    g.lda = depth, g.ldb = g.ldc = width;
    g.batch = {matrices};
    g.stride_a = {0}, g.stride_b = {depth * width}, g.stride_c = {c.out * width};
    RunGemm(g, other, x, y);
    if (together) SwapRuns(y, c.out, c.batch, positions, to);
    return;
  }
  const Scratch swapped(kept_y, together ? WordsFor<T>(c.out * width) : 0);
  if (together) {
    T* const y = swapped.As<T>();
    SwapRuns(other, c.batch, c.out, positions, y);
    other = y;
  }
  g.trans_b = true;
  g.n = depth, g.k = width;
  g.lda = g.ldb = width, g.ldc = depth;
  for (int64_t n = 0; n < matrices; ++n) {
    g.offset_a = n * c.out * width, g.offset_b = n * depth * width;
    g.accumulate = n > 0;
    RunGemm(g, other, x, to);
  }
}

// Adds up what each element of x gives through each tap, `row` apart, where a channel of y sees it.
void AddTaps(const ConvStep& c, const float* products, int64_t row, float* y) {
  std::fill_n(y, PositionsOf(c), 0.0f);
  const ConvStep::Dim &rows = c.rows, &cols = c.cols;
  for (int64_t r = 0; r < rows.kernel; ++r) {
    for (int64_t s = 0; s < cols.kernel; ++s, products += row) {
      const int64_t above = rows.low - r * rows.dilation, left = cols.low - s * cols.dilation;
      const int64_t first = left < 0 ? CeilDiv(-left, cols.spread) : 0;
      const int64_t last = left < cols.out ? std::min(cols.in, CeilDiv(cols.out - left, cols.spread)) : 0;
      for (int64_t i = 0; i < rows.in; ++i) {
        const int64_t p = above + i * rows.spread;
        if (p < 0 || p >= rows.out) continue;
        float* const to = y + p * cols.out + left;
        for (int64_t j = first; j < last; ++j) to[j * cols.spread] += products[i * cols.in + j];
      }
    }
  }
}

// to[t][i] = from[i][t].
template <typename T>
void TurnTaps(const T* from, int64_t in, int64_t taps, T* to) {
  if constexpr (std::is_same_v<T, float>) {
    TransposePanel(from, taps, in, taps, to, in);
  } else {
    for (int64_t i = 0; i < in; ++i) {
      for (int64_t t = 0; t < taps; ++t) to[t * in + i] = from[i * taps + t];
    }
  }
}

// Of spread elements: all of x by all taps, some channels of y after the other, whose products stay in cache.
template <typename T>
void RunSpread(const ConvStep& c, const T* x, const T* w, float* y) {
  constexpr int64_t kBlockWords = 1 << 16, kLeastRows = 64;
  const int64_t taps = c.rows.kernel * c.cols.kernel, elements = c.rows.in * c.cols.in, y_image = PositionsOf(c);
  const bool together = c.batch > 1 && elements < kFewPositions;
  const int64_t matrices = together ? 1 : c.batch, images = c.batch / matrices, width = images * elements;
  thread_local KeptWords kept_x, kept_w;
  const Scratch swapped(kept_x, together ? WordsFor<T>(c.in * width) : 0);
  const Scratch turned(kept_w, WordsFor<T>(c.out * taps * c.in));
  if (together) {
    SwapRuns(x, c.batch, c.in, elements, swapped.As<T>());
    x = swapped.As<T>();
  }
  T* const weight = turned.As<T>();
  for (int64_t o = 0; o < c.out; ++o) TurnTaps(w + o * c.in * taps, c.in, taps, weight + o * taps * c.in);
  const int64_t fit = kBlockWords / (taps * width), share = CeilDiv(c.out * matrices, 2 * NumThreads());
  const int64_t outs = std::clamp(std::min(fit, share), std::min(c.out, CeilDiv(kLeastRows, taps)), c.out);
  const int64_t parts = CeilDiv(c.out, outs);
  ParallelFor(matrices * parts, 1, [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept;
    const Scratch products(kept, outs * taps * width);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t matrix = task / parts, out = task % parts * outs, count = std::min(outs, c.out - out);
      MultiplyBlock({.dtype = c.dtype,
                     .out_dtype = DType::kFloat32,
                     .trans_a = false,
                     .trans_b = false,
                     .accumulate = false,
                     .m = count * taps,
                     .n = width,
                     .k = c.in,
                     .lda = c.in,
                     .ldb = width,
                     .ldc = width,
                     .a = weight + out * taps * c.in,
                     .b = x + matrix * c.in * width,
                     .c = products.data()});
      for (int64_t n = 0; n < images; ++n) {
        for (int64_t o = 0; o < count; ++o) {
          AddTaps(c, products.data() + o * taps * width + n * elements, width,
                  y + ((matrix * images + n) * c.out + out + o) * y_image);
        }
      }
    }
  });
}

}  // namespace

bool CanSpread(const ConvStep& c) {
  return c.kind == ConvStep::Kind::kForward && IsSpread(c) && c.groups == 1 && c.rows.stride == 1 &&
         c.cols.stride == 1 && Product({c.out, c.rows.kernel, c.cols.kernel, c.in}) <= kMostElements &&
         Product({c.rows.kernel, c.cols.kernel, c.rows.in, c.cols.in, kFewPositions}) <= kMostElements;
}

// In place: by the matrix library, by the matrix unit, whose tiles of few positions cost as much as full ones, or by
// panels whose rows follow one another. A weight's gradient is loaded and stored once for each matrix.
bool BetterByProducts(const ConvStep& c) {
  constexpr int64_t kLeastSummed = 32;  // words
  constexpr int64_t kLeastDepth = 16;   // of products, each of which is added to y
  const bool avx512 = UsableInstructions().avx512;
  if (IsSpread(c)) return CanSpread(c) && ((!avx512 && c.in >= kLeastDepth) || !CanGoByTaps(c));
  if ((PanelsFirst() && avx512) || c.groups > 1) return false;
  if (!LieInPlace(c)) return !avx512 && LieApart(c) && c.batch * PositionsOf(c) >= kHalfPanel;
  const int64_t of_a_word = c.dtype == DType::kBFloat16 ? 2 : 1;
  return PositionsOf(c) >= (c.kind == ConvStep::Kind::kForward ? kHalfPanel : kLeastSummed * of_a_word);
}

void RunProducts(const ConvStep& c, const void* a, const void* b, float* to) {
  const auto run = [&](const auto* x, const auto* other) {
    IsSpread(c) ? RunSpread(c, x, other, to) : Run(c, x, other, to);
  };
  if (c.dtype == DType::kFloat32) return run(static_cast<const float*>(a), static_cast<const float*>(b));
  run(static_cast<const BFloat16*>(a), static_cast<const BFloat16*>(b));
}

}  // namespace tpu::host
