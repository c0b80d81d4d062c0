#include "compiler/host/nest_loops.h"

#include "llvm/ADT/DenseSet.h"

namespace tpu::host {

using llvm::Value;
using Kind = NestNode::Kind;

// The vector widths that together cover `count` positions (-1: any number of them).
std::vector<int> NestLoops::WidthsFor(int64_t count) const {
  std::vector<int> widths;
  for (int width = max_width_; width >= 1 && count != 0; width = width > 8 ? 8 : width > 1 ? 1 : 0) {
    if (count != -1 && count < width) continue;
    widths.push_back(width);
    if (count != -1) count %= width;
  }
  return widths;
}

// Runs `body` over [begin, end) of the vectors' loop by full vectors, then narrower ones for what is left. count: the
// length, or one that leaves the same remainders, or -1.
void NestLoops::InnerLoop(Value* begin, Value* end, int64_t count, const std::function<void()>& body) {
  Value* from = begin;
  for (int width : WidthsFor(count)) {
    Value* to = width == 1 ? end : b_.CreateSub(end, b_.CreateAnd(b_.CreateSub(end, from), I64(width - 1)));
    width_ = width;
    For(from, to, width, [&](Value* position) {
      position_[nest_.lane_loop()] = position;
      body();
    });
    from = to;
  }
  width_ = 1;
}

void NestLoops::ReducedLoops(size_t from, const std::function<void()>& innermost) {
  size_t next = from;
  bool inner = nest_.inner_reduced();
  while (next < nest_.loops.size() && !nest_.loops[next].reduced) ++next;
  if (next == nest_.loops.size() || (inner && next + 1 == nest_.loops.size())) return innermost();
  For(I64(0), I64(nest_.loops[next].size), 1, [&](Value* position) {
    position_[next] = position;
    ReducedLoops(next + 1, innermost);
  });
}

// Computes what `roots` need and is the same for the whole innermost loop, before that loop; where that is woven and
// kept, for the whole loop around it.
void NestLoops::Hoist(llvm::ArrayRef<int> roots) {
  const bool beside = nest_.beside();
  const auto differs = [&](uint64_t loops) { return beside ? nest_.IsInnermost(loops) : nest_.IsVector(loops); };
  std::vector<int> needed, symbols;
  llvm::DenseSet<int> seen, seen_symbols;
  std::function<void(int)> visit;
  std::function<void(const Expr&)> visit_index = [&](const Expr& e) {
    for (auto [id, c] : e.terms) {
      const Symbol& symbol = nest_.symbols[id];
      if (symbol.kind == Symbol::Kind::kLoop || !seen_symbols.insert(id).second) continue;
      if (symbol.kind == Symbol::Kind::kNode) visit(symbol.node);
      visit_index(symbol.of);
      if (!differs(symbol.loops)) symbols.push_back(id);
    }
  };
  visit = [&](int id) {
    if (!seen.insert(id).second) return;
    const NestNode& node = nest_.nodes[id];
    bool known = node.kind == Kind::kReduce || (scratch_.count(id) && node.phase < pass_);
    if (!known) {
      if (node.kind != Kind::kChoose) llvm::for_each(node.operands, visit);
      visit_index(node.index);
    }
    if (!differs(node.loops) && node.kind != Kind::kConstant) needed.push_back(id);
  };
  for (int root : roots) visit(root);
  if (!beside) width_ = 1;
  for (int id : needed) Get(id);
  for (int id : symbols) SymbolValue(id, false);
}

// Runs `body` for each item of the call, the outer loops at its place; `body` is told which of the row's `blocks`
// (nullptr: one) it is. The first item's place is found by divisions, the others' by counting on.
void NestLoops::EachItem(Value* blocks, const Body& body) {
  struct Wheel {
    int loop;               // -1: the row's blocks
    Value* size = nullptr;  // of all but the last, which never comes round
    Value* at = nullptr;    // a slot
  };
  std::vector<Wheel> wheels;  // the fastest first
  if (blocks != nullptr) wheels.push_back({-1});
  const size_t last = nest_.inner_reduced() || nest_.loops.empty() ? nest_.loops.size() : nest_.lane_loop();
  for (size_t i = last; i-- > 0;) {
    if (!nest_.loops[i].reduced) wheels.push_back({static_cast<int>(i)});
  }
  const bool counts = wheels.size() > 1;
  for (Wheel& wheel : wheels) {
    if (&wheel != &wheels.back()) wheel.size = wheel.loop < 0 ? blocks : I64(ItemsOf(wheel.loop));
    if (counts) wheel.at = EntryAlloca(b_.getInt64Ty());
  }
  const auto find_first = [&] {
    Value* rest = begin();
    for (const Wheel& wheel : wheels) {
      b_.CreateStore(wheel.size == nullptr ? rest : b_.CreateURem(rest, wheel.size), wheel.at);
      if (wheel.size != nullptr) rest = b_.CreateUDiv(rest, wheel.size);
    }
  };
  const auto at_item = [&](Value* item) {
    std::vector<Value*> places;
    Value* block = I64(0);
    for (const Wheel& wheel : wheels) {
      places.push_back(counts ? b_.CreateLoad(b_.getInt64Ty(), wheel.at) : item);
      (wheel.loop < 0 ? block : position_[wheel.loop]) = places.back();
    }
    body(block);
    if (!counts) return;
    Value* carry = b_.getInt64(1);
    for (size_t i = 0; i < wheels.size(); ++i) {
      Value* next = b_.CreateAdd(places[i], carry);
      if (wheels[i].size != nullptr) {
        Value* around = b_.CreateICmpEQ(next, wheels[i].size);
        next = b_.CreateSelect(around, b_.getInt64(0), next);
        carry = b_.CreateZExt(around, b_.getInt64Ty());
      }
      b_.CreateStore(next, wheels[i].at);
    }
  };
  For(begin(), end(), 1, at_item, counts ? llvm::function_ref<void()>(find_first) : nullptr);
}

}  // namespace tpu::host
