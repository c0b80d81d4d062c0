#include "compiler/import/import.h"

#include "compiler/ir/types.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tpu {
namespace {

struct ToAttribute {
  mlir::Builder b;
  mlir::Attribute operator()(std::monostate) { return b.getUnitAttr(); }
  mlir::Attribute operator()(bool v) { return b.getBoolAttr(v); }
  mlir::Attribute operator()(int64_t v) { return b.getI64IntegerAttr(v); }
  mlir::Attribute operator()(double v) { return b.getF64FloatAttr(v); }
  mlir::Attribute operator()(DType v) { return mlir::TypeAttr::get(ir::ElementType(b.getContext(), v)); }
  mlir::Attribute operator()(const std::string& v) { return b.getStringAttr(v); }
  mlir::Attribute operator()(const std::vector<int64_t>& v) { return b.getDenseI64ArrayAttr(v); }
  mlir::Attribute operator()(const std::vector<double>& v) { return b.getDenseF64ArrayAttr(v); }
  mlir::Attribute operator()(const std::vector<bool>& v) {
    return b.getDenseBoolArrayAttr(llvm::SmallVector<bool>(v.begin(), v.end()));
  }
};

mlir::Attribute ArgumentAttribute(mlir::MLIRContext* context, const CallArgument& argument) {
  switch (argument.kind) {
    case CallArgument::Kind::kTensor:
      return ir::TensorArgAttr::get(context, argument.first);
    case CallArgument::Kind::kScalar:
      return ir::ScalarArgAttr::get(context, argument.first);
    case CallArgument::Kind::kScalarList:
      return ir::ScalarListArgAttr::get(context, argument.first, argument.count);
    case CallArgument::Kind::kTensorList: {
      llvm::SmallVector<int64_t> absent;
      for (size_t i = 0; i < argument.absent.size(); ++i) {
        if (argument.absent[i]) absent.push_back(static_cast<int64_t>(i));
      }
      int64_t length = argument.absent.empty() ? argument.count : static_cast<int64_t>(argument.absent.size());
      return ir::TensorListArgAttr::get(context, argument.first, length, absent);
    }
    case CallArgument::Kind::kAttribute:
      break;
  }
  return std::visit(ToAttribute{mlir::Builder(context)}, argument.attribute);
}

ir::AtenOp ImportCall(mlir::OpBuilder& builder, const Call& call, mlir::ValueRange operands, int64_t number) {
  mlir::MLIRContext* context = builder.getContext();
  llvm::SmallVector<mlir::Attribute> arguments;
  for (const CallArgument& argument : call.arguments) arguments.push_back(ArgumentAttribute(context, argument));
  llvm::SmallVector<mlir::Type> results;
  for (const TensorType& type : call.results) results.push_back(ir::ToMlir(context, type));
  return ir::AtenOp::create(
      builder, builder.getUnknownLoc(), results, operands, builder.getStringAttr(call.op),
      builder.getArrayAttr(arguments), mlir::TypeAttr::get(ir::ElementType(context, call.promoted)),
      builder.getI64IntegerAttr(number), ir::PrecisionAttr::get(context, static_cast<ir::Precision>(call.precision)));
}

}  // namespace

mlir::OwningOpRef<mlir::ModuleOp> ImportFragment(mlir::MLIRContext& context, const Fragment& fragment) {
  context.loadDialect<ir::TpuDialect, mlir::func::FuncDialect>();
  mlir::OpBuilder builder(&context);
  mlir::Location loc = builder.getUnknownLoc();
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(loc);
  builder.setInsertionPointToEnd(module->getBody());

  llvm::SmallVector<mlir::Type> inputs, outputs;
  for (const OperandType& input : fragment.inputs) inputs.push_back(ir::ToMlir(&context, input.type));
  for (ValueId id : fragment.outputs) outputs.push_back(ir::ToMlir(&context, fragment.TypeOf(id)));
  auto function = mlir::func::FuncOp::create(builder, loc, "fragment", builder.getFunctionType(inputs, outputs));
  mlir::Block* entry = function.addEntryBlock();
  builder.setInsertionPointToStart(entry);

  std::vector<mlir::Value> values(fragment.num_results);
  auto value = [&](ValueId id) -> mlir::Value { return IsInput(id) ? entry->getArgument(InputIndex(id)) : values[id]; };
  for (size_t n = 0; n < fragment.nodes.size(); ++n) {
    const Node& node = fragment.nodes[n];
    llvm::SmallVector<mlir::Value> operands;
    for (ValueId id : fragment.OperandsOf(node)) operands.push_back(value(id));
    ir::AtenOp op = ImportCall(builder, *node.call, operands, static_cast<int64_t>(n));
    for (auto [i, result] : llvm::enumerate(op.getResults())) values[node.results_begin + i] = result;
  }
  llvm::SmallVector<mlir::Value> returned;
  for (ValueId id : fragment.outputs) returned.push_back(value(id));
  mlir::func::ReturnOp::create(builder, loc, returned);
  return module;
}

ImportedFragments ImportFragments(mlir::MLIRContext& context, absl::Span<const Fragment> fragments) {
  ImportedFragments imported;
  for (const Fragment& fragment : fragments) {
    imported.owned.push_back(ImportFragment(context, fragment));
    imported.modules.push_back(*imported.owned.back());
  }
  return imported;
}

}  // namespace tpu
