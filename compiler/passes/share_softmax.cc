// Pass share-softmax: exp(x - logsumexp(x)), by which the gradient of attention rebuilds the softmax of its scores,
// becomes that softmax where the fragment has it from the forward pass: exponentials over their sum, the same rows
// zero.
#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"
#include "compiler/passes/passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace tpu {
namespace {

using mlir::Value;

// exp(x - row), where `row` is the same along what `repeated` says.
struct Exponentials {
  Value x, row;
  mlir::DictionaryAttr repeated;
};
std::optional<Exponentials> ExponentialsOf(Value v) {
  auto exp = v.getDefiningOp<ir::ExpOp>();
  auto shifted = exp ? exp->getOperand(0).getDefiningOp<ir::SubOp>() : nullptr;
  auto rows = shifted ? shifted->getOperand(1).getDefiningOp<ir::BroadcastOp>() : nullptr;
  if (!rows) return std::nullopt;
  return Exponentials{shifted->getOperand(0), rows->getOperand(0), rows->getAttrDictionary()};
}

Value SkipReshapes(Value v) {
  while (auto reshape = v.getDefiningOp<ir::ReshapeOp>()) v = reshape.getX();
  return v;
}

// `v` is zero where `tested` is that constant, else `otherwise`.
struct Guarded {
  Value tested, otherwise;
};
template <typename Constant>
std::optional<Guarded> GuardedBy(Value v, Constant constant) {
  auto select = v.getDefiningOp<ir::SelectOp>();
  auto compare = select ? select->getOperand(0).getDefiningOp<ir::CompareOp>() : nullptr;
  if (!compare || compare.getKind() != ir::CompareKind::eq || !mlir::matchPattern(compare.getRhs(), constant) ||
      !mlir::matchPattern(select->getOperand(1), mlir::m_AnyZeroFloat())) {
    return std::nullopt;
  }
  return Guarded{compare.getLhs(), select->getOperand(2)};
}

// The softmax of x that `op` is: sum and max are over the same rows, as their exponentials say.
Value SoftmaxAlike(ir::ExpOp op) {
  const auto whole = ExponentialsOf(op.getResult());
  const auto row = whole ? GuardedBy(whole->row, mlir::m_NegInfFloat()) : std::nullopt;
  if (!row || row->tested != row->otherwise) return {};
  Value sum, shift;
  if (!mlir::matchPattern(row->tested, mlir::m_Op<ir::AddOp>(mlir::m_Op<ir::LogOp>(mlir::matchers::m_Any(&sum)),
                                                             mlir::matchers::m_Any(&shift)))) {
    return {};
  }
  const auto greatest = GuardedBy(shift, mlir::m_NegInfFloat());
  auto max = greatest ? SkipReshapes(greatest->otherwise).getDefiningOp<ir::ReduceOp>() : nullptr;
  auto summed = SkipReshapes(sum).getDefiningOp<ir::ReduceOp>();
  if (!max || !summed || greatest->tested != greatest->otherwise || max.getKind() != ir::ReduceKind::max ||
      summed.getKind() != ir::ReduceKind::sum || max.getDims() != summed.getDims() || max.getX() != whole->x) {
    return {};
  }
  const auto part = ExponentialsOf(summed.getX());
  if (!part || part->x != whole->x || part->row != shift || part->repeated != whole->repeated) return {};
  for (mlir::Operation* user : summed.getX().getUsers()) {
    auto product = mlir::dyn_cast<ir::MulOp>(user);
    auto rows = product ? product->getOperand(1).getDefiningOp<ir::BroadcastOp>() : nullptr;
    if (!rows || rows->getAttrDictionary() != whole->repeated || !product->isBeforeInBlock(op)) continue;
    const auto inverse = GuardedBy(rows->getOperand(0), mlir::m_AnyZeroFloat());
    if (inverse && inverse->tested == sum &&
        mlir::matchPattern(inverse->otherwise, mlir::m_Op<ir::DivOp>(mlir::m_OneFloat(), mlir::matchers::m_Val(sum)))) {
      return product->getResult(0);
    }
  }
  return {};
}

struct ShareSoftmax : mlir::PassWrapper<ShareSoftmax, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ShareSoftmax)
  llvm::StringRef getArgument() const override { return "share-softmax"; }
  llvm::StringRef getDescription() const override { return "Rebuilt softmaxes are those that are there"; }
  void runOnOperation() override {
    mlir::Block& block = getOperation().getBody().front();
    for (auto op : llvm::to_vector(block.getOps<ir::ExpOp>())) {
      if (Value softmax = SoftmaxAlike(op)) op.getResult().replaceAllUsesWith(softmax);
    }
    for (mlir::Operation& op : llvm::make_early_inc_range(llvm::reverse(block))) {
      if (mlir::isOpTriviallyDead(&op)) op.erase();
    }
  }
};

}  // namespace

std::unique_ptr<mlir::Pass> CreateShareSoftmaxPass() { return std::make_unique<ShareSoftmax>(); }

}  // namespace tpu
