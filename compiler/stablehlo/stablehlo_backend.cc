#include "compiler/stablehlo/stablehlo_backend.h"

#include "absl/strings/str_cat.h"
#include "compiler/aten/registry.h"
#include "compiler/build_id.h"
#include "compiler/import/import.h"
#include "compiler/passes/run_passes.h"
#include "compiler/stablehlo/emit.h"
#include "compiler/stablehlo/exchange.h"
#include "compiler/stablehlo/pipeline.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Pass/PassManager.h"

namespace tpu::stablehlo {
namespace {

class StablehloBackend : public CompilerBackend {
 public:
  absl::StatusOr<Program> Compile(const Fragment& fragment, const Tuning&) override {
    mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
    auto module = ImportFragment(context, fragment);
    return CompileModule(*module, fragment.StableKey());
  }
  absl::StatusOr<Program> CompileExchange(const Exchange& exchange) override {
    return stablehlo::CompileExchange(exchange);
  }
  bool HoldsCalls() const override { return false; }
  bool CanLower(const Call& call) const override { return aten::CanLower(call, /*host_kernels=*/false); }
  std::vector<TensorType> Bounds(const Call& call) const override { return aten::Bounds(call, false); }
  bool IsBoundary(const Call&) const override { return false; }  // XLA fuses with products, too
  bool StaticScalars(const std::string& op) const override { return aten::StaticScalars(op); }
  std::string Fingerprint() const override { return absl::StrCat("stablehlo-", BuildId()); }
};

}  // namespace

absl::StatusOr<Program> CompileModule(mlir::ModuleOp module, const std::string& name) {
  mlir::PassManager passes(module.getContext());
  BuildStablehloPipeline(passes);
  if (absl::Status status = RunPasses(passes, module, name); !status.ok()) return status;
  auto functions = module.getOps<mlir::func::FuncOp>();
  if (functions.empty()) return absl::InvalidArgumentError("no function in the module");
  mlir::func::FuncOp function = *functions.begin();
  absl::StatusOr<pjrt::Module> emitted = EmitModule(function);
  if (!emitted.ok()) return emitted.status();
  DumpStage(name, "stablehlo.mlir", emitted->text);
  Program program;
  program.format = pjrt::kFormat;
  program.bytes = emitted->Serialize();
  for (mlir::Type type : function.getArgumentTypes()) {
    program.inputs.push_back(ir::FromMlir(mlir::cast<mlir::RankedTensorType>(type)));
  }
  for (mlir::Type type : function.getResultTypes()) {
    program.outputs.push_back(ir::FromMlir(mlir::cast<mlir::RankedTensorType>(type)));
  }
  return program;
}

std::unique_ptr<CompilerBackend> MakeStablehloBackend() { return std::make_unique<StablehloBackend>(); }

}  // namespace tpu::stablehlo
