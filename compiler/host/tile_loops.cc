#include "compiler/host/tile_loops.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "mlir/IR/BuiltinTypes.h"
#include "runtime/host/gemm.h"

namespace tpu::host {
namespace {

constexpr int64_t kMostTiles = 64;
constexpr int64_t kTileUnit = 8;               // tiles divide evenly among few threads
constexpr int64_t kLeastRows = 512;            // of a product without a batch: each tile packs its right side anew
constexpr uint64_t kMostTileBytes = 2 << 20;   // what the steps of a tile share has to stay in cache
constexpr uint64_t kLeastLinkBytes = 1 << 20;  // less than that stays in cache in any case

// An access walks over `count` elements by leading loops of these sizes and strides, outermost first, and within
// [low, high] of each of their positions by the others.
struct Walk {
  llvm::SmallVector<int64_t> sizes, strides;
  int64_t low = 0, high = 0;
  int64_t count = 0;
};

// The finest cut: the number of positions of the most leading loops at each of which the walk has a part of its own.
int64_t FinestCut(Walk walk) {
  while (!walk.sizes.empty()) {
    int64_t positions = 1, part = walk.count;
    bool apart = walk.low >= 0;
    for (size_t i = 0; i < walk.sizes.size(); ++i) {
      positions *= walk.sizes[i];
      if (part % walk.sizes[i] != 0) return 1;
      part /= walk.sizes[i];
      apart &= walk.sizes[i] == 1 || walk.strides[i] == part;
    }
    if (apart && walk.high < part) return positions;
    const int64_t reach = walk.strides.back() * (walk.sizes.back() - 1);
    (reach < 0 ? walk.low : walk.high) += reach;
    walk.sizes.pop_back();
    walk.strides.pop_back();
  }
  return 1;
}

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
  for (size_t i = 0; i < nest.loops.size(); ++i) {
    const Loop& loop = nest.loops[i];
    const bool blocked = i + 1 == nest.loops.size() && !loop.reduced;
    if (!loop.reduced) leading &= !((derived >> i) & 1) && !(blocked && loop.size % shape.block != 0);
    if (loop.reduced || !leading) {
      const int64_t reach = strides[i] * (loop.size - 1);
      (reach < 0 ? walk.low : walk.high) += reach;
      continue;
    }
    const int64_t block = blocked ? shape.block : 1;
    walk.sizes.push_back(loop.size / block);
    walk.strides.push_back(strides[i] * block);
    const int64_t reach = strides[i] * (block - 1);
    (reach < 0 ? walk.low : walk.high) += reach;
  }
  return FinestCut(std::move(walk));
}

// Joins steps to clusters, each a tile loop or a step alone, along what one writes and another reads.
class Former {
 public:
  Former(const Plan& plan, const std::vector<Slices>& slices, const std::vector<size_t>& inputs)
      : plan_(plan), slices_(slices), inputs_(inputs) {
    FindEdges();
  }
  void Join();
  std::vector<std::vector<size_t>> Order() const;
  int64_t TilesOf(const std::vector<size_t>& steps) const;

 private:
  struct Edge {
    size_t from, to;
    uint64_t bytes;
    bool apart = false;  // through another slot of the same bytes: never in one loop
  };
  void FindEdges();
  bool Divides(size_t step, int64_t tiles) const;
  bool Fits(const std::vector<size_t>& steps, int64_t tiles) const;
  bool PathAround(size_t a, size_t b) const;
  uint64_t BytesOf(uint32_t slot) const { return plan_.slots[slot].bytes; }
  bool PartsOfOne(uint32_t a, uint32_t b) const;

  const Plan& plan_;
  const std::vector<Slices>& slices_;
  const std::vector<size_t>& inputs_;
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
      if (j >= inputs_[i]) {
        writer[slots[j]] = i;
      } else if (auto it = writer.find(slots[j]); it != writer.end()) {
        edges_.push_back({it->second, i, BytesOf(slots[j])});
      }
    }
  }
}

bool Former::Divides(size_t step, int64_t tiles) const {
  const Step& s = plan_.steps[step];
  if (slices_[step].empty()) return false;
  for (size_t j = inputs_[step]; j < s.slots.size(); ++j) {
    if (slices_[step][j] % tiles != 0) return false;
  }
  if (s.kind == Step::Kind::kKernel) return s.kernel.extent() % tiles == 0;
  const int64_t rows = RowsOf(s.gemm);
  return rows % tiles == 0 && (s.gemm.batch.empty() ? rows / tiles >= kLeastRows : rows / tiles % s.gemm.m == 0);
}

// Every value that one of the steps writes and another reads is cut alike, and a tile stays in cache.
bool Former::Fits(const std::vector<size_t>& steps, int64_t tiles) const {
  const auto inside = [&](size_t step) { return std::binary_search(steps.begin(), steps.end(), step); };
  if (llvm::any_of(edges_, [&](const Edge& e) { return e.apart && inside(e.from) && inside(e.to); })) return false;
  std::map<uint32_t, bool> cut;  // of each slot; of those written here, by every step
  std::set<uint32_t> written;
  for (size_t step : steps) {
    if (!Divides(step, tiles)) return false;
    const std::vector<uint32_t>& slots = plan_.steps[step].slots;
    for (size_t j = 0; j < slots.size(); ++j) {
      const bool here = slices_[step][j] % tiles == 0;
      if (j >= inputs_[step]) written.insert(slots[j]);
      auto [it, fresh] = cut.try_emplace(slots[j], here);
      it->second &= here;
    }
  }
  uint64_t bytes = 0;
  for (auto [slot, sliced] : cut) {
    if (sliced) bytes += BytesOf(slot) / static_cast<uint64_t>(tiles);
    if (!sliced && written.count(slot)) return false;
  }
  return bytes <= kMostTileBytes;
}

int64_t Former::TilesOf(const std::vector<size_t>& steps) const {
  for (int64_t tiles = kMostTiles; tiles > 0; tiles -= kTileUnit) {
    if (Fits(steps, tiles)) return tiles;
  }
  return 0;
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
  std::erase_if(links, [](const Edge& edge) { return edge.bytes < kLeastLinkBytes; });
  std::stable_sort(links.begin(), links.end(), [](const Edge& x, const Edge& y) { return x.bytes > y.bytes; });
  for (const Edge& link : links) {
    const size_t a = cluster_[link.from], b = cluster_[link.to];
    if (a == b) continue;
    std::vector<size_t> both;
    std::merge(members_[a].begin(), members_[a].end(), members_[b].begin(), members_[b].end(),
               std::back_inserter(both));
    if (TilesOf(both) == 0 || PathAround(a, b) || PathAround(b, a)) continue;
    const size_t joined = both.front();
    for (size_t step : both) cluster_[step] = joined;
    members_.erase(a);
    members_.erase(b);
    members_[joined] = std::move(both);
  }
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

Slices SlicesOf(const LoopNest& nest, const KernelShape& shape) {
  if (!shape.row_major) return {};
  auto count = [](mlir::Value v) { return mlir::cast<mlir::RankedTensorType>(v.getType()).getNumElements(); };
  Slices slices(nest.inputs.size(), 0);
  for (const NestNode& node : nest.nodes) {
    if (node.kind != NestNode::Kind::kLoad) continue;
    const int64_t cut = CutOf(nest, shape, node.index, count(nest.inputs[node.input]));
    slices[node.input] = std::gcd(slices[node.input], cut);
  }
  for (const NestOutput& output : nest.outputs) {
    slices.push_back(output.full ? CutOf(nest, shape, nest.FullIndex(), nest.full_count())
                                 : CutOf(nest, shape, nest.RowIndex(), nest.kept_count()));
  }
  return slices;
}

Slices SlicesOf(const GemmStep& g, int64_t elements_a, int64_t elements_b, int64_t elements_c) {
  auto cut = [&](int64_t offset, const std::vector<int64_t>& strides, int64_t row, int64_t rest, int64_t count) {
    Walk walk{{g.batch.begin(), g.batch.end()}, {strides.begin(), strides.end()}, offset, offset + rest, count};
    walk.sizes.push_back(g.m);
    walk.strides.push_back(row);
    return FinestCut(std::move(walk));
  };
  const int64_t a = g.trans_a ? (g.k - 1) * g.lda : g.k - 1;
  const int64_t b = g.trans_b ? (g.n - 1) * g.ldb + g.k - 1 : (g.k - 1) * g.ldb + g.n - 1;
  return {cut(g.offset_a, g.stride_a, g.trans_a ? 1 : g.lda, a, elements_a),
          cut(g.offset_b, g.stride_b, 0, b, elements_b), cut(g.offset_c, g.stride_c, g.ldc, g.n - 1, elements_c)};
}

std::vector<size_t> FormTileLoops(Plan& plan, const std::vector<Slices>& slices, const std::vector<size_t>& inputs) {
  Former former(plan, slices, inputs);
  former.Join();
  std::vector<Step> steps;
  std::vector<size_t> former_number;
  for (const std::vector<size_t>& cluster : former.Order()) {
    if (cluster.size() > 1) {
      plan.tile_loops.push_back(
          {static_cast<uint32_t>(steps.size()), static_cast<uint32_t>(cluster.size()), former.TilesOf(cluster)});
    }
    for (size_t step : cluster) {
      steps.push_back(std::move(plan.steps[step]));
      former_number.push_back(step);
    }
  }
  plan.steps = std::move(steps);
  return former_number;
}

}  // namespace tpu::host
