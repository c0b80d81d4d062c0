// Products by panels, on one thread but for PanelsTogether: operands are packed into panels of a few rows and columns,
// and tiles of the result are summed in registers (Goto, van de Geijn: Anatomy of High-Performance Matrix
// Multiplication, 2008).
//
// Called by gemm.cc, gemm_block.cc, conv*.cc and host_device.cc. They need AVX2 and FMA, and use AVX-512, AVX512-BF16
// and AMX where they are.
#pragma once

#include <cstdint>

#include "runtime/host/gemm.h"
#include "runtime/host/narrow_float.h"

namespace tpu::host {

// Small f32 products with a triangle, such as those of causal attention: the right side is packed once, then some rows
// at a time are multiplied exactly as far as the triangle asks. The matrix library packs both sides again for every
// block of rows, which here costs a third of the time.
bool PanelsServe(const GemmStep& step);

// Rows [row, row + rows) of one matrix of the batch; a, b, c: its first elements.
void MultiplyPanels(const GemmStep& step, const float* a, const float* b, float* c, int64_t row, int64_t rows);

// Whether panels are known to multiply whole blocks of f32 better than the matrix library: not on Intel's processors,
// for which MKL is written. On others with AVX-512 it reaches 84 % of the multiply-adds that there are, this 95 %; with
// AVX2 both about 90 %.
bool PanelsFirst();

// Computes the block and returns true, or returns false where this is not the better way, or not the block's method.
bool PanelBlock(const GemmBlock& block);

// The same of a large block by all threads in turns (turns.h): who is slower computes less of it.
bool PanelsTogether(const GemmBlock& block);

// C(i, j) (+)= sum over p of A(i, p) * B(p, j), where A(i, p) = a[i * lda + depths[p]], B(p, j) = b[rows[p] + cols[j]]
// and C(i, j) = c[i * ldc + c_cols[j]], all in words: an f32, or (`dtype`) a pair of bf16 that is multiplied by a pair;
// the sums are f32. Of no depth they are zero. Best where as many neighbours of cols and c_cols as a panel
// has (32, with AVX2 24; or the last 16) are consecutive.
struct GatheredBlock {
  DType dtype;
  bool accumulate;
  int64_t m, n, k, lda, ldc;
  const float* a;
  const int32_t* depths;
  const float* b;
  const int32_t* rows;
  const int32_t* cols;
  const int32_t* c_cols;
  float* c;
};
// Whether this machine has panels for such operands: f32 with AVX2, bf16 with AVX512-BF16.
bool PanelsGather(DType dtype);
void MultiplyGathered(const GatheredBlock& block);

// to[i]: the pair of even[i] and odd[i], or of even[i] and zero where `odd` is null.
void PairWords(const BFloat16* even, const BFloat16* odd, int64_t count, float* to);

// to[j * to_stride + i] = from[i * stride + j].
void TransposePanel(const float* from, int64_t stride, int64_t rows, int64_t cols, float* to, int64_t to_stride);

}  // namespace tpu::host
