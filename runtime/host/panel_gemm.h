// Small f32 products with a triangle, such as those of causal attention, on one thread: the right side is packed once
// in panels of 16 columns, then 6 rows at a time are multiplied exactly as far as the triangle asks. The matrix library
// packs both sides again for every block of rows, which here costs a third of the time.
//
// Called by gemm.cc. Needs AVX2 and FMA; with AVX-512 the library's wider vectors win.
#pragma once

#include <cstdint>

#include "runtime/host/plan.h"

namespace tpu::host {

bool PanelsServe(const GemmStep& step);

// Rows [row, row + rows) of one matrix of the batch; a, b, c: its first elements.
void MultiplyPanels(const GemmStep& step, const float* a, const float* b, float* c, int64_t row, int64_t rows);

}  // namespace tpu::host
