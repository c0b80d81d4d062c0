// The compiler of the embedded device: fragment -> tpu dialect -> fused kernels -> object code + plan.
//
// Named only by the composition root (bindings) and the tools.
#pragma once

#include <memory>

#include "compiler/backend.h"
#include "runtime/host/code_loader.h"

namespace tpu::host {

std::unique_ptr<CompilerBackend> MakeHostBackend();
std::unique_ptr<CodeLoader> MakeObjectLoader();

}  // namespace tpu::host
