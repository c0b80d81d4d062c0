// The size, one of several, at which a function is compiled for a program that serves them all.
//
// What is decided by divisibility has to be decided alike at every size, so the size itself is left out of the
// question.
#pragma once

#include <cstdint>

#include "compiler/passes/passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tpu::host {

class OpenSize {
 public:
  // Of the function that holds the value; none where it is compiled for one size only.
  explicit OpenSize(mlir::Value value) {
    auto function = value.getParentRegion()->getParentOfType<mlir::func::FuncOp>();
    if (!function) return;
    if (auto size = function->getAttrOfType<mlir::IntegerAttr>(kOpenSize)) size_ = size.getInt();
  }

  // `number` without its factors of the size.
  int64_t Without(int64_t number) const {
    while (size_ > 1 && number != 0 && number % size_ == 0) number /= size_;
    return number;
  }
  // Whether b is a multiple of a. What b owes to the size counts against what a does, and no further.
  bool Divides(int64_t a, int64_t b) const {
    while (size_ > 1 && b != 0 && a % size_ == 0 && b % size_ == 0) a /= size_, b /= size_;
    return Without(b) % a == 0;
  }

 private:
  int64_t size_ = 0;
};

}  // namespace tpu::host
