#include "runtime/host/conv_groups.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/host/conv_words.h"
#include "runtime/host/narrow_float.h"
#include "runtime/host/parallel.h"

#define TPU_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#define TPU_INLINE __attribute__((always_inline)) inline

namespace tpu::host {
namespace {

constexpr int64_t kMostInputs = 24;       // of a group; with more, products of matrices are better
constexpr int64_t kMostTerms = 1 << 14;   // products that an element of y sums
constexpr int64_t kMostPhases = 1 << 8;   // a stride
constexpr int64_t kStripWords = 1 << 12;  // of a channel's padded copy, a third of the first level cache
constexpr int64_t kLeastUnits = 16;       // pieces of work, however few groups there are
constexpr int64_t kGrain = 1 << 17;       // products
constexpr int64_t kLanes = 16;
constexpr int64_t kOuts = 4;      // channels of y that share what is loaded of x
constexpr int64_t kVectors = 8;   // of positions, at once
constexpr int64_t kTogether = 6;  // terms whose sums over positions are made at once, for kOuts channels
constexpr int64_t kAlone = 13;    // the same for one

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

// Vectors that cover the positions of a phase: where they begin, and which lanes are positions.
struct Cover {
  std::vector<int32_t> at;
  std::vector<__mmask16> lanes;
};

// Padded copies of some images of a group, one below the other, whose planes have one layout.
class Strips {
 public:
  explicit Strips(const ConvStep& c)
      : rows_(c.rows), cols_(c.cols), in_(c.in / c.groups), out_(c.out / c.groups), c_(c) {
    const int64_t image = rows_.period * cols_.period * rows_.planes * cols_.planes;
    const int64_t most = std::min(kStripWords / image, c.batch * c.groups / kLeastUnits);
    images_ = CeilDiv(c.batch, CeilDiv(c.batch, std::max<int64_t>(most, 1)));
    count_ = CeilDiv(c.batch, images_);
    front_ = RoundUp(rows_.before * cols_.period + cols_.before, kLanes);
    // Behind it lies what whole vectors read; planes whose distance were a power of two would share lines of the cache.
    plane_ = front_ + RoundUp(Words(), kLanes) + 2 * kLanes;
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
  int64_t Positions() const { return RoundUp(Words(), kLanes) + kLanes; }
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
        if (end > row) cover.lanes.back() |= Lanes(row - cover.at.back(), row_end - cover.at.back());
        for (int64_t from = std::max(end, row); from < row_end; from = end) {
          cover.at.push_back(static_cast<int32_t>(from));
          cover.lanes.push_back(Lanes(0, row_end - from));
          end = from + kLanes;
        }
      }
    }
    return cover;
  }

  // The elements of a strip's planes; what lies between them is zero and stays so. x: the group's of the first image.
  template <typename T>
  void Fill(const T* x, int64_t images, float* to) const;

 private:
  int64_t Words() const { return images_ * rows_.period * cols_.period; }
  int64_t Plane(int64_t channel, int64_t row, int64_t col) const {
    return ((channel * rows_.planes + row) * cols_.planes + col) * plane_ + front_;
  }
  static __mmask16 Lanes(int64_t begin, int64_t end) {
    const auto below = [](int64_t lane) { return (uint32_t{1} << std::min(lane, kLanes)) - 1; };
    return static_cast<__mmask16>(below(end) & ~below(begin));
  }

  const Axis rows_, cols_;
  const int64_t in_, out_;
  const ConvStep& c_;
  int64_t count_, images_, front_, plane_;
};

TPU_AVX512 TPU_INLINE __mmask16 First(int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffff : (1 << count) - 1);
}

TPU_AVX512 TPU_INLINE __m512 Load(const float* from, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
TPU_AVX512 TPU_INLINE __m512 Load(const BFloat16* from, __mmask16 lanes) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

template <typename T>
TPU_AVX512 TPU_INLINE void CopyRow(const T* from, int64_t count, float* to) {
  for (int64_t q = 0; q < count; q += kLanes) {
    const __mmask16 lanes = First(count - q);
    _mm512_mask_storeu_ps(to + q, lanes, Load(from + q, lanes));
  }
}

// Every other element, from the first on and from the second on; at most `most` of each.
template <typename T>
TPU_AVX512 TPU_INLINE void DealRow(const T* from, int64_t count, int64_t most, float* even, float* odd) {
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  for (int64_t q = 0; q < std::min(count, 2 * most); q += 2 * kLanes) {
    const int64_t left = count - q;
    const __m512 low = Load(from + q, First(left));
    const __m512 high = left > kLanes ? Load(from + q + kLanes, First(left - kLanes)) : _mm512_setzero_ps();
    const int64_t of_each = most - q / 2;
    _mm512_mask_storeu_ps(even + q / 2, First(std::min((left + 1) / 2, of_each)),
                          _mm512_permutex2var_ps(low, evens, high));
    _mm512_mask_storeu_ps(odd + q / 2, First(std::min(left / 2, of_each)), _mm512_permutex2var_ps(low, odds, high));
  }
}

// The other way round.
TPU_AVX512 TPU_INLINE void AlternateRow(const float* even, const float* odd, int64_t count, float* to) {
  const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  for (int64_t q = 0; q < count; q += kLanes) {
    const int64_t left = count - q;
    const __m512 a = Load(even + q / 2, First((left + 1) / 2)), b = Load(odd + q / 2, First(left / 2));
    _mm512_mask_storeu_ps(to + q, First(left), _mm512_permutex2var_ps(a, order, b));
  }
}

template <typename T>
TPU_AVX512 void Strips::Fill(const T* x, int64_t images, float* to) const {
  const int64_t image = rows_.in * cols_.in;
  for (int64_t i = 0; i < in_; ++i) {
    for (int64_t n = 0; n < images; ++n) {
      const T* const channel = x + (n * c_.in + i) * image;
      for (int64_t row = 0; row < std::min(rows_.in, rows_.kept * rows_.planes); ++row) {
        const T* const from = channel + row * cols_.in;
        float* const plane = to + Plane(i, row % rows_.planes, 0) + At(n, row / rows_.planes);
        if (cols_.planes == 1) {
          CopyRow(from, cols_.kept, plane);
        } else if (cols_.planes == 2) {
          DealRow(from, cols_.in, cols_.kept, plane, plane + plane_);
        } else {
          for (int64_t col = 0; col < std::min(cols_.in, cols_.kept * cols_.planes); ++col) {
            plane[col % cols_.planes * plane_ + col / cols_.planes] = static_cast<float>(from[col]);
          }
        }
      }
    }
  }
}

// to[o][at[v]..] = sum over the terms of x[at[v] + offset..] * w[o][weight].
template <int kCount, int kWide>
TPU_AVX512 void SumTerms(const std::vector<Term>& terms, const int32_t* at, const float* x, const float* w,
                         int64_t w_stride, float* to, int64_t to_stride) {
  __m512 sums[kCount][kWide];
  const float* from[kWide];
#pragma GCC unroll 8
  for (int v = 0; v < kWide; ++v) {
    from[v] = x + at[v];
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) sums[o][v] = _mm512_setzero_ps();
  }
  for (const Term& term : terms) {
    __m512 row[kWide];
#pragma GCC unroll 8
    for (int v = 0; v < kWide; ++v) row[v] = _mm512_loadu_ps(from[v] + term.offset);
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) {
      const __m512 weight = _mm512_set1_ps(w[o * w_stride + term.weight]);
#pragma GCC unroll 8
      for (int v = 0; v < kWide; ++v) sums[o][v] = _mm512_fmadd_ps(row[v], weight, sums[o][v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kWide; ++v) {
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) _mm512_storeu_ps(to + o * to_stride + at[v], sums[o][v]);
  }
}

template <int kCount>
void SumAllTerms(const std::vector<Term>& terms, const std::vector<int32_t>& at, const float* x, const float* w,
                 int64_t w_stride, float* to, int64_t to_stride) {
  constexpr int kWide = kCount == 1 ? kVectors : kVectors / 2;
  const int32_t *from = at.data(), *const end = from + at.size();
  for (; end - from >= kWide; from += kWide) SumTerms<kCount, kWide>(terms, from, x, w, w_stride, to, to_stride);
  if (kWide > 4 && end - from >= 4) {
    SumTerms<kCount, 4>(terms, from, x, w, w_stride, to, to_stride);
    from += 4;
  }
  if (end - from >= 2) {
    SumTerms<kCount, 2>(terms, from, x, w, w_stride, to, to_stride);
    from += 2;
  }
  if (from != end) SumTerms<kCount, 1>(terms, from, x, w, w_stride, to, to_stride);
}

TPU_AVX512 TPU_INLINE float SumOfLanes(__m512 v) {
  alignas(64) float lanes[kLanes];
  _mm512_store_ps(lanes, v);
  const __m256 halves = _mm256_add_ps(_mm256_load_ps(lanes), _mm256_load_ps(lanes + 8));
  const __m128 quarters = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
  const __m128 pairs = _mm_add_ps(quarters, _mm_movehl_ps(quarters, quarters));
  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)));
}

// w[o][weight] += sum over the positions of x[position + offset] * y[o][position], for kTerms terms and kCount o. Lanes
// that are no positions are zeros on both sides.
template <int kTerms, int kCount>
TPU_AVX512 void SumPositions(const Term* terms, const Cover& cover, const float* x, const float* y, int64_t y_stride,
                             float* w, int64_t w_stride) {
  __m512 sums[kTerms][kCount];
  const float* from[kTerms];
#pragma GCC unroll 13
  for (int t = 0; t < kTerms; ++t) {
    from[t] = x + terms[t].offset;
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) sums[t][o] = _mm512_setzero_ps();
  }
  for (size_t v = 0; v < cover.at.size(); ++v) {
    const int64_t at = cover.at[v];
    const __mmask16 lanes = cover.lanes[v];
    __m512 left[kCount];
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) left[o] = Load(y + o * y_stride + at, lanes);
#pragma GCC unroll 13
    for (int t = 0; t < kTerms; ++t) {
      const __m512 row = Load(from[t] + at, lanes);
#pragma GCC unroll 4
      for (int o = 0; o < kCount; ++o) sums[t][o] = _mm512_fmadd_ps(row, left[o], sums[t][o]);
    }
  }
#pragma GCC unroll 13
  for (int t = 0; t < kTerms; ++t) {
#pragma GCC unroll 4
    for (int o = 0; o < kCount; ++o) w[o * w_stride + terms[t].weight] += SumOfLanes(sums[t][o]);
  }
}

// By blocks of terms that are as alike as can be.
template <int kCount>
void SumAllPositions(const std::vector<Term>& terms, const Cover& cover, const float* x, const float* y,
                     int64_t y_stride, float* w, int64_t w_stride) {
  constexpr int64_t kMost = kCount == 1 ? kAlone : kTogether;
  static constexpr auto kKernels = []<int... kTerms>(std::integer_sequence<int, kTerms...>) {
    return std::array{SumPositions<kTerms + 1, kCount>...};
  }(std::make_integer_sequence<int, kMost>());
  const int64_t count = static_cast<int64_t>(terms.size()), blocks = CeilDiv(count, kMost);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first = count * b / blocks, size = count * (b + 1) / blocks - first;
    kKernels[static_cast<size_t>(size - 1)](terms.data() + first, cover, x, y, y_stride, w, w_stride);
  }
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

// The rows of a channel of y, from the sums of its phases.
TPU_AVX512 void WriteRows(const Strips& strips, const float* sums, int64_t stride, int64_t image, float* to) {
  const Axis &rows = strips.rows(), &cols = strips.cols();
  for (int64_t row = 0; row < rows.out; ++row) {
    const float* const from = sums + row % rows.phases * cols.phases * stride + strips.At(image, row / rows.phases);
    float* const y = to + row * cols.out;
    if (cols.phases == 1) {
      CopyRow(from, cols.out, y);
    } else if (cols.phases == 2) {
      AlternateRow(from, from + stride, cols.out, y);
    } else {
      for (int64_t col = 0; col < cols.out; ++col) y[col] = from[col % cols.phases * stride + col / cols.phases];
    }
  }
}

// A channel of an image of y, as its positions lie in a strip.
template <typename T>
TPU_AVX512 void LayOut(const Strips& strips, const T* y, int64_t image, float* to) {
  const int64_t cols = strips.cols().out;
  for (int64_t row = 0; row < strips.rows().out; ++row) CopyRow(y + row * cols, cols, to + strips.At(image, row));
}

}  // namespace

bool CanGoByGroups(const ConvStep& c) {
  if (c.in % c.groups != 0 || c.out % c.groups != 0 || c.in / c.groups > kMostInputs ||
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
      strips.Fill(x + (first * c.in + group * strips.in()) * x_image, images, padded.data());
      ForChannels(strips.out(), [&](int64_t out, int64_t count) {
        const int64_t channel = group * strips.out() + out;
        const auto sum = count == 1 ? SumAllTerms<1> : SumAllTerms<kOuts>;
        for (int64_t phase = 0; phase < phases; ++phase) {
          sum(terms[phase], (images == strips.images() ? whole : last)[phase].at, padded.data(),
              weight + channel * width, width, sums.data() + phase * positions, phases * positions);
        }
        for (int64_t n = 0; n < images; ++n) {
          for (int64_t o = 0; o < count; ++o) {
            WriteRows(strips, sums.data() + o * phases * positions, positions, n,
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
        strips.Fill(x + (first * c.in + group * strips.in()) * x_image, images, padded.data());
        ForChannels(strips.out(), [&](int64_t out, int64_t count) {
          for (int64_t o = 0; o < count; ++o) {
            const T* const channel = y + (first * c.out + group * strips.out() + out + o) * y_image;
            for (int64_t n = 0; n < images; ++n) {
              LayOut(strips, channel + n * c.out * y_image, n, left.data() + o * positions);
            }
          }
          const auto sum = count == 1 ? SumAllPositions<1> : SumAllPositions<kOuts>;
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
