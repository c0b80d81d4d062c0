// How finely the parts of a step cut a value that it touches: when P divides the number, part p of P touches the p-th
// of P equal parts of the value and nothing else. 1: any part may touch anything.
//
// Asked by the compiler, which forms tile loops, and by plan_check.cc for products. Plain functions.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "runtime/host/plan.h"

namespace tpu::host {

// An access walks over `count` elements by leading loops of these sizes and strides, outermost first, and within
// [low, high] of each of their positions by the others.
struct Walk {
  std::vector<int64_t> sizes, strides;
  int64_t low = 0, high = 0;
  int64_t count = 0;
};

// The number of positions of the most leading loops at each of which the walk has a part of its own.
int64_t FinestCut(Walk walk);

// Of a product that is not empty: A, B and C, of so many elements, by parts of its rows or of its depth.
std::array<int64_t, 3> CutsOf(const GemmStep& gemm, const std::array<int64_t, 3>& elements, bool by_depth = false);

// Whether the product can be taken by its depth: what A.T @ B needs of A and B is what others make row by row, and its
// sums lose nothing when a tile is added to them. Not where there is no depth.
bool SumsOverTiles(const GemmStep& gemm);
bool IsByDepth(const TileLoop& loop, const Step& step);

// What the loop's parts are parts of, of a kernel or product: items, rows or positions of the depth.
int64_t ExtentIn(const TileLoop& loop, const Step& step);

// What a thread needs of a value of so many bytes that the loop's parts cut.
uint64_t BytesOfTile(const TileLoop& loop, uint64_t bytes);

// InvalidArgument where the loop's parts make no groups and tiles.
absl::Status CheckTiles(const TileLoop& loop);

}  // namespace tpu::host
