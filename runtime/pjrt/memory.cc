#include "runtime/pjrt/memory.h"

#include "runtime/machine.h"

namespace tpu::pjrt {

absl::Status Memory::Take(int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (stats_.allocated_bytes + bytes > stats_.allowed_bytes) {
    ++stats_.num_ooms;
    return OutOfMemory(name_, static_cast<uint64_t>(bytes), Counted());
  }
  ++stats_.num_allocs;
  ++stats_.num_system_allocs;
  stats_.allocated_bytes += bytes;
  stats_.peak_allocated_bytes = std::max(stats_.peak_allocated_bytes, stats_.allocated_bytes);
  return absl::OkStatus();
}

void Memory::Free(int64_t bytes) {
  std::lock_guard lock(mutex_);
  stats_.allocated_bytes -= bytes;
}

MemoryStats Memory::stats() const {
  std::lock_guard lock(mutex_);
  return Counted();
}

MemoryStats Memory::Counted() const {
  MemoryStats stats = stats_;
  stats.reserved_bytes = stats.allocated_bytes;
  stats.peak_reserved_bytes = stats.peak_allocated_bytes;
  return stats;
}

void Memory::ResetPeak() {
  std::lock_guard lock(mutex_);
  stats_.peak_allocated_bytes = stats_.allocated_bytes;
}

void Memory::Allow(int64_t bytes) {
  std::lock_guard lock(mutex_);
  stats_.allowed_bytes = std::clamp<int64_t>(bytes, 0, stats_.limit_bytes);
}

}  // namespace tpu::pjrt
