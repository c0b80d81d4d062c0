// How a nest reads its inputs: neighbours at once, every second one, under a mask, lane by lane; and what it asks for
// ahead.
#include "compiler/host/nest_values.h"
#include "compiler/host/object_code.h"

namespace tpu::host {
namespace {

using llvm::Value;
using Kind = NestNode::Kind;

constexpr int64_t kLine = 64;            // bytes of a cache line
constexpr int64_t kLeastRun = 16 << 10;  // bytes read one after another, for which what lies ahead is asked for

}  // namespace

int64_t NestValues::LaneStep(const Expr& e) const {
  const int last = static_cast<int>(nest_.lane_loop());
  int64_t step = 0;
  for (auto [symbol, c] : e.terms) {
    if (!nest_.IsVector(nest_.symbols[symbol].loops)) continue;
    if (symbol != last) return 0;
    step = c;
  }
  return step;
}

int NestValues::ClampOfRun(const NestNode& load) const {
  // Narrow elements are loaded under a mask by AVX-512 alone.
  const int64_t bytes = ElementOps::BytesOf(load.type);
  if (VectorBits() < 256 || bytes > 8 || (VectorBits() < 512 && bytes < 4)) return -1;
  const int last = static_cast<int>(nest_.lane_loop());
  int clamp = -1;
  for (auto [id, c] : load.index.terms) {
    const Symbol& symbol = nest_.symbols[id];
    if (!nest_.IsVector(symbol.loops)) continue;
    if (clamp >= 0 || id == last || symbol.kind != Symbol::Kind::kClamp || c != 1 || !IsUnit(symbol.of)) return -1;
    clamp = id;
  }
  return clamp;
}

bool NestValues::IsGather(const NestNode& node) const {
  const int64_t step = LaneStep(node.index);
  return node.kind == Kind::kLoad && nest_.IsVector(node.loops) && std::abs(step) != 1 && step != 2 &&
         ClampOfRun(node) < 0 && !IsBrought(node);
}

bool NestValues::IsBrought(const NestNode& node) const {
  if (!nest_.beside() || node.kind != Kind::kLoad || node.phase > 0) return false;
  if (nest_.loops.back().size < kTurned) return false;
  int64_t along = 0;
  uint64_t loops = 0;
  for (auto [symbol, c] : node.index.terms) {
    const Symbol& s = nest_.symbols[symbol];
    const bool innermost = symbol + 1 == static_cast<int>(nest_.loops.size());
    if (innermost) along = c;
    if (!innermost && nest_.IsInnermost(s.loops)) return false;
    loops |= s.loops;
  }
  return along == 1 && nest_.IsVector(loops) && std::abs(LaneStep(node.index)) != 1;
}

// Two loads of neighbours, the second of which ends with the last lane: what comes after it may not be there.
Value* NestValues::LoadEverySecond(const NestNode& node) {
  llvm::SmallVector<Value*, 2> halves;
  for (int64_t from : {int64_t{0}, int64_t{width_} - 1}) {
    Value* at = At(pointers_[node.input], node.type, b_.CreateAdd(Scalar(node.index), b_.getInt64(from)));
    halves.push_back(b_.CreateAlignedLoad(ops_.MemoryType(node.type, width_), at, ElementOps::AlignOf(node.type)));
  }
  llvm::SmallVector<int> order;
  for (int i = 0; i < width_; ++i) order.push_back(2 * i < width_ ? 2 * i : 2 * i + 1);
  return ops_.FromMemory(node.type, b_.CreateShuffleVector(halves[0], halves[1], order));
}

// What lies side by side, under a mask: a lane out of bounds is not asked for (its reader guards it) and has the value
// of a lane that is, as any other element might be a divisor or an index that is none.
Value* NestValues::LoadClamped(const NestNode& node, int clamp) {
  const Symbol& symbol = nest_.symbols[clamp];
  Expr rest;
  rest.constant = node.index.constant;
  for (const auto& term : node.index.terms) {
    if (term.first != clamp) rest.terms.push_back(term);
  }
  Value* position = Lanes(symbol.of);
  Value* mask = b_.CreateAnd(b_.CreateICmpSGE(position, b_.CreateVectorSplat(width_, b_.getInt64(0))),
                             b_.CreateICmpSLT(position, I64(symbol.size, position)));
  llvm::Type* element = ops_.MemoryType(node.type, 1);
  const llvm::Align align = ElementOps::AlignOf(node.type);
  Value* pointer = pointers_[node.input];
  Value* inside = b_.CreateAlignedLoad(element, At(pointer, node.type, Scalar(node.index)), align);
  Value* first = b_.CreateGEP(element, pointer, b_.CreateAdd(Scalar(rest), Scalar(symbol.of)));
  return ops_.FromMemory(node.type, b_.CreateMaskedLoad(ops_.MemoryType(node.type, width_), first, align, mask,
                                                        b_.CreateVectorSplat(width_, inside)));
}

// How far ahead of a load of neighbours lies what its loop will read soon and no earlier load has brought; nullptr
// where that is nowhere, or so short a way that it would mostly ask for what nobody reads.
Value* NestValues::NextBytes(const NestNode& load) {
  const auto stride = [&](size_t loop) {
    for (auto [symbol, c] : load.index.terms) {
      if (symbol == static_cast<int>(loop)) return c;
    }
    return int64_t{0};
  };
  const int64_t bytes = ElementOps::BytesOf(load.type);
  if (nest_.has_reduce && !nest_.inner_reduced()) {  // block by block: the same part of the next row
    for (size_t i = nest_.loops.size(); i-- > 0;) {
      if (nest_.loops[i].reduced) return stride(i) > 0 ? I64(stride(i) * bytes) : nullptr;
    }
  }
  int64_t next = 1, run = bytes;
  for (size_t i = nest_.loops.size(); i-- > 0;) {
    const Loop& loop = nest_.loops[i];
    if (loop.size == 1 && !loop.most) continue;
    if (stride(i) != next) break;
    next *= loop.size;
    run *= loop.most.value_or(loop.size);
  }
  return run >= kLeastRun ? b_.getInt64(prefetch_) : nullptr;
}

void NestValues::Prefetch(int id, Value* at) {
  const NestNode& node = nest_.nodes[id];
  const int64_t bytes = width_ * ElementOps::BytesOf(node.type);
  if (prefetch_ <= 0 || bytes < kLine || first_pass_.try_emplace(id, pass_).first->second != pass_) return;
  Value* next = NextBytes(node);
  if (next == nullptr) return;
  for (int64_t line = 0; line < bytes; line += kLine) {
    Value* ahead = b_.CreatePtrAdd(at, b_.CreateAdd(next, b_.getInt64(line)));
    const auto flag = [&](uint32_t value) { return b_.getInt32(value); };
    b_.CreateIntrinsic(llvm::Intrinsic::prefetch, {ahead->getType()},
                       {ahead, flag(/*read*/ 0), flag(/*keep in all caches*/ 3), flag(/*data*/ 1)});
  }
}

Value* NestValues::LoadAt(int id) {
  const NestNode& node = nest_.nodes[id];
  Value* pointer = pointers_[node.input];
  uint64_t loops = 0;
  for (auto [symbol, c] : node.index.terms) loops |= nest_.symbols[symbol].loops;
  if (!IsVector(loops)) return ops_.Load(node.type, At(pointer, node.type, Scalar(node.index)), 1);
  if (IsUnit(node.index)) {
    Value* at = At(pointer, node.type, Scalar(node.index));
    Prefetch(id, at);
    return ops_.Load(node.type, at, width_);
  }
  if (LaneStep(node.index) == -1) {
    Value* first = b_.CreateSub(Scalar(node.index), b_.getInt64(width_ - 1));
    return b_.CreateVectorReverse(ops_.Load(node.type, At(pointer, node.type, first), width_));
  }
  if (LaneStep(node.index) == 2) return LoadEverySecond(node);
  if (const int clamp = ClampOfRun(node); clamp >= 0) return LoadClamped(node, clamp);
  return IsNearlyRun(node) ? LoadNearlyRun(node) : LoadEach(node);
}

Value* NestValues::LoadEach(const NestNode& node) {
  const int64_t step = LaneStep(node.index);
  Value* index = step != 0 ? Scalar(node.index) : Lanes(node.index);
  Value* const apart = I64(step);
  Value* lanes = llvm::PoisonValue::get(ops_.MemoryType(node.type, width_));
  for (int i = 0; i < width_; ++i) {
    Value* of_lane = step != 0 ? b_.CreateAdd(index, b_.CreateMul(apart, b_.getInt64(i)))  // with no vector of indices
                               : b_.CreateExtractElement(index, i);
    Value* at = At(pointers_[node.input], node.type, of_lane);
    Value* one = b_.CreateAlignedLoad(ops_.MemoryType(node.type, 1), at, ElementOps::AlignOf(node.type));
    lanes = b_.CreateInsertElement(lanes, one, i);
  }
  return ops_.FromMemory(node.type, lanes);
}

// Whether the lanes are neighbours nearly everywhere, as a known table of indices tells (of a padding that reflects).
bool NestValues::IsNearlyRun(const NestNode& load) const {
  const NestNode* table = nullptr;
  for (auto [id, c] : load.index.terms) {
    const Symbol& symbol = nest_.symbols[id];
    if (!nest_.IsVector(symbol.loops)) continue;
    if (table != nullptr || symbol.kind != Symbol::Kind::kNode || c != 1) return false;
    table = &nest_.nodes[symbol.node];
  }
  if (table == nullptr || table->kind != Kind::kLoad || !IsUnit(table->index)) return false;
  const auto known = KnownElements(nest_.inputs[table->input]);
  if (!known || known.isSplat()) return false;
  int64_t count = 0, followed = 0, before = 0;
  for (const llvm::APInt& index : known.getValues<llvm::APInt>()) {
    followed += count++ > 0 && index.getSExtValue() == before + 1;
    before = index.getSExtValue();
  }
  return followed * 4 >= count * 3;
}

// All lanes at once where they are neighbours.
Value* NestValues::LoadNearlyRun(const NestNode& node) {
  Value* index = Lanes(node.index);
  Value* first = b_.CreateExtractElement(index, uint64_t{0});
  Value* follow = b_.CreateAndReduce(b_.CreateICmpEQ(index, Ascending(first, width_)));
  const auto whole = [&] { return ops_.Load(node.type, At(pointers_[node.input], node.type, first), width_); };
  const auto each = [&] {
    scopes_.emplace_back();
    Value* lanes = LoadEach(node);
    scopes_.pop_back();
    return lanes;
  };
  return Either(follow, whole, each);
}

}  // namespace tpu::host
