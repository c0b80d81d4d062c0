// 16-bit floats as the host's own code reads and writes them: _Float16 of the compiler and bfloat16.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tpu::host {

struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  // To nearest, ties to even; a NaN keeps its sign and becomes quiet.
  explicit BFloat16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    bits =
        f != f ? static_cast<uint16_t>((u >> 16) | 0x40) : static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// `count` of them, by the processor's own conversions where it has them, or its vectors: the compiler's are calls, one
// for each, of _Float16.
void Widen(const _Float16* from, size_t count, float* to);
void Narrow(const float* from, size_t count, _Float16* to);
void Widen(const BFloat16* from, size_t count, float* to);
void Narrow(const float* from, size_t count, BFloat16* to);

}  // namespace tpu::host
