// Element types of device values, numbered for the wire: a value's number never changes, it is part of cache files.
//
// Used by every layer. The torch side converts c10::ScalarType at its border (dispatcher/convert.h); the compiler
// converts to MLIR types (compiler/ir/types.h). Plain values; no ownership; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tpu {

enum class DType : uint8_t {
  kBool = 0,
  kUInt8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUInt16 = 6,
  kUInt32 = 7,
  kUInt64 = 8,
  kFloat16 = 9,
  kBFloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
  // Types that are stored and moved but have no lowering: their operators run as host kernels.
  kOpaque8 = 15,
  kOpaque16 = 16,
  kOpaque32 = 17,
  kFloat8E4M3FN = 18,
  kFloat8E5M2 = 19,
  kFloat8E4M3FNUZ = 20,
  kFloat8E5M2FNUZ = 21,
  kFloat8E8M0FNU = 22,
};
inline constexpr int kNumDTypes = 23;

// Bytes of one element.
constexpr size_t SizeOf(DType t) {
  constexpr uint8_t kSizes[kNumDTypes] = {1, 1, 1, 2, 4, 8, 2, 4, 8, 2, 2, 4, 8, 8, 16, 1, 2, 4, 1, 1, 1, 1, 1};
  return kSizes[static_cast<int>(t)];
}

constexpr bool IsFloat(DType t) { return t >= DType::kFloat16 && t <= DType::kFloat64; }
constexpr bool IsComplex(DType t) { return t == DType::kComplex64 || t == DType::kComplex128; }
// Of a complex number's parts; other types are their own.
constexpr DType RealOf(DType t) {
  return t == DType::kComplex64 ? DType::kFloat32 : t == DType::kComplex128 ? DType::kFloat64 : t;
}
constexpr bool IsOpaque(DType t) { return t >= DType::kOpaque8; }
constexpr bool IsSigned(DType t) { return t >= DType::kInt8 && t <= DType::kInt64; }
constexpr bool IsUnsigned(DType t) { return t == DType::kUInt8 || (t >= DType::kUInt16 && t <= DType::kUInt64); }
constexpr bool IsInteger(DType t) { return IsSigned(t) || IsUnsigned(t); }  // without bool

// "f32", "bf16", "i64", "i1", ...: the spelling of fragment texts and messages.
constexpr std::string_view NameOf(DType t) {
  constexpr std::string_view kNames[kNumDTypes] = {
      "i1",  "ui8", "i8",   "i16", "i32", "i64", "ui16",     "ui32",   "ui64",       "f16",        "bf16",     "f32",
      "f64", "c64", "c128", "o8",  "o16", "o32", "f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ", "f8E8M0FNU"};
  return kNames[static_cast<int>(t)];
}

}  // namespace tpu
