// A cluster: two fragments that always follow one another, either of which may be a cluster, compiled as one.
//
// The window makes clusters, follows them in the place of their first part, and falls back to the parts where the
// program goes another way (window.h). Guarded by the recording lock; a trial has a lock of its own, because streams
// report to it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "compiler/fragment.h"
#include "jit/fragment_table.h"

namespace tpu {

// Whether a cluster runs faster than its two halves: both are timed in turn, as the program runs.
class ClusterTrial {
 public:
  enum class Verdict : uint8_t { kOpen, kFaster, kNotFaster };

  // From stream threads.
  void Add(bool whole, int64_t nanoseconds);
  Verdict verdict() const { return verdict_.load(std::memory_order_relaxed); }
  // Medians of what was timed; 0: nothing yet.
  int64_t nanoseconds(bool whole) const;

 private:
  mutable std::mutex mutex_;
  std::array<std::vector<int64_t>, 2> samples_;  // of the halves, of the whole
  std::atomic<Verdict> verdict_{Verdict::kOpen};
};

// One passage through a cluster, as one launch or as two. It counts once all of them have run compiled.
class Passage {
 public:
  Passage(std::shared_ptr<ClusterTrial> trial, bool whole)
      : trial_(std::move(trial)), whole_(whole), left_(whole ? 1 : 2) {}
  void Add(int64_t nanoseconds);  // by one launch

 private:
  const std::shared_ptr<ClusterTrial> trial_;
  const bool whole_;
  std::atomic<int> left_;
  std::atomic<int64_t> nanoseconds_{0};
};

struct Cluster {
  enum class End : uint8_t { kNone, kNotFaster, kWrongGuesses, kNotCompiled };

  // A fragment that is no cluster, in its place: kept alive by the halves.
  struct Part {
    FragmentEntry* entry;
    size_t nodes_end;             // in the whole
    ValueId results_begin;        // likewise
    std::vector<ValueId> inputs;  // its inputs, numbered as in the whole
  };

  // `wiring`: the inputs of `right` as values of `left` (results or inputs), or kElsewhere.
  static constexpr ValueId kElsewhere = INT32_MAX;
  static FragmentRef Join(const FragmentRef& left, const FragmentRef& right, const std::vector<ValueId>& wiring);

  FragmentRef left, right;
  std::vector<Part> parts;
  int64_t bytes = 0;  // of all results
  size_t queued = 2;  // launches that wait on the stream while another part is recorded, or the device would idle
  int64_t followed = 0, wrong_guesses = 0;
  End end = End::kNone;      // why it is followed no more
  bool kept = false;         // after its trial
  bool halves_next = false;  // in the trial
  std::shared_ptr<ClusterTrial> trial = std::make_shared<ClusterTrial>();
};

}  // namespace tpu
