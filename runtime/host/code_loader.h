// How the host device turns object code into a callable function without knowing LLVM: the composition root gives it
// a loader (compiler/host/object_loader.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tpu::host {

using KernelFunction = void (*)(void** pointers, int64_t begin, int64_t end);

// Keeps the code mapped while it lives.
class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;
  virtual KernelFunction function() const = 0;
};

class CodeLoader {
 public:
  virtual ~CodeLoader() = default;
  // Any thread. Loads position-independent object code with the symbol "kernel".
  virtual absl::StatusOr<std::shared_ptr<LoadedKernel>> Load(const std::string& object) = 0;
};

}  // namespace tpu::host
