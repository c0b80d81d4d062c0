// Factors of small square matrices and solutions by them, element by element, so that a batch is computed side by side
// and together with what is around it. Larger ones stay host kernels.
//
// As LAPACK's getrf and getrs do: rows are exchanged for the largest element of each column, the first of equal ones.
#include <utility>
#include <vector>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

constexpr int64_t kMostRows = 4;

// One tensor for each row, [.., 1, columns].
using RowsOf = std::vector<Tensor>;
// One for each element, [.., 1, 1], by row and column.
using Elements = std::vector<RowsOf>;

RowsOf Split(Tensor x, int64_t dim) {
  RowsOf parts;
  for (int64_t i = 0; i < x.size(dim); ++i) parts.push_back(ir::SliceDim(x, dim, i, i + 1));
  return parts;
}

Elements ElementsOf(Tensor x) {
  Elements elements;
  for (const Tensor row : Split(x, x.rank() - 2)) elements.push_back(Split(row, x.rank() - 1));
  return elements;
}

Tensor Joined(const RowsOf& rows) { return ir::Concat(rows, rows.front().rank() - 2); }
Tensor Joined(const Elements& elements) {
  RowsOf rows;
  for (const RowsOf& row : elements) rows.push_back(ir::Concat(row, row.front().rank() - 1));
  return Joined(rows);
}

void ExchangeIf(Tensor holds, Tensor& a, Tensor& b) {
  const Tensor first = ir::Select(holds, b, a);
  b = ir::Select(holds, a, b);
  a = first;
}

bool IsSmall(Tensor x) { return x.size(-1) == x.size(-2) && x.size(-1) <= kMostRows && x.elements() > 0; }

struct Factors {
  Elements lu;    // the unit lower factor below the diagonal, the upper one on it and above
  RowsOf pivots;  // [.., 1, 1]: the row that each was exchanged for, counted from 1
  Tensor info;    // [.., 1, 1]: the first pivot that is 0, counted from 1; 0 where none is

  Tensor Pivots() const { return ir::Concat(pivots, pivots.front().rank() - 1); }
};

Factors Factor(Tensor x) {
  Emitter& e = x.emitter();
  Factors f{ElementsOf(x), {}, {}};
  const auto n = static_cast<int64_t>(f.lu.size());
  const Shape one(f.lu[0][0].dims());
  const auto number = [&](int64_t value) { return e.Integer(DType::kInt32, value, one); };
  f.info = number(0);
  for (int64_t k = 0; k < n; ++k) {
    RowsOf& upper = f.lu[k];
    Tensor largest = ir::Abs(upper[k]), pivot = number(k + 1);
    for (int64_t i = k + 1; i < n; ++i) {
      const Tensor size = ir::Abs(f.lu[i][k]), larger = ir::Gt(size, largest);
      pivot = ir::Select(larger, number(i + 1), pivot);
      largest = ir::Select(larger, size, largest);
    }
    for (int64_t i = k + 1; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) ExchangeIf(ir::Eq(pivot, number(i + 1)), upper[j], f.lu[i][j]);
    }
    f.pivots.push_back(pivot);
    const Tensor none = ir::Eq(upper[k], 0);
    f.info = ir::Select(none & ir::Eq(f.info, number(0)), number(k + 1), f.info);
    for (int64_t i = k + 1; i < n; ++i) {
      RowsOf& row = f.lu[i];
      row[k] = ir::Select(none, row[k], row[k] / upper[k]);
      for (int64_t j = k + 1; j < n; ++j) row[j] = row[j] - row[k] * upper[j];
    }
  }
  return f;
}

// The rows of x where A x = b, or of the transposed A.
RowsOf Solved(const Elements& lu, const RowsOf& pivots, RowsOf b, bool transposed) {
  const auto n = static_cast<int64_t>(lu.size());
  const auto exchange = [&](int64_t k) {
    for (int64_t i = k + 1; i < n; ++i) {
      ExchangeIf(ir::Eq(pivots[k], pivots[k].emitter().Integer(DType::kInt32, i + 1, pivots[k].dims())), b[k], b[i]);
    }
  };
  for (int64_t k = 0; k < n && !transposed; ++k) exchange(k);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) b[i] = b[i] - (transposed ? lu[j][i] : lu[i][j]) * b[j];
    if (transposed) b[i] = b[i] / lu[i][i];
  }
  for (int64_t i = n; i-- > 0;) {
    for (int64_t j = i + 1; j < n; ++j) b[i] = b[i] - (transposed ? lu[j][i] : lu[i][j]) * b[j];
    if (!transposed) b[i] = b[i] / lu[i][i];
  }
  for (int64_t k = n; k-- > 0 && transposed;) exchange(k);
  return b;
}

// x where A x = b, or x A = b (not `left`).
Tensor Solution(const Elements& lu, const RowsOf& pivots, Tensor b, bool left, bool transposed) {
  const auto turned = [](Tensor x) { return ir::SwapDims(x, x.rank() - 2, x.rank() - 1); };
  if (!left) return turned(Solution(lu, pivots, turned(b), true, !transposed));
  return Joined(Solved(lu, pivots, Split(b, b.rank() - 2), transposed));
}

Result LuFactor(AtenCall& c) {  // (A, pivot, check_errors) -> LU, pivots, info
  const Tensor x = c.tensor(0);
  if (!IsSmall(x) || !c.boolean(1, true) || c.boolean(2)) return Result::Decline();
  const Factors f = Factor(x);
  return {Joined(f.lu), ir::Reshape(f.Pivots(), c.result_dims(1)), ir::Reshape(f.info, c.result_dims(2))};
}

Result LuSolve(AtenCall& c) {  // (LU, pivots, B, left, adjoint)
  const Tensor lu = c.tensor(0);
  if (!IsSmall(lu) || c.tensor(2).elements() == 0) return Result::Decline();
  const Tensor pivots = ir::Unsqueeze(c.tensor(1), lu.rank() - 2);
  return Solution(ElementsOf(lu), Split(pivots, lu.rank() - 1), c.tensor(2), c.boolean(3, true), c.boolean(4));
}

Result Inverse(AtenCall& c) {  // (A, check_errors) -> the inverse, info
  const Tensor x = c.tensor(0);
  if (!IsSmall(x) || c.boolean(1)) return Result::Decline();
  const Factors f = Factor(x);
  const Shape whole(x.dims());
  const auto place = [&](int64_t dim) { return x.emitter().Iota(DType::kInt32, whole, dim); };
  const Tensor unit = ir::Convert(ir::Eq(place(x.rank() - 2), place(x.rank() - 1)), x.dtype());
  return {Solution(f.lu, f.pivots, unit, true, false), ir::Reshape(f.info, c.result_dims(1))};
}

Result Solve(AtenCall& c) {  // (A, B, left, check_errors) -> the solution, LU, pivots, info
  const Tensor a = c.tensor(0), b = c.tensor(1);
  if (!IsSmall(a) || b.elements() == 0 || c.boolean(3)) return Result::Decline();
  const Ints batch = Ints(a.dims()).drop_back();
  const bool vectors = b.rank() == 1 || (b.rank() + 1 == a.rank() && Ints(b.dims()) == batch);
  const Factors f = Factor(a);
  const Tensor solution =
      Solution(f.lu, f.pivots, vectors ? ir::Unsqueeze(b, b.rank()) : b, vectors || c.boolean(2, true), false);
  return {ir::Reshape(solution, c.result_dims()), Joined(f.lu), ir::Reshape(f.Pivots(), c.result_dims(2)),
          ir::Reshape(f.info, c.result_dims(3))};
}

}  // namespace

void RegisterSmallMatrices(Registry& r) {
  r.Add("aten::linalg_lu_factor_ex", LuFactor);
  r.Add("aten::linalg_lu_solve", LuSolve);
  r.Add("aten::linalg_inv_ex", Inverse);
  r.Add("aten::_linalg_solve_ex", Solve);
}

}  // namespace tpu::aten
