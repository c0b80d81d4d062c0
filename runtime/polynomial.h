// Numbers of a program that follow one size a, or two, a and b: whole multiples of a^i b^j, i and j up to 2. Or one of
// any number of places that change each on its own (where views begin): a multiple of that.
//
// Plain data. Used by plan families (runtime/host) and by the fragments they serve (jit).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "runtime/bytes.h"

namespace tpu {

// Values of the sizes that something follows, of one or of two, or of the places.
using SizePoint = std::vector<int64_t>;

// All values of each between two, these included.
struct SizeRange {
  SizePoint least, most;

  bool Holds(absl::Span<const int64_t> sizes) const;
  void Reach(const SizePoint& sizes);  // widens it; an empty one holds these alone then
};

// The step of a ladder of sizes, 16, 24, 32, 48, 64 and so on, that holds `size`: what it is padded to.
int64_t StepOf(int64_t size);

struct Polynomial {
  static constexpr size_t kPowers = 3;             // of each size, from 0 on
  static constexpr size_t kMostSizes = 2;          // values of a point beyond are places, all of them
  std::array<int64_t, kPowers * kPowers> terms{};  // the multiple of a^i b^j at i + kPowers * j
  // Of places: so many times this one, and the first of the terms.
  uint64_t place = 0;
  int64_t times = 0;

  int64_t At(absl::Span<const int64_t> sizes) const;
  // Of the fewest terms through all the points, of which there must be one more than terms, so that what follows no
  // polynomial is refused; nullopt when there is none with whole multiples. The points are distinct, of as many sizes.
  static std::optional<Polynomial> Through(absl::Span<const SizePoint> points, absl::Span<const int64_t> values);
  bool fixed() const;  // follows nothing
  void Write(ByteWriter& out) const;
  // False where it is none for points of so many values.
  bool Read(ByteReader& in, size_t values);
  friend bool operator==(const Polynomial&, const Polynomial&) = default;
};

}  // namespace tpu
