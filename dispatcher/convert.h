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
// A number that is not complex, as a scalar operand's bits: a double's, an int64's or a bool's.
uint64_t BitsOf(const c10::Scalar& number);

}  // namespace tpu
