// Matrix products. Products of half types accumulate in f32 and round once, after the epilogue.
#include <numeric>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {

Tensor WeighAlong(Tensor x, Tensor weights, int64_t d) {
  Tensor moved = ir::Dot(x, weights, {}, {}, {d}, {0}, x.dtype());  // the new dim comes last
  Shape permutation(x.rank() - 1);
  std::iota(permutation.begin(), permutation.end(), 0);
  permutation.insert(permutation.begin() + d, x.rank() - 1);
  return ir::Transpose(moved, permutation);
}

Tensor MatMul(Tensor a, Tensor b, DType result) {
  Shape batch;
  for (int64_t d = 0; d < a.rank() - 2; ++d) batch.push_back(d);
  return ir::Dot(a, b, batch, batch, {a.rank() - 1}, {b.rank() - 2}, result);
}

namespace {

DType Product(AtenCall& c) { return OpMath(c.result_dtype()); }

// beta * self + alpha * product; self is not read where beta is 0 (its NaN does not count).
Tensor Combine(AtenCall& c, Tensor product, int beta, int alpha) {
  DType dtype = product.dtype();
  if (c.has(alpha)) product = product * c.as(alpha, dtype);
  Tensor self = c.as(0, dtype);
  if (!c.has(beta)) return self + product;
  Tensor scale = c.as(beta, dtype);
  return ir::Select(ir::Eq(scale, 0), 0, self * scale) + product;
}

Result Product2(AtenCall& c) {  // mm, bmm
  if (c.tensor(0).dtype() != c.tensor(1).dtype()) return Result::Decline();
  return MatMul(c.tensor(0), c.tensor(1), c.result_dtype());
}

Result AddProduct(AtenCall& c) {  // addmm, baddbmm (self, a, b, beta, alpha)
  if (c.tensor(1).dtype() != c.tensor(2).dtype()) return Result::Decline();
  return Combine(c, MatMul(c.tensor(1), c.tensor(2), Product(c)), 3, 4);
}

Result AddMatrixVector(AtenCall& c) {
  return Combine(c, ir::Dot(c.tensor(1), c.tensor(2), {}, {}, {1}, {0}, Product(c)), 3, 4);
}

Result MatrixVector(AtenCall& c) { return ir::Dot(c.tensor(0), c.tensor(1), {}, {}, {1}, {0}, c.result_dtype()); }

Result VectorVector(AtenCall& c) { return ir::Dot(c.tensor(0), c.tensor(1), {}, {}, {0}, {0}, c.result_dtype()); }

Result AddBatchSum(AtenCall& c) {  // addbmm: the batch is contracted too
  return Combine(c, ir::Dot(c.tensor(1), c.tensor(2), {}, {}, {0, 2}, {0, 1}, Product(c)), 3, 4);
}

Result AddOuter(AtenCall& c) {
  Tensor outer = ir::Unsqueeze(c.as(1, Product(c)), 1) * ir::Unsqueeze(c.as(2, Product(c)), 0);
  return Combine(c, outer, 3, 4);
}

// Of half types each product is rounded, as PyTorch's are: what cancels is what their difference would show.
Result Cross(AtenCall& c) {  // (a, b, dim)
  const Tensor a = c.as(0, c.promoted()), b = c.as(1, c.promoted());
  if (a.dtype() == DType::kBool || a.rank() != b.rank()) return Result::Decline();
  const int64_t dim = c.dim(2, a.rank(), -1);
  llvm::SmallVector<Tensor> parts;
  for (int64_t k = 0; k < 3; ++k) {
    const auto part = [&](Tensor x, int64_t at) { return ir::SliceDim(x, dim, at % 3, at % 3 + 1); };
    parts.push_back(part(a, k + 1) * part(b, k + 2) - part(a, k + 2) * part(b, k + 1));
  }
  return ir::Concat(parts, dim);
}

// _grouped_mm(a, b, offsets, bias, out_dtype): group g lies along the one dim of 2-dim operands that 3-dim ones lack,
// from offsets[g - 1] to offsets[g]. As one product in which nothing of a group meets another: what it costs is as many
// times more as there are groups, which a matrix unit may afford. Rows beyond the last group are 0.
Result GroupedProduct(AtenCall& c) {
  Tensor a = c.tensor(0), b = c.tensor(1);
  if (c.has(3) || a.dtype() != b.dtype()) return Result::Decline();
  if (a.rank() == 3 && b.rank() == 3) return MatMul(a, b, c.result_dtype());
  if (!c.is_tensor(2)) return Result::Decline();
  const Tensor end = c.as(2, DType::kInt64);
  const int64_t groups = end.size(0);
  const Tensor begin = ir::SliceDim(ir::Pad(end, 0, {1}, {0}), 0, 0, groups);
  // What of x belongs to the group that dim `group` numbers, told by the position along dim `along`; 0 elsewhere.
  const auto own = [&](Tensor x, int64_t group, int64_t along) {
    const Tensor at = c.emitter().Iota(DType::kInt64, x.dims(), along);
    Shape dims(x.dims());
    const auto bound = [&](Tensor of_group) { return ir::BroadcastAlong(of_group, dims, {group}); };
    return ir::Select((at >= bound(begin)) & (at < bound(end)), x, 0);
  };
  const auto of_groups = [&](Tensor x, int64_t group) {  // repeated along a new dim
    Shape dims(x.dims());
    dims.insert(dims.begin() + group, groups);
    return ir::BroadcastTo(ir::Unsqueeze(x, group), dims);
  };
  if (b.rank() == 3) return ir::Dot(own(of_groups(a, 1), 1, 0), b, {}, {}, {1, 2}, {0, 1}, c.result_dtype());
  if (a.rank() == 3) return ir::Dot(a, own(of_groups(b, 0), 0, 2), {}, {}, {0, 2}, {0, 1}, c.result_dtype());
  return ir::Dot(own(of_groups(a, 0), 0, 2), b, {}, {}, {2}, {0}, c.result_dtype());
}

}  // namespace

void RegisterMatmul(Registry& r) {
  r.Add({"aten::mm", "aten::bmm", "aten::mm.dtype", "aten::bmm.dtype"}, Product2, kLibraryCall | kProducts);
  r.Add({"aten::addmm", "aten::baddbmm"}, AddProduct, kLibraryCall | kProducts);
  r.Add("aten::addmv", AddMatrixVector, kLibraryCall | kProducts);
  r.Add("aten::addbmm", AddBatchSum, kLibraryCall | kProducts);
  r.Add("aten::addr", AddOuter);
  r.Add("aten::linalg_cross", Cross);
  r.Add("aten::_grouped_mm", GroupedProduct, kLibraryCall | kProducts | kHostKernelFirst);
  r.Add("aten::mv", MatrixVector, kProducts);
  r.Add({"aten::dot", "aten::vdot"}, VectorVector, kProducts);
}

}  // namespace tpu::aten
