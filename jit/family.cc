#include "jit/family.h"

#include <algorithm>

#include "jit/metrics.h"

namespace tpu {
namespace {

constexpr size_t kMostSeen = 8;
// Below the second, a size meets others (heads, channels, pieces) by chance easily; below the first always.
constexpr int64_t kLeastSize = 3, kSafeSize = 11;
constexpr int64_t kLeastSpan = 32;  // that a range goes up to

bool IsPrime(int64_t n) {
  for (int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return n > 1;
}

// Sizes such that whatever divides a number of the program at all of them divides it always, and that have few divisors
// otherwise, so that nothing is divided by chance. Numbers k * size and k * size^2: primes do. With k * size + c: twice
// a prime among them, as then their differences have no common divisor; with squares also three times a prime, for what
// divides by three. The first is not above `least` where there is one, the last the greatest prime not above `most`.
// Nothing: there are none.
std::optional<std::vector<int64_t>> SizesBetween(int64_t least, int64_t most, absl::Span<const Polynomial> numbers) {
  bool sums = false, sums_of_squares = false;
  for (const Polynomial& number : numbers) {
    const auto& [constant, linear, square] = number.coefficients;
    const bool sum = (constant != 0) + (linear != 0) + (square != 0) > 1;
    sums |= sum;
    sums_of_squares |= sum && square != 0;
  }
  int64_t first = std::max(least, kLeastSize);
  while (!IsPrime(first)) --first;
  int64_t second = first + 1;
  while (!IsPrime(second)) ++second;
  int64_t last = most;
  while (last > second && !IsPrime(last)) --last;
  std::vector<int64_t> sizes{first, second};
  for (const int64_t times : {sums ? 2 : 1, sums_of_squares ? 3 : 0}) {
    if (times == 0) continue;
    int64_t prime = std::max((sizes.back() + last) / 2, sizes.back() + 1) / times;
    while (prime * times <= sizes.back() || !IsPrime(prime)) ++prime;
    sizes.push_back(prime * times);
  }
  if (sizes.back() >= last) return std::nullopt;
  sizes.push_back(last);
  return sizes;
}

// The last element that a view reads is in its source, and is its source's last as in `like`.
bool ViewsReachAs(const Fragment& like, const Fragment& fragment) {
  const auto left_over = [](const Call& view) {
    const auto& sizes = std::get<std::vector<int64_t>>(view.arguments[1].attribute);
    const auto& strides = std::get<std::vector<int64_t>>(view.arguments[2].attribute);
    int64_t last = std::get<int64_t>(view.arguments[3].attribute);
    for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * std::max<int64_t>(strides[d], 0);
    const TensorType &from = view.operands[0].type, &to = view.results[0];
    return static_cast<int64_t>(from.bytes()) - (last + 1) * static_cast<int64_t>(SizeOf(to.dtype));
  };
  for (size_t i = 0; i < fragment.nodes.size(); ++i) {
    const Call& call = *fragment.nodes[i].call;
    if (call.op != "tpu::view") continue;
    const int64_t left = left_over(call);
    if (left < 0 || (left == 0) != (left_over(*like.nodes[i].call) == 0)) return false;
  }
  return true;
}

}  // namespace

bool FragmentFamily::Add(const Fragment& fragment) {
  Sizes sizes = fragment.Sizes();
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kFailed || state_ == State::kWanted) return false;
  if (state_ == State::kReady) {
    const int64_t size = sizes[place_];
    if (!Holds(sizes) || size < kLeastSize || (size >= served_least_ && size <= served_most_)) return false;
    least_ = std::min(least_, size);
    most_ = std::max(most_, size);
    attempt_ = 0;
  } else {
    seen_.push_back(std::move(sizes));
    if (!Fit()) {
      if (seen_.size() >= kMostSeen) state_ = State::kFailed;
      return false;
    }
  }
  state_ = State::kWanted;
  return true;
}

// Whether the latest of those seen and some earlier ones differ by one size.
bool FragmentFamily::Fit() {
  const size_t last = seen_.size() - 1;
  for (size_t i = 0; i < last; ++i) {
    for (size_t j = i + 1; j < last; ++j) {
      if (!FitThrough({&seen_[i], &seen_[j], &seen_[last]})) continue;
      const bool square =
          std::any_of(numbers_.begin(), numbers_.end(), [](const Polynomial& p) { return p.coefficients[2] != 0; });
      const auto fits = std::count_if(seen_.begin(), seen_.end(), [&](const Sizes& sizes) { return Holds(sizes); });
      if (fits < (square ? 4 : 3)) continue;  // three points lie on some parabola
      least_ = INT64_MAX;
      most_ = 0;
      for (const Sizes& sizes : seen_) {
        if (!Holds(sizes)) continue;
        least_ = std::min(least_, sizes[place_]);
        most_ = std::max(most_, sizes[place_]);
      }
      return true;
    }
  }
  return false;
}

bool FragmentFamily::FitThrough(absl::Span<const Sizes* const> three) {
  const Sizes &a = *three[0], &b = *three[1], &c = *three[2];
  constexpr int kMostPlaces = 4;  // that are tried as the size which others follow
  int tried = 0;
  for (place_ = 0; place_ < a.size() && tried < kMostPlaces; ++place_) {
    const int64_t at[] = {a[place_], b[place_], c[place_]};
    if (at[0] == at[1] || at[1] == at[2] || at[0] == at[2]) continue;
    ++tried;
    numbers_.clear();
    for (size_t i = 0; i < a.size(); ++i) {
      const std::optional<Polynomial> number = Polynomial::Through(at, {a[i], b[i], c[i]});
      if (!number) break;
      numbers_.push_back(*number);
    }
    if (numbers_.size() == a.size()) return true;
  }
  return false;
}

bool FragmentFamily::Holds(const Sizes& sizes) const {
  const int64_t size = sizes[place_];
  return std::equal(sizes.begin(), sizes.end(), numbers_.begin(), numbers_.end(),
                    [&](int64_t value, const Polynomial& number) { return number.At(size) == value; });
}

std::optional<FragmentFamily::Order> FragmentFamily::OrderFor(int64_t least, int64_t most) const {
  const auto at = [&](int64_t size) {
    Sizes values;
    for (const Polynomial& number : numbers_) values.push_back(number.At(size));
    return first_.WithSizes(values);
  };
  // Where a part of something fixed is read (of a table of positions), only sizes within that.
  const Fragment like = at((least_ + most_) / 2);
  int64_t reach = least;
  for (int64_t beyond = most + 1; reach + 1 < beyond;) {
    const int64_t middle = reach + (beyond - reach) / 2;
    (ViewsReachAs(like, at(middle)) ? reach : beyond) = middle;
  }
  const std::optional<std::vector<int64_t>> sizes = SizesBetween(least, reach, numbers_);
  if (!sizes) return std::nullopt;
  // What follows the size must not become nothing, or one, on the way.
  for (const Polynomial& number : numbers_) {
    const bool follows = number.coefficients[1] != 0 || number.coefficients[2] != 0;
    if (follows && (number.At(sizes->front()) < 2 || number.At(sizes->back()) < 2)) return std::nullopt;
  }
  Order order;
  order.sizes = *sizes;
  for (int64_t size : *sizes) order.fragments.push_back(at(size));
  return order;
}

std::optional<FragmentFamily::Order> FragmentFamily::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  // A wide range first, for what is yet to come; what is compiled alike over less may not be over more.
  const std::pair<int64_t, int64_t> ranges[] = {
      {least_ / 2, 4}, {least_, 4}, {std::max(least_, kSafeSize), 4}, {std::max(least_, kSafeSize), 2}, {least_, 1}};
  while (attempt_ < std::size(ranges)) {
    const auto [least, beyond] = ranges[attempt_++];
    std::optional<Order> order = OrderFor(least, std::max(most_, kLeastSpan) * beyond);
    if (!order) continue;
    ordered_least_ = order->sizes.front();
    ordered_most_ = order->sizes.back();
    return order;
  }
  state_ = programs_.empty() ? State::kFailed : State::kReady;
  return std::nullopt;
}

void FragmentFamily::Set(std::vector<std::unique_ptr<ExecutableFamily>> programs) {
  std::lock_guard<std::mutex> lock(mutex_);
  programs_ = std::move(programs);
  served_least_ = ordered_least_;
  served_most_ = ordered_most_;
  state_ = State::kReady;
}

std::unique_ptr<Executable> FragmentFamily::At(const Fragment& fragment, int device) {
  const Sizes sizes = fragment.Sizes();
  std::lock_guard<std::mutex> lock(mutex_);
  if (programs_.empty()) return nullptr;
  const int64_t size = sizes[place_];
  if (size < served_least_ || size > served_most_ || !Holds(sizes)) return nullptr;
  absl::StatusOr<std::unique_ptr<Executable>> executable = programs_[device]->At(size);
  return executable.ok() ? *std::move(executable) : nullptr;
}

std::shared_ptr<FragmentFamily> FamilyTable::Find(const Fragment& fragment) {
  std::string key = fragment.StructureKey();
  std::lock_guard<std::mutex> lock(mutex_);
  if (families_.size() >= sweep_at_) {
    absl::erase_if(families_, [](const auto& family) { return family.second.expired(); });
    sweep_at_ = std::max<size_t>(1024, 2 * families_.size());
  }
  std::weak_ptr<FragmentFamily>& known = families_[std::move(key)];
  std::shared_ptr<FragmentFamily> family = known.lock();
  if (!family) {
    family = std::make_shared<FragmentFamily>(fragment);
    Metrics::Get().fragment_families.fetch_add(1, std::memory_order_relaxed);
    known = family;
  }
  return family;
}

}  // namespace tpu
