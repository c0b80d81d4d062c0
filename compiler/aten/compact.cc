// Operators whose results' sizes, or whose reads, depend on which elements of a mask are true. A result of such a size
// is made at its largest, what there is of it in front; the last result tells how much that is
// (CompilerBackend::Bounds). A device with host kernels leaves them to these.
#include "compiler/aten/families.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

using ir::ScatterKind;

constexpr int64_t kWhole = -1;  // all that there is of a result

Tensor Number(Tensor like, int64_t value) { return like.emitter().Integer(DType::kInt64, value); }

// How many are true up to each element of a mask of rank 1, itself included.
Tensor Running(Tensor mask) { return ir::Scan(ir::ReduceKind::sum, ir::Convert(mask, DType::kInt64), 0); }
Tensor Last(Tensor x) { return ir::Reshape(ir::SliceDim(x, 0, x.size(0) - 1, x.size(0)), {}); }

// The rows under a mask of rank 1 in front, in their order; zeros behind them.
Tensor Packed(Tensor rows, Tensor mask, Tensor running) {
  const int64_t n = rows.size(0);
  Shape dims(rows.dims());
  ++dims[0];  // the others go to one place behind the end
  Tensor place = ir::Select(mask, running - 1, Number(rows, n));
  Tensor base = rows.emitter().Constant(rows.dtype(), 0, dims);
  return ir::SliceDim(ir::ScatterRows(ScatterKind::set, base, place, rows, 0), 0, 0, n);
}

Tensor Zeros(Tensor like, DType dtype, Ints dims) { return like.emitter().Constant(dtype, 0, dims); }

Tensor Sizes(llvm::ArrayRef<Tensor> sizes) {
  llvm::SmallVector<Tensor> rows;
  for (Tensor size : sizes) rows.push_back(ir::Reshape(size, {1}));
  return ir::Concat(rows, 0);
}

struct Positions {
  Tensor rows;   // of all elements, those that are not zero in front
  Tensor count;  // of these
};

Positions NonZeros(Tensor x) {
  const int64_t n = x.elements(), rank = x.rank();
  Tensor mask = Flat(x.dtype() == DType::kBool ? x : ir::Ne(x, 0));
  if (n == 0) return {Zeros(x, DType::kInt64, {0, rank}), Number(x, 0)};
  if (rank == 0) return {Zeros(x, DType::kInt64, {1, 0}), ir::Reshape(ir::Convert(mask, DType::kInt64), {})};
  llvm::SmallVector<Tensor> coordinates;
  for (int64_t d = 0; d < rank; ++d) {
    coordinates.push_back(ir::Reshape(x.emitter().Iota(DType::kInt64, x.dims(), d), {n, 1}));
  }
  Tensor running = Running(mask);
  return {Packed(ir::Concat(coordinates, 1), mask, running), Last(running)};
}

Result NonZero(AtenCall& c) {  // (x)
  const Positions found = NonZeros(c.tensor(0));
  return {found.rows, Sizes({found.count})};
}

Result NonZeroStatic(AtenCall& c) {  // (x; size, fill_value)
  const Positions found = NonZeros(c.tensor(0));
  const Ints dims = c.result_dims();
  Tensor fill = c.emitter().Integer(DType::kInt64, c.integer(2), dims);
  if (found.rows.elements() == 0 || fill.elements() == 0) return fill;
  const int64_t n = found.rows.size(0);
  Tensor rows =
      dims[0] <= n ? ir::SliceDim(found.rows, 0, 0, dims[0]) : ir::Pad(found.rows, 0, {0, 0}, {dims[0] - n, 0});
  return ir::Select(ir::Lt(c.emitter().Iota(DType::kInt64, dims, 0), ir::BroadcastTo(found.count, dims)), rows, fill);
}

Result MaskedSelect(AtenCall& c) {  // (x, mask)
  Tensor x = c.tensor(0), mask = c.tensor(1);
  std::optional<Shape> dims = ir::BroadcastDims(x.dims(), mask.dims());
  if (!dims) return Result::Decline();
  mask = Flat(ir::BroadcastTo(mask, *dims));
  if (mask.elements() == 0) return {Zeros(x, x.dtype(), {0}), Sizes({Number(x, 0)})};
  Tensor running = Running(mask);
  return {Packed(Flat(ir::BroadcastTo(x, *dims)), mask, running), Sizes({Last(running)})};
}

// The first elements of source, in their order, where the mask is true.
Result MaskedScatter(AtenCall& c) {  // (x, mask, source)
  Tensor x = c.tensor(0), mask = c.tensor(1), source = Flat(c.tensor(2));
  const Ints dims = c.result_dims();
  if (source.elements() == 0 || source.dtype() != x.dtype()) return Result::Decline();
  mask = Flat(ir::BroadcastTo(mask, dims));
  if (mask.elements() == 0) return x;
  Tensor place = ir::Select(mask, Running(mask) - 1, Number(mask, 0));
  return ir::Reshape(ir::Select(mask, ir::Take(source, place, 0), Flat(ir::BroadcastTo(x, dims))), dims);
}

// (dy, mask; sizes): the elements under the mask in front, zeros behind them: the gradient of masked_scatter's source.
Result MaskedScatterBackward(AtenCall& c) {
  Tensor dy = c.tensor(0), mask = c.tensor(1);
  std::optional<Shape> dims = ir::BroadcastDims(dy.dims(), mask.dims());
  if (!dims) return Result::Decline();
  mask = Flat(ir::BroadcastTo(mask, *dims));
  const Ints sizes = c.result_dims();
  const int64_t n = mask.elements(), wanted = llvm::product_of(sizes, int64_t{1});
  if (n == 0 || wanted == 0) return Zeros(dy, dy.dtype(), sizes);
  Tensor packed = Packed(Flat(ir::BroadcastTo(dy, *dims)), mask, Running(mask));
  packed = wanted <= n ? ir::SliceDim(packed, 0, 0, wanted) : ir::Pad(packed, 0, {0}, {wanted - n});
  return ir::Reshape(packed, sizes);
}

// The first of each run of equal elements, each element's run, and their lengths. `order`: where the elements stood.
Result Runs(AtenCall& c, Tensor x, Tensor order, bool inverse, bool counts) {
  const int64_t n = x.size(0);
  Tensor none = Zeros(x, DType::kInt64, {0}), whole = Number(x, kWhole);
  if (n == 0) {
    return {x, inverse ? ir::Reshape(none, c.tensor(0).dims()) : none, none, Sizes({whole, whole, whole})};
  }
  Tensor begins = c.emitter().Constant(DType::kBool, 1, {1});
  if (n > 1) begins = ir::Concat({begins, ir::Ne(ir::SliceDim(x, 0, 1, n), ir::SliceDim(x, 0, 0, n - 1))}, 0);
  Tensor running = Running(begins), run = running - 1, found = Last(running);
  Tensor zeros = Zeros(x, DType::kInt64, {n});
  Tensor of_each = order ? ir::ScatterRows(ScatterKind::set, zeros, order, run, 0) : run;
  Tensor lengths = ir::ScatterRows(ScatterKind::add, zeros, run, c.emitter().Integer(DType::kInt64, 1, {n}), 0);
  return {Packed(x, begins, running), inverse ? ir::Reshape(of_each, c.tensor(0).dims()) : none,
          counts ? lengths : none, Sizes({found, whole, counts ? found : whole})};
}

Result Unique(AtenCall& c) {  // (x, sorted, return_inverse, return_counts)
  Tensor x = Flat(c.tensor(0));
  const DType dtype = x.dtype();
  if (x.elements() == 0) return Runs(c, x, Tensor(), c.boolean(2), c.boolean(3));
  if (dtype == DType::kBool) x = ir::Convert(x, DType::kUInt8);
  auto [sorted, order] = ir::Sort(x, 0, /*descending=*/false);
  return Runs(c, ir::Convert(sorted, dtype), order, c.boolean(2), c.boolean(3));
}

Result UniqueConsecutive(AtenCall& c) {  // (x, return_inverse, return_counts, dim)
  Tensor x = Flat(c.tensor(0));
  if (c.has(3)) return Result::Decline();
  return Runs(c, x, Tensor(), c.boolean(1), c.boolean(2));
}

}  // namespace

void RegisterCompact(Registry& r) {
  r.Add("aten::nonzero", NonZero, kBounds | kHostKernelFirst);
  r.Add("aten::nonzero_static", NonZeroStatic, kHostKernelFirst);
  r.Add("aten::masked_select", MaskedSelect, kBounds | kHostKernelFirst);
  r.Add("aten::masked_scatter", MaskedScatter, kHostKernelFirst);
  r.Add("aten::masked_scatter_backward", MaskedScatterBackward, kHostKernelFirst);
  r.Add("aten::_unique2", Unique, kBounds | kHostKernelFirst);
  r.Add("aten::unique_consecutive", UniqueConsecutive, kBounds | kHostKernelFirst);
}

}  // namespace tpu::aten
