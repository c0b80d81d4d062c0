// Interned kinds of strided tensors: element type, sizes and strides. Equal kinds are one object, so that comparing and
// hashing recorded calls is comparing and hashing addresses.
//
// Used by storages and by recording. Layouts live as long as the process. Any thread.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "runtime/tensor_type.h"

namespace tpu {

struct Layout {
  c10::ScalarType scalar_type;
  TensorType type;  // ours: element type and sizes
  Dims strides;
  bool row_major = false;  // strides are those of a contiguous tensor
  bool dense = false;      // strides are a permutation of those: no gaps, no overlaps
  size_t bytes = 0;        // of the elements, without gaps

  c10::IntArrayRef sizes() const { return {type.dims.data(), type.dims.size()}; }
  c10::IntArrayRef stride_ref() const { return {strides.data(), strides.size()}; }
  bool Is(c10::ScalarType t, c10::IntArrayRef sizes_, c10::IntArrayRef strides_) const {
    if (t != scalar_type || sizes_.size() != type.dims.size()) return false;
    bool same = true;  // a handful of numbers: no call of memcmp
    for (size_t i = 0; i < sizes_.size(); ++i) same &= sizes_[i] == type.dims[i] && strides_[i] == strides[i];
    return same;
  }
};

const Layout* InternLayout(c10::ScalarType type, c10::IntArrayRef sizes, c10::IntArrayRef strides);
// Row-major.
const Layout* InternLayout(c10::ScalarType type, c10::IntArrayRef sizes);
const Layout* InternLayout(const TensorType& type);
// The CPU tensor's; row-major where its elements have gaps between them.
const Layout* LayoutLike(const at::Tensor& cpu);

}  // namespace tpu
