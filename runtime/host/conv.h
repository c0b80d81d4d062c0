// Runs a ConvStep by products of panels whose right sides are gathered from a padded copy of the image, a few rows of
// it at a time (implicit im2col; Chetlur et al.: cuDNN, 2014), or tap by tap (conv_taps.h), or in groups
// (conv_groups.h), wide ones one after the other; where nothing slides, by products of matrices (gemm.h).
//
// Called by executable.cc; the compiler asks CanConvolve before it makes such a step. Any thread; the pool helps.
#pragma once

#include "runtime/host/plan.h"

namespace tpu::host {

// Whether this machine has the products, and sizes and windows are such that offsets stay small.
bool CanConvolve(const ConvStep& step);

// a, b, c: the step's slots.
void RunConv(const ConvStep& step, const void* a, const void* b, float* c);

}  // namespace tpu::host
