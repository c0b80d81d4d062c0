// The clusters of a window: made of what always follows, followed, left for their parts.
#include <algorithm>
#include <utility>

#include "jit/cluster.h"
#include "jit/compile_pool.h"
#include "jit/engine.h"
#include "jit/fragment_table.h"
#include "jit/tuning.h"
#include "jit/window.h"
#include "runtime/flags.h"

namespace tpu {
namespace {

using State = FragmentEntry::State;

// How often a fragment followed another, without exception, before the two are tried as one.
constexpr int kTimesFollowed = 8;
// Bounds of a cluster: in operations, and in what its launches take, because a read of anything in it waits for all.
constexpr size_t kMostOps = 4096;
constexpr int64_t kMostNanoseconds = 50'000'000;
// Cuts until a candidate that was not met, or left before its end, is given up.
constexpr int kMostCuts = 256;
// After so many passages it is timed anew: it may have stopped paying.
constexpr int64_t kTimedAgain = 256;
// So many wrong guesses, and a quarter of all, are too many.
constexpr int64_t kWrongGuesses = 8;

// Tests: as soon and as often as possible, whether or not it is worth it.
bool Always() {
  static const bool always = Flags::Get().clusters == "always";
  return always;
}

int64_t MeanNanoseconds(const FragmentEntry& entry) {
  const TierProfile& profile = entry.profile[1];
  return profile.nanoseconds / std::max<int64_t>(1, profile.runs);
}

}  // namespace

// The device has to run launches where they are timed, and timing has to be allowed to decide something.
bool Window::ExpectsClusters() const {
  const Flags& flags = Flags::Get();
  return flags.clusters != "never" && flags.tune_budget > 0 && stream_.device()->host_addressable() &&
         engine_.mode() == Mode::kFused && !engine_.fixed();
}

// Expects, in the place of a fragment, the largest cluster that begins with it and may be followed now.
void Window::ExpectCluster() {
  if (!expected_ || !ExpectsClusters()) return;
  if (candidate_) {
    if (++candidate_cuts_ > kMostCuts) {
      candidate_->cluster->left->begins_none = true;
      candidate_ = nullptr;
    } else if (candidate_->cluster->parts.front().entry == expected_.get()) {
      Expect(candidate_);
      return;
    }
  }
  FragmentEntry* best = expected_.get();
  for (FragmentEntry* whole = best->begins; whole != nullptr; whole = whole->begins) {
    if (whole == timed_.get() || !Follows(*whole)) break;
    Cluster& cluster = *whole->cluster;
    if (cluster.trial->verdict() == ClusterTrial::Verdict::kOpen && cluster.halves_next) {
      timed_ = FragmentRef(whole);
      break;
    }
    best = whole;
  }
  if (best != expected_.get()) Expect(FragmentRef(best));
}

// Whether the cluster has a program and is worth it; dissolves it where that is known not to be so.
bool Window::Follows(FragmentEntry& whole) {
  Cluster& cluster = *whole.cluster;
  if (cluster.wrong_guesses >= kWrongGuesses && cluster.wrong_guesses > cluster.followed / 4 && !Always()) {
    Dissolve(whole, Cluster::End::kWrongGuesses);
    return false;
  }
  if (cluster.trial->verdict() == ClusterTrial::Verdict::kNotFaster && !Always()) {
    Dissolve(whole, Cluster::End::kNotFaster);
    return false;
  }
  if (!cluster.kept && cluster.trial->verdict() != ClusterTrial::Verdict::kOpen) {
    cluster.kept = true;
    Metrics::Get().clusters_kept.fetch_add(1, std::memory_order_relaxed);
  }
  switch (whole.state.load(std::memory_order_acquire)) {
    case State::kReady:
      return true;
    case State::kFailed:
      Dissolve(whole, Cluster::End::kNotCompiled);
      return false;
    case State::kMissing:
      if (engine_.tuner().Affords(whole)) {
        whole.state.store(State::kCompiling, std::memory_order_release);
        engine_.pool().SubmitLast(FragmentRef(&whole));
      }
      return false;
    default:
      return false;
  }
}

void Window::Dissolve(FragmentEntry& whole, Cluster::End end) {
  Cluster& cluster = *whole.cluster;
  cluster.end = end;
  cluster.left->begins_none = true;
  cluster.left->begins = nullptr;
  cluster.right->ends_one = false;
  Metrics::Get().clusters_dissolved.fetch_add(1, std::memory_order_relaxed);
}

// At a point where the window would be cut: whether it goes on there, in the next part of a cluster.
bool Window::PassSeam() {
  if (!InCluster()) return false;
  const Cluster& cluster = *expected_->cluster;
  if (part_ + 1 == cluster.parts.size() || !AtPartsEnd() || !PartIsKnown()) return false;
  const MemoryStats memory = stream_.device()->memory_stats();
  if (memory.allocated_bytes + cluster.bytes > memory.allowed_bytes || !KeepsBusy(cluster)) {
    Split(false);
    return false;
  }
  ++part_;
  part_nodes_ = num_nodes_;
  part_bytes_ = bytes_;
  return true;
}

// Whether the device has work while another part is recorded.
bool Window::KeepsBusy(const Cluster& cluster) const {
  return stream_.enqueued() - stream_.completed() >= cluster.queued || Always();
}

// Whether what is wanted of the part, at its end, is what was: the cut here would give just this fragment.
bool Window::PartIsKnown() const {
  const Cluster::Part& part = expected_->cluster->parts[part_];
  const std::vector<ValueId>& outputs = part.entry->fragment.outputs;
  size_t found = 0;
  for (size_t i = part.results_begin; i < results_.size(); ++i) {
    if (results_[i]->ref_count() == 1) continue;
    if (found == outputs.size() || outputs[found] + part.results_begin != static_cast<ValueId>(i)) return false;
    ++found;
  }
  return found == outputs.size();
}

// At a cut in a cluster: the cluster, where this is its end and what is wanted is what it gives. Else the window goes
// back to the parts.
FragmentRef Window::TakeWhole() {
  if (num_nodes_ < expected_->fragment.nodes.size()) {
    Split(true);
    return nullptr;
  }
  CollectOutputs();
  if (expected_ == candidate_) {
    const FragmentRef candidate = std::move(candidate_);
    const std::vector<ValueId> outputs = outputs_;
    Split(false);
    Form(candidate, outputs);
    return nullptr;
  }
  if (outputs_ != expected_->fragment.outputs) {
    Split(true);
    return nullptr;
  }
  Cluster& cluster = *expected_->cluster;
  if (++cluster.followed % kTimedAgain == 0) cluster.trial = std::make_shared<ClusterTrial>();
  cluster.halves_next = true;
  Metrics::Get().launches_clusters.fetch_add(1, std::memory_order_relaxed);
  return expected_;
}

// Launches the parts that are complete (a guess that was wrong before any is none of the cluster's), each with what was
// wanted at its end; what is left of the window is the beginning of the next part, as if there had been no cluster.
void Window::Split(bool wrong_guess) {
  const FragmentRef whole = expected_;
  Cluster& cluster = *whole->cluster;
  if (wrong_guess && part_ > 0 && whole != candidate_) {
    ++cluster.wrong_guesses;
    Metrics::Get().cluster_wrong_guesses.fetch_add(1, std::memory_order_relaxed);
  }
  const auto input = [this](ValueId v) {
    return IsInput(v) ? inputs_[InputIndex(v)] : tpu::Launch::Input{results_[v], 0};
  };
  Metrics& metrics = Metrics::Get();
  for (size_t p = 0; p < part_; ++p) {
    const Cluster::Part& part = cluster.parts[p];
    const Fragment& f = part.entry->fragment;
    std::vector<tpu::Launch::Input> inputs;
    inputs.reserve(part.inputs.size());
    for (ValueId v : part.inputs) inputs.push_back(input(v));
    metrics.CountCut(CutReason::kContent, "", cluster.parts[p + 1].entry->fragment.nodes.front().call->op,
                     static_cast<int>(f.nodes.size()));
    metrics.fragments_known.fetch_add(1, std::memory_order_relaxed);
    metrics.dropped_ops.fetch_add(static_cast<int64_t>(f.nodes.size()) - part.entry->live_ops,
                                  std::memory_order_relaxed);
    const FragmentRef entry(part.entry);
    Launch(entry, std::move(inputs), f.outputs, part.results_begin, false);
    Note(entry, true);
  }
  const Cluster::Part& part = cluster.parts[part_];
  const FragmentRef entry(part.entry);
  if (part_ > 0) {
    const Fragment& f = entry->fragment;
    size_t known_inputs = 0;
    for (size_t i = 0; i < f.OperandsEnd(PartNodes()); ++i) {
      if (IsInput(f.operands[i])) known_inputs = std::max<size_t>(known_inputs, InputIndex(f.operands[i]) + 1);
    }
    std::vector<tpu::Launch::Input> inputs;
    for (size_t i = 0; i < known_inputs; ++i) inputs.push_back(input(part.inputs[i]));
    inputs_ = std::move(inputs);
    Retire(absl::MakeSpan(results_).first(part.results_begin));
    results_.erase(results_.begin(), results_.begin() + part.results_begin);
    epoch_ = NextEpoch();
    for (size_t i = 0; i < known_inputs; ++i) {
      if (Value* value = inputs_[i].value.get()) {
        value->epoch_ = epoch_;
        value->id_ = InputId(static_cast<int>(i));
      }
    }
    for (size_t i = 0; i < results_.size(); ++i) {
      results_[i]->epoch_ = epoch_;
      results_[i]->id_ = static_cast<ValueId>(i);
    }
    num_nodes_ -= part_nodes_;
    bytes_ -= part_bytes_;
    part_ = part_nodes_ = 0;
    part_bytes_ = 0;
    tagged_ = 0;
  }
  Expect(entry);
}

// It has a program, begins no cluster, and, being one, was worth it.
bool Window::MayBeHalf(const FragmentEntry& entry) const {
  return entry.state == State::kReady && entry.begins == nullptr &&
         (!entry.cluster || (entry.cluster->kept && entry.cluster->end == Cluster::End::kNone));
}

// Before `entry` is launched: where it may begin a cluster, its values are marked, so that the next fragment's inputs
// are known among them.
void Window::TagForJoin(const FragmentEntry& entry) {
  tagged_ = 0;
  const int enough = Always() ? 1 : kTimesFollowed;
  if (candidate_ || entry.times_followed < enough || entry.follower == nullptr || entry.begins_none || entry.ends_one ||
      !MayBeHalf(entry) || !ExpectsClusters()) {
    return;
  }
  tagged_ = epoch_;
  const auto tag = [this](Value* value, ValueId id) {
    if (value == nullptr) return;
    value->launched_epoch_ = epoch_;
    value->launched_id_ = id;
  };
  for (size_t i = 0; i < inputs_.size(); ++i) tag(inputs_[i].value.get(), InputId(static_cast<int>(i)));
  for (ValueId v : outputs_) tag(results_[v].get(), v);
}

// Before `right` is launched: if its values show how it is joined to what was launched before, and the two may become
// a cluster, that is a candidate.
void Window::Join(const FragmentRef& right) {
  if (tagged_ == 0 || !unit_by_content_ || outputs_.empty() || !MayBeHalf(*right)) return;
  const FragmentEntry* first = right->cluster ? right->cluster->parts.front().entry : right.get();
  if (unit_->follower != first || unit_->fragment.nodes.size() + right->fragment.nodes.size() > kMostOps ||
      MeanNanoseconds(*unit_) + MeanNanoseconds(*right) > kMostNanoseconds) {
    return;
  }
  std::vector<ValueId> wiring;
  wiring.reserve(inputs_.size());
  for (const tpu::Launch::Input& input : inputs_) {
    const bool shared = input.value && input.value->launched_epoch_ == tagged_;
    wiring.push_back(shared ? input.value->launched_id_ : Cluster::kElsewhere);
  }
  candidate_ = Cluster::Join(unit_, right, wiring);
  candidate_cuts_ = 0;
  if (candidate_->cluster->bytes > bytes_allowed_) unit_->begins_none = true;
  if (unit_->begins_none || !KeepsBusy(*candidate_->cluster)) candidate_ = nullptr;
}

// What is wanted at the candidate's end is known now: it becomes a fragment like others, and gets a program.
void Window::Form(const FragmentRef& candidate, const std::vector<ValueId>& outputs) {
  const Fragment& f = candidate->fragment;
  const FragmentRef left = candidate->cluster->left, right = candidate->cluster->right;
  bool inserted = false;
  const FragmentRef entry =
      engine_.table().FindOrInsert(f.nodes, f.operands, outputs, f.inputs, f.num_results, &inserted);
  if (entry->cluster || outputs.empty()) {
    left->begins_none = true;
    return;
  }
  entry->cluster = std::move(candidate->cluster);
  if (inserted) entry->where = candidate->where;  // a known one may be running, which reads it
  entry->last_cut = epoch_;
  left->begins = entry.get();
  right->ends_one = true;
  Metrics::Get().clusters_made.fetch_add(1, std::memory_order_relaxed);
  if (entry->state != State::kNew) return;
  entry->state.store(State::kLoading, std::memory_order_release);
  engine_.pool().SubmitLast(entry);
}

// The passage of a cluster on trial that this launch is a part of.
std::shared_ptr<Passage> Window::TimeLaunch(const FragmentRef& entry) {
  const FragmentRef timed = std::exchange(timed_, nullptr);
  const std::shared_ptr<Passage> begun = std::exchange(halves_, nullptr);
  if (timed && !begun && entry == timed->cluster->left) {
    timed_ = timed;
    timed->cluster->halves_next = false;
    return halves_ = std::make_shared<Passage>(timed->cluster->trial, false);
  }
  if (timed && begun && entry == timed->cluster->right) return begun;
  const bool tried = entry->cluster && entry->cluster->trial->verdict() == ClusterTrial::Verdict::kOpen;
  return tried ? std::make_shared<Passage>(entry->cluster->trial, true) : nullptr;
}

}  // namespace tpu
