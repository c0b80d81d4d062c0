// tpu-opt: any pass of the compiler on a text file, in the manner of mlir-opt. `--list-lowered` prints the operators
// that have a lowering; `--emit-stablehlo FILE` prints each function of the file as the StableHLO module it becomes;
// `--emit-exchanges RANKS` prints the programs in which so many devices exchange f32, bf16 and i32.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "compiler/aten/registry.h"
#include "compiler/host/pipeline.h"
#include "compiler/ir/dialect.h"
#include "compiler/passes/run_passes.h"
#include "compiler/stablehlo/emit.h"
#include "compiler/stablehlo/exchange.h"
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
  tpu::stablehlo::AddPrimitivePasses(passes);
  tpu::stablehlo::AddTargetPasses(passes);
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

bool IsBitwise(tpu::ReduceOp op) {
  return op == tpu::ReduceOp::kBitAnd || op == tpu::ReduceOp::kBitOr || op == tpu::ReduceOp::kBitXor;
}

// Of the stages of those verbs whose ranks never are alike the one that they run together, and of one the others.
int EmitExchanges(int ranks) {
  using tpu::Exchange, tpu::ReduceOp, tpu::Verb;
  int failed = 0;
  const auto emit = [&failed](const Exchange& exchange) {
    const absl::StatusOr<tpu::Program> program = tpu::stablehlo::CompileExchange(exchange);
    const auto module = program.ok() ? tpu::pjrt::Module::Parse(program->bytes) : program.status();
    if (module.ok()) {
      std::fputs(module->text.c_str(), stdout);
    } else {
      std::fprintf(stderr, "%s\n", module.status().ToString().c_str());
      failed = 1;
    }
  };
  constexpr int64_t kElements = 1000;
  for (tpu::DType dtype : {tpu::DType::kFloat32, tpu::DType::kBFloat16, tpu::DType::kInt32}) {
    const tpu::Strip one{{dtype, {kElements / 10, 10}}, 0, {kElements}};
    const std::vector<tpu::Strip> all(static_cast<size_t>(ranks), one);
    Exchange e{.dtype = dtype, .ranks = ranks, .block = kElements};
    for (Verb verb : {Verb::kAllReduce, Verb::kReduceScatter, Verb::kAllGather, Verb::kAllToAll}) {
      e.verb = verb;
      e.sources = tpu::BringsAll(verb) ? all : std::vector{one};
      e.targets = tpu::GetsAll(verb) ? all : std::vector{one};
      for (int op = 0; op <= static_cast<int>(tpu::Reduces(verb) ? ReduceOp::kPremulSum : ReduceOp::kSum); ++op) {
        e.op = static_cast<ReduceOp>(op);
        if (!IsBitwise(e.op) || IsInteger(dtype)) emit(e);
      }
    }
    e.op = ReduceOp::kSum;
    for (Verb verb : {Verb::kBroadcast, Verb::kScatter, Verb::kGather, Verb::kReduce, Verb::kSend}) {
      emit({.stage = Exchange::Stage::kMove,
            .verb = verb,
            .dtype = dtype,
            .ranks = verb == Verb::kSend ? 2 : ranks,
            .block = kElements});
    }
    emit({.stage = Exchange::Stage::kPack, .verb = Verb::kScatter, .dtype = dtype, .ranks = ranks, .block = kElements});
    emit({.stage = Exchange::Stage::kUnpack,
          .verb = Verb::kAllGather,
          .dtype = dtype,
          .ranks = ranks,
          .block = kElements + 1,
          .targets = all});
  }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list-lowered") == 0) {
    for (const std::string& name : tpu::aten::LoweredOperators()) std::puts(name.c_str());
    return 0;
  }
  if (argc == 3 && std::strcmp(argv[1], "--emit-exchanges") == 0) return EmitExchanges(std::atoi(argv[2]));
  mlir::DialectRegistry registry;
  registry.insert<tpu::ir::TpuDialect, mlir::func::FuncDialect>();
  if (argc == 3 && std::strcmp(argv[1], "--emit-stablehlo") == 0) return EmitStablehlo(registry, argv[2]);
  tpu::host::RegisterHostPasses();
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "tpu-opt\n", registry));
}
