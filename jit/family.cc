#include "jit/family.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "jit/metrics.h"
#include "jit/places.h"

namespace tpu {
namespace {

constexpr size_t kMostSeen = 12;
constexpr size_t kMostPrograms = 4, kMostSteps = 24;
constexpr size_t kLeastDistinct = 3;           // values that a size has among those seen
constexpr size_t kMostCandidates = 4;          // that are tried as the sizes which others follow
constexpr size_t kLeastFit = 4, kMostFit = 6;  // fragments that a fit is found from; of one size three may do
// Below the second, a size meets others (heads, channels, pieces) by chance easily; below the first always.
constexpr int64_t kLeastSize = 3, kSafeSize = 11;
constexpr int64_t kLeastSpan = 32;                      // that a range goes up to
constexpr size_t kMostWindows = 256, kMostPlaces = 64;  // of one program: that move, and that they follow

bool IsPrime(int64_t n) {
  for (int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return n > 1;
}

// Of which some values of a size are made, beside primes: 2, for remainders of sums; 3 where there are squares, which
// are 1 beyond a multiple of 3 at all primes; of one value alone where no number is a sum of squares and others.
std::vector<int64_t> FactorsFor(size_t size, absl::Span<const Polynomial> numbers) {
  bool squares = false, summed = false;
  for (const Polynomial& number : numbers) {
    bool power[Polynomial::kPowers] = {};
    for (size_t term = 0; term < number.terms.size(); ++term) {
      if (number.terms[term] != 0) power[size == 0 ? term % Polynomial::kPowers : term / Polynomial::kPowers] = true;
    }
    squares |= power[2];
    summed |= power[2] && (power[0] || power[1]);
  }
  if (summed) return {2, 3};
  return {squares ? 6 : 2};
}

// Values of one size such that whatever divides a number of the program at all of them divides it always, and that have
// few divisors otherwise, so that nothing is divided by chance. Numbers k * size and k * size^2: primes do. With
// k * size + c, and for remainders (a shift, modulo what is shifted), also where no number of the fragment is such a
// sum: differences without a common divisor, for which primes times `factors` are among them. What divides a number
// that follows two sizes, at all pairs of such values, divides it always, too: first all its values along the one, then
// along the other. None is made of a prime in `taken`.
// At least four, which tell a square from what is none. The first is not above `least` where there is one, the last the
// greatest prime not above `most`. Nothing: there are none.
std::optional<std::vector<int64_t>> SizesBetween(int64_t least, int64_t most, absl::Span<const int64_t> factors,
                                                 std::vector<int64_t>& taken) {
  const auto free = [&](int64_t n) { return IsPrime(n) && std::find(taken.begin(), taken.end(), n) == taken.end(); };
  int64_t first = std::max(least, kLeastSize);
  while (first > kLeastSize && !free(first)) --first;
  while (!free(first)) ++first;
  int64_t second = first + 1;
  while (!free(second)) ++second;
  int64_t last = most;
  while (last > second && !free(last)) --last;
  std::vector<int64_t> sizes{first, second}, primes{first, second, last};
  for (const int64_t times : factors) {
    const int64_t after = sizes.back();
    const auto fits = [&](int64_t prime) {
      return prime * times > after && free(prime) && std::find(primes.begin(), primes.end(), prime) == primes.end() &&
             (times != factors[0] || std::gcd(std::gcd(prime * times - first, second - first), last - first) == 1);
    };
    int64_t prime = std::max((after + last) / 2, after + 1) / times;
    while (prime * times < last && !fits(prime)) ++prime;
    sizes.push_back(prime * times);
    primes.push_back(prime);
  }
  if (sizes.back() >= last) return std::nullopt;
  sizes.push_back(last);
  taken.insert(taken.end(), primes.begin(), primes.end());
  return sizes;
}

// Values of one size for a program that is made at `most`: that and three below. Two are neighbours, so that what
// divides k * size + c at all of them divides it always. Nothing: there are none, or one is `taken`.
std::optional<std::vector<int64_t>> SizesUpTo(int64_t least, int64_t most, std::vector<int64_t>& taken) {
  const auto free = [&](int64_t n) { return std::find(taken.begin(), taken.end(), n) == taken.end(); };
  int64_t first = least;
  while (!free(first) || !free(first + 1)) ++first;
  int64_t middle = std::max(first + 2, (least + 2 * most) / 3);
  while (!IsPrime(middle) || !free(middle)) ++middle;
  if (middle >= most) return std::nullopt;
  taken.insert(taken.end(), {first, first + 1, middle});
  return std::vector<int64_t>{first, first + 1, middle, most};
}

// Whatever divides the number at all these points divides it at all sizes.
bool DividesAlways(const Polynomial& number, absl::Span<const SizePoint> points) {
  int64_t here = 0, always = 0;
  for (const SizePoint& point : points) here = std::gcd(here, number.At(point));
  const auto powers = static_cast<int64_t>(Polynomial::kPowers);
  for (int64_t i = 0; i < powers * powers; ++i) {
    always = std::gcd(always, number.At(SizePoint{i % powers, i / powers}));
  }
  return here == always;
}

// A size stands for those that differ from it by a fixed number, too (a length, and one more for what is predicted).
// The largest of those near the most frequent one decides on the step: all are on one, and fragments hand them to one
// another as they are stored.
int64_t ShiftOf(size_t size, absl::Span<const Polynomial> numbers) {
  constexpr int64_t kNear = 2;
  std::map<int64_t, int> votes;
  const size_t linear = size == 0 ? 1 : Polynomial::kPowers;
  for (const Polynomial& number : numbers) {
    Polynomial rest = number;
    if (std::exchange(rest.terms[linear], 0) == 1 && rest.fixed()) ++votes[number.terms[0]];
  }
  if (votes.empty()) return 0;
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  const int64_t most = std::max_element(votes.begin(), votes.end(), fewer)->first;
  return std::prev(votes.upper_bound(most + kNear))->first;
}

// The last element that a view reads is in its source, and is its source's last as in `like`.
bool ViewsReachAs(const Fragment& like, const Fragment& fragment) {
  const auto left_over = [](const Call& view) {
    const TensorType &from = view.operands[0].type, &to = view.results[0];
    return static_cast<int64_t>(from.bytes()) - (LastOf(view) + 1) * static_cast<int64_t>(SizeOf(to.dtype));
  };
  for (size_t i = 0; i < fragment.nodes.size(); ++i) {
    const Call& call = *fragment.nodes[i].call;
    if (call.op != "tpu::view") continue;
    const int64_t left = left_over(call);
    if (left < 0 || (left == 0) != (left_over(*like.nodes[i].call) == 0)) return false;
  }
  return true;
}

// Nothing divides what follows a place at all these points but not always, and no two places are in step: whatever
// follows one of them follows no other.
bool AreToldApart(absl::Span<const SizePoint> points) {
  const SizePoint& first = points[0];
  for (size_t a = 0; a < first.size(); ++a) {
    int64_t divides = 0;
    for (const SizePoint& p : points) divides = std::gcd(divides, p[a] - first[a]);
    if (divides != 1) return false;
    for (size_t b = 0; b < a; ++b) {
      const auto in_step = [&](const SizePoint& p, const SizePoint& q) {
        using Wide = __int128;
        return Wide{p[a] - first[a]} * (q[b] - first[b]) == Wide{q[a] - first[a]} * (p[b] - first[b]);
      };
      bool all = true;
      for (size_t i = 1; i < points.size(); ++i) {
        for (size_t j = 1; j < i; ++j) all &= in_step(points[i], points[j]);
      }
      if (all) return false;
    }
  }
  return true;
}

// Of any two places each is first and the other last at one: what is before another there is so at all points.
std::vector<SizePoint> CornersOf(const SizeRange& range) {
  std::vector<SizePoint> corners;
  for (size_t bit = 1; bit < range.least.size(); bit *= 2) {
    SizePoint corner = range.least, opposite = range.most;
    for (size_t p = 0; p < corner.size(); ++p) {
      if ((p & bit) != 0) std::swap(corner[p], opposite[p]);
    }
    corners.insert(corners.end(), {corner, opposite});
  }
  return corners;
}

}  // namespace

SizePoint FragmentFamily::Members::SizesOf(const Numbers& of) const {
  SizePoint sizes;
  for (const size_t place : places) sizes.push_back(of[place]);
  for (size_t p = 0; p < units.size(); ++p) sizes[p] = (sizes[p] - rests[p]) / units[p];
  return sizes;
}

FragmentFamily::Numbers FragmentFamily::Members::At(const SizePoint& sizes) const {
  Numbers values;
  values.reserve(numbers.size());
  for (const Polynomial& number : numbers) values.push_back(number.At(sizes));
  return values;
}

bool FragmentFamily::Members::Hold(const Numbers& of) const {
  const SizePoint sizes = SizesOf(of);
  return std::equal(of.begin(), of.end(), numbers.begin(), numbers.end(),
                    [&](int64_t value, const Polynomial& number) { return number.At(sizes) == value; });
}

std::vector<FragmentFamily::Served>::iterator FragmentFamily::Find(const Members& members) {
  return std::find_if(served_.begin(), served_.end(), [&](const Served& served) {
    return served.members.places == members.places && served.members.numbers == members.numbers;
  });
}

bool FragmentFamily::wanted() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return wanted_.has_value();
}

bool FragmentFamily::ready() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !served_.empty();
}

SizePoint FragmentFamily::Members::StepOf(const SizePoint& sizes) const {
  SizePoint step;
  if (of_places()) return step;
  for (size_t d = 0; d < sizes.size(); ++d) step.push_back(tpu::StepOf(sizes[d] + shifts[d]) - shifts[d]);
  return step;
}

bool FragmentFamily::Add(const Fragment& fragment) {
  Numbers numbers = fragment.Sizes();
  std::lock_guard<std::mutex> lock(mutex_);
  if (wanted_) return false;
  size_t most_sizes = most_sizes_;
  const Answer known = kind_ == Families::kPadded ? AddPadded(numbers) : AddOpen(numbers, &most_sizes);
  if (known != Answer::kUnknown) return known == Answer::kWanted;
  const size_t most_programs = kind_ == Families::kPadded ? kMostSteps : kMostPrograms;
  if ((most_sizes == 0 && places_refused_) || seen_.size() >= kMostSeen || served_.size() >= most_programs)
    return false;
  Note(std::move(numbers));
  std::optional<Members> fit = Fit(most_sizes);
  if (!fit) return false;
  Want(*std::move(fit));
  return true;
}

FragmentFamily::Answer FragmentFamily::AddOpen(const Numbers& numbers, size_t* most_sizes) {
  for (const Served& served : served_) {
    if (!served.members.Hold(numbers)) continue;
    const SizePoint sizes = served.members.SizesOf(numbers);
    if (served.range.Holds(sizes) || served.members.of_places()) return Answer::kServed;
    if (*std::min_element(sizes.begin(), sizes.end()) >= kLeastSize) {
      if (served.widest || served.members.range.Holds(sizes)) return Answer::kServed;
      Want(served.members);
      wanted_->range.Reach(sizes);
      return Answer::kWanted;
    }
    *most_sizes = std::min(*most_sizes, sizes.size() - 1);  // of two, the one may often be 1
  }
  return Answer::kUnknown;
}

FragmentFamily::Answer FragmentFamily::AddPadded(const Numbers& numbers) {
  const Members* members = nullptr;
  for (const Served& served : served_) {
    if (!served.members.Hold(numbers)) continue;
    const SizePoint sizes = served.members.SizesOf(numbers);
    if (served.step == served.members.StepOf(sizes)) return Answer::kServed;
    members = &served.members;
  }
  if (members == nullptr) return Answer::kUnknown;
  const SizePoint sizes = members->SizesOf(numbers), step = members->StepOf(sizes);
  const bool refused = std::find(refused_.begin(), refused_.end(), step) != refused_.end();
  if (refused || served_.size() >= kMostSteps || *std::min_element(sizes.begin(), sizes.end()) < kLeastSize) {
    return Answer::kServed;  // by a larger one, or by none
  }
  Want(*members);
  wanted_->range = {sizes, sizes};
  return Answer::kWanted;
}

void FragmentFamily::Note(Numbers numbers) {
  if (seen_.empty()) {
    for (const Place& window : PlacesOf(first_)) windows_.push_back(window.number);
  }
  // Most places have the same numbers as an earlier one.
  absl::flat_hash_map<std::pair<size_t, int64_t>, size_t> first;
  like_.resize(numbers.size());
  distinct_.clear();
  for (size_t place = 0; place < numbers.size(); ++place) {
    const auto [it, fresh] = first.try_emplace({like_[place], numbers[place]}, place);
    if (fresh) distinct_.push_back(place);
    like_[place] = it->second;
  }
  seen_.push_back(std::move(numbers));
}

// Lets the window, which moved by as many times what one of the places moved, follow that; the place stays within what
// the window reaches.
bool FragmentFamily::Follow(Members& members, absl::Span<const Numbers> those, const Place& window) {
  const auto number = [&](size_t i) { return those[i][window.number]; };
  const size_t last = those.size() - 1;
  for (size_t p = 0; p < members.places.size(); ++p) {
    const auto place = [&](size_t i) { return members.points[i][p]; };
    size_t other = 0;
    while (other < last && place(other) == place(last)) ++other;
    const int64_t step = place(last) - place(other), rise = number(last) - number(other);
    if (step == 0 || rise % step != 0) continue;
    const int64_t times = rise / step;
    bool follows = times != 0;
    for (size_t i = 0; i < last; ++i) follows &= number(last) - number(i) == times * (place(last) - place(i));
    const std::optional<Reach> reach = follows ? ReachOf(*window.call, std::abs(times)) : std::nullopt;
    if (!reach) continue;
    int64_t down = (number(last) - reach->least) / std::abs(times), up = (reach->most - number(last)) / std::abs(times);
    if (times < 0) std::swap(down, up);
    members.range.least[p] = std::max(members.range.least[p], place(last) - down);
    members.range.most[p] = std::min(members.range.most[p], place(last) + up);
    return true;
  }
  return false;
}

// What the latest of those seen and some earlier ones are members of.
std::optional<FragmentFamily::Members> FragmentFamily::Fit(size_t most_sizes) const {
  std::optional<Members> found = FitPlaces();
  if (found || kind_ == Families::kNone) return found;
  const size_t last = seen_.size() - 1;
  for (size_t i = 0; i < last && !found; ++i) {
    for (size_t j = i + 1; j < last && !found; ++j) found = FitThrough({&seen_[last], &seen_[i], &seen_[j]}, 1);
  }
  for (size_t sizes = 1; sizes <= most_sizes; ++sizes) {
    std::vector<const Numbers*> latest;
    for (size_t i = seen_.size(); i-- > 0 && latest.size() < kMostFit && !found;) {
      latest.push_back(&seen_[i]);
      if (latest.size() >= kLeastFit) found = FitThrough(latest, sizes);
    }
  }
  if (!found) return std::nullopt;
  for (const Numbers& numbers : seen_) {
    if (found->Hold(numbers)) found->range.Reach(found->SizesOf(numbers));
  }
  return found;
}

// `those`: the latest first.
std::optional<FragmentFamily::Members> FragmentFamily::FitThrough(absl::Span<const Numbers* const> those,
                                                                  size_t sizes) const {
  std::vector<bool> is_size(like_.size(), false);
  for (size_t place = 0; place < like_.size(); ++place) {
    if (!std::binary_search(windows_.begin(), windows_.end(), place)) is_size[like_[place]] = true;
  }
  std::vector<size_t> candidates;  // places that may be a size which others follow
  for (const size_t place : distinct_) {
    if (!is_size[place]) continue;
    absl::flat_hash_set<int64_t> values;
    for (const Numbers* numbers : those) values.insert((*numbers)[place]);
    const bool changes = values.size() >= kLeastDistinct && (*those[0])[place] >= kLeastSize;
    if (changes && candidates.size() < kMostCandidates) candidates.push_back(place);
  }
  const auto fit = [&](const std::vector<size_t>& places) -> std::optional<Members> {
    Members members{places, std::vector<Polynomial>(like_.size()), {}, {}};
    std::vector<SizePoint> points;
    for (const Numbers* numbers : those) points.push_back(members.SizesOf(*numbers));
    for (const size_t place : distinct_) {
      std::vector<int64_t> values;
      for (const Numbers* numbers : those) values.push_back((*numbers)[place]);
      const std::optional<Polynomial> number = Polynomial::Through(points, values);
      if (!number) return std::nullopt;
      members.numbers[place] = *number;
    }
    for (size_t place = 0; place < like_.size(); ++place) members.numbers[place] = members.numbers[like_[place]];
    for (size_t d = 0; d < places.size(); ++d) members.shifts.push_back(ShiftOf(d, members.numbers));
    return members;
  };
  std::optional<Members> found;
  for (size_t i = 0; i < candidates.size() && !found; ++i) {
    if (sizes == 1) found = fit({candidates[i]});
    for (size_t j = i + 1; j < candidates.size() && sizes == 2 && !found; ++j) {
      found = fit({candidates[i], candidates[j]});
    }
  }
  return found;
}

// The latest of those seen, where they differ in where their windows begin and in nothing else.
std::optional<FragmentFamily::Members> FragmentFamily::FitPlaces() const {
  if (places_refused_ || seen_.size() < kLeastFit) return std::nullopt;
  const auto those = absl::MakeConstSpan(seen_).last(kLeastFit);
  const Numbers& latest = those.back();
  Numbers steps(latest.size(), 0);
  for (const Numbers& numbers : those) {
    for (size_t n = 0; n < steps.size(); ++n) steps[n] = std::gcd(steps[n], numbers[n] - latest[n]);
  }
  auto changing = steps.size() - std::count(steps.begin(), steps.end(), 0);
  if (changing == 0 || changing > kMostWindows) return std::nullopt;
  Members members;
  members.points.resize(kLeastFit);
  const Fragment fragment = first_.WithSizes(latest);
  for (const Place& window : PlacesOf(fragment)) {
    const size_t n = window.number;
    if (steps[n] == 0) continue;
    --changing;
    if (Follow(members, those, window)) continue;
    const std::optional<Reach> reach = ReachOf(*window.call, steps[n]);
    if (!reach || members.places.size() == kMostPlaces) return std::nullopt;
    const int64_t rest = latest[n] % reach->unit;
    members.places.push_back(n);
    members.units.push_back(reach->unit);
    members.rests.push_back(rest);
    members.range.least.push_back((reach->least - rest) / reach->unit);
    members.range.most.push_back((reach->most - rest) / reach->unit);
    for (size_t i = 0; i < kLeastFit; ++i) members.points[i].push_back((those[i][n] - rest) / reach->unit);
  }
  if (changing != 0) return std::nullopt;
  for (size_t n = 0; n < steps.size(); ++n) {
    Numbers values;
    for (const Numbers& numbers : those) values.push_back(numbers[n]);
    const std::optional<Polynomial> number = Polynomial::Through(members.points, values);
    if (!number) return std::nullopt;
    members.numbers.push_back(*number);
  }
  return members;
}

std::optional<FragmentFamily::Order> FragmentFamily::OrderFor(const SizePoint& least, const SizePoint& most) const {
  const auto at = [&](const SizePoint& sizes) { return first_.WithSizes(wanted_->At(sizes)); };
  SizePoint middle;
  for (size_t d = 0; d < least.size(); ++d) middle.push_back((wanted_->range.least[d] + wanted_->range.most[d]) / 2);
  const Fragment like = at(middle);
  Order order;
  std::vector<int64_t> taken;  // first of all by what is no size
  for (const Polynomial& number : wanted_->numbers) taken.insert(taken.end(), number.terms.begin(), number.terms.end());
  for (size_t d = 0; d < least.size(); ++d) {
    // Where a part of something fixed is read (of a table of positions), only sizes within that.
    int64_t reach = least[d];
    for (int64_t beyond = most[d] + 1; reach + 1 < beyond;) {
      SizePoint sizes = middle;
      sizes[d] = reach + (beyond - reach) / 2;
      (ViewsReachAs(like, at(sizes)) ? reach : beyond) = sizes[d];
    }
    const std::optional<std::vector<int64_t>> values =
        kind_ == Families::kPadded ? SizesUpTo(least[d], reach, taken)
                                   : SizesBetween(least[d], reach, FactorsFor(d, wanted_->numbers), taken);
    if (!values) return std::nullopt;
    order.range.least.push_back(values->front());
    order.range.most.push_back(values->back());
    std::vector<SizePoint> points;
    for (const SizePoint& point : order.points.empty() ? std::vector<SizePoint>{{}} : order.points) {
      for (const int64_t value : *values) {
        points.push_back(point);
        points.back().push_back(value);
      }
    }
    order.points = std::move(points);
  }
  const auto product = [](const SizePoint& point) {
    return std::accumulate(point.begin(), point.end(), int64_t{1}, std::multiplies<>());
  };
  std::sort(order.points.begin(), order.points.end(),
            [&](const SizePoint& a, const SizePoint& b) { return product(a) < product(b); });
  if (kind_ == Families::kPadded) {
    for (const Polynomial& number : wanted_->numbers) {
      if (!DividesAlways(number, order.points)) return std::nullopt;
    }
  }
  for (const SizePoint& point : order.points) {
    // What follows the sizes must not become nothing, or one, on the way.
    for (const Polynomial& number : wanted_->numbers) {
      if (!number.fixed() && number.At(point) < 2) return std::nullopt;
    }
    order.fragments.push_back(at(point));
    if (!ViewsReachAs(like, order.fragments.back())) return std::nullopt;
  }
  return order;
}

std::optional<FragmentFamily::Order> FragmentFamily::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::optional<Order> order = wanted_->of_places()         ? TakePlaces()
                               : kind_ == Families::kPadded ? TakePadded()
                                                            : TakeOpen();
  if (!order) wanted_.reset();
  return order;
}

std::optional<FragmentFamily::Order> FragmentFamily::TakeOpen() {
  struct Range {
    bool half;       // of the least that was seen
    int64_t least;   // at least
    int64_t beyond;  // times the most
  };
  // A wide range first, for what is yet to come; what is compiled alike over less may not be over more.
  constexpr Range kRanges[] = {
      {true, 0, 4}, {false, 0, 4}, {false, kSafeSize, 4}, {false, kSafeSize, 2}, {false, 0, 1}};
  while (attempt_ < std::size(kRanges)) {
    const Range& range = kRanges[attempt_++];
    SizePoint least, most;
    for (size_t d = 0; d < wanted_->range.least.size(); ++d) {
      least.push_back(std::max(wanted_->range.least[d] / (range.half ? 2 : 1), range.least));
      most.push_back(std::max(wanted_->range.most[d], kLeastSpan) * range.beyond);
    }
    if (std::optional<Order> order = OrderFor(least, most)) return order;
  }
  const auto known = Find(*wanted_);
  if (known != served_.end()) {
    known->widest = true;
  } else {
    most_sizes_ = wanted_->places.size() - 1;
  }
  return std::nullopt;
}

std::optional<FragmentFamily::Order> FragmentFamily::TakePadded() {
  const SizePoint step = wanted_->StepOf(wanted_->range.most);
  for (constexpr int64_t kLeast[] = {kLeastSize, kSafeSize}; attempt_ < std::size(kLeast);) {
    const SizePoint least(step.size(), kLeast[attempt_++]);
    if (std::optional<Order> order = OrderFor(least, step)) {
      order->step = step;
      return order;
    }
  }
  if (Find(*wanted_) == served_.end()) {
    most_sizes_ = wanted_->places.size() - 1;
  } else {
    refused_.push_back(step);
  }
  return std::nullopt;
}

// Everywhere in reach, else from the first, or up to the last, that was seen, else between these.
std::optional<FragmentFamily::Order> FragmentFamily::TakePlaces() {
  SizeRange seen;
  for (const SizePoint& point : wanted_->points) seen.Reach(point);
  while (attempt_ < 8) {
    const bool near = (attempt_ & 1) == 0, from_first = (attempt_ & 2) != 0, to_last = (attempt_ & 4) != 0;
    ++attempt_;
    SizePoint least = from_first ? seen.least : wanted_->range.least, most = to_last ? seen.most : wanted_->range.most;
    SizePoint next;  // nothing divides all of one's places by chance
    bool wide = true;
    for (size_t p = 0; p < least.size(); ++p) {
      // No two at one place, nor at one of a window that is some elements ahead: it might be taken for always.
      const auto apart = static_cast<int64_t>(p * (near ? 3 : p + 5));
      least[p] += apart;
      most[p] -= apart;
      next.push_back(least[p] + 1);
      wide &= next[p] < most[p];
    }
    Order order;
    order.places = true;
    order.points = wanted_->points;
    if (wide) order.points.insert(order.points.end(), {least, next, most});
    if (!AreToldApart(order.points)) continue;
    for (const SizePoint& point : order.points) order.range.Reach(point);
    for (SizePoint& corner : CornersOf(order.range)) order.points.push_back(std::move(corner));
    for (const SizePoint& point : order.points) order.fragments.push_back(first_.WithSizes(wanted_->At(point)));
    return order;
  }
  places_refused_ = true;
  return std::nullopt;
}

void FragmentFamily::Set(const Order& order, std::vector<std::unique_ptr<ExecutableFamily>> programs) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto known = Find(*wanted_);
  if (kind_ == Families::kPadded) {
    known = std::find_if(known, served_.end(), [&](const Served& s) { return s.range.Holds(order.range.most); });
  }
  if (known == served_.end() || kind_ == Families::kPadded) known = served_.insert(known, Served());
  *known = {*std::move(wanted_), order.range, std::move(programs), order.step};
  if (kind_ == Families::kPadded) version_.fetch_add(1, std::memory_order_release);
  wanted_.reset();
}

std::unique_ptr<Executable> FragmentFamily::At(const Fragment& fragment, int device) {
  const Numbers numbers = fragment.Sizes();
  std::lock_guard<std::mutex> lock(mutex_);
  for (Served& served : served_) {
    const SizePoint sizes = served.members.SizesOf(numbers);
    if (!served.range.Holds(sizes) || !served.members.Hold(numbers)) continue;
    absl::StatusOr<std::unique_ptr<Executable>> executable = served.programs[device]->At(sizes);
    if (executable.ok()) return *std::move(executable);
  }
  return nullptr;
}

std::shared_ptr<FragmentFamily> FamilyTable::Find(const Fragment& fragment, Families kind) {
  std::string key = kind == Families::kNone ? WithoutPlaces(fragment).StableKey() : fragment.StructureKey();
  std::lock_guard<std::mutex> lock(mutex_);
  if (families_.size() >= sweep_at_) {
    absl::erase_if(families_, [](const auto& family) { return family.second.expired(); });
    sweep_at_ = std::max<size_t>(1024, 2 * families_.size());
  }
  std::weak_ptr<FragmentFamily>& known = families_[std::move(key)];
  std::shared_ptr<FragmentFamily> family = known.lock();
  if (!family) {
    family = std::make_shared<FragmentFamily>(fragment, kind);
    Metrics::Get().fragment_families.fetch_add(1, std::memory_order_relaxed);
    known = family;
  }
  return family;
}

}  // namespace tpu
