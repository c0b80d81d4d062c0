// Fragments that differ in one size only, and the one program that serves them all.
//
// Every new fragment joins the family of its structure. When some have been seen, whose numbers all follow one of them
// (a batch, a length), the compile pool makes a program for a range of that size; fragments of the family then run by
// it from their first launch on, without a compiler, until one of them is so hot that it gets code of its own. A size
// beyond the range asks for a wider one. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/fragment.h"
#include "runtime/device.h"
#include "runtime/polynomial.h"

namespace tpu {

class FragmentFamily {
 public:
  // What the compile pool is to make: the fragment at each of these sizes, which ascend.
  struct Order {
    std::vector<Fragment> fragments;
    std::vector<int64_t> sizes;
  };

  explicit FragmentFamily(Fragment first) : first_(std::move(first)) {}

  // Takes note of a new fragment. True when the pool should be asked to make a program.
  bool Add(const Fragment& fragment);
  // By the pool: what to try next, until it has Set programs; nothing: no more can be tried.
  std::optional<Order> Take();
  // The programs of the latest order, by device.
  void Set(std::vector<std::unique_ptr<ExecutableFamily>> programs);

  // A program is to be made, or has been.
  bool wanted() const { return Is(State::kWanted); }
  bool ready() const { return Is(State::kReady); }
  // For a fragment of this family; nullptr where no program serves it (yet).
  std::unique_ptr<Executable> At(const Fragment& fragment, int device);

 private:
  enum class State : uint8_t { kCollecting, kWanted, kReady, kFailed };
  using Sizes = std::vector<int64_t>;

  bool Is(State state) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return state_ == state;
  }
  bool Fit();
  bool FitThrough(absl::Span<const Sizes* const> three);
  bool Holds(const Sizes& sizes) const;
  std::optional<Order> OrderFor(int64_t least, int64_t most) const;

  mutable std::mutex mutex_;
  const Fragment first_;
  State state_ = State::kCollecting;
  std::vector<Sizes> seen_;
  size_t place_ = 0;                 // of the size that the others follow
  std::vector<Polynomial> numbers_;  // of each place
  int64_t least_ = 0, most_ = 0;     // that were seen of it
  size_t attempt_ = 0;
  int64_t ordered_least_ = 0, ordered_most_ = 0, served_least_ = 0, served_most_ = 0;
  std::vector<std::unique_ptr<ExecutableFamily>> programs_;  // by device
};

// The families of the fragments that are known.
class FamilyTable {
 public:
  std::shared_ptr<FragmentFamily> Find(const Fragment& fragment);

 private:
  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::weak_ptr<FragmentFamily>> families_;
  size_t sweep_at_ = 1024;
};

}  // namespace tpu
