// What devices say of the machine and of its memory, in one way.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/device.h"

namespace tpu {

// A field of /proc/cpuinfo, such as "model name" or "flags"; "" where there is none.
std::string CpuInfo(const char* field);

// ResourceExhausted in torch.cuda's words: `bytes` more did not fit `device` ("tpu:0"), which holds what `stats` say.
absl::Status OutOfMemory(const std::string& device, uint64_t bytes, const MemoryStats& stats);

}  // namespace tpu
