// Convolutions without padding: positions of y that see the same taps of the window are multiplied together, images
// innermost, so that what lies outside of an image, or between elements that are spread, costs nothing.
//
// Called by conv.cc, for small images above all. Any thread; the pool helps.
#pragma once

#include "runtime/host/plan.h"

namespace tpu::host {

// Whether its tables of offsets are small enough.
bool CanGoByTaps(const ConvStep& step);

// T: float or BFloat16. The operands are those of RunConv.
template <typename T>
void ForwardByTaps(const ConvStep& step, const T* x, const T* w, float* y);
template <typename T>
void WeightByTaps(const ConvStep& step, const T* x, const T* y, float* w);

}  // namespace tpu::host
