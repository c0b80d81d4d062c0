#include "compiler/aten/small_matrices.h"

#include <cstdint>
#include <limits>

namespace tpu::aten {
namespace {

constexpr int64_t kMostRows = 4;

using Rows = std::vector<Tensor>;    // of a matrix: [.., 1, columns]; or of one row its elements
using Elements = std::vector<Rows>;  // by row and column: [.., 1, 1]

Rows Split(Tensor x, int64_t dim) {
  Rows parts;
  for (int64_t i = 0; i < x.size(dim); ++i) parts.push_back(ir::SliceDim(x, dim, i, i + 1));
  return parts;
}
Rows RowsOf(Tensor x) { return Split(x, x.rank() - 2); }
Elements ElementsOf(Tensor x) {
  Elements elements;
  for (const Tensor row : RowsOf(x)) elements.push_back(Split(row, x.rank() - 1));
  return elements;
}

Tensor Joined(const Rows& rows) { return ir::Concat(rows, rows.front().rank() - 2); }
Tensor Joined(const Elements& elements) {
  Rows rows;
  for (const Rows& row : elements) rows.push_back(ir::Concat(row, row.front().rank() - 1));
  return Joined(rows);
}

Tensor Number(Tensor like, size_t value) {
  return like.emitter().Integer(DType::kInt32, static_cast<int64_t>(value), like.dims());
}

Tensor WithoutMatrix(Tensor element) { return ir::Reshape(element, Ints(element.dims()).drop_back(2)); }

void ExchangeIf(Tensor holds, Tensor& a, Tensor& b) {
  const Tensor first = ir::Select(holds, b, a);
  b = ir::Select(holds, a, b);
  a = first;
}

// By the triangle below the diagonal of `a`, or above it, or of the transposed `a`.
void Substitute(const Elements& a, Rows& b, bool upper, bool unit, bool transposed) {
  const size_t n = a.size();
  const auto element = [&](size_t i, size_t j) { return transposed ? a[j][i] : a[i][j]; };
  for (size_t step = 0; step < n; ++step) {
    const size_t i = upper ? n - 1 - step : step;
    for (size_t j = upper ? i + 1 : 0; j < (upper ? n : i); ++j) b[i] = b[i] - element(i, j) * b[j];
    if (!unit) b[i] = b[i] / element(i, i);
  }
}

}  // namespace

bool IsSmall(Tensor x) {
  return !IsComplex(x.dtype()) && x.size(-1) == x.size(-2) && x.size(-1) <= kMostRows && x.elements() > 0;
}

SmallLu::SmallLu(Tensor x) : lu_(ElementsOf(x)), info_(Number(lu_[0][0], 0)) {
  for (size_t k = 0; k < lu_.size(); ++k) {
    Rows& upper = lu_[k];
    Tensor largest = ir::Abs(upper[k]), pivot = Number(largest, k + 1);
    for (size_t i = k + 1; i < lu_.size(); ++i) {
      const Tensor size = ir::Abs(lu_[i][k]), larger = ir::Gt(size, largest);
      pivot = ir::Select(larger, Number(pivot, i + 1), pivot);
      largest = ir::Select(larger, size, largest);
    }
    pivots_.push_back(pivot);
    for (size_t j = 0; j < lu_.size(); ++j) {
      Rows column;
      for (const Rows& row : lu_) column.push_back(row[j]);
      ExchangeIfPivot(k, column);
      for (size_t i = k; i < lu_.size(); ++i) lu_[i][j] = column[i];
    }
    const Tensor none = ir::Eq(upper[k], 0);
    info_ = ir::Select(none & ir::Eq(info_, Number(info_, 0)), Number(info_, k + 1), info_);
    for (size_t i = k + 1; i < lu_.size(); ++i) {
      Rows& row = lu_[i];
      row[k] = ir::Select(none, row[k], row[k] / upper[k]);
      for (size_t j = k + 1; j < lu_.size(); ++j) row[j] = row[j] - row[k] * upper[j];
    }
  }
}

SmallLu::SmallLu(Tensor factors, Tensor pivots)
    : lu_(ElementsOf(factors)), pivots_(Split(ir::Unsqueeze(pivots, pivots.rank() - 1), pivots.rank())) {}

Tensor SmallLu::factors() const { return Joined(lu_); }

Tensor SmallLu::pivots() const {
  const Tensor all = ir::Concat(pivots_, pivots_[0].rank() - 1);
  Shape dims(all.dims());
  dims.erase(dims.end() - 2);
  return ir::Reshape(all, dims);
}

Tensor SmallLu::info() const { return WithoutMatrix(info_); }

void SmallLu::ExchangeIfPivot(size_t row, Rows& rows) const {
  for (size_t i = row + 1; i < rows.size(); ++i) {
    ExchangeIf(ir::Eq(pivots_[row], Number(pivots_[row], i + 1)), rows[row], rows[i]);
  }
}

Tensor SmallLu::Solve(Tensor b, bool transposed) const {
  Rows rows = RowsOf(b);
  for (size_t k = 0; k < rows.size() && !transposed; ++k) ExchangeIfPivot(k, rows);
  Substitute(lu_, rows, /*upper=*/false, /*unit=*/!transposed, transposed);
  Substitute(lu_, rows, /*upper=*/true, /*unit=*/transposed, transposed);
  for (size_t k = rows.size(); k-- > 0 && transposed;) ExchangeIfPivot(k, rows);
  return Joined(rows);
}

std::pair<Tensor, Tensor> SmallCholesky(Tensor x) {
  Elements l = ElementsOf(x);
  Tensor info = Number(l[0][0], 0);
  for (size_t j = 0; j < l.size(); ++j) {
    for (size_t i = j; i < l.size(); ++i) {
      for (size_t k = 0; k < j; ++k) l[i][j] = l[i][j] - l[i][k] * l[j][k];
    }
    const Tensor holds = ir::Gt(l[j][j], 0);
    info = ir::Select(holds | ir::Gt(info, Number(info, 0)), info, Number(info, j + 1));
    l[j][j] = ir::Select(holds, ir::Sqrt(l[j][j]), std::numeric_limits<double>::quiet_NaN());
    for (size_t i = 0; i < l.size(); ++i) {
      if (i > j) l[i][j] = l[i][j] / l[j][j];
      if (i < j) l[i][j] = x.emitter().Constant(x.dtype(), 0, l[i][j].dims());
    }
  }
  return {Joined(l), WithoutMatrix(info)};
}

Tensor SolveSmallTriangular(Tensor a, Tensor b, bool upper, bool unit_diagonal) {
  Rows rows = RowsOf(b);
  Substitute(ElementsOf(a), rows, upper, unit_diagonal, /*transposed=*/false);
  return Joined(rows);
}

}  // namespace tpu::aten
