// tpu-opt: any pass of the compiler on a text file, in the manner of mlir-opt. `--list-lowered` prints the operators
// that have a lowering; `--emit-stablehlo FILE` prints each function of the file as the StableHLO module it becomes.
#include <cstdio>
#include <cstring>

#include "compiler/aten/registry.h"
#include "compiler/host/pipeline.h"
#include "compiler/ir/dialect.h"
#include "compiler/passes/run_passes.h"
#include "compiler/stablehlo/emit.h"
#include "compiler/stablehlo/pipeline.h"
#include "llvm/Support/SourceMgr.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

namespace {

int EmitStablehlo(const mlir::DialectRegistry& registry, const char* file) {
  mlir::MLIRContext context(registry);
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::parseSourceFile<mlir::ModuleOp>(file, &context);
  if (!module) return 1;
  mlir::PassManager passes(&context);
  tpu::stablehlo::BuildStablehloPipeline(passes);
  absl::Status status = tpu::RunPasses(passes, *module, "tpu-opt");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  int failed = status.ok() ? 0 : 1;
  for (mlir::func::FuncOp function : module->getOps<mlir::func::FuncOp>()) {
    absl::StatusOr<tpu::pjrt::Module> emitted = tpu::stablehlo::EmitModule(function);
    if (emitted.ok()) {
      std::fputs(emitted->text.c_str(), stdout);
    } else {
      std::fprintf(stderr, "%s: %s\n", function.getName().str().c_str(), emitted.status().ToString().c_str());
      failed = 1;
    }
  }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list-lowered") == 0) {
    for (const std::string& name : tpu::aten::LoweredOperators()) std::puts(name.c_str());
    return 0;
  }
  mlir::DialectRegistry registry;
  registry.insert<tpu::ir::TpuDialect, mlir::func::FuncDialect>();
  if (argc == 3 && std::strcmp(argv[1], "--emit-stablehlo") == 0) return EmitStablehlo(registry, argv[2]);
  tpu::host::RegisterHostPasses();
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "tpu-opt\n", registry));
}
