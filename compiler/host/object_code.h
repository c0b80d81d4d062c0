// LLVM IR -> position-independent object code for this machine's CPU.
//
// Called by the kernel compiler, on any thread that compiles; each call uses its own LLVMContext.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "llvm/IR/Module.h"

namespace tpu::host {

// How many bits the widest vector register has: 256 with AVX2, 512 with AVX-512, 128 otherwise.
int VectorBits();

// The processor that code is made for, as LLVM says it: code may be run where this is the same.
std::string CodeTarget();

// Optimises and emits. The kernels arrive as explicit vector code, so the pipeline only cleans up (no vectoriser).
absl::StatusOr<std::string> EmitObject(llvm::Module& module);

}  // namespace tpu::host
