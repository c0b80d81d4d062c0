// Bags of embeddings: rows of a table, summed, averaged or compared by bag. A bag is where a list of indices lies
// between two offsets.
#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

using ir::ScatterKind;

enum Mode : int64_t { kSum, kMean, kMax };

Tensor List(AtenCall& c, int i) { return Flat(c.as(i, DType::kInt64)); }
Tensor Zeros(Tensor like, Ints dims) { return like.emitter().Constant(like.dtype(), 0, dims); }

// Of each index the bag that it lies in: how many bags begin up to there, beside the first. A bag may begin behind all
// indices; one that begins elsewhere, or a first that doesn't begin at 0, is an index out of range.
Tensor BagOfEach(Tensor offsets, int64_t count) {
  Emitter& e = offsets.emitter();
  const Tensor end = e.Integer(DType::kInt64, count), first = ir::SliceDim(offsets, 0, 0, 1);
  const Tensor behind = ir::Eq(offsets, end), is_first = ir::Eq(e.Iota(DType::kInt64, offsets.dims(), 0), 0);
  const Tensor begins = ir::Convert(ir::Not(behind | is_first), DType::kInt64);
  const Tensor places = ir::Select(ir::BroadcastTo(ir::Eq(first, 0), offsets.dims()),
                                   ir::Select(behind, static_cast<double>(count - 1), offsets), -1);
  return ir::Scan(ir::ReduceKind::sum, ir::ScatterRows(ScatterKind::add, Zeros(offsets, {count}), places, begins, 0),
                  0);
}

// How many indices each bag has, beside padding.
Tensor SizeOfEach(Tensor offsets, Tensor bag, Tensor padded) {
  const int64_t bags = offsets.size(0);
  const Tensor end = offsets.emitter().Integer(DType::kInt64, bag.size(0), {1});
  const Tensor sizes = ir::Concat({ir::SliceDim(offsets, 0, 1, bags), end}, 0) - offsets;
  if (!padded) return sizes;
  return sizes - ir::ScatterRows(ScatterKind::add, Zeros(sizes, {bags}), bag, ir::Convert(padded, DType::kInt64), 0);
}

Tensor Divisor(Tensor sizes, DType dtype) { return ir::Unsqueeze(ir::Convert(ir::Max(sizes, 1), dtype), 1); }

// Of each bag and column the largest element and the index of its row: the first of equal ones. A NaN is the largest
// where it comes first, and none otherwise.
std::pair<Tensor, Tensor> Largest(Tensor weight, Tensor indices, Tensor bag, Tensor padded, Tensor sizes) {
  Emitter& e = weight.emitter();
  const int64_t count = indices.size(0), bags = sizes.size(0), width = weight.size(1);
  const Tensor position = e.Iota(DType::kInt64, {count}, 0), last = e.Integer(DType::kInt64, count, {count});
  const Tensor counted = padded ? ir::Select(padded, last, position) : position;
  const Tensor first = ir::ScatterRows(ScatterKind::min, e.Integer(DType::kInt64, count, {bags}), bag, counted, 0);
  const Tensor is_first = ir::Unsqueeze(ir::Eq(ir::Take(first, bag, 0), counted), 1);
  const Tensor rows = ir::Take(weight, indices, 0), lowest = e.Lowest(rows.dtype(), rows.dims());
  Tensor left_out = ir::IsNan(rows) & ir::BroadcastTo(ir::Not(is_first), rows.dims());
  if (padded) left_out = left_out | ir::BroadcastTo(ir::Unsqueeze(padded, 1), rows.dims());
  const Tensor candidates = ir::Select(left_out, lowest, rows);
  const Tensor most = ir::ScatterRows(ScatterKind::max, e.Lowest(rows.dtype(), {bags, width}), bag, candidates, 0);
  Tensor is_most = ir::Eq(ir::Take(most, bag, 0), candidates) | ir::IsNan(candidates);
  if (padded) is_most = is_most & ir::BroadcastTo(ir::Unsqueeze(ir::Not(padded), 1), rows.dims());
  const Tensor places = ir::Select(is_most, ir::BroadcastTo(ir::Unsqueeze(position, 1), rows.dims()), count - 1);
  const Tensor place =
      ir::ScatterRows(ScatterKind::min, e.Integer(DType::kInt64, count - 1, {bags, width}), bag, places, 0);
  const Tensor any = ir::BroadcastTo(ir::Unsqueeze(sizes > 0, 1), most.dims());
  return {ir::Select(any, most, 0), ir::Select(any, ir::Take(indices, place, 0), 0)};
}

// (weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx)
// -> the bags; of each index its bag; of each bag its size; of each largest element its row.
Result EmbeddingBag(AtenCall& c) {
  const Tensor weight = c.tensor(0), indices = List(c, 1);
  Tensor offsets = List(c, 2);
  const int64_t mode = c.integer(4), padding = c.integer(8, -1), count = indices.size(0);
  if (c.boolean(7)) offsets = ir::SliceDim(offsets, 0, 0, offsets.size(0) - 1);
  const int64_t bags = offsets.size(0);
  if (weight.elements() == 0 && count > 0) return Result::Decline();  // the CPU's kernel checks the indices
  Emitter& e = c.emitter();
  const DType compute = OpMath(weight.dtype());
  const Tensor none = e.Integer(DType::kInt64, 0, c.result_dims(3));
  if (count == 0 || bags == 0) {
    return {Zeros(weight, c.result_dims()), Zeros(offsets, {count}), Zeros(offsets, c.result_dims(2)), none};
  }
  const Tensor bag = BagOfEach(offsets, count);
  const Tensor padded = padding >= 0 ? ir::Eq(indices, e.Integer(DType::kInt64, padding)) : Tensor();
  const Tensor sizes = SizeOfEach(offsets, bag, padded);
  const int64_t beyond = c.result_dims(2)[0] - bags;
  const Tensor all_sizes = beyond > 0 ? ir::Concat({sizes, Zeros(sizes, {beyond})}, 0) : sizes;
  if (mode == kMax) {
    const auto [most, rows] = Largest(weight, indices, bag, padded, sizes);
    return {most, bag, all_sizes, rows};
  }
  const Tensor factors = c.has(6) ? Flat(c.as(6, compute)) : Tensor();
  const Tensor to = padded ? ir::Select(padded, e.Integer(DType::kInt64, -1, {count}), bag) : bag;
  Tensor sums = ir::SumTaken(weight, indices, to, bags, compute, factors, /*sorted=*/!padded);
  if (mode == kMean) sums = sums / Divisor(sizes, compute);
  return {sums, bag, all_sizes, none};
}

// (grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights,
// padding_idx)
Result DenseBackward(AtenCall& c) {
  if (c.boolean(6)) return Result::Decline();  // the CPU's divides by how often another index occurs
  Tensor grad = c.tensor(0);
  const Tensor indices = List(c, 1), bag = List(c, 2);
  const int64_t mode = c.integer(7), padding = c.integer(9, -1), rows = c.integer(5), count = indices.size(0);
  const int64_t bags = grad.size(0), width = grad.size(1);
  const DType compute = OpMath(grad.dtype());
  Emitter& e = c.emitter();
  if (bags == 0 || width == 0 || rows == 0 || (mode != kMax && count == 0)) return Zeros(grad, {rows, width});
  if (bag.size(0) != count || c.tensor(3).size(0) < bags) return Result::Decline();  // the CPU's own, left out
  const Tensor sizes = ir::SliceDim(List(c, 3), 0, 0, bags);
  if (mode == kMax) {
    const Tensor given = ir::Select(ir::Unsqueeze(ir::Ne(sizes, 0), 1), ir::Convert(grad, compute), 0);
    const Tensor at = c.as(4, DType::kInt64);
    return ir::Scatter(ScatterKind::add, e.Constant(compute, 0, {rows, width}), at, given, 0);
  }
  if (mode == kMean) grad = ir::Convert(grad, compute) / Divisor(sizes, compute);
  const Tensor factors = c.has(8) ? Flat(c.as(8, compute)) : Tensor();
  Tensor to = indices;
  if (padding >= 0) to = ir::Select(ir::Eq(indices, e.Integer(DType::kInt64, padding)), -1, indices);
  return ir::SumTaken(grad, bag, to, rows, compute, factors, /*sorted=*/false);
}

// (grad, weight, indices, offsets, offset2bag, mode, padding_idx)
Result FactorsBackward(AtenCall& c) {
  const Tensor indices = List(c, 2), bag = List(c, 4);
  const DType compute = OpMath(c.result_dtype());
  const int64_t padding = c.integer(6, -1), count = indices.size(0);
  if (count == 0 || c.tensor(0).elements() == 0) return c.emitter().Constant(compute, 0, {count});
  if (bag.size(0) != count) return Result::Decline();
  const auto rows = [&](int i, Tensor at) { return ir::Convert(ir::Take(c.tensor(i), at, 0), compute); };
  const Tensor slopes = ir::Sum(rows(0, bag) * rows(1, indices), {1});
  if (padding < 0) return slopes;
  return ir::Select(ir::Eq(indices, c.emitter().Integer(DType::kInt64, padding)), 0, slopes);
}

}  // namespace

void RegisterBags(Registry& r) {
  r.Add({"aten::_embedding_bag", "aten::_embedding_bag_forward_only"}, EmbeddingBag);
  r.Add("aten::_embedding_bag_dense_backward", DenseBackward);
  r.Add("aten::_embedding_bag_per_sample_weights_backward", FactorsBackward);
}

}  // namespace tpu::aten
