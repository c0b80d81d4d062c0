// Sorting, which a device with host kernels leaves to them, and searching what is sorted.
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

// Where along the last dimension each value would be inserted: before (`right`: behind) what equals it. The halvings
// are those of ATen (cus_lower_bound), so that NaN and sequences that are not sorted find the same places.
// [.., k] or [k], [.., n] -> [.., n].
Result Search(AtenCall& c, Tensor sequence, Tensor values, bool right) {
  if (c.promoted() == DType::kBool) return Result::Decline();
  const int64_t size = sequence.size(-1), dim = sequence.rank() - 1;
  const Shape places(c.result_dims());
  if (dim == 0) values = Flat(values);
  Emitter& e = c.emitter();
  Tensor low = e.Integer(DType::kInt64, 0, values.dims()), high = e.Integer(DType::kInt64, size, values.dims());
  for (int64_t most = size; most > 0; most /= 2) {  // of what is between the two
    Tensor middle = ir::Shr(low + high, e.Integer(DType::kInt64, 1)), open = low < high;
    Tensor seen = ir::TakeAlong(sequence, ir::Select(open, middle, 0), dim);
    Tensor before = ir::Not(right ? seen > values : seen >= values);
    low = ir::Select(open & before, middle + 1, low);
    high = ir::Select(open & ir::Not(before), middle, high);
  }
  return ir::Reshape(low, places);
}

// (sequence, values, out_int32, right, side, sorter)
Result SearchSorted(AtenCall& c) {
  if (c.has(5)) return Result::Decline();
  return Search(c, c.x(0), c.x(1), c.boolean(3) || (c.has(4) && c.string(4) == "right"));
}

}  // namespace

void RegisterSort(Registry& r) {
  r.Add("aten::sort", [](AtenCall& c) { return Sort(c, 1); }, kHostKernelFirst);
  r.Add("aten::sort.stable", [](AtenCall& c) { return Sort(c, 2); }, kHostKernelFirst);
  r.Add("aten::topk", TopK, kHostKernelFirst);
  r.Add({"aten::searchsorted.Tensor", "aten::searchsorted.Scalar"}, SearchSorted);
  r.Add({"aten::bucketize.Tensor", "aten::bucketize.Scalar"}, [](AtenCall& c) -> Result {  // (x, boundaries, _, right)
    return Search(c, c.x(1), c.x(0), c.boolean(3));
  });
}

}  // namespace tpu::aten
