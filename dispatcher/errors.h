// The border between the core's absl::Status and PyTorch's exceptions.
//
// ResourceExhausted becomes torch.OutOfMemoryError, OutOfRange IndexError, InvalidArgument ValueError, Unimplemented
// NotImplementedError; everything else RuntimeError.
#pragma once

#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tpu {

void ThrowIfError(const absl::Status& status);
template <typename T>
T ValueOrThrow(absl::StatusOr<T> result) {
  ThrowIfError(result.status());
  return *std::move(result);
}
// The other way, for kernels of PyTorch's that run on a stream's thread: call inside a catch block.
absl::Status StatusOfCurrentException();

}  // namespace tpu
