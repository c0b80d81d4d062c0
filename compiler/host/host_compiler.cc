#include "compiler/host/host_compiler.h"

#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "compiler/host/pipeline.h"
#include "compiler/host/plan_builder.h"
#include "compiler/ir/types.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Pass/PassInstrumentation.h"
#include "mlir/Pass/PassManager.h"
#include "runtime/flags.h"

namespace tpu::host {
namespace {

// Writes the function after every pass to DIR/NAME.NN.PASS.mlir.
class DumpStages : public mlir::PassInstrumentation {
 public:
  DumpStages(std::string directory, std::string name) : directory_(std::move(directory)), name_(std::move(name)) {}
  void runAfterPass(mlir::Pass* pass, mlir::Operation* op) override {
    if (pass->getArgument().empty()) return;
    std::string text;
    llvm::raw_string_ostream stream(text);
    op->print(stream);
    std::ofstream(
        absl::StrCat(directory_, "/", name_, ".", number_ / 10, number_ % 10, ".", pass->getArgument().str(), ".mlir"))
        << text << "\n";
    ++number_;
  }

 private:
  const std::string directory_, name_;
  int number_ = 0;
};

}  // namespace

absl::StatusOr<Program> CompileModule(mlir::ModuleOp module, const std::string& name) {
  mlir::PassManager passes(module.getContext());
  BuildHostPipeline(passes);
  if (const std::string& dump = Flags::Get().dump; !dump.empty()) {
    ::mkdir(dump.c_str(), 0777);
    passes.addInstrumentation(std::make_unique<DumpStages>(dump, name));
  }
  std::string problems;
  mlir::ScopedDiagnosticHandler handler(module.getContext(), [&](mlir::Diagnostic& diagnostic) {
    absl::StrAppend(&problems, diagnostic.str(), "; ");
    return mlir::success();
  });
  if (mlir::failed(passes.run(module))) return absl::InternalError(absl::StrCat("compiling: ", problems));
  auto functions = module.getOps<mlir::func::FuncOp>();
  if (functions.empty()) return absl::InvalidArgumentError("no function in the module");
  mlir::func::FuncOp function = *functions.begin();
  auto plan = BuildPlan(function);
  if (!plan.ok()) return plan.status();
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
