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
struct KernelWriter {
  // Fills the module and says its shape.
  std::function<KernelShape(llvm::Module&, KernelNumbers&)> write;
  // A number that is a parameter of the code, so that kernels which differ in that alone share it.
  std::optional<int64_t> open = {};
};
// How a loop nest is written. The operations it is made of must outlive the writer.
KernelWriter NestWriter(LoopNest nest, const Tuning& tuning);
absl::StatusOr<CompiledKernel> CompileKernel(const KernelWriter& writer);
// One code for a kernel at several sizes, each with parameters of its own; CompileKernel's where all sizes are alike.
// FailedPrecondition where the kernels differ in more than numbers.
absl::StatusOr<std::vector<CompiledKernel>> CompileKernelFamily(const std::vector<KernelWriter>& writers);

}  // namespace tpu::host
