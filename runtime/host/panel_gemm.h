// Products on one thread by panels: operands are packed into panels of a few rows and columns, and tiles of the result
// are summed in registers (Goto, van de Geijn: Anatomy of High-Performance Matrix Multiplication, 2008).
//
// Called by gemm.cc and gemm_block.cc. Triangles need AVX2 and FMA, whole blocks AVX-512, of bf16 AVX512-BF16; AMX is
// used where it is.
#pragma once

#include <cstdint>

#include "runtime/host/gemm.h"

namespace tpu::host {

// Small f32 products with a triangle, such as those of causal attention: the right side is packed once, then some rows
// at a time are multiplied exactly as far as the triangle asks. The matrix library packs both sides again for every
// block of rows, which here costs a third of the time.
bool PanelsServe(const GemmStep& step);

// Rows [row, row + rows) of one matrix of the batch; a, b, c: its first elements.
void MultiplyPanels(const GemmStep& step, const float* a, const float* b, float* c, int64_t row, int64_t rows);

// Whether panels are known to multiply whole blocks of f32 better than the matrix library: not on Intel's processors,
// for which MKL is written. On others it reaches 84 % of the multiply-adds that there are, this 95 %.
bool PanelsFirst();

// Computes the block and returns true, or returns false where this is not the better way, or not the block's method.
bool PanelBlock(const GemmBlock& block);

}  // namespace tpu::host
