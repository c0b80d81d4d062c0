#include "compiler/host/host_compiler.h"

#include "compiler/host/candidates.h"
#include "compiler/host/pipeline.h"
#include "compiler/host/plan_builder.h"
#include "compiler/ir/types.h"
#include "compiler/passes/run_passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Pass/PassManager.h"

namespace tpu::host {

absl::StatusOr<Program> CompileModule(mlir::ModuleOp module, const std::string& name, const Tuning& tuning,
                                      const std::atomic<bool>* cancelled) {
  mlir::PassManager passes(module.getContext());
  BuildHostPipeline(passes, tuning);
  if (absl::Status status = RunPasses(passes, module, name); !status.ok()) return status;
  auto functions = module.getOps<mlir::func::FuncOp>();
  if (functions.empty()) return absl::InvalidArgumentError("no function in the module");
  mlir::func::FuncOp function = *functions.begin();
  auto plan = BuildPlan(function, tuning, cancelled);
  if (!plan.ok()) return plan.status();
  TurnProducts(*plan, tuning.products);
  Program program;
  program.format = "host";
  program.bytes = plan->Serialize();
  for (mlir::Type type : function.getArgumentTypes()) {
    program.inputs.push_back(ir::FromMlir(mlir::cast<mlir::RankedTensorType>(type)));
  }
  for (mlir::Type type : function.getResultTypes()) {
    program.outputs.push_back(ir::FromMlir(mlir::cast<mlir::RankedTensorType>(type)));
  }
  return program;
}

}  // namespace tpu::host
