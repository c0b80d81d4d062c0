#include "runtime/host/arena.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tpu::host {

std::vector<size_t> TimesOf(const Plan& plan) {
  std::vector<size_t> times(plan.steps.size());
  for (size_t i = 0; i < times.size(); ++i) times[i] = i;
  for (const TileLoop& loop : plan.tile_loops) {
    for (size_t i = 0; i < loop.count; ++i) times[loop.first + i] = loop.first;
  }
  return times;
}

void PlaceTemporaries(Plan& plan) {
  const std::vector<size_t> times = TimesOf(plan);
  struct Life {
    size_t first = SIZE_MAX, last = 0;
  };
  std::vector<Life> lives(plan.slots.size());
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    for (uint32_t slot : plan.steps[s].slots) {
      lives[slot].first = std::min(lives[slot].first, times[s]);
      lives[slot].last = std::max(lives[slot].last, times[s]);
    }
  }
  struct Placed {
    size_t first, last;
    uint64_t begin, end;
  };
  std::vector<Placed> placed;
  plan.arena_bytes = 0;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    Slot& slot = plan.slots[i];
    if (slot.kind != Slot::Kind::kTemp) continue;
    if (lives[i].first == SIZE_MAX) continue;
    const uint64_t bytes = (std::max<uint64_t>(slot.bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    std::vector<std::pair<uint64_t, uint64_t>> busy;
    for (const Placed& p : placed) {
      if (p.first <= lives[i].last && lives[i].first <= p.last) busy.push_back({p.begin, p.end});
    }
    std::sort(busy.begin(), busy.end());
    uint64_t at = 0;
    for (auto [begin, end] : busy) {
      if (at + bytes <= begin) break;
      at = std::max(at, end);
    }
    slot.offset = at;
    placed.push_back({lives[i].first, lives[i].last, at, at + bytes});
    plan.arena_bytes = std::max(plan.arena_bytes, at + bytes);
  }
}

}  // namespace tpu::host
