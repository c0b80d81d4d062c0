// The pending operations of one stream, and the rule by which they become fragments.
//
// The dispatcher records into it; reads, synchronisation, bounds and content-defined points cut it. A cut hands the
// fragment to the stream at once. What followed a fragment before is expected after it again: while calls are the
// expected ones they are compared, and no graph is built. Where fragments always follow one another, a cluster of them
// (cluster.h) is expected: the cuts between them are passed over while the program does what it did and the stream has
// work meanwhile; otherwise the window falls back to the parts, as if there had been no cluster. All windows of a
// process share the engine's recording lock; no call here blocks on the device while holding it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "compiler/fragment.h"
#include "jit/cluster.h"
#include "jit/launch.h"
#include "jit/metrics.h"
#include "jit/value.h"

namespace tpu {

// One operand of a call being recorded: a value, or a scalar's bits.
struct Operand {
  Value* value = nullptr;
  uint64_t bits = 0;
};

class Window {
 public:
  Window(Engine& engine, Stream& stream);
  ~Window();

  // Appends the call. results[i] becomes call->results[i]'s value. May cut before or after, and waits for room on the
  // stream when the host has run too far ahead.
  void Record(const CallRef& call, absl::Span<const Operand> operands, absl::Span<ValueRef> results);
  // Queues what is pending, or runs it here: for the reader of a `value` that is pending, for who waits for all of it
  // (`awaited`), or since it is brief and the stream's thread sleeps. `what` names who asked, for explain().
  void Cut(CutReason reason, const std::string& what, const Value* value = nullptr, bool awaited = false);
  // Queues what is pending if it is the calling thread's: other threads come at any time, and would cut it anywhere.
  void CutOwn(CutReason reason, const std::string& what);
  Stream& stream() const { return stream_; }
  // What the device may allocate. The caller holds the recording lock, once the window is used.
  void AllowMemory(int64_t bytes);

 private:
  friend class Engine;

  // Holds the recording lock; then runs the launch that a cut has claimed the stream for.
  class Recording {
   public:
    explicit Recording(Window& window);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    Window& window_;
    std::unique_lock<std::mutex> lock_;
  };

  static uint64_t NextEpoch();
  // On the stream, where there is something to cut.
  void WaitForRoom();
  // `awaited`: somebody waits for a value of it.
  void CutLocked(CutReason reason, const std::string& what, const std::string& where = "", bool awaited = false);
  void Place(const CallRef& call, absl::Span<const Operand> operands, absl::Span<const ValueRef> results,
             std::string where);
  void PlaceHeld();
  bool Follow(const CallRef& call, absl::Span<const Operand> operands);
  ValueId IdOf(const Operand& operand);
  bool FollowAnother(const CallRef& call, absl::Span<const Operand> operands);
  bool IsNext(const FragmentEntry& entry, const CallRef& call, absl::Span<const Operand> operands);
  bool HasPrefix(const FragmentEntry& entry) const;
  void Append(const CallRef& call, absl::Span<const Operand> operands, std::string where);
  void StopFollowing();
  void Expect(FragmentRef entry);
  void CollectOutputs();
  FragmentRef FindEntry(bool* inserted);
  void Launch(const FragmentRef& entry, std::vector<tpu::Launch::Input> inputs, absl::Span<const ValueId> outputs,
              ValueId results_begin, bool awaited);
  void Note(const FragmentRef& entry, bool by_content);
  void Reset();
  void Retire(absl::Span<ValueRef> results);

  // Clusters: window_clusters.cc.
  bool InCluster() const { return expected_ && expected_->cluster; }
  size_t PartNodes() const { return num_nodes_ - part_nodes_; }
  bool AtPartsEnd() const { return num_nodes_ == expected_->cluster->parts[part_].nodes_end; }
  bool ExpectsClusters() const;
  void ExpectCluster();
  bool Follows(FragmentEntry& whole);
  void Dissolve(FragmentEntry& whole, Cluster::End end);
  bool PassSeam();
  bool KeepsBusy(const Cluster& cluster) const;
  bool PartIsKnown() const;
  bool MayBeHalf(const FragmentEntry& entry) const;
  FragmentRef TakeWhole();
  void Split(bool wrong_guess);
  void TagForJoin(const FragmentEntry& entry);
  void Join(const FragmentRef& right);
  void Form(const FragmentRef& candidate, const std::vector<ValueId>& outputs);
  std::shared_ptr<Passage> TimeLaunch(const FragmentRef& entry);
  ValueRef NewValue(const TensorType* type);

  Engine& engine_;
  Stream& stream_;
  // Everything below is guarded by the engine's recording lock.
  const void* recorder_ = nullptr;  // the thread of the last call
  uint64_t epoch_ = 0;
  size_t num_nodes_ = 0;
  int64_t bytes_ = 0;          // of all results
  int64_t bytes_allowed_ = 0;  // before the window is cut
  std::vector<ValueRef> results_;
  // Views and widened bytes, not placed yet: they go where the next call goes, which reads them, be it in the next
  // fragment. Cut from its reader a view would be a copy, and weights of a byte each would be written as floats.
  struct Held {
    CallRef call;
    ValueRef operand, result;
    std::string where;
  };
  std::vector<Held> held_;
  std::vector<tpu::Launch::Input> inputs_;
  std::vector<ValueId> outputs_;  // scratch of a cut
  std::vector<ValueRef> spare_;   // values that died unseen, to be used again
  FragmentRef previous_;
  // What was launched last: previous_, or a cluster that ends with it; whether it was cut by content. And the epoch in
  // which values were tagged as its own, so that the next fragment can be joined to it; 0: they were not.
  FragmentRef unit_;
  bool unit_by_content_ = false;
  uint64_t tagged_ = 0;
  FragmentRef candidate_;  // a cluster that is followed once to see what is wanted at its end: without a program
  int candidate_cuts_ = 0;
  // A cluster whose halves are being timed, and the passage that the first has begun.
  FragmentRef timed_;
  std::shared_ptr<Passage> halves_;
  // The known fragment that is being followed: all num_nodes_ calls and their operands were its. Null: the calls are
  // kept in what follows here, and the lines they come from.
  FragmentRef expected_;
  // In a cluster: the part that is being recorded, and what was recorded before it.
  size_t part_ = 0, part_nodes_ = 0;
  int64_t part_bytes_ = 0;
  Stream::Task claimed_;          // a launch that runs as soon as the lock is free
  std::atomic<bool> cold_{true};  // expected_ is null; read outside the lock as a hint
  std::vector<Node> nodes_;
  std::vector<ValueId> operands_;
  std::vector<OperandType> input_types_;
  std::vector<std::string> where_;  // of nodes from where_begin_ on
  size_t where_begin_ = 0;
};

}  // namespace tpu
