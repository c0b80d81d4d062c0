#include "runtime/host/conv_taps.h"

#include <algorithm>
#include <vector>

#include "runtime/host/conv_words.h"
#include "runtime/host/narrow_float.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"

namespace tpu::host {
namespace {

constexpr int64_t kBlockBytes = 1 << 19;  // of a weight or of sums that are used again, of the second level cache

// A tap of the window or a position of y, and an element of x: what it meets, or how much further.
struct At {
  int64_t place, element;
};

// The element of x that position p sees through tap r, or none (-1).
int64_t ElementOf(const ConvStep::Dim& d, int64_t p, int64_t r) {
  const int64_t place = p * d.stride + r * d.dilation - d.low;
  return place >= 0 && place % d.spread == 0 && place / d.spread < d.in ? place / d.spread : -1;
}

// Positions that see the same taps, each so much further than the first.
struct Alike {
  std::vector<At> taps, positions;
};

std::vector<Alike> PositionsOf(const ConvStep::Dim& d) {
  std::vector<Alike> all;
  for (int64_t p = 0; p < d.out; ++p) {
    std::vector<At> taps;
    for (int64_t r = 0; r < d.kernel; ++r) {
      if (const int64_t element = ElementOf(d, p, r); element >= 0) taps.push_back({r, element});
    }
    const auto same = std::find_if(all.begin(), all.end(), [&](const Alike& alike) {
      return std::equal(taps.begin(), taps.end(), alike.taps.begin(), alike.taps.end(), [&](const At& a, const At& b) {
        return a.place == b.place && a.element - b.element == taps[0].element - alike.taps[0].element;
      });
    });
    if (same != all.end()) {
      same->positions.push_back({p, taps.empty() ? 0 : taps[0].element - same->taps[0].element});
    } else {
      all.push_back({taps, {{p, 0}}});
    }
  }
  return all;
}

// The positions that see an element through tap r, and which.
std::vector<At> SeenThrough(const ConvStep::Dim& d, int64_t r) {
  std::vector<At> positions;
  for (int64_t p = 0; p < d.out; ++p) {
    if (const int64_t element = ElementOf(d, p, r); element >= 0) positions.push_back({p, element});
  }
  return positions;
}

// Forward, of few images and spread elements: the images with zeros around them, so that positions differ in what they
// see only by where they lie between the elements. Products with zeros cost less there than products of few positions.
ConvStep Widened(const ConvStep& c) {
  constexpr int64_t kMostTimes = 4;
  if (c.kind != ConvStep::Kind::kForward || c.batch >= kHalfPanel || !IsSpread(c)) return c;
  ConvStep wide = c;
  for (ConvStep::Dim* d : {&wide.rows, &wide.cols}) {
    const int64_t last = (d->out - 1) * d->stride + (d->kernel - 1) * d->dilation - d->low;
    const int64_t before = d->low > 0 ? CeilDiv(d->low, d->spread) : 0;
    d->in += before + std::max<int64_t>(0, last / d->spread - (d->in - 1));
    d->low -= before * d->spread;
  }
  return Product({wide.rows.in, wide.cols.in}) <= kMostTimes * c.rows.in * c.cols.in ? wide : c;
}

// Offsets of a product (GatheredBlock).
struct TapProduct {
  std::vector<int32_t> depths, rows, cols, c_cols;

  GatheredBlock Block(DType dtype) const {
    GatheredBlock block{};
    block.dtype = dtype;
    block.n = static_cast<int64_t>(cols.size());
    block.k = static_cast<int64_t>(rows.size());
    block.depths = depths.data(), block.rows = rows.data(), block.cols = cols.data(), block.c_cols = c_cols.data();
    return block;
  }
};

// How many images are innermost. Forward, where tasks are parts of the batch too, fewer where y has few channels, so
// that there is work for all threads.
int64_t ImagesTogether(const ConvStep& c) {
  constexpr int64_t kUsual = 16, kMost = 32;
  const int64_t usual = c.batch <= kMost ? c.batch : kUsual;
  if (c.kind == ConvStep::Kind::kWeight) return usual;
  return std::clamp<int64_t>(c.batch * CeilDiv(c.out, kPanelRows) / NumThreads(), 1, usual);
}

// Of y's channels, how many a task takes whose weights or sums are `words` each.
int64_t ChannelsOfTask(int64_t out, int64_t words) {
  const int64_t fit = kBlockBytes / static_cast<int64_t>(sizeof(float)) / std::max<int64_t>(words, 1);
  const int64_t share = CeilDiv(out, 2 * NumThreads());
  return std::max<int64_t>(1, std::min(fit, share) / kPanelRows) * kPanelRows;
}

// A channel of some images, images innermost. copy(n, to): the words of image n.
template <typename Copy>
void ImagesInnermost(int64_t images, int64_t positions, float* to, const Copy& copy) {
  thread_local KeptWords kept;
  const Scratch words(kept, images * positions);
  for (int64_t n = 0; n < images; ++n) copy(n, words.data() + n * positions);
  TransposePanel(words.data(), positions, images, positions, to, images);
}

// The products of some images, whose channels are `channel` words: one for all positions that are alike.
std::vector<TapProduct> ProductsOfPositions(const ConvStep& c, int64_t images, int64_t channel) {
  const int64_t taps = c.rows.kernel * c.cols.kernel;
  const std::vector<Alike> rows = PositionsOf(c.rows), cols = PositionsOf(c.cols);
  std::vector<TapProduct> products;
  for (const Alike& row : rows) {
    for (const Alike& col : cols) {
      TapProduct& product = products.emplace_back();
      for (int64_t i = 0; i < c.in; ++i) {
        for (const At& r : row.taps) {
          for (const At& s : col.taps) {
            product.depths.push_back(static_cast<int32_t>(i * taps + r.place * c.cols.kernel + s.place));
            product.rows.push_back(static_cast<int32_t>(i * channel + (r.element * c.cols.in + s.element) * images));
          }
        }
      }
      for (const At& p : row.positions) {
        for (const At& q : col.positions) {
          for (int64_t n = 0; n < images; ++n) {
            product.cols.push_back(static_cast<int32_t>((p.element * c.cols.in + q.element) * images + n));
            product.c_cols.push_back(static_cast<int32_t>((p.place * c.cols.out + q.place) * images + n));
          }
        }
      }
    }
  }
  return products;
}

// The products of some images: one for each tap.
std::vector<TapProduct> ProductsOfTaps(const ConvStep& c, int64_t images) {
  std::vector<TapProduct> products;
  for (int64_t r = 0; r < c.rows.kernel; ++r) {
    for (int64_t s = 0; s < c.cols.kernel; ++s) {
      TapProduct& product = products.emplace_back();
      for (const At& p : SeenThrough(c.rows, r)) {
        for (const At& q : SeenThrough(c.cols, s)) {
          for (int64_t n = 0; n < images; ++n) {
            product.depths.push_back(static_cast<int32_t>((p.place * c.cols.out + q.place) * images + n));
            product.rows.push_back(static_cast<int32_t>(((p.element * c.cols.in + q.element) * images + n) * c.in));
          }
        }
      }
      for (int64_t i = 0; i < c.in; ++i) {
        product.cols.push_back(static_cast<int32_t>(i));
        product.c_cols.push_back(static_cast<int32_t>((r * c.cols.kernel + s) * c.in + i));
      }
    }
  }
  return products;
}

}  // namespace

bool CanGoByTaps(const ConvStep& step) {
  constexpr int64_t kMostOffsets = 1 << 24;
  const ConvStep c = Widened(InWords(step));
  const int64_t images = ImagesTogether(c);
  // More than there are: of positions that are not alike, and of what each of them sees.
  const auto seen = [](const ConvStep::Dim& d) {
    return Product({std::min(d.out, Product({d.spread, 2 * d.kernel + 1})), d.kernel});
  };
  const int64_t offsets = c.kind == ConvStep::Kind::kForward
                              ? Product({c.in, seen(c.rows), seen(c.cols)})
                              : Product({c.rows.kernel, c.cols.kernel, c.rows.out, c.cols.out, images});
  return std::max({offsets, Product({c.rows.out, c.cols.out, images}), Product({c.rows.out, c.rows.kernel}),
                   Product({c.cols.out, c.cols.kernel})}) <= kMostOffsets &&
         Product({CeilDiv(c.batch, images), c.in, c.rows.in * c.cols.in * images + kPanelRows}) <= kMostElements;
}

template <typename T>
void ForwardByTaps(const ConvStep& step, const T* x, const T* w, float* y) {
  const ConvStep c = Widened(InWords(step));
  const int64_t depth = c.in * c.rows.kernel * c.cols.kernel;
  const int64_t from_image = step.rows.in * step.cols.in;
  const int64_t x_image = c.rows.in * c.cols.in, y_image = c.rows.out * c.cols.out;
  const int64_t above = (step.rows.low - c.rows.low) / c.rows.spread;
  const int64_t before = above * c.cols.in + (step.cols.low - c.cols.low) / c.cols.spread;
  const int64_t together = ImagesTogether(c), blocks = CeilDiv(c.batch, together);
  const auto images_of = [&](int64_t block) { return std::min(together, c.batch - block * together); };
  // Channels whose strides were a power of two would share few lines of the cache.
  const int64_t channel = x_image * together + kPanelRows;
  const WeightWords<T> weight(step, w);
  thread_local KeptWords kept_x;
  const Scratch scratch(kept_x, blocks * c.in * channel);
  float* const innermost = scratch.data();
  ParallelFor(blocks * c.in, CeilDiv(1 << 13, channel), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t block = at / c.in, i = at % c.in;
      ImagesInnermost(images_of(block), x_image, innermost + at * channel, [&](int64_t n, float* to) {
        const WordRows<T> from(x + (block * together + n) * step.in * from_image, i, step.in, from_image);
        if (from_image == x_image) return from.Copy(0, 1, x_image, to);
        std::fill_n(to, x_image, 0.0f);
        for (int64_t row = 0; row < step.rows.in; ++row) {
          from.Copy(row * step.cols.in, 1, step.cols.in, to + before + row * c.cols.in);
        }
      });
    }
  });
  const std::vector<TapProduct> whole = ProductsOfPositions(c, together, channel);
  const int64_t rest = images_of(blocks - 1);
  const std::vector<TapProduct> last =
      rest == together ? std::vector<TapProduct>() : ProductsOfPositions(c, rest, channel);
  const int64_t outs = ChannelsOfTask(c.out, std::max(depth, y_image * together)), parts = CeilDiv(c.out, outs);
  ParallelFor(blocks * parts, 1, [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept;
    const Scratch sums(kept, outs * y_image * together);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t block = task / parts, images = images_of(block);
      const int64_t out = task % parts * outs, count = std::min(outs, c.out - out);
      for (const TapProduct& product : images == together ? whole : last) {
        GatheredBlock g = product.Block(c.dtype);
        g.m = count, g.lda = depth, g.ldc = y_image * images;
        g.a = weight.data() + out * depth, g.b = innermost + block * c.in * channel, g.c = sums.data();
        MultiplyGathered(g);
      }
      TransposePanel(sums.data(), images, count * y_image, images, y + (block * together * c.out + out) * y_image,
                     c.out * y_image);
    }
  });
}

template <typename T>
void WeightByTaps(const ConvStep& step, const T* x, const T* y, float* w) {
  const ConvStep c = InWords(step);
  const int64_t taps = c.rows.kernel * c.cols.kernel, width = c.in * taps;
  const int64_t x_image = c.rows.in * c.cols.in, y_image = c.rows.out * c.cols.out;
  const int64_t together = ImagesTogether(c);
  const int64_t channel = y_image * together + kPanelRows;
  // Positions outside, images between, channels inside: what is summed over is outside.
  thread_local KeptWords kept_x;
  const Scratch scratch(kept_x, c.batch * c.in * x_image);
  float* const inside = scratch.data();
  ParallelFor(c.batch, 1, [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept;
    const Scratch words(kept, c.in * x_image);
    for (int64_t n = begin; n < end; ++n) {
      const int64_t first = n / together * together, images = std::min(together, c.batch - first);
      WordRows<T>(x, n, step.batch, c.in * x_image).Copy(0, 1, c.in * x_image, words.data());
      TransposePanel(words.data(), x_image, c.in, x_image, inside + first * c.in * x_image + (n - first) * c.in,
                     images * c.in);
    }
  });
  const std::vector<TapProduct> whole = ProductsOfTaps(c, together);
  const int64_t rest = c.batch % together;
  const std::vector<TapProduct> last = rest == 0 ? std::vector<TapProduct>() : ProductsOfTaps(c, rest);
  const int64_t outs = ChannelsOfTask(c.out, std::max(width, channel));
  ParallelFor(CeilDiv(c.out, outs), 1, [&](int64_t begin, int64_t end) {
    thread_local KeptWords kept, kept_y;
    const Scratch sums(kept, outs * width), left(kept_y, outs * channel);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t out = task * outs, count = std::min(outs, c.out - out);
      for (int64_t first = 0; first < c.batch; first += together) {
        const int64_t images = std::min(together, c.batch - first);
        for (int64_t o = 0; o < count; ++o) {
          ImagesInnermost(images, y_image, left.data() + o * channel, [&](int64_t n, float* to) {
            WordRows<T>(y, first + n, step.batch, c.out * y_image).Copy((out + o) * y_image, 1, y_image, to);
          });
        }
        for (const TapProduct& product : images == together ? whole : last) {
          GatheredBlock g = product.Block(c.dtype);
          g.accumulate = first > 0;
          g.m = count, g.lda = channel, g.ldc = width;
          g.a = left.data(), g.b = inside + first * c.in * x_image, g.c = sums.data();
          MultiplyGathered(g);
        }
      }
      for (int64_t o = 0; o < count; ++o) {
        TransposePanel(sums.data() + o * width, c.in, taps, c.in, w + (out + o) * width, taps);
      }
    }
  });
}

template void ForwardByTaps(const ConvStep&, const float*, const float*, float*);
template void ForwardByTaps(const ConvStep&, const BFloat16*, const BFloat16*, float*);
template void WeightByTaps(const ConvStep&, const float*, const float*, float*);
template void WeightByTaps(const ConvStep&, const BFloat16*, const BFloat16*, float*);

}  // namespace tpu::host
