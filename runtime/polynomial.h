// Numbers of a program that follow one size: c0 + c1 * size + c2 * size^2, with whole coefficients.
//
// Plain data. Used by plan families (runtime/host) and by the fragments they serve (jit).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace tpu {

struct Polynomial {
  std::array<int64_t, 3> coefficients{};

  int64_t At(int64_t size) const { return coefficients[0] + size * (coefficients[1] + size * coefficients[2]); }
  // Of the least degree through all the points, of which there are at least three for a square; nullopt when there is
  // none with whole coefficients. `sizes` are distinct.
  static std::optional<Polynomial> Through(absl::Span<const int64_t> sizes, absl::Span<const int64_t> values);
};

}  // namespace tpu
