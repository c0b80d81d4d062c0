// The rules of padding, one a primitive: how the result lies if the operands lie so, and what must be masked or moved
// for that. pad_sizes.cc goes through the function; each family of primitives has a file.
//
// Of pad_sizes alone. One function, one thread.
#pragma once

#include <string>

#include "compiler/stablehlo/pad_values.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace tpu::stablehlo {

using ir::Emitter;
using ir::Tensor;
using mlir::Operation;
using mlir::Value;

class SizePadding {
 public:
  SizePadding(llvm::ArrayRef<mlir::func::FuncOp> functions, absl::Span<const SizePoint> points)
      : functions_(functions), pad_(functions.back(), points) {}

  absl::Status Run();

 private:
  using AtPoints = llvm::SmallVector<Operation*, 4>;  // one operation, in each function
  template <typename Op>
  Numbers Each(llvm::function_ref<int64_t(Op)> of) const {
    Numbers numbers;
    for (Operation* op : at_) numbers.push_back(of(mlir::cast<Op>(op)));
    return numbers;
  }

  // Whether the functions are one but for sizes, which are largest in the last.
  bool Matches(const AtPoints& at);
  bool Holds(Value largest, Value value);
  Numbers SizeOf(unsigned result, int64_t dim) const;
  llvm::SmallVector<Numbers> SizesOf(unsigned result) const;
  Layout Plain(unsigned result = 0) const;

  const Layout& Of(Value v) const { return layouts_.find(v)->second; }
  Emitter& e() { return pad_.e(); }
  Tensor Zero(DType dtype) { return e().Constant(dtype, 0); }
  Tensor Same(Value x) { return pad_.e().Wrap(x); }
  Tensor Moved(Tensor x, Layout& layout, int64_t dim, const OpenDim& to);
  Tensor Straight(Tensor x, Layout& layout, int64_t dim) { return Moved(x, layout, dim, PlainDim(layout[dim].size)); }
  // Gives both one way to lie along these dims.
  void Agree(Tensor& a, Layout& a_layout, int64_t a_dim, Tensor& b, Layout& b_layout, int64_t b_dim);
  // How all operands of the operation at hand, of one rank, are to lie: each dim as the first that is not alike.
  Layout Common() const;
  // The result of the operation at hand: as it is, or another value in its place.
  void Keep(Layout layout, unsigned result = 0) { layouts_[here_->getResult(result)] = std::move(layout); }
  void Replace(Tensor value, Layout layout);
  void Refuse(const std::string& why);

  void Pad();  // the operation at hand
  void Constant(ir::ConstantOp op);
  void Elementwise();
  void ReshapeTo(ir::ReshapeOp op);
  void Broadcast(ir::BroadcastOp op);
  void Slice(ir::SliceOp op);
  void UpdateSlice(ir::UpdateSliceOp op);
  void PadOut(ir::PadOp op);
  void Concat(ir::ConcatOp op);
  void Reverse(ir::ReverseOp op);
  void Bitcast(ir::BitcastOp op);
  void Reduce(ir::ReduceOp op);
  void ArgReduce(ir::ArgReduceOp op);
  void Dot(ir::DotOp op);
  void Conv(ir::ConvOp op);
  void WindowReduce(ir::WindowReduceOp op);
  void Along(Operation* op, int64_t dim, Tensor fill);
  void RandomBits(ir::RandomBitsOp op);
  Tensor Indices(Value indices, const Numbers& size, int64_t out_of_range);
  Tensor InRange(Tensor indices, const Layout& layout);
  void Take(ir::TakeOp op);
  void TakeAlong(ir::TakeAlongOp op);
  template <typename Op>
  void Scatter(Op op, bool rows);
  void SumTaken(ir::SumTakenOp op);
  void Return();

  Tensor Identity(ir::ReduceKind kind, DType dtype);

  const llvm::ArrayRef<mlir::func::FuncOp> functions_;
  PadValues pad_;
  llvm::DenseMap<Value, Layout> layouts_;
  llvm::SmallVector<llvm::DenseMap<Value, unsigned>, 4> numbered_;  // by function: values in order
  AtPoints at_;
  Operation* here_ = nullptr;  // at the largest
};

}  // namespace tpu::stablehlo
