#include "compiler/passes/lower_aten.h"

#include <utility>

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/PatternMatch.h"

namespace tpu {
namespace {

struct LowerAten : mlir::PassWrapper<LowerAten, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(LowerAten)
  LowerAten(bool host_kernels, aten::Accepts tuned) : host_kernels_(host_kernels), tuned_(std::move(tuned)) {}

  llvm::StringRef getArgument() const override { return "lower-aten"; }
  llvm::StringRef getDescription() const override { return "Replace recorded ATen calls by primitives"; }

  void runOnOperation() override {
    mlir::IRRewriter rewriter(&getContext());
    llvm::SmallVector<ir::AtenOp> calls;
    getOperation().walk([&](ir::AtenOp op) { calls.push_back(op); });
    // Last to first, so that a call whose results turn out unused is dropped rather than lowered.
    for (ir::AtenOp op : llvm::reverse(calls)) {
      if (op->use_empty()) {
        rewriter.eraseOp(op);
      } else {
        (void)aten::Lower(op, rewriter, host_kernels_, tuned_);
      }
    }
  }

 private:
  const bool host_kernels_;
  const aten::Accepts tuned_;
};

}  // namespace

std::unique_ptr<mlir::Pass> CreateLowerAtenPass(bool host_kernels, aten::Accepts tuned) {
  return std::make_unique<LowerAten>(host_kernels, std::move(tuned));
}

}  // namespace tpu
