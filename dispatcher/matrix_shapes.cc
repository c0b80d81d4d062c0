// What operators on matrices and on rows of them return, as shapes.cc has it of others.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "dispatcher/structured.h"

namespace tpu {
namespace {

bool IsMatrices(const at::Tensor& t) {
  return t.dim() >= 2 && (t.scalar_type() == c10::kFloat || t.scalar_type() == c10::kDouble || t.is_complex());
}
bool IsSquare(const at::Tensor& t) { return IsMatrices(t) && t.size(-1) == t.size(-2) && t.numel() > 0; }

std::vector<int64_t> Batches(const at::Tensor& a, const at::Tensor& b) {
  const auto of = [](const at::Tensor& t) { return t.sizes().slice(0, static_cast<size_t>(t.dim()) - 2); };
  return at::infer_size(of(a), of(b));
}

at::Tensor Exponential(const at::Tensor& self) {
  CheckPlain(IsSquare(self));
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}
at::Tensor SolveTriangular(const at::Tensor& a, const at::Tensor& b, bool, bool left, bool) {
  CheckPlain(IsSquare(a) && IsMatrices(b) && a.scalar_type() == b.scalar_type() &&
             b.size(left ? -2 : -1) == a.size(-1));
  std::vector<int64_t> sizes = Batches(a, b);
  sizes.insert(sizes.end(), {b.size(-2), b.size(-1)});
  return at::empty(sizes, b.options());
}
at::Tensor EigenValues(const at::Tensor& self) {
  CheckPlain(IsSquare(self));
  return at::empty(self.sizes().slice(0, static_cast<size_t>(self.dim()) - 1),
                   self.options().dtype(c10::toComplexType(self.scalar_type())));
}
std::tuple<at::Tensor, at::Tensor> Eigen(const at::Tensor& self) {
  const at::Tensor values = EigenValues(self);
  return {values, at::empty(self.sizes(), values.options())};
}

// --- distances of rows ---

at::Tensor Distances(const at::Tensor& a, const at::Tensor& b, double p, std::optional<int64_t>) {
  CheckPlain(a.is_floating_point() && a.scalar_type() == b.scalar_type() && a.dim() > 1 && b.dim() > 1 &&
             a.size(-1) == b.size(-1) && p >= 0);
  std::vector<int64_t> sizes = Batches(a, b);
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-2));
  return at::empty(sizes, a.options());
}

at::Tensor DistancesBackward(const at::Tensor&, const at::Tensor& a, const at::Tensor& b, double p,
                             const at::Tensor& distances) {
  CheckPlain(Distances(a, b, p, std::nullopt).sizes() == distances.sizes());
  std::vector<int64_t> sizes(distances.sizes().begin(), distances.sizes().end() - 2);
  sizes.insert(sizes.end(), {a.size(-2), a.size(-1)});
  return at::empty(sizes, a.options());
}

at::Tensor DistancesWithin(const at::Tensor& self, double p) {
  CheckPlain(self.is_floating_point() && self.dim() == 2 && self.size(0) > 1 && self.size(1) > 0 && p >= 0);
  return at::empty({self.size(0) * (self.size(0) - 1) / 2}, self.options());
}
at::Tensor DistancesWithinBackward(const at::Tensor& grad, const at::Tensor& self, double p, const at::Tensor&) {
  CheckPlain(DistancesWithin(self, p).sizes() == grad.sizes() && grad.scalar_type() == self.scalar_type());
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

at::Tensor Trace(const at::Tensor& self) {
  CheckPlain(self.dim() == 2);
  const bool whole = c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return at::empty({}, whole ? self.options().dtype(c10::kLong) : self.options());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("_cdist_backward", &DistancesBackward);
  m.impl("_cdist_forward", &Distances);
  m.impl("_linalg_eigvals", &EigenValues);
  m.impl("_pdist_backward", &DistancesWithinBackward);
  m.impl("_pdist_forward", &DistancesWithin);
  m.impl("linalg_eig", &Eigen);
  m.impl("linalg_matrix_exp", &Exponential);
  m.impl("linalg_solve_triangular", &SolveTriangular);
  m.impl("trace", &Trace);
}

}  // namespace
}  // namespace tpu
