// Pass split-concats: a concatenation of very many operands becomes one of concatenations.
//
// A kernel chooses among all operands at every element, and has a limit of values.
#include <algorithm>

#include "compiler/ir/dialect.h"
#include "compiler/passes/passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tpu {
namespace {

constexpr size_t kMostOperands = 128;

void Split(ir::ConcatOp op) {
  mlir::OpBuilder b(op);
  llvm::SmallVector<mlir::Value> operands(op.getInputs());
  while (operands.size() > kMostOperands) {
    llvm::SmallVector<mlir::Value> joined;
    for (mlir::ValueRange rest = operands; !rest.empty();) {
      const size_t n = std::min(kMostOperands, rest.size());
      joined.push_back(ir::ConcatOp::create(b, op.getLoc(), rest.take_front(n), op.getDim()));
      rest = rest.drop_front(n);
    }
    operands = std::move(joined);
  }
  op.getInputsMutable().assign(operands);
}

struct SplitConcats : mlir::PassWrapper<SplitConcats, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(SplitConcats)
  llvm::StringRef getArgument() const override { return "split-concats"; }
  llvm::StringRef getDescription() const override { return "Concatenate very many operands in parts"; }
  void runOnOperation() override {
    llvm::SmallVector<ir::ConcatOp> concats;
    getOperation().walk([&](ir::ConcatOp op) { concats.push_back(op); });
    for (ir::ConcatOp op : concats) Split(op);
  }
};

}  // namespace

std::unique_ptr<mlir::Pass> CreateSplitConcatsPass() { return std::make_unique<SplitConcats>(); }

}  // namespace tpu
