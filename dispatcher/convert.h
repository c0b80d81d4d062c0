// torch's element types and numbers to ours and back.
//
// Used throughout the dispatcher. Element types that have no number of ours (quantized, sub-byte) are an error that
// names the type. Plain functions; any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "runtime/dtype.h"

namespace tpu {

DType ToDType(c10::ScalarType type);
bool HasDType(c10::ScalarType type);
// Opaque elements without a format of ours as integers of their size.
c10::ScalarType ToScalarType(DType type);

// A 0-dim CPU tensor's number.
c10::Scalar NumberIn(const at::Tensor& tensor);
// Whether it fits into no scalar operand, which is a double, an int64 or a bool.
bool IsWide(const c10::Scalar& number);
// A number that is not wide, as a scalar operand's bits.
uint64_t BitsOf(const c10::Scalar& number);

}  // namespace tpu
