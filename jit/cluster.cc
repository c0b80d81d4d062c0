#include "jit/cluster.h"

#include <algorithm>
#include <utility>

#include "jit/launch_times.h"

namespace tpu {
namespace {

constexpr size_t kPassages = 9;  // of each kind before the verdict
// What recording an operation takes the host, at most.
constexpr int64_t kRecordingNanoseconds = 4000;

// The parts of `half`, whose values have in the whole the numbers that `number` gives.
template <typename Number>
void AddParts(const FragmentRef& half, size_t nodes_before, ValueId results_before, const Number& number,
              std::vector<Cluster::Part>& parts) {
  if (!half->cluster) {
    Cluster::Part part{half.get(), nodes_before + half->fragment.nodes.size(), results_before, {}};
    for (size_t i = 0; i < half->fragment.inputs.size(); ++i)
      part.inputs.push_back(number(InputId(static_cast<int>(i))));
    parts.push_back(std::move(part));
    return;
  }
  for (const Cluster::Part& of_half : half->cluster->parts) {
    Cluster::Part part{of_half.entry, nodes_before + of_half.nodes_end, results_before + of_half.results_begin, {}};
    for (ValueId v : of_half.inputs) part.inputs.push_back(number(v));
    parts.push_back(std::move(part));
  }
}

}  // namespace

void ClusterTrial::Add(bool whole, int64_t nanoseconds) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (verdict() != Verdict::kOpen) return;
  samples_[whole].push_back(nanoseconds);
  if (std::min(samples_[0].size(), samples_[1].size()) < kPassages) return;
  const bool faster = LaunchTimes(samples_[true]).FasterThan(LaunchTimes(samples_[false]));
  verdict_ = faster ? Verdict::kFaster : Verdict::kNotFaster;
}

int64_t ClusterTrial::nanoseconds(bool whole) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return LaunchTimes(samples_[whole]).median();
}

void Passage::Add(int64_t nanoseconds) {
  nanoseconds_ += nanoseconds;
  if (--left_ == 0) trial_->Add(whole_, nanoseconds_);
}

FragmentRef Cluster::Join(const FragmentRef& left, const FragmentRef& right, const std::vector<ValueId>& wiring) {
  FragmentRef whole = MakeRef<FragmentEntry>(static_cast<int>(left->executables.size()));
  whole->cluster = std::make_unique<Cluster>();
  Cluster& cluster = *whole->cluster;
  Fragment& f = whole->fragment;
  const Fragment &a = left->fragment, &b = right->fragment;
  f.nodes = a.nodes;
  f.operands = a.operands;
  f.inputs = a.inputs;
  f.num_results = a.num_results + b.num_results;
  std::vector<ValueId> inputs_of_right = wiring;
  for (size_t i = 0; i < wiring.size(); ++i) {
    if (wiring[i] != kElsewhere) continue;
    inputs_of_right[i] = InputId(static_cast<int>(f.inputs.size()));
    f.inputs.push_back(b.inputs[i]);
  }
  const auto same = [](ValueId v) { return v; };
  const auto shifted = [&](ValueId v) {
    return IsInput(v) ? inputs_of_right[InputIndex(v)] : v + static_cast<ValueId>(a.num_results);
  };
  for (const Node& node : b.nodes) {
    f.nodes.push_back({node.call, static_cast<uint32_t>(node.operands_begin + a.operands.size()),
                       node.results_begin + a.num_results});
  }
  for (ValueId v : b.operands) f.operands.push_back(shifted(v));
  whole->where = left->where;
  whole->where.insert(whole->where.end(), right->where.begin(), right->where.end());

  cluster.left = left;
  cluster.right = right;
  AddParts(left, 0, 0, same, cluster.parts);
  AddParts(right, a.nodes.size(), static_cast<ValueId>(a.num_results), shifted, cluster.parts);
  for (const Node& node : f.nodes) cluster.bytes += node.call->result_bytes;
  size_t most = 0;
  int64_t nanoseconds = 0, runs = 0;
  for (const Part& part : cluster.parts) {
    most = std::max(most, part.entry->fragment.nodes.size());
    nanoseconds += part.entry->profile[1].nanoseconds;
    runs += part.entry->profile[1].runs;
  }
  // The first of those queued has begun, and may be about to end.
  cluster.queued = 2 + most * kRecordingNanoseconds * runs / std::max<int64_t>(1, nanoseconds);
  return whole;
}

}  // namespace tpu
