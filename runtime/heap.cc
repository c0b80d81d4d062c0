#include "runtime/heap.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>

namespace tpu {
namespace {

constexpr int64_t kGrowth = int64_t{1} << 30;

int64_t ResidentBytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

void TrimHeapIfGrown() {
  static std::atomic<int64_t> next{kGrowth};
  const int64_t resident = ResidentBytes();
  if (resident < next) {
    next = std::min<int64_t>(next, resident + kGrowth);
    return;
  }
  malloc_trim(0);
  next = ResidentBytes() + kGrowth;
}

}  // namespace tpu
