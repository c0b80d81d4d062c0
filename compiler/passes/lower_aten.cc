#include "compiler/passes/lower_aten.h"

#include "compiler/aten/registry.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/PatternMatch.h"

namespace tpu {
namespace {

struct LowerAten : mlir::PassWrapper<LowerAten, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(LowerAten)
  explicit LowerAten(bool host_kernels) : host_kernels_(host_kernels) {}

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
        (void)aten::Lower(op, rewriter, host_kernels_);
      }
    }
  }

 private:
  const bool host_kernels_;
};

}  // namespace

std::unique_ptr<mlir::Pass> CreateLowerAtenPass(bool host_kernels) { return std::make_unique<LowerAten>(host_kernels); }

}  // namespace tpu
