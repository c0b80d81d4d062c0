#include "runtime/pjrt/memory.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tpu::pjrt {
namespace {

std::string Bytes(int64_t bytes) {
  if (bytes < (1 << 20)) return absl::StrFormat("%.2f KiB", static_cast<double>(bytes) / (1 << 10));
  if (bytes < (1 << 30)) return absl::StrFormat("%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (1 << 30));
}

}  // namespace

absl::Status Memory::Take(int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (stats_.allocated_bytes + bytes > stats_.limit_bytes) {
    ++stats_.num_ooms;
    return absl::ResourceExhaustedError(absl::StrCat("TPU out of memory. Tried to allocate ", Bytes(bytes), ". ", name_,
                                                     " has a total capacity of ", Bytes(stats_.limit_bytes),
                                                     " of which ", Bytes(stats_.limit_bytes - stats_.allocated_bytes),
                                                     " is free. ", Bytes(stats_.allocated_bytes), " is allocated."));
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
  MemoryStats stats = stats_;
  stats.reserved_bytes = stats.allocated_bytes;
  stats.peak_reserved_bytes = stats.peak_allocated_bytes;
  return stats;
}

void Memory::ResetPeak() {
  std::lock_guard lock(mutex_);
  stats_.peak_allocated_bytes = stats_.allocated_bytes;
}

}  // namespace tpu::pjrt
