// Pass lower-aten: recorded ATen calls become primitives where a lowering exists; the others stay, as host calls. Where
// host_kernels, so do those whose host kernel is better than their lowering, but for the tunable ones that consist of
// primitives which `tuned` accepts.
#pragma once

#include <memory>

#include "compiler/aten/registry.h"
#include "mlir/Pass/Pass.h"

namespace tpu {

std::unique_ptr<mlir::Pass> CreateLowerAtenPass(bool host_kernels = true, aten::Accepts tuned = nullptr);

}  // namespace tpu
