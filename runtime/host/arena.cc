#include "runtime/host/arena.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "runtime/host/tile_cut.h"

namespace tpu::host {
namespace {

// Of each slot: the first and the last time that a step uses it.
struct Life {
  size_t first = SIZE_MAX, last = 0;
};
std::vector<Life> LivesOf(const Plan& plan, const std::vector<size_t>& times) {
  std::vector<Life> lives(plan.slots.size());
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    for (uint32_t slot : plan.steps[s].slots) {
      lives[slot].first = std::min(lives[slot].first, times[s]);
      lives[slot].last = std::max(lives[slot].last, times[s]);
    }
  }
  return lives;
}

// Offsets of the slots of one kind; returns the bytes that they take together. bytes_of: what a slot needs.
template <typename BytesOf>
uint64_t Place(Plan& plan, Slot::Kind kind, const std::vector<Life>& lives, absl::Span<const InPlace> in_place,
               BytesOf bytes_of) {
  struct Placed {
    size_t slot;
    uint64_t bytes, begin = 0;
    uint64_t end() const { return begin + bytes; }
  };
  std::vector<Placed> placed;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (plan.slots[i].kind != kind || lives[i].first == SIZE_MAX) continue;
    placed.push_back({i, (std::max<uint64_t>(bytes_of(i), 1) + kAlignment - 1) / kAlignment * kAlignment});
  }
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& x, const Placed& y) { return x.bytes > y.bytes; });
  const auto written_over = [&](size_t value, size_t source) {
    return lives[source].last == lives[value].first &&
           std::any_of(in_place.begin(), in_place.end(),
                       [&](const InPlace& p) { return p.value == value && p.source == source; });
  };
  uint64_t total = 0;
  for (auto it = placed.begin(); it != placed.end(); ++it) {
    std::vector<Placed> busy;  // while the value lives
    std::copy_if(placed.begin(), it, std::back_inserter(busy), [&](const Placed& other) {
      const Life &x = lives[it->slot], &y = lives[other.slot];
      return y.first <= x.last && x.first <= y.last;
    });
    std::sort(busy.begin(), busy.end(), [](const Placed& x, const Placed& y) { return x.begin < y.begin; });
    const auto shared = std::find_if(busy.begin(), busy.end(), [&](const Placed& p) {
      return p.bytes == it->bytes && (written_over(it->slot, p.slot) || written_over(p.slot, it->slot)) &&
             std::none_of(busy.begin(), busy.end(), [&](const Placed& other) {
               return other.slot != p.slot && other.begin < p.end() && p.begin < other.end();
             });
    });
    if (shared != busy.end()) {
      it->begin = shared->begin;
    } else {
      for (const Placed& other : busy) {
        if (it->end() <= other.begin) break;
        it->begin = std::max(it->begin, other.end());
      }
    }
    plan.slots[it->slot].offset = it->begin;
    total = std::max(total, it->end());
  }
  return total;
}

}  // namespace

std::vector<size_t> TimesOf(const Plan& plan) {
  std::vector<size_t> times(plan.steps.size());
  for (size_t i = 0; i < times.size(); ++i) times[i] = i;
  for (const TileLoop& loop : plan.tile_loops) {
    for (size_t i = 0; i < loop.count; ++i) times[loop.first + i] = loop.first;
  }
  return times;
}

void PlaceTemporaries(Plan& plan, absl::Span<const InPlace> in_place) {
  std::vector<InPlace> copies;
  for (const Step& step : plan.steps) {
    if (step.kind == Step::Kind::kCopy) copies.push_back({step.slots[1], step.slots[0]});
  }
  plan.arena_bytes = Place(plan, Slot::Kind::kTemp, LivesOf(plan, TimesOf(plan)), copies,
                           [&](size_t slot) { return plan.slots[slot].bytes; });
  // One thread runs the steps of a tile in their order.
  std::vector<size_t> order(plan.steps.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const std::vector<Life> lives = LivesOf(plan, order);
  plan.thread_bytes = Place(plan, Slot::Kind::kTile, lives, in_place, [&](size_t slot) {
    const auto loop = std::find_if(plan.tile_loops.begin(), plan.tile_loops.end(),
                                   [&](const TileLoop& l) { return lives[slot].last < l.first + size_t{l.count}; });
    return BytesOfTile(*loop, plan.slots[slot].bytes);
  });
}

}  // namespace tpu::host
