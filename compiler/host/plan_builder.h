// A fused module -> Plan: one step for each fusion, dot and call, kernels compiled to object code, memory planned.
//
// Called by the host backend and tests on compile threads.
#pragma once

#include "absl/status/statusor.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "runtime/host/plan.h"

namespace tpu::host {

// Unimplemented, naming the op, for what no step can do.
absl::StatusOr<Plan> BuildPlan(mlir::func::FuncOp function);

}  // namespace tpu::host
