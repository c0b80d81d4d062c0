#include "runtime/host/conv.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/host/narrow_float.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"

namespace tpu::host {
namespace {

constexpr int64_t kUnitBytes = 1 << 20;     // of a padded copy, of the second level cache
constexpr int64_t kLeastPositions = 512;    // that are multiplied together where images are small
constexpr int64_t kMostElements = 1 << 28;  // of an operand or a padded image

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

// Rows [first, first + count) of y's image `image`.
struct Unit {
  int64_t image, first, count;
};

// How the work is cut among threads: by units, whose padded copies are alike and of which some are multiplied together;
// where there is more weight than image, by channels of y, so that each part of the weight is one thread's.
struct Cutting {
  int64_t rows, each_image, units, together;
  int64_t unit_parts = NumThreads(), out_parts = 1;

  explicit Cutting(const ConvStep& c) {
    const int64_t row_bytes =
        c.in * Padding(c, 1).Elements(c) / Padding(c, 1).rows() * static_cast<int64_t>(sizeof(float));
    const int64_t halo = Padding(c, 1).rows() - 1;
    if (c.out * c.rows.kernel * c.cols.kernel >= c.batch * Padding(c, c.rows.out).Elements(c)) {
      std::swap(unit_parts, out_parts);
    }
    const int64_t pieces = out_parts > 1 ? 1 : 2 * unit_parts;
    rows = std::max<int64_t>(1, kUnitBytes / row_bytes - halo);
    rows = std::min({rows, std::max<int64_t>(1, c.batch * c.rows.out / pieces), c.rows.out});
    each_image = CeilDiv(c.rows.out, rows);
    units = c.batch * each_image;
    const int64_t unit_bytes = (rows + halo) * row_bytes;
    together =
        std::clamp<int64_t>(kLeastPositions / (rows * c.cols.out), 1, std::max<int64_t>(1, kUnitBytes / unit_bytes));
    together = std::min(together, std::max<int64_t>(1, units / unit_parts));
    unit_parts = std::min(unit_parts, units);
  }
  Unit At(const ConvStep& c, int64_t unit) const {
    const int64_t first = unit % each_image * rows;
    return {unit / each_image, first, std::min(rows, c.rows.out - first)};
  }
  // The first channel of a part; of the one behind the last, their number.
  int64_t Out(const ConvStep& c, int64_t part) const {
    constexpr int64_t kTogether = 8;  // rows of a panel
    return std::min(c.out, CeilDiv(CeilDiv(c.out, out_parts), kTogether) * kTogether * part);
  }
};

// This thread's own, kept for the next convolution.
template <typename T>
T* Scratch(std::vector<T>& kept, int64_t elements) {
  if (static_cast<int64_t>(kept.size()) < elements) kept.resize(static_cast<size_t>(elements));
  return kept.data();
}

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
void PadChannels(const ConvStep& c, const Padding& padding, const Unit& unit, const T* x, T* to) {
  const int64_t elements = padding.Elements(c), stride = c.cols.stride;
  for (int64_t i = 0; i < c.in; ++i) {
    const T* const from = x + (unit.image * c.in + i) * c.rows.in * c.cols.in;
    ForRows(c, padding, unit, [&](int64_t place, int64_t at, int64_t phase) {
      T* const row = to + i * elements + place;
      PadRow(
          c, padding, at, phase,
          [&](int64_t col, int64_t first, int64_t count) {
            if (stride == 1) return (void)std::memcpy(row + col, from + first, static_cast<size_t>(count) * sizeof(T));
            for (int64_t q = 0; q < count; ++q) row[col + q] = from[first + q * stride];
          },
          [&](int64_t col, int64_t count) { std::fill_n(row + col, count, T{}); });
    });
  }
}

// Channels innermost: what the gradient of the weight sums over.
template <typename T>
void PadPositions(const ConvStep& c, const Padding& padding, const Unit& unit, const T* x, T* to) {
  const int64_t image = c.rows.in * c.cols.in, stride = c.cols.stride;
  const T* const from = x + unit.image * c.in * image;
  ForRows(c, padding, unit, [&](int64_t place, int64_t at, int64_t phase) {
    T* const row = to + place * c.in;
    PadRow(
        c, padding, at, phase,
        [&](int64_t col, int64_t first, int64_t count) {
          if constexpr (std::is_same_v<T, float>) {
            if (stride == 1) return TransposePanel(from + first, image, c.in, count, row + col * c.in, c.in);
          }
          for (int64_t q = 0; q < count; ++q) {
            for (int64_t i = 0; i < c.in; ++i) row[(col + q) * c.in + i] = from[i * image + first + q * stride];
          }
        },
        [&](int64_t col, int64_t count) { std::fill_n(row + col * c.in, count * c.in, T{}); });
  });
}

template <typename T>
void Forward(const ConvStep& c, const T* x, const T* w, float* y) {
  const Cutting cutting(c);
  const Padding padding(c, cutting.rows);
  const int64_t depth = c.in * c.rows.kernel * c.cols.kernel, elements = padding.Elements(c);
  const int64_t image = c.rows.out * c.cols.out;
  std::vector<int32_t> rows;
  for (int64_t i = 0; i < c.in; ++i) {
    for (int64_t r = 0; r < c.rows.kernel; ++r) {
      for (int64_t s = 0; s < c.cols.kernel; ++s) {
        rows.push_back(static_cast<int32_t>(i * elements + padding.Tap(c, r, s)));
      }
    }
  }
  const int64_t tasks = CeilDiv(cutting.units, cutting.together);
  ParallelFor(cutting.out_parts * tasks, 1, [&](int64_t begin, int64_t end) {
    thread_local std::vector<T> kept;
    std::vector<int32_t> cols, c_cols;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t out = cutting.Out(c, task / tasks), outs = cutting.Out(c, task / tasks + 1) - out;
      const int64_t first = task % tasks * cutting.together, count = std::min(cutting.together, cutting.units - first);
      if (outs == 0) continue;
      T* const padded = Scratch(kept, count * c.in * elements);
      cols.clear(), c_cols.clear();
      const int64_t first_image = cutting.At(c, first).image;
      for (int64_t u = 0; u < count; ++u) {
        const Unit unit = cutting.At(c, first + u);
        PadChannels(c, padding, unit, x, padded + u * c.in * elements);
        for (int64_t p = 0; p < unit.count; ++p) {
          for (int64_t q = 0; q < c.cols.out; ++q) {
            cols.push_back(static_cast<int32_t>(u * c.in * elements + p * padding.cols() + q));
            c_cols.push_back(
                static_cast<int32_t>((unit.image - first_image) * c.out * image + (unit.first + p) * c.cols.out + q));
          }
        }
      }
      MultiplyGathered({.dtype = c.dtype,
                        .accumulate = false,
                        .m = outs,
                        .n = static_cast<int64_t>(cols.size()),
                        .k = depth,
                        .lda = depth,
                        .ldc = image,
                        .a = w + out * depth,
                        .b = padded,
                        .rows = rows.data(),
                        .cols = cols.data(),
                        .c_cols = c_cols.data(),
                        .c = y + (first_image * c.out + out) * image});
    }
  });
}

// Each thread sums over its part with the taps outside and the channels inside; then what units gave is added up.
template <typename T>
void Weight(const ConvStep& c, const T* x, const T* y, float* w) {
  const Cutting cutting(c);
  const Padding padding(c, cutting.rows);
  const int64_t taps = c.rows.kernel * c.cols.kernel, width = c.in * taps, elements = c.in * padding.Elements(c);
  const int64_t image = c.rows.out * c.cols.out, parts = cutting.unit_parts;
  std::vector<int32_t> cols, c_cols;
  for (int64_t r = 0; r < c.rows.kernel; ++r) {
    for (int64_t s = 0; s < c.cols.kernel; ++s) {
      for (int64_t i = 0; i < c.in; ++i) {
        c_cols.push_back(static_cast<int32_t>(cols.size()));
        cols.push_back(static_cast<int32_t>(padding.Tap(c, r, s) * c.in + i));
      }
    }
  }
  thread_local std::vector<float> kept_sums;
  float* const sums = Scratch(kept_sums, parts * c.out * width);
  ParallelFor(parts * cutting.out_parts, 1, [&](int64_t begin, int64_t end) {
    thread_local std::vector<T> kept, kept_y;
    std::vector<int32_t> rows;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task % parts, out = cutting.Out(c, task / parts);
      const int64_t outs = cutting.Out(c, task / parts + 1) - out;
      if (outs == 0) continue;
      const int64_t last = cutting.units * (part + 1) / parts;
      int64_t count = 0;
      for (int64_t first = cutting.units * part / parts; first < last; first += count) {
        count = std::min(cutting.together, last - first);
        T* const padded = Scratch(kept, count * elements);
        rows.clear();
        for (int64_t u = 0; u < count; ++u) {
          const Unit unit = cutting.At(c, first + u);
          PadPositions(c, padding, unit, x, padded + u * elements);
          for (int64_t p = 0; p < unit.count; ++p) {
            for (int64_t q = 0; q < c.cols.out; ++q) {
              rows.push_back(static_cast<int32_t>(u * elements + (p * padding.cols() + q) * c.in));
            }
          }
        }
        const int64_t depth = static_cast<int64_t>(rows.size());
        // The units' parts of a row of y, one behind the other. Rows whose strides were a power of two would share few
        // lines of the cache.
        const int64_t lda = (depth + 15) / 16 * 16 + 16;
        T* const left = Scratch(kept_y, outs * lda);
        for (int64_t o = 0; o < outs; ++o) {
          T* to = left + o * lda;
          for (int64_t u = 0; u < count; ++u) {
            const Unit unit = cutting.At(c, first + u);
            to = std::copy_n(y + (unit.image * c.out + out + o) * image + unit.first * c.cols.out,
                             unit.count * c.cols.out, to);
          }
        }
        MultiplyGathered({.dtype = c.dtype,
                          .accumulate = first != cutting.units * part / parts,
                          .m = outs,
                          .n = width,
                          .k = depth,
                          .lda = lda,
                          .ldc = width,
                          .a = left,
                          .b = padded,
                          .rows = rows.data(),
                          .cols = cols.data(),
                          .c_cols = c_cols.data(),
                          .c = sums + (part * c.out + out) * width});
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

template <typename T>
void Run(const ConvStep& step, const void* a, const void* b, float* c) {
  const auto run = step.kind == ConvStep::Kind::kForward ? Forward<T> : Weight<T>;
  run(step, static_cast<const T*>(a), static_cast<const T*>(b), c);
}

}  // namespace

bool CanConvolve(const ConvStep& c) {
  if (!PanelsGather(c.dtype)) return false;
  for (const ConvStep::Dim& d : {c.rows, c.cols}) {
    for (int64_t size : {d.in, d.out, d.kernel, d.stride, d.dilation}) {
      if (size < 1 || size > kMostElements) return false;
    }
    if (d.low < -kMostElements || d.low > kMostElements) return false;
  }
  if (std::min({c.batch, c.in, c.out}) < 1 || std::max({c.batch, c.in, c.out}) > kMostElements) return false;
  const auto product = [](std::initializer_list<int64_t> sizes) {
    __int128 elements = 1;
    for (int64_t size : sizes) elements = std::min<__int128>(elements * size, __int128{kMostElements} + 1);
    return static_cast<int64_t>(elements);
  };
  const int64_t padded = product(
      {c.in, c.rows.stride, c.cols.stride, Padding::Extent(c.rows, c.rows.out), Padding::Extent(c.cols, c.cols.out)});
  return std::max({product({c.batch, c.in, c.rows.in, c.cols.in}), product({c.batch, c.out, c.rows.out, c.cols.out}),
                   product({c.out, c.in, c.rows.kernel, c.cols.kernel}), padded}) <= kMostElements;
}

void RunConv(const ConvStep& step, const void* a, const void* b, float* c) {
  step.dtype == DType::kFloat32 ? Run<float>(step, a, b, c) : Run<BFloat16>(step, a, b, c);
}

}  // namespace tpu::host
