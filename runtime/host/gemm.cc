#include "runtime/host/gemm.h"

#include <algorithm>
#include <cstring>

#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"
#include "runtime/host/rounding.h"

namespace tpu::host {
namespace {

// Multiply-adds worth a task of their own (some 5 us). Reading B takes as long as those of a few rows.
constexpr int64_t kTaskWork = 128 << 10;
constexpr int64_t kRowsOfReading = 4;
// A block of fewer rows spends too much of its time on packing B.
constexpr int64_t kLeastRows = 48;
constexpr int64_t kLeastCols = 64;
constexpr int64_t kLeastWideCols = 256;
// Rows of a block that follows the diagonal: by panels that follow it themselves, and of blocks that are cut whole, for
// each of which bf16's right side is packed anew.
constexpr int64_t kPanelRows = 384;
constexpr int64_t kTriangleRows = 32, kTriangleRowsOfPairs = 128;

// How a product is cut: blocks of rows x cols, numbered batch first, then row block, then column block.
struct Cutting {
  int64_t batches = 1;
  int64_t rows = 0, cols = 0;  // of a block
  int64_t row_blocks = 1, col_blocks = 1;
  int64_t grain = 1;  // blocks in a task, at least
};

int64_t TriangleRows(const GemmStep& g) {
  if (PanelsServe(g)) return kPanelRows;
  return g.dtype == DType::kBFloat16 ? kTriangleRowsOfPairs : kTriangleRows;
}

Cutting Cut(const GemmStep& g) {
  Cutting cut;
  cut.batches = BatchesOf(g);
  cut.rows = g.m;
  cut.cols = g.n;
  const double work = static_cast<double>(std::max(g.m, kRowsOfReading)) * static_cast<double>(g.n) *
                      static_cast<double>(std::max<int64_t>(g.k, 1));
  const int64_t most_blocks = static_cast<int64_t>(std::max(1.0, work / static_cast<double>(kTaskWork)));
  const int64_t threads = NumThreads();
  if (g.triangle != Triangle::kNone) {
    cut.rows = TriangleRows(g);
  } else if (threads > 1 && cut.batches < 2 * threads) {
    // Every block packs its operands: one product is cut into as many as there are threads. Of a few, none is left
    // over.
    const int64_t pieces = cut.batches <= 1 ? threads : CeilDiv(2 * threads, cut.batches);
    const int64_t wanted = std::min(most_blocks, pieces);
    // Few rows: blocks of columns, so that A, the smaller, is what every block packs again.
    const bool wide = g.n >= 2 * g.m && g.n >= kLeastWideCols * wanted;
    if (g.m >= kLeastRows * wanted && !wide) {
      cut.rows = RoundUp(CeilDiv(g.m, wanted), 16);
    } else if (wanted > 1) {
      cut.cols = std::max(kLeastCols, RoundUp(CeilDiv(g.n, wanted), 16));
    }
  }
  cut.rows = std::min(cut.rows, g.m);
  cut.cols = std::min(cut.cols, g.n);
  cut.row_blocks = CeilDiv(g.m, cut.rows);
  cut.col_blocks = CeilDiv(g.n, cut.cols);
  const double block_work = work / static_cast<double>(cut.row_blocks * cut.col_blocks);
  cut.grain = static_cast<int64_t>(std::max(1.0, static_cast<double>(kTaskWork) / std::max(block_work, 1.0)));
  return cut;
}

// Element offset of batch number `index`.
int64_t BatchOffset(const GemmStep& g, const std::vector<int64_t>& strides, int64_t index) {
  int64_t offset = 0;
  for (size_t d = g.batch.size(); d-- > 0;) {
    offset += index % g.batch[d] * strides[d];
    index /= g.batch[d];
  }
  return offset;
}

struct Range {
  int64_t begin, size;
};

// Rows x columns of one matrix of the batch: what a part of the depth gives.
GemmBlock BlockOf(const GemmStep& g, const void* a, const void* b, void* c, int64_t batch, Range rows, Range cols,
                  Range depth, bool accumulate) {
  const int64_t in_size = static_cast<int64_t>(SizeOf(g.dtype)), out_size = static_cast<int64_t>(SizeOf(g.out_dtype));
  const int64_t at_a = g.offset_a + BatchOffset(g, g.stride_a, batch) +
                       (g.trans_a ? depth.begin * g.lda + rows.begin : rows.begin * g.lda + depth.begin);
  const int64_t at_b = g.offset_b + BatchOffset(g, g.stride_b, batch) +
                       (g.trans_b ? cols.begin * g.ldb + depth.begin : depth.begin * g.ldb + cols.begin);
  const int64_t at_c = g.offset_c + BatchOffset(g, g.stride_c, batch) + rows.begin * g.ldc + cols.begin;
  return {.dtype = g.dtype,
          .out_dtype = g.out_dtype,
          .trans_a = g.trans_a,
          .trans_b = g.trans_b,
          .accumulate = accumulate,
          .method = g.method,
          .m = rows.size,
          .n = cols.size,
          .k = depth.size,
          .lda = g.lda,
          .ldb = g.ldb,
          .ldc = g.ldc,
          .a = static_cast<const char*>(a) + at_a * in_size,
          .b = static_cast<const char*>(b) + at_b * in_size,
          .c = static_cast<char*>(c) + at_c * out_size};
}

// Rows [row, row + rows) x columns [col, col + cols) of one matrix of the batch, less what a triangle saves.
void RunBlock(const GemmStep& g, const void* a, const void* b, void* c, int64_t batch, int64_t row, int64_t rows,
              int64_t col, int64_t cols) {
  if (PanelsServe(g)) {  // blocks have all columns
    return MultiplyPanels(g, static_cast<const float*>(a) + g.offset_a + BatchOffset(g, g.stride_a, batch),
                          static_cast<const float*>(b) + g.offset_b + BatchOffset(g, g.stride_b, batch),
                          static_cast<float*>(c) + g.offset_c + BatchOffset(g, g.stride_c, batch), row, rows);
  }
  int64_t depth = 0, end = g.k;  // of k
  if (g.triangle == Triangle::kResultLower) cols = std::min(cols, row + rows - col);
  if (g.triangle == Triangle::kLhsLower) end = std::min(end, row + rows);
  if (g.triangle == Triangle::kLhsUpper) depth = std::min(end, row);
  if (cols <= 0) return;
  MultiplyBlock(BlockOf(g, a, b, c, batch, {row, rows}, {col, cols}, {depth, end - depth}, g.accumulate));
}

// Few large matrices, one after the other by all threads.
bool RunTogether(const GemmStep& g, const void* a, const void* b, void* c) {
  const int64_t batches = BatchesOf(g);
  if (g.triangle != Triangle::kNone || batches >= 2 * NumThreads()) return false;
  for (int64_t batch = 0; batch < batches; ++batch) {
    const GemmBlock block = BlockOf(g, a, b, c, batch, {0, g.m}, {0, g.n}, {0, g.k}, g.accumulate);
    if (!PanelsTogether(block)) return false;  // the first, or none: they have one size
  }
  return true;
}

}  // namespace

int64_t BatchesOf(const GemmStep& g) {
  int64_t batches = 1;
  for (int64_t size : g.batch) batches *= size;
  return batches;
}

int64_t RowsOf(const GemmStep& step) { return step.m * BatchesOf(step); }

int64_t DepthsOf(const GemmStep& step) { return step.k * BatchesOf(step); }

void RunGemm(const GemmStep& g, const void* a, const void* b, void* c) {
  if (g.n == 0 || RowsOf(g) == 0) return;
  if (RunTogether(g, a, b, c)) return;
  const Cutting cut = Cut(g);
  const int64_t per_batch = cut.row_blocks * cut.col_blocks;
  ParallelFor(cut.batches * per_batch, cut.grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % per_batch / cut.col_blocks * cut.rows, col = i % cut.col_blocks * cut.cols;
      RunBlock(g, a, b, c, i / per_batch, row, std::min(cut.rows, g.m - row), col, std::min(cut.cols, g.n - col));
    }
  });
}

void RunGemmRows(const GemmStep& g, const void* a, const void* b, void* c, int64_t begin, int64_t end) {
  if (g.n == 0) return;
  const int64_t most = g.triangle == Triangle::kNone ? g.m : TriangleRows(g);
  while (begin < end) {
    const int64_t row = begin % g.m, rows = std::min({most, g.m - row, end - begin});
    RunBlock(g, a, b, c, begin / g.m, row, rows, 0, g.n);
    begin += rows;
  }
}

void RunGemmDepth(const GemmStep& g, const void* a, const void* b, void* c, int64_t begin, int64_t end) {
  const int64_t batch = begin / g.k, depth = begin % g.k, last = depth + end - begin;
  if (depth == 0) {
    const int64_t size = static_cast<int64_t>(SizeOf(g.out_dtype));
    char* row = static_cast<char*>(c) + (g.offset_c + BatchOffset(g, g.stride_c, batch)) * size;
    for (int64_t i = 0; i < g.m; ++i, row += g.ldc * size) std::memset(row, 0, g.n * size);
  }
  Range rows{0, g.m};
  if (g.triangle == Triangle::kLhsUpper) rows.size = std::min(g.m, last);
  if (g.triangle == Triangle::kLhsLower) rows = {std::min(g.m, depth), g.m - std::min(g.m, depth)};
  if (rows.size > 0) MultiplyBlock(BlockOf(g, a, b, c, batch, rows, {0, g.n}, {depth, end - begin}, true));
}

}  // namespace tpu::host
