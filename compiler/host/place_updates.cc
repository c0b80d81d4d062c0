// Pass place-updates: marks the update_slices that write parts of a large value in place, as when gradients are written
// into a bucket that is then sent, and makes such of concatenations whose parts are computed here.
//
// As part of a loop nest an update passes over the whole base, whatever little it changes. A marked one is no kernel at
// all: the plan builder gives its result the base's memory (or a copy of it, where the base stays somebody else's) and
// lets whatever computes src write there. Marked are chains of updates, each the only reader of the one before, from an
// argument (or nothing) to a result of the fragment, whose windows are runs of consecutive elements that don't meet.
#include <optional>

#include "compiler/host/pipeline.h"
#include "compiler/host/placement.h"
#include "compiler/ir/types.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tpu::host {
namespace {

using mlir::Operation;
using mlir::Value;

constexpr int64_t kLeastElements = 1 << 14;  // of the base: what is smaller costs less than a step
constexpr int64_t kLeastShare = 2;           // a base that can't be given up is copied: not for most of it

// A part of a concatenation is worth a step of its own, if it is not just there to be copied.
bool IsLargeAndComputed(Value part) {
  Operation* op = BytesSource(part).getDefiningOp();
  return op != nullptr && !mlir::isa<ir::ConstantOp>(op) && ir::TensorTypeOf(part).getNumElements() >= kLeastElements;
}

// One after the other in memory, too.
bool JoinsRuns(ir::ConcatOp op) {
  const llvm::ArrayRef<int64_t> dims = ir::TensorTypeOf(op.getResult()).getShape();
  return llvm::all_of(dims.take_front(op.getDim()), [](int64_t size) { return size == 1; });
}

void Spread(ir::ConcatOp op) {
  mlir::OpBuilder b(op);
  const mlir::RankedTensorType type = ir::TensorTypeOf(op.getResult());
  llvm::SmallVector<int64_t> start(type.getRank(), 0);
  const llvm::SmallVector<int64_t> stride(type.getRank(), 1);
  Value whole = ir::UndefinedOp::create(b, op.getLoc(), type);
  for (Value part : op.getInputs()) {
    whole = ir::UpdateSliceOp::create(b, op.getLoc(), type, whole, part, start, stride);
    start[op.getDim()] += ir::TensorTypeOf(part).getDimSize(op.getDim());
  }
  op.replaceAllUsesWith(whole);
  op.erase();
}

bool LeavesMost(ir::UpdateSliceOp op) {
  const int64_t base = ir::TensorTypeOf(op.getBase()).getNumElements();
  return ir::TensorTypeOf(op.getSrc()).getNumElements() * kLeastShare <= base;
}

bool Suits(ir::UpdateSliceOp op) {
  const int64_t base = ir::TensorTypeOf(op.getBase()).getNumElements();
  const int64_t src = ir::TensorTypeOf(op.getSrc()).getNumElements();
  return base >= kLeastElements && src > 0 && OffsetOf(op);
}

// The updates up to `last`, which must all suit, last first; empty if they don't lead to an argument or to nothing.
llvm::SmallVector<ir::UpdateSliceOp> ChainTo(ir::UpdateSliceOp last) {
  llvm::SmallVector<ir::UpdateSliceOp> chain;
  for (ir::UpdateSliceOp op = last; op && Suits(op) && (op == last || op->hasOneUse());) {
    chain.push_back(op);
    Value base = op.getBase();
    if (mlir::isa<mlir::BlockArgument>(BytesSource(base))) {
      return llvm::all_of(chain, LeavesMost) ? chain : llvm::SmallVector<ir::UpdateSliceOp>();
    }
    if (base.getDefiningOp<ir::UndefinedOp>() != nullptr) return chain;
    for (auto reshape = base.getDefiningOp<ir::ReshapeOp>(); reshape && reshape->hasOneUse();) {
      base = reshape.getX();
      reshape = base.getDefiningOp<ir::ReshapeOp>();
    }
    op = base.getDefiningOp<ir::UpdateSliceOp>();
  }
  return {};
}

bool Apart(llvm::ArrayRef<ir::UpdateSliceOp> chain) {
  llvm::SmallVector<std::pair<int64_t, int64_t>> windows;
  for (ir::UpdateSliceOp op : chain) {
    const int64_t begin = OffsetOf(op).value();
    windows.push_back({begin, begin + ir::TensorTypeOf(op.getSrc()).getNumElements()});
  }
  llvm::sort(windows);
  for (size_t i = 1; i < windows.size(); ++i) {
    if (windows[i].first < windows[i - 1].second) return false;
  }
  return true;
}

struct PlaceUpdates : mlir::PassWrapper<PlaceUpdates, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(PlaceUpdates)
  llvm::StringRef getArgument() const override { return "place-updates"; }
  llvm::StringRef getDescription() const override { return "Mark the updates that are written in place"; }
  void runOnOperation() override {
    Operation* terminator = getOperation().getBody().front().getTerminator();
    llvm::SmallSetVector<Operation*, 4> concats;
    for (Value result : terminator->getOperands()) {
      auto op = BytesSource(result).getDefiningOp<ir::ConcatOp>();
      if (op && JoinsRuns(op) && llvm::all_of(op.getInputs(), IsLargeAndComputed)) concats.insert(op);
    }
    for (Operation* op : concats) Spread(mlir::cast<ir::ConcatOp>(op));
    llvm::SmallPtrSet<Operation*, 4> seen;
    for (Value result : terminator->getOperands()) {
      auto last = BytesSource(result).getDefiningOp<ir::UpdateSliceOp>();
      if (!last || !seen.insert(last).second) continue;
      const llvm::SmallVector<ir::UpdateSliceOp> chain = ChainTo(last);
      if (!Apart(chain)) continue;
      for (ir::UpdateSliceOp op : chain) op.setInPlace(true);
    }
  }
};

}  // namespace

Value BytesSource(Value v) {
  while (Operation* op = v.getDefiningOp()) {
    if (!mlir::isa<ir::ReshapeOp, ir::BitcastOp>(op)) break;
    v = op->getOperand(0);
  }
  return v;
}

std::optional<int64_t> OffsetOf(ir::UpdateSliceOp op) {
  const llvm::ArrayRef<int64_t> base = ir::TensorTypeOf(op.getBase()).getShape();
  const llvm::ArrayRef<int64_t> src = ir::TensorTypeOf(op.getSrc()).getShape();
  int64_t offset = 0, unit = 1;
  bool whole = true;  // of the dims further in
  for (size_t d = base.size(); d-- > 0;) {
    if (src[d] != 1 && (!whole || op.getStride()[d] != 1)) return std::nullopt;
    whole &= src[d] == base[d];
    offset += op.getStart()[d] * unit;
    unit *= base[d];
  }
  return offset;
}

std::unique_ptr<mlir::Pass> CreatePlaceUpdatesPass() { return std::make_unique<PlaceUpdates>(); }

}  // namespace tpu::host
