#include "dispatcher/convert.h"

#include <ATen/ops/_local_scalar_dense_native.h>
#include <c10/util/Exception.h>

#include <bit>
#include <optional>

namespace tpu {
namespace {

std::optional<DType> Find(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
      return DType::kBool;
    case c10::ScalarType::Byte:
      return DType::kUInt8;
    case c10::ScalarType::Char:
      return DType::kInt8;
    case c10::ScalarType::Short:
      return DType::kInt16;
    case c10::ScalarType::Int:
      return DType::kInt32;
    case c10::ScalarType::Long:
      return DType::kInt64;
    case c10::ScalarType::UInt16:
      return DType::kUInt16;
    case c10::ScalarType::UInt32:
      return DType::kUInt32;
    case c10::ScalarType::UInt64:
      return DType::kUInt64;
    case c10::ScalarType::Half:
      return DType::kFloat16;
    case c10::ScalarType::BFloat16:
      return DType::kBFloat16;
    case c10::ScalarType::Float:
      return DType::kFloat32;
    case c10::ScalarType::Double:
      return DType::kFloat64;
    case c10::ScalarType::ComplexFloat:
      return DType::kComplex64;
    case c10::ScalarType::ComplexDouble:
      return DType::kComplex128;
    case c10::ScalarType::ComplexHalf:
      return DType::kOpaque32;
    case c10::ScalarType::Float8_e4m3fn:
      return DType::kFloat8E4M3FN;
    case c10::ScalarType::Float8_e5m2:
      return DType::kFloat8E5M2;
    case c10::ScalarType::Float8_e4m3fnuz:
      return DType::kFloat8E4M3FNUZ;
    case c10::ScalarType::Float8_e5m2fnuz:
      return DType::kFloat8E5M2FNUZ;
    case c10::ScalarType::Float8_e8m0fnu:
      return DType::kFloat8E8M0FNU;
    default:
      return c10::elementSize(type) == 1 ? std::optional(DType::kOpaque8) : std::nullopt;
  }
}

}  // namespace

bool HasDType(c10::ScalarType type) { return Find(type).has_value(); }

DType ToDType(c10::ScalarType type) {
  const std::optional<DType> found = Find(type);
  TORCH_CHECK_TYPE(found.has_value(), "tpu: tensors of type ", c10::toString(type), " are not supported");
  return *found;
}

c10::ScalarType ToScalarType(DType t) {
  constexpr c10::ScalarType kTypes[kNumDTypes] = {c10::kBool,
                                                  c10::kByte,
                                                  c10::kChar,
                                                  c10::kShort,
                                                  c10::kInt,
                                                  c10::kLong,
                                                  c10::ScalarType::UInt16,
                                                  c10::ScalarType::UInt32,
                                                  c10::ScalarType::UInt64,
                                                  c10::kHalf,
                                                  c10::kBFloat16,
                                                  c10::kFloat,
                                                  c10::kDouble,
                                                  c10::kComplexFloat,
                                                  c10::kComplexDouble,
                                                  c10::kByte,
                                                  c10::kShort,
                                                  c10::kComplexHalf,
                                                  c10::kFloat8_e4m3fn,
                                                  c10::kFloat8_e5m2,
                                                  c10::kFloat8_e4m3fnuz,
                                                  c10::kFloat8_e5m2fnuz,
                                                  c10::kFloat8_e8m0fnu};
  return kTypes[static_cast<int>(t)];
}

c10::Scalar NumberIn(const at::Tensor& tensor) {
  if (tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor()) return tensor.item();
  return at::native::_local_scalar_dense_cpu(tensor);  // not aten::item, which torch.export replaces while it works
}

bool IsWide(const c10::Scalar& number) { return number.isComplex() || number.type() == c10::ScalarType::UInt64; }

uint64_t BitsOf(const c10::Scalar& number) {
  if (number.isFloatingPoint()) return std::bit_cast<uint64_t>(number.toDouble());
  return static_cast<uint64_t>(number.isBoolean() ? number.toBool() : number.toLong());
}

}  // namespace tpu
