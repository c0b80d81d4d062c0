// A fused module -> Plan: one step for each fusion, dot and call, kernels compiled to object code, memory planned.
//
// Called by the host backend and tests on compile threads.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compiler/host/kernel_compiler.h"
#include "compiler/host/loop_nest.h"
#include "compiler/ir/dialect.h"
#include "compiler/tuning.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "runtime/host/plan.h"

namespace tpu::host {

// How a fusion's or another generated step's code is come by.
using KernelSource = std::function<absl::StatusOr<CompiledKernel>(mlir::Operation* op, const KernelWriter& writer)>;

// Unimplemented, naming the op, for what no step can do; Cancelled in front of a kernel once `cancelled` (may be null).
absl::StatusOr<Plan> BuildPlan(mlir::func::FuncOp function, const Tuning& tuning, const std::atomic<bool>* cancelled);
// Plans of one function at several sizes, the largest last, to be joined: nothing in them but numbers depends on these.
absl::StatusOr<std::vector<Plan>> BuildOpenPlans(absl::Span<const mlir::func::FuncOp> sizes,
                                                 const KernelSource& kernels);

// Of a tpu.fusion: its loop nest, nullopt when it is none.
std::optional<LoopNest> NestOf(ir::FusionOp op);

}  // namespace tpu::host
