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

// ResourceExhausted in torch.cuda's words: `bytes` more did not fit `device` ("tpu:0"), which holds what `stats` say.
absl::Status OutOfMemory(const std::string& device, uint64_t bytes, const MemoryStats& stats);

}  // namespace tpu
