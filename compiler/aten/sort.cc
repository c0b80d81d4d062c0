// Sorting, which a device with host kernels leaves to them, and searching what is sorted.
#include <cmath>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {

// The halvings are those of ATen (cus_lower_bound), so that NaN and sequences that are not sorted find the same places.
Tensor PlacesIn(Tensor sequence, Tensor values, bool right) {
  const int64_t size = sequence.size(-1), dim = sequence.rank() - 1;
  if (dim == 0) values = Flat(values);
  Emitter& e = sequence.emitter();
  Tensor low = e.Integer(DType::kInt64, 0, values.dims()), high = e.Integer(DType::kInt64, size, values.dims());
  for (int64_t most = size; most > 0; most /= 2) {  // of what is between the two
    Tensor middle = ir::Shr(low + high, e.Integer(DType::kInt64, 1)), open = low < high;
    Tensor seen = ir::TakeAlong(sequence, ir::Select(open, middle, 0), dim);
    Tensor before = ir::Not(right ? seen > values : seen >= values);
    low = ir::Select(open & before, middle + 1, low);
    high = ir::Select(open & ir::Not(before), middle, high);
  }
  return low;
}

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

// Of each line what is at `place` once it is sorted, and where that stood. A dim_argument of 0: all is one line.
Lowering Ranked(int dim_argument, Tensor (*place)(AtenCall& c, Tensor sorted, int64_t dim)) {
  return [=](AtenCall& c) -> Result {
    const Tensor x = dim_argument == 0 ? Flat(c.tensor(0)) : AtLeast1(c.tensor(0));
    if (x.elements() == 0) return Result::Decline();
    const int64_t dim = dim_argument == 0 ? 0 : c.dim(dim_argument, x.rank(), -1);
    auto [values, indices] = ir::Sort(x, dim, /*descending=*/false);
    const Tensor at = place(c, values, dim);
    const auto taken = [&](Tensor of, int i) { return ir::Reshape(ir::TakeAlong(of, at, dim), c.result_dims(i)); };
    if (c.num_results() == 1) return taken(values, 0);
    return {taken(values, 0), taken(indices, 1)};
  };
}

Tensor KthPlace(AtenCall& c, Tensor sorted, int64_t dim) {  // (x, k, dim, keepdim)
  Shape dims(sorted.dims());
  dims[dim] = 1;
  return c.emitter().Integer(DType::kInt64, c.integer(1) - 1, dims);
}

// The lower of two; the first NaN where there are some, or what is between the numbers alone.
template <bool kNumbersAlone>
Tensor MedianPlace(AtenCall&, Tensor sorted, int64_t dim) {
  const double last = static_cast<double>(sorted.size(dim) - 1);
  const Tensor nans = ir::Sum(ir::Convert(IsNan(sorted), DType::kInt64), {dim}, true);
  if (kNumbersAlone) return ir::Max(ir::Shr(last - nans, 1), 0);
  return ir::Select(nans > 0, last + 1 - nans, std::floor(last / 2));
}

// The end of the first of the longest runs.
Tensor ModePlace(AtenCall& c, Tensor sorted, int64_t dim) {
  const Tensor place = c.emitter().Iota(DType::kInt64, sorted.dims(), dim);
  const int64_t n = sorted.size(dim);
  Shape none(sorted.rank(), 0), one(sorted.rank(), 0), kept(sorted.dims());
  kept[dim] = one[dim] = 1;
  const Tensor changes = ir::Ne(ir::SliceDim(sorted, dim, 1, n), ir::SliceDim(sorted, dim, 0, n - 1));
  const Tensor begins = ir::Pad(ir::Convert(changes, DType::kInt64), 0, one, none) * place;
  return ir::Reshape(ir::ArgReduce(ir::ExtremumKind::max, place - ir::Scan(ir::ReduceKind::max, begins, dim), dim),
                     kept);
}

Result Search(AtenCall& c, Tensor sequence, Tensor values, bool right) {
  if (c.promoted() == DType::kBool) return Result::Decline();
  return ir::Reshape(PlacesIn(sequence, values, right), c.result_dims());
}

// (sequence, values, out_int32, right, side, sorter)
Result SearchSorted(AtenCall& c) {
  if (c.has(5)) return Result::Decline();
  return Search(c, c.x(0), c.x(1), c.boolean(3) || (c.has(4) && c.string(4) == "right"));
}

// Each place of repeats as often as it says there: (repeats, output_size)
Result RepeatInterleave(AtenCall& c) {
  const Tensor repeats = c.tensor(0), result = c.emitter().Iota(DType::kInt64, c.result_dims(), 0);
  const int64_t n = repeats.size(0), size = result.size(0);
  if (IsFloat(repeats.dtype()) || n == 0) return Result::Decline();
  const Tensor counts = ir::Convert(ir::Require(repeats, ir::Ge(repeats, 0)), DType::kInt64);
  const Tensor ends = ir::Scan(ir::ReduceKind::sum, counts, 0);
  const Tensor fits = ir::Eq(ir::SliceDim(ends, 0, n - 1, n), static_cast<double>(size));
  return ir::Require(PlacesIn(ends, result, /*right=*/true), ir::BroadcastTo(fits, result.dims()));
}

}  // namespace

void RegisterSort(Registry& r) {
  r.Add("aten::sort", [](AtenCall& c) { return Sort(c, 1); }, kHostKernelFirst);
  r.Add("aten::sort.stable", [](AtenCall& c) { return Sort(c, 2); }, kHostKernelFirst);
  r.Add("aten::topk", TopK, kHostKernelFirst);
  r.Add("aten::kthvalue", Ranked(2, KthPlace), kHostKernelFirst);
  r.Add("aten::median", Ranked(0, MedianPlace<false>), kHostKernelFirst);
  r.Add("aten::median.dim", Ranked(1, MedianPlace<false>), kHostKernelFirst);
  r.Add("aten::nanmedian", Ranked(0, MedianPlace<true>), kHostKernelFirst);
  r.Add("aten::nanmedian.dim", Ranked(1, MedianPlace<true>), kHostKernelFirst);
  r.Add("aten::mode", Ranked(1, ModePlace), kHostKernelFirst);
  r.Add("aten::repeat_interleave.Tensor", RepeatInterleave);
  r.Add({"aten::searchsorted.Tensor", "aten::searchsorted.Scalar"}, SearchSorted);
  r.Add({"aten::bucketize.Tensor", "aten::bucketize.Scalar"}, [](AtenCall& c) -> Result {  // (x, boundaries, _, right)
    return Search(c, c.x(1), c.x(0), c.boolean(3));
  });
}

}  // namespace tpu::aten
