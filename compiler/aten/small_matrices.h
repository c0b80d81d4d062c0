// Factors of small square matrices and solutions by them, element by element, so that a batch is computed side by side
// and together with what is around it.
//
// [.., n, n] of real numbers, n at most 4 (IsSmall); batches broadcast. As LAPACK's getrf, getrs, potrf and trtrs do:
// rows are exchanged for the largest element of each column, the first of equal ones.
#pragma once

#include <utility>
#include <vector>

#include "compiler/aten/call.h"

namespace tpu::aten {

bool IsSmall(Tensor x);

// P A = L U.
class SmallLu {
 public:
  explicit SmallLu(Tensor x);
  SmallLu(Tensor factors, Tensor pivots);  // known ones

  Tensor factors() const;  // the unit lower one below the diagonal, the upper one on it and above
  Tensor pivots() const;   // [.., n]: the row that each was exchanged for, counted from 1
  Tensor info() const;     // [..]: the first pivot that is 0, counted from 1; 0 where none is
  // x where A x = b, or of the transposed A.
  Tensor Solve(Tensor b, bool transposed) const;

 private:
  void ExchangeIfPivot(size_t row, std::vector<Tensor>& rows) const;

  std::vector<std::vector<Tensor>> lu_;  // by row and column: [.., 1, 1]
  std::vector<Tensor> pivots_;           // [.., 1, 1]
  Tensor info_;                          // likewise
};

// The lower factor, and [..]: from which row on there is none, counted from 1, and it is NaN; 0 where there is one.
std::pair<Tensor, Tensor> SmallCholesky(Tensor x);
// x where A x = b.
Tensor SolveSmallTriangular(Tensor a, Tensor b, bool upper, bool unit_diagonal);

}  // namespace tpu::aten
