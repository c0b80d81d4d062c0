// Formulas that several families share. Operands are in one (op-math) element type unless said otherwise.
#pragma once

#include <array>

#include "compiler/aten/call.h"

namespace tpu::aten {

using ir::IsFinite;
using ir::IsNan;

Tensor Hypot(Tensor a, Tensor b);  // f32 in f64, f64 by the larger: no square overflows
Tensor SignBit(Tensor x);
Tensor CopySign(Tensor magnitude, Tensor sign);
Tensor FloorDivide(Tensor a, Tensor b);  // Python's //
Tensor Remainder(Tensor a, Tensor b);    // Python's %
// x to a power that is known, where IsPowStatic of x's type: not of integers to powers below 0, or of 2^53 and more,
// which f64 doesn't hold. The exponent is of `type`.
bool IsPowStatic(DType x, double exponent);
Tensor PowStatic(Tensor x, double exponent, DType type);
Tensor Lerp(Tensor start, Tensor end, Tensor weight);
Tensor XLogY(Tensor x, Tensor y);  // 0 where x is 0, NaN where y is

// The number of elements that a reduction over `dims` of x combines.
int64_t CountAlong(Tensor x, Ints dims);
// Mean and sum of squared deviations over `dims`, kept as size 1, and the deviations. Two passes: no cancellation.
struct Moments {
  Tensor mean, centred, squares;
};
Moments MomentsAlong(Tensor x, Ints dims);
// The norm over `dims`, kept as size 1.
Tensor VectorNorm(Tensor x, double order, Ints dims);
Shape AllDims(Tensor x);
// Dims 0 .. rank-1 but those listed.
Shape OtherDims(int64_t rank, Ints dims);

// Indices below 0 count from the end of a dim of this size.
Tensor WrapIndex(Tensor index, int64_t size);

// Where along the last dim each value would be inserted: before (`right`: behind) what equals it.
// [.., k] or [k], [.., n] -> [.., n].
Tensor PlacesIn(Tensor sequence, Tensor values, bool right);

// a @ b over the last dim of a and the one before last of b, rounded into `result`.
Tensor MatMul(Tensor a, Tensor b, DType result);

// What cubic interpolation weighs the four positions around t by, which lies between the second (0) and the third (1),
// and the weights' derivatives by t.
struct Weight {
  Tensor value, slope;
};
std::array<Weight, 4> CubicWeights(Tensor t);

// x with dim d summed by `weights` of [its size, the new size].
Tensor WeighAlong(Tensor x, Tensor weights, int64_t d);

}  // namespace tpu::aten
