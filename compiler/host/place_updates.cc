// Pass place-updates: marks the update_slices that write parts of a large value in place, as when gradients are written
// into a bucket that is then sent, and makes such of concatenations whose parts are computed here, and of sums with
// what is zero but for a small part, as the gradients of a loop's slices are.
//
// As part of a loop nest an update passes over the whole base, whatever little it changes. A marked one is no kernel at
// all: the plan builder gives its result the base's memory (or a copy of it, where the base stays somebody else's) and
// lets whatever computes src write there, where that is a run of consecutive elements; else src is copied there. Marked
// are chains of updates, each the only reader of the one before, from an argument (or nothing) to a result of the
// fragment, whose windows don't meet.
#include <algorithm>
#include <optional>
#include <vector>

#include "compiler/host/loop_nest.h"
#include "compiler/host/pipeline.h"
#include "compiler/host/placement.h"
#include "compiler/ir/types.h"
#include "compiler/ir/windows.h"
#include "compiler/passes/passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Matchers.h"

namespace tpu::host {
namespace {

using mlir::Operation;
using mlir::Value;

constexpr int64_t kLeastElements = 1 << 14;  // of the base: what is smaller costs less than a step
constexpr int64_t kLeastShare = 2;           // a base that can't be given up is copied: not for most of it
// So many times what is written in several runs; for several sizes, which must be served alike, as above.
constexpr int64_t kLeastSpread = 8;

// What is given back as this result, under other dims or element types that no kernel makes.
Operation* MakerOf(Value result) {
  Operation* op = result.getDefiningOp();
  while (op != nullptr && (mlir::isa<ir::ReshapeOp>(op) || (mlir::isa<ir::BitcastOp>(op) && !IsNestOp(op)))) {
    op = op->getOperand(0).getDefiningOp();
  }
  return op;
}

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

// Whether the update writes something, and at most one of `spread` elements of a large base.
bool WritesPart(ir::UpdateSliceOp op, int64_t spread) {
  const int64_t base = ir::TensorTypeOf(op.getBase()).getNumElements();
  const int64_t src = ir::TensorTypeOf(op.getSrc()).getNumElements();
  return base >= kLeastElements && src > 0 && src * spread <= base;
}

bool WritesSmallPart(ir::UpdateSliceOp op) {
  return WritesPart(op, HasOpenSizes(op->getParentOfType<mlir::func::FuncOp>()) ? kLeastShare : kLeastSpread);
}

bool Suits(ir::UpdateSliceOp op) { return WritesSmallPart(op) || (WritesPart(op, 1) && WindowOf(op).sizes.empty()); }

// The updates up to `last`, which must all suit, last first; empty if they don't lead to an argument or to nothing.
llvm::SmallVector<ir::UpdateSliceOp> ChainTo(ir::UpdateSliceOp last) {
  llvm::SmallVector<ir::UpdateSliceOp> chain;
  for (ir::UpdateSliceOp op = last; op && Suits(op) && (op == last || op->hasOneUse());) {
    chain.push_back(op);
    Value base = op.getBase();
    if (mlir::isa<mlir::BlockArgument>(BytesSource(base))) {
      const auto leaves_most = [](ir::UpdateSliceOp update) { return WritesPart(update, kLeastShare); };
      return llvm::all_of(chain, leaves_most) ? chain : llvm::SmallVector<ir::UpdateSliceOp>();
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

// Whether two updates of bases of one shape are known to replace different elements: they lie apart in some dim.
bool Apart(ir::UpdateSliceOp a, ir::UpdateSliceOp b) {
  const auto first = ir::TensorTypeOf(a.getSrc()).getShape(), second = ir::TensorTypeOf(b.getSrc()).getShape();
  if (ir::TensorTypeOf(a.getBase()) != ir::TensorTypeOf(b.getBase())) return false;
  for (size_t d = 0; d < first.size(); ++d) {
    const int64_t end = a.getStart()[d] + (first[d] - 1) * a.getStride()[d];
    const int64_t other = b.getStart()[d] + (second[d] - 1) * b.getStride()[d];
    if (end >= b.getStart()[d] && other >= a.getStart()[d]) continue;
    ir::RecordApart(b, static_cast<int64_t>(d),
                    end < b.getStart()[d] ? b.getStart()[d] - end - 1 : other - a.getStart()[d]);
    return true;
  }
  return false;
}

bool Apart(llvm::ArrayRef<ir::UpdateSliceOp> chain) {
  struct Written {
    Window window;
    int64_t number = 0;  // in the chain
  };
  const auto count = static_cast<int64_t>(chain.size());
  std::vector<Written> in_order;
  for (int64_t n = 0; n < count; ++n) in_order.push_back({WindowOf(chain[n]), n});
  llvm::sort(in_order, [](const Written& a, const Written& b) { return a.window.begin < b.window.begin; });
  for (size_t i = 0; i < in_order.size(); ++i) {
    const Written& first = in_order[i];
    size_t j = i + 1;
    for (; j < in_order.size() && in_order[j].window.begin < first.window.end; ++j) {
      if (!Apart(chain[first.number], chain[in_order[j].number])) return false;
    }
    if (j == in_order.size()) continue;
    // Along the elements, as along a dim of these two.
    ir::UpdateSliceOp op = chain[first.number];
    const int64_t dim = ir::TensorTypeOf(op).getRank() + first.number * count + in_order[j].number;
    ir::RecordApart(op, dim, in_order[j].window.begin - first.window.end);
  }
  return true;
}

// The updates to the end of the block, behind all that reads the base, which can then be given up. Not where somebody
// reads what they make.
void MoveToEnd(llvm::ArrayRef<ir::UpdateSliceOp> chain) {
  llvm::SmallVector<Operation*> moved;
  for (ir::UpdateSliceOp op : llvm::reverse(chain)) {
    moved.push_back(op);
    while (moved.back()->hasOneUse() && mlir::isa<ir::ReshapeOp>(*moved.back()->user_begin())) {
      moved.push_back(*moved.back()->user_begin());
    }
  }
  Operation* end = chain[0]->getBlock()->getTerminator();
  if (llvm::any_of(moved.back()->getUsers(), [&](Operation* user) { return user != end; })) return;
  for (Operation* op : moved) op->moveBefore(end);
}

// base + (zeros, but for src), in the type of base or rounded to it.
struct SparseSum {
  Value base;
  ir::UpdateSliceOp update;
  bool rounded = false;
};

// The value before it was widened; null if it was not.
Value BeforeWidening(Value v, mlir::Type narrow) {
  auto convert = v.getDefiningOp<ir::ConvertOp>();
  return convert && convert.getX().getType() == narrow ? convert.getX() : Value();
}

std::optional<SparseSum> SparseSumOf(Operation* op) {
  auto rounding = mlir::dyn_cast<ir::ConvertOp>(op);
  auto add = rounding ? rounding.getX().getDefiningOp<ir::AddOp>() : mlir::dyn_cast<ir::AddOp>(op);
  if (!add || (rounding && !add->hasOneUse())) return std::nullopt;
  for (int zeros : {1, 0}) {
    SparseSum sum{add->getOperand(1 - zeros), add->getOperand(zeros).getDefiningOp<ir::UpdateSliceOp>(), false};
    if (rounding) {
      const Value base = BeforeWidening(sum.base, op->getResult(0).getType());
      const Value part = BeforeWidening(add->getOperand(zeros), op->getResult(0).getType());
      if (!base || !part || !add->getOperand(zeros).hasOneUse()) continue;
      sum = {base, part.getDefiningOp<ir::UpdateSliceOp>(), true};
    }
    if (sum.update && sum.update->hasOneUse() && WritesSmallPart(sum.update) &&
        mlir::matchPattern(sum.update.getBase(), mlir::m_AnyZeroFloat()) &&
        llvm::all_of(sum.update.getStride(), [](int64_t stride) { return stride == 1; })) {
      return sum;
    }
  }
  return std::nullopt;
}

// The part alone is added, and written over its place.
void AddPart(Operation* op, const SparseSum& sum) {
  mlir::OpBuilder b(op);
  const mlir::Location loc = op->getLoc();
  ir::UpdateSliceOp part = sum.update;
  const mlir::RankedTensorType type = ir::TensorTypeOf(part.getSrc());
  llvm::SmallVector<int64_t> limit;
  for (auto [start, size] : llvm::zip(part.getStart(), type.getShape())) limit.push_back(start + size);
  // What earlier updates of other parts leave alone is read from where they begin.
  Value base = sum.base;
  for (auto former = base.getDefiningOp<ir::UpdateSliceOp>(); former && Apart(former, part);
       former = base.getDefiningOp<ir::UpdateSliceOp>()) {
    base = former.getBase();
  }
  const auto wide = [&](Value v) -> Value {
    const auto widened = mlir::RankedTensorType::get(type.getShape(), b.getF32Type());
    return sum.rounded ? ir::ConvertOp::create(b, loc, widened, v).getResult() : v;
  };
  const Value old = ir::SliceOp::create(b, loc, base, part.getStart(), limit, part.getStride());
  Value added = ir::AddOp::create(b, loc, wide(old), wide(part.getSrc()));
  if (sum.rounded) added = ir::ConvertOp::create(b, loc, type, added);
  op->getResult(0).replaceAllUsesWith(ir::UpdateSliceOp::create(b, loc, ir::TensorTypeOf(sum.base), sum.base, added,
                                                                part.getStart(), part.getStride()));
  op->erase();
}

struct PlaceUpdates : mlir::PassWrapper<PlaceUpdates, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(PlaceUpdates)
  llvm::StringRef getArgument() const override { return "place-updates"; }
  llvm::StringRef getDescription() const override { return "Mark the updates that are written in place"; }
  void runOnOperation() override {
    Operation* terminator = getOperation().getBody().front().getTerminator();
    llvm::SmallSetVector<Operation*, 4> concats;
    for (Value result : terminator->getOperands()) {
      auto op = mlir::dyn_cast_or_null<ir::ConcatOp>(MakerOf(result));
      if (op && JoinsRuns(op) && llvm::all_of(op.getInputs(), IsLargeAndComputed)) concats.insert(op);
    }
    for (Operation* op : concats) Spread(mlir::cast<ir::ConcatOp>(op));
    for (Operation& op : llvm::make_early_inc_range(getOperation().getBody().front())) {
      if (const auto sum = SparseSumOf(&op)) AddPart(&op, *sum);
    }
    llvm::SmallPtrSet<Operation*, 4> seen;
    for (Value result : terminator->getOperands()) {
      auto last = mlir::dyn_cast_or_null<ir::UpdateSliceOp>(MakerOf(result));
      if (!last || !seen.insert(last).second) continue;
      const llvm::SmallVector<ir::UpdateSliceOp> chain = ChainTo(last);
      if (chain.empty() || !Apart(chain)) continue;
      for (ir::UpdateSliceOp op : chain) op.setInPlace(true);
      if (llvm::any_of(chain, [](ir::UpdateSliceOp op) { return !WindowOf(op).sizes.empty(); })) MoveToEnd(chain);
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

Window WindowOf(ir::UpdateSliceOp op) {
  const llvm::ArrayRef<int64_t> base = ir::TensorTypeOf(op.getBase()).getShape();
  const llvm::ArrayRef<int64_t> src = ir::TensorTypeOf(op.getSrc()).getShape();
  Window window;
  int64_t unit = 1;
  for (size_t d = base.size(); d-- > 0; unit *= base[d]) {
    const int64_t stride = op.getStride()[d] * unit;
    window.begin += op.getStart()[d] * unit;
    window.end += (src[d] - 1) * stride;
    if (src[d] == 1) continue;
    if (window.sizes.empty() && stride == window.run) {
      window.run *= src[d];
    } else if (!window.sizes.empty() && stride == window.strides.back() * window.sizes.back()) {
      window.sizes.back() *= src[d];
    } else {
      window.sizes.push_back(src[d]);
      window.strides.push_back(stride);
    }
  }
  window.end += window.begin + 1;
  std::reverse(window.sizes.begin(), window.sizes.end());
  std::reverse(window.strides.begin(), window.strides.end());
  return window;
}

std::unique_ptr<mlir::Pass> CreatePlaceUpdatesPass() { return std::make_unique<PlaceUpdates>(); }

}  // namespace tpu::host
