// Where the temporaries of a plan lie: values whose lifetimes do not meet share bytes of its arena.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/host/plan.h"

namespace tpu::host {

constexpr uint64_t kAlignment = 64;  // of every value

// When each step runs: those of a tile loop all at once.
std::vector<size_t> TimesOf(const Plan& plan);
// Sets the offsets of temporaries, by their sizes and the steps that use them, and the arena's size. First fit, in the
// slots' order.
void PlaceTemporaries(Plan& plan);

}  // namespace tpu::host
