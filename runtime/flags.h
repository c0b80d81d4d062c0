// Every environment variable of the project, declared once: name, default, meaning. The only file that calls getenv.
//
// Read at first use, then fixed. `torch_tpu.doctor` lists All().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tpu {

inline constexpr int kMostDevices = 128;  // PyTorch counts devices in 8 bits, with a sign

struct FlagInfo {
  std::string name, default_value, meaning, value;  // value: what is in force
};

struct Flags {
  int devices = 1;             // TORCH_TPU_DEVICES
  int local_ranks = 1;         // LOCAL_WORLD_SIZE: processes of a distributed program on this host
  std::string xla_flags;       // XLA_FLAGS and LIBTPU_INIT_ARGS: for XLA in a plugin
  int64_t memory_bytes = 0;    // TORCH_TPU_MEMORY: "4GiB"; 0 = the machine's
  std::string plugin;          // TORCH_TPU_PLUGIN: libtpu, cpu, cuda or a path; "host" or "": the embedded device
  std::string plugin_options;  // TORCH_TPU_PLUGIN_OPTIONS: "name=value,...", the plugin's own
  int plugin_timeout = 0;      // TORCH_TPU_PLUGIN_TIMEOUT: seconds that a plugin has to come up
  std::string cache_dir;       // TORCH_TPU_CACHE: writable directory, then read-only ones, ':' between; else the user's
  int64_t cache_bytes = 0;     // TORCH_TPU_CACHE_SIZE
  std::string instructions;    // TORCH_TPU_INSTRUCTIONS: all, or a level of x86-64
  int threads = 0;             // TORCH_TPU_THREADS: of the embedded device, 0 = cores
  int compile_threads = 0;     // TORCH_TPU_COMPILE_THREADS
  double tune_budget = 0;      // TORCH_TPU_TUNE_BUDGET: share of the time of launches that tuning may cost
  int tune_after = 0;          // TORCH_TPU_TUNE_AFTER: ms that the launches of a fragment took before it is tuned
  std::string clusters;        // TORCH_TPU_CLUSTERS: measured, always, never
  int compile_after = 2;       // TORCH_TPU_COMPILE_AFTER: launches of a fragment before it is compiled
  std::string fallback;        // TORCH_TPU_FALLBACK: "host" or "error"
  std::string mode;            // TORCH_TPU_MODE: fused, strict, debug
  std::string dump;            // TORCH_TPU_DUMP: a directory to which every compile stage is written
  int window_ops = 512;        // TORCH_TPU_WINDOW: the most operations a fragment holds
  int known_ops = 131072;      // TORCH_TPU_KNOWN_OPS: the most operations that the known fragments hold together

  static const Flags& Get();
  // Reads the environment anew (tests); everything else uses Get(). A bad value is told on stderr and the default used.
  static Flags FromEnvironment();
  static std::vector<FlagInfo> All();
};

}  // namespace tpu
