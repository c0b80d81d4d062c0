// Fragments that differ in one size only, or in two, or in where their windows begin, and the programs that serve them.
//
// Every new fragment joins the family of its structure. When some have been seen, whose numbers all follow one of them
// (a batch, a length) or two, the compile pool makes a program for a range of these sizes; fragments of the family then
// run by it from their first launch on, without a compiler, until one of them is so hot that it gets code of its own.
// Sizes beyond the range ask for a wider one; a second size that begins to change asks for a program for both, while
// the one for the first size goes on serving. Any thread.
// Where nothing changes but the places at which views and updates begin, each on its own or some with others, one
// program serves them all, wherever along their dims they lie.
// Where programs take for each size what they need for the largest (Families::kPadded), there is one for each step of a
// ladder of sizes, made when a size is first met whose step has none; a larger one serves meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "compiler/backend.h"
#include "compiler/fragment.h"
#include "jit/places.h"
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
    SizePoint step;       // of the ladder, that it is made for
    bool places = false;  // the points are
  };

  // kNone: for changing places alone.
  explicit FragmentFamily(Fragment first, Families kind = Families::kOpen) : first_(std::move(first)), kind_(kind) {}

  // Takes note of a new fragment. True when the pool should be asked to make a program.
  bool Add(const Fragment& fragment);
  // By the pool: what to try next, until it has Set programs; nothing: no more can be tried.
  std::optional<Order> Take();
  // Its programs, by device.
  void Set(const Order& order, std::vector<std::unique_ptr<ExecutableFamily>> programs);

  bool wanted() const;  // a program is to be made
  bool ready() const;   // one has been
  // Changes with every program that may be closer to sizes which another serves already.
  uint32_t version() const { return version_.load(std::memory_order_acquire); }
  // For a fragment of this family; nullptr where no program serves it (yet).
  std::unique_ptr<Executable> At(const Fragment& fragment, int device);

 private:
  using Numbers = std::vector<int64_t>;  // Fragment::Sizes
  // Fragments whose numbers follow one or two of them, and the range of these that was seen.
  struct Members {
    std::vector<size_t> places;       // of the sizes
    std::vector<Polynomial> numbers;  // of each place
    SizeRange range;
    SizePoint shifts;  // of each size, to that which is on the ladder
    // Of places instead: their number is a rest and so many units, from where the range begins to where it ends.
    SizePoint units, rests;
    std::vector<SizePoint> points;  // that were seen

    bool of_places() const { return !units.empty(); }
    SizePoint SizesOf(const Numbers& of) const;
    Numbers At(const SizePoint& sizes) const;
    bool Hold(const Numbers& of) const;  // within the range or not
    // The sizes at the step of the ladder that these are on.
    SizePoint StepOf(const SizePoint& sizes) const;
  };
  struct Served {
    Members members;
    SizeRange range;                                          // that the programs serve
    std::vector<std::unique_ptr<ExecutableFamily>> programs;  // by device
    SizePoint step;                                           // of the ladder
    bool widest = false;                                      // there is none for a wider range
  };

  void Want(Members members) {
    wanted_ = std::move(members);
    attempt_ = 0;
  }
  std::vector<Served>::iterator Find(const Members& members);
  enum class Answer : uint8_t { kServed, kWanted, kUnknown };
  Answer AddOpen(const Numbers& numbers, size_t* most_sizes);
  Answer AddPadded(const Numbers& numbers);
  std::optional<Order> TakeOpen();
  std::optional<Order> TakePadded();
  std::optional<Order> TakePlaces();
  void Note(Numbers numbers);
  std::optional<Members> Fit(size_t most_sizes) const;
  std::optional<Members> FitPlaces() const;
  static bool Follow(Members& members, absl::Span<const Numbers> those, const Place& window);
  std::optional<Members> FitThrough(absl::Span<const Numbers* const> those, size_t sizes) const;
  std::optional<Order> OrderFor(const SizePoint& least, const SizePoint& most) const;

  mutable std::mutex mutex_;
  const Fragment first_;
  const Families kind_;
  std::vector<Numbers> seen_;     // those that no program served
  std::vector<size_t> windows_;   // the places that tell where one begins, in order
  std::vector<size_t> like_;      // by place: the first that has the same number in all of those
  std::vector<size_t> distinct_;  // the places that are the first
  size_t most_sizes_ = 2;         // that a program may yet be made for
  bool places_refused_ = false;
  std::optional<Members> wanted_;  // a program is to be made for them
  size_t attempt_ = 0;
  std::vector<Served> served_;  // of those for equal members, the smaller ones first
  std::atomic<uint32_t> version_{0};
  std::vector<SizePoint> refused_;  // steps of the ladder for which there is no program
};

// The families of the fragments that are known.
class FamilyTable {
 public:
  std::shared_ptr<FragmentFamily> Find(const Fragment& fragment, Families kind);

 private:
  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::weak_ptr<FragmentFamily>> families_;
  size_t sweep_at_ = 1024;
};

}  // namespace tpu
