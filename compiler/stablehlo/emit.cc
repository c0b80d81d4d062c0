#include "compiler/stablehlo/emit.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mlir/IR/OpDefinition.h"

namespace tpu::stablehlo {
namespace {

// The argument that `result` is an update of: reached through operations whose result may lie where an operand of the
// same type lay.
int UpdatedArgument(mlir::Value result, const std::vector<bool>& taken, int depth) {
  if (auto argument = mlir::dyn_cast<mlir::BlockArgument>(result)) {
    const int number = static_cast<int>(argument.getArgNumber());
    return taken[number] || argument.getType() != result.getType() ? -1 : number;
  }
  mlir::Operation* op = result.getDefiningOp();
  const bool in_place = op->hasTrait<mlir::OpTrait::Elementwise>() ||
                        mlir::isa<ir::UpdateSliceOp, ir::ScatterOp, ir::ScatterRowsOp, ir::ReshapeOp>(op);
  if (!in_place || depth == 0) return -1;
  for (mlir::Value operand : op->getOperands()) {
    if (operand.getType() != result.getType()) continue;
    if (int found = UpdatedArgument(operand, taken, depth - 1); found >= 0) return found;
  }
  return -1;
}

// For each of `results` the argument that it may be written over, or -1. An argument that is returned stays.
std::vector<int64_t> Donors(mlir::func::FuncOp function, llvm::ArrayRef<mlir::Value> results,
                            const pjrt::Module& module) {
  constexpr int kDepth = 12;
  std::vector<bool> taken(function.getNumArguments(), false);
  for (const pjrt::Module::Output& output : module.outputs) {
    if (output.is_input) taken[output.index] = true;
  }
  for (mlir::BlockArgument argument : function.getArguments()) {
    if (ir::TensorTypeOf(argument).getRank() == 0) taken[argument.getArgNumber()] = true;
  }
  std::vector<int64_t> donors;
  for (mlir::Value v : results) {
    donors.push_back(UpdatedArgument(v, taken, kDepth));
    if (donors.back() >= 0) taken[donors.back()] = true;
  }
  return donors;
}

absl::Status EmitOne(Emission& e, mlir::Operation& op) {
  if (auto call = mlir::dyn_cast<ir::AtenOp>(op)) {
    return absl::UnimplementedError(absl::StrCat(call.getName().str(), " has no lowering to StableHLO"));
  }
  if (EmitElementwise(e, &op) || EmitShape(e, &op) || EmitReduction(e, &op) || EmitIndex(e, &op)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("no StableHLO for ", op.getName().getStringRef().str()));
}

// The distinct values that the function computes and returns; the module learns where each output comes from.
llvm::SmallVector<mlir::Value> Results(mlir::func::ReturnOp returned, pjrt::Module& module) {
  llvm::SmallVector<mlir::Value> results;
  llvm::DenseMap<mlir::Value, uint32_t> number;
  for (mlir::Value v : returned.getOperands()) {
    if (auto argument = mlir::dyn_cast<mlir::BlockArgument>(v)) {
      module.outputs.push_back({true, argument.getArgNumber()});
      continue;
    }
    auto [it, inserted] = number.try_emplace(v, static_cast<uint32_t>(results.size()));
    if (inserted) results.push_back(v);
    module.outputs.push_back({false, it->second});
  }
  module.results = static_cast<uint32_t>(results.size());
  return results;
}

std::string Argument(Emission& e, mlir::BlockArgument argument, const pjrt::Module& module) {
  Val val{absl::StrCat("%arg", argument.getArgNumber()), Stored(ir::TensorTypeOf(argument))};
  std::string text = absl::StrCat(val.name, ": ", Text(val.type));
  for (size_t i = 0; i < module.donors.size(); ++i) {
    if (module.donors[i] == argument.getArgNumber()) absl::StrAppend(&text, " {tf.aliasing_output = ", i, " : i32}");
  }
  e.Set(argument, std::move(val));
  return text;
}

}  // namespace

absl::StatusOr<pjrt::Module> EmitModule(mlir::func::FuncOp function) {
  auto returned = mlir::cast<mlir::func::ReturnOp>(function.getBody().front().getTerminator());
  pjrt::Module module;
  const llvm::SmallVector<mlir::Value> values = Results(returned, module);
  module.donors = Donors(function, values, module);
  Emission e;
  std::vector<std::string> arguments;
  for (mlir::BlockArgument argument : function.getArguments()) arguments.push_back(Argument(e, argument, module));
  for (mlir::Operation& op : function.getBody().front().without_terminator()) {
    if (absl::Status status = EmitOne(e, op); !status.ok()) return status;
  }
  std::vector<Val> results;
  for (mlir::Value v : values) results.push_back(e.Of(v));
  module.checked = !e.checks.empty();
  if (module.checked) {
    Val any = e.checks[0];
    for (size_t i = 1; i < e.checks.size(); ++i) any = e.w.Or(any, e.checks[i]);
    results.push_back(any);
  }
  const auto name = [](std::string* out, const Val& v) { out->append(v.name); };
  const auto type = [](std::string* out, const Val& v) { out->append(Text(v.type)); };
  const std::string types = absl::StrJoin(results, ", ", type);
  e.w.Line(absl::StrCat("\"func.return\"(", absl::StrJoin(results, ", ", name), ") : (", types, ") -> ()"));
  module.text = absl::StrCat("module @", function.getName().str(), " {\n  func.func public @main(",
                             absl::StrJoin(arguments, ", "), ") -> (", types, ") {\n", e.w.Take(), "  }\n}\n");
  return module;
}

}  // namespace tpu::stablehlo
