// What happened, counted: the numbers behind torch.tpu.metrics() and torch.tpu.explain().
//
// Counters are relaxed atomics bumped on hot paths; the named tables take a mutex and are touched on cuts, compiles and
// host kernels only. One per process. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/backend.h"
#include "compiler/fragment.h"

namespace tpu {

// Why a window was cut.
enum class CutReason : uint8_t {
  kRead,
  kContent,
  kBound,
  kSynchronize,
  kDataDependent,
  kStreamSwitch,
  kMode,
  kMemory,
  kCollective
};
inline constexpr int kNumCutReasons = 9;
const char* NameOf(CutReason reason);

struct CutRecord {
  CutReason reason;
  std::string where;  // the user's file:line, or ""
  std::string what;   // the operator that asked
  int ops = 0;
  uint64_t count = 1;  // equal cuts are counted, not repeated
};

struct HostKernelRecord {
  std::string op;
  std::string where;  // the user's file:line, or ""
  int64_t count = 0;
};

struct CompileRecord {
  std::string key;
  std::string summary;  // first and last operators
  std::string outcome;  // "compiled", "disk", or the error
  double milliseconds = 0;
  int ops = 0;
};

class Metrics {
 public:
  static Metrics& Get();

  std::atomic<int64_t> recorded_ops{0}, fragments_launched{0}, fragments_known{0}, fragments_distinct{0};
  std::atomic<int64_t> fragment_families{0};  // found for them: what differs in more than sizes
  std::atomic<int64_t> fragments_given_up{0}, signatures_given_up{0};
  std::atomic<int64_t> dropped_ops{0};  // dead at the cut
  std::atomic<int64_t> launches_tier0{0}, launches_tier1{0};
  std::atomic<int64_t> compiles{0}, compile_failures{0}, compile_us{0};
  // Compiling on threads that programs wait for: the users' and the streams'. Nobody blocks on the pool's own, but by
  // WaitForCompiles.
  std::atomic<int64_t> compile_wait_us{0};
  // Tier 2 (tuning.h): candidates, and what compiling and running them has cost.
  std::atomic<int64_t> candidates_compiled{0}, candidates_measured{0}, candidates_adopted{0}, tune_us{0};
  std::atomic<int64_t> memory_cache_hits{0}, disk_cache_hits{0}, disk_cache_misses{0}, disk_cache_errors{0};
  // Clusters (cluster.h), and windows that left one for its parts.
  std::atomic<int64_t> clusters_made{0}, clusters_kept{0}, clusters_dissolved{0}, cluster_wrong_guesses{0};
  std::atomic<int64_t> launches_clusters{0};
  std::atomic<int64_t> sizes_served{0};  // fragments that run by a program for many sizes
  std::atomic<int64_t> reads{0}, inferences{0};
  // Graphs of torch.compile: captures (one for each kind of inputs) and calls.
  std::atomic<int64_t> graph_captures{0}, graph_calls{0};
  std::atomic<int64_t> graph_replays{0};  // of torch.accelerator.Graph

  void CountCut(CutReason reason, const std::string& where, const std::string& what, int ops);
  // A host kernel that ran because the operator has no lowering.
  void CountHostKernel(const std::string& op, const std::string& where);
  // A ready kernel that ran at tier 0, whether or not the call has a lowering: that is asked when somebody looks.
  void CountTier0Kernel(const CallRef& call, const CompilerBackend& backend, const std::string& where);
  // A call of a compiled graph that ran operation by operation, and why.
  void CountUncapturedGraph(const std::string& reason);
  void RecordCompile(CompileRecord record);

  std::map<std::string, int64_t> Counters() const;    // everything above by name
  std::vector<HostKernelRecord> HostKernels() const;  // runs for want of a lowering, at either tier: by operator, line
  std::map<std::string, int64_t> UncapturedGraphs() const;
  std::vector<CutRecord> Cuts() const;          // distinct (reason, where, what), most frequent first
  std::vector<CompileRecord> Compiles() const;  // the latest 1000
  void Reset();

 private:
  mutable std::mutex mutex_;
  std::array<std::atomic<int64_t>, kNumCutReasons> cuts_by_reason_{};
  std::map<std::string, CutRecord> cuts_;
  using OperatorAndLine = std::pair<std::string, std::string>;
  std::map<OperatorAndLine, int64_t> host_kernels_;
  std::map<std::string, int64_t> uncaptured_graphs_;
  struct Tier0Kernel {
    CallRef call;       // one of its structure
    std::string where;  // and its line
    int64_t count = 0;
  };
  absl::flat_hash_map<uint64_t, Tier0Kernel> tier0_kernels_;
  const CompilerBackend* backend_ = nullptr;  // of these kernels
  std::deque<CompileRecord> compiles_;

  struct Counter {
    const char* name;
    std::atomic<int64_t> Metrics::* value;
    int64_t unit = 1;
  };
  static const Counter kCounters[];
};

}  // namespace tpu
