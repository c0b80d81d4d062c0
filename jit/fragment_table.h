// Known fragments: from what a window recorded to one shared entry, with its program once there is one.
//
// Lookup is called at each cut with the engine's recording lock held; the entry's executable is published by the
// compile pool and read by stream threads. The table is bounded: what was not cut for longest is given up, once no
// window, launch or compile job holds it. A program that comes back to such a fragment finds its code on disk.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "compiler/fragment.h"
#include "jit/tuning.h"
#include "runtime/device.h"
#include "runtime/ref.h"

namespace tpu {

class FragmentFamily;
struct Cluster;

// Launches of a fragment at one tier, and how long they took: written by the threads that ran them.
struct TierProfile {
  std::atomic<int64_t> runs{0}, nanoseconds{0};
  std::array<std::atomic<int64_t>, 2> lately{};  // a launch, on the stream's thread and on another; 0: not known
};

struct FragmentEntry final : RefCounted<FragmentEntry> {
  enum class State : uint8_t { kNew, kLoading, kMissing, kCompiling, kReady, kFailed };

  Fragment fragment;
  // For tier 0, by node: whether anything wanted needs it; by result and by input: the node that reads it last
  // (results that are outputs: none).
  std::vector<bool> live;
  std::vector<int32_t> last_use;
  std::vector<int32_t> input_last_use;
  int live_ops = 0;
  // The user's file:line of each node when it was first recorded ("" where unknown).
  std::vector<std::string> where;
  std::string FirstLine() const;  // of these, the first that is known

  std::atomic<State> state{State::kNew};
  int64_t uses = 0;       // times queued; guarded by the recording lock
  uint64_t last_cut = 0;  // greater: later; likewise
  std::array<TierProfile, 2> profile;
  int64_t runs() const { return profile[0].runs + profile[1].runs; }
  FragmentTuning tuning;
  // One executable a device, set (release) by the compile pool, then by the tuner; owned here.
  std::vector<std::atomic<Executable*>> executables;
  // The fragments that differ from this one in a size, and may have a program for it; null where the backend writes
  // none.
  std::shared_ptr<FragmentFamily> family;
  // The executable, the closest of its family's where it has none of its own (yet); nullptr: none.
  Executable* ExecutableFor(int device);
  // Its family has a program, but none for this fragment.
  std::atomic<bool> left_out{false};
  void Install(int device, std::unique_ptr<Executable> executable);
  std::vector<KernelTime> KernelTimes() const;  // of the executables there are now
  // The fragments that followed this one in its window, the latest first (null: fewer have): what recording expects
  // next. Guarded by the recording lock. Not held: the table takes out what it gives up.
  std::array<FragmentEntry*, 6> successors{};

  // Guarded by the recording lock, as all below: of a cluster, what it is made of.
  std::unique_ptr<Cluster> cluster;
  // The cluster that begins with this, not held; that there shall be none; that this is the end of one.
  FragmentEntry* begins = nullptr;
  bool begins_none = false;
  bool ends_one = false;
  // What followed the latest times without exception, where this was cut by content, and how often. Not held.
  const FragmentEntry* follower = nullptr;
  int times_followed = 0;

  explicit FragmentEntry(int devices);
  ~FragmentEntry();
  void NoteSuccessor(FragmentEntry* next);
  void NoteFollower(const FragmentEntry* next);
  void Forget(const absl::flat_hash_set<const FragmentEntry*>& gone);

 private:
  std::vector<std::atomic<uint32_t>> family_version_;  // by device: of the family, when it was last asked
  std::mutex mutex_;
  std::vector<bool> own_;  // by device: whether it has a program of its own; guarded by mutex_
  std::vector<std::unique_ptr<Executable>> replaced_;  // launches may still run them; guarded by mutex_
};

class FragmentTable {
 public:
  // Keeps so many fragments, of `most_ops` operations together, and an eighth more before it gives some up.
  FragmentTable(int devices, size_t most_ops, size_t most_fragments)
      : devices_(devices), ops_(most_ops), fragments_(most_fragments) {}

  // `inputs` is consulted only for a new entry.
  FragmentRef FindOrInsert(absl::Span<const Node> nodes, absl::Span<const ValueId> operands,
                           absl::Span<const ValueId> outputs, absl::Span<const OperandType> inputs,
                           uint32_t num_results, bool* inserted);
  std::vector<FragmentRef> All() const;
  // When it has more than it keeps: of those cut longest ago what nobody else holds. Their code takes a while to
  // unload: to be dropped where nobody waits.
  std::vector<FragmentRef> TakeSurplus();

 private:
  // How much of something there is, and above how much there is a surplus.
  struct Kept {
    explicit Kept(size_t most) : most(most), room(most + most / 8) {}
    bool Holds(size_t more) const { return now + more <= most; }
    void MakeRoom() { room = std::max(now, most) + most / 8; }

    const size_t most;
    size_t now = 0, room;
  };

  const int devices_;
  Kept ops_, fragments_;
  absl::flat_hash_map<uint64_t, std::vector<FragmentRef>> entries_;
};

}  // namespace tpu
