// One element (or a vector of lanes) of a value in LLVM IR: how it lies in memory, what it is in registers, and what
// each elementwise primitive does to it.
//
// In registers f16 and bf16 are f32 lanes rounded after every operation; bool is i1. Used by the kernel emitter.
#pragma once

#include "compiler/host/vector_math.h"
#include "llvm/IR/IRBuilder.h"
#include "mlir/IR/Operation.h"
#include "mlir/IR/Types.h"

namespace tpu::host {

class ElementOps {
 public:
  explicit ElementOps(llvm::IRBuilder<>& builder) : b_(builder), math_(builder) {}

  llvm::Type* RegisterType(mlir::Type element, int width);
  llvm::Type* MemoryType(mlir::Type element, int width);
  static int64_t BytesOf(mlir::Type element);
  static llvm::Align AlignOf(mlir::Type element);  // in memory, at least

  llvm::Value* Load(mlir::Type element, llvm::Value* pointer, int width);
  void Store(mlir::Type element, llvm::Value* value, llvm::Value* pointer, bool non_temporal);
  llvm::Value* FromMemory(mlir::Type element, llvm::Value* loaded);
  llvm::Value* ToMemory(mlir::Type element, llvm::Value* value);

  llvm::Value* Constant(mlir::Attribute splat, mlir::Type element);
  // A float register value rounded to what `element` can hold.
  llvm::Value* Round(mlir::Type element, llvm::Value* value);
  llvm::Value* Convert(mlir::Type from, mlir::Type to, llvm::Value* value);
  // Whether what it gives is one of its operands but for the sign: of a half type's values, another of them.
  static bool KeepsRounded(mlir::Operation* op);
  // nullptr for an operation that is not elementwise.
  llvm::Value* Apply(mlir::Operation* op, llvm::ArrayRef<llvm::Value*> operands);

  // Combination of a reduction, by ReduceKind; `element` is the type it is done in.
  enum class Fold { kSum, kProd, kMax, kMin, kAll, kAny };
  llvm::Value* Combine(Fold fold, mlir::Type element, llvm::Value* a, llvm::Value* b);
  llvm::Value* Identity(Fold fold, mlir::Type element, int width);

  VectorMath& math() { return math_; }

 private:
  llvm::Value* Part(mlir::Type part, llvm::Value* complex, bool imaginary);
  llvm::Value* Complex(mlir::Type part, llvm::Value* real, llvm::Value* imaginary);  // imaginary: 0 where null
  llvm::Value* ConvertComplex(mlir::Type from, mlir::Type to, llvm::Value* x);
  llvm::Value* Unary(mlir::Operation* op, mlir::Type element, llvm::Value* x);
  llvm::Value* Binary(mlir::Operation* op, mlir::Type element, llvm::Value* x, llvm::Value* y);
  llvm::Value* Divide(mlir::Type element, llvm::Value* x, llvm::Value* y, bool remainder);
  llvm::Value* Compare(mlir::Operation* op, llvm::Value* x, llvm::Value* y);
  llvm::Value* MaxMin(bool max, mlir::Type element, llvm::Value* a, llvm::Value* b);

  llvm::IRBuilder<>& b_;
  VectorMath math_;
};

}  // namespace tpu::host
