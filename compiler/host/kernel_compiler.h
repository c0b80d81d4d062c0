// Loop nest -> object code, with one process-wide cache: equal kernels of different fragments are compiled once.
//
// Any thread.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/host/kernel_emitter.h"
#include "runtime/host/plan.h"

namespace tpu::host {

struct CompiledKernel {
  KernelCode code;
  KernelShape shape;
  std::vector<int64_t> parameters;
};
// Fills the module and says its shape.
using KernelWriter = std::function<KernelShape(llvm::Module&, KernelNumbers*)>;
// `open`: a number that is a parameter of the code, so that kernels which differ in that alone share it.
absl::StatusOr<CompiledKernel> CompileKernel(const KernelWriter& write, std::optional<int64_t> open);
// One code for a kernel at several sizes, each with parameters of its own. FailedPrecondition where the kernels differ
// in more than numbers.
absl::StatusOr<std::vector<CompiledKernel>> CompileKernelFamily(const std::vector<KernelWriter>& write);

}  // namespace tpu::host
