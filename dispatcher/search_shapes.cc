// What operators that sort, search and count return, as shapes.cc has it of others.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "dispatcher/structured.h"

namespace tpu {
namespace {

std::tuple<at::Tensor&, at::Tensor&> KthValue(const at::Tensor& self, int64_t k, int64_t dim, bool keepdim,
                                              at::Tensor& values, at::Tensor& indices) {
  CheckPlain(self.dim() > 0 && dim >= -self.dim() && dim < self.dim() && !self.is_complex() &&
             values.scalar_type() == self.scalar_type() && indices.scalar_type() == c10::kLong);
  const int64_t at = dim < 0 ? dim + self.dim() : dim;
  CheckPlain(k > 0 && k <= self.size(at));
  std::vector<int64_t> sizes = self.sizes().vec();
  if (keepdim) {
    sizes[static_cast<size_t>(at)] = 1;
  } else {
    sizes.erase(sizes.begin() + at);
  }
  values.resize_(sizes);
  indices.resize_(sizes);
  return {values, indices};
}
std::tuple<at::Tensor&, at::Tensor&> Median(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& values,
                                            at::Tensor& indices) {
  return KthValue(self, 1, dim, keepdim, values, indices);
}
at::Tensor SearchSorted(const at::Tensor& sorted, const at::Tensor& self, bool out_int32, bool,
                        std::optional<c10::string_view>, const std::optional<at::Tensor>& sorter) {
  CheckPlain(sorted.dim() == 1 || (sorted.dim() == self.dim() && sorted.dim() > 0 &&
                                   sorted.sizes().slice(0, static_cast<size_t>(sorted.dim()) - 1) ==
                                       self.sizes().slice(0, static_cast<size_t>(sorted.dim()) - 1)));
  CheckPlain(
      sorted.scalar_type() == self.scalar_type() &&
      (!sorter || !sorter->defined() || (sorter->sizes() == sorted.sizes() && sorter->scalar_type() == c10::kLong)));
  return at::empty(self.sizes(), self.options().dtype(out_int32 ? c10::kInt : c10::kLong));
}
at::Tensor Histogram(const at::Tensor& self, int64_t bins, const at::Scalar&, const at::Scalar&) {
  CheckPlain(self.is_floating_point() && bins > 0);
  return at::empty({bins}, self.options());
}
at::Tensor CountNonzero(const at::Tensor& self, at::IntArrayRef dims) {
  return at::sum(self, dims, /*keepdim=*/false, c10::kLong);
}
at::Tensor RepeatInterleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  CheckPlain(repeats.dim() == 1 && (repeats.scalar_type() == c10::kLong || repeats.scalar_type() == c10::kInt) &&
             output_size.value_or(-1) >= 0);
  return at::empty({*output_size}, repeats.options());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("count_nonzero.dim_IntList", &CountNonzero);
  m.impl("histc", &Histogram);
  m.impl("kthvalue.values", &KthValue);
  m.impl("median.dim_values", &Median);
  m.impl("nanmedian.dim_values", &Median);
  m.impl("repeat_interleave.Tensor", &RepeatInterleave);
  m.impl("searchsorted.Tensor", &SearchSorted);
}

}  // namespace
}  // namespace tpu
