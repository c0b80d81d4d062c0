// Determinants by the matrix's factors, which their derivatives take again: of the transposed matrix where the tensor
// is contiguous and real, as ATen's kernels choose. A host kernel sees its operands contiguous and can't tell.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linalg_lu_factor_ex.h>
#include <torch/library.h>

#include <tuple>

namespace tpu {
namespace {

using at::Tensor;

struct Factors {
  Tensor lu, pivots;
  Tensor diagonal, sign;  // of the upper factor; 1 or -1: of the permutation
};

Factors Factor(const Tensor& a, const char* name, bool low_precision) {
  at::native::squareCheckInputs(a, name);
  at::native::checkFloatingOrComplex(a, name, low_precision);
  const bool transposed = a.is_contiguous() && !a.is_complex();
  auto [lu, pivots, info] = at::linalg_lu_factor_ex(transposed ? a.mT() : a);
  const Tensor rows = at::arange(1, pivots.size(-1) + 1, pivots.options());
  const Tensor swaps = pivots.ne(rows).sum(-1);
  return {lu, pivots, lu.diagonal(0, -2, -1), 1 - 2 * swaps.remainder(2)};
}

// (A) -> determinant, LU, pivots
std::tuple<Tensor, Tensor, Tensor> Determinant(const Tensor& a) {
  const Factors f = Factor(a, "linalg.det", true);
  return {f.diagonal.prod(-1).mul_(f.sign), f.lu, f.pivots};
}

// (A) -> sign, logarithm of the absolute determinant, LU, pivots
std::tuple<Tensor, Tensor, Tensor, Tensor> SignAndLogDeterminant(const Tensor& a) {
  const Factors f = Factor(a, "linalg.slogdet", false);
  return {f.diagonal.sgn().prod(-1).mul_(f.sign), f.diagonal.abs().log_().sum(-1), f.lu, f.pivots};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_linalg_det", &Determinant);
  m.impl("_linalg_slogdet", &SignAndLogDeterminant);
}

}  // namespace tpu
