#include "runtime/host/conv_taps.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/host/conv_words.h"
#include "runtime/host/narrow_float.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"

namespace tpu::host {
namespace {

constexpr int64_t kBlockBytes = 1 << 19;  // of a weight or of sums that are used again, of the second level cache
constexpr int64_t kRows = 8;              // of a panel

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

// Offsets of a product (GatheredBlock).
struct Product {
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

// How many images are innermost.
int64_t ImagesTogether(int64_t batch) {
  constexpr int64_t kUsual = 16, kMost = 32;
  return batch <= kMost ? batch : kUsual;
}

// Of y's channels, how many a task takes whose weights or sums are `words` each.
int64_t ChannelsOfTask(int64_t out, int64_t words) {
  const int64_t fit = kBlockBytes / static_cast<int64_t>(sizeof(float)) / std::max<int64_t>(words, 1);
  const int64_t share = CeilDiv(out, 2 * NumThreads());
  return std::max<int64_t>(1, std::min(fit, share) / kRows) * kRows;
}

// A channel of some images, images innermost. copy(n, to): the words of image n.
template <typename Copy>
void ImagesInnermost(int64_t images, int64_t positions, float* to, const Copy& copy) {
  thread_local std::vector<float> kept;
  float* const words = Scratch(kept, images * positions);
  for (int64_t n = 0; n < images; ++n) copy(n, words + n * positions);
  TransposePanel(words, positions, images, positions, to, images);
}

}  // namespace

template <typename T>
void ForwardByTaps(const ConvStep& step, const T* x, const T* w, float* y) {
  const ConvStep c = InWords(step);
  const int64_t taps = c.rows.kernel * c.cols.kernel, depth = c.in * taps;
  const int64_t x_image = c.rows.in * c.cols.in, y_image = c.rows.out * c.cols.out;
  const int64_t together = ImagesTogether(c.batch);
  // Channels whose strides were a power of two would share few lines of the cache.
  const int64_t channel = x_image * together + kRows;
  const float* const weight = WeightWords(step, w);
  const std::vector<Alike> rows = PositionsOf(c.rows), cols = PositionsOf(c.cols);
  thread_local std::vector<float> kept_x;
  float* const innermost = Scratch(kept_x, c.in * channel);
  std::vector<Product> products;
  int64_t made_for = 0;
  for (int64_t first = 0; first < c.batch; first += together) {
    const int64_t images = std::min(together, c.batch - first);
    ParallelFor(c.in, CeilDiv(1 << 13, channel), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        ImagesInnermost(images, x_image, innermost + i * channel, [&](int64_t n, float* to) {
          WordRows<T>(x + (first + n) * step.in * x_image, i, step.in, x_image).Copy(0, 1, x_image, to);
        });
      }
    });
    if (std::exchange(made_for, images) != images) {
      products.clear();
      for (const Alike& row : rows) {
        for (const Alike& col : cols) {
          Product& product = products.emplace_back();
          for (int64_t i = 0; i < c.in; ++i) {
            for (const At& r : row.taps) {
              for (const At& s : col.taps) {
                product.depths.push_back(static_cast<int32_t>(i * taps + r.place * c.cols.kernel + s.place));
                product.rows.push_back(
                    static_cast<int32_t>(i * channel + (r.element * c.cols.in + s.element) * images));
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
    }
    const int64_t outs = ChannelsOfTask(c.out, std::max(depth, y_image * images));
    ParallelFor(CeilDiv(c.out, outs), 1, [&](int64_t begin, int64_t end) {
      thread_local std::vector<float> kept;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t out = task * outs, count = std::min(outs, c.out - out);
        float* const sums = Scratch(kept, count * y_image * images);
        for (const Product& product : products) {
          GatheredBlock block = product.Block(c.dtype);
          block.m = count, block.lda = depth, block.ldc = y_image * images;
          block.a = weight + out * depth, block.b = innermost, block.c = sums;
          MultiplyGathered(block);
        }
        TransposePanel(sums, images, count * y_image, images, y + (first * c.out + out) * y_image, c.out * y_image);
      }
    });
  }
}

template <typename T>
void WeightByTaps(const ConvStep& step, const T* x, const T* y, float* w) {
  const ConvStep c = InWords(step);
  const int64_t taps = c.rows.kernel * c.cols.kernel, width = c.in * taps;
  const int64_t x_image = c.rows.in * c.cols.in, y_image = c.rows.out * c.cols.out;
  const int64_t together = ImagesTogether(c.batch);
  const int64_t channel = y_image * together + kRows;
  // Positions outside, images between, channels inside: what is summed over is outside.
  thread_local std::vector<float> kept_x;
  float* const inside = Scratch(kept_x, c.batch * c.in * x_image);
  ParallelFor(c.batch, 1, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> kept;
    float* const words = Scratch(kept, c.in * x_image);
    for (int64_t n = begin; n < end; ++n) {
      const int64_t first = n / together * together, images = std::min(together, c.batch - first);
      WordRows<T>(x, n, step.batch, c.in * x_image).Copy(0, 1, c.in * x_image, words);
      TransposePanel(words, x_image, c.in, x_image, inside + first * c.in * x_image + (n - first) * c.in,
                     images * c.in);
    }
  });
  const auto make = [&](int64_t images) {
    std::vector<Product> products;
    for (int64_t r = 0; r < c.rows.kernel; ++r) {
      const std::vector<At> rows = SeenThrough(c.rows, r);
      for (int64_t s = 0; s < c.cols.kernel; ++s) {
        const std::vector<At> cols = SeenThrough(c.cols, s);
        Product& product = products.emplace_back();
        for (const At& p : rows) {
          for (const At& q : cols) {
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
  };
  const std::vector<Product> whole = make(together), rest = make(c.batch % together);
  const int64_t outs = ChannelsOfTask(c.out, std::max(width, channel));
  ParallelFor(CeilDiv(c.out, outs), 1, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> kept, kept_y;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t out = task * outs, count = std::min(outs, c.out - out);
      float* const sums = Scratch(kept, count * width);
      float* const left = Scratch(kept_y, count * channel);
      for (int64_t first = 0; first < c.batch; first += together) {
        const int64_t images = std::min(together, c.batch - first);
        for (int64_t o = 0; o < count; ++o) {
          ImagesInnermost(images, y_image, left + o * channel, [&](int64_t n, float* to) {
            WordRows<T>(y, first + n, step.batch, c.out * y_image).Copy((out + o) * y_image, 1, y_image, to);
          });
        }
        for (const Product& product : images == together ? whole : rest) {
          GatheredBlock block = product.Block(c.dtype);
          block.accumulate = first > 0;
          block.m = count, block.lda = channel, block.ldc = width;
          block.a = left, block.b = inside + first * c.in * x_image, block.c = sums;
          MultiplyGathered(block);
        }
      }
      for (int64_t o = 0; o < count; ++o) {
        TransposePanel(sums + o * width, c.in, taps, c.in, w + (out + o) * width, taps);
      }
    }
  });
}

template void ForwardByTaps(const ConvStep&, const float*, const float*, float*);
template void ForwardByTaps(const ConvStep&, const BFloat16*, const BFloat16*, float*);
template void WeightByTaps(const ConvStep&, const float*, const float*, float*);
template void WeightByTaps(const ConvStep&, const BFloat16*, const BFloat16*, float*);

}  // namespace tpu::host
