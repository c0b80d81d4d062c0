// What a padded function computes beside its own work: sizes, which elements are there, and where elements move.
//
// Used by pad_sizes, for one function; one thread. Each number, mask and map is computed once. The sizes are the
// function's last arguments.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "compiler/ir/builder.h"
#include "compiler/stablehlo/open_layout.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "runtime/polynomial.h"

namespace tpu::stablehlo {

class PadValues {
 public:
  // Adds the arguments.
  PadValues(mlir::func::FuncOp function, absl::Span<const SizePoint> points);

  // New values stand before `op` from now on.
  ir::Emitter& Before(mlir::Operation* op) {
    builder_.setInsertionPoint(op);
    return e_;
  }
  ir::Emitter& e() { return e_; }
  size_t points() const { return points_.size(); }
  // The first reason why there is no such function.
  const absl::Status& status() const { return status_; }
  void Refuse(std::string why);

  ir::Tensor Number(const Numbers& numbers);  // i64 of rank 0: it at the sizes that the function is called with
  // x with `fill`, of rank 0, in place of what isn't there along `dims`.
  ir::Tensor Fill(ir::Tensor x, const Layout& layout, llvm::ArrayRef<int64_t> dims, ir::Tensor fill);
  ir::Tensor FillAll(ir::Tensor x, const Layout& layout, ir::Tensor fill);
  // The elements of x along dim, which are there as `from` says, as `to` says.
  ir::Tensor Move(ir::Tensor x, int64_t dim, const Factors& from, const Factors& to);
  // Elements of x along dim at `positions`, i64 of rank 1; those beyond its ends are of nothing that is there.
  ir::Tensor TakeWithin(ir::Tensor x, int64_t dim, ir::Tensor positions);
  // x, of `length` along dim, from `start` on in `size` elements; and where they are x's, i1 of rank 1.
  std::pair<ir::Tensor, ir::Tensor> PutAt(ir::Tensor x, int64_t dim, const Numbers& length, const Numbers& start,
                                          int64_t size);

 private:
  ir::Tensor Mask(const Factors& factors);                 // i1 of rank 1
  ir::Tensor Map(const Factors& from, const Factors& to);  // i64 of rank 1

  mlir::OpBuilder builder_;
  ir::Emitter e_;
  const absl::Span<const SizePoint> points_;
  llvm::SmallVector<ir::Tensor> sizes_;
  absl::Status status_;
  std::map<Numbers, ir::Tensor> numbers_;
  std::map<Factors, ir::Tensor> masks_;
  std::map<std::pair<Factors, Factors>, ir::Tensor> maps_;
};

}  // namespace tpu::stablehlo
