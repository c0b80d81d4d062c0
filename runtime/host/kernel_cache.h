// The process's loaded kernels by content key: equal kernels of different programs share one copy of their code.
//
// Used by executable.cc. Holds kernels weakly: code is unmapped with the last executable that uses it. Any thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/host/code_loader.h"
#include "runtime/host/plan.h"

namespace tpu::host {

absl::StatusOr<std::shared_ptr<LoadedKernel>> LoadKernel(const KernelCode& code, CodeLoader* loader);

}  // namespace tpu::host
