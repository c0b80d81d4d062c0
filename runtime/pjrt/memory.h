// What live buffers of one device take: plugins need not count, and the size given by TORCH_TPU_MEMORY is ours to keep.
//
// Shared by a device and its buffers, which may outlive it. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "runtime/device.h"

namespace tpu::pjrt {

class Memory {
 public:
  Memory(std::string name, int64_t limit_bytes) : name_(std::move(name)) {
    stats_.limit_bytes = stats_.allowed_bytes = limit_bytes;
  }

  // ResourceExhausted, with the numbers, when what is allowed would be passed.
  absl::Status Take(int64_t bytes);
  void Free(int64_t bytes);
  MemoryStats stats() const;
  void ResetPeak();
  void Allow(int64_t bytes);

 private:
  MemoryStats Counted() const;  // with mutex_ held

  const std::string name_;
  mutable std::mutex mutex_;
  MemoryStats stats_;  // guarded by mutex_
};

}  // namespace tpu::pjrt
