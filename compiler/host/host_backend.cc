#include "compiler/host/host_backend.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "compiler/aten/registry.h"
#include "compiler/host/host_compiler.h"
#include "compiler/import/import.h"
#include "mlir/IR/MLIRContext.h"

namespace tpu::host {
namespace {

constexpr int kVersion = 1;  // raised when equal fragments compile to other bytes

class HostBackend : public CompilerBackend {
 public:
  absl::StatusOr<Program> Compile(const Fragment& fragment) override {
    mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
    auto module = ImportFragment(context, fragment);
    auto program = CompileModule(*module, fragment.StableKey());
    if (!program.ok()) return program;
    program->inputs.clear();
    for (const OperandType& input : fragment.inputs) program->inputs.push_back(input.type);
    return program;
  }
  bool CanLower(const Call& call) const override { return aten::CanLower(call); }
  bool IsBoundary(const Call& call) const override {
    // Products read their operands from memory.
    constexpr std::string_view kProducts[] = {"aten::mm",      "aten::addmm",  "aten::bmm",
                                              "aten::baddbmm", "aten::linear", "aten::matmul"};
    return std::find(std::begin(kProducts), std::end(kProducts), call.op) != std::end(kProducts);
  }
  bool StaticScalars(const std::string& op) const override { return aten::StaticScalars(op); }
  std::string Fingerprint() const override { return absl::StrCat("host-", kVersion, "-", __DATE__, "-", __TIME__); }
};

}  // namespace

std::unique_ptr<CompilerBackend> MakeHostBackend() { return std::make_unique<HostBackend>(); }

}  // namespace tpu::host
