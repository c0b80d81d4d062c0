// 16-bit floats: many at a time are what one by one is.
#include "runtime/host/narrow_float.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

namespace tpu::host {
namespace {

TEST(NarrowFloat, ManyAreRoundedAsOneIs) {
  // Around every number of 16 bits: ties, what overflows to infinity, denormals, NaNs that would overflow.
  std::vector<float> numbers;
  for (uint32_t high = 0; high < (1u << 16); ++high) {
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      numbers.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  std::vector<BFloat16> narrow(numbers.size());
  for (size_t pieces : {numbers.size(), size_t{3}, size_t{8}, size_t{16}, size_t{37}}) {
    for (size_t first = 0; first < numbers.size(); first += pieces) {
      Narrow(numbers.data() + first, std::min(pieces, numbers.size() - first), narrow.data() + first);
    }
    for (size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_EQ(narrow[i].bits, BFloat16(numbers[i]).bits) << std::hex << std::bit_cast<uint32_t>(numbers[i]);
    }
    std::fill(narrow.begin(), narrow.end(), BFloat16(0.0f));
  }
  Narrow(numbers.data(), numbers.size(), narrow.data());
  std::vector<float> wide(numbers.size());
  Widen(narrow.data(), narrow.size(), wide.data());
  for (size_t i = 0; i < wide.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), static_cast<uint32_t>(narrow[i].bits) << 16) << i;
  }
}

}  // namespace
}  // namespace tpu::host
