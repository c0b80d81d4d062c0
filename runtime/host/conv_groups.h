// Convolutions in groups of few channels, depthwise ones above all, and gradients of weights of few elements for each
// channel of y: no product of matrices is large enough there, so vectors of neighbouring positions of y are summed in
// registers, over the taps of a padded copy of some images.
//
// Called by conv.cc. Any thread; the pool helps.
#pragma once

#include "runtime/host/plan.h"

namespace tpu::host {

// Of sizes as CanConvolve wants them: whether the groups are few channels, better than by products of matrices, and the
// padded copies smaller than memory.
bool CanGoByGroups(const ConvStep& step);

// T: float or BFloat16. The operands are those of RunConv.
template <typename T>
void ForwardByGroups(const ConvStep& step, const T* x, const T* w, float* y);
template <typename T>
void WeightByGroups(const ConvStep& step, const T* x, const T* y, float* w);

}  // namespace tpu::host
