#include "compiler/host/loop_nest.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "compiler/host/open_sizes.h"
#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"

namespace tpu::host {
namespace {

constexpr int kMaxNodes = 2000;
constexpr int kMaxSplits = 24;

using ir::CountOf, ir::ElementOf, ir::ShapeOf;

Expr Constant(int64_t c) { return {.constant = c, .terms = {}}; }
// The reduced dims of a reduction, or nothing.
llvm::SmallVector<int64_t> ReducedDims(mlir::Operation* op) {
  if (auto reduce = mlir::dyn_cast<ir::ReduceOp>(op)) return llvm::to_vector(reduce.getDims());
  if (auto arg = mlir::dyn_cast<ir::ArgReduceOp>(op)) return {static_cast<int64_t>(arg.getDim())};
  return {};
}

// Runs of dims that are kept or reduced together, size-1 dims dropped.
std::vector<Loop> RunsOf(mlir::Operation* reduce) {
  llvm::SmallVector<int64_t> dims = ReducedDims(reduce);
  llvm::ArrayRef<int64_t> shape = ShapeOf(reduce->getOperand(0));
  std::vector<Loop> runs;
  for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
    if (shape[d] == 1) continue;
    bool reduced = llvm::is_contained(dims, d);
    if (!runs.empty() && runs.back().reduced == reduced) {
      runs.back().size *= shape[d];
    } else {
      runs.push_back({shape[d], reduced});
    }
  }
  return runs;
}
int64_t ReducedCount(mlir::Operation* reduce) {
  int64_t n = 1;
  for (int64_t d : ReducedDims(reduce)) n *= ShapeOf(reduce->getOperand(0))[d];
  return n;
}

class Analysis {
 public:
  Analysis(llvm::function_ref<bool(mlir::Operation*)> inside, std::vector<Loop> loops, mlir::Value some)
      : inside_(inside), open_(some) {
    nest_.loops = std::move(loops);
    for (size_t i = 0; i < nest_.loops.size(); ++i) {
      Symbol symbol;
      symbol.size = nest_.loops[i].size;
      symbol.loops = uint64_t{1} << i;
      symbol.reduced = nest_.loops[i].reduced;
      nest_.symbols.push_back(symbol);
    }
  }

  bool failed() const { return failed_; }
  std::optional<std::pair<int, int64_t>> split() const { return split_; }
  LoopNest& nest() { return nest_; }

  int Eval(mlir::Value v, const Expr& e) {
    if (failed_ || split_) return 0;
    size_t hash = llvm::hash_combine(v.getAsOpaquePointer(), e.constant,
                                     llvm::hash_combine_range(e.terms.begin(), e.terms.end()));
    for (auto [it, end] = memo_.equal_range(hash); it != end; ++it) {
      if (it->second.value == v && it->second.index == e) return it->second.node;
    }
    int node = EvalNew(v, e);
    memo_.insert({hash, {v, e, node}});
    return node;
  }

  // The quotient and remainder of e by d, with a split asked for when a loop has to be finer.
  std::pair<Expr, Expr> DivMod(const Expr& e, int64_t d) {
    if (d <= 1) return {e, Expr()};
    Expr quotient, rest;
    int64_t high = 0, low = 0;
    for (auto [symbol, c] : e.terms) {
      if (open_.Divides(d, c)) {
        quotient.terms.push_back({symbol, c / d});
      } else {
        rest.terms.push_back({symbol, c});
        (c > 0 ? high : low) += c * (nest_.symbols[symbol].size - 1);
      }
    }
    int64_t c = e.constant % d;
    if (c < 0) c += d;
    // A remainder that only goes down from the constant stays in place when the constant is large enough.
    quotient.constant = (e.constant - c) / d;
    rest.constant = c;
    if (low + c >= 0 && high + c < d) return {quotient, rest};
    for (auto [symbol, coefficient] : rest.terms) {
      const Symbol& s = nest_.symbols[symbol];
      const int64_t step = std::abs(coefficient);
      if (s.kind != Symbol::Kind::kLoop || step >= d || !open_.Divides(step, d)) continue;
      int64_t factor = d / step;
      if (s.size > factor && open_.Divides(factor, s.size)) {
        split_ = {symbol, factor};
        return {Expr(), Expr()};
      }
    }
    // What is below zero at times is divided from so many d higher on.
    const int64_t above = low + c < 0 ? (d - 1 - low - c) / d : 0;
    rest.constant += above * d;
    Expr q = quotient + Constant(-above) + Derived(Symbol::Kind::kDiv, rest, d, (high + c) / d + above + 1);
    return {q, Derived(Symbol::Kind::kMod, rest, d, d)};
  }

 private:
  struct Memo {
    mlir::Value value;
    Expr index;
    int node;
  };

  Dependence DependenceOf(const Expr& e) {
    Dependence of;
    for (auto [symbol, c] : e.terms) of.Include(nest_.symbols[symbol]);
    return of;
  }

  Expr Derived(Symbol::Kind kind, const Expr& of, int64_t a, int64_t size) {
    for (size_t i = nest_.loops.size(); i < nest_.symbols.size(); ++i) {
      const Symbol& s = nest_.symbols[i];
      if (s.kind == kind && s.a == a && s.size == size && s.of == of) return Term(static_cast<int>(i), size);
    }
    Symbol symbol;
    symbol.kind = kind;
    symbol.of = of;
    symbol.a = a;
    symbol.size = size;
    symbol.Include(DependenceOf(of));
    nest_.symbols.push_back(symbol);
    return Term(static_cast<int>(nest_.symbols.size()) - 1, size);
  }
  bool IsWithin(const Expr& e, int64_t size) const {
    int64_t low = e.constant, high = e.constant;
    for (auto [symbol, c] : e.terms) (c > 0 ? high : low) += c * (nest_.symbols[symbol].size - 1);
    return low >= 0 && high < size;
  }
  Expr Clamp(const Expr& e, int64_t size) { return size <= 1 ? Expr() : Derived(Symbol::Kind::kClamp, e, 0, size); }
  // The node as an index into `size` elements; unchecked where all that it may be is known to be one.
  Expr NodeSymbol(int node, int64_t size) {
    const NestNode& index = nest_.nodes[node];
    const auto known = index.kind == NestNode::Kind::kLoad ? KnownElements(nest_.inputs[index.input]) : nullptr;
    const auto in_range = [&](const llvm::APInt& i) { return i.getSExtValue() >= 0 && i.getSExtValue() < size; };
    Symbol symbol;
    symbol.kind = Symbol::Kind::kNode;
    symbol.node = node;
    symbol.size = std::max<int64_t>(size, 2);  // kept as a symbol even when only 0 is valid: the check must happen
    symbol.a = known && llvm::all_of(known.getValues<llvm::APInt>(), in_range) ? 0 : size;
    symbol.Include(index);
    symbol.checked = symbol.a != 0;
    nest_.symbols.push_back(symbol);
    return Term(static_cast<int>(nest_.symbols.size()) - 1, symbol.size);
  }

  int Add(NestNode node) {
    if (nest_.nodes.size() > kMaxNodes) failed_ = true;
    if (failed_ || split_) return 0;
    node.Include(DependenceOf(node.index));
    for (int operand : node.operands) node.Include(nest_.nodes[operand]);
    node.checked |= node.kind == NestNode::Kind::kOp && ChecksOperands(node.op);
    nest_.nodes.push_back(std::move(node));
    return static_cast<int>(nest_.nodes.size()) - 1;
  }

  int Load(mlir::Value v, const Expr& e) {
    NestNode node;
    node.kind = NestNode::Kind::kLoad;
    node.type = ElementOf(v);
    node.index = e;
    auto it = std::find(nest_.inputs.begin(), nest_.inputs.end(), v);
    node.input = static_cast<int>(it - nest_.inputs.begin());
    if (it == nest_.inputs.end()) nest_.inputs.push_back(v);
    return Add(std::move(node));
  }
  int ConstantNode(mlir::Attribute value, mlir::Type type) {
    return Add({.kind = NestNode::Kind::kConstant, .type = type, .value = value});
  }
  int InRange(const Expr& e, int64_t lo, int64_t hi) {
    return Add({.kind = NestNode::Kind::kInRange, .index = e, .lo = lo, .hi = hi});
  }
  int Combine(NestNode::Kind kind, mlir::Type type, std::initializer_list<int> operands) {
    NestNode node;
    node.kind = kind;
    node.type = type;
    node.operands.assign(operands.begin(), operands.end());
    return Add(std::move(node));
  }
  // `value`, found at an index that is read: checked also where it doesn't matter, as all values are one.
  int Checked(const Expr& index, int value, int64_t size) {
    if (failed_ || split_) return 0;
    if (!nest_.symbols[index.terms[0].first].checked) return value;
    const mlir::Type type = nest_.nodes[value].type;
    const auto reads_at = [&](auto term) { return term.first == index.terms[0].first; };
    if (llvm::any_of(nest_.nodes[value].index.terms, reads_at)) return value;
    const int in_range = InRange(index, 0, size);  // moves the nodes
    return Combine(NestNode::Kind::kSelect, type, {in_range, value, value});
  }
  int And(int a, int b) { return a < 0 ? b : b < 0 ? a : Combine(NestNode::Kind::kAnd, nullptr, {a, b}); }

  // The position in each dim of `shape` of row-major element e.
  llvm::SmallVector<Expr> Positions(Expr e, llvm::ArrayRef<int64_t> shape) {
    llvm::SmallVector<Expr> positions(shape.size());
    for (size_t d = shape.size(); d-- > 0;) {
      if (shape[d] == 1) continue;
      if (NumElements(shape.take_front(d)) == 1) {
        positions[d] = e;
        break;
      }
      auto [q, r] = DivMod(e, shape[d]);
      positions[d] = r;
      e = q;
    }
    return positions;
  }
  static llvm::SmallVector<int64_t> RowMajor(llvm::ArrayRef<int64_t> shape) {
    llvm::SmallVector<int64_t> strides(shape.size(), 1);
    for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
    return strides;
  }

  int EvalNew(mlir::Value v, const Expr& e);
  int EvalStrided(mlir::Value x, const Expr& e, llvm::ArrayRef<int64_t> sizes, llvm::ArrayRef<int64_t> strides,
                  int64_t offset);
  int EvalView(mlir::Operation* op, const Expr& e);
  int EvalPad(ir::PadOp op, const Expr& e);
  int EvalConcat(ir::ConcatOp op, const Expr& e);
  int EvalUpdateSlice(ir::UpdateSliceOp op, const Expr& e);
  Expr PositionOf(ir::IotaOp op, const Expr& e);
  std::optional<Expr> LinearOf(mlir::Value index, const Expr& e);
  int EvalTake(ir::TakeOp op, const Expr& e);
  int EvalTakeAlong(ir::TakeAlongOp op, const Expr& e);
  int EvalReduce(mlir::Operation* op, const Expr& e);

  llvm::function_ref<bool(mlir::Operation*)> inside_;
  const OpenSizes open_;
  LoopNest nest_;
  std::multimap<size_t, Memo> memo_;
  bool failed_ = false;
  std::optional<std::pair<int, int64_t>> split_;
};

int Analysis::EvalNew(mlir::Value v, const Expr& e) {
  mlir::Operation* op = v.getDefiningOp();
  if (op != nullptr && mlir::isa<ir::ConstantOp>(op)) {
    auto value = mlir::cast<mlir::ElementsAttr>(op->getAttr("value"));
    if (value.isSplat()) return ConstantNode(value, ElementOf(v));
  }
  if (op == nullptr || !IsNestOp(op) || !(IsFreeOp(op) || inside_(op))) return Load(v, e);
  if (CountOf(v) == 0) {
    failed_ = true;
    return 0;
  }
  using llvm::TypeSwitch;
  return TypeSwitch<mlir::Operation*, int>(op)
      .Case<ir::ReshapeOp>([&](auto o) { return Eval(o.getX(), e); })
      .Case<ir::BroadcastOp, ir::TransposeOp, ir::SliceOp, ir::ReverseOp>([&](auto o) { return EvalView(o, e); })
      .Case<ir::PadOp>([&](auto o) { return EvalPad(o, e); })
      .Case<ir::ConcatOp>([&](auto o) { return EvalConcat(o, e); })
      .Case<ir::UpdateSliceOp>([&](auto o) { return EvalUpdateSlice(o, e); })
      .Case<ir::IotaOp>([&](auto o) {
        return Add({.kind = NestNode::Kind::kIndex, .type = ElementOf(v), .index = PositionOf(o, e)});
      })
      .Case<ir::TakeOp>([&](auto o) { return EvalTake(o, e); })
      .Case<ir::TakeAlongOp>([&](auto o) { return EvalTakeAlong(o, e); })
      .Case<ir::ReduceOp, ir::ArgReduceOp>([&](auto o) { return EvalReduce(o, e); })
      .Case<ir::RandomBitsOp>([&](auto o) {
        NestNode node;
        node.kind = NestNode::Kind::kRandom;
        node.type = ElementOf(v);
        node.index = e;
        node.operands = {Eval(o.getSeed(), Expr()), Eval(o.getOffset(), Expr())};
        return Add(std::move(node));
      })
      .Default([&](mlir::Operation* o) {
        NestNode node;
        node.kind = NestNode::Kind::kOp;
        node.op = o;
        node.type = ElementOf(v);
        for (mlir::Value operand : o->getOperands()) node.operands.push_back(Eval(operand, e));
        return Add(std::move(node));
      });
}

// A view whose result dim d walks over the operand with strides[d]. Dims that one stride can walk are taken together,
// so no loop is split that need not be.
int Analysis::EvalStrided(mlir::Value x, const Expr& e, llvm::ArrayRef<int64_t> sizes, llvm::ArrayRef<int64_t> strides,
                          int64_t offset) {
  llvm::SmallVector<int64_t> run_sizes, run_strides;  // innermost first
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (!run_sizes.empty() && strides[d] == run_strides.back() * run_sizes.back()) {
      run_sizes.back() *= sizes[d];
    } else {
      run_sizes.push_back(sizes[d]);
      run_strides.push_back(strides[d]);
    }
  }
  std::reverse(run_sizes.begin(), run_sizes.end());
  std::reverse(run_strides.begin(), run_strides.end());
  Expr at = Constant(offset);
  if (llvm::all_of(run_strides, [](int64_t stride) { return stride == 0; })) return Eval(x, at);
  llvm::SmallVector<Expr> positions = Positions(e, run_sizes);
  for (size_t i = 0; i < run_sizes.size(); ++i) at = at + positions[i] * run_strides[i];
  return Eval(x, at);
}

int Analysis::EvalView(mlir::Operation* op, const Expr& e) {
  mlir::Value x = op->getOperand(0);
  llvm::SmallVector<int64_t> of_operand = RowMajor(ShapeOf(x));
  llvm::ArrayRef<int64_t> sizes = ShapeOf(op->getResult(0));
  llvm::SmallVector<int64_t> strides(sizes.size(), 0);
  int64_t offset = 0;
  if (auto broadcast = mlir::dyn_cast<ir::BroadcastOp>(op)) {
    for (auto [i, d] : llvm::enumerate(broadcast.getDims())) strides[d] = ShapeOf(x)[i] == 1 ? 0 : of_operand[i];
  } else if (auto transpose = mlir::dyn_cast<ir::TransposeOp>(op)) {
    for (auto [i, d] : llvm::enumerate(transpose.getPermutation())) strides[i] = of_operand[d];
  } else if (auto slice = mlir::dyn_cast<ir::SliceOp>(op)) {
    for (size_t d = 0; d < sizes.size(); ++d) {
      offset += slice.getStart()[d] * of_operand[d];
      strides[d] = slice.getStride()[d] * of_operand[d];
    }
  } else {
    strides = of_operand;
    for (int64_t d : mlir::cast<ir::ReverseOp>(op).getDims()) {
      offset += (sizes[d] - 1) * strides[d];
      strides[d] = -strides[d];
    }
  }
  return EvalStrided(x, e, sizes, strides, offset);
}

int Analysis::EvalPad(ir::PadOp op, const Expr& e) {
  llvm::ArrayRef<int64_t> result = ShapeOf(op.getResult()), shape = ShapeOf(op.getX());
  int value = Eval(op.getValue(), Expr());
  if (CountOf(op.getX()) == 0) return value;
  llvm::SmallVector<int64_t> strides = RowMajor(shape);
  llvm::SmallVector<Expr> positions = Positions(e, result);
  Expr at;
  int guard = -1;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (result[d] == shape[d]) {
      at = at + positions[d] * strides[d];
      continue;
    }
    Expr position = positions[d] + Constant(-op.getLow()[d]);
    if (int64_t step = op.getInterior()[d] + 1; step > 1) {
      // Multiples of the step, from 0 to the last element.
      guard = And(guard, InRange(position, 0, (shape[d] - 1) * step + 1));
      auto [q, r] = DivMod(Clamp(position, (shape[d] - 1) * step + 1), step);
      guard = And(guard, InRange(r, 0, 1));
      at = at + q * strides[d];
    } else {
      guard = And(guard, InRange(position, 0, shape[d]));
      at = at + Clamp(position, shape[d]) * strides[d];
    }
  }
  int inside = Eval(op.getX(), at);
  if (guard < 0) return inside;
  return Combine(NestNode::Kind::kSelect, ElementOf(op.getResult()), {guard, inside, value});
}

int Analysis::EvalConcat(ir::ConcatOp op, const Expr& e) {
  llvm::ArrayRef<int64_t> shape = ShapeOf(op.getResult());
  int64_t dim = op.getDim();
  int64_t inner = NumElements(shape.drop_front(dim + 1)), run = shape[dim] * inner;
  Expr outer, within = e;
  if (NumElements(shape.take_front(dim)) > 1) std::tie(outer, within) = DivMod(e, run);
  int64_t unit = 0;  // of which every piece is a multiple
  for (mlir::Value piece : op.getInputs()) unit = std::gcd(unit, open_.Without(ShapeOf(piece)[dim] * inner));
  Expr number = within, rest;
  if (unit >= 8 && unit < run) {
    std::tie(number, rest) = DivMod(within, unit);
  } else {
    unit = 1;
  }
  const bool apart = !nest_.IsVector(DependenceOf(number).loops);  // all lanes are in one part
  NestNode choice{.kind = NestNode::Kind::kChoose, .type = ElementOf(op.getResult()), .index = number};
  for (int64_t start = 0; mlir::Value piece : op.getInputs()) {
    const int64_t size = ShapeOf(piece)[dim] * inner / unit;
    if (size == 0) continue;
    const size_t known = nest_.nodes.size();
    const Expr at = outer * (size * unit) + Clamp(number + Constant(-start), size) * unit + rest;
    choice.operands.push_back(Eval(piece, at));
    choice.starts.push_back(start);
    start += size;
    if (failed_ || split_) return 0;
    const double share = apart ? static_cast<double>(size * unit) / static_cast<double>(run) : 1;
    for (NestNode& node : llvm::drop_begin(nest_.nodes, known)) node.share *= share;
  }
  if (choice.operands.size() == 1) return choice.operands[0];
  if (apart) return Add(std::move(choice));
  int result = choice.operands.back();
  for (size_t i = choice.operands.size() - 1; i-- > 0;) {
    const int guard = InRange(number, INT64_MIN, choice.starts[i + 1]);
    result = Combine(NestNode::Kind::kSelect, choice.type, {guard, choice.operands[i], result});
  }
  return result;
}

int Analysis::EvalUpdateSlice(ir::UpdateSliceOp op, const Expr& e) {
  llvm::ArrayRef<int64_t> base = ShapeOf(op.getBase()), src = ShapeOf(op.getSrc());
  int kept = Eval(op.getBase(), e);
  if (CountOf(op.getSrc()) == 0) return kept;
  llvm::SmallVector<int64_t> strides = RowMajor(src);
  llvm::SmallVector<Expr> positions = Positions(e, base);
  Expr at;
  int guard = -1;
  for (size_t d = 0; d < base.size(); ++d) {
    if (src[d] == base[d]) {
      at = at + positions[d] * strides[d];
      continue;
    }
    Expr position = positions[d] + Constant(-op.getStart()[d]);
    int64_t step = op.getStride()[d], span = (src[d] - 1) * step + 1;
    guard = And(guard, InRange(position, 0, span));
    Expr clamped = Clamp(position, span);
    if (step > 1 && src[d] > 1) {
      auto [q, r] = DivMod(clamped, step);
      guard = And(guard, InRange(r, 0, 1));
      clamped = q;
    }
    at = at + clamped * strides[d];
  }
  int updated = Eval(op.getSrc(), at);
  if (guard < 0) return updated;
  return Combine(NestNode::Kind::kSelect, ElementOf(op.getResult()), {guard, updated, kept});
}

Expr Analysis::PositionOf(ir::IotaOp op, const Expr& e) {
  llvm::ArrayRef<int64_t> shape = ShapeOf(op.getResult());
  int64_t dim = op.getDim(), inner = NumElements(shape.drop_front(dim + 1));
  Expr position = DivMod(e, inner).first;
  if (NumElements(shape.take_front(dim)) > 1) position = DivMod(position, shape[dim]).second;
  return position;
}

// An index that is linear in positions (of the windows of a view, say) is not looked up.
std::optional<Expr> Analysis::LinearOf(mlir::Value index, const Expr& e) {
  mlir::Operation* op = index.getDefiningOp();
  if (op == nullptr || !(IsFreeOp(op) || inside_(op))) return std::nullopt;
  if (auto iota = mlir::dyn_cast<ir::IotaOp>(op)) return PositionOf(iota, e);
  if (auto constant = mlir::dyn_cast<ir::ConstantOp>(op); constant && IsFreeOp(op)) {
    return Constant(
        mlir::cast<mlir::DenseElementsAttr>(constant.getValue()).getSplatValue<llvm::APInt>().getSExtValue());
  }
  if (!mlir::isa<ir::AddOp, ir::MulOp>(op)) return std::nullopt;
  const auto a = LinearOf(op->getOperand(0), e), b = LinearOf(op->getOperand(1), e);
  if (!a || !b) return std::nullopt;
  if (mlir::isa<ir::AddOp>(op)) return *a + *b;
  if (a->terms.empty()) return *b * a->constant;
  return b->terms.empty() ? std::optional(*a * b->constant) : std::nullopt;
}

int Analysis::EvalTake(ir::TakeOp op, const Expr& e) {
  llvm::ArrayRef<int64_t> shape = ShapeOf(op.getX());
  int64_t dim = op.getDim(), inner = NumElements(shape.drop_front(dim + 1)), count = CountOf(op.getIndices());
  auto [rest, innermost] = DivMod(e, inner);
  Expr outer, which = rest;
  if (NumElements(shape.take_front(dim)) > 1) std::tie(outer, which) = DivMod(rest, count);
  if (const auto linear = LinearOf(op.getIndices(), which); linear && IsWithin(*linear, shape[dim])) {
    return Eval(op.getX(), outer * (shape[dim] * inner) + *linear * inner + innermost);
  }
  int index = Eval(op.getIndices(), which);
  if (failed_ || split_) return 0;
  Expr at = NodeSymbol(index, shape[dim]);
  return Checked(at, Eval(op.getX(), outer * (shape[dim] * inner) + at * inner + innermost), shape[dim]);
}

int Analysis::EvalTakeAlong(ir::TakeAlongOp op, const Expr& e) {
  llvm::ArrayRef<int64_t> shape = ShapeOf(op.getX()), result = ShapeOf(op.getResult());
  int64_t dim = op.getDim();
  llvm::SmallVector<int64_t> strides = RowMajor(shape);
  int index = Eval(op.getIndices(), e);
  if (failed_ || split_) return 0;
  llvm::SmallVector<Expr> positions = Positions(e, result);
  Expr at;
  Expr taken = NodeSymbol(index, shape[dim]);
  for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
    at = at + (d == dim ? taken : positions[d]) * strides[d];
  }
  return Checked(taken, Eval(op.getX(), at), shape[dim]);
}

int Analysis::EvalReduce(mlir::Operation* op, const Expr& e) {
  if (ReducedCount(op) == 1) {
    if (mlir::isa<ir::ReduceOp>(op)) return Eval(op->getOperand(0), e);
    return Add({.kind = NestNode::Kind::kIndex, .type = ElementOf(op->getResult(0))});
  }
  if (!(e == nest_.RowIndex())) {
    failed_ = true;
    return 0;
  }
  NestNode node;
  node.kind = NestNode::Kind::kReduce;
  node.op = op;
  node.type = ElementOf(op->getResult(0));
  node.operands = {Eval(op->getOperand(0), nest_.FullIndex())};
  if (failed_ || split_) return 0;
  int id = Add(std::move(node));
  NestNode& added = nest_.nodes[id];
  added.phase += 1;
  added.reduced = false;
  added.loops = DependenceOf(nest_.RowIndex()).loops;
  nest_.reduces.push_back(id);
  nest_.phases = std::max(nest_.phases, added.phase);
  return id;
}

}  // namespace

std::optional<LoopNest> AnalyzeLoopNest(llvm::function_ref<bool(mlir::Operation*)> inside,
                                        llvm::ArrayRef<mlir::Value> outputs) {
  // The reductions reachable inside agree on the space, or there are none and the outputs do.
  std::vector<Loop> loops;
  bool has_reduce = false;
  llvm::SmallVector<mlir::Value> work(outputs.begin(), outputs.end());
  llvm::SmallPtrSet<mlir::Operation*, 32> seen;
  while (!work.empty()) {
    mlir::Operation* op = work.pop_back_val().getDefiningOp();
    if (op == nullptr || !IsNestOp(op) || !(IsFreeOp(op) || inside(op)) || !seen.insert(op).second) continue;
    if (mlir::isa<ir::ReduceOp, ir::ArgReduceOp>(op) && ReducedCount(op) != 1) {
      std::vector<Loop> runs = RunsOf(op);
      auto same = [](const Loop& a, const Loop& b) { return a.size == b.size && a.reduced == b.reduced; };
      if (has_reduce && !std::equal(runs.begin(), runs.end(), loops.begin(), loops.end(), same)) return std::nullopt;
      loops = runs;
      has_reduce = true;
    }
    for (mlir::Value operand : op->getOperands()) work.push_back(operand);
  }
  if (!has_reduce && CountOf(outputs[0]) > 1) loops.push_back({CountOf(outputs[0]), false});

  for (int attempt = 0; attempt < kMaxSplits; ++attempt) {
    Analysis analysis(inside, loops, outputs[0]);
    LoopNest& nest = analysis.nest();
    nest.has_reduce = has_reduce;
    int64_t full = nest.full_count(), kept = nest.kept_count();
    for (mlir::Value output : outputs) {
      int64_t count = CountOf(output);
      if (count != full && count != kept) return std::nullopt;
      bool is_full = count == full && has_reduce ? full != kept : !has_reduce;
      NestOutput out;
      out.full = is_full;
      out.node = analysis.Eval(output, is_full ? nest.FullIndex() : nest.RowIndex());
      nest.outputs.push_back(out);
      if (analysis.failed()) return std::nullopt;
    }
    if (!analysis.split()) {
      if (nest.WrittenNodes() > kMaxNodes) return std::nullopt;
      return std::move(nest);
    }
    auto [loop, factor] = *analysis.split();
    Loop inner = loops[loop];
    inner.size = factor;
    loops[loop].size /= factor;
    loops.insert(loops.begin() + loop + 1, inner);
  }
  return std::nullopt;
}

std::optional<StridedSource> FindStridedSource(mlir::Value value) {
  std::vector<Loop> loops;
  llvm::SmallVector<int> loop_of;
  for (int64_t size : ShapeOf(value)) {
    loop_of.push_back(size > 1 ? static_cast<int>(loops.size()) : -1);
    if (size > 1) loops.push_back({size, false});
  }
  Analysis analysis([](mlir::Operation*) { return false; }, loops, value);
  LoopNest& nest = analysis.nest();
  int root = analysis.Eval(value, nest.FullIndex());
  if (analysis.failed() || analysis.split() || nest.nodes.size() != 1) return std::nullopt;
  const NestNode& load = nest.nodes[root];
  if (load.kind != NestNode::Kind::kLoad) return std::nullopt;
  StridedSource source;
  source.source = nest.inputs[0];
  source.offset = load.index.constant;
  llvm::SmallVector<int64_t> by_loop(loops.size(), 0);
  for (auto [symbol, c] : load.index.terms) {
    if (symbol >= static_cast<int>(loops.size())) return std::nullopt;
    by_loop[symbol] = c;
  }
  for (int loop : loop_of) source.strides.push_back(loop < 0 ? 0 : by_loop[loop]);
  return source;
}

}  // namespace tpu::host
