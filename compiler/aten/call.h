// What a lowering sees of a recorded ATen call: its arguments by schema position, as tensors, numbers or attributes.
//
// Made by the lower-aten pass for each tpu.aten op; a lowering reads it and returns the results. Arguments that the
// schema has and the record lacks (or holds as None) read as the given default. One thread.
#pragma once

#include <string>
#include <vector>

#include "compiler/ir/builder.h"

namespace tpu::aten {

using ir::Emitter;
using ir::Ints;
using ir::Shape;
using ir::Tensor;

// The results of a lowering in order; empty: declined (the call stays a host call). Each is broadcast and converted
// to its declared type by the pass.
class Result {
 public:
  Result(Tensor value) : values_{value} {}
  Result(std::initializer_list<Tensor> values) : values_(values) {}
  Result(llvm::SmallVector<Tensor> values) : values_(std::move(values)), declined_(false) {}
  static Result Decline() { return Result(); }

  bool declined() const { return declined_; }
  llvm::ArrayRef<Tensor> values() const { return values_; }

 private:
  Result() : declined_(true) {}
  llvm::SmallVector<Tensor> values_;
  bool declined_ = false;
};

// What PyTorch computes in for tensors of `dtype`: f32 for the half types.
inline DType OpMath(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

// Converting elements that no primitive knows stays with the host kernel; moving them does not.
inline bool MayConvert(DType from, DType to) {
  const auto is_float8 = [](DType t) { return t == DType::kFloat8E4M3FN || t == DType::kFloat8E5M2; };
  const auto known = [&](DType t) { return !IsOpaque(t) || is_float8(t); };
  if (from == to || !(IsOpaque(from) || IsOpaque(to))) return true;
  return known(from) && known(to) && !IsComplex(from) && !IsComplex(to);
}

// An operand as PyTorch's kernels for tensors of `type` read it: converted to that, in the type that arithmetic is done
// in. A number beside tensors of half types is rounded so.
inline Tensor Operand(Tensor x, DType type) { return ir::Convert(ir::Convert(x, type), OpMath(type)); }
// The second operand of a product or quotient: one number keeps its digits.
inline Tensor Factor(Tensor x, DType type) {
  return x.elements() == 1 ? ir::Convert(x, OpMath(type)) : Operand(x, type);
}

class AtenCall {
 public:
  AtenCall(ir::AtenOp op, Emitter& emitter, bool host_kernels) : op_(op), e_(emitter), host_kernels_(host_kernels) {}

  Emitter& emitter() { return e_; }
  std::string name() { return op_.getName().str(); }
  bool host_kernels() const { return host_kernels_; }  // CompilerBackend::HoldsCalls
  bool open_sizes();                                   // whether the same is to be done at others of its sizes

  bool has(int i) { return static_cast<bool>(argument(i)) && !mlir::isa<mlir::UnitAttr>(argument(i)); }
  bool is_tensor(int i) { return has(i) && mlir::isa<ir::TensorArgAttr>(argument(i)); }
  Tensor tensor(int i);  // a tensor, or a number as a tensor of rank 0
  // The same call on real numbers: parts[i] of argument i (of lists: of each) where that is a complex number or may be
  // one. Complex arguments beyond are misread.
  enum class Part : uint8_t { kWhole, kReal, kImaginary, kZero };
  AtenCall OfParts(llvm::ArrayRef<Part> parts) const;
  Tensor optional(int i) { return has(i) ? tensor(i) : Tensor(); }
  llvm::SmallVector<Tensor> tensors(int i);  // a list; None elements are empty Tensors; numbers too
  Tensor as(int i, DType dtype) { return ir::Convert(tensor(i), dtype); }
  Tensor as(int i, DType dtype, double otherwise) { return has(i) ? as(i, dtype) : e_.Constant(dtype, otherwise); }
  Tensor x(int i) { return Operand(tensor(i), promoted()); }  // for elementwise arithmetic
  Tensor factor(int i) { return Factor(tensor(i), promoted()); }
  // x, for operators that need floats.
  Tensor float_x(int i) { return IsFloat(promoted()) ? x(i) : as(i, float_compute()); }

  Shape ints(int i);
  int64_t integer(int i, int64_t otherwise = 0);
  double real(int i, double otherwise = 0);  // a number recorded as an attribute
  bool is_static(int i);                     // `real` can be asked
  bool boolean(int i, bool otherwise = false);
  llvm::SmallVector<bool> booleans(int i);
  std::string string(int i);
  std::optional<DType> dtype(int i);
  // `ints` as dims of a tensor of this rank, non-negative; every dim for None, and for an empty list when so told.
  Shape dims(int i, int64_t rank, bool empty_is_all = true);
  int64_t dim(int i, int64_t rank, int64_t otherwise = 0);

  // Seed and offset of a random operator: the last two operands.
  Tensor seed() { return e_.Wrap(op_.getOperands()[op_.getNumOperands() - 2]); }
  Tensor offset() { return e_.Wrap(op_.getOperands()[op_.getNumOperands() - 1]); }

  // An argument was read as what it isn't (a complex number as a real one, a dim that the tensor lacks): the call stays
  // a host call, whose kernel finds the words.
  bool misread() const { return misread_; }
  void TakeMisread(const AtenCall& part) { misread_ |= part.misread_; }

  size_t num_results() { return op_.getNumResults(); }
  DType result_dtype(int i = 0) { return InThisCall(ir::DTypeOf(result_type(i).getElementType())); }
  Ints result_dims(int i = 0) { return result_type(i).getShape(); }

  DType promoted();
  // PyTorch's op-math type of the promoted type; for operators that need floats, of its float type.
  DType compute() { return OpMath(promoted()); }
  DType float_compute();

 private:
  mlir::Attribute argument(int i) {
    return i < static_cast<int>(op_.getArguments().size()) ? op_.getArguments()[i] : mlir::Attribute();
  }
  bool by_parts() const { return !parts_.empty(); }
  DType InThisCall(DType dtype) const { return by_parts() ? RealOf(dtype) : dtype; }
  int64_t Wrapped(int64_t dim, int64_t rank);  // misread unless it is one
  Tensor PartOf(Tensor x, int i);              // what argument i, or this one of its list, is in this call
  mlir::RankedTensorType result_type(int i) { return mlir::cast<mlir::RankedTensorType>(op_.getResult(i).getType()); }

  ir::AtenOp op_;
  Emitter& e_;
  const bool host_kernels_;
  llvm::SmallVector<Part> parts_;  // none: everything is whole
  bool misread_ = false;
};

// Operands of formulas of floats, in the type that those are computed in.
inline Tensor In(AtenCall& c, int i) { return c.as(i, c.float_compute()); }
inline Tensor In(AtenCall& c, int i, double otherwise) { return c.as(i, c.float_compute(), otherwise); }

// Of the gradients those that are asked for: a masked one is left out, or 0 where the record still has a result for it.
Result Asked(AtenCall& c, llvm::ArrayRef<bool> mask, llvm::ArrayRef<Tensor> gradients);

}  // namespace tpu::aten
