#include "collectives/reduce.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <type_traits>

#include "runtime/host/narrow_float.h"

namespace tpu {
namespace {

using host::BFloat16;

constexpr int64_t kBlock = 1024;  // elements accumulated at a time: they stay in the first-level cache

// The type that elements of T are accumulated in.
template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, _Float16> || std::is_same_v<T, BFloat16>, float, T>;

template <typename T, typename A>
void Load(const T* in, A* out, int64_t n) {
  if constexpr (std::is_same_v<T, A>) {
    std::memcpy(out, in, n * sizeof(T));
  } else if constexpr (std::is_same_v<T, _Float16>) {
    host::Widen(in, static_cast<size_t>(n), out);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<A>(in[i]);
  }
}

template <typename T, typename A>
void Store(const A* in, T* out, int64_t n) {
  if constexpr (std::is_same_v<T, A>) {
    if (in != out) std::memcpy(out, in, n * sizeof(T));
  } else if constexpr (std::is_same_v<T, _Float16>) {
    host::Narrow(in, static_cast<size_t>(n), out);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(in[i]);
  }
}

// out[i] = op(a[i], b[i]); out may be a or b.
template <typename A, typename Op>
void Fold(const A* a, const A* b, A* out, int64_t n, const Op& op) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = op(a[i], b[i]);
}

template <typename A>
void Scale(A* acc, int64_t n, double factor) {
  if constexpr (std::is_integral_v<A>) {
    for (int64_t i = 0; i < n; ++i) acc[i] = static_cast<A>(static_cast<double>(acc[i]) * factor);
  } else {
    for (int64_t i = 0; i < n; ++i) acc[i] *= static_cast<A>(factor);
  }
}

template <typename A>
void Divide(A* acc, int64_t n, int64_t by) {
  for (int64_t i = 0; i < n; ++i) acc[i] = static_cast<A>(acc[i] / static_cast<A>(by));
}

template <typename T, typename Op>
void Run(absl::Span<const char* const> sources, absl::Span<const double> scales, bool average, int64_t count, char* out,
         const Op& op) {
  using A = Accumulator<T>;
  const auto at = [&](size_t s, int64_t i) { return reinterpret_cast<const T*>(sources[s]) + i; };
  alignas(64) A accumulated[kBlock], next[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    T* const target = reinterpret_cast<T*>(out) + begin;
    if constexpr (std::is_same_v<T, A>) {
      if (sources.size() == 2 && scales.empty() && !average) {  // in one pass
        Fold(at(0, begin), at(1, begin), target, n, op);
        continue;
      }
    }
    Load(at(0, begin), accumulated, n);
    if (!scales.empty()) Scale(accumulated, n, scales[0]);
    for (size_t s = 1; s < sources.size(); ++s) {
      if (std::is_same_v<T, A> && scales.empty()) {
        Fold(accumulated, reinterpret_cast<const A*>(at(s, begin)), accumulated, n, op);
        continue;
      }
      Load(at(s, begin), next, n);
      if (!scales.empty()) Scale(next, n, scales[s]);
      Fold(accumulated, next, accumulated, n, op);
    }
    if (average) Divide(accumulated, n, static_cast<int64_t>(sources.size()));
    Store(accumulated, target, n);
  }
}

// Integers are added and multiplied as unsigned ones: they wrap around.
template <typename A>
struct Wrapping {
  using type = A;
};
template <typename A>
  requires std::is_integral_v<A>
struct Wrapping<A> {
  using type = std::make_unsigned_t<A>;
};

template <typename T>
void OfNumbers(ReduceOp op, absl::Span<const char* const> sources, absl::Span<const double> scales, int64_t count,
               char* out) {
  using A = Accumulator<T>;
  using W = typename Wrapping<A>::type;
  const auto run = [&](auto&& f, bool average = false) { Run<T>(sources, scales, average, count, out, f); };
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kPremulSum:
      return run([](A a, A b) { return static_cast<A>(static_cast<W>(a) + static_cast<W>(b)); });
    case ReduceOp::kAverage:
      return run([](A a, A b) { return static_cast<A>(static_cast<W>(a) + static_cast<W>(b)); }, true);
    case ReduceOp::kProduct:
      // Through 64 bits: products of short unsigned numbers would be computed as int, which may overflow.
      if constexpr (std::is_integral_v<A>) {
        return run([](A a, A b) { return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); });
      } else {
        return run([](A a, A b) { return a * b; });
      }
    case ReduceOp::kMin:
      return run([](A a, A b) { return b < a || b != b ? b : a; });
    case ReduceOp::kMax:
      return run([](A a, A b) { return b > a || b != b ? b : a; });
    default:
      break;
  }
  if constexpr (std::is_integral_v<A>) {
    switch (op) {
      case ReduceOp::kBitAnd:
        return run([](A a, A b) { return static_cast<A>(a & b); });
      case ReduceOp::kBitOr:
        return run([](A a, A b) { return static_cast<A>(a | b); });
      default:
        return run([](A a, A b) { return static_cast<A>(a ^ b); });
    }
  }
}

void OfBools(ReduceOp op, absl::Span<const char* const> sources, int64_t count, char* out) {
  const auto run = [&](auto&& f) { Run<uint8_t>(sources, {}, false, count, out, f); };
  switch (op) {
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      return run([](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a & b); });
    case ReduceOp::kBitXor:
      return run([](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a ^ b); });
    default:
      return run([](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a | b); });
  }
}

template <typename T>
void OfComplex(ReduceOp op, absl::Span<const char* const> sources, absl::Span<const double> scales, int64_t count,
               char* out) {
  if (op != ReduceOp::kProduct) return OfNumbers<T>(op, sources, scales, 2 * count, out);
  using C = std::complex<T>;
  const auto product = [](C a, C b) {
    return C(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
  };
  Run<C>(sources, {}, false, count, out, product);
}

}  // namespace

void Combine(DType dtype, ReduceOp op, absl::Span<const char* const> sources, absl::Span<const double> scales,
             int64_t count, char* out) {
  switch (dtype) {
    case DType::kBool:
      return OfBools(op, sources, count, out);
    case DType::kUInt8:
      return OfNumbers<uint8_t>(op, sources, scales, count, out);
    case DType::kInt8:
      return OfNumbers<int8_t>(op, sources, scales, count, out);
    case DType::kInt16:
      return OfNumbers<int16_t>(op, sources, scales, count, out);
    case DType::kUInt16:
      return OfNumbers<uint16_t>(op, sources, scales, count, out);
    case DType::kInt32:
      return OfNumbers<int32_t>(op, sources, scales, count, out);
    case DType::kUInt32:
      return OfNumbers<uint32_t>(op, sources, scales, count, out);
    case DType::kInt64:
      return OfNumbers<int64_t>(op, sources, scales, count, out);
    case DType::kUInt64:
      return OfNumbers<uint64_t>(op, sources, scales, count, out);
    case DType::kFloat16:
      return OfNumbers<_Float16>(op, sources, scales, count, out);
    case DType::kBFloat16:
      return OfNumbers<BFloat16>(op, sources, scales, count, out);
    case DType::kFloat32:
      return OfNumbers<float>(op, sources, scales, count, out);
    case DType::kFloat64:
      return OfNumbers<double>(op, sources, scales, count, out);
    case DType::kComplex64:
      return OfComplex<float>(op, sources, scales, count, out);
    case DType::kComplex128:
      return OfComplex<double>(op, sources, scales, count, out);
    default:
      break;  // refused by Check
  }
}

}  // namespace tpu
