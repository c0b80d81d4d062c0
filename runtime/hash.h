// The one mixing step of hashes inside a process (interned layouts, signatures, fragments): fast, not stable across
// versions. Keys on disk are XXH3's (jit/compile_pool.cc). Any thread.
#pragma once

#include <cstdint>

namespace tpu {

// `h` so far and the next word `x`: a 64 x 64 -> 128 bit product, its halves folded.
inline uint64_t HashMix(uint64_t h, uint64_t x) {
  const __uint128_t p = static_cast<__uint128_t>(h ^ x) * 0x9E3779B97F4A7C15ull;
  return static_cast<uint64_t>(p) ^ static_cast<uint64_t>(p >> 64);
}

}  // namespace tpu
