// Division that rounds up. Included by the products and convolutions.
#pragma once

#include <cstdint>

namespace tpu::host {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t a, int64_t unit) { return CeilDiv(a, unit) * unit; }

}  // namespace tpu::host
