// Pass lower-aten: recorded ATen calls become primitives where a lowering exists; the others stay, as host calls.
#pragma once

#include <memory>

#include "mlir/Pass/Pass.h"

namespace tpu {

std::unique_ptr<mlir::Pass> CreateLowerAtenPass();

}  // namespace tpu
