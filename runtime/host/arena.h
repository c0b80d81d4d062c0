// Where the temporaries of a plan lie: values whose lifetimes do not meet share bytes of its arena. A tile's values
// live from step to step of their loop, on the thread that runs the tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "runtime/host/plan.h"

namespace tpu::host {

constexpr uint64_t kAlignment = 64;  // of every value

// When each step runs: those of a tile loop all at once.
std::vector<size_t> TimesOf(const Plan& plan);
// The step that writes slot `value` first may write it over slot `source`, if that is read no more.
struct InPlace {
  uint32_t value = 0, source = 0;
};
// Sets the offsets of temporaries, by their sizes and the steps that use them, and the arena's sizes. First fit, the
// largest first. in_place: for the values of tiles, which no other thread reads; copies are in place where they can be.
void PlaceTemporaries(Plan& plan, absl::Span<const InPlace> in_place = {});

}  // namespace tpu::host
