// Loop nest -> object code, with one process-wide cache: equal kernels of different fragments are compiled once.
//
// Any thread.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/host/kernel_emitter.h"
#include "runtime/host/plan.h"

namespace tpu::host {

struct CompiledKernel {
  KernelCode code;
  KernelShape shape;
};
absl::StatusOr<CompiledKernel> CompileKernel(const LoopNest& nest);
// The same for IR that a caller writes itself: `emit` fills the module and says its shape.
absl::StatusOr<CompiledKernel> CompileKernel(const std::function<KernelShape(llvm::Module&)>& emit);

}  // namespace tpu::host
