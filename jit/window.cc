#include "jit/window.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "jit/compile_pool.h"
#include "jit/engine.h"
#include "jit/fragment_table.h"
#include "runtime/flags.h"
#include "runtime/fork.h"

namespace tpu {
namespace {

// A library call in front of which this many operations wait starts a new fragment: enough to be worth a launch.
constexpr size_t kOpsBeforeBoundary = 16;
// Without library calls, fragments end after a call whose structure says so, once this long: at all sizes alike.
constexpr size_t kOpsBeforeContent = 128;
constexpr uint64_t kStructureMask = 7;
// The part of the device's memory that a window's results may need, were all of them kept.
constexpr int64_t kShareOfMemory = 2;
// Values kept for the next fragment.
constexpr size_t kMaxSpare = 512;
// How many launches the host may be ahead of the device. Then it waits until it is half as far ahead: waking up for
// each launch, it would take a core from a thread that computes each time.
constexpr uint64_t kMaxAhead = 48;
// Views and the like that wait for their reader, which may be a list of all parameters.
constexpr size_t kMaxHeld = 2048;

// Its address tells threads apart.
thread_local char this_thread;

}  // namespace

// Of windows that are filled at once, in all streams: no two share one.
uint64_t Window::NextEpoch() {
  static std::atomic<uint64_t> epoch{0};
  return ++epoch;
}

Window::Window(Engine& engine, Stream& stream) : engine_(engine), stream_(stream), epoch_(NextEpoch()) {
  AllowMemory(stream.device()->memory_stats().allowed_bytes);
}
Window::~Window() = default;

Window::Recording::Recording(Window& window) : window_(window), lock_(window.engine_.recording_lock()) {}

Window::Recording::~Recording() {
  Stream::Task claimed;
  if (window_.claimed_) claimed = std::exchange(window_.claimed_, nullptr);
  lock_.unlock();
  if (claimed) window_.stream_.RunClaimed(std::move(claimed));
}

void Window::AllowMemory(int64_t bytes) { bytes_allowed_ = bytes / kShareOfMemory; }

void Window::Record(const CallRef& call, absl::Span<const Operand> operands, absl::Span<ValueRef> results) {
  // A value pending on another stream is queued there first; the launch here then waits for it.
  for (const Operand& o : operands) {
    if (o.value == nullptr) continue;
    Window* const other = o.value->window_.load(std::memory_order_acquire);
    if (other != nullptr && other != this) other->Cut(CutReason::kStreamSwitch, call->op, o.value);
  }
  const uint64_t queued_before = stream_.enqueued();
  // Before the lock: seeing the Python frame can mean waiting for Python's lock.
  std::string where = cold_.load(std::memory_order_relaxed) ? engine_.Where() : std::string();
  {
    Recording recording(*this);
    recorder_ = &this_thread;
    // Not before the next call: what the last one wrote over is given up once it is recorded, and written in place
    // then.
    if (bytes_ - part_bytes_ > bytes_allowed_) CutLocked(CutReason::kMemory, call->op);
    if (call->boundary && PartNodes() >= kOpsBeforeBoundary && !PassSeam()) {
      CutLocked(CutReason::kContent, call->op);  // what is held is this call's: it stays with it
    }
    if (call->held && held_.size() < kMaxHeld && engine_.mode() == Mode::kFused) {
      results[0] = NewValue(call->value_types[0]);
      held_.push_back({call, ValueRef(operands[0].value), results[0], std::move(where)});
      return;
    }
    PlaceHeld();
    if (call->alone) CutLocked(CutReason::kContent, call->op);
    for (size_t i = 0; i < call->results.size(); ++i) results[i] = NewValue(call->value_types[i]);
    Place(call, operands, results, std::move(where));
    const size_t n = PartNodes();
    if (n >= static_cast<size_t>(Flags::Get().window_ops)) {
      if (!PassSeam()) CutLocked(CutReason::kBound, call->op);
    } else if (call->alone || (n >= kOpsBeforeContent && (call->structure_hash & kStructureMask) == 0)) {
      if (!PassSeam()) CutLocked(CutReason::kContent, call->op);
    } else if (engine_.mode() != Mode::kFused) {
      CutLocked(CutReason::kMode, call->op);
    }
  }
  if (const uint64_t queued = stream_.enqueued(); queued != queued_before) {
    if (engine_.mode() == Mode::kDebug) {
      stream_.WaitFor(queued);
    } else if (queued - stream_.completed() > kMaxAhead) {
      stream_.WaitFor(queued - kMaxAhead / 2);
    }
  }
}

ValueRef Window::NewValue(const TensorType* type) {
  ValueRef value;
  if (spare_.empty()) {
    value = MakeRef<Value>(type);
    value->stream_ = &stream_;
  } else {
    value = std::move(spare_.back());
    spare_.pop_back();
    value->type_ = type;
  }
  value->window_.store(this, std::memory_order_relaxed);
  value->epoch_ = 0;  // until it is placed
  return value;
}

// Makes the call the next node.
void Window::Place(const CallRef& call, absl::Span<const Operand> operands, absl::Span<const ValueRef> results,
                   std::string where) {
  if (!expected_ || !Follow(call, operands)) Append(call, operands, std::move(where));
  std::atomic<int64_t>& recorded = Metrics::Get().recorded_ops;  // written under the lock only: no locked add
  recorded.store(recorded.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  ++num_nodes_;
  bytes_ += call->result_bytes;
  for (const ValueRef& value : results) {
    value->epoch_ = epoch_;
    value->id_ = static_cast<int32_t>(results_.size());
    results_.push_back(value);
  }
}

void Window::PlaceHeld() {
  for (Held& held : held_) {
    const Operand operand{held.operand.get(), 0};
    Place(held.call, {&operand, 1}, {&held.result, 1}, std::move(held.where));
  }
  held_.clear();
}

// The operand's number: of a result of this window, or of an input, new or old.
ValueId Window::IdOf(const Operand& operand) {
  Value* value = operand.value;
  if (value != nullptr && value->epoch_ == epoch_) return value->id_;
  const ValueId id = InputId(static_cast<int>(inputs_.size()));
  if (value != nullptr) {
    value->epoch_ = epoch_;
    value->id_ = id;
  }
  inputs_.push_back({ValueRef(value), operand.bits});
  return id;
}

bool Window::Follow(const CallRef& call, absl::Span<const Operand> operands) {
  if (InCluster()) {
    if (!AtPartsEnd() && IsNext(*expected_, call, operands)) return true;
    Split(true);
  }
  return IsNext(*expected_, call, operands) || FollowAnother(call, operands);
}

// True if the call on these operands is the next node of `entry`, whose nodes so far are the window's. Else nothing has
// changed.
bool Window::IsNext(const FragmentEntry& entry, const CallRef& call, absl::Span<const Operand> operands) {
  const Fragment& f = entry.fragment;
  if (num_nodes_ >= f.nodes.size() || f.nodes[num_nodes_].call != call) return false;
  const ValueId* expected = f.operands.data() + f.nodes[num_nodes_].operands_begin;
  const size_t known_inputs = inputs_.size();
  for (const Operand& operand : operands) {
    if (IdOf(operand) == *expected++) continue;
    while (inputs_.size() > known_inputs) {
      if (inputs_.back().value) inputs_.back().value->epoch_ = 0;
      inputs_.pop_back();
    }
    return false;
  }
  return true;
}

// Of the other fragments that came after the previous one, the first that has begun like this and goes on so; without
// one, the window keeps calls itself from here on.
bool Window::FollowAnother(const CallRef& call, absl::Span<const Operand> operands) {
  for (FragmentEntry* other : previous_->successors) {
    if (other == nullptr || other == expected_.get() || !HasPrefix(*other) || !IsNext(*other, call, operands)) continue;
    Expect(FragmentRef(other));
    ExpectCluster();
    return true;
  }
  StopFollowing();
  return false;
}

// True if the window's nodes, which are those of expected_, are the first of `entry`.
bool Window::HasPrefix(const FragmentEntry& entry) const {
  const Fragment &a = expected_->fragment, &b = entry.fragment;
  if (b.nodes.size() < num_nodes_) return false;
  for (size_t i = 0; i < num_nodes_; ++i) {
    if (a.nodes[i].call != b.nodes[i].call) return false;
  }
  const size_t operands = a.OperandsEnd(num_nodes_);
  return std::equal(a.operands.begin(), a.operands.begin() + operands, b.operands.begin());
}

void Window::Append(const CallRef& call, absl::Span<const Operand> operands, std::string where) {
  nodes_.push_back({call, static_cast<uint32_t>(operands_.size()), static_cast<uint32_t>(results_.size())});
  for (size_t i = 0; i < operands.size(); ++i) {
    operands_.push_back(IdOf(operands[i]));
    if (inputs_.size() > input_types_.size()) input_types_.push_back(call->operands[i]);
  }
  where_.push_back(std::move(where));
}

void Window::StopFollowing() {
  const Fragment& f = expected_->fragment;
  nodes_.assign(f.nodes.begin(), f.nodes.begin() + num_nodes_);
  operands_.assign(f.operands.begin(), f.operands.begin() + f.OperandsEnd(num_nodes_));
  input_types_.assign(f.inputs.begin(), f.inputs.begin() + inputs_.size());
  where_begin_ = num_nodes_;
  Expect(nullptr);
}

void Window::Expect(FragmentRef entry) {
  expected_ = std::move(entry);
  cold_.store(!expected_, std::memory_order_relaxed);
}

void Window::CollectOutputs() {
  outputs_.clear();
  for (size_t i = 0; i < results_.size(); ++i) {
    if (results_[i]->ref_count() > 1) outputs_.push_back(static_cast<ValueId>(i));
  }
}

void Window::WaitForRoom() {
  {
    std::lock_guard<std::mutex> lock(engine_.recording_lock());
    if (num_nodes_ == 0 && held_.empty()) return;
  }
  stream_.WaitForRoom();
}

void Window::Cut(CutReason reason, const std::string& what, const Value* value, bool awaited) {
  if (InForkedChild()) return;                // what is pending stays so, or it would count as done
  const std::string where = engine_.Where();  // before the lock, as in Record
  WaitForRoom();
  const bool read = value != nullptr && (reason == CutReason::kRead || reason == CutReason::kDataDependent);
  Recording recording(*this);
  if (value != nullptr && InCluster() && part_ > 0) {
    if (value->epoch_ == epoch_ && value->id_ < expected_->cluster->parts[part_].results_begin) Split(true);
    if (!value->pending() && !read) return;
  }
  PlaceHeld();
  CutLocked(reason, what, where, awaited || (read && value->pending()));
}

void Window::CutOwn(CutReason reason, const std::string& what) {
  if (InForkedChild()) return;
  const std::string where = engine_.Where();
  WaitForRoom();
  Recording recording(*this);
  if (recorder_ != &this_thread) return;
  PlaceHeld();
  CutLocked(reason, what, where);
}

void Window::CutLocked(CutReason reason, const std::string& what, const std::string& where, bool awaited) {
  if (num_nodes_ == 0) return;
  FragmentRef entry = InCluster() ? TakeWhole() : nullptr;
  if (num_nodes_ == 0) return;
  Metrics& metrics = Metrics::Get();
  metrics.CountCut(reason, where, what, static_cast<int>(num_nodes_));
  bool inserted = false;
  if (!entry) {
    CollectOutputs();
    entry = FindEntry(&inserted);
  }
  if (inserted) {
    metrics.fragments_distinct.fetch_add(1, std::memory_order_relaxed);
    if (nodes_.front().call->alone) {
      entry->state = FragmentEntry::State::kFailed;  // there is nothing to compile
    } else {
      engine_.JoinFamily(entry);
    }
    entry->where.resize(nodes_.size());
    for (size_t i = 0; i < where_.size() && where_begin_ + i < nodes_.size(); ++i) {
      entry->where[where_begin_ + i] = std::move(where_[i]);
    }
  } else {
    metrics.fragments_known.fetch_add(1, std::memory_order_relaxed);
  }
  metrics.dropped_ops.fetch_add(static_cast<int64_t>(num_nodes_) - entry->live_ops, std::memory_order_relaxed);
  Join(entry);
  if (!outputs_.empty()) {
    TagForJoin(*entry);
    if (inserted && !engine_.fixed() && !Engine::IsServed(*entry)) engine_.pool().Prepare(*entry, *stream_.device());
    Launch(entry, std::move(inputs_), outputs_, 0, awaited);
  } else {
    tagged_ = 0;
  }
  Note(entry, reason == CutReason::kContent || reason == CutReason::kBound);
  Reset();
  Expect(FragmentRef(previous_->successors.front()));
  ExpectCluster();
  if (inserted) {
    std::vector<FragmentRef> surplus = engine_.table().TakeSurplus();
    metrics.fragments_given_up.fetch_add(static_cast<int64_t>(surplus.size()), std::memory_order_relaxed);
    engine_.pool().Discard(std::move(surplus));
  }
}

// The entry of what is recorded with these outputs, known or new.
FragmentRef Window::FindEntry(bool* inserted) {
  if (expected_) {
    const auto is_it = [&](const FragmentEntry& e) {
      return e.fragment.nodes.size() == num_nodes_ && e.fragment.outputs == outputs_;
    };
    if (is_it(*expected_)) return expected_;
    for (FragmentEntry* other : previous_->successors) {
      if (other != nullptr && is_it(*other) && HasPrefix(*other)) return FragmentRef(other);
    }
    StopFollowing();
  }
  return engine_.table().FindOrInsert(nodes_, operands_, outputs_, input_types_, static_cast<uint32_t>(results_.size()),
                                      inserted);
}

void Window::Launch(const FragmentRef& entry, std::vector<tpu::Launch::Input> inputs, absl::Span<const ValueId> outputs,
                    ValueId results_begin, bool awaited) {
  Metrics::Get().fragments_launched.fetch_add(1, std::memory_order_relaxed);
  auto launch = std::make_shared<tpu::Launch>(engine_, stream_, entry);
  launch->inputs = std::move(inputs);
  launch->outputs.reserve(outputs.size());
  for (ValueId v : outputs) launch->outputs.push_back(results_[results_begin + v]);
  launch->passage = TimeLaunch(entry);
  launch->fixed = engine_.UpdateFixed();
  const bool runs_here = awaited ? launch->RunsForItsReader() : launch->IsBrief();
  uint64_t sequence = runs_here ? stream_.Claim(/*only_asleep=*/!awaited) : 0;
  // The launch's own references are dropped right after the run, before it counts as completed.
  Stream::Task task = [launch = std::move(launch)] { launch->Run(); };
  if (sequence != 0) {
    claimed_ = std::move(task);
  } else {
    sequence = stream_.Push(std::move(task));
  }
  for (ValueId v : outputs) results_[results_begin + v]->sequence_ = sequence;
  engine_.Launched(entry);
}

// What came after what, once `entry` is cut.
void Window::Note(const FragmentRef& entry, bool by_content) {
  const auto follow = [this](FragmentEntry& part) {
    if (previous_) previous_->NoteSuccessor(&part);
    previous_ = FragmentRef(&part);
    part.last_cut = epoch_;
  };
  const FragmentEntry* first = entry.get();
  if (entry->cluster) {
    for (const Cluster::Part& part : entry->cluster->parts) follow(*part.entry);
    first = entry->cluster->parts.front().entry;
    entry->last_cut = epoch_;
  } else {
    follow(*entry);
  }
  if (unit_) unit_->NoteFollower(unit_by_content_ ? first : nullptr);
  unit_ = entry;
  unit_by_content_ = by_content;
}

void Window::Reset() {
  epoch_ = NextEpoch();
  num_nodes_ = 0;
  nodes_.clear();
  operands_.clear();
  Retire(absl::MakeSpan(results_));
  results_.clear();
  inputs_.clear();
  input_types_.clear();
  bytes_ = 0;
  part_ = part_nodes_ = 0;
  part_bytes_ = 0;
  Expect(nullptr);
  where_.clear();
  where_begin_ = 0;
}

// What was launched, or is dead, is pending no more.
void Window::Retire(absl::Span<ValueRef> results) {
  for (ValueRef& v : results) {
    v->window_.store(nullptr, std::memory_order_release);
    const bool unseen = v->sequence_ == 0;  // by any launch
    if (unseen && v->ref_count() == 1 && spare_.size() < kMaxSpare) spare_.push_back(std::move(v));
  }
}

}  // namespace tpu
