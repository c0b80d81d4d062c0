// LLVM IR -> position-independent object code for this machine's CPU.
//
// Called by the kernel compiler on compile threads; each call uses its own LLVMContext, so calls never share state.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "llvm/IR/Module.h"
#include "llvm/Target/TargetMachine.h"

namespace tpu::host {

// The native target, initialised once; a new machine for each compile because a TargetMachine is not thread-safe.
absl::StatusOr<std::unique_ptr<llvm::TargetMachine>> MakeTargetMachine();

// How many bits the widest vector register has: 256 with AVX2, 512 with AVX-512, 128 otherwise.
int VectorBits();

// Optimises and emits. The kernels arrive as explicit vector code, so the pipeline only cleans up (no vectoriser).
absl::StatusOr<std::string> EmitObject(llvm::Module& module);

}  // namespace tpu::host
