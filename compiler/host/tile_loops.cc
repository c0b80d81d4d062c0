#include "compiler/host/tile_loops.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "compiler/ir/types.h"
#include "runtime/host/gemm.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/tile_cut.h"

namespace tpu::host {
namespace {

constexpr int64_t kMostTiles = 64;             // of whole matrices
constexpr int64_t kTileUnit = 8;               // tiles divide evenly among few threads
constexpr int64_t kLeastRows = 512;            // of a product without a batch: each tile packs its right side anew
constexpr uint64_t kMostTileBytes = 4 << 20;   // of what a tile needs at a time, to stay in the caches of one core
constexpr uint64_t kLeastLinkBytes = 1 << 20;  // less than that stays in cache in any case

// Tiles of a part of a matrix's rows, where whole matrices do not fit: the scores of attention over many positions.
// Each packs the right side anew, which is small beside the result.
constexpr int64_t kLeastRowsOfPart = 64;
constexpr uint64_t kMostRightBytesOfPart = 4 << 20;
constexpr uint64_t kMostPartBytes = 32 << 20;  // where all parts are more than a tile should be

// The matrix library reads the right side of products of few rows where it lies, from a core's own cache; panels would
// be packed anew for each tile. A loop over such products and what lies between wakes the threads once instead of at
// each step. Its tiles follow from the shapes, not from this process's threads: others run its programs, too.
constexpr int64_t kFewRows = 64;
constexpr int64_t kLeastRowsOfFew = 16;
constexpr int64_t kMostTilesOfFew = kFewRows / kLeastRowsOfFew;
constexpr uint64_t kMostBytesOfFew = 512 << 10;  // of the right side

// `index` over the nest's loops; the kept loops that number the items lead.
int64_t CutOf(const LoopNest& nest, const KernelShape& shape, const Expr& index, int64_t count) {
  Walk walk;
  walk.count = count;
  walk.low = walk.high = index.constant;
  std::vector<int64_t> strides(nest.loops.size(), 0);
  uint64_t derived = 0;  // loops that symbols depend on in other ways
  for (auto [symbol, c] : index.terms) {
    if (symbol < static_cast<int>(nest.loops.size())) {
      strides[symbol] = c;
    } else {
      derived |= nest.symbols[symbol].loops;
      (c < 0 ? walk.low : walk.high) += c * (nest.symbols[symbol].size - 1);
    }
  }
  bool leading = true;
  const size_t last = nest.loops.size() - (shape.woven > 1 ? 2 : 1);
  for (size_t i = 0; i < nest.loops.size(); ++i) {
    const Loop& loop = nest.loops[i];
    const bool blocked = i == last && !loop.reduced;
    const int64_t block = blocked ? shape.block / shape.woven : 1;
    if (!loop.reduced) leading &= !((derived >> i) & 1) && loop.size % block == 0;
    if (loop.reduced || !leading || i > last) {
      const int64_t reach = strides[i] * (loop.size - 1);
      (reach < 0 ? walk.low : walk.high) += reach;
      continue;
    }
    walk.sizes.push_back(loop.size / block);
    walk.strides.push_back(strides[i] * block);
    const int64_t reach = strides[i] * (block - 1);
    (reach < 0 ? walk.low : walk.high) += reach;
  }
  return FinestCut(std::move(walk));
}

// Joins steps to clusters, each a tile loop or a step alone, along what one writes and another reads. What is cut is so
// at every size; bytes are counted at the largest.
class Former {
 public:
  explicit Former(absl::Span<const SizedSteps> sizes) : plan_(*sizes.back().plan) {
    for (const auto& [plan, slices] : sizes) {
      AtSize at{*plan, *slices, std::vector<Slices>(slices->size())};
      for (size_t i = 0; i < plan->steps.size(); ++i) {
        const Step& s = plan->steps[i];
        if (s.kind == Step::Kind::kGemm && SumsOverTiles(s.gemm))
          at.by_depth[i] = SlicesOf(*plan, s, /*by_depth=*/true);
      }
      sizes_.push_back(std::move(at));
    }
    FindEdges();
  }
  void Join();
  std::vector<std::vector<size_t>> Order() const;
  TileLoop LoopOf(const std::vector<size_t>& steps) const;  // of no tiles where they make none

 private:
  struct Edge {
    size_t from, to;
    uint64_t bytes;
    bool apart = false;  // through another slot of the same bytes: never in one loop
  };
  void FindEdges();
  bool HasFewRows(size_t step) const;
  struct Limits {
    bool parts = false;  // tiles may be parts of a matrix
    uint64_t bytes = kMostTileBytes;
  };
  struct AtSize {
    const Plan& plan;
    const std::vector<Slices>& slices;
    std::vector<Slices> by_depth;  // of products that can be taken so
    const Slices& SlicesIn(const TileLoop& loop, size_t step) const {
      return (IsByDepth(loop, plan.steps[step]) ? by_depth : slices)[step];
    }
  };
  bool Divides(const AtSize& at, size_t step, const TileLoop& loop, const Limits& limits) const;
  bool FitsAt(const AtSize& at, const std::vector<size_t>& steps, const TileLoop& loop, const Limits& limits) const;
  bool Fits(const std::vector<size_t>& steps, const TileLoop& loop, const Limits& limits) const;
  TileLoop LoopOfParts(const std::vector<size_t>& steps) const;
  bool Open() const { return sizes_.size() > 1; }
  bool PathAround(size_t a, size_t b) const;
  bool TryJoin(size_t a, size_t b);
  uint64_t BytesOf(uint32_t slot) const { return plan_.slots[slot].bytes; }  // at the largest size
  bool PartsOfOne(uint32_t a, uint32_t b) const;

  const Plan& plan_;  // at the largest size
  std::vector<AtSize> sizes_;
  std::vector<Edge> edges_;
  std::vector<size_t> cluster_;  // of each step: the number of its first step
  std::map<size_t, std::vector<size_t>> members_;
};

// Different slots of an output that share bytes.
bool Former::PartsOfOne(uint32_t a, uint32_t b) const {
  const Slot &x = plan_.slots[a], &y = plan_.slots[b];
  return a != b && x.kind == Slot::Kind::kOutput && y.kind == Slot::Kind::kOutput && x.index == y.index &&
         x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes;
}

void Former::FindEdges() {
  std::map<uint32_t, size_t> writer;
  for (size_t i = 0; i < plan_.steps.size(); ++i) {
    cluster_.push_back(i);
    members_[i] = {i};
    const std::vector<uint32_t>& slots = plan_.steps[i].slots;
    for (size_t j = 0; j < slots.size(); ++j) {
      if (plan_.slots[slots[j]].kind == Slot::Kind::kOutput) {
        for (auto [slot, step] : writer) {
          if (step != i && PartsOfOne(slot, slots[j])) edges_.push_back({step, i, 0, true});
        }
      }
      if (j >= plan_.steps[i].num_inputs) {
        const auto [before, first] = writer.try_emplace(slots[j], i);  // before: the copy that a scatter writes over
        if (!first) edges_.push_back({std::exchange(before->second, i), i, 0, true});
      } else if (auto it = writer.find(slots[j]); it != writer.end()) {
        edges_.push_back({it->second, i, BytesOf(slots[j])});
      }
    }
  }
}

bool Former::HasFewRows(size_t step) const {
  const Step& s = plan_.steps[step];
  return !Open() && s.kind == Step::Kind::kGemm && s.gemm.dtype == DType::kFloat32 && !PanelsFirst() &&
         s.gemm.batch.empty() && s.gemm.m <= kFewRows && BytesOf(s.slots[1]) <= kMostBytesOfFew;
}

bool Former::Divides(const AtSize& at, size_t step, const TileLoop& loop, const Limits& limits) const {
  const Step& s = at.plan.steps[step];
  if (at.slices[step].empty()) return false;
  const int64_t tiles = loop.tiles;
  if (ExtentIn(loop, s) % tiles != 0) return false;
  if (IsByDepth(loop, s)) return tiles / loop.together == BatchesOf(s.gemm);
  if (s.kind == Step::Kind::kKernel) return true;
  const int64_t rows = RowsOf(s.gemm) / tiles;
  if (s.gemm.batch.empty()) return rows >= (HasFewRows(step) ? kLeastRowsOfFew : kLeastRows);
  if (rows % s.gemm.m == 0) return true;
  return limits.parts && s.gemm.m % rows == 0 && rows >= kLeastRowsOfPart &&
         static_cast<uint64_t>(s.gemm.k * s.gemm.n) * SizeOf(s.gemm.dtype) <= kMostRightBytesOfPart;
}

// Every value that one of the steps writes and another touches is cut alike, and a tile has no more than so many bytes
// at a time.
bool Former::Fits(const std::vector<size_t>& steps, const TileLoop& loop, const Limits& limits) const {
  const auto inside = [&](size_t step) { return std::binary_search(steps.begin(), steps.end(), step); };
  if (llvm::any_of(edges_, [&](const Edge& e) { return e.apart && inside(e.from) && inside(e.to); })) return false;
  return llvm::all_of(sizes_, [&](const AtSize& at) { return FitsAt(at, steps, loop, limits); });
}

bool Former::FitsAt(const AtSize& at, const std::vector<size_t>& steps, const TileLoop& loop,
                    const Limits& limits) const {
  struct Use {
    size_t first, last;
    bool cut = true, written = false;  // by every step; by one
  };
  std::map<uint32_t, Use> uses;
  for (size_t step : steps) {
    if (!Divides(at, step, loop, limits)) return false;
    const std::vector<uint32_t>& slots = plan_.steps[step].slots;
    const Slices& slices = at.SlicesIn(loop, step);
    for (size_t j = 0; j < slots.size(); ++j) {
      Use& use = uses.try_emplace(slots[j], Use{step, step}).first->second;
      use.last = step;
      use.cut &= slices[j] % loop.tiles == 0;
      use.written |= j >= plan_.steps[step].num_inputs;
    }
  }
  const auto shared = [](const Use& use) { return use.written && !use.cut && use.first != use.last; };
  if (llvm::any_of(uses, [&](const auto& use) { return shared(use.second); })) return false;
  return llvm::all_of(steps, [&](size_t step) {
    uint64_t bytes = 0;
    for (const auto& [slot, use] : uses) {
      if (use.cut && use.first <= step && step <= use.last) bytes += BytesOf(slot) / static_cast<uint64_t>(loop.tiles);
    }
    return bytes <= limits.bytes;
  });
}

// The fewest parts of a matrix that fit, or the smallest there are. No number of parts but one divides every size: of
// several sizes a tile is a matrix, however large. A thread has less of them in memory than a launch.
TileLoop Former::LoopOfParts(const std::vector<size_t>& steps) const {
  const GemmStep* product = nullptr;
  bool sums = false;
  for (size_t step : steps) {
    const Step& s = plan_.steps[step];
    if (s.kind != Step::Kind::kGemm || s.gemm.batch.empty()) continue;
    if (SumsOverTiles(s.gemm)) {
      sums = true;
    } else if (product == nullptr) {
      product = &s.gemm;
    }
  }
  TileLoop smallest{.tiles = 0};
  if (product == nullptr || (sums && BatchesOf(*product) < kTileUnit)) return smallest;
  const uint64_t most = Open() ? UINT64_MAX : kMostPartBytes;
  for (int64_t parts = 1; product->m / parts >= kLeastRowsOfPart && (parts == 1 || !Open()); ++parts) {
    if (product->m % parts != 0) continue;
    const TileLoop loop{.tiles = BatchesOf(*product) * parts, .together = sums ? parts : 1};
    if (Fits(steps, loop, {.parts = true})) return loop;
    if (Fits(steps, loop, {.parts = true, .bytes = most})) smallest = loop;
  }
  return smallest;
}

TileLoop Former::LoopOf(const std::vector<size_t>& steps) const {
  for (int64_t tiles = kMostTiles; tiles > 0; tiles -= kTileUnit) {
    if (const TileLoop loop{.tiles = tiles}; Fits(steps, loop, {})) return loop;
  }
  if (const TileLoop loop = LoopOfParts(steps); loop.tiles > 0) return loop;
  if (llvm::none_of(steps, [&](size_t step) { return HasFewRows(step); })) return {.tiles = 0};
  for (int64_t tiles = kMostTilesOfFew; tiles > 1; --tiles) {
    if (const TileLoop loop{.tiles = tiles}; Fits(steps, loop, {})) return loop;
  }
  return {.tiles = 0};
}

// Whether some path leads from cluster a through another cluster to b.
bool Former::PathAround(size_t a, size_t b) const {
  std::vector<size_t> work{a};
  std::set<size_t> seen{a};
  while (!work.empty()) {
    const size_t at = work.back();
    work.pop_back();
    for (const Edge& edge : edges_) {
      if (cluster_[edge.from] != at) continue;
      const size_t next = cluster_[edge.to];
      if (next == b) {
        if (at != a) return true;
      } else if (seen.insert(next).second) {
        work.push_back(next);
      }
    }
  }
  return false;
}

void Former::Join() {
  std::vector<Edge> links = edges_;
  std::erase_if(links, [&](const Edge& edge) {
    return edge.bytes < kLeastLinkBytes && !HasFewRows(edge.from) && !HasFewRows(edge.to);
  });
  std::stable_sort(links.begin(), links.end(), [](const Edge& x, const Edge& y) { return x.bytes > y.bytes; });
  // What a path leads around may be joined once that is.
  for (size_t before = 0; before != members_.size();) {
    before = members_.size();
    std::erase_if(links, [&](const Edge& link) { return TryJoin(cluster_[link.from], cluster_[link.to]); });
  }
}

// Whether there is nothing more to try.
bool Former::TryJoin(size_t a, size_t b) {
  if (a == b) return true;
  std::vector<size_t> both;
  std::merge(members_[a].begin(), members_[a].end(), members_[b].begin(), members_[b].end(), std::back_inserter(both));
  if (LoopOf(both).tiles == 0) return true;
  if (PathAround(a, b) || PathAround(b, a)) return false;
  const size_t joined = both.front();
  for (size_t step : both) cluster_[step] = joined;
  members_.erase(a);
  members_.erase(b);
  members_[joined] = std::move(both);
  return true;
}

// Operands before users; otherwise by each cluster's last step, so that results do not come long before they are read.
std::vector<std::vector<size_t>> Former::Order() const {
  std::vector<std::vector<size_t>> order;
  std::map<size_t, std::set<size_t>> needs;  // clusters, by cluster
  for (const Edge& edge : edges_) {
    if (cluster_[edge.from] != cluster_[edge.to]) needs[cluster_[edge.to]].insert(cluster_[edge.from]);
  }
  std::vector<std::pair<size_t, size_t>> waiting;
  waiting.reserve(members_.size());
  for (const auto& [cluster, steps] : members_) waiting.push_back({steps.back(), cluster});
  std::sort(waiting.begin(), waiting.end());
  std::set<size_t> done;
  while (!waiting.empty()) {
    auto ready = std::find_if(waiting.begin(), waiting.end(), [&](const auto& w) {
      const std::set<size_t>& all = needs[w.second];
      return std::includes(done.begin(), done.end(), all.begin(), all.end());
    });
    order.push_back(members_.at(ready->second));
    done.insert(ready->second);
    waiting.erase(ready);
  }
  return order;
}

}  // namespace

Slices SlicesOf(const Plan& plan, const Step& product, bool by_depth) {
  const GemmStep& g = product.gemm;
  const auto elements = [&](size_t slot, DType type) {
    return static_cast<int64_t>(plan.slots[product.slots[slot]].bytes / SizeOf(type));
  };
  const auto cuts = CutsOf(g, {elements(0, g.dtype), elements(1, g.dtype), elements(2, g.out_dtype)}, by_depth);
  return Slices(cuts.begin(), cuts.end());
}

Slices SlicesOf(const LoopNest& nest, const KernelShape& shape) {
  if (!shape.row_major) return {};
  Slices slices(nest.inputs.size(), 0);
  for (const NestNode& node : nest.nodes) {
    if (node.kind != NestNode::Kind::kLoad) continue;
    const int64_t cut = CutOf(nest, shape, node.index, ir::CountOf(nest.inputs[node.input]));
    slices[node.input] = std::gcd(slices[node.input], cut);
  }
  for (const NestOutput& output : nest.outputs) {
    slices.push_back(output.full ? CutOf(nest, shape, nest.FullIndex(), nest.full_count())
                                 : CutOf(nest, shape, nest.RowIndex(), nest.kept_count()));
  }
  return slices;
}

namespace {

// Temporaries that several steps of one loop use, and none outside it. They cut them alike, or had not been joined.
void KeepInTiles(Plan& plan) {
  constexpr size_t kNone = SIZE_MAX, kSeveral = SIZE_MAX - 1;
  std::vector<size_t> only_user(plan.slots.size(), kNone);  // a loop, or several steps that are not one loop's
  std::vector<int> uses(plan.slots.size(), 0);
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    size_t loop = 0;
    while (loop < plan.tile_loops.size() && s >= plan.tile_loops[loop].first + size_t{plan.tile_loops[loop].count})
      ++loop;
    const bool inside = loop < plan.tile_loops.size() && s >= plan.tile_loops[loop].first;
    for (uint32_t slot : plan.steps[s].slots) {
      const bool first = only_user[slot] == kNone || only_user[slot] == loop;
      only_user[slot] = inside && first ? loop : kSeveral;
      ++uses[slot];
    }
  }
  for (size_t slot = 0; slot < plan.slots.size(); ++slot) {
    if (plan.slots[slot].kind == Slot::Kind::kTemp && only_user[slot] < kSeveral && uses[slot] > 1) {
      plan.slots[slot].kind = Slot::Kind::kTile;
    }
  }
}

}  // namespace

std::vector<size_t> FormTileLoops(absl::Span<const SizedSteps> sizes) {
  Former former(sizes);
  former.Join();
  std::vector<size_t> former_number;
  std::vector<TileLoop> loops;
  for (const std::vector<size_t>& cluster : former.Order()) {
    if (cluster.size() > 1) {
      TileLoop loop = former.LoopOf(cluster);
      loop.first = static_cast<uint32_t>(former_number.size());
      loop.count = static_cast<uint32_t>(cluster.size());
      loops.push_back(loop);
    }
    former_number.insert(former_number.end(), cluster.begin(), cluster.end());
  }
  for (const SizedSteps& size : sizes) {
    std::vector<Step> steps;
    for (size_t step : former_number) steps.push_back(std::move(size.plan->steps[step]));
    size.plan->steps = std::move(steps);
    size.plan->tile_loops = loops;
    KeepInTiles(*size.plan);
  }
  return former_number;
}

}  // namespace tpu::host
