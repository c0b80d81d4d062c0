#include "runtime/host/conv.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

#include "runtime/host/conv_groups.h"
#include "runtime/host/conv_products.h"
#include "runtime/host/conv_taps.h"
#include "runtime/host/conv_winograd.h"
#include "runtime/host/conv_words.h"
#include "runtime/host/narrow_float.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"
#include "runtime/machine.h"

namespace tpu::host {
namespace {

constexpr int64_t kUnitBytes = 320 << 10;  // of a padded copy, which shares the second level cache with the weight

// A padded copy of some rows of an image: for each phase (a position modulo the stride) one plane, in which every tap
// of the window finds all its elements at one offset.
class Padding {
 public:
  Padding(const ConvStep& step, int64_t rows)
      : rows_(Extent(step.rows, rows)), cols_(Extent(step.cols, step.cols.out)), phases_(step.cols.stride) {}

  static int64_t Extent(const ConvStep::Dim& d, int64_t out) { return out + (d.kernel - 1) * d.dilation / d.stride; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t Plane(int64_t row_phase, int64_t col_phase) const {
    return (row_phase * phases_ + col_phase) * rows_ * cols_;
  }
  int64_t Elements(const ConvStep& step) const { return Plane(step.rows.stride, 0); }  // of one channel
  int64_t Tap(const ConvStep& step, int64_t r, int64_t s) const {
    const int64_t row = r * step.rows.dilation, col = s * step.cols.dilation;
    return Plane(row % step.rows.stride, col % step.cols.stride) + row / step.rows.stride * cols_ +
           col / step.cols.stride;
  }

 private:
  int64_t rows_, cols_, phases_;
};

// Rows [first, first + count) of y's images [image, image + images); of all but whole images, one.
struct Unit {
  int64_t image, images, first, count;
};

// How images are cut into units whose padded copies are alike, and what slides over one into parts of y's channels,
// where there are too few units for all threads.
struct Cutting {
  int64_t images = 1, rows, each_image, units;
  int64_t outs, parts;

  explicit Cutting(const ConvStep& c) : outs(c.out), parts(1) {
    constexpr int64_t kFewPositions = 64, kMostPositions = 128, kFewChannels = 32;
    const bool forward = c.kind == ConvStep::Kind::kForward;
    const int64_t tasks = 2 * NumThreads();
    const int64_t row_bytes =
        c.in * Padding(c, 1).Elements(c) / Padding(c, 1).rows() * static_cast<int64_t>(sizeof(float));
    const int64_t halo = Padding(c, 1).rows() - 1;
    rows = std::max<int64_t>(1, kUnitBytes / row_bytes - halo);
    rows = std::min(
        {rows, std::max(forward ? CeilDiv(kFewPositions, c.cols.out) : 1, c.batch * c.rows.out / tasks), c.rows.out});
    rows = CeilDiv(c.rows.out, CeilDiv(c.rows.out, rows));
    each_image = CeilDiv(c.rows.out, rows);
    if (forward && each_image == 1) {
      const int64_t fit =
          std::min(kMostPositions / (c.rows.out * c.cols.out), kUnitBytes / (row_bytes * (rows + halo)));
      images = std::clamp<int64_t>(fit, 1, c.batch);
    }
    units = CeilDiv(c.batch, images) * each_image;
    if (!forward || units >= tasks) return;
    outs = std::max(kFewChannels, RoundUp(CeilDiv(c.out, CeilDiv(tasks, units)), kPanelRows));
    parts = CeilDiv(c.out, outs);
  }
  Unit At(const ConvStep& c, int64_t unit) const {
    const int64_t first = unit % each_image * rows, image = unit / each_image * images;
    return {image, std::min(images, c.batch - image), first, std::min(rows, c.rows.out - first)};
  }
};

// One row of a plane: copy(to, from, count) for the elements of the image's row `at` that it has, from element `from`
// of the image on, a stride apart; zero(to, count) for its others.
template <typename Copy, typename Zero>
void PadRow(const ConvStep& c, const Padding& padding, int64_t at, int64_t col_phase, const Copy& copy,
            const Zero& zero) {
  const int64_t width = padding.cols(), start = col_phase - c.cols.low, stride = c.cols.stride;
  if (at < 0 || at >= c.rows.in) return zero(0, width);
  const int64_t low = std::min(width, start < 0 ? CeilDiv(-start, stride) : 0);
  const int64_t high = std::clamp<int64_t>(start >= c.cols.in ? 0 : (c.cols.in - 1 - start) / stride + 1, low, width);
  zero(0, low);
  if (high > low) copy(low, at * c.cols.in + start + low * stride, high - low);
  zero(high, width - high);
}

// Every row of the copy: body(its first element's place in a channel's planes, the row of the image, the phase of
// columns).
template <typename Body>
void ForRows(const ConvStep& c, const Padding& padding, const Unit& unit, const Body& body) {
  for (int64_t a = 0; a < c.rows.stride; ++a) {
    for (int64_t b = 0; b < c.cols.stride; ++b) {
      for (int64_t row = 0; row < padding.rows(); ++row) {
        body(padding.Plane(a, b) + row * padding.cols(), (unit.first + row) * c.rows.stride + a - c.rows.low, b);
      }
    }
  }
}

// Channels one after the other: what the forward product slides over.
template <typename T>
void PadChannels(const ConvStep& step, const Padding& padding, const Unit& unit, const T* x, float* to) {
  const ConvStep c = InWords(step);
  const int64_t elements = padding.Elements(c), image = c.rows.in * c.cols.in;
  for (int64_t at_channel = 0; at_channel < unit.images * c.in; ++at_channel) {
    const int64_t n = unit.image + at_channel / c.in;
    const WordRows<T> from(x + n * step.in * image, at_channel % c.in, step.in, image);
    ForRows(c, padding, unit, [&](int64_t place, int64_t at, int64_t phase) {
      float* const row = to + at_channel * elements + place;
      PadRow(
          c, padding, at, phase,
          [&](int64_t col, int64_t first, int64_t count) { from.Copy(first, c.cols.stride, count, row + col); },
          [&](int64_t col, int64_t count) { std::fill_n(row + col, count, 0.0f); });
    });
  }
}

// Channels innermost: what the gradient of the weight sums over.
template <typename T>
void PadPositions(const ConvStep& step, const Padding& padding, const Unit& unit, const T* x, float* to) {
  thread_local KeptWords kept;
  const ConvStep c = InWords(step);
  const int64_t image = c.rows.in * c.cols.in;
  const WordRows<T> from(x, unit.image, step.batch, c.in * image);
  ForRows(c, padding, unit, [&](int64_t place, int64_t at, int64_t phase) {
    float* const row = to + place * c.in;
    PadRow(
        c, padding, at, phase,
        [&](int64_t col, int64_t first, int64_t count) {
          if constexpr (std::is_same_v<T, float>) {
            if (c.cols.stride == 1) {
              return TransposePanel(from.first + first, image, c.in, count, row + col * c.in, c.in);
            }
          }
          const Scratch channels(kept, c.in * count);
          for (int64_t i = 0; i < c.in; ++i) {
            from.Copy(i * image + first, c.cols.stride, count, channels.data() + i * count);
          }
          TransposePanel(channels.data(), count, c.in, count, row + col * c.in, c.in);
        },
        [&](int64_t col, int64_t count) { std::fill_n(row + col * c.in, count * c.in, 0.0f); });
  });
}

std::vector<int32_t> Numbers(int64_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Rows and columns of some images: n * image + p * row + q * position.
std::vector<int32_t> Positions(const ConvStep& c, const Cutting& cutting, int64_t image, int64_t row,
                               int64_t position) {
  std::vector<int32_t> positions;
  for (int64_t n = 0; n < cutting.images; ++n) {
    for (int64_t p = 0; p < cutting.rows; ++p) {
      for (int64_t q = 0; q < c.cols.out; ++q) {
        positions.push_back(static_cast<int32_t>(n * image + p * row + q * position));
      }
    }
  }
  return positions;
}

template <typename T>
void Forward(const ConvStep& step, const T* x, const T* w, float* y) {
  const ConvStep c = InWords(step);
  const Cutting cutting(c);
  const Padding padding(c, cutting.rows);
  const int64_t depth = c.in * c.rows.kernel * c.cols.kernel, elements = padding.Elements(c);
  const int64_t image = c.rows.out * c.cols.out;
  const WeightWords<T> weight(step, w);
  const std::vector<int32_t> depths = Numbers(depth);
  std::vector<int32_t> rows;
  for (int64_t i = 0; i < c.in; ++i) {
    for (int64_t r = 0; r < c.rows.kernel; ++r) {
      for (int64_t s = 0; s < c.cols.kernel; ++s) {
        rows.push_back(static_cast<int32_t>(i * elements + padding.Tap(c, r, s)));
      }
    }
  }
  const std::vector<int32_t> cols = Positions(c, cutting, c.in * elements, padding.cols(), 1);
  const std::vector<int32_t> c_cols = Positions(c, cutting, c.out * image, c.cols.out, 1);
  ParallelFor(cutting.units * cutting.parts, 1, [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept;
    const Scratch padded(kept, cutting.images * c.in * elements);
    for (int64_t task = begin; task < end; ++task) {
      const Unit unit = cutting.At(c, task / cutting.parts);
      const int64_t out = task % cutting.parts * cutting.outs;
      if (task == begin || out == 0) PadChannels(step, padding, unit, x, padded.data());
      MultiplyGathered({.dtype = c.dtype,
                        .accumulate = false,
                        .m = std::min(cutting.outs, c.out - out),
                        .n = unit.images * unit.count * c.cols.out,
                        .k = depth,
                        .lda = depth,
                        .ldc = image,
                        .a = weight.data() + out * depth,
                        .depths = depths.data(),
                        .b = padded.data(),
                        .rows = rows.data(),
                        .cols = cols.data(),
                        .c_cols = c_cols.data(),
                        .c = y + (unit.image * c.out + out) * image + unit.first * c.cols.out});
    }
  });
}

// Each thread sums over its part with the taps outside and the channels inside; then what they gave is added up.
template <typename T>
void Weight(const ConvStep& step, const T* x, const T* y, float* w) {
  const ConvStep c = InWords(step);
  const Cutting cutting(c);
  const Padding padding(c, cutting.rows);
  const int64_t taps = c.rows.kernel * c.cols.kernel, width = c.in * taps, elements = c.in * padding.Elements(c);
  const int64_t image = c.rows.out * c.cols.out, parts = std::min<int64_t>(NumThreads(), cutting.units);
  const std::vector<int32_t> depths = Numbers(cutting.rows * c.cols.out), c_cols = Numbers(width);
  const std::vector<int32_t> rows = Positions(c, cutting, 0, padding.cols() * c.in, c.in);
  std::vector<int32_t> cols;
  for (int64_t r = 0; r < c.rows.kernel; ++r) {
    for (int64_t s = 0; s < c.cols.kernel; ++s) {
      for (int64_t i = 0; i < c.in; ++i) cols.push_back(static_cast<int32_t>(padding.Tap(c, r, s) * c.in + i));
    }
  }
  thread_local KeptWords kept_sums;
  const Scratch all_sums(kept_sums, parts * c.out * width);
  float* const sums = all_sums.data();
  // Rows whose strides were a power of two would share few lines of the cache.
  const int64_t lda = RoundUp(cutting.rows * c.cols.out, 16) + 16;
  ParallelFor(parts, 1, [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept, kept_y;
    const Scratch padded(kept, elements), left(kept_y, c.out * lda);
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = cutting.units * part / parts;
      for (int64_t u = first; u < cutting.units * (part + 1) / parts; ++u) {
        const Unit unit = cutting.At(c, u);
        PadPositions(step, padding, unit, x, padded.data());
        const int64_t depth = unit.count * c.cols.out;
        const WordRows<T> from(y, unit.image, step.batch, c.out * image);
        for (int64_t o = 0; o < c.out; ++o) {
          from.Copy(o * image + unit.first * c.cols.out, 1, depth, left.data() + o * lda);
        }
        MultiplyGathered({.dtype = c.dtype,
                          .accumulate = u != first,
                          .m = c.out,
                          .n = width,
                          .k = depth,
                          .lda = lda,
                          .ldc = width,
                          .a = left.data(),
                          .depths = depths.data(),
                          .b = padded.data(),
                          .rows = rows.data(),
                          .cols = cols.data(),
                          .c_cols = c_cols.data(),
                          .c = sums + part * c.out * width});
      }
    }
  });
  ParallelFor(c.out, CeilDiv(1 << 14, width), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      for (int64_t t = 0; t < taps; ++t) {
        for (int64_t i = 0; i < c.in; ++i) {
          float sum = 0;
          for (int64_t part = 0; part < parts; ++part) sum += sums[(part * c.out + o) * width + t * c.in + i];
          w[o * width + i * taps + t] = sum;
        }
      }
    }
  });
}

// Whether strips of padded images are the worse way: where taps are skipped that would meet zeros (of small images' or
// between spread elements), and where there is more weight than image, of which each thread then takes its part.
bool BetterByTaps(const ConvStep& step) {
  constexpr int64_t kSmall = 256;  // positions
  const ConvStep c = InWords(step);
  const bool small = c.rows.out * c.cols.out < kSmall;
  // Panels that are hardly half full: of positions of few images that see the same taps, for each of which the weight
  // is packed; of few channels.
  const bool few = c.kind == ConvStep::Kind::kForward ? c.batch < kHalfPanel && c.rows.kernel * c.cols.kernel > 1
                                                      : c.in < kHalfPanel;
  const int64_t weight = c.out * c.rows.kernel * c.cols.kernel, image = Padding(c, c.rows.out).Elements(c);
  return IsSpread(c) || (!few && (small || weight >= c.batch * image) && CanGoByTaps(step));
}

// Whether sums of neighbouring positions are the better way: in groups, and for the gradient of a weight of so few
// elements for each channel of y (of images' first layers) that panels are packed longer than they are multiplied.
bool BetterByGroups(const ConvStep& c) {
  constexpr int64_t kFewElements = 32;
  const bool few = c.kind == ConvStep::Kind::kWeight && c.in * c.rows.kernel * c.cols.kernel <= kFewElements;
  return c.groups > 1 || (few && c.dtype == DType::kFloat32 && CanGoByGroups(c));
}

// bf16 is multiplied in pairs, or widened where the machine has nothing for those.
ConvStep Multiplied(ConvStep c) {
  if (c.dtype == DType::kBFloat16 && !PanelsGather(c.dtype)) c.dtype = DType::kFloat32;
  return c;
}

// Of groups that CanGoByGroups refuses: whether each is worth a convolution of its own.
bool CanGoInTurn(const ConvStep& c) {
  constexpr int64_t kLeastInputs = 16;
  return c.in % c.groups == 0 && c.out % c.groups == 0 && c.in / c.groups >= kLeastInputs;
}
ConvStep OfOneGroup(ConvStep c) {
  c.in /= c.groups;
  c.out /= c.groups;
  c.groups = 1;
  return c;
}

// The groups one after the other, each with its channels of all images together.
template <typename T>
void RunGroupsInTurn(const ConvStep& step, const T* a, const T* b, float* c) {
  const ConvStep one = OfOneGroup(step);
  const int64_t x = one.in * one.rows.in * one.cols.in, y = one.out * one.rows.out * one.cols.out;
  const int64_t w = one.out * one.in * one.rows.kernel * one.cols.kernel, images = step.groups * step.batch;
  thread_local KeptWords kept_x, kept_y;
  const Scratch xs(kept_x, WordsFor<T>(images * x)), ys(kept_y, images * y);
  SwapRuns(a, step.batch, step.groups, x, xs.As<T>());
  if (step.kind == ConvStep::Kind::kForward) {
    for (int64_t group = 0; group < step.groups; ++group) {
      RunConv(one, xs.As<T>() + group * step.batch * x, b + group * w, ys.data() + group * step.batch * y);
    }
    SwapRuns(ys.data(), step.groups, step.batch, y, c);
    return;
  }
  SwapRuns(b, step.batch, step.groups, y, ys.As<T>());
  for (int64_t group = 0; group < step.groups; ++group) {
    RunConv(one, xs.As<T>() + group * step.batch * x, ys.As<T>() + group * step.batch * y, c + group * w);
  }
}

template <typename T>
void Run(const ConvStep& step, const void* a, const void* b, float* c) {
  if (step.groups > 1 && !CanGoByGroups(step)) {
    return RunGroupsInTurn(step, static_cast<const T*>(a), static_cast<const T*>(b), c);
  }
  if (BetterByProducts(step)) return RunProducts(step, a, b, c);
  const bool forward = step.kind == ConvStep::Kind::kForward;
  const auto strips = forward ? Forward<T> : Weight<T>;
  const auto taps = forward ? ForwardByTaps<T> : WeightByTaps<T>;
  const auto groups = forward ? ForwardByGroups<T> : WeightByGroups<T>;
  if constexpr (std::is_same_v<T, float>) {
    const auto winograd = forward ? ForwardByWinograd : WeightByWinograd;
    if (BetterByWinograd(step) && winograd(step, static_cast<const T*>(a), static_cast<const T*>(b), c)) return;
  }
  (BetterByGroups(step) ? groups
   : BetterByTaps(step) ? taps
                        : strips)(step, static_cast<const T*>(a), static_cast<const T*>(b), c);
}

}  // namespace

bool CanConvolve(const ConvStep& step) {
  if (!PanelsGather(DType::kFloat32) || (step.dtype != DType::kFloat32 && step.dtype != DType::kBFloat16)) return false;
  const ConvStep c = Multiplied(step);
  for (const ConvStep::Dim& d : {c.rows, c.cols}) {
    for (int64_t size : {d.in, d.out, d.kernel, d.stride, d.dilation, d.spread}) {
      if (size < 1 || size > kMostElements) return false;
    }
    if (d.low < -kMostElements || d.low > kMostElements) return false;
  }
  if (std::min({c.batch, c.in, c.out}) < 1 || std::max({c.batch, c.in, c.out}) > kMostElements) return false;
  if (c.groups < 1 || c.groups > kMostElements) return false;
  if (std::max({Product({c.batch, c.in, c.rows.in, c.cols.in}), Product({c.batch, c.out, c.rows.out, c.cols.out}),
                Product({c.out, CeilDiv(c.in, c.groups), c.rows.kernel, c.cols.kernel})}) > kMostElements) {
    return false;
  }
  if (c.groups > 1) {
    return CanGoByGroups(c) || (CanGoInTurn(c) && CanConvolve(OfOneGroup(step)));
  }
  const int64_t padded = Product(
      {c.in, c.rows.stride, c.cols.stride, Padding::Extent(c.rows, c.rows.out), Padding::Extent(c.cols, c.cols.out)});
  return padded <= kMostElements && (!IsSpread(c) || CanGoByTaps(c) || CanSpread(c));
}

void RunConv(const ConvStep& step, const void* a, const void* b, float* c) {
  if (step.dtype == DType::kFloat32) return Run<float>(step, a, b, c);
  const ConvStep wide = Multiplied(step);
  if (wide.dtype == step.dtype || step.groups > 1 || BetterByProducts(step)) return Run<BFloat16>(step, a, b, c);
  thread_local KeptWords kept_a, kept_b;
  const auto widened = [](const void* from, const Scratch& to, int64_t count) {
    ParallelFor(count, 1 << 15, [&](int64_t begin, int64_t end) {
      Widen(static_cast<const BFloat16*>(from) + begin, static_cast<size_t>(end - begin), to.data() + begin);
    });
    return to.data();
  };
  const int64_t x = step.batch * step.in * step.rows.in * step.cols.in;
  const int64_t other = step.kind == ConvStep::Kind::kForward ? step.out * step.in * step.rows.kernel * step.cols.kernel
                                                              : step.batch * step.out * step.rows.out * step.cols.out;
  const Scratch wide_a(kept_a, x), wide_b(kept_b, other);
  Run<float>(wide, widened(a, wide_a, x), widened(b, wide_b, other), c);
}

}  // namespace tpu::host
