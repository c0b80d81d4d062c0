// A CPU tensor's copy on `tpu`, taken at once: the source may change right after.
#pragma once

#include <ATen/core/Tensor.h>

#include "dispatcher/layout.h"
#include "jit/value.h"

namespace tpu {

// The tensor's elements, converted to `layout`'s dtype and broadcast to its sizes.
ValueRef UploadValue(const at::Tensor& cpu, const Layout* layout, c10::DeviceIndex device);
// Same dtype, sizes and, where there are no gaps, strides.
at::Tensor Upload(const at::Tensor& cpu, c10::DeviceIndex device);

}  // namespace tpu
