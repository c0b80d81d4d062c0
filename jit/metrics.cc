#include "jit/metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tpu {
namespace {

constexpr size_t kMaxCompileRecords = 1000;
constexpr size_t kMaxLines = 2000;

// Asked once for each structure: the answer is found by trying.
bool HasLowering(const Call& call, const CompilerBackend& backend) {
  static std::mutex mutex;
  static auto* answers = new absl::flat_hash_map<uint64_t, bool>();
  std::lock_guard<std::mutex> lock(mutex);
  const auto [it, unknown] = answers->try_emplace(call.structure_hash, false);
  if (unknown) it->second = backend.CanLower(call);
  return it->second;
}

}  // namespace

const char* NameOf(CutReason reason) {
  constexpr const char* kNames[kNumCutReasons] = {"read",          "content", "bound",  "synchronize", "data_dependent",
                                                  "stream_switch", "mode",    "memory", "collective"};
  return kNames[static_cast<int>(reason)];
}

Metrics& Metrics::Get() {
  static Metrics* metrics = new Metrics();
  return *metrics;
}

void Metrics::CountCut(CutReason reason, const std::string& where, const std::string& what, int ops) {
  cuts_by_reason_[static_cast<int>(reason)].fetch_add(1, std::memory_order_relaxed);
  std::string key = absl::StrCat(static_cast<int>(reason), "|", where, "|", what);
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = cuts_.find(key);
  if (it != cuts_.end()) {
    ++it->second.count;
    it->second.ops = ops;
  } else if (cuts_.size() < kMaxLines) {
    cuts_.emplace(std::move(key), CutRecord{reason, where, what, ops, 1});
  }
}

void Metrics::CountHostKernel(const std::string& op, const std::string& where) {
  std::lock_guard<std::mutex> lock(mutex_);
  OperatorAndLine key(op, where);
  if (host_kernels_.size() >= kMaxLines && !host_kernels_.contains(key)) key.second.clear();
  ++host_kernels_[std::move(key)];
}

void Metrics::CountTier0Kernel(const CallRef& call, const CompilerBackend& backend, const std::string& where) {
  std::lock_guard<std::mutex> lock(mutex_);
  backend_ = &backend;
  Tier0Kernel& kernel = tier0_kernels_[call->structure_hash];
  if (!kernel.call) {
    kernel.call = call;
    kernel.where = where;
  }
  ++kernel.count;
}

void Metrics::CountUncapturedGraph(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++uncaptured_graphs_[reason];
}

std::map<std::string, int64_t> Metrics::UncapturedGraphs() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return uncaptured_graphs_;
}

void Metrics::RecordCompile(CompileRecord record) {
  std::lock_guard<std::mutex> lock(mutex_);
  compiles_.push_back(std::move(record));
  if (compiles_.size() > kMaxCompileRecords) compiles_.pop_front();
}

const Metrics::Counter Metrics::kCounters[] = {
    {"recorded_ops", &Metrics::recorded_ops},
    {"dropped_ops", &Metrics::dropped_ops},
    {"fragments", &Metrics::fragments_launched},
    {"fragments_known", &Metrics::fragments_known},
    {"fragments_distinct", &Metrics::fragments_distinct},
    {"fragment_families", &Metrics::fragment_families},
    {"fragments_given_up", &Metrics::fragments_given_up},
    {"signatures_given_up", &Metrics::signatures_given_up},
    {"launches_tier0", &Metrics::launches_tier0},
    {"launches_tier1", &Metrics::launches_tier1},
    {"compiles", &Metrics::compiles},
    {"compile_failures", &Metrics::compile_failures},
    {"compile_ms", &Metrics::compile_us, 1000},
    {"compile_wait_ms", &Metrics::compile_wait_us, 1000},
    {"candidates_compiled", &Metrics::candidates_compiled},
    {"candidates_measured", &Metrics::candidates_measured},
    {"candidates_adopted", &Metrics::candidates_adopted},
    {"tune_ms", &Metrics::tune_us, 1000},
    {"sizes_served", &Metrics::sizes_served},
    {"cache_hits", &Metrics::memory_cache_hits},
    {"disk_cache_hits", &Metrics::disk_cache_hits},
    {"disk_cache_misses", &Metrics::disk_cache_misses},
    {"disk_cache_errors", &Metrics::disk_cache_errors},
    {"clusters_made", &Metrics::clusters_made},
    {"clusters_kept", &Metrics::clusters_kept},
    {"clusters_dissolved", &Metrics::clusters_dissolved},
    {"cluster_wrong_guesses", &Metrics::cluster_wrong_guesses},
    {"launches_clusters", &Metrics::launches_clusters},
    {"reads", &Metrics::reads},
    {"inferences", &Metrics::inferences},
    {"graph_captures", &Metrics::graph_captures},
    {"graph_replays", &Metrics::graph_replays},
    {"graph_calls", &Metrics::graph_calls},
};

std::map<std::string, int64_t> Metrics::Counters() const {
  int64_t host_kernel_calls = 0, tier0_kernel_calls = 0, uncaptured_calls = 0;
  for (const HostKernelRecord& kernel : HostKernels()) host_kernel_calls += kernel.count;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [structure, kernel] : tier0_kernels_) tier0_kernel_calls += kernel.count;
    for (const auto& [reason, count] : uncaptured_graphs_) uncaptured_calls += count;
  }
  std::map<std::string, int64_t> c = {
      {"host_kernel_calls", host_kernel_calls},
      {"tier0_kernel_calls", tier0_kernel_calls},
      {"graph_calls_uncaptured", uncaptured_calls},
  };
  for (const Counter& counter : kCounters) c[counter.name] = this->*counter.value / counter.unit;
  for (int i = 0; i < kNumCutReasons; ++i) {
    c[absl::StrCat("cuts_", NameOf(static_cast<CutReason>(i)))] = cuts_by_reason_[i];
  }
  return c;
}

std::vector<HostKernelRecord> Metrics::HostKernels() const {
  std::map<OperatorAndLine, int64_t> counts;
  std::vector<Tier0Kernel> tier0;
  const CompilerBackend* backend;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    backend = backend_;
    counts = host_kernels_;
    for (const auto& [structure, kernel] : tier0_kernels_) tier0.push_back(kernel);
  }
  for (const Tier0Kernel& kernel : tier0) {
    if (!HasLowering(*kernel.call, *backend)) counts[{kernel.call->op, kernel.where}] += kernel.count;
  }
  std::vector<HostKernelRecord> kernels;
  for (const auto& [key, count] : counts) kernels.push_back({key.first, key.second, count});
  return kernels;
}

std::vector<CutRecord> Metrics::Cuts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<CutRecord> all;
  all.reserve(cuts_.size());
  for (const auto& [key, record] : cuts_) all.push_back(record);
  std::stable_sort(all.begin(), all.end(), [](const CutRecord& a, const CutRecord& b) { return a.count > b.count; });
  return all;
}

std::vector<CompileRecord> Metrics::Compiles() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {compiles_.begin(), compiles_.end()};
}

void Metrics::Reset() {
  for (const Counter& counter : kCounters) this->*counter.value = 0;
  for (auto& c : cuts_by_reason_) c = 0;
  std::lock_guard<std::mutex> lock(mutex_);
  cuts_.clear();
  host_kernels_.clear();
  uncaptured_graphs_.clear();
  tier0_kernels_.clear();
  compiles_.clear();
}

}  // namespace tpu
