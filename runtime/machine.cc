#include "runtime/machine.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace tpu {
namespace {

std::string Bytes(int64_t n) {
  const double b = static_cast<double>(n);
  if (n >= int64_t{1} << 30) return absl::StrFormat("%.2f GiB", b / (1 << 30));
  if (n >= 1 << 20) return absl::StrFormat("%.2f MiB", b / (1 << 20));
  if (n >= 1 << 10) return absl::StrFormat("%.2f KiB", b / (1 << 10));
  return absl::StrCat(n, " bytes");
}

}  // namespace

std::string CpuInfo(const char* field) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(parts.first) == field) return std::string(absl::StripAsciiWhitespace(parts.second));
  }
  return "";
}

absl::Status OutOfMemory(const std::string& device, uint64_t bytes, const MemoryStats& stats) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "TPU out of memory. Tried to allocate ", Bytes(static_cast<int64_t>(std::min<uint64_t>(bytes, INT64_MAX))), ". ",
      device, " has a total capacity of ", Bytes(stats.limit_bytes), " of which ",
      Bytes(std::max<int64_t>(0, stats.limit_bytes - stats.allocated_bytes)), " is free. ",
      stats.allowed_bytes < stats.limit_bytes ? absl::StrCat(Bytes(stats.allowed_bytes), " allowed; ") : "",
      Bytes(stats.allocated_bytes), " is allocated, and ",
      Bytes(std::max<int64_t>(0, stats.reserved_bytes - stats.allocated_bytes)), " is reserved but unallocated."));
}

}  // namespace tpu
