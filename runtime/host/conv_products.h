// Convolutions whose windows lie apart as products of matrices (gemm.h): an image is one where the window has one
// element and takes every position, or is copied into one, in which each element of x is found at most once.
//
// Called by conv.cc. Any thread; the pool helps.
#pragma once

#include "runtime/host/plan.h"

namespace tpu::host {

// Whether the windows lie apart, and products are faster than panels of elements gathered where they are.
bool BetterByProducts(const ConvStep& step);

// The operands are those of RunConv.
void RunProducts(const ConvStep& step, const void* a, const void* b, float* c);

}  // namespace tpu::host
