// How elements lie in a value that is as large as its sizes may become, while fewer of them are there.
//
// A dim is a row-major product of factors, each with its first elements there and padding behind them: eight rows of up
// to 64 tokens, flattened, are a dim of factors 8 and 64 (of which, say, 37 are there), not one whose first 296
// elements are there. What is known of a size is its number at each of the points that a function was compiled at, the
// largest last. Used by pad_sizes. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

namespace tpu::stablehlo {

using Numbers = llvm::SmallVector<int64_t, 4>;  // one at each point

bool IsFixed(const Numbers& numbers);           // the same at every point
bool IsAll(const Numbers& numbers, int64_t n);  // n at every point
Numbers Times(Numbers a, const Numbers& b);
Numbers Plus(Numbers a, const Numbers& b);

using Factors = llvm::SmallVector<Numbers, 2>;
// Of all of them; `fixed` where there are none.
Numbers Product(llvm::ArrayRef<Numbers> factors, size_t points);

struct OpenDim {
  Numbers size;
  bool alike = false;  // the value is the same at all its positions: how these lie does not matter
  Factors factors;     // empty where alike; fixed neighbours joined, none 1

  bool open() const { return !IsFixed(size); }
  friend bool operator==(const OpenDim&, const OpenDim&) = default;
};
OpenDim PlainDim(const Numbers& size);  // one factor: what is there comes first
OpenDim AlikeDim(const Numbers& size);
OpenDim DimOf(Factors factors, const Numbers& size);

using Layout = llvm::SmallVector<OpenDim, 4>;

// A run of dims that becomes another of as many elements. Where `moves`, elements change places: from those factors to
// those. All dims of such a run are plain then.
struct Regrouped {
  int64_t elements = 1;  // at the largest point
  bool moves = false;
  Factors from, to;
};
struct Reshaped {
  Layout layout;  // of the result
  std::vector<Regrouped> runs;
};
// Elements in row-major order under other dims. Nothing where these are no runs at all points.
std::optional<Reshaped> Reshape(const Layout& layout, llvm::ArrayRef<Numbers> dims);

}  // namespace tpu::stablehlo
