// tpu-opt: any pass of the compiler on a text file, in the manner of mlir-opt. `--list-lowered` prints the operators
// that have a lowering.
#include <cstdio>
#include <cstring>

#include "compiler/aten/registry.h"
#include "compiler/host/pipeline.h"
#include "compiler/ir/dialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list-lowered") == 0) {
    for (const std::string& name : tpu::aten::LoweredOperators()) std::puts(name.c_str());
    return 0;
  }
  mlir::DialectRegistry registry;
  registry.insert<tpu::ir::TpuDialect, mlir::func::FuncDialect>();
  tpu::host::RegisterHostPasses();
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "tpu-opt\n", registry));
}
