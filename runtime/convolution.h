// A convolution of images, as the embedded device computes it and the compiler writes it into its programs. Plain data.
#pragma once

#include <cstdint>

#include "runtime/dtype.h"

namespace tpu {

// y[n, o, p, q] = sum over i, r, s of x'[n, c(o) + i, p * stride + r * dilation - low, ..] * w[o, i, r, s], with zeros
// outside of x', which is x with its elements `spread` apart and zeros between them; all row-major. w has in / groups
// channels i; c(o) is the first one of o's group. Operands a, b and result c: x, w and y for kForward; x, y and w for
// kWeight, which sums over n, p, q the products of x' and y. Sums are f32.
struct Convolution {
  enum class Kind : uint8_t { kForward, kWeight };
  struct Dim {
    int64_t in = 1, out = 1;  // of x and y
    int64_t kernel = 1, stride = 1, dilation = 1, low = 0, spread = 1;
  };
  Kind kind = Kind::kForward;
  DType dtype = DType::kFloat32;  // of the operands
  int64_t batch = 1, in = 1, out = 1, groups = 1;
  Dim rows, cols;
};

}  // namespace tpu
