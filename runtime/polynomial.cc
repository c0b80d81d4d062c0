#include "runtime/polynomial.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

namespace tpu {
namespace {

constexpr int64_t kMostValue = int64_t{1} << 48;  // numbers beyond are no sizes
constexpr int64_t kMostSize = int64_t{1} << 31;   // the fourth power of which fits in 128 bits
constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr size_t kTerms = Polynomial::kPowers * Polynomial::kPowers;

using Wide = __int128;
using Row = std::array<uint64_t, kTerms + 1>;  // of a system of equations modulo kPrime

uint64_t Residue(Wide number) {
  const auto rest = static_cast<int64_t>(number % static_cast<Wide>(kPrime));
  return rest < 0 ? rest + kPrime : rest;
}
uint64_t Times(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  const uint64_t sum = static_cast<uint64_t>(product & kPrime) + static_cast<uint64_t>(product >> 61);
  return sum >= kPrime ? sum - kPrime : sum;
}
uint64_t Less(uint64_t a, uint64_t b) { return a >= b ? a - b : a + kPrime - b; }
uint64_t Inverse(uint64_t a) {
  uint64_t inverse = 1;
  for (uint64_t power = kPrime - 2; power > 0; power /= 2, a = Times(a, a)) {
    if (power % 2 == 1) inverse = Times(inverse, a);
  }
  return inverse;
}

Wide Monomial(size_t term, absl::Span<const int64_t> sizes) {
  Wide value = 1;
  for (size_t i = term % Polynomial::kPowers; i > 0; --i) value *= sizes[0];
  for (size_t j = term / Polynomial::kPowers; j > 0; --j) value *= sizes[1];
  return value;
}

// The multiple of one place, and a fixed number, that all the values are.
std::optional<Polynomial> AlongOne(absl::Span<const SizePoint> points, absl::Span<const int64_t> values) {
  for (size_t place = 0; place < points[0].size(); ++place) {
    size_t other = 1;
    while (other < points.size() && points[other][place] == points[0][place]) ++other;
    if (other == points.size()) continue;
    const Wide step = static_cast<Wide>(points[other][place]) - points[0][place];
    const Wide rise = static_cast<Wide>(values[other]) - values[0];
    if (rise % step != 0) continue;
    const Wide times = rise / step, fixed = values[0] - times * points[0][place];
    bool holds = true;
    for (size_t i = 0; i < points.size() && holds; ++i) holds = fixed + times * points[i][place] == values[i];
    if (!holds) continue;
    Polynomial p{{static_cast<int64_t>(fixed)}};
    p.place = place;
    p.times = static_cast<int64_t>(times);
    return p;
  }
  return std::nullopt;
}

bool Holds(const Polynomial& p, absl::Span<const int64_t> sizes, int64_t value) {
  Wide sum = 0, product;
  for (size_t term = 0; term < kTerms; ++term) {
    if (p.terms[term] == 0) continue;
    if (__builtin_mul_overflow(Monomial(term, sizes), static_cast<Wide>(p.terms[term]), &product) ||
        __builtin_add_overflow(sum, product, &sum)) {
      return false;
    }
  }
  return sum == value;
}

// The one polynomial of these terms that may go through the points; nullopt where there is none, or more than one.
// Exact arithmetic would need long numbers; modulo a prime they stay short, and what is whole and small is found.
std::optional<Polynomial> Solve(unsigned terms, std::vector<Row> rows) {
  std::vector<size_t> columns;
  for (size_t term = 0; term < kTerms; ++term) {
    if (terms >> term & 1) columns.push_back(term);
  }
  columns.push_back(kTerms);  // the values
  const size_t unknown = columns.size() - 1;
  for (size_t done = 0; done < unknown; ++done) {
    const size_t column = columns[done];
    size_t pivot = done;
    while (pivot < rows.size() && rows[pivot][column] == 0) ++pivot;
    if (pivot == rows.size()) return std::nullopt;
    std::swap(rows[done], rows[pivot]);
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint64_t here = rows[i][column];
      if (i == done || here == 0) continue;
      for (const size_t k : columns) {
        rows[i][k] = Less(Times(rows[i][k], rows[done][column]), Times(rows[done][k], here));
      }
    }
  }
  for (size_t i = unknown; i < rows.size(); ++i) {
    if (rows[i][kTerms] != 0) return std::nullopt;
  }
  Polynomial p;
  for (size_t i = 0; i < unknown; ++i) {
    const auto c = static_cast<int64_t>(Times(rows[i][kTerms], Inverse(rows[i][columns[i]])));
    p.terms[columns[i]] = c > static_cast<int64_t>(kPrime / 2) ? c - static_cast<int64_t>(kPrime) : c;
  }
  return p;
}

}  // namespace

bool SizeRange::Holds(absl::Span<const int64_t> sizes) const {
  if (sizes.size() != least.size()) return false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < least[d] || sizes[d] > most[d]) return false;
  }
  return true;
}

void SizeRange::Reach(const SizePoint& sizes) {
  if (least.empty()) least = most = sizes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    least[d] = std::min(least[d], sizes[d]);
    most[d] = std::max(most[d], sizes[d]);
  }
}

int64_t StepOf(int64_t size) {
  constexpr int64_t kFirst = 16;
  int64_t step = kFirst;
  while (step < size) step *= 2;
  return step > kFirst && step / 4 * 3 >= size ? step / 4 * 3 : step;
}

bool Polynomial::fixed() const {
  return times == 0 && std::all_of(terms.begin() + 1, terms.end(), [](int64_t term) { return term == 0; });
}

void Polynomial::Write(ByteWriter& out) const {
  for (const int64_t term : terms) out.I64(term);
  out.U64(place);
  out.I64(times);
}

bool Polynomial::Read(ByteReader& in, size_t values) {
  for (int64_t& term : terms) term = in.I64();
  place = in.U64();
  times = in.I64();
  return in.ok() && place < values;
}

int64_t Polynomial::At(absl::Span<const int64_t> sizes) const {
  // Unsigned: far beyond the points that it was found through it may leave 64 bits.
  if (sizes.size() > kMostSizes) {
    return static_cast<int64_t>(static_cast<uint64_t>(terms[0]) +
                                static_cast<uint64_t>(times) * static_cast<uint64_t>(sizes[place]));
  }
  const uint64_t a = sizes[0], b = sizes.size() > 1 ? sizes[1] : 0;
  uint64_t value = 0;
  for (size_t j = kPowers; j-- > 0;) {
    uint64_t of_a = 0;
    for (size_t i = kPowers; i-- > 0;) of_a = of_a * a + static_cast<uint64_t>(terms[i + kPowers * j]);
    value = value * b + of_a;
  }
  return static_cast<int64_t>(value);
}

std::optional<Polynomial> Polynomial::Through(absl::Span<const SizePoint> points, absl::Span<const int64_t> values) {
  // A number that never changes may be no size (INT64_MAX: up to the end).
  if (points.size() > 1 && std::equal(values.begin() + 1, values.end(), values.begin())) return Polynomial{{values[0]}};
  const auto beyond = [](int64_t value) { return value > kMostValue || value < -kMostValue; };
  if (std::any_of(values.begin(), values.end(), beyond)) return std::nullopt;
  if (points[0].size() > kMostSizes) return AlongOne(points, values);
  const size_t known = points[0].size() == 1 ? kPowers : kTerms;
  std::vector<Row> rows(points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    if (std::any_of(points[i].begin(), points[i].end(), [](int64_t size) { return size > kMostSize || size < 0; })) {
      return std::nullopt;
    }
    for (size_t term = 0; term < known; ++term) rows[i][term] = Residue(Monomial(term, points[i]));
    rows[i][kTerms] = Residue(values[i]);
  }
  static const std::vector<unsigned> by_count = [] {
    std::vector<unsigned> all(1 << kTerms);
    for (unsigned terms = 0; terms < all.size(); ++terms) all[terms] = terms;
    std::stable_sort(all.begin(), all.end(),
                     [](unsigned a, unsigned b) { return std::popcount(a) < std::popcount(b); });
    return all;
  }();
  for (const unsigned terms : by_count) {
    if (terms >> known != 0) continue;
    if (std::popcount(terms) >= static_cast<int>(points.size())) break;
    const std::optional<Polynomial> p = Solve(terms, rows);
    if (!p) continue;
    bool holds = true;
    for (size_t i = 0; i < points.size() && holds; ++i) holds = Holds(*p, points[i], values[i]);
    if (holds) return p;
  }
  return std::nullopt;
}

}  // namespace tpu
