// torch's element types to ours and back.
//
// Used throughout the dispatcher. Element types that have no number of ours (quantized, sub-byte) are an error that
// names the type. Plain functions; any thread.
#pragma once

#include <c10/core/ScalarType.h>

#include "runtime/dtype.h"

namespace tpu {

DType ToDType(c10::ScalarType type);
bool HasDType(c10::ScalarType type);

}  // namespace tpu
