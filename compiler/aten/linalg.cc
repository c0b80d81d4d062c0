// Factors of matrices and solutions by them: of small ones, and of others for devices that have them. Where host
// kernels run in place, a library's do, and for what has no lowering here.
#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"
#include "compiler/aten/small_matrices.h"

namespace tpu::aten {
namespace {

Tensor Transposed(Tensor x) { return ir::SwapDims(x, x.rank() - 2, x.rank() - 1); }
Tensor Adjoint(Tensor x) {
  x = Transposed(x);
  return IsComplex(x.dtype()) ? ir::Complex(ir::Real(x), -ir::Imaginary(x)) : x;
}

// Where each element of the matrices stands: its row, or its column.
Tensor Rows(Tensor x) { return x.emitter().Iota(DType::kInt32, x.dims(), x.rank() - 2); }
Tensor Columns(Tensor x) { return x.emitter().Iota(DType::kInt32, x.dims(), x.rank() - 1); }

Tensor Zeros(Tensor x) { return x.emitter().Constant(x.dtype(), 0, x.dims()); }
Tensor Eye(Tensor x) { return ir::Convert(ir::Eq(Rows(x), Columns(x)), x.dtype()); }

// With these rows and columns, of a batch that a matrix may be shared by.
Tensor OfBatch(Tensor x, Ints result) {
  Shape sizes(result.drop_back(2));
  sizes.append({x.size(-2), x.size(-1)});
  return ir::BroadcastTo(x, sizes);
}

Tensor Solved(Tensor a, Tensor b, bool upper, bool unit, Ints result) {
  if (a.elements() * b.elements() == 0) return a.emitter().Constant(b.dtype(), 0, result);
  a = OfBatch(a, result);
  b = OfBatch(b, result);
  return IsSmall(a) ? SolveSmallTriangular(a, b, upper, unit) : ir::TriangularSolve(a, b, upper, unit);
}

// By the lower triangular factor.
Tensor SolvedTwice(Tensor factor, Tensor b, Ints result) {
  return Solved(Adjoint(factor), Solved(factor, b, false, false, result), true, false, result);
}

// As SmallCholesky, but that what fails may be NaN throughout.
std::pair<Tensor, Tensor> WholeCholesky(Tensor x) {
  const Tensor row = Rows(x), column = Columns(x), factor = ir::Cholesky(x);
  const int64_t n = x.size(-1), last = x.rank() - 1;
  const Tensor size = IsComplex(x.dtype()) ? ir::Real(factor) : factor;
  const Tensor fails = IsNan(size) & ir::Eq(row, column);
  const Tensor first = ir::Reduce(ir::ReduceKind::min, ir::Select(fails, row + 1, n + 1), {last - 1, last}, false);
  return {ir::Select(column <= row, factor, Zeros(x)), ir::Select(first > n, 0, first)};
}

// (x, upper, check_errors) -> the factor, info
Result Cholesky(AtenCall& c) {
  const bool upper = c.boolean(1);
  const Tensor x = upper ? Adjoint(c.tensor(0)) : c.tensor(0);
  if (c.boolean(2)) return Result::Decline();
  if (x.elements() == 0) return {x, c.emitter().Constant(DType::kInt32, 0, c.result_dims(1))};
  const auto [lower, info] = IsSmall(x) ? SmallCholesky(x) : WholeCholesky(x);
  return {upper ? Adjoint(lower) : lower, info};
}

Result SolveTriangular(AtenCall& c) {  // (a, b, upper, left, unit diagonal)
  Tensor a = c.tensor(0), b = c.tensor(1);
  Shape result(c.result_dims());
  const bool upper = c.boolean(2), unit = c.boolean(4);
  if (c.boolean(3, true)) return Solved(a, b, upper, unit, result);
  std::swap(result[result.size() - 1], result[result.size() - 2]);
  return Transposed(Solved(Transposed(a), Transposed(b), !upper, unit, result));
}

Result SolveTriangularOnce(AtenCall& c) {  // (b, a, upper, transposed, unit diagonal) -> the solution, a
  const Tensor b = c.tensor(0), a = c.tensor(1);
  const bool upper = c.boolean(2, true), turned = c.boolean(3);
  return {Solved(turned ? Transposed(a) : a, b, upper != turned, c.boolean(4), c.result_dims()),
          ir::BroadcastTo(a, c.result_dims(1))};
}

Result SolveByFactor(AtenCall& c) {  // (b, factor, upper)
  const Tensor b = c.tensor(0), factor = c.tensor(1);
  return SolvedTwice(c.boolean(2) ? Adjoint(factor) : factor, b, c.result_dims());
}

Result InverseByFactor(AtenCall& c) {  // (factor, upper)
  const Tensor factor = c.tensor(0);
  return SolvedTwice(c.boolean(1) ? Adjoint(factor) : factor, Eye(factor), factor.dims());
}

// x where A x = b, or x A = b (not `left`); of the transposed A.
Tensor SolvedBy(const SmallLu& lu, Tensor b, bool left, bool transposed) {
  return left ? lu.Solve(b, transposed) : Transposed(lu.Solve(Transposed(b), !transposed));
}

Result LuFactor(AtenCall& c) {  // (A, pivot, check_errors) -> LU, pivots, info
  const Tensor x = c.tensor(0);
  if (!IsSmall(x) || !c.boolean(1, true) || c.boolean(2)) return Result::Decline();
  const SmallLu lu(x);
  return {lu.factors(), lu.pivots(), lu.info()};
}

Result LuSolve(AtenCall& c) {  // (LU, pivots, B, left, adjoint)
  const Tensor factors = c.tensor(0), b = c.tensor(2);
  if (!IsSmall(factors) || b.elements() == 0) return Result::Decline();
  return SolvedBy(SmallLu(factors, c.tensor(1)), b, c.boolean(3, true), c.boolean(4));
}

Result Inverse(AtenCall& c) {  // (A, check_errors) -> the inverse, info
  const Tensor x = c.tensor(0);
  if (!IsSmall(x) || c.boolean(1)) return Result::Decline();
  const SmallLu lu(x);
  return {lu.Solve(Eye(x), /*transposed=*/false), lu.info()};
}

Result Solve(AtenCall& c) {  // (A, B, left, check_errors) -> the solution, LU, pivots, info
  const Tensor a = c.tensor(0), b = c.tensor(1);
  if (!IsSmall(a) || b.elements() == 0 || c.boolean(3)) return Result::Decline();
  const bool vectors = b.rank() == 1 || (b.rank() + 1 == a.rank() && Ints(b.dims()) == Ints(a.dims()).drop_back());
  const SmallLu lu(a);
  const Tensor solution =
      SolvedBy(lu, vectors ? ir::Unsqueeze(b, b.rank()) : b, vectors || c.boolean(2, true), /*transposed=*/false);
  return {ir::Reshape(solution, c.result_dims()), lu.factors(), lu.pivots(), lu.info()};
}

// Where host kernels run in place, of small matrices alone. `matrix`: which argument is one.
Lowering OrLibrary(Result (*lowering)(AtenCall&), int matrix) {
  return [=](AtenCall& c) -> Result {
    return c.host_kernels() && !IsSmall(c.tensor(matrix)) ? Result::Decline() : lowering(c);
  };
}

}  // namespace

void RegisterLinalg(Registry& r) {
  r.Add("aten::linalg_cholesky_ex", OrLibrary(Cholesky, 0), kAnyElement);
  r.Add("aten::linalg_solve_triangular", OrLibrary(SolveTriangular, 0), kAnyElement);
  r.Add("aten::triangular_solve", OrLibrary(SolveTriangularOnce, 1), kAnyElement);
  r.Add("aten::_cholesky_solve_helper", OrLibrary(SolveByFactor, 1), kAnyElement);
  r.Add("aten::cholesky_inverse", OrLibrary(InverseByFactor, 0), kAnyElement);
  r.Add("aten::linalg_lu_factor_ex", LuFactor);
  r.Add("aten::linalg_lu_solve", LuSolve);
  r.Add("aten::linalg_inv_ex", Inverse);
  r.Add("aten::_linalg_solve_ex", Solve);
}

}  // namespace tpu::aten
