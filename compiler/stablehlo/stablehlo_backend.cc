#include "compiler/stablehlo/stablehlo_backend.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/aten/registry.h"
#include "compiler/build_id.h"
#include "compiler/import/import.h"
#include "compiler/ir/builder.h"
#include "compiler/ir/windows.h"
#include "compiler/passes/run_passes.h"
#include "compiler/stablehlo/emit.h"
#include "compiler/stablehlo/exchange.h"
#include "compiler/stablehlo/pad_sizes.h"
#include "compiler/stablehlo/pipeline.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"
#include "runtime/pjrt/padded.h"

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
  Families families() const override { return Families::kPadded; }
  absl::StatusOr<Program> CompileFamily(absl::Span<const Fragment> fragments, absl::Span<const SizePoint> points,
                                        bool) override {
    mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
    const ImportedFragments imported = ImportFragments(context, fragments);
    return CompilePadded(imported.modules, points, fragments.back().StableKey());
  }
  bool HoldsCalls() const override { return false; }
  bool CanLower(const Call& call) const override { return aten::CanLower(call, /*host_kernels=*/false); }
  std::vector<TensorType> Bounds(const Call& call) const override { return aten::Bounds(call, false); }
  bool IsBoundary(const Call&) const override { return false; }  // XLA fuses with products, too
  bool StaticScalars(const std::string& op) const override { return aten::StaticScalars(op); }
  std::string Fingerprint() const override { return absl::StrCat("stablehlo-", BuildId()); }
};

absl::StatusOr<mlir::func::FuncOp> FunctionOf(mlir::ModuleOp module) {
  auto functions = module.getOps<mlir::func::FuncOp>();
  if (functions.empty()) return absl::InvalidArgumentError("no function in the module");
  return *functions.begin();
}

absl::StatusOr<pjrt::Module> Emit(mlir::func::FuncOp function, const std::string& name) {
  absl::StatusOr<pjrt::Module> emitted = EmitModule(function);
  if (emitted.ok()) DumpStage(name, "stablehlo.mlir", emitted->text);
  return emitted;
}

Program ProgramOf(mlir::func::FuncOp function, const char* format, std::string bytes) {
  Program program{format, std::move(bytes), {}, {}};
  for (mlir::Type type : function.getArgumentTypes()) {
    program.inputs.push_back(ir::FromMlir(mlir::cast<mlir::RankedTensorType>(type)));
  }
  for (mlir::Type type : function.getResultTypes()) {
    program.outputs.push_back(ir::FromMlir(mlir::cast<mlir::RankedTensorType>(type)));
  }
  return program;
}

// How the dims of arguments or results follow the sizes.
absl::StatusOr<std::vector<pjrt::PaddedDims>> DimsOf(
    absl::Span<const mlir::func::FuncOp> functions, absl::Span<const SizePoint> points,
    llvm::function_ref<llvm::ArrayRef<mlir::Type>(mlir::func::FuncOp)> types_of) {
  std::vector<pjrt::PaddedDims> all;
  const llvm::ArrayRef<mlir::Type> like = types_of(functions.front());
  for (size_t v = 0; v < like.size(); ++v) {
    pjrt::PaddedDims& dims = all.emplace_back();
    for (int64_t d = 0; d < mlir::cast<mlir::RankedTensorType>(like[v]).getRank(); ++d) {
      std::vector<int64_t> sizes;
      for (mlir::func::FuncOp function : functions) {
        sizes.push_back(mlir::cast<mlir::RankedTensorType>(types_of(function)[v]).getDimSize(d));
      }
      const std::optional<Polynomial> dim = Polynomial::Through(points, sizes);
      if (!dim) return absl::FailedPreconditionError("a dim follows no polynomial of the sizes");
      dims.push_back(*dim);
    }
  }
  return all;
}

mlir::RankedTensorType InSteps(mlir::RankedTensorType type, const pjrt::PaddedDims& dims) {
  ir::Shape stored(type.getShape());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!dims[d].fixed()) stored[d] = StepOf(stored[d]);
  }
  return WithDims(type, stored);
}

// Arguments and results that follow sizes are stored in dims of the ladder, whatever the function works on: so it is
// for all programs.
void StoreInSteps(mlir::func::FuncOp function, const std::vector<pjrt::PaddedDims>& inputs,
                  const std::vector<pjrt::PaddedDims>& outputs) {
  mlir::OpBuilder builder(function.getBody());
  ir::Emitter e(builder, function.getLoc());
  for (size_t i = 0; i < inputs.size(); ++i) {
    mlir::BlockArgument argument = function.getArgument(i);
    const auto type = ir::TensorTypeOf(argument), stored = InSteps(type, inputs[i]);
    if (stored == type) continue;
    argument.setType(stored);
    const ir::Shape zeros(type.getRank(), 0), ones(type.getRank(), 1);
    const ir::Tensor part = ir::Slice(e.Wrap(argument), zeros, type.getShape(), ones);
    argument.replaceAllUsesExcept(part.value(), part.value().getDefiningOp());
  }
  auto returned = mlir::cast<mlir::func::ReturnOp>(function.getBody().front().getTerminator());
  builder.setInsertionPoint(returned);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ir::Tensor x = e.Wrap(returned.getOperand(i));
    const auto stored = InSteps(x.type(), outputs[i]);
    if (stored == x.type()) continue;
    const ir::Shape zeros(x.rank(), 0), ones(x.rank(), 1);
    auto part = x.value().getDefiningOp<ir::SliceOp>();
    if (part && part.getX().getType() == stored && part.getStart() == ir::Ints(zeros) &&
        part.getStride() == ir::Ints(ones)) {
      returned.setOperand(i, part.getX());  // what it is the beginning of
      continue;
    }
    ir::Shape high(stored.getShape());
    for (int64_t d = 0; d < x.rank(); ++d) high[d] -= x.size(d);
    returned.setOperand(i, ir::Pad(x, e.Constant(x.dtype(), 0), zeros, high, zeros).value());
  }
  function.setFunctionType(builder.getFunctionType(function.getBody().getArgumentTypes(), returned.getOperandTypes()));
}

}  // namespace

absl::StatusOr<Program> CompileModule(mlir::ModuleOp module, const std::string& name) {
  mlir::PassManager passes(module.getContext());
  AddPrimitivePasses(passes);
  AddTargetPasses(passes);
  if (absl::Status status = RunPasses(passes, module, name); !status.ok()) return status;
  absl::StatusOr<mlir::func::FuncOp> function = FunctionOf(module);
  if (!function.ok()) return function.status();
  absl::StatusOr<pjrt::Module> emitted = Emit(*function, name);
  if (!emitted.ok()) return emitted.status();
  return ProgramOf(*function, pjrt::kFormat, emitted->Serialize());
}

absl::StatusOr<Program> CompilePadded(absl::Span<const mlir::ModuleOp> modules, absl::Span<const SizePoint> points,
                                      const std::string& name) {
  std::vector<mlir::func::FuncOp> functions;
  for (size_t i = 0; i < modules.size(); ++i) {
    mlir::ModuleOp module = modules[i];
    mlir::PassManager passes(module.getContext());
    AddPrimitivePasses(passes);
    absl::StatusOr<mlir::func::FuncOp> function = FunctionOf(module);
    if (!function.ok()) return function.status();
    ir::KeepWindowsOf(*function);
    const std::string at = absl::StrCat(name, "-", absl::StrJoin(points[i], "-"));
    if (absl::Status status = RunPasses(passes, module, at); !status.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("at size ", absl::StrJoin(points[i], " by "), ": ", status.message()));
    }
    functions.push_back(*function);
  }
  if (absl::Status status = ir::CheckWindows(functions, points); !status.ok()) return status;
  absl::StatusOr<std::vector<pjrt::PaddedDims>> inputs =
      DimsOf(functions, points, [](mlir::func::FuncOp f) { return f.getFunctionType().getInputs(); });
  if (!inputs.ok()) return inputs.status();
  absl::StatusOr<std::vector<pjrt::PaddedDims>> outputs =
      DimsOf(functions, points, [](mlir::func::FuncOp f) { return f.getFunctionType().getResults(); });
  if (!outputs.ok()) return outputs.status();
  if (absl::Status status = PadSizes(functions, points); !status.ok()) return status;
  StoreInSteps(functions.back(), *inputs, *outputs);
  mlir::ModuleOp largest = modules.back();
  mlir::PassManager passes(largest.getContext());
  passes.addNestedPass<mlir::func::FuncOp>(mlir::createCSEPass());
  AddTargetPasses(passes);
  if (absl::Status status = RunPasses(passes, largest, name + "-padded"); !status.ok()) return status;
  absl::StatusOr<pjrt::Module> emitted = Emit(functions.back(), name + "-padded");
  if (!emitted.ok()) return emitted.status();
  pjrt::PaddedModule padded{*std::move(emitted), {}, *std::move(inputs), *std::move(outputs)};
  for (const SizePoint& point : points) padded.range.Reach(point);
  return ProgramOf(functions.back(), pjrt::kPaddedFormat, padded.Serialize());
}

std::unique_ptr<CompilerBackend> MakeStablehloBackend() { return std::make_unique<StablehloBackend>(); }

}  // namespace tpu::stablehlo
