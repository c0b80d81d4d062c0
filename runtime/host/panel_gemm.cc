#include "runtime/host/panel_gemm.h"

#include <algorithm>
#include <array>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "runtime/host/matrix_library.h"
#include "runtime/host/panel_kernels.h"
#include "runtime/host/panel_packing.h"
#include "runtime/host/parallel.h"
#include "runtime/host/rounding.h"
#include "runtime/host/turns.h"
#include "runtime/machine.h"

namespace tpu::host {
namespace {

constexpr int64_t kMostDepth = 576;  // words of a pass
constexpr int64_t kBlockRows = 128;  // of A, packed: 256 KiB, of the second level cache
constexpr int64_t kBlockCols = 576;  // of B, packed: 1.1 MiB
constexpr int64_t kSumRows = 384;    // of C, whose sums are kept in f32 where C is narrower, by kBlockCols
constexpr int64_t kMostPacked = kMostDepth * kBlockCols;
constexpr int64_t kMostRows = 8, kMostCols = 32;
// Of products that threads share. A thread has at least so many rows, for which it packs all of B, a multiple of the
// grain, and multiply-adds: of fewer there is no time to be left over.
constexpr int64_t kOwnRows = 128, kOwnRowsOfWide = 192, kGrainRows = 16, kOwnWork = 4 << 20;
constexpr int64_t kMostTiled = 4096;  // elements of the depth, of MultiplyTiles: of more, few columns of B fit
constexpr int64_t kLittleDepth = 128, kHeadRows = 64;  // of products whose few columns are whole vectors
constexpr int64_t kHalfPanel = 16;
constexpr int64_t kGatheredCols = 256;  // of B that is gathered, packed: every panel of A meets them in turn

// The products of a tile of some columns, with as many registers for a row as those need.
template <typename Kernel>
struct ByVectors {
  using Product = void (*)(int64_t depth, const float* a, int64_t lda, const float* b, float* c, int64_t ldc,
                           bool accumulate);
  static constexpr int64_t kLanes = Kernel::kLanes;
  static_assert(Kernel::kCols <= 3 * kLanes);
  static constexpr int kMost = Kernel::kCols / kLanes;
  static Product Rows(int64_t cols) {
    return cols <= kLanes       ? Kernel::template Rows<1>
           : cols <= 2 * kLanes ? Kernel::template Rows<2>
                                : Kernel::template Rows<kMost>;
  }
  static Product Columns(int64_t cols) {
    return cols <= kLanes       ? Kernel::template Columns<1>
           : cols <= 2 * kLanes ? Kernel::template Columns<2>
                                : Kernel::template Columns<kMost>;
  }
  static Product Packed(int64_t cols) {
    return cols <= kLanes       ? Kernel::template Packed<1>
           : cols <= 2 * kLanes ? Kernel::template Packed<2>
                                : Kernel::template Packed<kMost>;
  }
};

// How many of the columns that are left make a panel. The last but one gives some to the last: the sums of one register
// a row are too few to keep two units busy.
template <typename Kernel>
int64_t PanelWidth(int64_t left) {
  constexpr int64_t kCols = Kernel::kCols, kLanes = Kernel::kLanes;
  const int64_t width = std::min(kCols, left), after = left - width;
  return kCols > 2 * kLanes && after > 0 && after <= kLanes ? width - kLanes : width;
}

// Fewer than kRows rows, or columns that are no whole vectors: through copies that are padded.
template <typename Kernel>
void MultiplyEdge(const GemmStep& g, int64_t depth, const float* a, const float* b, float* c, int64_t rows,
                  int64_t cols, bool accumulate, float* scratch) {
  constexpr int64_t kRows = Kernel::kRows, kCols = Kernel::kCols;
  alignas(64) float sums[kRows * kCols];
  Pack<kRows, 1>(a, g.lda, !g.trans_a, depth, rows, depth, scratch);
  ByVectors<Kernel>::Columns(cols)(depth, scratch, kRows, b, sums, kCols, false);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      float& to = c[i * g.ldc + j];
      to = accumulate ? to + sums[i * kCols + j] : sums[i * kCols + j];
    }
  }
}

// This thread's own, aligned; kept, since such products come by the thousand.
float* Scratch() {
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t(64)); }
  };
  thread_local const std::unique_ptr<float, Free> scratch(static_cast<float*>(::operator new[](
      (kMostPacked + std::max(kMostPacked / kMostCols * kMostRows, kMostDepth * kBlockRows)) * sizeof(float),
      std::align_val_t(64))));
  return scratch.get();
}

template <typename Kernel>
void Multiply(const GemmStep& g, const float* a, const float* b, float* c, int64_t row, int64_t rows) {
  constexpr int64_t kRows = Kernel::kRows, kCols = Kernel::kCols;
  const int64_t last = row + rows;
  const int64_t first_depth = g.triangle == Triangle::kLhsUpper ? std::min(g.k, row) : 0;
  const int64_t last_depth = g.triangle == Triangle::kLhsLower ? std::min(g.k, last) : g.k;
  const int64_t cols = g.triangle == Triangle::kResultLower ? std::min(g.n, last) : g.n;
  const int64_t packed_depth = last_depth - first_depth;
  float* const packed = Scratch();
  float* panel = packed;
  for (int64_t col = 0, width = 0; col < cols; col += width, panel += kCols * packed_depth) {
    width = PanelWidth<Kernel>(cols - col);
    const float* from = b + (g.trans_b ? col * g.ldb + first_depth : first_depth * g.ldb + col);
    Pack<kCols, 1>(from, g.ldb, g.trans_b, packed_depth, width, packed_depth, panel);
  }
  panel = packed;
  for (int64_t col = 0, width = 0; col < cols; col += width, panel += kCols * packed_depth) {
    width = PanelWidth<Kernel>(cols - col);
    const auto by_rows = ByVectors<Kernel>::Rows(width), by_columns = ByVectors<Kernel>::Columns(width);
    for (int64_t i = row; i < last; i += kRows) {
      const int64_t height = std::min(kRows, last - i);
      if (g.triangle == Triangle::kResultLower && col >= i + height) continue;
      const int64_t begin = g.triangle == Triangle::kLhsUpper ? std::min(g.k, i) : 0;
      const int64_t end = g.triangle == Triangle::kLhsLower ? std::min(g.k, i + height) : g.k;
      float* const to = c + i * g.ldc + col;
      // In passes, which keep long sums accurate.
      for (int64_t p = begin; p == begin || p < end; p += kMostDepth) {
        const int64_t depth = std::min(kMostDepth, end - p);
        const bool add = g.accumulate || p > begin;
        const float* const left = a + (g.trans_a ? p * g.lda + i : i * g.lda + p);
        const float* const right = panel + (p - first_depth) * kCols;
        if (height < kRows || width % Kernel::kLanes != 0) {
          MultiplyEdge<Kernel>(g, depth, left, right, to, height, width, add, packed + kMostPacked);
        } else {
          (g.trans_a ? by_columns : by_rows)(depth, left, g.lda, right, to, g.ldc, add);
        }
      }
    }
  }
}

// Part of a matrix, brought into the second level cache while other work is done.
class Ahead {
 public:
  Ahead() = default;
  // rows x cols elements from `first`, or cols x rows where `transposed`, in `calls` portions.
  template <typename T>
  Ahead(const T* first, int64_t stride, bool transposed, int64_t rows, int64_t cols, int64_t calls)
      : row_(reinterpret_cast<const char*>(first)),
        stride_(stride * static_cast<int64_t>(sizeof(T))),
        rows_(transposed ? cols : rows),
        row_bytes_((transposed ? rows : cols) * static_cast<int64_t>(sizeof(T))),
        portion_(CeilDiv(rows_ * CeilDiv(row_bytes_, kLineBytes), calls)) {}
  void Fetch() {
    for (int64_t i = 0; i < portion_ && rows_ > 0; ++i) {
      _mm_prefetch(row_ + at_, _MM_HINT_T1);
      at_ += kLineBytes;
      if (at_ < row_bytes_) continue;
      at_ = 0, row_ += stride_, --rows_;
    }
  }

 private:
  static constexpr int64_t kLineBytes = kLineWords * kWordBytes;
  const char* row_ = nullptr;
  int64_t stride_ = 0, rows_ = 0, row_bytes_ = 0, portion_ = 0, at_ = 0;
};

template <typename Kernel>
int64_t PassesOf(const GemmBlock& g) {
  return CeilDiv(g.k, Kernel::kElements * Kernel::kDepth);
}

// C = (C where `accumulate`) + op(A) op(B), in stages that are passes of some columns. Each rounds to Out: there is
// more than one pass only into f32.
template <typename Kernel, typename Out>
void MultiplyWhole(const GemmBlock& g, Out* c, int64_t ldc, bool accumulate, Walk walk) {
  using T = typename Kernel::Element;
  constexpr int64_t kRows = Kernel::kRows, kCols = Kernel::kCols;
  constexpr int64_t kElements = Kernel::kElements, kPass = kElements * Kernel::kDepth;
  static_assert(Kernel::kDepth <= kMostDepth && kBlockRows % kRows == 0 && kBlockCols % kCols == 0);
  const T* const a = static_cast<const T*>(g.a);
  const T* const b = static_cast<const T*>(g.b);
  float* const packed_b = Scratch();
  float* const packed_a = packed_b + kMostPacked;
  alignas(64) float edge[kRows * kCols];
  // Rows that consist of whole words are read where they lie, which hides what it takes to fetch them.
  const bool in_place = Kernel::kInPlace && !g.trans_a && g.k % kElements == 0 && g.lda % kElements == 0 &&
                        reinterpret_cast<uintptr_t>(a) % alignof(float) == 0;
  const auto left = [&](int64_t row, int64_t p) { return a + (g.trans_a ? p * g.lda + row : row * g.lda + p); };
  const auto right = [&](int64_t p, int64_t col) { return b + (g.trans_b ? col * g.ldb + p : p * g.ldb + col); };
  Ahead next_a, next_b;  // what is packed next
  const int64_t passes = PassesOf<Kernel>(g);
  int64_t packed_stage = -1;
  while (walk.Next()) {
    const int64_t col = walk.stage() / passes * kBlockCols, cols = std::min(kBlockCols, g.n - col);
    const int64_t p = walk.stage() % passes * kPass;
    const int64_t depth = std::min(kPass, g.k - p), next_depth = std::min(kPass, g.k - p - depth);
    const int64_t words = CeilDiv(depth, kElements);
    const bool add = accumulate || p > 0, packs = walk.stage() != packed_stage;
    packed_stage = walk.stage();
    const int64_t row = walk.row(), rows = walk.rows(), next_rows = walk.rows_after();
    const int64_t tiles = CeilDiv(rows, kRows);
    for (int64_t i = in_place ? rows / kRows * kRows : 0; i < rows; i += kRows) {
      Kernel::PackLeft(left(row + i, p), g.lda, !g.trans_a, depth, std::min(kRows, rows - i), words,
                       packed_a + i * words);
    }
    if (!in_place) {
      const int64_t calls = tiles * CeilDiv(cols, kCols);
      next_a = next_rows > 0
                   ? Ahead(left(row + rows, p), g.lda, g.trans_a, next_rows, depth, calls)
                   : Ahead(left(walk.first_row(), p + depth), g.lda, g.trans_a, walk.first_rows(), next_depth, calls);
    }
    float* panel = packed_b;
    for (int64_t j = 0, width = 0; j < cols; j += width, panel += kCols * words) {
      width = PanelWidth<Kernel>(cols - j);
      const int64_t next_width = std::min(kCols, cols - j - width);
      const auto by_rows = ByVectors<Kernel>::Rows(width), packed = ByVectors<Kernel>::Packed(width);
      if (packs) Pack<kCols, kElements>(right(p, col + j), g.ldb, g.trans_b, depth, width, words, panel);
      if (packs && next_width > 0) {
        next_b = Ahead(right(p, col + j + width), g.ldb, g.trans_b, depth, next_width, tiles);
      } else if (next_rows == 0 && next_width == 0) {
        next_b = Ahead(right(p + depth, col), g.ldb, g.trans_b, next_depth, std::min(kCols, cols), tiles);
      }
      for (int64_t i = 0; i < rows; i += kRows) {
        next_a.Fetch();
        next_b.Fetch();
        Out* const to = c + (row + i) * ldc + col + j;
        const int64_t height = std::min(kRows, rows - i);
        const bool summed_in_place = std::is_same_v<Out, float> && height == kRows && width % Kernel::kLanes == 0;
        float* const tile = summed_in_place ? reinterpret_cast<float*>(to) : edge;
        const int64_t stride = summed_in_place ? ldc : kCols;
        const bool sum = summed_in_place && add;
        if (in_place && height == kRows) {
          const float* const rows_of_a = reinterpret_cast<const float*>(left(row + i, p));
          by_rows(words, rows_of_a, g.lda / kElements, panel, tile, stride, sum);
        } else {
          packed(words, packed_a + i * words, kRows, panel, tile, stride, sum);
        }
        if (!summed_in_place) Kernel::Put(edge, kCols, height, width, to, ldc, add);
      }
    }
    walk.Done();
  }
}

// The same of bf16 by the matrix unit: some rows of A stay in the first level cache, while all of B that is packed
// passes by from the second. Only one depth of kMostTiled rounds into bf16 once.
template <typename Out>
void MultiplyTiles(const GemmBlock& g, Out* c, int64_t ldc, bool accumulate) {
  using Kernel = AmxBlock;
  constexpr int64_t kRows = Kernel::kRows, kCols = Kernel::kCols, kPass = Kernel::kDepth;
  static_assert(kMostPacked / kPass * kRows + kPass * kRows <= kMostDepth * kBlockRows && kCols == kMostCols);
  const Kernel::Scope scope;
  float* const packed_b = Scratch();
  float* const packed_a = packed_b + kMostPacked;
  float* const sums = packed_a + kPass * kRows;
  alignas(64) float edge[kRows * kCols];
  for (int64_t first = 0; first < g.k; first += kMostTiled) {
    const int64_t depth = std::min(kMostTiled, g.k - first);
    const auto* const a = static_cast<const BFloat16*>(g.a) + (g.trans_a ? first * g.lda : first);
    const auto* const b = static_cast<const BFloat16*>(g.b) + (g.trans_b ? first : first * g.ldb);
    const int64_t words = RoundUp(CeilDiv(depth, int64_t{2}), Kernel::kGrain);
    const int64_t blocks = CeilDiv(g.n, kMostPacked / words / kCols * kCols);
    const int64_t block_cols = RoundUp(CeilDiv(g.n, blocks), kCols);
    // Rows of whole cache lines are read where they lie.
    const bool in_place = !g.trans_a && depth == 2 * words && g.lda % (2 * kLineWords) == 0 &&
                          reinterpret_cast<uintptr_t>(a) % (kLineWords * kWordBytes) == 0;
    const bool add = accumulate || first > 0;
    for (int64_t col = 0; col < g.n; col += block_cols) {
      const int64_t cols = std::min(block_cols, g.n - col), stride = RoundUp(cols, kCols);
      for (int64_t j = 0; j < cols; j += kCols) {
        const BFloat16* const from = b + (g.trans_b ? (col + j) * g.ldb : col + j);
        Pack<kCols, 2>(from, g.ldb, g.trans_b, depth, std::min(kCols, cols - j), words, packed_b + j * words);
      }
      for (int64_t row = 0; row < g.m; row += kRows) {
        const int64_t height = std::min(kRows, g.m - row);
        for (int64_t p = 0; p < words; p += kPass) {
          const int64_t pass = std::min(kPass, words - p);
          const BFloat16* const left = a + (g.trans_a ? 2 * p * g.lda + row : row * g.lda + 2 * p);
          const bool stays = in_place && height == kRows;
          if (!stays) {
            Kernel::PackLeft(left, g.lda, !g.trans_a, std::min(2 * pass, depth - 2 * p), height, pass, packed_a);
          }
          const float* const rows = stays ? reinterpret_cast<const float*>(left) : packed_a;
          for (int64_t j = 0; j < cols; j += kCols) {
            Out* const to = c + row * ldc + col + j;
            const int64_t width = std::min(kCols, cols - j);
            const bool in_result = std::is_same_v<Out, float> && height == kRows && width == kCols;
            const bool once = pass == words;
            float* const tile = in_result ? reinterpret_cast<float*>(to) : once ? edge : sums + j;
            const int64_t tile_stride = in_result ? ldc : once ? kCols : stride;
            Kernel::Rows(pass, rows, stays ? g.lda / 2 : pass, packed_b + j * words + p * kCols, tile, tile_stride,
                         p > 0 || (in_result && add));
            if (!in_result && p + pass == words) Kernel::Put(tile, tile_stride, height, width, to, ldc, add);
          }
        }
      }
    }
  }
}

template <typename Kernel, typename Out>
void MultiplyBy(const GemmBlock& g, Out* c, int64_t ldc, bool accumulate) {
  if constexpr (std::is_same_v<Kernel, AmxBlock>) {
    MultiplyTiles(g, c, ldc, accumulate);
  } else {
    const int64_t stages = CeilDiv(g.n, kBlockCols) * PassesOf<Kernel>(g);
    MultiplyWhole<Kernel>(g, c, ldc, accumulate, Walk(g.m, kBlockRows, stages));
  }
}

// Into 16-bit floats, rounded once: several passes are summed in f32. A stage has kBlockCols columns.
template <typename Kernel>
void MultiplySums(const GemmBlock& g, Walk walk) {
  using T = typename Kernel::Element;
  thread_local std::vector<float> sums(kSumRows * kBlockCols);
  while (walk.Next()) {
    const int64_t row = walk.row(), col = walk.stage() * kBlockCols;
    GemmBlock part = g;
    part.n = std::min(kBlockCols, g.n - col), part.m = walk.rows();
    part.a = static_cast<const T*>(g.a) + row * (g.trans_a ? 1 : g.lda);
    part.b = static_cast<const T*>(g.b) + col * (g.trans_b ? g.ldb : 1);
    MultiplyBy<Kernel>(part, sums.data(), part.n, false);
    Kernel::Put(sums.data(), part.n, part.m, part.n, static_cast<T*>(g.c) + row * g.ldc + col, g.ldc, g.accumulate);
    walk.Done();
  }
}

template <typename Kernel>
bool IsSummed(const GemmBlock& g) {
  constexpr int64_t kOnce = std::is_same_v<Kernel, AmxBlock> ? kMostTiled : Kernel::kElements * Kernel::kDepth;
  return g.out_dtype != DType::kFloat32 && g.k > kOnce;
}

// multiply(C) by the type of its elements: f32, or T as those of A and B.
template <typename T, typename Multiply>
void IntoResult(const GemmBlock& g, const Multiply& multiply) {
  g.out_dtype == DType::kFloat32 ? multiply(static_cast<float*>(g.c)) : multiply(static_cast<T*>(g.c));
}

template <typename Kernel>
void MultiplyAlone(const GemmBlock& g) {
  if (IsSummed<Kernel>(g)) return MultiplySums<Kernel>(g, Walk(g.m, kSumRows, CeilDiv(g.n, kBlockCols)));
  IntoResult<typename Kernel::Element>(g, [&](auto* c) { MultiplyBy<Kernel>(g, c, g.ldc, g.accumulate); });
}

template <typename Kernel>
void MultiplyTogether(const GemmBlock& g) {
  static_assert(kGrainRows % Kernel::kRows == 0);
  const int64_t threads = NumThreads(), groups = CeilDiv(g.n, kBlockCols);
  const bool sums = IsSummed<Kernel>(g);
  const int64_t chained = sums ? 1 : PassesOf<Kernel>(g);
  const int64_t half = RoundUp(CeilDiv(g.m, 2 * threads), kGrainRows);
  Turns turns(g.m, std::min(half, sums ? kSumRows : kBlockRows), kGrainRows, groups * chained, chained, threads);
  ParallelFor(threads, 1, [&](int64_t thread, int64_t) {
    Scratch();  // before a block is taken: this may fail
    const Walk walk(turns, thread);
    if (sums) return MultiplySums<Kernel>(g, walk);
    IntoResult<typename Kernel::Element>(g, [&](auto* c) { MultiplyWhole<Kernel>(g, c, g.ldc, g.accumulate, walk); });
  });
}

// Where the words of a packed panel's depth begin.
template <int64_t kWidth>
constexpr std::array<int32_t, kMostDepth> kPackedDepths = [] {
  std::array<int32_t, kMostDepth> depths{};
  for (size_t p = 0; p < depths.size(); ++p) depths[p] = static_cast<int32_t>(p * kWidth);
  return depths;
}();

// Some neighbouring columns of B, packed or read where they lie.
struct Panel {
  int64_t col, width;
  const float* b;
  const int32_t* rows;
};

// Some rows of A for Kernel: packed, or where they lie.
struct LeftRows {
  const float* a;
  int64_t stride;
  const int32_t* depths;
};

template <typename Kernel>
LeftRows LeftOf(const GatheredBlock& g, int64_t row, int64_t height, int64_t p, int64_t depth, int64_t words,
                float* packed) {
  const float* const a = g.a + row * g.lda;
  const int32_t* const depths = g.depths + p;
  if constexpr (Kernel::kGathers) {
    if (height == Kernel::kRows) return {a, g.lda, depths};
    for (int64_t e = 0; e < depth; ++e) {
      for (int64_t i = 0; i < Kernel::kRows; ++i) {
        packed[e * Kernel::kRows + i] = i < height ? a[i * g.lda + depths[e]] : 0;
      }
    }
    return {packed, 1, kPackedDepths<Kernel::kRows>.data()};
  } else {
    if (height == Kernel::kRows && words == depth && Consecutive(depths, depth)) return {a + depths[0], g.lda, nullptr};
    for (int64_t i = 0; i < Kernel::kRows; ++i) {
      for (int64_t e = 0; e < words; ++e) {
        packed[i * words + e] = i < height && e < depth ? a[i * g.lda + depths[e]] : 0;
      }
    }
    return {packed, words, nullptr};
  }
}

// The product of a tile.
template <typename Kernel>
void MultiplyTile(int64_t words, const LeftRows& left, const Panel& panel, float* c, int64_t ldc, bool accumulate) {
  if constexpr (!Kernel::kGathers) {
    Kernel::Rows(words, left.a, left.stride, panel.b, c, ldc, accumulate);
  } else {
    constexpr int kWhole = Kernel::kCols / Kernel::kLanes, kFew = kHalfPanel / Kernel::kLanes;
    const auto multiply =
        panel.width > kHalfPanel ? Kernel::template Gathered<kWhole> : Kernel::template Gathered<kFew>;
    multiply(words, left.a, left.stride, left.depths, panel.b, panel.rows, c, ldc, accumulate);
  }
}

template <typename Kernel>
void MultiplyGatheredBy(const GatheredBlock& g) {
  constexpr int64_t kRows = Kernel::kRows, kCols = Kernel::kCols, kGrain = Kernel::kGrain;
  static_assert(kGatheredCols * Kernel::kGatheredDepth <= kMostPacked && kCols > kHalfPanel);
  static_assert(Kernel::kGatheredDepth <= kMostDepth);
  if (g.k == 0) {
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; !g.accumulate && j < g.n; ++j) g.c[i * g.ldc + g.c_cols[j]] = 0;
    }
    return;
  }
  [[maybe_unused]] const typename Kernel::Scope scope;
  float* const packed_b = Scratch();
  float* const packed_a = packed_b + kMostPacked;
  alignas(64) float edge[kRows * kCols];
  // Passes of about one depth: a short last one would load and store as many sums as the others.
  const int64_t passes = CeilDiv(g.k, Kernel::kGatheredDepth);
  const int64_t pass = RoundUp(CeilDiv(g.k, passes), kGrain);
  for (int64_t col = 0; col < g.n; col += kGatheredCols) {
    const int64_t cols = std::min(kGatheredCols, g.n - col);
    for (int64_t p = 0; p < g.k; p += pass) {
      const int64_t depth = std::min(pass, g.k - p);
      const int64_t words = RoundUp(depth, kGrain);
      const bool add = g.accumulate || p > 0;
      std::array<Panel, kGatheredCols / kHalfPanel> panels;
      size_t count = 0;
      float* packed = packed_b;
      for (int64_t j = 0; j < cols; j += panels[count++].width) {
        const int32_t* const from = g.cols + col + j;
        const int64_t run = cols - j >= kCols ? kCols : kHalfPanel;
        if (Kernel::kGathers && cols - j >= run && Consecutive(from, run)) {
          panels[count] = {j, run, g.b + from[0], g.rows + p};
          continue;
        }
        panels[count] = {j, std::min(kCols, cols - j), packed, kPackedDepths<kCols>.data()};
        PackGathered<kCols>(g.b, g.rows + p, depth, from, panels[count].width, words, packed);
        packed += kCols * words;
      }
      for (int64_t i = 0; i < g.m; i += kRows) {
        const int64_t height = std::min(kRows, g.m - i);
        const LeftRows left = LeftOf<Kernel>(g, i, height, p, depth, words, packed_a);
        for (const Panel& panel : absl::MakeConstSpan(panels.data(), count)) {
          const int32_t* const to = g.c_cols + col + panel.col;
          const bool whole = panel.width == kCols || (Kernel::kGathers && panel.width == kHalfPanel);
          const bool summed_in_place = height == kRows && whole && Consecutive(to, panel.width);
          float* const tile = summed_in_place ? g.c + i * g.ldc + to[0] : edge;
          const int64_t stride = summed_in_place ? g.ldc : kCols;
          MultiplyTile<Kernel>(words, left, panel, tile, stride, summed_in_place && add);
          if (!summed_in_place) PutGathered(edge, kCols, height, to, panel.width, g.c + i * g.ldc, g.ldc, add);
        }
      }
    }
  }
}

}  // namespace

bool PanelsFirst() {
  static const bool intel = __builtin_cpu_is("intel");
  return UsableInstructions().avx2 && !(intel && GetMatrixLibrary().sgemm != nullptr);
}

bool PanelsServe(const GemmStep& g) {
  return UsableInstructions().avx2 && g.method != Method::kLibrary && g.triangle != Triangle::kNone &&
         g.dtype == DType::kFloat32 && g.out_dtype == DType::kFloat32 && g.k <= kMostPacked / kMostCols &&
         (g.n + kMostCols) * g.k <= kMostPacked;
}

void MultiplyPanels(const GemmStep& g, const float* a, const float* b, float* c, int64_t row, int64_t rows) {
  const auto multiply = UsableInstructions().avx512 ? Multiply<Avx512Block<float>> : Multiply<Avx2Block<float>>;
  multiply(g, a, b, c, row, rows);
}

bool PanelsGather(DType dtype) {
  return dtype == DType::kFloat32 ? UsableInstructions().avx2
                                  : dtype == DType::kBFloat16 && UsableInstructions().avx512_bf16;
}

void MultiplyGathered(const GatheredBlock& g) {
  const Instructions& usable = UsableInstructions();
  if (g.dtype == DType::kFloat32) {
    return usable.avx512 ? MultiplyGatheredBy<Avx512Block<float>>(g) : MultiplyGatheredBy<Avx2Block<float>>(g);
  }
  usable.amx_bf16 ? MultiplyGatheredBy<AmxBlock>(g) : MultiplyGatheredBy<PairsBlock>(g);
}

void PairWords(const BFloat16* even, const BFloat16* odd, int64_t count, float* to) {
  AlternateRows(even, odd, count, to);
}

void TransposePanel(const float* from, int64_t stride, int64_t rows, int64_t cols, float* to, int64_t to_stride) {
  TransposeBlock(from, stride, rows, cols, to, to_stride);
}

namespace {

// multiply(Kernel()) for the kernel by which panels serve the block, where they do.
template <typename Multiply>
bool ByKernel(const GemmBlock& g, const Multiply& multiply) {
  if (g.method == Method::kLibrary) return false;
  const Instructions& usable = UsableInstructions();
  // Panels that are half empty cost as much as full ones, which is still less than what it takes to widen and narrow a
  // few tiles for the library.
  const bool many = g.m >= 2 * kMostRows && g.k >= kMostCols && 4 * g.n >= 3 * RoundUp(g.n, kMostCols);
  // The last panel of AVX2 has as many vectors as it needs, and no library is better at few columns or little depth;
  // but rounding results of little depth costs more than the library's sums.
  const bool vectors = !usable.avx512 && g.n % Avx2Block<float>::kLanes == 0 && g.m >= 2 * Avx2Block<float>::kRows &&
                       (g.k <= kLittleDepth || g.m >= kHeadRows) &&
                       (g.out_dtype == DType::kFloat32 || g.k >= kMostCols);
  const bool full = many || vectors;
  const bool tiles = g.m >= AmxBlock::kRows && (g.k >= kMostCols || g.out_dtype == DType::kBFloat16);
  if (g.dtype == DType::kBFloat16 && usable.amx_bf16 && (full || tiles)) return multiply(AmxBlock());
  if (!full) return false;
  if (g.dtype == DType::kBFloat16 && usable.avx512_bf16) return multiply(PairsBlock());
  if (g.method == Method::kPanels ? !usable.avx2 : !PanelsFirst()) return false;
  const auto widened = [&]<typename T>(T) {
    return usable.avx512 ? multiply(Avx512Block<T>()) : multiply(Avx2Block<T>());
  };
  switch (g.dtype) {
    case DType::kFloat32:
      return widened(float());
    case DType::kBFloat16:
      return widened(BFloat16());
    case DType::kFloat16:
      return widened(_Float16());
    default:
      return false;
  }
}

}  // namespace

bool PanelBlock(const GemmBlock& g) {
  return ByKernel(g, [&]<typename Kernel>(Kernel) {
    MultiplyAlone<Kernel>(g);
    return true;
  });
}

bool PanelsTogether(const GemmBlock& g) {
  const int64_t threads = NumThreads();
  if (threads == 1 || g.m * g.n * g.k < kOwnWork * threads) return false;
  if (g.m < (g.n >= 2 * g.m ? kOwnRowsOfWide : kOwnRows) * threads) return false;
  return ByKernel(g, [&]<typename Kernel>(Kernel) {
    if constexpr (std::is_same_v<Kernel, AmxBlock>) {
      return false;
    } else {
      // A block of sums packs B through all of the depth.
      if (IsSummed<Kernel>(g) && g.m < 2 * kSumRows * threads) return false;
      MultiplyTogether<Kernel>(g);
      return true;
    }
  });
}

}  // namespace tpu::host
