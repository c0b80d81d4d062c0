#include "jit/window.h"

#include <atomic>
#include <utility>

#include "jit/engine.h"
#include "jit/fragment_table.h"
#include "runtime/flags.h"

namespace tpu {
namespace {

// A library call in front of which this many operations wait starts a new fragment: enough to be worth a launch.
constexpr size_t kOpsBeforeBoundary = 16;
// Without library calls, fragments end after a call whose content hash says so, once this long.
constexpr size_t kOpsBeforeContent = 128;
constexpr uint64_t kContentMask = 7;
// The part of the device's memory that a window's results may need, were all of them kept.
constexpr int64_t kShareOfMemory = 2;
// Values kept for the next fragment.
constexpr size_t kMaxSpare = 256;
// How many launches the host may be ahead of the device.
constexpr uint64_t kMaxAhead = 48;

uint64_t Mix(uint64_t h, uint64_t x) {
  const __uint128_t p = static_cast<__uint128_t>(h ^ x) * 0x9E3779B97F4A7C15ull;
  return static_cast<uint64_t>(p) ^ static_cast<uint64_t>(p >> 64);
}

uint64_t NextEpoch() {
  static std::atomic<uint64_t> epoch{0};
  return ++epoch;
}

}  // namespace

Window::Window(Engine& engine, Stream& stream)
    : engine_(engine),
      stream_(stream),
      epoch_(NextEpoch()),
      bytes_allowed_(stream.device()->memory_stats().limit_bytes / kShareOfMemory) {}
Window::~Window() = default;

void Window::Record(const Call& call, absl::Span<const Operand> operands, absl::Span<ValueRef> results) {
  // A value pending on another stream is queued there first; the launch here then waits for it.
  for (const Operand& o : operands) {
    if (o.value == nullptr) continue;
    Window* const other = o.value->window_.load(std::memory_order_acquire);
    if (other != nullptr && other != this) other->Cut(CutReason::kStreamSwitch, call.op);
  }
  bool cut_before = false, cut_after = false;
  // Before the lock: seeing the Python frame can mean waiting for Python's lock.
  std::string where = cold_.load(std::memory_order_relaxed) ? engine_.Where() : std::string();
  {
    std::lock_guard<std::mutex> lock(engine_.recording_lock());
    if ((call.boundary && nodes_.size() >= kOpsBeforeBoundary) || (call.alone && !nodes_.empty())) {
      CutLocked(CutReason::kContent, call.op);
      cut_before = true;
    }
    Follow(call, std::move(where));
    Node node{&call, static_cast<uint32_t>(operands_.size()), static_cast<uint32_t>(results_.size())};
    uint64_t h = Mix(hash_, reinterpret_cast<uintptr_t>(&call));
    for (size_t i = 0; i < operands.size(); ++i) {
      const ValueId id = InputIdOf(operands[i], call.operands[i]);
      operands_.push_back(id);
      h = Mix(h, static_cast<uint32_t>(id));
    }
    hash_ = h;
    nodes_.push_back(node);
    bytes_ += call.result_bytes;
    for (size_t i = 0; i < call.results.size(); ++i) {
      ValueRef value = NewValue(call.results[i]);
      results_.push_back(value);
      results[i] = std::move(value);
    }
    std::atomic<int64_t>& recorded = Metrics::Get().recorded_ops;  // written under the lock only: no locked add
    recorded.store(recorded.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    const size_t n = nodes_.size();
    if (n >= static_cast<size_t>(Flags::Get().window_ops)) {
      CutLocked(CutReason::kBound, call.op);
      cut_after = true;
    } else if (bytes_ > bytes_allowed_) {
      CutLocked(CutReason::kMemory, call.op);
      cut_after = true;
    } else if (call.alone || (n >= kOpsBeforeContent && (call.content_hash & kContentMask) == 0)) {
      CutLocked(CutReason::kContent, call.op);
      cut_after = true;
    } else if (engine_.mode() != Mode::kFused) {
      CutLocked(CutReason::kMode, call.op);
      cut_after = true;
    }
  }
  if (cut_before || cut_after) {
    const uint64_t queued = stream_.enqueued();
    if (engine_.mode() == Mode::kDebug) {
      stream_.WaitFor(queued);
    } else if (queued > kMaxAhead) {
      stream_.WaitFor(queued - kMaxAhead);
    }
  }
}

ValueRef Window::NewValue(const TensorType& type) {
  ValueRef value;
  if (spare_.empty()) {
    value = MakeRef<Value>(&type);
    value->stream_ = &stream_;
  } else {
    value = std::move(spare_.back());
    spare_.pop_back();
    value->type_ = &type;
  }
  value->window_.store(this, std::memory_order_relaxed);
  value->epoch_ = epoch_;
  value->id_ = static_cast<int32_t>(results_.size());
  return value;
}

ValueId Window::InputIdOf(const Operand& operand, const OperandType& type) {
  Value* value = operand.value;
  if (value != nullptr && value->epoch_ == epoch_) return value->id_;
  const ValueId id = InputId(static_cast<int>(inputs_.size()));
  if (value != nullptr) {
    value->epoch_ = epoch_;
    value->id_ = id;
  }
  inputs_.push_back({ValueRef(value), operand.bits});
  input_types_.push_back(type);
  return id;
}

void Window::Follow(const Call& call, std::string where) {
  const size_t n = nodes_.size();
  if (expected_ != nullptr && n < expected_->fragment.nodes.size() && expected_->fragment.nodes[n].call == &call)
    return;
  if (expected_ != nullptr) {
    Expect(nullptr);
    where_begin_ = n;
  }
  where_.push_back(std::move(where));
}

void Window::Expect(FragmentEntry* entry) {
  expected_ = entry;
  cold_.store(entry == nullptr, std::memory_order_relaxed);
}

void Window::CollectOutputs() {
  outputs_.clear();
  for (size_t i = 0; i < results_.size(); ++i) {
    if (results_[i]->ref_count() > 1) outputs_.push_back(static_cast<ValueId>(i));
  }
}

void Window::Cut(CutReason reason, const std::string& what) {
  const std::string where = engine_.Where();  // before the lock, as in Record
  std::lock_guard<std::mutex> lock(engine_.recording_lock());
  CutLocked(reason, what, where);
}

void Window::CutLocked(CutReason reason, const std::string& what, const std::string& where) {
  if (nodes_.empty()) return;
  Metrics& metrics = Metrics::Get();
  metrics.CountCut(reason, where, what, static_cast<int>(nodes_.size()));
  CollectOutputs();
  uint64_t h = hash_;
  for (ValueId v : outputs_) h = Mix(h, static_cast<uint32_t>(v));
  bool inserted = false;
  FragmentEntry* entry = engine_.table().FindOrInsert(h, nodes_, operands_, outputs_, input_types_,
                                                      static_cast<uint32_t>(results_.size()), &inserted);
  if (inserted) {
    metrics.fragments_distinct.fetch_add(1, std::memory_order_relaxed);
    if (nodes_.front().call->alone) entry->state = FragmentEntry::State::kFailed;  // there is nothing to compile
    entry->where.resize(nodes_.size());
    for (size_t i = 0; i < where_.size() && where_begin_ + i < nodes_.size(); ++i) {
      entry->where[where_begin_ + i] = std::move(where_[i]);
    }
  } else {
    metrics.fragments_known.fetch_add(1, std::memory_order_relaxed);
  }
  metrics.dropped_ops.fetch_add(static_cast<int64_t>(nodes_.size()) - entry->live_ops, std::memory_order_relaxed);
  if (!outputs_.empty()) Launch(*entry);

  if (previous_ != nullptr) previous_->successor = entry;
  previous_ = entry;
  Reset();
  Expect(entry->successor);
}

void Window::Launch(FragmentEntry& entry) {
  Metrics::Get().fragments_launched.fetch_add(1, std::memory_order_relaxed);
  auto launch = std::make_shared<tpu::Launch>(engine_, stream_, entry);
  launch->inputs = std::move(inputs_);
  launch->outputs.reserve(outputs_.size());
  for (ValueId v : outputs_) launch->outputs.push_back(results_[v]);
  launch->Queue(stream_.enqueued() + 1);
  // The launch's own references are dropped on the stream's thread right after the run, before it counts as completed.
  stream_.Enqueue([launch = std::move(launch)] { launch->Run(); });
  engine_.Launched(entry);
}

void Window::Reset() {
  epoch_ = NextEpoch();
  nodes_.clear();
  operands_.clear();
  for (ValueRef& v : results_) {
    v->window_.store(nullptr, std::memory_order_release);
    const bool unseen = v->sequence_ == 0;  // by any launch
    if (unseen && v->ref_count() == 1 && spare_.size() < kMaxSpare) spare_.push_back(std::move(v));
  }
  results_.clear();
  inputs_.clear();
  input_types_.clear();
  hash_ = 0;
  bytes_ = 0;
  Expect(nullptr);
  where_.clear();
  where_begin_ = 0;
}

}  // namespace tpu
