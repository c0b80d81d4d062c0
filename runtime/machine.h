// What the machine is and what of it the process may use; what devices say of memory, in one way.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "runtime/device.h"

namespace tpu {

// A field of /proc/cpuinfo, such as "model name" or "flags"; "" where there is none.
std::string CpuInfo(const char* field);

// What code may use of the processor's instructions: the one place that asks. Functions whose target attribute names
// more than the build's are called where the member that stands for it is true.
struct Instructions {
  bool f16c = false;    // with AVX
  bool avx2 = false;    // with FMA and F16C: the level x86-64-v3
  bool avx512 = false;  // F, BW, CD, DQ and VL: x86-64-v4
  bool avx512_bf16 = false;
  bool amx_bf16 = false;  // which the system gives to processes that ask
  std::string level;      // all there are of it, and nothing else; "": whatever the processor has
};
// The processor's, up to `most`, a value of TORCH_TPU_INSTRUCTIONS; a level that it doesn't reach takes nothing away.
Instructions InstructionsUpTo(const std::string& most);
// The same up to TORCH_TPU_INSTRUCTIONS, found once.
const Instructions& UsableInstructions();

// Bytes of a core's second level cache; 512 KiB where nothing says.
int64_t SecondLevelCache();

// What the process's control groups (version 1 or 2), its own and those around it, let it use of the machine.
struct GroupLimits {
  double cores = std::numeric_limits<double>::infinity();  // by its share of time: containers' --cpus
  int64_t bytes = std::numeric_limits<int64_t>::max();
};
// `mounted`: where control groups are; `groups`: the file that says which are the process's.
GroupLimits FindGroupLimits(const std::string& mounted = "/sys/fs/cgroup",
                            const std::string& groups = "/proc/self/cgroup");

// Those that the process may run on, or as many as its control groups leave it the time of.
int UsableCores();

// The machine's, or what the process's control groups leave it.
int64_t UsableMemory();

// How many mappings of memory the kernel gives a process: vm.max_map_count.
int64_t MostMappings();

// ResourceExhausted in torch.cuda's words: `bytes` more did not fit `device` ("tpu:0"), which holds what `stats` say.
absl::Status OutOfMemory(const std::string& device, uint64_t bytes, const MemoryStats& stats);

}  // namespace tpu
