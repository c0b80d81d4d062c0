#include "runtime/host/conv_products.h"

#include <algorithm>

#include "runtime/host/conv_words.h"
#include "runtime/host/gemm.h"
#include "runtime/host/narrow_float.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"
#include "runtime/machine.h"

namespace tpu::host {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements to copy

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

// Images of few positions are one matrix together.
template <typename T>
void Run(const ConvStep& c, const T* x, const T* other, float* to) {
  constexpr int64_t kFewPositions = 64;
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

}  // namespace

// In place: by the matrix library, by the matrix unit, whose tiles of few positions cost as much as full ones, or by
// panels whose rows follow one another. A weight's gradient is loaded and stored once for each matrix.
bool BetterByProducts(const ConvStep& c) {
  constexpr int64_t kLeastSummed = 32;  // words
  const bool avx512 = UsableInstructions().avx512;
  if ((PanelsFirst() && avx512) || c.groups > 1) return false;
  if (!LieInPlace(c)) return !avx512 && LieApart(c) && c.batch * PositionsOf(c) >= kHalfPanel;
  const int64_t of_a_word = c.dtype == DType::kBFloat16 ? 2 : 1;
  return PositionsOf(c) >= (c.kind == ConvStep::Kind::kForward ? kHalfPanel : kLeastSummed * of_a_word);
}

void RunProducts(const ConvStep& c, const void* a, const void* b, float* to) {
  if (c.dtype == DType::kFloat32) return Run(c, static_cast<const float*>(a), static_cast<const float*>(b), to);
  Run(c, static_cast<const BFloat16*>(a), static_cast<const BFloat16*>(b), to);
}

}  // namespace tpu::host
