// Runs a GemmStep: splits it over the pool's threads, each of which computes its blocks alone, by panels or by the
// single-threaded matrix library, or shares large products by panels (panel_gemm.h).
//
// Called by executable.cc, with operands that were checked against their slots, conv.cc and host_device.cc;
// gemm_block.cc computes one block. Any thread.
#pragma once

#include <cstdint>

#include "runtime/host/plan.h"

namespace tpu::host {

// a, b, c: the slots' first bytes; the step's offsets are added here.
void RunGemm(const GemmStep& step, const void* a, const void* b, void* c);

// Rows [begin, end) of C, numbered batch * m + row, on the calling thread alone.
void RunGemmRows(const GemmStep& step, const void* a, const void* b, void* c, int64_t begin, int64_t end);

// What the positions [begin, end) of the depth, numbered batch * k + position and all of one matrix, give is added to
// C, which the first of them clears; on the calling thread alone. Of a product that SumsOverTiles (tile_cut.h).
void RunGemmDepth(const GemmStep& step, const void* a, const void* b, void* c, int64_t begin, int64_t end);

// Rows of the whole batch, positions of its depth, its matrices.
int64_t RowsOf(const GemmStep& step);
int64_t DepthsOf(const GemmStep& step);
int64_t BatchesOf(const GemmStep& step);

// C = op(A) op(B) (+ C) for one block, row-major.
struct GemmBlock {
  DType dtype, out_dtype;
  bool trans_a, trans_b, accumulate;
  Method method = Method::kSuggested;
  int64_t m, n, k, lda, ldb, ldc;
  const void* a;
  const void* b;
  void* c;
};
void MultiplyBlock(const GemmBlock& block);  // on the calling thread alone

}  // namespace tpu::host
