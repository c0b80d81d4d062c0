// tpu.conv as a ConvStep, where the device has one for it: one or two spatial dims, f32 sums, groups of few channels or
// one group.
//
// Asked by the pipeline (which convolutions may be primitives) and by the plan builder.
#pragma once

#include <optional>

#include "compiler/ir/dialect.h"
#include "runtime/host/plan.h"

namespace tpu::host {

std::optional<ConvStep> PlanConv(ir::ConvOp conv);

// Not a convolution, or one that has a step.
bool IsHostConvolution(mlir::Operation* op);

}  // namespace tpu::host
