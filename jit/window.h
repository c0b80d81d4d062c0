// The pending operations of one stream, and the rule by which they become fragments.
//
// The dispatcher records into it; reads, synchronisation, bounds and content-defined points cut it. A cut hands the
// fragment to the stream at once. All windows of a process share the engine's recording lock; no call here blocks on
// the device while holding it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "compiler/fragment.h"
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

  // Appends the call. results[i] becomes call.results[i]'s value. May cut before or after, and waits for room on the
  // stream when the host has run too far ahead.
  void Record(const Call& call, absl::Span<const Operand> operands, absl::Span<ValueRef> results);
  // Queues what is pending. `what` names who asked, for explain().
  void Cut(CutReason reason, const std::string& what);
  Stream& stream() const { return stream_; }

 private:
  friend class Engine;

  void CutLocked(CutReason reason, const std::string& what, const std::string& where = "");
  ValueId InputIdOf(const Operand& operand, const OperandType& type);
  void Expect(FragmentEntry* entry);
  void CollectOutputs();
  void Launch(FragmentEntry& entry);
  void Follow(const Call& call, std::string where);
  void Reset();
  ValueRef NewValue(const TensorType& type);

  Engine& engine_;
  Stream& stream_;
  // Everything below is guarded by the engine's recording lock.
  uint64_t epoch_ = 0;
  std::vector<Node> nodes_;
  std::vector<ValueId> operands_;
  std::vector<ValueRef> results_;
  std::vector<tpu::Launch::Input> inputs_;
  std::vector<OperandType> input_types_;
  std::vector<ValueId> outputs_;  // scratch of a cut
  std::vector<ValueRef> spare_;   // values that died unseen, to be used again
  uint64_t hash_ = 0;
  int64_t bytes_ = 0;            // of all results
  const int64_t bytes_allowed_;  // before the window is cut
  // Recording follows a known fragment while each call is the expected one; while it doesn't, lines are noted.
  FragmentEntry* expected_ = nullptr;
  std::atomic<bool> cold_{true};  // expected_ is null; read outside the lock as a hint
  FragmentEntry* previous_ = nullptr;
  std::vector<std::string> where_;  // of nodes from where_begin_ on
  size_t where_begin_ = 0;
};

}  // namespace tpu
