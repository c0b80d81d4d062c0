// Tier 2 of a fragment: its backend's candidates, measured on the launches that the program makes in any case.
//
// A fragment that was launched often and long waits for candidates, which the pool compiles one at a time when it has
// nothing else to do. Its launches then take turns between the best program so far and the candidate; the candidate is
// adopted where it is some percent faster, hardly by chance, else dropped. What is decided is kept beside the programs,
// for processes to come. All this may cost a share of the time that launches take (TORCH_TPU_TUNE_BUDGET); it is saved
// up for the fragment that may save the program most for what compiling it costs, and shrinks where nothing is found.
//
// Launches ask Begin and tell End, on any thread; the compile pool calls the rest on its threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "compiler/tuning.h"
#include "jit/profile.h"
#include "runtime/device.h"
#include "runtime/program.h"
#include "runtime/ref.h"

namespace tpu {

class Engine;
struct FragmentEntry;
using FragmentRef = Ref<FragmentEntry>;

// A candidate and what is known of it so far. Held by its fragment and by the launches that take part.
struct TuningTrial {
  Tuning tuning;
  Program program;
  std::vector<std::unique_ptr<Executable>> executables;  // one a device
  uint64_t turns = 0;
  std::vector<int64_t> best, candidate;  // nanoseconds of launches; the first is not counted
};

// What a fragment's entry holds.
struct FragmentTuning {
  // kWaiting: for a candidate.
  enum class Phase : uint8_t { kWatching, kWaiting, kMeasuring, kFinished };

  std::atomic<Phase> phase{Phase::kWatching};
  std::atomic<int64_t> not_before{0};  // nanoseconds of launches, where others were worth more
  // What compiling it took of a thread. This and `key` are set before it is first launched compiled.
  std::atomic<int64_t> compile_nanoseconds{0};
  std::string key;  // of the untuned program; "" before the pool has looked for one

  std::mutex mutex;  // of the following
  Profile profile;   // with the counts of earlier processes only, which do not change
  std::array<int64_t, 2> kept_runs{}, kept_nanoseconds{};  // of this process: on disk already
  bool decided = false;                                    // by this process
  std::shared_ptr<TuningTrial> trial;

  // Of the thread that advances it at kWaiting.
  bool listed = false;      // `left` has what the backend offered for the best program
  uint64_t best_bytes = 0;  // a hash of its bytes
  std::deque<Candidate> left;
  std::set<std::string> tried;
  std::unique_ptr<Program> adopted;  // not on disk yet
  bool unkept = false;               // so the profile
};

class Tuner {
 public:
  explicit Tuner(Engine& engine);
  void set_budget(double budget) { budget_ = budget; }  // for tests

  // Whose turn a launch is. Without a trial nothing is measured, without an executable it is the best program's.
  struct Turn {
    std::shared_ptr<TuningTrial> trial;
    Executable* executable = nullptr;
  };
  Turn Begin(FragmentEntry& entry, int device);
  // A launch is over. Of one that is not `measurable` (op by op, failed, or when programs must not change) the time
  // counts towards the budget only.
  void End(FragmentEntry& entry, const Turn& turn, bool measurable, int64_t nanoseconds);
  // The candidate can't run.
  void Reject(FragmentEntry& entry, const Turn& turn);

  // What is known of the fragment with this key from earlier processes: the tuning to load or compile.
  Tuning Recall(FragmentEntry& entry, const std::string& key);
  // Keeps what was decided; compiles the candidate that is worth most of all, where the budget allows it.
  void Advance();
  // Writes the profile if there is something in it that is worth a file.
  void Keep(FragmentEntry& entry);
  // Whether the budget has room for compiling the fragment once more; and what other work of the kind has cost.
  bool Affords(const FragmentEntry& entry) const;
  void Spend(int64_t nanoseconds) { spent_.fetch_add(nanoseconds, std::memory_order_relaxed); }
  // At exit: every profile, as long as that takes moments.
  void KeepAll();

 private:
  void Decide(FragmentEntry& entry, bool adopt);  // with its mutex held
  void Wait(FragmentEntry& entry);                // for Advance
  void KeepDecided(FragmentEntry& entry);
  // What compiling it once more may take.
  static int64_t CostOf(const FragmentEntry& entry);
  int64_t BudgetedAt(int64_t cost) const;  // nanoseconds of launches
  // What its next candidate may save of all launches, for what it costs.
  static double WorthOf(const FragmentEntry& entry);
  // Those that are worth least, beyond how many may wait, are watched again.
  void SendBackLeast(std::vector<FragmentRef>& waiting);
  // Takes the one out that is worth most, or says when that will be affordable; those for which the backend offers
  // nothing end.
  FragmentRef Take(std::vector<FragmentRef>& waiting, int64_t& next);
  void List(FragmentEntry& entry);
  std::shared_ptr<TuningTrial> MakeTrial(FragmentEntry& entry);
  void Finish(FragmentEntry& entry);

  Engine& engine_;
  std::atomic<double> budget_;
  const int64_t after_;                          // nanoseconds
  std::atomic<int64_t> launched_{0}, spent_{0};  // nanoseconds
  std::atomic<int> fruitless_{0};                // candidates since the last that was adopted
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> next_{kNever};  // of launched_, from which on what waits is affordable
  std::mutex mutex_;                   // of the following
  std::vector<FragmentRef> waiting_;
};

}  // namespace tpu
