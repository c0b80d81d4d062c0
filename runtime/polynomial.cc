#include "runtime/polynomial.h"

namespace tpu {
namespace {

// Numbers beyond are no sizes; below it nothing overflows 128 bits.
constexpr int64_t kMost = int64_t{1} << 48;

std::optional<int64_t> Quotient(__int128 a, __int128 b) {
  if (a % b != 0) return std::nullopt;
  const __int128 q = a / b;
  if (q > kMost || q < -kMost) return std::nullopt;
  return static_cast<int64_t>(q);
}

bool Holds(const Polynomial& p, absl::Span<const int64_t> sizes, absl::Span<const int64_t> values) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    const __int128 s = sizes[i];
    if (p.coefficients[0] + s * (p.coefficients[1] + s * p.coefficients[2]) != values[i]) return false;
  }
  return true;
}

}  // namespace

std::optional<Polynomial> Polynomial::Through(absl::Span<const int64_t> sizes, absl::Span<const int64_t> values) {
  for (int64_t v : values) {
    if (v > kMost || v < -kMost) return std::nullopt;
  }
  Polynomial p{{values[0], 0, 0}};
  if (Holds(p, sizes, values)) return p;
  if (sizes.size() < 2) return std::nullopt;
  // Newton's divided differences.
  const std::optional<int64_t> slope = Quotient(__int128{values[1]} - values[0], sizes[1] - sizes[0]);
  if (slope) {
    p = {{values[0] - *slope * sizes[0], *slope, 0}};
    if (Holds(p, sizes, values)) return p;
  }
  if (sizes.size() < 3) return std::nullopt;
  const __int128 a = sizes[0], b = sizes[1], c = sizes[2];
  const __int128 numerator = (__int128{values[2]} - values[0]) * (b - a) - (__int128{values[1]} - values[0]) * (c - a);
  const std::optional<int64_t> square = Quotient(numerator, (b - a) * (c - a) * (c - b));
  if (!square) return std::nullopt;
  const std::optional<int64_t> linear =
      Quotient(__int128{values[1]} - values[0] - __int128{*square} * (b * b - a * a), b - a);
  if (!linear) return std::nullopt;
  const __int128 constant = __int128{values[0]} - *linear * a - *square * a * a;
  if (constant > kMost || constant < -kMost) return std::nullopt;
  p = {{static_cast<int64_t>(constant), *linear, *square}};
  if (Holds(p, sizes, values)) return p;
  return std::nullopt;
}

}  // namespace tpu
