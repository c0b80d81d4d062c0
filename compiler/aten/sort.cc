// Sorting. A device with host kernels leaves it to them.
#include "compiler/aten/families.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

Result Sorted(Tensor x, int64_t dim, bool descending, int64_t first) {
  if (x.rank() == 0) return {x, x.emitter().Integer(DType::kInt64, 0)};
  auto [values, indices] = ir::Sort(x, dim, descending);
  return {ir::SliceDim(values, dim, 0, first), ir::SliceDim(indices, dim, 0, first)};
}

Result Sort(AtenCall& c, int dim_argument) {
  Tensor x = c.tensor(0);
  const int64_t dim = c.dim(dim_argument, x.rank(), -1);
  return Sorted(x, dim, c.boolean(dim_argument + 1), x.rank() == 0 ? 1 : x.size(dim));
}

// (x, k, dim, largest, sorted)
Result TopK(AtenCall& c) {
  Tensor x = c.tensor(0);
  const int64_t dim = c.dim(2, x.rank(), -1);
  return Sorted(x, dim, c.boolean(3, true), x.rank() == 0 ? 1 : c.result_dims()[dim]);
}

}  // namespace

void RegisterSort(Registry& r) {
  r.Add("aten::sort", [](AtenCall& c) { return Sort(c, 1); }, kHostKernelFirst);
  r.Add("aten::sort.stable", [](AtenCall& c) { return Sort(c, 2); }, kHostKernelFirst);
  r.Add("aten::topk", TopK, kHostKernelFirst);
}

}  // namespace tpu::aten
