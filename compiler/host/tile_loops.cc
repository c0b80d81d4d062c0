#include "compiler/host/tile_loops.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
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

// Tiles of some of a matrix's rows, where whole matrices do not fit: the scores of attention over many positions. Each
// packs the right side anew, which is small beside the result.
constexpr int64_t kLeastRowsOfTile = 64, kRowUnit = 16;
constexpr uint64_t kMostRightBytes = 4 << 20;
constexpr uint64_t kMostBytesOfLeast = 32 << 20;  // where so few rows are more than a tile should be
constexpr uint64_t kMostBytesOfSums = 8 << 20;    // apart, several loops' sums would be in memory

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
// at every size.
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
  using Loops = std::vector<TileLoop>;  // one of each size, or none
  Loops LoopsOf(const std::vector<size_t>& steps) const;

 private:
  struct Edge {
    size_t from, to;
    uint64_t bytes;
    bool apart = false;  // through another slot of the same bytes: never in one loop
  };
  void FindEdges();
  bool HasFewRows(size_t step) const;
  struct AtSize {
    const Plan& plan;
    const std::vector<Slices>& slices;
    std::vector<Slices> by_depth;  // of products that can be taken so
    const Slices& SlicesIn(const TileLoop& loop, size_t step) const {
      return (IsByDepth(loop, plan.steps[step]) ? by_depth : slices)[step];
    }
  };
  struct Use {
    size_t first, last;    // step
    bool written = false;  // by one of them
    int64_t cut = 0;       // by all of them
    bool Shared() const { return written && first != last; }
  };
  std::map<uint32_t, Use> UsesOf(const AtSize& at, const std::vector<size_t>& steps, const TileLoop& loop) const;
  bool Divides(const AtSize& at, size_t step, const TileLoop& loop) const;
  std::optional<uint64_t> BytesAt(const AtSize& at, const std::vector<size_t>& steps, const TileLoop& loop) const;
  std::optional<uint64_t> BytesOfTiles(const std::vector<size_t>& steps, const Loops& loops) const;
  bool Fit(const std::vector<size_t>& steps, const Loops& loops, uint64_t most = kMostTileBytes) const;
  Loops Alike(const TileLoop& loop) const { return Loops(sizes_.size(), loop); }
  int64_t PartsOfMatrix(const AtSize& at, const std::vector<size_t>& steps, const GemmStep& product) const;
  Loops LoopsOverMatrices(const std::vector<size_t>& steps) const;
  Loops LoopsOfRows(const std::vector<size_t>& steps, Loops loops, int64_t rows, uint64_t most) const;
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

bool Former::Divides(const AtSize& at, size_t step, const TileLoop& loop) const {
  const Step& s = at.plan.steps[step];
  if (at.slices[step].empty() || ExtentIn(loop, s) % loop.parts != 0) return false;
  if (IsByDepth(loop, s)) return loop.groups() == BatchesOf(s.gemm);
  if (s.kind == Step::Kind::kKernel) return true;
  const int64_t part = RowsOf(s.gemm) / loop.parts, tile = part * std::min(loop.of_tile, loop.of_group);
  if (s.gemm.batch.empty()) return tile >= (HasFewRows(step) ? kLeastRowsOfFew : kLeastRows);
  if (tile % s.gemm.m == 0) return true;
  return part * loop.of_group % s.gemm.m == 0 && tile >= kLeastRowsOfTile &&
         static_cast<uint64_t>(s.gemm.k * s.gemm.n) * SizeOf(s.gemm.dtype) <= kMostRightBytes;
}

std::map<uint32_t, Former::Use> Former::UsesOf(const AtSize& at, const std::vector<size_t>& steps,
                                               const TileLoop& loop) const {
  std::map<uint32_t, Use> uses;
  for (size_t step : steps) {
    const std::vector<uint32_t>& slots = plan_.steps[step].slots;
    const Slices& slices = at.SlicesIn(loop, step);
    for (size_t j = 0; j < slots.size(); ++j) {
      Use& use = uses.try_emplace(slots[j], Use{step, step}).first->second;
      use.last = step;
      use.cut = std::gcd(use.cut, slices[j]);
      use.written |= j >= plan_.steps[step].num_inputs;
    }
  }
  return uses;
}

// Every value that one of the steps writes and another touches is cut alike: the bytes that a tile has at a time.
std::optional<uint64_t> Former::BytesAt(const AtSize& at, const std::vector<size_t>& steps,
                                        const TileLoop& loop) const {
  if (!llvm::all_of(steps, [&](size_t step) { return Divides(at, step, loop); })) return std::nullopt;
  uint64_t most = 0;
  std::vector<std::pair<Use, uint64_t>> cut;
  for (const auto& [slot, use] : UsesOf(at, steps, loop)) {
    if (use.cut % loop.parts == 0) {
      cut.push_back({use, BytesOfTile(loop, at.plan.slots[slot].bytes)});
    } else if (use.Shared()) {
      return std::nullopt;
    }
  }
  for (size_t step : steps) {
    uint64_t bytes = 0;
    for (const auto& [use, of_tile] : cut) bytes += use.first <= step && step <= use.last ? of_tile : 0;
    most = std::max(most, bytes);
  }
  return most;
}

// At the size at which they are most.
std::optional<uint64_t> Former::BytesOfTiles(const std::vector<size_t>& steps, const Loops& loops) const {
  const auto inside = [&](size_t step) { return std::binary_search(steps.begin(), steps.end(), step); };
  if (llvm::any_of(edges_, [&](const Edge& e) { return e.apart && inside(e.from) && inside(e.to); })) {
    return std::nullopt;
  }
  uint64_t most = 0;
  for (size_t i = 0; i < loops.size(); ++i) {
    const std::optional<uint64_t> bytes = BytesAt(sizes_[i], steps, loops[i]);
    if (!bytes) return std::nullopt;
    most = std::max(most, *bytes);
  }
  return most;
}

bool Former::Fit(const std::vector<size_t>& steps, const Loops& loops, uint64_t most) const {
  const std::optional<uint64_t> bytes = BytesOfTiles(steps, loops);
  return bytes && *bytes <= most;
}

// How finely all steps cut what they share of each of the product's matrices; 0 where not at all.
int64_t Former::PartsOfMatrix(const AtSize& at, const std::vector<size_t>& steps, const GemmStep& product) const {
  const int64_t matrices = BatchesOf(product);
  const TileLoop rows{.parts = RowsOf(product), .of_group = product.m};
  int64_t parts = RowsOf(product);
  for (size_t step : steps) parts = std::gcd(parts, ExtentIn(rows, at.plan.steps[step]));
  for (const auto& [slot, use] : UsesOf(at, steps, rows)) {
    if (use.Shared()) parts = std::gcd(parts, use.cut);
  }
  return parts % matrices == 0 ? parts / matrices : 0;
}

// Tiles of a matrix, or of as many of its rows as fit at the largest size. A thread has less of them in memory than a
// launch has of the whole.
Former::Loops Former::LoopsOverMatrices(const std::vector<size_t>& steps) const {
  const auto kind = [&](bool sums) {
    return llvm::find_if(steps, [&, sums](size_t step) {
      const Step& s = plan_.steps[step];
      return s.kind == Step::Kind::kGemm && !s.gemm.batch.empty() && SumsOverTiles(s.gemm) == sums;
    });
  };
  const auto product = kind(false);
  const bool sums = kind(true) != steps.end();
  const auto uncut = [&](const AtSize& at) {
    return llvm::any_of(steps, [&](size_t step) { return at.slices[step].empty(); });
  };
  if (product == steps.end() || llvm::any_of(sizes_, uncut) ||
      (sums && BatchesOf(plan_.steps[*product].gemm) < kTileUnit)) {
    return {};
  }
  Loops whole, some;
  for (const AtSize& at : sizes_) whole.push_back({.parts = BatchesOf(at.plan.steps[*product].gemm)});
  if (Fit(steps, whole)) return whole;
  int64_t rows = 0;  // of a part
  for (const AtSize& at : sizes_) {
    const GemmStep& g = at.plan.steps[*product].gemm;
    const int64_t parts = PartsOfMatrix(at, steps, g);
    if (parts > 0 && rows == 0) rows = g.m / parts;
    if (parts > 0 && rows * parts == g.m) some.push_back({.parts = BatchesOf(g) * parts, .of_group = parts});
  }
  const uint64_t closed = rows <= kLeastRowsOfTile ? kMostBytesOfLeast : sums ? kMostBytesOfSums : kMostTileBytes;
  const uint64_t most = Open() ? UINT64_MAX : closed;
  Loops loops = some.size() == sizes_.size() ? LoopsOfRows(steps, std::move(some), rows, most) : Loops();
  return loops.empty() && Open() && Fit(steps, whole, most) ? whole : loops;
}

// Tiles of as many of the loops' parts, of `rows` each, as fit; none where the fewest rows have more than `most` bytes.
Former::Loops Former::LoopsOfRows(const std::vector<size_t>& steps, Loops loops, int64_t rows, uint64_t most) const {
  const int64_t least = llvm::divideCeil(kLeastRowsOfTile, rows), unit = llvm::divideCeil(kRowUnit, rows);
  for (TileLoop& loop : loops) loop.of_tile = least;
  const std::optional<uint64_t> bytes = BytesOfTiles(steps, loops);
  if (!bytes || *bytes > most) return {};
  const auto fit = static_cast<int64_t>(kMostTileBytes * least / std::max<uint64_t>(*bytes, 1));
  const int64_t parts = loops.back().of_group, tiles = llvm::divideCeil(parts, std::max(least, fit));
  for (TileLoop& loop : loops) loop.of_tile = llvm::alignTo(llvm::divideCeil(parts, tiles), unit);
  return loops;
}

Former::Loops Former::LoopsOf(const std::vector<size_t>& steps) const {
  for (int64_t tiles = kMostTiles; tiles > 0; tiles -= kTileUnit) {
    if (const Loops loops = Alike({.parts = tiles}); Fit(steps, loops)) return loops;
  }
  if (Loops loops = LoopsOverMatrices(steps); !loops.empty()) return loops;
  if (llvm::none_of(steps, [&](size_t step) { return HasFewRows(step); })) return {};
  for (int64_t tiles = kMostTilesOfFew; tiles > 1; --tiles) {
    if (const Loops loops = Alike({.parts = tiles}); Fit(steps, loops)) return loops;
  }
  return {};
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
  if (LoopsOf(both).empty()) return true;
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
  for (const std::vector<size_t>& cluster : former.Order()) {
    const Former::Loops loops = cluster.size() > 1 ? former.LoopsOf(cluster) : Former::Loops();
    for (size_t i = 0; i < loops.size(); ++i) {
      TileLoop& loop = sizes[i].plan->tile_loops.emplace_back(loops[i]);
      loop.first = static_cast<uint32_t>(former_number.size());
      loop.count = static_cast<uint32_t>(cluster.size());
    }
    former_number.insert(former_number.end(), cluster.begin(), cluster.end());
  }
  for (const SizedSteps& size : sizes) {
    std::vector<Step> steps;
    for (size_t step : former_number) steps.push_back(std::move(size.plan->steps[step]));
    size.plan->steps = std::move(steps);
    KeepInTiles(*size.plan);
  }
  return former_number;
}

}  // namespace tpu::host
