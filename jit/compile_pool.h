// Compiles fragments behind the program's back: from the disk cache, else by the backend, at a lower priority.
//
// Threads of its own, not TBB's: a compile runs for tens of milliseconds, and a kernel's parallel loop must never find
// its worker inside one. A program that runs compiled code has the cores nearly to itself: compiling then rests most of
// the time where the device computes on these cores, unless somebody waits for it. One job in flight a fragment; on
// exit, queued jobs are dropped and the running one is not waited for beyond its current kernel, or a moment. Without
// jobs it has the devices settle, now and then.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "compiler/backend.h"
#include "jit/cache.h"
#include "jit/family.h"
#include "jit/fragment_table.h"
#include "jit/profile.h"

namespace tpu {

class Engine;

class CompilePool {
 public:
  CompilePool(Engine& engine, int threads);
  ~CompilePool();

  // Looks for the fragment's program on disk; compiles it only if `compile`. Never blocks.
  void Submit(FragmentRef entry, bool compile);
  // As Submit, when nothing else waits, and within the budget of TORCH_TPU_TUNE_BUDGET. Never blocks.
  void SubmitLast(FragmentRef entry);
  // Makes a program for the family. Never blocks.
  void Submit(std::shared_ptr<FragmentFamily> family);
  // Tuner::Advance when nothing else waits. Never blocks.
  void Tune();
  // Until the fragment has its program, or will have none: compiled by the caller, whom other programs hold back less
  // than the pool, unless the pool is at it. Called by stream threads.
  void WaitFor(const FragmentRef& entry);
  // Likewise until no program is wanted of the family.
  void WaitFor(const FragmentFamily& family);
  // From the disk or the compiler; what is compiled is not kept.
  absl::StatusOr<Program> ProgramOf(const Fragment& fragment, const Tuning& tuning);
  void Store(const Fragment& fragment, const Tuning& tuning, const Program& program);
  // Of the fragment whose untuned program has this key.
  std::optional<Profile> LoadProfile(const std::string& key);
  void StoreProfile(const std::string& key, const Profile& profile);
  // Drops them on a thread of the pool. Never blocks.
  void Discard(std::vector<FragmentRef> entries);
  // The call alone as a program, compiled now if this process and the disk don't have it; kept while the call lives, or
  // until the device has too many. Called by stream threads; not `awaited`, it is null where another thread is at it.
  absl::StatusOr<std::shared_ptr<Executable>> SingleOperation(const CallRef& call, Device& device, bool awaited = true);
  // All threads begin with those that SingleOperation will be asked for when the fragment, which is new, is launched.
  // Never blocks.
  void Prepare(const FragmentEntry& entry, Device& device);
  // The caller compiles, too. `given_up` is asked after each job, and every 50 ms.
  void WaitIdle(absl::FunctionRef<bool()> given_up);
  bool stopping();
  // How many threads are at a job now: a hint.
  int at_work() const { return running_.load(std::memory_order_relaxed); }
  // At exit: drops what is queued; what is launched already still gets its single operations, while it has time
  // (runtime/ending.h).
  void Cancel();
  // Ends the threads. False: after `patience` one is still in a compiler that can't be stopped.
  bool Stop(std::chrono::milliseconds patience);

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    FragmentRef entry = {};
    std::shared_ptr<FragmentFamily> family = {};  // or this
    bool compile = false;
  };
  enum class Place : uint8_t { kFirst, kInTurn, kWhenIdle };
  void Push(Place place, Job job);
  // What is waited for; the caller does the job that `is_it`, if it waits. Both are asked with mutex_ held.
  void WaitUntil(absl::FunctionRef<bool()> done, absl::FunctionRef<bool(const Job&)> is_it);
  // For one more in the queue. With mutex_ held.
  bool MakeRoom();
  void Run();
  // Waits a little where compiling should; false where it should go on. With mutex_ held.
  bool Rest(std::unique_lock<std::mutex>& lock);
  // Hardly any launch of late ran op by op: the program gains little by more code. With mutex_ held.
  bool ProgramRunsCompiled();
  // Does the job there, which leaves the queue.
  void DoOne(std::deque<Job>& from, std::deque<Job>::iterator at, std::unique_lock<std::mutex>& lock);
  // The lock, of mutex_, is given up meanwhile.
  void Work(std::unique_lock<std::mutex>& lock, absl::FunctionRef<void()> work);
  // With mutex_ held.
  bool Drained() const { return singles_.empty() && queue_.empty() && last_.empty() && !tune_ && discarded_.empty(); }
  void Do(const Job& job);
  void DoFamily(FragmentFamily& family);
  bool Install(FragmentEntry& entry, const Program& program);

  // Of all that decides a program's bytes, of which `content` is the fragment's part.
  std::string KeyOf(const std::string& content) const;
  std::string KeyOf(const Fragment& fragment, const Tuning& tuning = {}) const;
  absl::StatusOr<Program> Make(const Fragment& fragment, const Tuning& tuning);  // complete
  absl::StatusOr<Program> CompileFragment(const Fragment& fragment, const Tuning& tuning, const std::string& key);
  // What `compile` gives: counted, and kept on disk.
  absl::StatusOr<Program> Compiled(const std::string& key, absl::FunctionRef<absl::StatusOr<Program>()> compile);

  Engine& engine_;
  ProgramCache cache_;
  std::mutex single_mutex_;
  std::condition_variable single_made_;
  struct Single {
    std::weak_ptr<const Call> call;
    std::shared_ptr<Executable> executable = nullptr;  // null while a thread, which holds the call, makes it
    std::shared_ptr<FragmentFamily> family = nullptr;  // of windows that begin elsewhere; lives as long as one of them
    uint64_t last_asked = 0;                           // greater: later
  };
  absl::StatusOr<std::unique_ptr<Executable>> LoadOrCompile(const Fragment& fragment, Device& device);
  absl::StatusOr<Single> CompileSingle(const CallRef& call, Device& device);
  // Those of calls that have ended and, if these are few, of calls not asked for longest. With single_mutex_ held.
  void DropSingles();

  absl::flat_hash_map<std::pair<const Call*, const Device*>, Single> single_;
  FamilyTable single_families_;
  uint64_t single_asked_ = 0;
  size_t single_room_ = 256;  // above so many, some are dropped
  std::mutex mutex_;
  std::condition_variable work_, idle_, done_;
  std::deque<std::pair<CallRef, Device*>> singles_;
  std::deque<Job> queue_;
  std::deque<Job> last_;
  bool tune_ = false;  // after these
  std::vector<FragmentRef> discarded_;
  std::atomic<int> running_{0};
  int waiters_ = 0;    // in WaitIdle and WaitFor
  bool stop_ = false;  // nothing is asked for any more, but single operations
  bool end_ = false;   // nor these
  Clock::time_point rest_until_, looked_;
  Clock::time_point settle_after_;                 // Device::Settle, without jobs
  int64_t seen_op_by_op_ = 0, seen_compiled_ = 0;  // launches, at looked_
  bool runs_compiled_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tpu
