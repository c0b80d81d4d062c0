// Convolutions of 3 x 3 windows with four multiplications where a window slid over the image takes nine (Winograd's
// minimal filtering F(2 x 2, 3 x 3); Lavin, Gray: Fast Algorithms for Convolutional Neural Networks, 2015).
//
// Called by conv.cc. Sums are of fewer numbers than a sliding window's, and not less accurate.
#pragma once

#include "runtime/host/plan.h"

namespace tpu::host {

// Of what panels gather (CanConvolve): f32, of enough channels and positions.
bool BetterByWinograd(const ConvStep& step);
// False: something in the result is not finite, and a sliding window has it to do, since what is not finite spreads
// here to neighbours that do not see it.
bool ForwardByWinograd(const ConvStep& step, const float* x, const float* w, float* y);
bool WeightByWinograd(const ConvStep& step, const float* x, const float* y, float* w);

}  // namespace tpu::host
