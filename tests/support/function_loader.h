// A CodeLoader for tests of the host device: "object code" is the name of a function given beforehand, so that plans
// run without a compiler.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "runtime/host/code_loader.h"

namespace tpu::host {

class FunctionLoader final : public CodeLoader {
 public:
  explicit FunctionLoader(std::map<std::string, KernelFunction> functions) : functions_(std::move(functions)) {}

  absl::StatusOr<std::shared_ptr<LoadedKernel>> Load(const std::string& object) override {
    auto it = functions_.find(object);
    if (it == functions_.end()) return absl::InvalidArgumentError("no such kernel: " + object);
    ++loads_;
    return std::make_shared<Kernel>(it->second);
  }
  int loads() const { return loads_; }

 private:
  class Kernel final : public LoadedKernel {
   public:
    explicit Kernel(KernelFunction function) : function_(function) {}
    KernelFunction function() const override { return function_; }

   private:
    KernelFunction function_;
  };

  const std::map<std::string, KernelFunction> functions_;
  std::atomic<int> loads_{0};
};

}  // namespace tpu::host
