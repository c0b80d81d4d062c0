#include "compiler/host/nest_values.h"

#include <cmath>
#include <optional>

#include "compiler/host/object_code.h"
#include "compiler/ir/dialect.h"

namespace tpu::host {
namespace {

using llvm::Value;
using Kind = NestNode::Kind;

constexpr int64_t kLongSum = 256;         // of f32, in one accumulator
constexpr int64_t kLongColumn = 1 << 10;  // the same of one known size: numbers that differ stay within 1e-6
constexpr int64_t kLongRow = 1 << 12;     // of f32, in as many accumulators as the innermost loop has lanes

constexpr int kRoundedDepth = 6;  // at most 2 to its power nodes are looked at

// Of a constant that may be a size (what a mean divides by).
std::optional<int64_t> WholeNumber(const NestNode& constant) {
  constexpr double kMostExact = 1 << 24;
  if (constant.type.isInteger(1)) return std::nullopt;
  auto elements = mlir::cast<mlir::DenseElementsAttr>(constant.value);
  if (mlir::isa<mlir::FloatType>(constant.type)) {
    const llvm::APFloat value = elements.getSplatValue<llvm::APFloat>();
    const double number = value.convertToDouble();
    if (!value.isInteger() || value.isNegZero() || std::abs(number) > kMostExact) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (!constant.type.isIntOrIndex()) return std::nullopt;
  const llvm::APInt value = elements.getSplatValue<llvm::APInt>();
  return constant.type.isUnsignedInteger() ? static_cast<int64_t>(value.getZExtValue()) : value.getSExtValue();
}

}  // namespace

void NestValues::For(Value* begin, Value* end, int64_t step, const Body& body, llvm::function_ref<void()> enter) {
  const auto scoped = [&](Value* position) {
    scopes_.emplace_back();
    body(position);
    scopes_.pop_back();
  };
  KernelFrame::For(begin, end, step, scoped, enter);
}

// Inputs count from the first element of each that is read: slices of one value share their code. In code for many
// sizes from their own first element: each number follows its own place then.
NestValues::NestValues(LoopNest nest, llvm::Module& module, int64_t prefetch, KernelNumbers& numbers)
    : KernelFrame(module, nest.inputs.size() + nest.outputs.size(), numbers),
      nest_(std::move(nest)),
      prefetch_(prefetch),
      non_temporal_(nest_.outputs.size(), false) {
  begins_.assign(nest_.inputs.size(), numbers.many ? 0 : INT64_MAX);
  for (const NestNode& node : nest_.nodes) {
    if (node.kind == Kind::kLoad) begins_[node.input] = std::min(begins_[node.input], node.index.constant);
  }
  std::vector<bool> begun(begins_.size());
  for (NestNode& node : nest_.nodes) {
    if (node.kind != Kind::kLoad) continue;
    int64_t& begin = begins_[node.input];
    begin = std::max<int64_t>(begin, 0);
    node.index.constant -= begin;
    if (begin == 0 || begun[node.input]) continue;
    begun[node.input] = true;
    pointers_[node.input] = At(pointers_[node.input], node.type, Begin(begin));
  }
}

NestValues::Reduction NestValues::ReductionOf(mlir::Operation* op) const {
  Reduction r;
  r.operand = r.element = mlir::cast<mlir::RankedTensorType>(op->getOperand(0).getType()).getElementType();
  if (auto arg = mlir::dyn_cast<ir::ArgReduceOp>(op)) {
    r.arg = true;
    r.fold = arg.getKind() == ir::ExtremumKind::max ? ElementOps::Fold::kMax : ElementOps::Fold::kMin;
    return r;
  }
  r.fold = static_cast<ElementOps::Fold>(mlir::cast<ir::ReduceOp>(op).getKind());
  // Sums of few results that have one known size are cut in parts before (passes/split_reductions.cc).
  const bool open = llvm::any_of(nest_.loops, [](const Loop& loop) { return loop.reduced && loop.most; });
  const int64_t longest = open ? kLongSum : nest_.inner_reduced() ? kLongRow : kLongColumn;
  if (r.fold == ElementOps::Fold::kSum && r.element.isF32() && ReducedMost() > longest) {
    r.element = mlir::Float64Type::get(op->getContext());
  }
  return r;
}

NestValues::Accumulator NestValues::Start(const Reduction& r, int width) {
  Accumulator a;
  a.value = ops_.Identity(r.fold, r.element, width);
  // Where nothing is better than nothing, all elements are alike, and the first is meant.
  if (r.arg) a.index = llvm::Constant::getNullValue(IndexType(width));
  return a;
}

NestValues::Accumulator NestValues::Here(const Reduction& r, int node) {
  Accumulator a;
  a.value = ops_.Convert(r.operand, r.element, GetLanes(nest_.nodes[node].operands[0]));
  if (r.arg) a.index = b_.CreateTrunc(Splat(ReducedPosition(), width_), IndexType(width_));
  return a;
}

llvm::Type* NestValues::IndexType(int width) {
  llvm::Type* type = ReducedMost() <= INT32_MAX ? b_.getInt32Ty() : b_.getInt64Ty();
  return width == 1 ? type : llvm::FixedVectorType::get(type, width);
}

NestValues::Accumulator NestValues::Merge(const Reduction& r, const Accumulator& a, const Accumulator& b, bool later) {
  if (!r.arg) return {ops_.Combine(r.fold, r.element, a.value, b.value), nullptr};
  // b wins if it is better, or as good and earlier; NaN is better than every number.
  const bool max = r.fold == ElementOps::Fold::kMax, floats = mlir::isa<mlir::FloatType>(r.element);
  Value* wins;
  if (floats) {
    wins = max ? b_.CreateFCmpUGT(b.value, a.value) : b_.CreateFCmpULT(b.value, a.value);
    wins = b_.CreateAnd(wins, b_.CreateFCmpORD(a.value, a.value));
  } else {
    bool u = r.element.isUnsignedInteger() || r.element.isInteger(1);
    wins = max ? (u ? b_.CreateICmpUGT(b.value, a.value) : b_.CreateICmpSGT(b.value, a.value))
               : (u ? b_.CreateICmpULT(b.value, a.value) : b_.CreateICmpSLT(b.value, a.value));
  }
  if (!later) {
    Value* equal = floats ? b_.CreateFCmpUEQ(a.value, b.value) : b_.CreateICmpEQ(a.value, b.value);
    if (floats) {  // of two of which one is NaN, that one
      Value* alike = b_.CreateICmpEQ(b_.CreateFCmpUNO(a.value, a.value), b_.CreateFCmpUNO(b.value, b.value));
      equal = b_.CreateAnd(equal, alike);
    }
    wins = b_.CreateOr(wins, b_.CreateAnd(equal, b_.CreateICmpSLT(b.index, a.index)));
  }
  return {b_.CreateSelect(wins, b.value, a.value), b_.CreateSelect(wins, b.index, a.index)};
}

NestValues::Accumulator NestValues::Horizontal(const Reduction& r, Accumulator a) {
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(a.value->getType());
  if (vector == nullptr) return a;
  int lanes = static_cast<int>(vector->getNumElements());
  auto half = [&](Value* v, int from, int count) -> Value* {
    if (v == nullptr) return nullptr;
    if (count == 1) return b_.CreateExtractElement(v, from);
    llvm::SmallVector<int> mask;
    for (int i = 0; i < count; ++i) mask.push_back(from + i);
    return b_.CreateShuffleVector(v, mask);
  };
  for (; lanes > 1; lanes /= 2) {
    Accumulator low{half(a.value, 0, lanes / 2), half(a.index, 0, lanes / 2)};
    Accumulator high{half(a.value, lanes / 2, lanes / 2), half(a.index, lanes / 2, lanes / 2)};
    a = Merge(r, low, high);
  }
  return a;
}

// The position within the reduced loops, as lanes.
Value* NestValues::ReducedPosition() {
  Expr e;
  int64_t stride = 1;
  for (size_t i = nest_.loops.size(); i-- > 0;) {
    if (!nest_.loops[i].reduced) continue;
    Expr term;
    term.terms.push_back({static_cast<int>(i), stride});
    e = e + term;
    stride *= nest_.loops[i].size;
  }
  return IsVector(uint64_t{1} << (nest_.loops.size() - 1)) ? Lanes(e) : Scalar(e);
}

llvm::Type* NestValues::BufferType(mlir::Type element, int width) {
  llvm::Type* type = ops_.RegisterType(element, width);
  return type->getScalarSizeInBits() < 32 ? type->getWithNewBitWidth(32) : type;
}

Value* NestValues::ToBuffer(Value* value) {
  llvm::Type* type = value->getType();
  return type->getScalarSizeInBits() < 32 ? b_.CreateZExt(value, type->getWithNewBitWidth(32)) : value;
}

Value* NestValues::FromBuffer(mlir::Type element, Value* value) {
  const unsigned bits = ops_.RegisterType(element, 1)->getScalarSizeInBits();
  return bits < 32 ? b_.CreateTrunc(value, value->getType()->getWithNewBitWidth(bits)) : value;
}

Value* NestValues::InRow(Value* buffer, llvm::Type* element) {
  Value* at = ReducedPosition();
  if (at->getType()->isVectorTy()) at = b_.CreateExtractElement(at, uint64_t{0});
  if (nest_.beside()) at = b_.CreateMul(at, b_.getInt64(width_));
  return b_.CreateInBoundsGEP(element, buffer, at);
}

NestValues::Accumulator NestValues::LoadSlots(const Reduction& r, const Slots& slots, int width) {
  Accumulator a;
  auto load = [&](Value* slot, llvm::Type* type) {
    return b_.CreateAlignedLoad(type, slot, llvm::Align(type->getScalarSizeInBits() >= 32 ? 4 : 1));
  };
  a.value = load(slots.value, ops_.RegisterType(r.element, width));
  if (r.arg) a.index = load(slots.index, IndexType(width));
  return a;
}

void NestValues::StoreSlots(const Slots& slots, const Accumulator& a) {
  auto store = [&](Value* v, Value* slot) {
    b_.CreateAlignedStore(v, slot, llvm::Align(v->getType()->getScalarSizeInBits() >= 32 ? 4 : 1));
  };
  store(a.value, slots.value);
  if (a.index != nullptr) store(a.index, slots.index);
}

Value* NestValues::Get(int id) {
  for (size_t i = scopes_.size(); i-- > 0;) {
    auto it = scopes_[i].nodes.find(id);
    if (it != scopes_[i].nodes.end()) return it->second;
  }
  Value* v = Compute(id);
  if (nest_.nodes[id].kind != Kind::kConstant) scopes_.back().nodes[id] = v;
  return v;
}

Value* NestValues::GetLanes(int id) { return Splat(Get(id), width_); }

Value* NestValues::SymbolValue(int id, bool lanes) {
  lanes = lanes && IsVector(nest_.symbols[id].loops);
  for (size_t i = scopes_.size(); i-- > 0;) {
    auto it = scopes_[i].symbols.find({id, lanes});
    if (it != scopes_[i].symbols.end()) return it->second;
  }
  Value* v = ComputeSymbol(id, lanes);
  if (nest_.symbols[id].kind != Symbol::Kind::kLoop || lanes) scopes_.back().symbols[{id, lanes}] = v;
  return v;
}

Value* NestValues::ComputeSymbol(int id, bool lanes) {
  const Symbol& symbol = nest_.symbols[id];
  Value* of = nullptr;
  if (symbol.kind == Symbol::Kind::kLoop) {
    of = position_[id];
    if (!lanes) return of;
    return Ascending(of, width_);
  }
  if (symbol.kind == Symbol::Kind::kNode) {
    Value* index = Get(symbol.node);
    return symbol.a == 0 ? index : Checked(index, symbol.a);
  }
  of = lanes ? Lanes(symbol.of) : Scalar(symbol.of);
  auto number = [&](int64_t v) { return I64(v, of); };
  switch (symbol.kind) {
    case Symbol::Kind::kDiv:
      return b_.CreateUDiv(of, number(symbol.a));
    case Symbol::Kind::kMod:
      return b_.CreateURem(of, number(symbol.a));
    default: {
      Value* low = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, of, number(0));
      return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, low, number(symbol.size - 1));
    }
  }
}

Value* NestValues::Scalar(const Expr& e) {
  Value* sum = nullptr;
  for (auto [symbol, c] : e.terms) {
    Value* term = SymbolValue(symbol, false);
    if (c != 1) term = b_.CreateMul(term, I64(c));
    sum = sum == nullptr ? term : b_.CreateAdd(sum, term);
  }
  if (sum == nullptr) return I64(e.constant);
  return e.constant == 0 && !many() ? sum : b_.CreateAdd(sum, I64(e.constant));
}

Value* NestValues::Ascending(Value* first, int count) {
  llvm::SmallVector<llvm::Constant*> steps;
  for (int i = 0; i < count; ++i) steps.push_back(b_.getInt64(i));
  return b_.CreateAdd(Splat(first, count), llvm::ConstantVector::get(steps));
}

Value* NestValues::Lanes(const Expr& e) {
  Expr same;
  same.constant = e.constant;
  Value* sum = nullptr;
  for (auto [symbol, c] : e.terms) {
    if (!IsVector(nest_.symbols[symbol].loops)) {
      same.terms.push_back({symbol, c});
      continue;
    }
    Value* term = SymbolValue(symbol, true);
    if (c != 1) term = b_.CreateMul(term, I64(c, term));
    sum = sum == nullptr ? term : b_.CreateAdd(sum, term);
  }
  Value* base = Splat(Scalar(same), width_);
  return sum == nullptr ? base : b_.CreateAdd(sum, base);
}

Value* NestValues::Random(const NestNode& node) {
  Value* seed = Get(node.operands[0]);
  Value* offset = Get(node.operands[1]);
  // Lanes that lie `step` words apart, of whole blocks of four.
  const int last = static_cast<int>(nest_.lane_loop());
  const int step = static_cast<int>(LaneStep(node.index)), word = static_cast<int>(node.index.constant & 3);
  bool whole = width_ > 4 && (step == 1 || step == 2 || step == 4) && word < step;
  for (auto [symbol, c] : node.index.terms) whole &= symbol == last || c % 4 == 0;
  if (whole) {
    const int blocks = width_ * step / 4;
    Expr index = node.index;
    index.constant -= word;  // draws of other words then share the blocks
    Value* first = b_.CreateAdd(b_.CreateLShr(Scalar(index), I64(2)), offset);
    auto words = ops_.math().Philox(Ascending(first, blocks), seed);
    if (step == 4) return words[word];
    llvm::SmallVector<int> join, order;
    for (int i = 0; i < 2 * blocks; ++i) join.push_back(i);
    const auto joined = [&](int one, int other) { return b_.CreateShuffleVector(words[one], words[other], join); };
    if (step == 2) {
      for (int i = 0; i < width_; ++i) order.push_back(i % 2 * blocks + i / 2);
      return b_.CreateShuffleVector(joined(word, word + 2), order);
    }
    for (int i = 0; i < width_; ++i) order.push_back(i % 4 * blocks + i / 4);
    return b_.CreateShuffleVector(joined(0, 1), joined(2, 3), order);
  }
  uint64_t loops = 0;
  for (auto [symbol, c] : node.index.terms) loops |= nest_.symbols[symbol].loops;
  Value* index = IsVector(loops) ? Lanes(node.index) : Scalar(node.index);
  auto number = [&](int64_t v) { return llvm::ConstantInt::get(index->getType(), v); };
  int width = index->getType()->isVectorTy() ? width_ : 1;
  auto words = ops_.math().Philox(b_.CreateAdd(b_.CreateLShr(index, number(2)), Splat(offset, width)), seed);
  Value* which = b_.CreateAnd(index, number(3));
  Value* result = words[3];
  for (int i = 3; i-- > 0;) result = b_.CreateSelect(b_.CreateICmpEQ(which, number(i)), words[i], result);
  return result;
}

// One of the operands [begin, end), found by halves.
Value* NestValues::Choose(const NestNode& node, Value* at, size_t begin, size_t end) {
  if (end - begin == 1) {
    scopes_.emplace_back();
    Value* part = Get(node.operands[begin]);
    if (IsVector(node.loops)) part = Splat(part, width_);
    scopes_.pop_back();
    return part;
  }
  const size_t middle = (begin + end) / 2;
  return Either(
      b_.CreateICmpSLT(at, I64(node.starts[middle])), [&] { return Choose(node, at, begin, middle); },
      [&] { return Choose(node, at, middle, end); });
}

bool NestValues::IsRounded(int id, mlir::FloatType half, int depth) const {
  const NestNode& node = nest_.nodes[id];
  if (node.type == half) return true;
  if (node.kind == Kind::kConstant) {
    llvm::APFloat value = mlir::cast<mlir::DenseElementsAttr>(node.value).getSplatValue<llvm::APFloat>();
    bool loses = false;
    value.convert(half.getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven, &loses);
    return !loses;
  }
  const auto operands = [&](size_t first) {
    return depth > 0 && llvm::all_of(llvm::ArrayRef(node.operands).drop_front(first),
                                     [&](int operand) { return IsRounded(operand, half, depth - 1); });
  };
  if (node.kind == Kind::kSelect) return operands(1);
  if (node.kind != Kind::kOp) return false;
  if (mlir::isa<ir::ConvertOp>(node.op)) return nest_.nodes[node.operands[0]].type == half;
  if (mlir::isa<ir::SelectOp>(node.op)) return operands(1);
  return ElementOps::KeepsRounded(node.op) && operands(0);
}

Value* NestValues::Compute(int id) {
  const NestNode& node = nest_.nodes[id];
  if (auto it = scratch_.find(id); it != scratch_.end() && node.phase < pass_) {
    llvm::Type* type = ops_.RegisterType(node.type, width_);
    return b_.CreateAlignedLoad(type, InRow(it->second, type->getScalarType()), llvm::Align(4));
  }
  switch (node.kind) {
    case Kind::kLoad:
      if (auto it = brought_.find(id); it != brought_.end() && width_ > 1) {
        llvm::Type* type = BufferType(node.type, width_);
        Value* at = InRow(it->second, type->getScalarType());
        return FromBuffer(node.type, b_.CreateAlignedLoad(type, at, llvm::Align(4)));
      }
      return LoadAt(id);
    case Kind::kConstant:
      if (auto whole = WholeNumber(node)) {
        return ops_.Convert(mlir::IntegerType::get(node.type.getContext(), 64), node.type, I64(*whole));
      }
      return ops_.Constant(node.value, node.type);
    case Kind::kIndex: {
      Value* at = IsVector(node.loops) ? Lanes(node.index) : Scalar(node.index);
      return ops_.Convert(mlir::IntegerType::get(node.type.getContext(), 64), node.type, at);
    }
    case Kind::kInRange: {
      Value* at = IsVector(node.loops) ? Lanes(node.index) : Scalar(node.index);
      auto number = [&](int64_t v) { return I64(v, at); };
      Value* below = b_.CreateICmpSLT(at, number(node.hi));
      return node.lo == INT64_MIN ? below : b_.CreateAnd(below, b_.CreateICmpSGE(at, number(node.lo)));
    }
    case Kind::kChoose:
      return Choose(node, Scalar(node.index), 0, node.operands.size());
    case Kind::kRandom:
      return Random(node);
    case Kind::kReduce: {  // block kernels: the accumulators of this block
      Reduction r = ReductionOf(node.op);
      Slots at = accumulators_[id];
      Value* offset = b_.CreateSub(position_.back(), block_begin_);
      at.value = b_.CreateInBoundsGEP(ops_.RegisterType(r.element, 1), at.value, offset);
      if (r.arg) at.index = b_.CreateInBoundsGEP(IndexType(1), at.index, offset);
      return Finish(id, LoadSlots(r, at, width_));
    }
    default:
      break;
  }
  llvm::SmallVector<Value*> operands;
  bool lanes = false;
  for (int operand : node.operands) {
    operands.push_back(Get(operand));
    lanes |= operands.back()->getType()->isVectorTy();
  }
  if (lanes) {
    for (Value*& operand : operands) operand = Splat(operand, width_);
  }
  if (node.kind == Kind::kAnd) return b_.CreateAnd(operands[0], operands[1]);
  if (node.kind == Kind::kSelect) return b_.CreateSelect(operands[0], operands[1], operands[2]);
  if (ChecksOperands(node.op)) {
    if (mlir::isa<ir::RequireOp>(node.op)) {
      CheckRequirement(operands[1]);
      return operands[0];
    }
    CheckDivisor(operands[1]);
  }
  auto half = mlir::dyn_cast<mlir::FloatType>(node.type);
  if (mlir::isa<ir::ConvertOp>(node.op) && half && half.getWidth() == 16 &&
      nest_.nodes[node.operands[0]].type.isF32() && IsRounded(node.operands[0], half, kRoundedDepth)) {
    return operands[0];  // in registers both are f32
  }
  return ops_.Apply(node.op, operands);
}

// Every value is known before the first is stored: an output may lie over an input that another output reads.
void NestValues::StoreOutputs(const std::function<bool(const NestOutput&)>& which) {
  std::vector<std::pair<size_t, Value*>> values;
  for (size_t i = 0; i < nest_.outputs.size(); ++i) {
    if (which(nest_.outputs[i])) values.push_back({i, GetLanes(nest_.outputs[i].node)});
  }
  for (auto [i, value] : values) StoreOutput(i, value);
}

void NestValues::StoreOutput(size_t i, Value* value) {
  mlir::Type element = nest_.nodes[nest_.outputs[i].node].type;
  if (nest_.beside() && nest_.outputs[i].full && width_ > 1) {
    Value* lanes = ToBuffer(value);
    b_.CreateAlignedStore(lanes, InRow(to_bring_[i], lanes->getType()->getScalarType()), llvm::Align(4));
    return;
  }
  Value* index = Scalar(nest_.outputs[i].full ? nest_.FullIndex() : nest_.RowIndex());
  ops_.Store(element, value, At(pointers_[nest_.inputs.size() + i], element, index), non_temporal_[i]);
}

Value* NestValues::Weave(llvm::ArrayRef<Value*> values) {
  const int count = static_cast<int>(values.size());
  if (count == 1) return values[0];
  auto* type = llvm::FixedVectorType::get(values[0]->getType()->getScalarType(), count * width_);
  Value* woven = llvm::PoisonValue::get(type);
  if (width_ == 1) {
    for (int i = 0; i < count; ++i) woven = b_.CreateInsertElement(woven, values[i], i);
    return woven;
  }
  llvm::SmallVector<int> order;
  if (count % 2 == 0) {  // of two vectors at a time, which are few instructions
    llvm::SmallVector<Value*> halves[2];
    for (int i = 0; i < count; ++i) halves[i % 2].push_back(values[i]);
    for (int i = 0; i < count * width_; ++i) order.push_back(i % 2 * (count / 2 * width_) + i / 2);
    return b_.CreateShuffleVector(Weave(halves[0]), Weave(halves[1]), order);
  }
  for (int i = 0; i < count; ++i) woven = b_.CreateInsertVector(type, woven, values[i], uint64_t(i * width_));
  for (int i = 0; i < count * width_; ++i) order.push_back(i % count * width_ + i / count);
  return b_.CreateShuffleVector(woven, order);
}

}  // namespace tpu::host
