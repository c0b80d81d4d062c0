// Vector expansions of the elementary functions, for scalars and vectors of f32 and f64.
//
// f32 functions that training uses are polynomials of at most about 2 ulp (erf 4), correct at NaN, infinities, zeros
// and denormals, as are exp, log, sin and cos of f64 (1.2 ulp); the others call the C library: its vector functions
// (vector_library.h), or for each lane.
#pragma once

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/IR/IRBuilder.h"

namespace tpu::host {

class VectorMath {
 public:
  explicit VectorMath(llvm::IRBuilder<>& builder) : b_(builder) {}

  llvm::Value* Exp(llvm::Value* x);
  llvm::Value* Exp2(llvm::Value* x);
  llvm::Value* Expm1(llvm::Value* x);
  llvm::Value* Log(llvm::Value* x);
  llvm::Value* Log2(llvm::Value* x);
  llvm::Value* Log10(llvm::Value* x);
  llvm::Value* Log1p(llvm::Value* x);
  llvm::Value* Tanh(llvm::Value* x);
  llvm::Value* Erf(llvm::Value* x);
  llvm::Value* Sin(llvm::Value* x) { return SinCos(x, 0, "sin"); }
  llvm::Value* Cos(llvm::Value* x) { return SinCos(x, 1, "cos"); }
  llvm::Value* Tan(llvm::Value* x);
  llvm::Value* Logistic(llvm::Value* x);
  llvm::Value* Sqrt(llvm::Value* x);
  llvm::Value* Fmod(llvm::Value* x, llvm::Value* y);
  // Of integers, y >= 0: wraps.
  llvm::Value* WholePower(llvm::Value* x, llvm::Value* y);
  // The C library's `name` ("atan2", ...): its vector function where there is one.
  llvm::Value* Call(const char* name, llvm::ArrayRef<llvm::Value*> arguments);
  // Its scalar function, lane by lane: for f64 tangents, of which random numbers are made, whose bits must be those of
  // the numbers drawn op by op, for large angles, and for logarithms exact at the powers of ten.
  llvm::Value* CallEach(const char* name, llvm::ArrayRef<llvm::Value*> arguments);
  // Philox4x32-10 under `key` (i64) of the counters (i64 lanes): four words of i32 lanes.
  std::array<llvm::Value*, 4> Philox(llvm::Value* counter, llvm::Value* key);

 private:
  llvm::Value* CallOf(const std::string& name, llvm::ArrayRef<llvm::Value*> arguments);
  bool IsF32(llvm::Value* x) const { return x->getType()->getScalarType()->isFloatTy(); }
  llvm::Constant* F(llvm::Value* like, double value) { return llvm::ConstantFP::get(like->getType(), value); }
  llvm::Value* Fma(llvm::Value* a, llvm::Value* b, llvm::Value* c);
  llvm::Value* Poly(llvm::Value* x, std::initializer_list<double> high_to_low);
  llvm::Type* IntLike(llvm::Value* x);
  llvm::Value* TwoToThe(llvm::Value* n);  // of an exponent within the normal range
  // The integer nearest to x * factor, as integer lanes and as floats.
  std::pair<llvm::Value*, llvm::Value*> Nearest(llvm::Value* x, double factor);
  // x = n ln2 + r; n as integer lanes and as floats.
  struct Reduced {
    llvm::Value *n, *whole, *r;
  };
  Reduced ReduceLn2(llvm::Value* x);
  bool HasScale(llvm::Value* x);  // an instruction does it: lanes that aren't wanted cost nothing
  llvm::Value* Scale(llvm::Value* y, const Reduced& by, llvm::Value* where);  // y * 2^n, elsewhere 0
  llvm::Value* ExpTail(llvm::Value* r);                                       // exp(r) - 1 for |r| <= ln2 / 2
  // A power of x, by how that is reduced: 0 below `least`, and as at `most` beyond.
  llvm::Value* Power(llvm::Value* x, double least, double most, llvm::function_ref<Reduced(llvm::Value*)> reduce);
  // log(x) = e * ln2 + log(m): e as float lanes, log(m).
  std::pair<llvm::Value*, llvm::Value*> LogParts(llvm::Value* x);
  llvm::Value* WideLog(llvm::Value* x);  // of f64
  llvm::Value* LogSpecials(llvm::Value* x, llvm::Value* result);
  // x = turns * pi/2 + reduced (f64), which is r in f32, unless x is large.
  struct Quarters {
    llvm::Value *turns, *reduced, *r;
  };
  Quarters ReduceHalfPi(llvm::Value* x);
  llvm::Value* IsOdd(llvm::Value* n);
  llvm::Value* IsLarge(llvm::Value* x);
  llvm::Value* OfQuarter(llvm::Value* turns, int quarter, llvm::Value* sine, llvm::Value* cosine);
  llvm::Value* SinCos(llvm::Value* x, int quarter, const char* name);
  llvm::Value* WideSinCos(llvm::Value* x, int quarter, const char* name);  // of f64
  // `usual`, or otherwise() in the lanes that are set: computed only when one is, in a block of its own.
  llvm::Value* Rarely(llvm::Value* lanes, llvm::Value* usual, llvm::function_ref<llvm::Value*()> otherwise);

  llvm::IRBuilder<>& b_;
};

}  // namespace tpu::host
