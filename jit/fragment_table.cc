#include "jit/fragment_table.h"

#include <algorithm>
#include <iterator>

#include "jit/cluster.h"
#include "jit/family.h"
#include "jit/metrics.h"
#include "runtime/hash.h"

namespace tpu {
namespace {

bool Same(const Fragment& f, absl::Span<const Node> nodes, absl::Span<const ValueId> operands,
          absl::Span<const ValueId> outputs) {
  if (f.nodes.size() != nodes.size() || absl::MakeConstSpan(f.operands) != operands ||
      absl::MakeConstSpan(f.outputs) != outputs) {
    return false;
  }
  return std::equal(nodes.begin(), nodes.end(), f.nodes.begin(),
                    [](const Node& a, const Node& b) { return a.call == b.call; });
}

// Marks what wanted outputs need, and when each result is used last.
void Analyse(FragmentEntry& entry) {
  const Fragment& f = entry.fragment;
  const int n = static_cast<int>(f.nodes.size());
  entry.live.assign(n, false);
  entry.last_use.assign(f.num_results, -1);
  entry.input_last_use.assign(f.inputs.size(), -1);
  std::vector<bool> needed(f.num_results, false);
  for (ValueId v : f.outputs) needed[v] = true;
  for (ValueId v : f.outputs) entry.last_use[v] = n;
  for (int i = n - 1; i >= 0; --i) {
    const Node& node = f.nodes[i];
    for (size_t r = 0; r < node.call->results.size(); ++r) {
      if (needed[node.results_begin + r]) entry.live[i] = true;
    }
    if (!entry.live[i]) continue;
    ++entry.live_ops;
    for (ValueId v : f.OperandsOf(node)) {
      int32_t& last = IsInput(v) ? entry.input_last_use[InputIndex(v)] : entry.last_use[v];
      last = std::max(last, i);
      if (!IsInput(v)) needed[v] = true;
    }
  }
}

}  // namespace

FragmentEntry::FragmentEntry(int devices) : executables(devices), family_version_(devices), own_(devices) {}

FragmentEntry::~FragmentEntry() {
  for (auto& e : executables) delete e.load();
}

Executable* FragmentEntry::ExecutableFor(int device) {
  Executable* executable = executables[device].load(std::memory_order_acquire);
  if (!family) return executable;
  const uint32_t version = family->version();
  const bool asked = family_version_[device].load(std::memory_order_relaxed) == version;
  if (executable != nullptr && (asked || state.load(std::memory_order_acquire) == State::kReady)) return executable;
  std::unique_ptr<Executable> of_family = family->At(fragment, device);
  if (!of_family) {
    if (!family->wanted()) left_out.store(true, std::memory_order_relaxed);
    return executable;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  Executable* const before = executables[device].load(std::memory_order_relaxed);
  if (own_[device]) return before;
  executables[device].store(of_family.get(), std::memory_order_release);
  family_version_[device].store(version, std::memory_order_relaxed);
  left_out.store(false, std::memory_order_relaxed);
  if (before == nullptr) {
    Metrics::Get().sizes_served.fetch_add(1, std::memory_order_relaxed);
  } else {
    replaced_.emplace_back(before);
  }
  return of_family.release();
}

void FragmentEntry::Install(int device, std::unique_ptr<Executable> executable) {
  std::lock_guard<std::mutex> lock(mutex_);
  own_[device] = true;
  Executable* const before = executables[device].exchange(executable.release(), std::memory_order_acq_rel);
  if (before != nullptr) replaced_.emplace_back(before);
}

std::vector<KernelTime> FragmentEntry::KernelTimes() const {
  std::vector<KernelTime> sum;
  for (const std::atomic<Executable*>& device : executables) {
    const Executable* executable = device.load(std::memory_order_acquire);
    if (executable == nullptr) continue;
    for (KernelTime& one : executable->kernel_times()) {
      const auto known =
          std::find_if(sum.begin(), sum.end(), [&](const KernelTime& k) { return k.label == one.label; });
      if (known == sum.end()) {
        sum.push_back(std::move(one));
      } else {
        known->runs += one.runs;
        known->nanoseconds += one.nanoseconds;
      }
    }
  }
  return sum;
}

std::string FragmentEntry::FirstLine() const {
  const auto known = std::find_if(where.begin(), where.end(), [](const std::string& line) { return !line.empty(); });
  return known == where.end() ? "" : *known;
}

void FragmentEntry::NoteSuccessor(FragmentEntry* next) {
  auto it = std::find(successors.begin(), successors.end(), next);
  if (it == successors.end()) --it;  // the one not seen for longest goes
  std::rotate(successors.begin(), it, it + 1);
  successors[0] = next;
}

void FragmentEntry::NoteFollower(const FragmentEntry* next) {
  times_followed = follower == next ? times_followed + 1 : 1;
  follower = next;
}

void FragmentEntry::Forget(const absl::flat_hash_set<const FragmentEntry*>& gone) {
  const auto end = std::remove_if(successors.begin(), successors.end(),
                                  [&](const FragmentEntry* successor) { return gone.contains(successor); });
  std::fill(end, successors.end(), nullptr);
  if (gone.contains(begins)) begins = nullptr;
  if (gone.contains(follower)) follower = nullptr;
}

FragmentRef FragmentTable::FindOrInsert(absl::Span<const Node> nodes, absl::Span<const ValueId> operands,
                                        absl::Span<const ValueId> outputs, absl::Span<const OperandType> inputs,
                                        uint32_t num_results, bool* inserted) {
  uint64_t hash = 0;
  for (const Node& node : nodes) hash = HashMix(hash, reinterpret_cast<uintptr_t>(node.call.get()));
  for (ValueId v : operands) hash = HashMix(hash, static_cast<uint32_t>(v));
  for (ValueId v : outputs) hash = HashMix(hash, static_cast<uint32_t>(v));
  auto& bucket = entries_[hash];
  for (const FragmentRef& entry : bucket) {
    if (Same(entry->fragment, nodes, operands, outputs)) {
      *inserted = false;
      return entry;
    }
  }
  auto entry = MakeRef<FragmentEntry>(devices_);
  Fragment& f = entry->fragment;
  f.nodes.assign(nodes.begin(), nodes.end());
  f.operands.assign(operands.begin(), operands.end());
  f.outputs.assign(outputs.begin(), outputs.end());
  f.inputs.assign(inputs.begin(), inputs.end());
  f.num_results = num_results;
  Analyse(*entry);
  *inserted = true;
  bucket.push_back(entry);
  ops_.now += nodes.size();
  ++fragments_.now;
  return entry;
}

std::vector<FragmentRef> FragmentTable::All() const {
  std::vector<FragmentRef> all;
  for (const auto& [hash, bucket] : entries_) all.insert(all.end(), bucket.begin(), bucket.end());
  return all;
}

std::vector<FragmentRef> FragmentTable::TakeSurplus() {
  std::vector<FragmentRef> surplus;
  if (ops_.now <= ops_.room && fragments_.now <= fragments_.room) return surplus;
  std::vector<const FragmentEntry*> latest_first;
  for (const auto& [hash, bucket] : entries_) {
    for (const FragmentRef& entry : bucket) latest_first.push_back(entry.get());
  }
  std::sort(latest_first.begin(), latest_first.end(),
            [](const FragmentEntry* a, const FragmentEntry* b) { return a->last_cut > b->last_cut; });
  absl::flat_hash_set<const FragmentEntry*> gone;
  ops_.now = fragments_.now = 0;
  for (const FragmentEntry* entry : latest_first) {
    const size_t ops = entry->fragment.nodes.size();
    // Holders get their entry under the recording lock: one that has none gets none meanwhile.
    if ((ops_.Holds(ops) && fragments_.Holds(1)) || entry->ref_count() > 1) {
      ops_.now += ops;
      ++fragments_.now;
    } else {
      gone.insert(entry);
    }
  }
  ops_.MakeRoom();
  fragments_.MakeRoom();
  absl::erase_if(entries_, [&](auto& item) {
    std::vector<FragmentRef>& bucket = item.second;
    const auto end = std::partition(bucket.begin(), bucket.end(),
                                    [&](const FragmentRef& entry) { return !gone.contains(entry.get()); });
    surplus.insert(surplus.end(), std::make_move_iterator(end), std::make_move_iterator(bucket.end()));
    bucket.erase(end, bucket.end());
    for (const FragmentRef& entry : bucket) entry->Forget(gone);
    return bucket.empty();
  });
  return surplus;
}

}  // namespace tpu
