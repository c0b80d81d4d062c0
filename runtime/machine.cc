#include "runtime/machine.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/flags.h"

namespace tpu {
namespace {

std::string Bytes(int64_t n) {
  const double b = static_cast<double>(n);
  if (n >= int64_t{1} << 30) return absl::StrFormat("%.2f GiB", b / (1 << 30));
  if (n >= 1 << 20) return absl::StrFormat("%.2f MiB", b / (1 << 20));
  if (n >= 1 << 10) return absl::StrFormat("%.2f KiB", b / (1 << 10));
  return absl::StrCat(n, " bytes");
}

// The numbers in a file, where it holds two or one; "max" and what isn't there: none.
std::vector<int64_t> NumbersIn(const std::filesystem::path& file) {
  std::vector<int64_t> numbers;
  std::ifstream in(file);
  for (int64_t n = 0; in >> n;) numbers.push_back(n);
  return numbers;
}

void Limit(const std::filesystem::path& group, GroupLimits& limits) {
  const auto at_most = [&](const std::vector<int64_t>& quota, const std::vector<int64_t>& period) {
    if (quota.empty() || period.empty() || quota[0] <= 0 || period.back() <= 0) return;
    limits.cores = std::min(limits.cores, static_cast<double>(quota[0]) / static_cast<double>(period.back()));
  };
  const std::vector<int64_t> both = NumbersIn(group / "cpu.max");
  at_most(both, both);
  at_most(NumbersIn(group / "cpu.cfs_quota_us"), NumbersIn(group / "cpu.cfs_period_us"));
  for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
    for (int64_t bytes : NumbersIn(group / name)) {
      if (bytes > 0) limits.bytes = std::min(limits.bytes, bytes);
    }
  }
}

// The matrix unit's registers are a process's to ask for.
bool AskForTiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

Instructions InstructionsUpTo(const std::string& most) {
  const bool v2 = __builtin_cpu_supports("x86-64-v2"), v3 = __builtin_cpu_supports("x86-64-v3"),
             v4 = __builtin_cpu_supports("x86-64-v4");
  if (most == "x86-64-v2" && v2) return {.level = most};
  if (most == "x86-64-v3" && v3) return {.f16c = true, .avx2 = true, .level = most};
  if (most == "x86-64-v4" && v4) return {.f16c = true, .avx2 = true, .avx512 = true, .level = most};
  const bool bf16 = v4 && __builtin_cpu_supports("avx512bf16");
  const bool tiles = bf16 && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16");
  return {.f16c = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c"),
          .avx2 = v3,
          .avx512 = v4,
          .avx512_bf16 = bf16,
          .amx_bf16 = tiles && AskForTiles()};
}

const Instructions& UsableInstructions() {
  static const Instructions usable = InstructionsUpTo(Flags::Get().instructions);
  return usable;
}

int64_t SecondLevelCache() {
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : int64_t{512} << 10;
}

GroupLimits FindGroupLimits(const std::string& mounted, const std::string& groups) {
  GroupLimits limits;
  std::ifstream in(groups);
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));  // number, controllers, path
    if (parts.size() != 3) continue;
    for (const std::string& controller : std::vector<std::string>(absl::StrSplit(parts[1], ','))) {
      // A container may see its own group as the uppermost, by a path from outside: then only that is found.
      for (std::filesystem::path path = parts[2];; path = path.parent_path()) {
        Limit(std::filesystem::path(mounted) / controller / path.relative_path(), limits);
        if (!path.has_relative_path()) break;
      }
    }
  }
  return limits;
}

std::string CpuInfo(const char* field) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(parts.first) == field) return std::string(absl::StripAsciiWhitespace(parts.second));
  }
  return "";
}

int UsableCores() {
  static const int usable = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
    const int cores = known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
    return std::max(1, static_cast<int>(std::min<double>(cores, std::ceil(FindGroupLimits().cores))));
  }();
  return usable;
}

int64_t UsableMemory() {
  const int64_t machine = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return std::min(machine, FindGroupLimits().bytes);
}

int64_t MostMappings() {
  int64_t most = 65530;  // the kernel's default
  std::ifstream("/proc/sys/vm/max_map_count") >> most;
  return most;
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
