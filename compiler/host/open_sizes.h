// The sizes, some of many, at which a function is compiled for a program that serves them all.
//
// What is decided by divisibility has to be decided alike at every size, so the sizes themselves are left out of the
// question.
#pragma once

#include <cstdint>

#include "compiler/ir/dialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tpu::host {

class OpenSizes {
 public:
  // Of the function that holds the value; none where it is compiled for its own sizes only.
  explicit OpenSizes(mlir::Value value) {
    auto function = value.getParentRegion()->getParentOfType<mlir::func::FuncOp>();
    if (!function) return;
    if (auto sizes = function->getAttrOfType<mlir::DenseI64ArrayAttr>(kOpenSizes)) sizes_ = sizes.asArrayRef();
  }

  // `number` without its factors of the sizes.
  int64_t Without(int64_t number) const {
    for (int64_t size : sizes_) {
      while (size > 1 && number != 0 && number % size == 0) number /= size;
    }
    return number;
  }
  // Whether b is a multiple of a. What b owes to the sizes counts against what a does, and no further.
  bool Divides(int64_t a, int64_t b) const {
    for (int64_t size : sizes_) {
      while (size > 1 && b != 0 && a % size == 0 && b % size == 0) a /= size, b /= size;
    }
    return Without(b) % a == 0;
  }

 private:
  llvm::ArrayRef<int64_t> sizes_;
};

}  // namespace tpu::host
