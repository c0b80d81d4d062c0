// What operators on images and signals return, as shapes.cc has it of others.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Pool.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "dispatcher/structured.h"

namespace tpu {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;

// --- images ---

at::Tensor Columns(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef dilation, at::IntArrayRef padding,
                   at::IntArrayRef stride) {
  CheckPlain(self.is_floating_point() && (self.dim() == 3 || self.dim() == 4) && self.numel() > 0 &&
             kernel.size() == 2 && dilation.size() == 2 && padding.size() == 2 && stride.size() == 2);
  int64_t positions = 1, taps = 1;
  for (size_t d = 0; d < 2; ++d) {
    CheckPlain(stride[d] > 0 && kernel[d] > 0 && dilation[d] > 0 && padding[d] >= 0);
    const int64_t room = self.size(static_cast<int64_t>(d) - 2) + 2 * padding[d] - (dilation[d] * (kernel[d] - 1) + 1);
    CheckPlain(room >= 0);
    positions *= room / stride[d] + 1;
    taps *= kernel[d];
  }
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().end() - 3);
  sizes.insert(sizes.end(), {self.size(-3) * taps, positions});
  return at::empty(sizes, self.options());
}
at::Tensor FromColumns(const at::Tensor& self, at::IntArrayRef image, at::IntArrayRef kernel, at::IntArrayRef,
                       at::IntArrayRef, at::IntArrayRef) {
  CheckPlain((self.dim() == 2 || self.dim() == 3) && self.numel() > 0 && image.size() == 2 && kernel.size() == 2);
  const int64_t taps = kernel[0] * kernel[1];
  CheckPlain(taps > 0 && self.size(-2) % taps == 0 && image[0] > 0 && image[1] > 0);
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().end() - 2);
  sizes.insert(sizes.end(), {self.size(-2) / taps, image[0], image[1]});
  return at::empty(sizes, self.options());
}
at::Tensor GridSampled(const at::Tensor& self, const at::Tensor& grid, int64_t, int64_t, bool) {
  CheckPlain(self.is_floating_point() && self.scalar_type() == grid.scalar_type() && self.dim() == 4 &&
             grid.dim() == 4 && grid.size(0) == self.size(0) && grid.size(3) == 2 && self.numel() > 0);
  return at::empty({self.size(0), self.size(1), grid.size(1), grid.size(2)}, self.options());
}
Two GridSampledBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& grid, int64_t, int64_t, bool,
                        std::array<bool, 2> wanted) {
  CheckPlain(grad.dim() == 4 && grad.scalar_type() == self.scalar_type());
  GridSampled(self, grid, 0, 0, false);
  return {wanted[0] ? at::empty_like(self, at::MemoryFormat::Contiguous) : at::Tensor(),
          at::empty_like(grid, at::MemoryFormat::Contiguous)};
}

// Padded by what lies beside the edge.
at::Tensor Reflected(const at::Tensor& self, at::IntArrayRef padding) {
  CheckPlain(self.is_floating_point() && (self.dim() == 3 || self.dim() == 4) && self.numel() > 0 &&
             padding.size() == 4);
  std::vector<int64_t> sizes = self.sizes().vec();
  for (size_t d = 0; d < 2; ++d) {  // columns, then rows
    int64_t& size = sizes[sizes.size() - 1 - d];
    CheckPlain(padding[2 * d] >= 0 && padding[2 * d + 1] >= 0 && padding[2 * d] < size && padding[2 * d + 1] < size);
    size += padding[2 * d] + padding[2 * d + 1];
  }
  return at::empty(sizes, self.options().memory_format(self.suggest_memory_format()));
}
at::Tensor ReflectedBackward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef padding) {
  CheckPlain(grad.sizes() == Reflected(self, padding).sizes() && grad.scalar_type() == self.scalar_type());
  return at::empty_like(self, self.suggest_memory_format());
}

// --- pools: of images, and of volumes (kSpatial is 3) ---

template <int kSpatial>
bool IsPooled(const at::Tensor& self) {
  return (self.dim() == kSpatial + 1 || self.dim() == kSpatial + 2) && self.numel() > 0 && self.is_floating_point();
}

at::Tensor Pooled(const at::Tensor& self, at::IntArrayRef positions, c10::ScalarType type) {
  CheckPlain(std::all_of(positions.begin(), positions.end(), [](int64_t n) { return n > 0; }));
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().end() - static_cast<int64_t>(positions.size()));
  sizes.insert(sizes.end(), positions.begin(), positions.end());
  return at::empty(sizes, self.options().dtype(type).memory_format(self.suggest_memory_format()));
}

template <int kSpatial>
at::Tensor AveragePooled(const at::Tensor& self, at::IntArrayRef sizes) {
  CheckPlain(IsPooled<kSpatial>(self) && sizes.size() == kSpatial);
  return Pooled(self, sizes, self.scalar_type());
}
template <int kSpatial>
at::Tensor PooledBackward(const at::Tensor& grad, const at::Tensor& self) {
  CheckPlain(IsPooled<kSpatial>(self) && grad.dim() == self.dim() && grad.numel() > 0 &&
             grad.size(-kSpatial - 1) == self.size(-kSpatial - 1) && grad.size(0) == self.size(0) &&
             grad.scalar_type() == self.scalar_type());
  return at::empty(self.sizes(), self.options().memory_format(self.suggest_memory_format()));
}

Two MaxPooled(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
              at::IntArrayRef dilation, bool ceil) {
  CheckPlain(IsPooled<3>(self) && kernel.size() == 3 && (stride.empty() || stride.size() == 3) && padding.size() == 3 &&
             dilation.size() == 3);
  std::array<int64_t, 3> positions;
  for (size_t d = 0; d < 3; ++d) {
    const int64_t step = stride.empty() ? kernel[d] : stride[d];
    CheckPlain(kernel[d] > 0 && step > 0 && dilation[d] > 0 && padding[d] >= 0 && padding[d] <= kernel[d] / 2);
    positions[d] = at::native::pooling_output_shape(self.size(static_cast<int64_t>(d) - 3), kernel[d], padding[d], step,
                                                    dilation[d], ceil);
  }
  return {Pooled(self, positions, self.scalar_type()), Pooled(self, positions, c10::kLong)};
}
at::Tensor MaxPooledBackward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef, at::IntArrayRef,
                             at::IntArrayRef, at::IntArrayRef, bool, const at::Tensor& indices) {
  CheckPlain(indices.sizes() == grad.sizes());
  return PooledBackward<3>(grad, self);
}

template <int kSpatial>
at::Tensor Unpooled(const at::Tensor& self, const at::Tensor& indices, at::IntArrayRef sizes) {
  CheckPlain(IsPooled<kSpatial>(self) && self.is_contiguous() && indices.scalar_type() == c10::kLong &&
             indices.sizes() == self.sizes() && sizes.size() == kSpatial &&
             !at::globalContext().deterministicAlgorithms());
  return Pooled(self, sizes, self.scalar_type());
}
at::Tensor UnpooledVolume(const at::Tensor& self, const at::Tensor& indices, at::IntArrayRef sizes,
                          at::IntArrayRef stride, at::IntArrayRef padding) {
  CheckPlain(stride.size() == 3 && padding.size() == 3 && *std::min_element(stride.begin(), stride.end()) > 0);
  return Unpooled<3>(self, indices, sizes);
}

// --- Fourier transforms ---

at::Tensor Transformed(const at::Tensor& self, at::IntArrayRef dims, c10::ScalarType type, int64_t last) {
  CheckPlain(!dims.empty() && self.numel() > 0 &&
             std::all_of(dims.begin(), dims.end(), [&](int64_t d) { return d >= 0 && d < self.dim(); }));
  std::vector<int64_t> sizes = self.sizes().vec();
  if (last > 0) sizes[static_cast<size_t>(dims.back())] = last;
  return at::empty(sizes, self.options().dtype(type));
}
bool IsTransformed(c10::ScalarType type) { return type == c10::kFloat || type == c10::kDouble; }
at::Tensor TransformedReal(const at::Tensor& self, at::IntArrayRef dims, int64_t, bool half) {
  CheckPlain(IsTransformed(self.scalar_type()) && !dims.empty() && dims.back() >= 0 && dims.back() < self.dim());
  return Transformed(self, dims, c10::toComplexType(self.scalar_type()), half ? self.size(dims.back()) / 2 + 1 : 0);
}
at::Tensor TransformedToReal(const at::Tensor& self, at::IntArrayRef dims, int64_t, int64_t last) {
  CheckPlain(self.is_complex() && IsTransformed(c10::toRealValueType(self.scalar_type())) && last > 0);
  return Transformed(self, dims, c10::toRealValueType(self.scalar_type()), last);
}
at::Tensor TransformedComplex(const at::Tensor& self, at::IntArrayRef dims, int64_t, bool) {
  CheckPlain(self.is_complex() && IsTransformed(c10::toRealValueType(self.scalar_type())));
  return Transformed(self, dims, self.scalar_type(), 0);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("_adaptive_avg_pool2d", &AveragePooled<2>);
  m.impl("_adaptive_avg_pool2d_backward", &PooledBackward<2>);
  m.impl("_adaptive_avg_pool3d", &AveragePooled<3>);
  m.impl("_adaptive_avg_pool3d_backward", &PooledBackward<3>);
  m.impl("_fft_c2c", &TransformedComplex);
  m.impl("_fft_c2r", &TransformedToReal);
  m.impl("_fft_r2c", &TransformedReal);
  m.impl("col2im", &FromColumns);
  m.impl("grid_sampler_2d", &GridSampled);
  m.impl("grid_sampler_2d_backward", &GridSampledBackward);
  m.impl("im2col", &Columns);
  m.impl("max_pool3d_with_indices", &MaxPooled);
  m.impl("max_pool3d_with_indices_backward", &MaxPooledBackward);
  m.impl("max_unpool2d", &Unpooled<2>);
  m.impl("max_unpool3d", &UnpooledVolume);
  m.impl("reflection_pad2d", &Reflected);
  m.impl("reflection_pad2d_backward", &ReflectedBackward);
}

}  // namespace
}  // namespace tpu
