// What compiled draws (compiler/aten/random.cc) and the host's (dispatcher/host_random.cc) share, so that both give the
// same numbers.
#pragma once

#include <cstdint>

#include "runtime/dtype.h"

namespace tpu {

// Of a 32-bit word, as many as the result holds, so that rounding never reaches 1.
constexpr int UniformBits(DType result) { return result == DType::kBFloat16 ? 8 : result == DType::kFloat16 ? 11 : 24; }

// What stands for an exponential number of 0, by which nothing can be divided: half of the least other, or f16's least.
constexpr double LeastExponential(DType result) {
  return result == DType::kFloat64 ? 0x1p-54 : result == DType::kFloat16 ? 0x1p-24 : 0x1p-25;
}

// One past the largest integer that `result`, a real type, is filled with: every value of an integer type, or every
// integer that a float type holds exactly.
constexpr int64_t IntegersEnd(DType result) {
  constexpr int kBits[] = {1, 8, 7, 15, 31, 63, 16, 32, 63, 11, 8, 24, 53};
  const int bits = kBits[static_cast<int>(result)];
  return bits == 63 ? INT64_MAX : (int64_t{1} << bits) + IsFloat(result);
}

// The greatest probability in whole numbers, whose sums are exact in every order, and for the most categories there
// are, 2^24, below 2^63.
constexpr double kWholeProbability = 0x1p38;

}  // namespace tpu
