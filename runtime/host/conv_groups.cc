#include "runtime/host/conv_groups.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/host/conv_words.h"
#include "runtime/host/lanes.h"
#include "runtime/host/narrow_float.h"
#include "runtime/host/parallel.h"
#include "runtime/machine.h"

namespace tpu::host {
namespace {

// Channels of a group: with more, products of matrices are better; where these are of few positions, or of some that
// do not follow one another, with many more.
constexpr int64_t kMostInputs = 24, kMostInputsOfFew = 64, kFewPositions = 128;
constexpr int64_t kMostTerms = 1 << 14;   // products that an element of y sums
constexpr int64_t kMostPhases = 1 << 8;   // a stride
constexpr int64_t kStripWords = 1 << 12;  // of a channel's padded copy, a third of the first level cache
constexpr int64_t kLeastUnits = 16;       // pieces of work, however few groups there are
constexpr int64_t kGrain = 1 << 17;       // products
constexpr int64_t kMostLanes = 16;        // of a register
constexpr int64_t kOuts = 4;              // channels of y that share what is loaded of x

int64_t FloorDiv(int64_t a, int64_t b) { return a >= 0 ? a / b : -CeilDiv(-a, b); }

// Rows or columns. x's elements are dealt to planes by their place modulo the stride, y's positions to phases by theirs
// modulo the spread; then position p of a phase meets element p + shift of a plane. Lines of a plane are `period`
// apart, of which elements come first; the zeros behind them are the right padding of one line and the left one of the
// next.
struct Axis {
  struct Tap {
    int64_t tap, plane, shift;
  };
  int64_t in, out, planes, phases;
  std::vector<std::vector<Tap>> taps;  // of a phase: those that meet elements
  int64_t kept = 0;                    // elements of a plane that are met
  int64_t before = 0, period = 0;

  explicit Axis(const ConvStep::Dim& d)
      : in(d.in), out(d.out), planes(d.stride), phases(d.spread), taps(static_cast<size_t>(d.spread)) {
    int64_t reach = 0;
    for (int64_t phase = 0; phase < phases; ++phase) {
      for (int64_t r = 0; r < d.kernel; ++r) {
        const int64_t place = phase + r * d.dilation - d.low;
        if (place % d.spread != 0) continue;
        const int64_t element = place / d.spread, shift = FloorDiv(element, d.stride);
        const Tap tap{r, element - shift * d.stride, shift};
        if (shift >= Elements(tap.plane) || shift + Positions(phase) <= 0) continue;
        taps[static_cast<size_t>(phase)].push_back(tap);
        before = std::max(before, -shift);
        reach = std::max(reach, Positions(phase) + shift);
      }
    }
    kept = std::min(CeilDiv(in, planes), reach);
    period = std::max({kept + before, reach, Positions(0)});
  }
  int64_t Elements(int64_t plane) const { return plane < in ? CeilDiv(in - plane, planes) : 0; }
  int64_t Positions(int64_t phase) const { return phase < out ? CeilDiv(out - phase, phases) : 0; }
};

// A product: of the weight's element `weight` and of what lies `offset` further than the position.
struct Term {
  int32_t offset, weight;
};

// Registers that cover the positions of a phase: where they begin, and which lanes are positions, as bits.
struct Cover {
  std::vector<int32_t> at;
  std::vector<uint32_t> lanes;
};

// Padded copies of some images of a group, one below the other, whose planes have one layout.
class Strips {
 public:
  explicit Strips(const ConvStep& c)
      : rows_(c.rows),
        cols_(c.cols),
        in_(c.in / c.groups),
        out_(c.out / c.groups),
        lanes_(UsableInstructions().avx512 ? avx512::kLanes : avx2::kLanes),
        c_(c) {
    const int64_t image = rows_.period * cols_.period * rows_.planes * cols_.planes;
    const int64_t most = std::min(kStripWords / image, c.batch * c.groups / kLeastUnits);
    images_ = CeilDiv(c.batch, CeilDiv(c.batch, std::max<int64_t>(most, 1)));
    count_ = CeilDiv(c.batch, images_);
    front_ = RoundUp(rows_.before * cols_.period + cols_.before, kMostLanes);
    // Behind it lies what whole registers read; planes whose distance were a power of two would share lines of the
    // cache.
    plane_ = front_ + RoundUp(Words(), kMostLanes) + 2 * kMostLanes;
  }

  int64_t count() const { return count_; }
  int64_t images() const { return images_; }  // of a strip that is not the last
  int64_t Images(int64_t strip) const { return std::min(images_, c_.batch - strip * images_); }
  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  int64_t taps() const { return c_.rows.kernel * c_.cols.kernel; }
  const Axis& rows() const { return rows_; }
  const Axis& cols() const { return cols_; }
  int64_t phases() const { return rows_.phases * cols_.phases; }
  // Of x's planes, and of y's positions as they lie in them.
  int64_t Elements() const { return in_ * rows_.planes * cols_.planes * plane_; }
  int64_t Positions() const { return RoundUp(Words(), kMostLanes) + kMostLanes; }
  int64_t At(int64_t image, int64_t row) const { return (image * rows_.period + row) * cols_.period; }
  int64_t Products() const { return images_ * rows_.out * cols_.out * in_ * out_ * taps(); }

  std::vector<Term> Terms(int64_t phase) const {
    std::vector<Term> terms;
    for (int64_t i = 0; i < in_; ++i) {
      for (const Axis::Tap& r : rows_.taps[static_cast<size_t>(phase / cols_.phases)]) {
        for (const Axis::Tap& s : cols_.taps[static_cast<size_t>(phase % cols_.phases)]) {
          const int64_t offset = Plane(i, r.plane, s.plane) + r.shift * cols_.period + s.shift;
          const int64_t weight = i * taps() + r.tap * c_.cols.kernel + s.tap;
          terms.push_back({static_cast<int32_t>(offset), static_cast<int32_t>(weight)});
        }
      }
    }
    return terms;
  }

  Cover Covering(int64_t images, int64_t phase) const {
    const int64_t rows = rows_.Positions(phase / cols_.phases), cols = cols_.Positions(phase % cols_.phases);
    Cover cover;
    int64_t end = 0;  // of what the last vector covers
    for (int64_t n = 0; n < images; ++n) {
      for (int64_t p = 0; p < rows; ++p) {
        const int64_t row = At(n, p), row_end = row + cols;
        if (end > row) cover.lanes.back() |= Bits(row - cover.at.back(), row_end - cover.at.back());
        for (int64_t from = std::max(end, row); from < row_end; from = end) {
          cover.at.push_back(static_cast<int32_t>(from));
          cover.lanes.push_back(Bits(0, row_end - from));
          end = from + lanes_;
        }
      }
    }
    return cover;
  }

  int64_t channels() const { return c_.in; }
  int64_t plane() const { return plane_; }
  int64_t Plane(int64_t channel, int64_t row, int64_t col) const {
    return ((channel * rows_.planes + row) * cols_.planes + col) * plane_ + front_;
  }

 private:
  int64_t Words() const { return images_ * rows_.period * cols_.period; }
  uint32_t Bits(int64_t begin, int64_t end) const { return BitsBetween(begin, std::min(end, lanes_)); }

  const Axis rows_, cols_;
  const int64_t in_, out_, lanes_;
  const ConvStep& c_;
  int64_t count_, images_, front_, plane_;
};

// The loops of an instruction set: each of two for one channel of y and for kOuts.
template <typename T>
struct Loops {
  void (*fill)(const Strips& strips, const T* x, int64_t images, float* to);
  void (*write_rows)(const Strips& strips, const float* sums, int64_t stride, int64_t image, float* to);
  void (*lay_out)(const Strips& strips, const T* y, int64_t image, float* to);
  void (*sum_terms[2])(const std::vector<Term>& terms, const std::vector<int32_t>& at, const float* x, const float* w,
                       int64_t w_stride, float* to, int64_t to_stride);
  void (*sum_positions[2])(const std::vector<Term>& terms, const Cover& cover, const float* x, const float* y,
                           int64_t y_stride, float* w, int64_t w_stride);
};

#define TPU_KERNELS "runtime/host/conv_groups_kernels.h"
#include "runtime/host/each_instruction_set.h"

template <typename T>
const Loops<T>& LoopsOfMachine() {
  return UsableInstructions().avx512 ? avx512::kLoops<T> : avx2::kLoops<T>;
}

// Calls body(first, count) for the channels of a group's y: kOuts of them, or one.
template <typename Body>
void ForChannels(int64_t channels, const Body& body) {
  for (int64_t o = 0; o < channels;) {
    const int64_t count = channels - o >= kOuts ? kOuts : 1;
    body(o, count);
    o += count;
  }
}

}  // namespace

bool CanGoByGroups(const ConvStep& c) {
  const bool few = c.rows.out * c.cols.out < kFewPositions || c.rows.stride * c.cols.stride > 1;
  if (c.in % c.groups != 0 || c.out % c.groups != 0 || c.in / c.groups > (few ? kMostInputsOfFew : kMostInputs) ||
      Product({c.in / c.groups, c.rows.kernel, c.cols.kernel}) > kMostTerms) {
    return false;
  }
  for (const ConvStep::Dim& d : {c.rows, c.cols}) {
    if (std::max(d.stride, d.spread) > kMostPhases) return false;
    if (d.spread > 1 && (d.stride > 1 || c.kind == ConvStep::Kind::kWeight)) return false;
  }
  return Product({c.in / c.groups, c.rows.stride * c.cols.stride, c.rows.spread * c.cols.spread, Axis(c.rows).period,
                  Axis(c.cols).period}) <= kMostElements / 8;
}

template <typename T>
void ForwardByGroups(const ConvStep& c, const T* x, const T* w, float* y) {
  const Strips strips(c);
  const Loops<T>& loops = LoopsOfMachine<T>();
  const int64_t phases = strips.phases(), width = strips.in() * strips.taps(), positions = strips.Positions();
  const int64_t x_image = c.rows.in * c.cols.in, y_image = c.rows.out * c.cols.out;
  thread_local KeptWords kept_weight;
  constexpr bool kInPlace = std::is_same_v<T, float>;
  const Scratch widened(kept_weight, kInPlace ? 0 : c.out * width);
  const float* weight = widened.data();
  if constexpr (kInPlace) {
    weight = w;
  } else {
    Widen(w, static_cast<size_t>(c.out * width), widened.data());
  }
  std::vector<std::vector<Term>> terms;
  std::vector<Cover> whole, last;
  for (int64_t phase = 0; phase < phases; ++phase) {
    terms.push_back(strips.Terms(phase));
    whole.push_back(strips.Covering(strips.images(), phase));
    last.push_back(strips.Covering(strips.Images(strips.count() - 1), phase));
  }
  ParallelFor(c.groups * strips.count(), CeilDiv(kGrain, strips.Products()), [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept, kept_sums;
    const Scratch padded(kept, strips.Elements()), sums(kept_sums, kOuts * phases * positions);
    std::fill_n(padded.data(), strips.Elements(), 0.0f);
    for (int64_t u = begin; u < end; ++u) {
      const int64_t strip = u / c.groups, group = u % c.groups, first = strip * strips.images();
      const int64_t images = strips.Images(strip);
      loops.fill(strips, x + (first * c.in + group * strips.in()) * x_image, images, padded.data());
      ForChannels(strips.out(), [&](int64_t out, int64_t count) {
        const int64_t channel = group * strips.out() + out;
        const auto sum = loops.sum_terms[count == 1 ? 0 : 1];
        for (int64_t phase = 0; phase < phases; ++phase) {
          sum(terms[phase], (images == strips.images() ? whole : last)[phase].at, padded.data(),
              weight + channel * width, width, sums.data() + phase * positions, phases * positions);
        }
        for (int64_t n = 0; n < images; ++n) {
          for (int64_t o = 0; o < count; ++o) {
            loops.write_rows(strips, sums.data() + o * phases * positions, positions, n,
                             y + ((first + n) * c.out + channel + o) * y_image);
          }
        }
      });
    }
  });
}

// How the images are cut into parts that are summed apart depends on the sizes alone.
template <typename T>
void WeightByGroups(const ConvStep& c, const T* x, const T* y, float* w) {
  const Strips strips(c);
  const Loops<T>& loops = LoopsOfMachine<T>();
  const int64_t width = strips.in() * strips.taps(), positions = strips.Positions(), all = c.out * width;
  const int64_t x_image = c.rows.in * c.cols.in, y_image = c.rows.out * c.cols.out;
  const int64_t parts = std::clamp<int64_t>(kLeastUnits / c.groups, 1, strips.count());
  const std::vector<Term> terms = strips.Terms(0);
  const Cover whole = strips.Covering(strips.images(), 0), last = strips.Covering(strips.Images(strips.count() - 1), 0);
  thread_local KeptWords kept_parts;
  const Scratch of_parts(kept_parts, parts > 1 ? parts * all : 0);
  float* const totals = parts > 1 ? of_parts.data() : w;
  const int64_t grain = CeilDiv(kGrain * parts, strips.Products() * strips.count());
  ParallelFor(c.groups * parts, grain, [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept, kept_y;
    const Scratch padded(kept, strips.Elements()), left(kept_y, kOuts * positions);
    std::fill_n(padded.data(), strips.Elements(), 0.0f);
    for (int64_t u = begin; u < end; ++u) {
      const int64_t part = u / c.groups, group = u % c.groups;
      float* const total = totals + part * all + group * strips.out() * width;
      std::fill_n(total, strips.out() * width, 0.0f);
      for (int64_t strip = strips.count() * part / parts; strip < strips.count() * (part + 1) / parts; ++strip) {
        const int64_t first = strip * strips.images(), images = strips.Images(strip);
        loops.fill(strips, x + (first * c.in + group * strips.in()) * x_image, images, padded.data());
        ForChannels(strips.out(), [&](int64_t out, int64_t count) {
          for (int64_t o = 0; o < count; ++o) {
            const T* const channel = y + (first * c.out + group * strips.out() + out + o) * y_image;
            for (int64_t n = 0; n < images; ++n) {
              loops.lay_out(strips, channel + n * c.out * y_image, n, left.data() + o * positions);
            }
          }
          const auto sum = loops.sum_positions[count == 1 ? 0 : 1];
          sum(terms, images == strips.images() ? whole : last, padded.data(), left.data(), positions,
              total + out * width, width);
        });
      }
    }
  });
  if (parts == 1) return;
  for (int64_t i = 0; i < all; ++i) {
    float sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += totals[part * all + i];
    w[i] = sum;
  }
}

template void ForwardByGroups(const ConvStep&, const float*, const float*, float*);
template void ForwardByGroups(const ConvStep&, const BFloat16*, const BFloat16*, float*);
template void WeightByGroups(const ConvStep&, const float*, const float*, float*);
template void WeightByGroups(const ConvStep&, const BFloat16*, const BFloat16*, float*);

}  // namespace tpu::host
