// Where the views and updates of a fragment begin: numbers that may change while all else, and with it the code that
// reads and writes, stays: rows of a batch, the next place of a cache.
//
// Used by family. Plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/fragment.h"

namespace tpu {

struct Place {
  size_t number = 0;           // which of Fragment::Sizes
  const Call* call = nullptr;  // "tpu::view" or "tpu::update"
};
int64_t LastOf(const Call& call);  // the last element that the window of a view or update reaches
std::vector<Place> PlacesOf(const Fragment& fragment);
Fragment WithoutPlaces(const Fragment& fragment);  // all windows begin at 0

// A window may begin at every `unit` elements from `least` to `most`.
struct Reach {
  int64_t unit = 1, least = 0, most = 0;
};
// Of one that was seen to move by multiples of `step`: where it lies along the dims of what it is a window of as it
// does now, further on along one of them; anywhere, where it goes around the ends of rows. Nothing: it has no elements.
std::optional<Reach> ReachOf(const Call& call, int64_t step);

}  // namespace tpu
