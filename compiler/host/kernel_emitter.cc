#include "compiler/host/kernel_emitter.h"

#include <algorithm>
#include <array>
#include <functional>

#include "compiler/host/nest_loops.h"
#include "compiler/host/object_code.h"
#include "compiler/host/vector_library.h"
#include "compiler/ir/dialect.h"
#include "llvm/ADT/DenseSet.h"

namespace tpu::host {
namespace {

using llvm::Value;
using Kind = NestNode::Kind;

constexpr int64_t kScratchBytes = 256 << 10;  // of a row, kept on the stack between passes
constexpr int64_t kBlock = 4096;              // elements of the innermost kept loop that make an item
constexpr int64_t kBlockUnit = 64;            // blocks are multiples of it
constexpr int64_t kColumnBlock = 512;         // the same where accumulators are kept for each
constexpr int64_t kTiledBlock = 8;            // no more lines than one set of the L1 cache holds
constexpr int64_t kSquare = kRowsTurned;      // is transposed in registers
constexpr int64_t kMostWoven = 4;             // positions of an innermost loop that vectors are woven for
constexpr int64_t kLeastAround = 8;           // of the loop around it
constexpr size_t kMostWovenNodes = 64;        // are written for each of its positions
constexpr int64_t kLeastRows = 32;            // that go side by side: the last few go one by one
constexpr int64_t kVector = 8;                // the narrowest vectors: what is left goes element by element
// How many elements are turned while a row that goes alone ..
constexpr int64_t kEnds = 8;    // .. reduces its lanes
constexpr int64_t kWaits = 64;  // .. waits for what it is reduced to
constexpr int64_t kLeft = 16;   // .. computes what is left
constexpr int64_t kHeavy = 32;  // .. computes something heavy that it has one of

class Emitter : private NestLoops {
 public:
  Emitter(LoopNest nest, llvm::Module& module, const Tuning& tuning, KernelNumbers& numbers)
      : NestLoops(std::move(nest), module, tuning, numbers), tuning_(tuning) {}

  KernelShape Emit();

 private:
  // --- the plan ---
  void ChooseLanes();
  bool AreShortRows() const;
  void ChooseWidth();
  void ChooseScratch();
  bool HeavyBelow(int node, llvm::DenseSet<int>& light);
  void MarkScratch(int node, int phase, llvm::DenseSet<int>& seen, llvm::DenseSet<int>& light);
  std::vector<int> RootsOf(int phase) const;

  // --- loops ---
  int FindTiledLoop() const;
  void TiledItem(Value* begin, Value* end);
  bool IsTurned(const NestNode& node) const;
  void TurnedSquare(Value* from, Value* top);

  // --- kinds of nests ---
  void RowItem();
  void RowPass(int phase);
  void WovenItem(Value* begin, Value* end, int64_t count);
  void BlockItem(Value* begin, Value* end, int64_t count);
  void BlockPass(int phase, Value* begin, Value* end, int64_t count);

  const Tuning tuning_;
};

// Vectors along a loop of two, three or four positions would be as short: they lie along the loop around it, then, and
// those of its positions are woven together where they are stored.
void Emitter::ChooseLanes() {
  const size_t count = nest_.loops.size();
  if (count < 2) return;
  const Loop &inner = nest_.loops[count - 1], &around = nest_.loops[count - 2];
  const auto chooses = [&](const NestNode& node) { return node.kind == Kind::kChoose; };  // one part for all lanes
  if (inner.most || inner.size < 2 || around.reduced || llvm::any_of(nest_.nodes, chooses)) return;
  if (nest_.has_reduce) {
    nest_.woven = inner.reduced && nest_.reduced_count() == inner.size;
    nest_.woven = nest_.woven && AreShortRows();
  } else {
    nest_.woven = !around.most && inner.size <= kMostWoven && around.size >= kLeastAround &&
                  nest_.nodes.size() <= kMostWovenNodes;
  }
}

// Whether rows are reduced faster side by side than each by vectors of its own. Side by side, each element that is read
// or written is turned. Alone, the lanes of each row are reduced at its end, what fills no vector is computed element
// by element, and what a row has one of, such as a logarithm, in one lane. A row of which nothing is read again ends
// while the next begins; where its positions wait for what it is reduced to, as in a softmax, or the lanes' indices are
// compared, many elements could be turned meanwhile.
bool Emitter::AreShortRows() const {
  const Loop &row = nest_.loops.back(), &rows = nest_.loops[nest_.lane_loop()];
  if (!rows.most && rows.size < kLeastRows) return false;
  int64_t turned = 0, alone = kEnds;
  const auto registers_of = [](mlir::Type type) { return ElementOps::BytesOf(type) >= 8 ? 2 : 1; };
  for (const NestNode& node : nest_.nodes) {
    const bool each = nest_.IsInnermost(node.loops);
    if (each && node.kind == Kind::kRandom) return false;  // all words of a block would be drawn for each
    if (each && row.size >= kTurned && IsGather(node)) return false;
    turned += IsBrought(node) ? registers_of(node.type) : 0;
    if (!each && node.kind == Kind::kOp && IsHeavyOp(node.op) && nest_.IsVector(node.loops)) alone += kHeavy;
  }
  for (const NestOutput& output : nest_.outputs) {
    turned += output.full ? registers_of(nest_.nodes[output.node].type) : 0;
  }
  bool waits = llvm::any_of(nest_.reduces, [&](int node) { return ReductionOf(nest_.nodes[node].op).arg; });
  for (int phase = 1; phase <= nest_.phases; ++phase) waits |= !RootsOf(phase).empty();
  const int64_t left = row.size % kVector;
  alone += (waits ? kWaits : 0) + (left > 0 ? kLeft : 0);
  return turned * (row.size - left) <= alone;
}

void Emitter::ChooseWidth() {
  int heavy = 0, widest = 1;
  bool calls = false, gathers = false;
  for (const NestNode& node : nest_.nodes) {
    if (node.type && nest_.IsVector(node.loops)) widest = std::max(widest, ElementOps::BytesOf(node.type) >= 8 ? 8 : 4);
    if (node.kind == Kind::kRandom) heavy += 3;
    gathers |= IsGather(node);
    if (node.kind != Kind::kOp || !IsHeavyOp(node.op)) continue;
    ++heavy;
    calls |= (mlir::isa<ir::TanOp>(node.op) && node.type.isF64()) ||
             (!HasVectorLibrary() && mlir::isa<ir::PowOp, ir::Atan2Op, ir::AsinOp, ir::AcosOp, ir::AtanOp, ir::SinhOp,
                                               ir::CoshOp, ir::AsinhOp, ir::AcoshOp, ir::AtanhOp>(node.op));
  }
  const int lanes = std::max(VectorBits() / 32, 4);
  max_width_ = calls ? 4 : gathers ? 8 : widest == 8 ? lanes : heavy > 0 ? 2 * lanes : tuning_.registers * lanes;
  if ((heavy > 0 && widest == 8) || nest_.woven) max_width_ = std::min(max_width_, nest_.beside() ? 2 * lanes : lanes);
  if (nest_.beside()) max_width_ = std::max(max_width_, kRowsTurned);
  const int64_t inner = nest_.loops.empty() ? 1 : InnerCount();
  while (inner >= 0 && max_width_ > 1 && max_width_ > inner) max_width_ /= 2;
}

// Whether it is costly to compute again. `light`: nodes that are not, and stay so.
bool Emitter::HeavyBelow(int id, llvm::DenseSet<int>& light) {
  if (light.contains(id)) return false;
  const NestNode& node = nest_.nodes[id];
  const bool again = node.kind != Kind::kReduce && node.reduced && node.kind != Kind::kLoad && !scratch_.count(id) &&
                     nest_.IsInnermost(node.loops);  // else once for all of it
  const bool itself = node.kind == Kind::kRandom || (node.kind == Kind::kOp && IsHeavyOp(node.op));
  const auto below = [&](int operand) { return HeavyBelow(operand, light); };
  if (again && (itself || llvm::any_of(node.operands, below))) return true;
  light.insert(id);
  return false;
}

// The topmost values of earlier passes that are too costly to compute again in pass `phase`.
void Emitter::MarkScratch(int id, int phase, llvm::DenseSet<int>& seen, llvm::DenseSet<int>& light) {
  const NestNode& node = nest_.nodes[id];
  if (node.kind == Kind::kReduce || !node.reduced || scratch_.count(id) || !seen.insert(id).second) return;
  if (node.phase < phase && HeavyBelow(id, light)) {
    scratch_[id] = nullptr;
    return;
  }
  for (int operand : node.operands) MarkScratch(operand, phase, seen, light);
}

std::vector<int> Emitter::RootsOf(int phase) const {
  std::vector<int> roots;
  for (int reduce : nest_.reduces) {
    if (nest_.nodes[reduce].phase == phase + 1) roots.push_back(nest_.nodes[reduce].operands[0]);
  }
  for (const NestOutput& output : nest_.outputs) {
    if (output.full && nest_.nodes[output.node].phase == phase) roots.push_back(output.node);
  }
  for (const auto& [node, slot] : scratch_) {
    if (nest_.nodes[node].phase == phase) roots.push_back(node);
  }
  std::sort(roots.begin(), roots.end());
  return roots;
}

void Emitter::ChooseScratch() {
  if (!nest_.inner_reduced()) return;
  llvm::DenseSet<int> light;
  for (int phase = 1; phase <= nest_.phases; ++phase) {
    llvm::DenseSet<int> seen;
    for (int root : RootsOf(phase)) MarkScratch(root, phase, seen, light);
  }
  int64_t bytes = 0;
  const int64_t length = ReducedMost() * (nest_.beside() ? max_width_ : 1);
  for (auto& [node, slot] : scratch_) bytes += length * ElementOps::BytesOf(nest_.nodes[node].type);
  if (bytes > kScratchBytes) scratch_.clear();
  for (auto& [node, slot] : scratch_) {
    slot = EntryAlloca(ops_.RegisterType(nest_.nodes[node].type, 1), length + max_width_);
  }
  if (!nest_.beside()) return;
  const auto buffer = [&](int node) { return EntryAlloca(BufferType(nest_.nodes[node].type, 1), length); };
  for (size_t i = 0; i < nest_.nodes.size(); ++i) {
    if (IsBrought(nest_.nodes[i])) brought_[i] = buffer(static_cast<int>(i));
  }
  for (const NestOutput& output : nest_.outputs) to_bring_.push_back(output.full ? buffer(output.node) : nullptr);
}

// The kept loop along which an input that the innermost loop strides over is contiguous: items then cover a tile of
// both, so that every cache line is used while it is there.
int Emitter::FindTiledLoop() const {
  int last = static_cast<int>(nest_.loops.size()) - 1;
  for (const NestNode& node : nest_.nodes) {
    if (node.kind != Kind::kLoad || IsUnit(node.index)) continue;
    bool strided = false;
    int contiguous = -1;
    for (auto [symbol, c] : node.index.terms) {
      if (symbol == last && c > 1) strided = true;
      if (symbol < last && c == 1 && nest_.loops[symbol].size >= 4 && !nest_.loops[symbol].most) contiguous = symbol;
    }
    if (strided && contiguous >= 0) return contiguous;
  }
  return -1;
}

// ---- rows: the innermost loop is reduced ----

// Long sums are of parts: so many positions of each lane in the operand's type, and those in the accumulator's, which
// is half as fast.
constexpr int64_t kPartOfSum = 64;

void Emitter::RowPass(int phase) {
  std::vector<int> roots = RootsOf(phase);
  if (roots.empty()) return;
  pass_ = phase;
  struct Running {
    int node;
    Reduction reduction;
    Reduction part;  // the same in the operand's type, of some positions
    std::vector<std::tuple<int, Slots, Slots>> by_width;
    bool in_parts() const { return part.element != reduction.element; }
  };
  std::vector<Running> running;
  const auto make_slots = [&](const Reduction& r, int width) {
    Slots slots;
    slots.value = EntryAlloca(ops_.RegisterType(r.element, width));
    if (r.arg) slots.index = EntryAlloca(IndexType(width));
    return slots;
  };
  for (int node : nest_.reduces) {
    if (nest_.nodes[node].phase != phase + 1) continue;
    Running r;
    r.node = node;
    r.reduction = r.part = ReductionOf(nest_.nodes[node].op);
    r.part.element = r.part.operand;
    for (int width : nest_.beside() ? std::vector{width_} : WidthsFor(InnerCount())) {
      const Slots slots = make_slots(r.reduction, width);
      StoreSlots(slots, Start(r.reduction, width));
      r.by_width.push_back({width, slots, r.in_parts() ? make_slots(r.part, width) : slots});
    }
    running.push_back(std::move(r));
  }
  const auto inner_loop = [&](Value* begin, Value* end) {
    const auto at_each = [&](const std::function<void()>& body) {
      if (!nest_.beside()) return InnerLoop(begin, end, InnerCount(), body);
      For(begin, end, 1, [&](Value* position) {
        position_.back() = position;
        body();
      });
    };
    at_each([&] {
      for (auto& [node, buffer] : scratch_) {
        if (nest_.nodes[node].phase != phase) continue;
        Value* v = GetLanes(node);
        b_.CreateAlignedStore(v, InRow(buffer, v->getType()->getScalarType()), llvm::Align(4));
      }
      for (Running& r : running) {
        for (auto& [width, whole, part] : r.by_width) {
          if (width != width_) continue;
          const Accumulator next = Here(r.part, r.node);
          StoreSlots(part, Merge(r.part, LoadSlots(r.part, part, width_), next, /*later=*/true));
        }
      }
      StoreOutputs([&](const NestOutput& o) { return o.full && nest_.nodes[o.node].phase == phase; });
    });
  };
  const auto each_in_parts = [&](const std::function<void(const Running&, int, const Slots&, const Slots&)>& visit) {
    for (const Running& r : running) {
      for (const auto& [width, whole, part] : r.by_width) {
        if (r.in_parts()) visit(r, width, whole, part);
      }
    }
  };
  Value* const inner = I64(nest_.loops.back().size);
  ReducedLoops(0, [&] {
    Hoist(roots);
    if (llvm::none_of(running, [](const Running& r) { return r.in_parts(); })) return inner_loop(I64(0), inner);
    const int64_t step = kPartOfSum * max_width_;
    For(I64(0), inner, step, [&](Value* begin) {
      each_in_parts([&](const Running& r, int width, const Slots&, const Slots& part) {
        StoreSlots(part, Start(r.part, width));
      });
      inner_loop(begin, b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(begin, I64(step)), inner));
      each_in_parts([&](const Running& r, int width, const Slots& whole, const Slots& part) {
        Accumulator more = LoadSlots(r.part, part, width);
        more.value = ops_.Convert(r.part.element, r.reduction.element, more.value);
        StoreSlots(whole, Merge(r.reduction, LoadSlots(r.reduction, whole, width), more));
      });
    });
  });
  for (Running& r : running) {
    Accumulator total;
    for (auto& [width, slots, of_parts] : r.by_width) {
      Accumulator part = LoadSlots(r.reduction, slots, width);
      if (!nest_.beside()) part = Horizontal(r.reduction, part);
      total = total.value == nullptr ? part : Merge(r.reduction, total, part);
    }
    scopes_.back().nodes[r.node] = Finish(r.node, total);
  }
  if (nest_.beside() && width_ > 1) PutRows([&](const NestOutput& o) { return nest_.nodes[o.node].phase == phase; });
}

void Emitter::RowItem() {
  pass_ = 0;
  if (width_ > 1) BringRows();
  for (int phase = 0; phase <= nest_.phases; ++phase) RowPass(phase);
  pass_ = nest_.phases + 1;
  if (!nest_.beside()) width_ = 1;
  StoreOutputs([](const NestOutput& o) { return !o.full; });
}

// ---- blocks: the innermost loop is kept, reductions keep an accumulator for each of its positions ----

void Emitter::BlockPass(int phase, Value* begin, Value* end, int64_t count) {
  std::vector<int> roots = RootsOf(phase);
  if (roots.empty()) return;
  pass_ = phase;
  auto slots_here = [&](int node) {
    Slots at = accumulators_[node];
    Value* offset = b_.CreateSub(position_.back(), block_begin_);
    at.value = b_.CreateInBoundsGEP(ops_.RegisterType(ReductionOf(nest_.nodes[node].op).element, 1), at.value, offset);
    if (at.index != nullptr) at.index = b_.CreateInBoundsGEP(IndexType(1), at.index, offset);
    return at;
  };
  std::vector<int> reduces;
  for (int node : nest_.reduces) {
    if (nest_.nodes[node].phase == phase + 1) reduces.push_back(node);
  }
  if (!reduces.empty()) {
    InnerLoop(begin, end, count, [&] {
      for (int node : reduces) StoreSlots(slots_here(node), Start(ReductionOf(nest_.nodes[node].op), width_));
    });
  }
  ReducedLoops(0, [&] {
    Hoist(roots);
    InnerLoop(begin, end, count, [&] {
      for (int node : reduces) {
        Reduction r = ReductionOf(nest_.nodes[node].op);
        Slots slots = slots_here(node);
        StoreSlots(slots, Merge(r, LoadSlots(r, slots, width_), Here(r, node), /*later=*/true));
      }
      StoreOutputs([&](const NestOutput& o) { return o.full && nest_.nodes[o.node].phase == phase; });
    });
  });
}

// [begin, end) of the vectors' loop, by all positions of the innermost one.
void Emitter::WovenItem(Value* begin, Value* end, int64_t count) {
  pass_ = 0;
  const std::vector<int> roots = RootsOf(0);
  std::vector<Scope> known(nest_.loops.back().size);  // at each position, for all lanes
  const auto at_each = [&](llvm::function_ref<void()> what) {
    for (size_t i = 0; i < known.size(); ++i) {
      position_.back() = b_.getInt64(i);
      scopes_.push_back(known[i]);
      what();
      std::swap(known[i], scopes_.back());
      scopes_.pop_back();
    }
    position_.back() = b_.getInt64(0);
  };
  at_each([&] { Hoist(roots); });
  InnerLoop(begin, end, count, [&] {
    const std::vector<Scope> before = known;
    std::vector<std::vector<Value*>> values(nest_.outputs.size());
    at_each([&] {
      for (size_t i = 0; i < values.size(); ++i) values[i].push_back(GetLanes(nest_.outputs[i].node));
    });
    known = before;
    for (size_t i = 0; i < values.size(); ++i) StoreOutput(i, Weave(values[i]));
  });
}

void Emitter::BlockItem(Value* begin, Value* end, int64_t count) {
  block_begin_ = begin;
  for (int phase = 0; phase <= nest_.phases; ++phase) BlockPass(phase, begin, end, count);
  std::vector<int> roots;
  for (const NestOutput& output : nest_.outputs) {
    if (!output.full) roots.push_back(output.node);
  }
  if (roots.empty()) return;
  pass_ = nest_.phases + 1;
  Hoist(roots);
  InnerLoop(begin, end, count, [&] { StoreOutputs([](const NestOutput& o) { return !o.full; }); });
}

// ---- tiles: an input that the innermost loop strides over is contiguous along another ----

// A load along the tiled loop of what the register transpose takes: lanes of 32 bits, linear in both loops.
bool Emitter::IsTurned(const NestNode& node) const {
  if (node.kind != Kind::kLoad || ElementOps::BytesOf(node.type) > 4 || node.type.isInteger(1)) return false;
  if (!mlir::isa<mlir::FloatType>(node.type) && ElementOps::BytesOf(node.type) != 4) return false;
  int last = static_cast<int>(nest_.loops.size()) - 1;
  bool along_tiled = false, along_last = false;
  for (auto [symbol, c] : node.index.terms) {
    along_tiled |= symbol == tiled_ && c == 1;
    along_last |= symbol == last;
    uint64_t both = (uint64_t{1} << tiled_) | (uint64_t{1} << last);
    if (symbol != tiled_ && symbol != last && (nest_.symbols[symbol].loops & both) != 0) return false;
  }
  return along_tiled && along_last;
}

// kSquare positions of the innermost loop by kSquare of the tiled one: what lies along the tiled loop is read along it
// and transposed in registers.
void Emitter::TurnedSquare(Value* from, Value* top) {
  using Square = std::array<Value*, kSquare>;
  std::vector<std::pair<int, Square>> turned;
  width_ = kSquare;
  position_[tiled_] = top;
  for (size_t id = 0; id < nest_.nodes.size(); ++id) {
    const NestNode& node = nest_.nodes[id];
    if (!IsTurned(node)) continue;
    Square r, t;
    for (int64_t j = 0; j < kSquare; ++j) {
      position_.back() = b_.CreateAdd(from, I64(j));
      r[j] = ops_.Load(node.type, At(pointers_[node.input], node.type, Scalar(node.index)), width_);
    }
    const auto mix = [&](Value* a, Value* b, std::array<int, kSquare> order) {
      return b_.CreateShuffleVector(a, b, order);
    };
    const Turned upper = Turn({r[0], r[1], r[2], r[3]}), lower = Turn({r[4], r[5], r[6], r[7]});
    for (int i = 0; i < kTurned; ++i) {
      t[i] = mix(upper[i], lower[i], {0, 1, 2, 3, 8, 9, 10, 11});
      t[i + kTurned] = mix(upper[i], lower[i], {4, 5, 6, 7, 12, 13, 14, 15});
    }
    turned.push_back({static_cast<int>(id), t});
  }
  std::vector<int> roots;
  roots.reserve(nest_.outputs.size());
  for (const NestOutput& output : nest_.outputs) roots.push_back(output.node);
  position_.back() = from;
  pass_ = 0;
  for (int64_t i = 0; i < kSquare; ++i) {
    scopes_.emplace_back();
    position_[tiled_] = b_.CreateAdd(top, I64(i));
    for (auto& [id, square] : turned) scopes_.back().nodes[id] = square[i];
    Hoist(roots);
    width_ = kSquare;
    StoreOutputs([](const NestOutput&) { return true; });
    scopes_.pop_back();
  }
  width_ = 1;
}

// A block of the innermost loop by tile_ positions of the tiled one.
void Emitter::TiledItem(Value* begin, Value* end) {
  auto bounded = [&](Value* from, int64_t step, Value* limit) {
    return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(from, I64(step)), limit);
  };
  Value* first = b_.CreateMul(position_[tiled_], I64(tile_));
  Value* limit = bounded(first, tile_, I64(nest_.loops[tiled_].size));
  const bool squares = max_width_ == kSquare && nest_.loops[tiled_].size % kSquare == 0 && !nest_.loops.back().most &&
                       nest_.loops.back().size % kSquare == 0 &&
                       llvm::any_of(nest_.nodes, [&](const NestNode& node) { return IsTurned(node); });
  if (squares) {
    For(begin, end, kSquare,
        [&](Value* from) { For(first, limit, kSquare, [&](Value* top) { TurnedSquare(from, top); }); });
    return;
  }
  int64_t count = InnerCount() >= 0 && InnerCount() % kTiledBlock == 0 ? kTiledBlock : -1;
  For(begin, end, kTiledBlock, [&](Value* from) {
    Value* to = bounded(from, kTiledBlock, end);
    For(first, limit, 1, [&](Value* position) {
      position_[tiled_] = position;
      BlockItem(from, to, count);
    });
  });
}

KernelShape Emitter::Emit() {
  const double cost = nest_.Cost();  // of rows as they lie: what lies across them is turned in registers
  ChooseLanes();
  ChooseWidth();
  position_.assign(nest_.loops.size(), I64(0));
  scopes_.emplace_back();
  ChooseScratch();

  bool blocks = !nest_.inner_reduced() && !nest_.loops.empty();
  const size_t items = blocks ? nest_.lane_loop() : nest_.loops.size();  // are of the loops before
  int64_t inner = blocks ? nest_.loops[items].size : 1;
  const int64_t woven = nest_.woven && blocks ? nest_.loops.back().size : 1;
  if (blocks && !nest_.woven && !nest_.has_reduce && tile_ > 0) tiled_ = FindTiledLoop();
  if (tiled_ >= 0) prefetch_ = 0;
  int64_t outer = 1;
  for (size_t i = 0; i < items; ++i) outer *= nest_.loops[i].reduced ? 1 : ItemsOf(i);
  int64_t block = inner;
  if (blocks) {
    int64_t most = nest_.has_reduce ? kColumnBlock : kBlock / woven / kBlockUnit * kBlockUnit;
    const bool varies = llvm::any_of(nest_.loops, [](const Loop& loop) { return loop.most.has_value(); });
    if (nest_.has_reduce && !varies && outer * ((inner + most - 1) / most) < 16) most = std::max<int64_t>(64, most / 4);
    if (inner > most || InnerCount() < 0) block = most;
    // Not where the output may lie over an input: stores around the cache are then several times slower.
    Expr index = nest_.FullIndex();
    bool in_place = llvm::any_of(nest_.nodes, [&](const NestNode& node) {
      return node.kind == Kind::kLoad && node.index == index && begins_[node.input] == 0;
    });
    const bool in_vectors = inner % kBlockUnit == 0 && max_width_ >= 8;
    for (size_t i = 0; i < nest_.outputs.size(); ++i) {
      // By the bytes of each alone, as what is smaller may lie anywhere (FindPlaces in plan_builder.cc).
      const int64_t bytes = ElementOps::BytesOf(nest_.nodes[nest_.outputs[i].node].type);
      non_temporal_[i] = !nest_.has_reduce && !varies && !in_place && in_vectors &&
                         nest_.kept_count() * bytes >= kNonTemporalBytes && bytes * max_width_ >= 32;
    }
    for (int node : nest_.reduces) {
      Reduction r = ReductionOf(nest_.nodes[node].op);
      Slots slots;
      slots.value = EntryAlloca(ops_.RegisterType(r.element, 1), block + 1);
      if (r.arg) slots.index = EntryAlloca(IndexType(1), block + 1);
      accumulators_[node] = slots;
    }
  }
  KernelShape shape;
  shape.rows = outer;
  shape.woven = woven;
  shape.row = blocks ? inner * woven : 1;
  shape.block = blocks ? std::max<int64_t>(block, 1) * woven : 1;
  shape.row_major = tiled_ < 0;
  const bool whole_rows = shape.row <= shape.block && !(blocks && InnerCount() < 0);
  Value* const row_end = I64(inner);
  Value* row_blocks = nullptr;
  if (!whole_rows) row_blocks = b_.CreateUDiv(b_.CreateAdd(row_end, I64(block - 1)), I64(block));
  const auto item = [&](Value* at) {
    if (nest_.loops.empty()) return StoreOutputs([](const NestOutput&) { return true; });
    if (!blocks) return RowItem();
    Value *from = I64(0), *to = row_end;
    if (!whole_rows) {
      from = b_.CreateMul(at, I64(block));
      to = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(from, I64(block)), to);
    }
    const bool known = InnerCount() >= 0 && inner % max_width_ == 0 && block % max_width_ == 0;
    const int64_t count = whole_rows ? inner : known ? max_width_ : -1;
    if (nest_.woven) return WovenItem(from, to, count);
    if (tiled_ < 0) return BlockItem(from, to, count);
    TiledItem(from, to);
  };
  nest_.beside() ? EachRowsBeside([&] { RowItem(); }) : EachItem(row_blocks, item);
  KernelFrame::Finish(llvm::is_contained(non_temporal_, true));

  const int64_t extent = shape.rows * ((shape.row + shape.block - 1) / shape.block);
  shape.grain = GrainFor(tuning_, cost / static_cast<double>(std::max<int64_t>(extent, 1)), extent);
  return shape;
}

}  // namespace

int64_t GrainFor(const Tuning& tuning, double item_nanoseconds, int64_t extent) {
  return std::clamp<int64_t>(static_cast<int64_t>(1000 * tuning.task_us / std::max(1.0, item_nanoseconds)), 1,
                             std::max<int64_t>(extent, 1));
}

KernelShape EmitKernel(const LoopNest& nest, llvm::Module& module, const Tuning& tuning, KernelNumbers& numbers) {
  return Emitter(nest, module, tuning, numbers).Emit();
}

}  // namespace tpu::host
