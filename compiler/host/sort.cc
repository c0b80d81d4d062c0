// Sorting one line of keys, called by generated kernels.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "compiler/host/special_kernels.h"
#include "runtime/dtype.h"

namespace {

// Keys as numbers whose order is the wanted one: NaN is the largest.
template <typename T>
bool Less(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(b)) return !std::isnan(a);
  }
  return a < b;
}

template <typename T>
T Same(T x) {
  return x;
}
float FromBFloat16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
float FromFloat16(uint16_t x) {
  uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16, exponent = (x >> 10) & 31, mantissa = x & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                  : std::ldexp(static_cast<float>(mantissa + 1024), static_cast<int>(exponent) - 25);
  return sign != 0 ? -magnitude : magnitude;
}

template <typename T, typename ToKey>
void Sort(const T* keys, T* values, int64_t* indices, int64_t count, int64_t stride, bool descending, ToKey to_key) {
  using Key = decltype(to_key(T()));
  struct Entry {
    Key key;
    T value;
    int64_t index;
  };
  std::vector<Entry> line(count);
  for (int64_t i = 0; i < count; ++i) line[i] = {to_key(keys[i * stride]), keys[i * stride], i};
  if (descending) {
    std::stable_sort(line.begin(), line.end(), [](const Entry& a, const Entry& b) { return Less(b.key, a.key); });
  } else {
    std::stable_sort(line.begin(), line.end(), [](const Entry& a, const Entry& b) { return Less(a.key, b.key); });
  }
  for (int64_t i = 0; i < count; ++i) {
    values[i * stride] = line[i].value;
    indices[i * stride] = line[i].index;
  }
}

}  // namespace

extern "C" void tpu_host_sort(int64_t dtype, const void* keys, void* values, int64_t* indices, int64_t count,
                              int64_t stride, int64_t descending) {
  auto sort = [&]<typename T>(T, auto to_key) {
    Sort(static_cast<const T*>(keys), static_cast<T*>(values), indices, count, stride, descending != 0, to_key);
  };
  using tpu::DType;
  switch (static_cast<DType>(dtype)) {
    case DType::kBool:
    case DType::kUInt8:
      return sort(uint8_t{}, Same<uint8_t>);
    case DType::kInt8:
      return sort(int8_t{}, Same<int8_t>);
    case DType::kInt16:
      return sort(int16_t{}, Same<int16_t>);
    case DType::kInt32:
      return sort(int32_t{}, Same<int32_t>);
    case DType::kInt64:
      return sort(int64_t{}, Same<int64_t>);
    case DType::kUInt16:
      return sort(uint16_t{}, Same<uint16_t>);
    case DType::kUInt32:
      return sort(uint32_t{}, Same<uint32_t>);
    case DType::kUInt64:
      return sort(uint64_t{}, Same<uint64_t>);
    case DType::kFloat16:
      return sort(uint16_t{}, FromFloat16);
    case DType::kBFloat16:
      return sort(uint16_t{}, FromBFloat16);
    case DType::kFloat32:
      return sort(float{}, Same<float>);
    case DType::kFloat64:
      return sort(double{}, Same<double>);
    default:
      return;  // has no order; the dialect's sort takes none of these
  }
}
