// What is known of a value before it is computed: element type and shape. Values are logical and row-major; strides
// and storage offsets exist only in the dispatcher's storages.
//
// Used by every layer; plain values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "runtime/dtype.h"

namespace tpu {

using Dims = absl::InlinedVector<int64_t, 5>;

inline int64_t NumElements(absl::Span<const int64_t> dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

struct TensorType {
  DType dtype = DType::kFloat32;
  Dims dims;

  int64_t elements() const { return NumElements(dims); }
  size_t bytes() const { return static_cast<size_t>(elements()) * SizeOf(dtype); }
  std::string ToString() const;  // "f32[8,256]"

  friend bool operator==(const TensorType&, const TensorType&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const TensorType& t) {
    return H::combine(std::move(h), static_cast<uint8_t>(t.dtype), t.dims);
  }
};

}  // namespace tpu
