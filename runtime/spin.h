// Waiting without sleeping, for waits that are expected to be shorter than a sleep and a wake-up (5-50 us each).
//
// Used by streams and by the collectives' transports. Header only; any thread.
#pragma once

#include <chrono>
#include <thread>

namespace tpu {

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Spins until `ready` or the time is up; says which.
template <typename Ready>
bool SpinFor(std::chrono::nanoseconds limit, const Ready& ready) {
  if (ready()) return true;
  const auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace tpu
