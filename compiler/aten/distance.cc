// Distances between rows: norms of their differences, and the gradients of these.
#include <algorithm>
#include <cmath>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

// [.., p, m], [.., r, m] -> [.., p, r, m].
Tensor Differences(Tensor a, Tensor b) { return ir::Unsqueeze(a, a.rank() - 1) - ir::Unsqueeze(b, b.rank() - 2); }

// The CPU has no kernels of half types, and says so.
bool Declined(Tensor x) { return x.dtype() != DType::kFloat32 && x.dtype() != DType::kFloat64; }
Tensor Zeros(AtenCall& c) { return c.emitter().Constant(c.result_dtype(), 0, c.result_dims()); }

// Rows of fewer columns than a vector has elements of f32 are combined for many pairs at once: columns first.
bool FewColumns(Tensor x) { return x.size(-1) < 16; }
Tensor ColumnsFirst(Tensor x) {
  Shape order(AllDims(x));
  std::rotate(order.begin(), order.end() - 1, order.end());
  return ir::Transpose(x, order);
}
Tensor ColumnsLast(Tensor x) {
  Shape order(AllDims(x));
  std::rotate(order.begin(), order.begin() + 1, order.end());
  return ir::Transpose(x, order);
}

// What is no number counts as itself, as on the CPU, where vectors' norms differ.
Tensor NormOfRows(Tensor x, double p, Ints dims) {
  const bool few = FewColumns(x);
  const int64_t columns = few ? 0 : x.rank() - 1;
  if (few) x = ColumnsFirst(x);
  if (p == 0) x = ir::Select(IsNan(x), x, ir::Convert(ir::Ne(x, 0), x.dtype()));
  return ir::Reshape(VectorNorm(x, p == 0 ? 1 : p, {columns}), dims);
}

// The gradients of the rows of `a`, by the distances of order p and their gradients. The differences are turned: a
// fragment that has those of the distances, too, would keep them all.
Tensor Pull(Tensor a, Tensor b, Tensor distance, Tensor grad, double p) {
  Tensor difference = ir::Unsqueeze(b, b.rank() - 2) - ir::Unsqueeze(a, a.rank() - 1);
  grad = -grad;
  const bool few = FewColumns(difference);
  if (few) difference = ColumnsFirst(difference);
  if (!few) distance = ir::Unsqueeze(distance, distance.rank()), grad = ir::Unsqueeze(grad, grad.rank());
  const auto each = [&]() -> Tensor {
    const Tensor size = ir::Abs(difference), pull = grad * ir::Sign(difference);
    if (p == 0) return difference.emitter().Constant(difference.dtype(), 0, difference.dims());
    if (p == 1) return ir::Select(IsNan(difference), difference, pull);
    if (std::isinf(p)) return pull * (1.0 - ir::Min(ir::Ceil(ir::Abs(size - distance)), 1));
    const auto power = [p](Tensor x) { return PowStatic(x, p - 1, x.dtype()); };
    const Tensor scaled = p == 2 ? grad * difference / distance : pull * power(size) / power(distance);
    const Tensor no_distance = ir::Eq(distance, 0);
    return ir::Select(p < 1 ? no_distance | ir::Eq(difference, 0) : no_distance, 0, scaled);
  };
  const Tensor sum = ir::Sum(each(), {difference.rank() - (few ? 1 : 2)});
  return few ? ColumnsLast(sum) : sum;
}

Result Between(AtenCall& c) {  // (a, b, p, _)
  Tensor differences = Differences(c.tensor(0), c.tensor(1));
  if (Declined(differences)) return Result::Decline();
  if (differences.elements() == 0) return Zeros(c);  // also of no columns, which have no greatest
  const double p = c.real(2);
  if (std::isinf(p)) differences = ir::Select(IsNan(differences), 0, differences);  // so the CPU, but not in Within
  return NormOfRows(differences, p, c.result_dims());
}

Result BetweenBackward(AtenCall& c) {  // (grad, a, b, p, distances)
  const Tensor a = c.tensor(1), b = c.tensor(2);
  if (Declined(a)) return Result::Decline();
  if (a.elements() == 0 || b.elements() == 0) return Zeros(c);
  return Pull(a, b, c.tensor(4), c.tensor(0), c.real(3));
}

// Pairs i < j of n rows are numbered by i, then by j: the first one of i is i * (2n - i - 1) / 2.
Result Within(AtenCall& c) {  // (x, p)
  const Tensor x = c.tensor(0);
  if (Declined(x)) return Result::Decline();
  if (c.result_dims()[0] == 0 || x.elements() == 0) return Zeros(c);
  const double n = static_cast<double>(x.size(0)), middle = n - 0.5;
  const Tensor pair = c.emitter().Iota(DType::kInt64, c.result_dims(), 0), at = ir::Convert(pair, DType::kFloat64);
  const Tensor i = ir::Convert(middle - ir::Sqrt(middle * middle - 2.0 * at - 1.0), DType::kInt64);
  const Tensor j = pair - ir::Shr(i * (2 * n - 1 - i), 1) + i + 1;
  return ir::Take(NormOfRows(Differences(x, x), c.real(1, 2), {x.size(0) * x.size(0)}), i * n + j, 0);
}

Result WithinBackward(AtenCall& c) {  // (grad, x, p, distances)
  const Tensor x = c.tensor(1);
  if (Declined(x)) return Result::Decline();
  if (x.elements() == 0 || x.size(0) < 2) return Zeros(c);
  const int64_t n = x.size(0);
  const Tensor row = c.emitter().Iota(DType::kInt64, {n, n}, 0), column = c.emitter().Iota(DType::kInt64, {n, n}, 1);
  const Tensor i = ir::Min(row, column), j = ir::Max(row, column), same = ir::Eq(i, j);
  const Tensor pair = Flat(ir::Select(same, 0, ir::Shr(i * (2.0 * n - 1 - i), 1) + j - i - 1));
  const auto of_pairs = [&](Tensor each) { return ir::Reshape(ir::Take(each, pair, 0), {n, n}); };
  return Pull(x, x, of_pairs(c.tensor(3)), of_pairs(c.tensor(0)), c.real(2));
}

}  // namespace

void RegisterDistance(Registry& r) {
  r.Add("aten::_cdist_forward", Between, kStaticScalars);
  r.Add("aten::_cdist_backward", BetweenBackward, kStaticScalars);
  r.Add("aten::_pdist_forward", Within, kStaticScalars);
  r.Add("aten::_pdist_backward", WithinBackward, kStaticScalars);
}

}  // namespace tpu::aten
