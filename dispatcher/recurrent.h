// The formulas of LSTM's and GRU's cells on tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/narrow.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>

#include "compiler/aten/cells.h"

namespace tpu {

struct TensorMath {
  using Tensor = at::Tensor;
  static Tensor Sigmoid(const Tensor& x) { return x.sigmoid(); }
  static Tensor Tanh(const Tensor& x) { return x.tanh(); }
  static Tensor Part(const Tensor& x, int64_t i, int64_t n) {
    TORCH_CHECK(x.dim() == 2 && x.sym_size(1) % n == 0, "Expected ", n, " gates of one size in a row, got ",
                x.sym_sizes());
    const c10::SymInt each = x.sym_size(1) / n;
    return x.narrow_symint(1, each * i, each);
  }
  static Tensor Join(at::TensorList parts) { return at::cat(parts, 1); }
};

}  // namespace tpu
