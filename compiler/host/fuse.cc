// Pass fuse: groups primitives into tpu.fusion ops, one for each kernel.
//
// Every computing primitive starts as a group of its own. Groups are joined along producer-consumer edges (and, at the
// end, where they read the same values) whenever the union is still one loop nest (AnalyzeLoopNest) that costs no
// more than its parts, and no path leaves the union and comes back; first where it costs much less. Views and splat
// constants belong to no group: each reader has its own copy inside.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "compiler/host/gemm.h"
#include "compiler/host/loop_nest.h"
#include "compiler/host/pipeline.h"
#include "compiler/host/special_kernels.h"
#include "compiler/ir/builder.h"
#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"
#include "compiler/passes/passes.h"
#include "llvm/ADT/SetVector.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"

namespace tpu::host {
namespace {

using mlir::Operation;
using mlir::Value;

constexpr size_t kMaxGroupOps = 200;
constexpr int kMaxPointers = 60;
constexpr int64_t kSmallElements = 1 << 14;
constexpr double kMuchLess = 0.9;  // of what two groups cost apart

// A view that something other than a kernel reads where it can: by strides (dot), or as the same bytes (reshape).
bool ReadInPlace(Operation* user, Value v) {
  if (IsMadeInside(user, v)) return true;
  auto dot = mlir::dyn_cast<ir::DotOp>(user);
  return dot && DotReadsInPlace(dot, v);
}
Value SourceOf(Value v) {
  while (auto reshape = v.getDefiningOp<ir::ReshapeOp>()) v = reshape.getX();
  return v;
}
bool SameBytes(Value v) {
  v = SourceOf(v);
  return v.getDefiningOp() == nullptr || !IsFreeOp(v.getDefiningOp());
}

struct Group {
  llvm::SetVector<Operation*> ops;
  llvm::SmallVector<Value> outputs;
  double cost = 0;
};

class Fuser {
 public:
  Fuser(mlir::func::FuncOp function, const Tuning& tuning)
      : function_(function),
        block_(function.getBody().front()),
        step_nanoseconds_(tuning.step_ns),
        most_streams_(tuning.streams) {}
  // False: not like the function that kFusedLike tells of.
  bool Run();

 private:
  mlir::ArrayAttr Groups();
  bool JoinAs(mlir::ArrayAttr groups);
  std::string Primitives();
  void ReplaceEmpty();
  void MakeGroups();
  bool IsAnchor(Operation* op);
  void Producers(Value v, llvm::SetVector<Operation*>& anchors) const;
  llvm::SmallVector<Value> OutputsOf(const llvm::SetVector<Operation*>& ops) const;
  bool UsedOutside(Value v, const llvm::SetVector<Operation*>& ops) const;
  // most_cost: of the two as one, a part of what they cost apart.
  bool TryJoin(int a, int b, int max_streams, double most_cost);
  bool PathBetween(int from, int to) const;
  void JoinAlongEdges(double most_cost);
  void JoinSiblings();
  void Outline();
  void OutlineGroup(int id);
  void Order();

  mlir::func::FuncOp function_;
  mlir::Block& block_;
  const double step_nanoseconds_;  // what a step of its own costs: start, wait, memory
  const int most_streams_;         // that are large: beyond, prefetchers and TLBs lose them
  llvm::DenseMap<Operation*, int> group_of_;
  std::map<int, Group> groups_;
  llvm::DenseMap<Operation*, int> position_;
  std::map<std::pair<int, int>, double> refused_;  // the least `most_cost` that would not be
};

// What a reduction of no elements gives; null for elements that are only moved.
mlir::Attribute OfNothing(mlir::Type element, ir::ReduceKind kind) {
  using ir::ReduceKind;
  const bool one = kind == ReduceKind::prod || kind == ReduceKind::all;
  if (auto type = mlir::dyn_cast<mlir::FloatType>(element)) {
    if (kind == ReduceKind::max || kind == ReduceKind::min) {
      return mlir::FloatAttr::get(type, llvm::APFloat::getInf(type.getFloatSemantics(), kind == ReduceKind::max));
    }
    return mlir::FloatAttr::get(type, one ? 1 : 0);
  }
  auto type = mlir::dyn_cast<mlir::IntegerType>(element);
  if (!type) return nullptr;
  const unsigned bits = type.getWidth();
  const bool u = type.isUnsigned() || bits == 1;
  llvm::APInt value(bits, one ? 1 : 0);
  if (kind == ReduceKind::max) value = u ? llvm::APInt::getMinValue(bits) : llvm::APInt::getSignedMinValue(bits);
  if (kind == ReduceKind::min) value = u ? llvm::APInt::getMaxValue(bits) : llvm::APInt::getSignedMaxValue(bits);
  return mlir::IntegerAttr::get(type, value);
}

// Values without elements, and reductions of nothing, are constants.
void Fuser::ReplaceEmpty() {
  for (Operation& op : llvm::make_early_inc_range(block_)) {
    if (op.getNumResults() != 1 || mlir::isa<ir::AtenOp, ir::ConstantOp>(op)) continue;
    auto type = mlir::dyn_cast<mlir::RankedTensorType>(op.getResult(0).getType());
    if (!type) continue;
    bool reads_nothing =
        llvm::any_of(op.getOperands(), [](Value v) { return ir::TensorTypeOf(v).getNumElements() == 0; });
    if (type.getNumElements() != 0 && !(reads_nothing && mlir::isa<ir::DotOp, ir::ReduceOp>(op))) continue;
    auto reduce = mlir::dyn_cast<ir::ReduceOp>(op);
    mlir::Attribute value = OfNothing(type.getElementType(), reduce ? reduce.getKind() : ir::ReduceKind::sum);
    mlir::OpBuilder b(&op);
    Value constant;
    if (value) {
      constant = ir::ConstantOp::create(b, op.getLoc(), type, mlir::DenseElementsAttr::get(type, value));
    } else if (type.getNumElements() == 0) {
      constant = ir::Emitter(b, op.getLoc()).Constant(ir::DTypeOf(type.getElementType()), 0, type.getShape());
    } else {
      continue;
    }
    op.getResult(0).replaceAllUsesWith(constant);
    op.erase();
  }
}

bool Fuser::IsAnchor(Operation* op) {
  if (!IsNestOp(op) || op->getNumResults() != 1) return false;
  if (ir::TensorTypeOf(op->getResult(0)).getNumElements() == 0) return false;
  if (!IsFreeOp(op)) return true;
  // A view (or constant) that must exist in memory because something other than a kernel reads it.
  Value v = op->getResult(0);
  for (Operation* user : op->getUsers()) {
    if (IsNestOp(user)) continue;
    if (mlir::isa<ir::ReshapeOp>(op) && SameBytes(v)) continue;
    if (ReadInPlace(user, v)) continue;
    return true;
  }
  return false;
}

void Fuser::MakeGroups() {
  int next = 0;
  for (Operation& op : block_) {
    position_[&op] = next;
    if (IsAnchor(&op)) {
      group_of_[&op] = next;
      groups_[next].ops.insert(&op);
    }
    ++next;
  }
  for (auto it = groups_.begin(); it != groups_.end();) {
    Group& group = it->second;
    group.outputs = OutputsOf(group.ops);
    auto nest = group.outputs.empty()
                    ? std::nullopt
                    : AnalyzeLoopNest([&](Operation* op) { return group.ops.contains(op); }, group.outputs);
    if (!nest) {  // nobody reads it, or no kernel can do it: emission says which
      for (Operation* op : group.ops) group_of_.erase(op);
      it = groups_.erase(it);
      continue;
    }
    group.cost = nest->Cost() + step_nanoseconds_;
    ++it;
  }
}

// The grouped ops that compute what v reads, through views.
void Fuser::Producers(Value v, llvm::SetVector<Operation*>& anchors) const {
  Operation* op = v.getDefiningOp();
  if (op == nullptr) return;
  if (group_of_.count(op)) {
    anchors.insert(op);
    if (!IsFreeOp(op)) return;
  }
  if (!IsFreeOp(op)) return;
  for (Value operand : op->getOperands()) Producers(operand, anchors);
}

bool Fuser::UsedOutside(Value v, const llvm::SetVector<Operation*>& ops) const {
  // A view among the ops is written for those that can't read through it; the others read its source.
  Operation* op = v.getDefiningOp();
  bool written = op != nullptr && IsFreeOp(op) && ops.contains(op);
  for (Operation* user : v.getUsers()) {
    bool member = ops.contains(user);
    if (member && !IsFreeOp(user)) continue;
    if (written && !IsNestOp(user) && !ReadInPlace(user, v)) continue;
    if (!member && (group_of_.count(user) || !IsFreeOp(user))) return true;
    if (UsedOutside(user->getResult(0), ops)) return true;
  }
  return false;
}

llvm::SmallVector<Value> Fuser::OutputsOf(const llvm::SetVector<Operation*>& ops) const {
  llvm::SmallVector<Value> outputs;
  for (Operation* op : ops) {
    Value v = op->getResult(0);
    if (IsFreeOp(op)) {
      // Written for those that can't read through the view; kernels compute it themselves.
      for (Operation* user : v.getUsers()) {
        if (!IsNestOp(user) && !ReadInPlace(user, v)) {
          outputs.push_back(v);
          break;
        }
      }
    } else if (UsedOutside(v, ops)) {
      outputs.push_back(v);
    }
  }
  return outputs;
}

// Whether some path leads from group `from` to group `to` through something else. Views are walked through as if their
// readers read the source; edges straight into `to` are what a join is for.
bool Fuser::PathBetween(int from, int to) const {
  llvm::SmallVector<std::pair<Operation*, bool>> work;  // an op, and whether something else was passed on the way to it
  llvm::DenseSet<int> seen_groups;
  llvm::DenseSet<Operation*> seen_ops;
  auto push_users = [&](Operation* op, bool passed) {
    for (Operation* user : op->getUsers()) work.push_back({user, passed});
  };
  for (Operation* op : groups_.at(from).ops) push_users(op, false);
  while (!work.empty()) {
    auto [op, passed] = work.pop_back_val();
    auto it = group_of_.find(op);
    if (it == group_of_.end()) {
      bool view = IsFreeOp(op);
      if (view && !passed) {
        push_users(op, false);
      } else if (seen_ops.insert(op).second) {
        push_users(op, true);
      }
    } else if (it->second == to) {
      if (passed) return true;
    } else if (it->second != from && seen_groups.insert(it->second).second) {
      for (Operation* member : groups_.at(it->second).ops) push_users(member, true);
    }
  }
  return false;
}

int Streams(const LoopNest& nest) {
  const auto large = [](Value v) { return ir::TensorTypeOf(v).getNumElements() > kSmallElements; };
  return static_cast<int>(llvm::count_if(nest.inputs, large)) +
         (nest.full_count() > kSmallElements ? static_cast<int>(nest.outputs.size()) : 0);
}

bool Fuser::TryJoin(int a, int b, int max_streams, double most_cost) {
  if (a == b) return false;
  if (const auto before = refused_.find({a, b}); before != refused_.end() && before->second > most_cost) return false;
  Group& first = groups_.at(a);
  Group& second = groups_.at(b);
  const auto refuse = [&](double cost = HUGE_VAL) {
    refused_[{a, b}] = cost;
    return false;
  };
  if (first.ops.size() + second.ops.size() > kMaxGroupOps) return refuse();
  Group joined;
  for (Operation* op : first.ops) joined.ops.insert(op);
  for (Operation* op : second.ops) joined.ops.insert(op);
  joined.outputs = OutputsOf(joined.ops);
  if (joined.outputs.empty()) return refuse();
  auto nest = AnalyzeLoopNest([&](Operation* op) { return joined.ops.contains(op); }, joined.outputs);
  if (!nest || static_cast<int>(nest->inputs.size() + nest->outputs.size()) > kMaxPointers) return refuse();
  if (Streams(*nest) > max_streams) return refuse();
  joined.cost = nest->Cost() + step_nanoseconds_;
  if (joined.cost > first.cost + second.cost) return refuse();
  if (PathBetween(a, b) || PathBetween(b, a)) return refuse();
  if (const double cost = joined.cost / (first.cost + second.cost); cost > most_cost) return refuse(cost);
  for (Operation* op : second.ops) group_of_[op] = a;
  first = std::move(joined);
  groups_.erase(b);
  // What was refused before may fit now.
  std::erase_if(refused_, [&](const auto& refused) {
    const auto [x, y] = refused.first;
    return x == a || y == a || x == b || y == b;
  });
  return true;
}

void Fuser::JoinAlongEdges(double most_cost) {
  llvm::SmallVector<Operation*> anchors;
  for (Operation& op : block_) {
    if (group_of_.count(&op)) anchors.push_back(&op);
  }
  for (int round = 0; round < 3; ++round) {
    bool changed = false;
    for (Operation* op : anchors) {
      llvm::SetVector<Operation*> producers;
      for (Value operand : op->getOperands()) Producers(operand, producers);
      for (Operation* producer : producers) {
        changed |= TryJoin(group_of_.lookup(producer), group_of_.lookup(op), kMaxPointers, most_cost);
      }
    }
    if (!changed) break;
  }
}

// Groups that read the same value, and small ones of one shape, share a loop.
void Fuser::JoinSiblings() {
  llvm::SmallVector<Value> sources(function_.getArguments().begin(), function_.getArguments().end());
  for (Operation& op : block_) {
    for (Value v : op.getResults()) sources.push_back(v);
  }
  for (Value source : sources) {
    llvm::SetVector<int> readers;
    std::function<void(Value, int)> collect = [&](Value v, int depth) {
      for (Operation* user : v.getUsers()) {
        auto it = group_of_.find(user);
        if (it != group_of_.end()) {
          readers.insert(it->second);
        } else if (IsFreeOp(user) && depth < 4) {
          collect(user->getResult(0), depth + 1);
        }
      }
    };
    bool constant = source.getDefiningOp<ir::ConstantOp>() != nullptr;
    if (ir::TensorTypeOf(source).getNumElements() <= 1 && !constant) continue;
    collect(source, 0);
    llvm::SmallVector<int> list(readers.begin(), readers.end());
    // Groups that share a constant only are joined for the sake of fewer steps: worth it where they are small.
    if (constant) {
      llvm::erase_if(list, [&](int id) {
        return llvm::any_of(groups_.at(id).outputs,
                            [](Value v) { return ir::TensorTypeOf(v).getNumElements() > kSmallElements; });
      });
    }
    for (size_t i = 0; i < list.size(); ++i) {
      for (size_t j = i + 1; j < list.size() && j < i + 8; ++j) {
        if (groups_.count(list[i]) && groups_.count(list[j])) TryJoin(list[i], list[j], most_streams_, 1);
      }
    }
  }
}

void Fuser::OutlineGroup(int id) {
  Group& group = groups_.at(id);
  llvm::SmallVector<Operation*> ops(group.ops.begin(), group.ops.end());
  llvm::sort(ops, [&](Operation* a, Operation* b) { return position_.lookup(a) < position_.lookup(b); });
  Operation* last = ops.back();
  // Everything the outputs need, views included, in an order where operands come first.
  llvm::SetVector<Operation*> body;
  llvm::SetVector<Value> operands;
  std::function<void(Value)> need = [&](Value v) {
    Operation* op = v.getDefiningOp();
    bool inside = op != nullptr && IsNestOp(op) && (IsFreeOp(op) || group.ops.contains(op));
    if (!inside) {
      operands.insert(v);
      return;
    }
    if (body.contains(op)) return;
    for (Value operand : op->getOperands()) need(operand);
    body.insert(op);
  };
  for (Value output : group.outputs) need(output);
  // Outputs that are reshapes of one value have the same bytes: written once, under the name of the first.
  llvm::SmallVector<Value> written;
  llvm::SmallVector<size_t> written_at;
  for (Value output : group.outputs) {
    auto same = llvm::find_if(written, [&](Value v) { return SourceOf(v) == SourceOf(output); });
    written_at.push_back(same - written.begin());
    if (same == written.end()) written.push_back(output);
  }

  mlir::OpBuilder b(last);
  llvm::SmallVector<mlir::Type> types;
  for (Value output : written) types.push_back(output.getType());
  bool row = false, column = false;
  for (Operation* op : ops) {
    auto reduce = mlir::dyn_cast<ir::ReduceOp>(op);
    auto arg = mlir::dyn_cast<ir::ArgReduceOp>(op);
    if (!reduce && !arg) continue;
    auto shape = ir::TensorTypeOf(op->getOperand(0)).getShape();
    int64_t inner = static_cast<int64_t>(shape.size()) - 1;
    while (inner > 0 && shape[inner] == 1) --inner;
    bool is_row = reduce ? llvm::is_contained(reduce.getDims(), inner) : static_cast<int64_t>(arg.getDim()) == inner;
    (is_row ? row : column) = true;
  }
  auto fusion =
      ir::FusionOp::create(b, mlir::FusedLoc::get(b.getContext(), {last->getLoc()}), types, operands.getArrayRef(),
                           b.getStringAttr(row      ? "row"
                                           : column ? "column"
                                                    : "loop"));
  mlir::Block& inside = fusion.getBody().emplaceBlock();
  mlir::IRMapping map;
  for (Value operand : operands) map.map(operand, inside.addArgument(operand.getType(), operand.getLoc()));
  b.setInsertionPointToEnd(&inside);
  for (Operation* op : body) b.clone(*op, map);
  llvm::SmallVector<Value> yields;
  for (Value output : written) yields.push_back(map.lookup(output));
  ir::YieldOp::create(b, last->getLoc(), yields);
  b.setInsertionPointAfter(fusion);
  for (auto [output, at] : llvm::zip(group.outputs, written_at)) {
    Operation* op = output.getDefiningOp();
    Value result = fusion.getResult(at);
    if (result.getType() != output.getType()) {
      result = ir::ReshapeOp::create(b, last->getLoc(), output.getType(), result);
      position_[result.getDefiningOp()] = position_.lookup(last);
    }
    output.replaceUsesWithIf(result, [&](mlir::OpOperand& use) {
      if (use.getOwner()->getParentOp() == fusion) return false;
      // Views of the group stay for readers elsewhere: they read what the kernel writes, like everyone outside.
      if (!IsFreeOp(op)) return !group.ops.contains(use.getOwner()) || IsFreeOp(use.getOwner());
      return !IsNestOp(use.getOwner()) && !ReadInPlace(use.getOwner(), use.get());
    });
  }
  position_[fusion] = position_.lookup(last);
}

// Operands before users, otherwise in the order they stand.
void Fuser::Order() {
  llvm::SmallVector<Operation*> ordered;
  llvm::DenseSet<Operation*> done;
  std::function<void(Operation*)> place = [&](Operation* op) {
    if (!done.insert(op).second) return;
    for (Value operand : op->getOperands()) {
      if (Operation* producer = operand.getDefiningOp()) place(producer);
    }
    ordered.push_back(op);
  };
  for (Operation& op : block_.without_terminator()) place(&op);
  for (Operation* op : ordered) op->moveBefore(block_.getTerminator());
}

void Fuser::Outline() {
  llvm::SmallVector<int> ids;
  for (auto& [id, group] : groups_) ids.push_back(id);
  // Outputs of one group are found by their ops, which stay until every group is outlined.
  for (int id : ids) OutlineGroup(id);
  // The originals are dead now.
  bool changed = true;
  while (changed) {
    changed = false;
    for (Operation& op : llvm::make_early_inc_range(llvm::reverse(block_))) {
      if (op.use_empty() && !op.hasTrait<mlir::OpTrait::IsTerminator>()) {
        op.erase();
        changed = true;
      }
    }
  }
  Order();
}

// The groups by the positions of their ops.
mlir::ArrayAttr Fuser::Groups() {
  mlir::Builder b(function_.getContext());
  llvm::SmallVector<mlir::Attribute> all;
  for (auto& [id, group] : groups_) {
    llvm::SmallVector<int64_t> positions;
    for (Operation* op : group.ops) positions.push_back(position_.lookup(op));
    all.push_back(b.getDenseI64ArrayAttr(positions));
  }
  return b.getArrayAttr(all);
}

// Joins what was joined at another size. False where that is no loop nest here.
bool Fuser::JoinAs(mlir::ArrayAttr groups) {
  llvm::DenseMap<int64_t, Operation*> at;
  for (auto [op, position] : position_) at[position] = op;
  std::map<int, Group> joined;
  size_t members = 0;
  for (auto positions : groups.getAsRange<mlir::DenseI64ArrayAttr>()) {
    Group group;
    const int id = static_cast<int>(positions[0]);
    for (int64_t position : positions.asArrayRef()) {
      Operation* op = at.lookup(position);
      if (op == nullptr || !group_of_.count(op)) return false;
      group.ops.insert(op);
      ++members;
    }
    for (Operation* op : group.ops) group_of_[op] = id;
    joined[id] = std::move(group);
  }
  // So far every group is one op.
  if (members != groups_.size()) return false;
  groups_ = std::move(joined);
  for (auto& [id, group] : groups_) {
    group.outputs = OutputsOf(group.ops);
    const auto inside = [&](Operation* op) { return group.ops.contains(op); };
    if (group.outputs.empty() || !AnalyzeLoopNest(inside, group.outputs)) {
      group.ops.back()->emitError("is not joined here with what it was joined with at another size");
      return false;
    }
  }
  return true;
}

// What stands in the function, for the comparison of sizes.
std::string Fuser::Primitives() {
  std::string names;
  for (Operation& op : block_) names += op.getName().getStringRef().str() + ' ';
  return names;
}

bool Fuser::Run() {
  ReplaceEmpty();
  mlir::Builder b(function_.getContext());
  const auto like = function_->getAttrOfType<mlir::DictionaryAttr>(kFusedLike);
  const mlir::StringAttr primitives = b.getStringAttr(Primitives());
  MakeGroups();
  if (like) {
    if (like.get("primitives") != primitives) {
      function_.emitError("other primitives: ") << primitives << " and " << like.get("primitives");
      return false;
    }
    if (!JoinAs(like.getAs<mlir::ArrayAttr>("groups"))) return false;
  } else {
    JoinAlongEdges(kMuchLess);  // what has joined for little may no longer join for much
    JoinAlongEdges(1);
    JoinSiblings();
  }
  if (function_->hasAttr(kOpenSizes)) {
    function_->setAttr(kFusedLike, b.getDictionaryAttr(
                                       {b.getNamedAttr("primitives", primitives), b.getNamedAttr("groups", Groups())}));
  }
  Outline();
  return true;
}

struct Fuse : mlir::PassWrapper<Fuse, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(Fuse)
  llvm::StringRef getArgument() const override { return "fuse"; }
  llvm::StringRef getDescription() const override { return "Group primitives into kernels"; }
  explicit Fuse(const Tuning& tuning) : tuning(tuning) {}
  void runOnOperation() override {
    if (!Fuser(getOperation(), tuning).Run()) signalPassFailure();
  }
  const Tuning tuning;
};

}  // namespace

std::unique_ptr<mlir::Pass> CreateFusePass(const Tuning& tuning) { return std::make_unique<Fuse>(tuning); }

}  // namespace tpu::host
