// Primitives as arithmetic: `Tensor` is a value with the emitter that makes more of them, so that a lowering reads
// like the formula it implements: `dy * (1.0 - y * y)`.
//
// Used by compiler/aten and by passes that build primitives. Binary operators broadcast as numpy does; numbers become
// constants of the other operand's element type. Tensors are plain handles: the module owns the ops; an Emitter
// outlives its Tensors. One thread.
#pragma once

#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"

namespace tpu::ir {

class Emitter;
using Shape = mlir::SmallVector<int64_t>;
using Ints = mlir::ArrayRef<int64_t>;

class Tensor {
 public:
  Tensor() = default;
  Tensor(Emitter* emitter, mlir::Value value) : emitter_(emitter), value_(value) {}

  explicit operator bool() const { return static_cast<bool>(value_); }
  operator mlir::Value() const { return value_; }
  mlir::Value value() const { return value_; }
  Emitter& emitter() const { return *emitter_; }

  mlir::RankedTensorType type() const { return TensorTypeOf(value_); }
  DType dtype() const { return DTypeOf(type().getElementType()); }
  Ints dims() const { return type().getShape(); }
  int64_t rank() const { return type().getRank(); }
  int64_t size(int64_t dim) const { return type().getDimSize(dim < 0 ? dim + rank() : dim); }
  int64_t elements() const { return type().getNumElements(); }

 private:
  Emitter* emitter_ = nullptr;
  mlir::Value value_;
};

class Emitter {
 public:
  // precision: of the products that it makes.
  Emitter(mlir::OpBuilder& builder, mlir::Location loc, Precision precision = Precision::highest)
      : builder_(builder), loc_(loc), precision_(precision) {}

  mlir::OpBuilder& builder() { return builder_; }
  mlir::MLIRContext* context() { return builder_.getContext(); }
  Precision precision() const { return precision_; }
  mlir::RankedTensorType Type(DType dtype, Ints dims) {
    return mlir::RankedTensorType::get(dims, ElementType(context(), dtype));
  }
  Tensor Wrap(mlir::Value v) { return Tensor(this, v); }

  Tensor Constant(DType dtype, double value, Ints dims = {});
  Tensor Integer(DType dtype, int64_t value, Ints dims = {});  // exact for i64
  Tensor Dense(DType dtype, mlir::ArrayRef<int64_t> values);   // rank 1, an integer type
  // The least or greatest value of the type (infinite for floats).
  Tensor Lowest(DType dtype, Ints dims = {});
  Tensor Highest(DType dtype, Ints dims = {});
  Tensor Iota(DType dtype, Ints dims, int64_t dim);
  Tensor RandomBits(Tensor seed, Tensor offset, Ints dims);

  template <typename Op, typename... Args>
  Tensor Make(Args&&... args) {
    return Wrap(Op::create(builder_, loc_, std::forward<Args>(args)...).getResult());
  }
  template <typename Op, typename... Args>
  Op MakeOp(Args&&... args) {
    return Op::create(builder_, loc_, std::forward<Args>(args)...);
  }

 private:
  mlir::OpBuilder& builder_;
  mlir::Location loc_;
  const Precision precision_;
};

// The dims both broadcast to; empty optional when they do not fit.
std::optional<Shape> BroadcastDims(Ints a, Ints b);

// Unary.
#define TPU_UNARY(name) \
  inline Tensor name(Tensor x) { return x.emitter().Make<name##Op>(x.value()); }
TPU_UNARY(Neg)
TPU_UNARY(Abs)
TPU_UNARY(Sign)
TPU_UNARY(Not)
TPU_UNARY(Exp)
TPU_UNARY(Exp2)
TPU_UNARY(Expm1)
TPU_UNARY(Log)
TPU_UNARY(Log1p)
TPU_UNARY(Log2)
TPU_UNARY(Log10)
TPU_UNARY(Sqrt)
TPU_UNARY(Rsqrt)
TPU_UNARY(Sin)
TPU_UNARY(Cos)
TPU_UNARY(Tan)
TPU_UNARY(Asin)
TPU_UNARY(Acos)
TPU_UNARY(Atan)
TPU_UNARY(Sinh)
TPU_UNARY(Cosh)
TPU_UNARY(Tanh)
TPU_UNARY(Asinh)
TPU_UNARY(Acosh)
TPU_UNARY(Atanh)
TPU_UNARY(Erf)
TPU_UNARY(Logistic)
TPU_UNARY(Floor)
TPU_UNARY(Ceil)
TPU_UNARY(Trunc)
TPU_UNARY(RoundEven)
#undef TPU_UNARY
Tensor IsFinite(Tensor x);
Tensor Real(Tensor x);
Tensor Imaginary(Tensor x);
Tensor Complex(Tensor real, Tensor imaginary);  // of f32 or f64; they broadcast
Tensor IsNan(Tensor x);                         // x != x

// Binary, each also with a number on either side.
#define TPU_BINARY(name)           \
  Tensor name(Tensor a, Tensor b); \
  Tensor name(Tensor a, double b); \
  Tensor name(double a, Tensor b);
TPU_BINARY(Add)
TPU_BINARY(Sub)
TPU_BINARY(Mul)
TPU_BINARY(Div)
TPU_BINARY(Rem)
TPU_BINARY(Pow)
TPU_BINARY(Atan2)
TPU_BINARY(Max)
TPU_BINARY(Min)
TPU_BINARY(And)
TPU_BINARY(Or)
TPU_BINARY(Xor)
TPU_BINARY(Shl)
TPU_BINARY(Shr)
TPU_BINARY(Eq)
TPU_BINARY(Ne)
TPU_BINARY(Lt)
TPU_BINARY(Le)
TPU_BINARY(Gt)
TPU_BINARY(Ge)
#undef TPU_BINARY
#define TPU_OPERATOR(symbol, name)                                         \
  inline Tensor operator symbol(Tensor a, Tensor b) { return name(a, b); } \
  inline Tensor operator symbol(Tensor a, double b) { return name(a, b); } \
  inline Tensor operator symbol(double a, Tensor b) { return name(a, b); }
TPU_OPERATOR(+, Add)
TPU_OPERATOR(-, Sub)
TPU_OPERATOR(*, Mul)
TPU_OPERATOR(/, Div)
TPU_OPERATOR(<, Lt)
TPU_OPERATOR(<=, Le)
TPU_OPERATOR(>, Gt)
TPU_OPERATOR(>=, Ge)
#undef TPU_OPERATOR
inline Tensor operator-(Tensor x) { return Neg(x); }
inline Tensor operator&(Tensor a, Tensor b) { return And(a, b); }
inline Tensor operator|(Tensor a, Tensor b) { return Or(a, b); }

Tensor Require(Tensor x, Tensor holds);
Tensor Select(Tensor pred, Tensor on_true, Tensor on_false);
Tensor Select(Tensor pred, Tensor on_true, double on_false);
Tensor Select(Tensor pred, double on_true, Tensor on_false);
Tensor Convert(Tensor x, DType dtype);
Tensor Bitcast(Tensor x, DType dtype);

// Shape.
Tensor Reshape(Tensor x, Ints dims);
inline Tensor Flat(Tensor x) { return Reshape(x, {x.elements()}); }
inline Tensor AtLeast1(Tensor x) { return x.rank() == 0 ? Reshape(x, {1}) : x; }  // dims
Tensor Transpose(Tensor x, Ints permutation);
Tensor SwapDims(Tensor x, int64_t a, int64_t b);
Tensor BroadcastTo(Tensor x, Ints dims);  // numpy rules; x's dims fit
Tensor BroadcastAlong(Tensor x, Ints dims, Ints along);
Tensor Unsqueeze(Tensor x, int64_t dim);
Tensor Slice(Tensor x, Ints start, Ints limit, Ints stride);
Tensor SliceDim(Tensor x, int64_t dim, int64_t start, int64_t limit, int64_t stride = 1);
Tensor Reverse(Tensor x, Ints dims);
Tensor Pad(Tensor x, Tensor value, Ints low, Ints high, Ints interior);
Tensor Pad(Tensor x, double value, Ints low, Ints high);
Tensor Concat(mlir::ArrayRef<Tensor> inputs, int64_t dim);
Tensor UpdateSlice(Tensor base, Tensor src, Ints start, Ints stride);

// Reductions; `dims` in any order, non-negative. keep: reduced dims stay as 1.
Tensor Reduce(ReduceKind kind, Tensor x, Ints dims, bool keep = false);
inline Tensor Sum(Tensor x, Ints dims, bool keep = false) { return Reduce(ReduceKind::sum, x, dims, keep); }
Tensor ArgReduce(ExtremumKind kind, Tensor x, int64_t dim);
Tensor Scan(ReduceKind kind, Tensor x, int64_t dim);
struct Window {
  Shape window, strides, dilation, low, high;
};
Tensor WindowReduce(ReduceKind kind, Tensor x, const Window& w);
Tensor WindowArgReduce(ExtremumKind kind, Tensor x, const Window& w);
std::pair<Tensor, Tensor> Sort(Tensor x, int64_t dim, bool descending);
Tensor Dot(Tensor a, Tensor b, Ints a_batch, Ints b_batch, Ints a_contract, Ints b_contract, DType result,
           Triangle triangle = Triangle::none, bool again = false);
Tensor Fft(FftKind kind, Tensor x, Ints lengths);
Tensor Cholesky(Tensor x);
Tensor TriangularSolve(Tensor a, Tensor b, bool upper, bool unit_diagonal);
struct ConvWindow {
  Shape strides, low, high, base_dilation, dilation;
};
Tensor Conv(Tensor a, Tensor b, const ConvWindow& w, int64_t feature_groups, int64_t batch_groups, DType result,
            bool swapped = false);

// Positions that are data.
Tensor Take(Tensor x, Tensor indices, int64_t dim);
Tensor TakeAlong(Tensor x, Tensor indices, int64_t dim);
Tensor Scatter(ScatterKind kind, Tensor base, Tensor indices, Tensor updates, int64_t dim);
Tensor ScatterRows(ScatterKind kind, Tensor base, Tensor indices, Tensor updates, int64_t dim);
Tensor SumTaken(Tensor x, Tensor from, Tensor to, int64_t rows, DType result, Tensor weights, bool sorted);

}  // namespace tpu::ir
