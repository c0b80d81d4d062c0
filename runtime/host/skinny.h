// Products with few rows (decoding: a token at a time of each sequence), which read B once and should run at the speed
// of memory. The matrix library reaches that for one row of f32, not for a few, and has no 16-bit floats.
//
// Called by gemm_block.cc on the pool's threads. AVX2 and AVX-512; elsewhere the library serves.
#pragma once

#include "runtime/host/gemm.h"

namespace tpu::host {

// Computes the block and returns true, or returns false where this is not the better way.
bool SkinnyBlock(const GemmBlock& block);

}  // namespace tpu::host
