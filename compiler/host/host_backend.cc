#include "compiler/host/host_backend.h"

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/aten/registry.h"
#include "compiler/build_id.h"
#include "compiler/host/candidates.h"
#include "compiler/host/family.h"
#include "compiler/host/host_compiler.h"
#include "compiler/host/object_code.h"
#include "compiler/host/vector_library.h"
#include "compiler/import/import.h"
#include "mlir/IR/MLIRContext.h"

namespace tpu::host {
namespace {

class HostBackend : public CompilerBackend {
 public:
  absl::StatusOr<Program> Compile(const Fragment& fragment, const Tuning& tuning) override {
    mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
    auto module = ImportFragment(context, fragment);
    auto program = CompileModule(*module, fragment.StableKey(), tuning, &cancelled_);
    if (!program.ok()) return program;
    program->inputs.clear();
    for (const OperandType& input : fragment.inputs) program->inputs.push_back(input.type);
    return program;
  }
  std::vector<Candidate> Candidates(const Program& program, const Tuning& tuning,
                                    absl::Span<const KernelTime> measured) const override {
    return host::Candidates(program, tuning, measured);
  }
  Families families() const override { return Families::kOpen; }
  absl::StatusOr<Program> CompileFamily(absl::Span<const Fragment> fragments, absl::Span<const SizePoint> points,
                                        bool places) override {
    mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
    const ImportedFragments imported = ImportFragments(context, fragments);
    return host::CompileFamily(imported.modules, points, places, fragments[0].StableKey(), cancelled_);
  }
  bool HoldsCalls() const override { return true; }
  bool CanLower(const Call& call) const override { return aten::CanLower(call, /*host_kernels=*/true); }
  std::vector<TensorType> Bounds(const Call& call) const override { return aten::Bounds(call, true); }
  bool IsBoundary(const Call& call) const override { return aten::IsBoundary(call.op); }
  bool StaticScalars(const std::string& op) const override { return aten::StaticScalars(op); }
  void Cancel() override { cancelled_ = true; }
  std::string Fingerprint() const override {
    static const std::string fingerprint =
        absl::StrCat("host-", BuildId(), HasVectorLibrary() ? "-" : "-scalar-", CodeTarget());
    return fingerprint;
  }

 private:
  std::atomic<bool> cancelled_ = false;
};

}  // namespace

std::unique_ptr<CompilerBackend> MakeHostBackend() { return std::make_unique<HostBackend>(); }

}  // namespace tpu::host
