// What the calling thread has worked, in nanoseconds: not the time that it waited for a core.
#pragma once

#include <cstdint>
#include <ctime>

namespace tpu {

inline int64_t ThreadNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace tpu
