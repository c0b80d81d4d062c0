// Convolutions whose windows lie apart as products of matrices (gemm.h): an image is one where the window has one
// element and takes every position, or is copied into one, in which each element of x is found at most once. Where
// elements are spread, those are multiplied by all taps, and what they give is added up.
//
// Called by conv.cc. Any thread; the pool helps.
#pragma once

#include "runtime/host/plan.h"

namespace tpu::host {

// Whether elements are spread, and each by itself can be multiplied by all taps.
bool CanSpread(const ConvStep& step);

// Whether it can be done so, faster than by panels of elements gathered where they are.
bool BetterByProducts(const ConvStep& step);

// The operands are those of RunConv.
void RunProducts(const ConvStep& step, const void* a, const void* b, float* c);

}  // namespace tpu::host
