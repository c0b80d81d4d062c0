// One fragment at several values of one size, or of two -> one program for all between them.
//
// Each step of the host compiler is taken at every size; kernels are written once, with what differs read from
// parameters (kernel_compiler), and the plans are joined (runtime/host/plan_family.h).
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "mlir/IR/BuiltinOps.h"
#include "runtime/polynomial.h"
#include "runtime/program.h"

namespace tpu::host {

// The modules are one function at these sizes, the largest last, or with windows at these places. FailedPrecondition
// where it is compiled differently at different sizes; Cancelled once `cancelled`.
absl::StatusOr<Program> CompileFamily(absl::Span<const mlir::ModuleOp> modules, absl::Span<const SizePoint> points,
                                      bool places, const std::string& name, const std::atomic<bool>& cancelled);

}  // namespace tpu::host
