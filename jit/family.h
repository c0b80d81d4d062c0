// Fragments that differ in one size only, or in two, and the programs that serve them.
//
// Every new fragment joins the family of its structure. When some have been seen, whose numbers all follow one of them
// (a batch, a length) or two, the compile pool makes a program for a range of these sizes; fragments of the family then
// run by it from their first launch on, without a compiler, until one of them is so hot that it gets code of its own.
// Sizes beyond the range ask for a wider one; a second size that begins to change asks for a program for both, while
// the one for the first size goes on serving. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "compiler/fragment.h"
#include "runtime/device.h"
#include "runtime/polynomial.h"

namespace tpu {

class FragmentFamily {
 public:
  // What the compile pool is to make: the fragment at each of these sizes, the largest last.
  struct Order {
    std::vector<Fragment> fragments;
    std::vector<SizePoint> points;
    SizeRange range;
  };

  explicit FragmentFamily(Fragment first) : first_(std::move(first)) {}

  // Takes note of a new fragment. True when the pool should be asked to make a program.
  bool Add(const Fragment& fragment);
  // By the pool: what to try next, until it has Set programs; nothing: no more can be tried.
  std::optional<Order> Take();
  // Its programs, by device.
  void Set(const Order& order, std::vector<std::unique_ptr<ExecutableFamily>> programs);

  bool wanted() const;  // a program is to be made
  bool ready() const;   // one has been
  // For a fragment of this family; nullptr where no program serves it (yet).
  std::unique_ptr<Executable> At(const Fragment& fragment, int device);

 private:
  using Numbers = std::vector<int64_t>;  // Fragment::Sizes
  // Fragments whose numbers follow one or two of them, and the range of these that was seen.
  struct Members {
    std::vector<size_t> places;       // of the sizes
    std::vector<Polynomial> numbers;  // of each place
    SizeRange range;

    SizePoint SizesOf(const Numbers& of) const;
    bool Hold(const Numbers& of) const;  // within the range or not
  };
  struct Served {
    Members members;
    SizeRange range;                                          // that the programs serve
    std::vector<std::unique_ptr<ExecutableFamily>> programs;  // by device
    bool widest = false;                                      // there is none for a wider range
  };

  void Want(Members members) {
    wanted_ = std::move(members);
    attempt_ = 0;
  }
  std::vector<Served>::iterator Find(const Members& members);
  void Note(Numbers numbers);
  std::optional<Members> Fit(size_t most_sizes) const;
  std::optional<Members> FitThrough(absl::Span<const Numbers* const> those, size_t sizes) const;
  std::optional<Order> OrderFor(const SizePoint& least, const SizePoint& most) const;

  mutable std::mutex mutex_;
  const Fragment first_;
  std::vector<Numbers> seen_;      // those that no program served
  std::vector<size_t> like_;       // by place: the first that has the same number in all of those
  std::vector<size_t> distinct_;   // the places that are the first
  size_t most_sizes_ = 2;          // that a program may yet be made for
  std::optional<Members> wanted_;  // a program is to be made for them
  size_t attempt_ = 0;
  std::vector<Served> served_;
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
