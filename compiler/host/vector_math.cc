#include "compiler/host/vector_math.h"

#include <bit>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/host/object_code.h"
#include "compiler/host/vector_library.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/IntrinsicsX86.h"
#include "llvm/IR/Module.h"

namespace tpu::host {

using llvm::Value;

namespace {

constexpr unsigned kScaleLanes = 16;

// Of the C library's function on such numbers.
std::string NameOf(const char* name, Value* like) {
  return absl::StrCat(name, like->getType()->getScalarType()->isFloatTy() ? "f" : "");
}

}  // namespace

Value* VectorMath::Fma(Value* a, Value* b, Value* c) {
  return b_.CreateIntrinsic(llvm::Intrinsic::fmuladd, {a->getType()}, {a, b, c});
}

Value* VectorMath::Poly(Value* x, std::initializer_list<double> high_to_low) {
  Value* y = nullptr;
  for (double c : high_to_low) y = y == nullptr ? F(x, c) : Fma(y, x, F(x, c));
  return y;
}

llvm::Type* VectorMath::IntLike(Value* x) {
  llvm::Type* type = x->getType();
  llvm::Type* scalar = b_.getIntNTy(type->getScalarSizeInBits());
  if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type)) {
    return llvm::FixedVectorType::get(scalar, vector->getNumElements());
  }
  return scalar;
}

Value* VectorMath::TwoToThe(Value* n) {
  llvm::Type* ints = n->getType();
  const bool wide = ints->getScalarSizeInBits() == 64;
  Value* biased = b_.CreateAdd(n, llvm::ConstantInt::get(ints, wide ? 1023 : 127));
  Value* bits = b_.CreateShl(biased, llvm::ConstantInt::get(ints, wide ? 52 : 23));
  llvm::Type* floats = wide ? b_.getDoubleTy() : b_.getFloatTy();
  if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(ints)) {
    floats = llvm::FixedVectorType::get(floats, vector->getNumElements());
  }
  return b_.CreateBitCast(bits, floats);
}

std::pair<Value*, Value*> VectorMath::Nearest(Value* x, double factor) {
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits; to an f64, 1.5 * 2^52.
  const double number = IsF32(x) ? 12582912.0 : 6755399441055744.0;
  Value* magic = F(x, number);
  Value* shifted = Fma(x, F(x, factor), magic);
  llvm::Type* ints = IntLike(x);
  const uint64_t bits = IsF32(x) ? 0x4B400000 : std::bit_cast<uint64_t>(number);
  Value* n = b_.CreateSub(b_.CreateBitCast(shifted, ints), llvm::ConstantInt::get(ints, bits));
  return {n, b_.CreateFSub(shifted, magic)};
}

VectorMath::Reduced VectorMath::ReduceLn2(Value* x) {
  const auto [n, whole] = Nearest(x, 1.44269504088896341);
  // In two parts: multiples of the first are exact.
  Value* r = Fma(whole, F(x, IsF32(x) ? -0.693145751953125 : -6.93147180369123816490e-1), x);
  r = Fma(whole, F(x, IsF32(x) ? -1.42860682030941723212e-6 : -1.90821492927058770002e-10), r);
  return {n, whole, r};
}

bool VectorMath::HasScale(Value* x) {
  auto* type = llvm::dyn_cast<llvm::FixedVectorType>(x->getType());
  return VectorBits() >= 512 && IsF32(x) && type != nullptr && type->getNumElements() % kScaleLanes == 0;
}

Value* VectorMath::Scale(Value* y, const Reduced& by, Value* where) {
  if (!HasScale(y)) {
    // In two steps, so that the largest results and denormals come out.
    Value* half = b_.CreateAShr(by.n, llvm::ConstantInt::get(by.n->getType(), 1));
    y = b_.CreateFMul(y, TwoToThe(half));
    y = b_.CreateFMul(y, TwoToThe(b_.CreateSub(by.n, half)));
    return b_.CreateSelect(where, y, F(y, 0.0));
  }
  auto* type = llvm::cast<llvm::FixedVectorType>(y->getType());
  auto* part = llvm::FixedVectorType::get(b_.getFloatTy(), kScaleLanes);
  Value* result = llvm::PoisonValue::get(type);
  auto* flags = llvm::FixedVectorType::get(b_.getInt1Ty(), kScaleLanes);
  for (uint64_t i = 0; i < type->getNumElements(); i += kScaleLanes) {
    Value* mask = b_.CreateBitCast(b_.CreateExtractVector(flags, where, i), b_.getInt16Ty());
    Value* scaled =
        b_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {},
                           {b_.CreateExtractVector(part, y, i), b_.CreateExtractVector(part, by.whole, i),
                            llvm::Constant::getNullValue(part), mask, b_.getInt32(4)});  // 4: rounds as everything does
    result = b_.CreateInsertVector(type, result, scaled, i);
  }
  return result;
}

Value* VectorMath::ExpTail(Value* r) {
  // Minimax on [-ln2/2, ln2/2]: 3e-9 of exp(r), 0.05 of an f32's last place; 0.11 of an f64's.
  Value* p = IsF32(r) ? Poly(r, {1.3814540027e-3, 8.3687451126e-3, 4.1668390787e-2, 1.6666520399e-1, 4.9999993432e-1})
                      : Poly(r, {2.510038549551032e-08, 2.7620088445409746e-07, 2.7557268459997064e-06,
                                 2.4801521295954376e-05, 1.9841269863053618e-4, 1.3888888917213717e-3,
                                 8.333333333330062e-3, 4.166666666662413e-2, 1.6666666666666669e-1, 0.5});
  return Fma(p, b_.CreateFMul(r, r), r);
}

Value* VectorMath::Power(Value* x, double least, double most, llvm::function_ref<Reduced(Value*)> reduce) {
  // NaN goes through both. What underflows to 0 is not computed: a product that underflows costs some processors a
  // hundred cycles, and half of what a causal mask leaves are such.
  Value* some = b_.CreateFCmpUGE(x, F(x, least));
  Value* clamped = b_.CreateSelect(b_.CreateFCmpOGT(x, F(x, most)), F(x, most), x);
  if (!HasScale(x)) clamped = b_.CreateSelect(some, clamped, F(x, 0.0));
  const Reduced reduced = reduce(clamped);
  return Scale(b_.CreateFAdd(ExpTail(reduced.r), F(x, 1.0)), reduced, some);
}

Value* VectorMath::Exp(Value* x) {
  return Power(x, IsF32(x) ? -104.0 : -746.0, IsF32(x) ? 89.0 : 710.0,
               [this](Value* clamped) { return ReduceLn2(clamped); });
}

Value* VectorMath::Exp2(Value* x) {
  if (!IsF32(x)) return Call("exp2", {x});
  return Power(x, -150.0, 129.0, [this](Value* clamped) {
    const auto [n, whole] = Nearest(clamped, 1);
    return Reduced{n, whole, b_.CreateFMul(b_.CreateFSub(clamped, whole), F(clamped, 0.693147180559945309))};
  });
}

Value* VectorMath::Expm1(Value* x) {
  if (!IsF32(x)) return Call("expm1", {x});
  Value* clamped = b_.CreateSelect(b_.CreateFCmpOGT(x, F(x, 89.0)), F(x, 89.0), x);
  clamped = b_.CreateSelect(b_.CreateFCmpOLT(clamped, F(x, -18.0)), F(x, -18.0), clamped);
  const auto [n, whole, r] = ReduceLn2(clamped);
  // 2 * (2^(n-1) * (exp(r) - 1) + (2^(n-1) - 1/2)): exact for n = 0, no overflow before the last step.
  Value* scale = TwoToThe(b_.CreateSub(n, llvm::ConstantInt::get(n->getType(), 1)));
  Value* y = Fma(scale, ExpTail(r), b_.CreateFSub(scale, F(x, 0.5)));
  y = b_.CreateFAdd(y, y);
  return b_.CreateSelect(b_.CreateFCmpOEQ(x, F(x, 0.0)), x, y);  // keeps -0
}

std::pair<Value*, Value*> VectorMath::LogParts(Value* x) {
  llvm::Type* ints = IntLike(x);
  auto integer = [&](int64_t v) { return llvm::ConstantInt::get(ints, v, true); };
  Value* tiny = b_.CreateFCmpOLT(x, F(x, std::numeric_limits<float>::min()));
  Value* normal = b_.CreateSelect(tiny, b_.CreateFMul(x, F(x, 8388608.0)), x);
  Value* bits = b_.CreateBitCast(normal, ints);
  Value* e = b_.CreateAShr(b_.CreateSub(bits, integer(0x3f3504f3)), integer(23));  // m within sqrt(1/2) .. sqrt(2)
  Value* m = b_.CreateBitCast(b_.CreateSub(bits, b_.CreateShl(e, integer(23))), x->getType());
  e = b_.CreateSelect(tiny, b_.CreateSub(e, integer(23)), e);
  Value* f = b_.CreateFSub(m, F(x, 1.0));
  Value* z = b_.CreateFMul(f, f);
  Value* p = Poly(f, {7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
                      -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1});
  p = b_.CreateFMul(b_.CreateFMul(p, f), z);
  p = Fma(F(x, -0.5), z, p);
  return {b_.CreateSIToFP(e, x->getType()), b_.CreateFAdd(f, p)};
}

Value* VectorMath::LogSpecials(Value* x, Value* result) {
  double infinity = std::numeric_limits<double>::infinity();
  result = b_.CreateSelect(b_.CreateFCmpOEQ(x, F(x, infinity)), x, result);
  result = b_.CreateSelect(b_.CreateFCmpOEQ(x, F(x, 0.0)), F(x, -infinity), result);
  return b_.CreateSelect(b_.CreateFCmpULT(x, F(x, 0.0)), F(x, std::numeric_limits<double>::quiet_NaN()), result);
}

// By the series of atanh(s) = log(m) / 2, whose first terms are f and f^2 / 2: dispatcher/host_random.cc has the same.
Value* VectorMath::WideLog(Value* x) {
  llvm::Type* ints = IntLike(x);
  const auto integer = [&](uint64_t v) { return llvm::ConstantInt::get(ints, v); };
  Value* tiny = b_.CreateFCmpOLT(x, F(x, std::numeric_limits<double>::min()));
  Value* bits = b_.CreateBitCast(b_.CreateSelect(tiny, b_.CreateFMul(x, F(x, 0x1p54)), x), ints);
  // The exponent, 1023 more, of what m within sqrt(1/2) .. sqrt(2) leaves; as a number behind 2^52.
  constexpr uint64_t kOne = 0x3ff0000000000000, kRootOfHalf = 0x3fe6a09e667f3bcd;
  Value* biased = b_.CreateLShr(b_.CreateAdd(bits, integer(kOne - kRootOfHalf)), integer(52));
  Value* m = b_.CreateSub(bits, b_.CreateShl(b_.CreateSub(biased, integer(1023)), integer(52)));
  Value* e = b_.CreateBitCast(b_.CreateOr(biased, integer(std::bit_cast<uint64_t>(0x1p52))), x->getType());
  e = b_.CreateFSub(e, b_.CreateSelect(tiny, F(x, 0x1p52 + 1023 + 54), F(x, 0x1p52 + 1023)));
  Value* f = b_.CreateFSub(b_.CreateBitCast(m, x->getType()), F(x, 1.0));
  Value* s = b_.CreateFDiv(f, b_.CreateFAdd(f, F(x, 2.0)));
  Value* z = b_.CreateFMul(s, s);
  Value* p =
      Poly(z, {1.479819860511658591e-1, 1.531383769920937332e-1, 1.818357216161805012e-1, 2.222219843214978396e-1,
               2.857142874366239149e-1, 3.999999999940941908e-1, 6.666666666666735130e-1});
  Value* half = b_.CreateFMul(b_.CreateFMul(f, F(x, 0.5)), f);
  Value* rest = Fma(s, b_.CreateFAdd(half, b_.CreateFMul(z, p)), b_.CreateFMul(e, F(x, 1.90821492927058770002e-10)));
  Value* y = Fma(e, F(x, 6.93147180369123816490e-1), b_.CreateFSub(f, b_.CreateFSub(half, rest)));
  return LogSpecials(x, y);
}

Value* VectorMath::Log(Value* x) {
  if (!IsF32(x)) return WideLog(x);
  auto [e, log_m] = LogParts(x);
  Value* y = Fma(e, F(x, -2.12194440e-4), log_m);
  return LogSpecials(x, Fma(e, F(x, 0.693359375), y));
}

Value* VectorMath::Log2(Value* x) {
  if (!IsF32(x)) return Call("log2", {x});
  auto [e, log_m] = LogParts(x);
  return LogSpecials(x, Fma(log_m, F(x, 1.44269504088896341), e));
}

Value* VectorMath::Log10(Value* x) {
  if (!IsF32(x)) {
    // The vector function is not exact at powers of ten.
    Value* y = Call("log10", {x});
    Value* off = b_.CreateFSub(y, b_.CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, y));
    Value* near_whole = b_.CreateFCmpOLT(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, off), F(x, 1e-12));
    return Rarely(near_whole, y, [&] { return CallEach("log10", {x}); });
  }
  auto [e, log_m] = LogParts(x);  // the logarithm of 2 in two parts: the first, by e, is exact
  Value* y = Fma(log_m, F(x, 0.434294481903251828), b_.CreateFMul(e, F(x, 4.60503898119521374e-6)));
  return LogSpecials(x, Fma(e, F(x, 0.301025390625), y));
}

Value* VectorMath::Log1p(Value* x) {
  if (!IsF32(x)) return Call("log1p", {x});
  Value* u = b_.CreateFAdd(x, F(x, 1.0));
  Value* lost = b_.CreateFSub(x, b_.CreateFSub(u, F(x, 1.0)));
  Value* y = b_.CreateFAdd(Log(u), b_.CreateFDiv(lost, u));
  Value* infinity = F(x, std::numeric_limits<double>::infinity());
  y = b_.CreateSelect(b_.CreateFCmpOEQ(x, infinity), x, y);
  y = b_.CreateSelect(b_.CreateFCmpOEQ(x, F(x, -1.0)), F(x, -std::numeric_limits<double>::infinity()), y);
  return b_.CreateSelect(b_.CreateFCmpOEQ(x, F(x, 0.0)), x, y);
}

Value* VectorMath::Tanh(Value* x) {
  if (!IsF32(x)) return Call("tanh", {x});
  Value* a = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  Value* bounded = b_.CreateSelect(b_.CreateFCmpOGT(a, F(x, 10.0)), F(x, 10.0), a);
  Value* t = Expm1(b_.CreateFAdd(bounded, bounded));
  Value* y = b_.CreateFDiv(t, b_.CreateFAdd(t, F(x, 2.0)));
  return b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, y, x);
}

Value* VectorMath::Erf(Value* x) {
  if (!IsF32(x)) return Call("erf", {x});
  // x * p(x^2) / q(x^2), scaled for the least rounding. Comparisons are false for NaN, which so goes through.
  auto clamp = [&](Value* v, double most) {
    v = b_.CreateSelect(b_.CreateFCmpOGT(v, F(x, most)), F(x, most), v);
    return b_.CreateSelect(b_.CreateFCmpOLT(v, F(x, -most)), F(x, -most), v);
  };
  Value* t = clamp(x, 3.8325069);
  Value* s = b_.CreateFMul(t, t);
  Value* p = Poly(s, {1.77875472e-06, 0.000239562301, 0.00306026172, 0.0439161696, 0.156926557, 0.945355356});
  Value* q = Poly(s, {3.25888723e-05, 0.000956517586, 0.0123512289, 0.094587855, 0.418338627, 0.83779937});
  Value* y = clamp(b_.CreateFDiv(b_.CreateFMul(t, p), q), 1.0);
  // Exactly 1 from where erf rounds to it: what is left of 1 - erf(x) counts when it is multiplied by a large x.
  Value* far = b_.CreateFCmpOGT(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x), F(x, 3.92));
  return b_.CreateSelect(far, b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, F(x, 1.0), x), y);
}

// Reduced in f64, so that large arguments keep their accuracy.
VectorMath::Quarters VectorMath::ReduceHalfPi(Value* x) {
  llvm::Type* doubles = b_.getDoubleTy();
  if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(x->getType())) {
    doubles = llvm::FixedVectorType::get(doubles, vector->getNumElements());
  }
  Value* wide = b_.CreateFPExt(x, doubles);
  const auto [n, whole] = Nearest(wide, 0.636619772367581343);
  Value* reduced = Fma(whole, F(wide, -1.57079632679489655800e+00), wide);
  reduced = Fma(whole, F(wide, -6.12323399573676603587e-17), reduced);
  Value* turns = b_.CreateTrunc(n, IntLike(x));
  return {turns, reduced, b_.CreateFPTrunc(reduced, x->getType())};
}

// Where the words of pi are not enough; hardly ever.
Value* VectorMath::IsLarge(Value* x) {
  return b_.CreateFCmpOGT(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x), F(x, 1e9));
}

Value* VectorMath::IsOdd(Value* n) {
  llvm::Type* ints = n->getType();
  return b_.CreateICmpNE(b_.CreateAnd(n, llvm::ConstantInt::get(ints, 1)), llvm::ConstantInt::get(ints, 0));
}

Value* VectorMath::Tan(Value* x) {
  if (!IsF32(x)) return CallEach("tan", {x});
  const auto [turns, reduced, r] = ReduceHalfPi(x);
  Value* z = b_.CreateFMul(r, r);
  Value* p = Poly(
      z, {9.38540185543e-3, 3.11992232697e-3, 2.44301354525e-2, 5.34112807005e-2, 1.33387994085e-1, 3.33331568548e-1});
  // The sum and its inverse in f64: rounded once.
  Value* wide = b_.CreateFAdd(reduced, b_.CreateFPExt(b_.CreateFMul(b_.CreateFMul(p, z), r), reduced->getType()));
  Value* odd = IsOdd(turns);
  wide = b_.CreateSelect(odd, b_.CreateFDiv(F(wide, -1.0), wide), wide);
  Value* y = b_.CreateFPTrunc(wide, x->getType());
  return Rarely(IsLarge(x), y, [&] { return CallEach("tan", {x}); });
}

// The polynomials are fdlibm's. dispatcher/host_random.cc has the same.
Value* VectorMath::WideSinCos(Value* x, int quarter, const char* name) {
  if (VectorBits() < 256) return CallEach(name, {x});  // without fused products the first difference is not exact
  const auto [turns, whole] = Nearest(x, 0.636619772367581343);
  Value* first = Fma(whole, F(x, -1.57079632679489655800e+00), x);
  // Of an angle near a multiple of pi/2 the next word of that is what is left, so r is followed by its rest.
  Value* word = F(x, 6.12323399573676603587e-17);
  Value* second = b_.CreateFMul(whole, word);
  Value* r = b_.CreateFSub(first, second);
  Value* rest = b_.CreateFSub(b_.CreateFSub(first, r), second);
  rest = b_.CreateFSub(rest, Fma(whole, word, b_.CreateFNeg(second)));
  rest = Fma(whole, F(x, 1.49738490485916980e-33), rest);
  Value* z = b_.CreateFMul(r, r);
  Value* half = b_.CreateFMul(F(x, 0.5), z);
  Value* sine = Poly(z, {1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
                         -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01});
  sine = b_.CreateFAdd(r, Fma(b_.CreateFMul(z, r), sine, Fma(b_.CreateFNeg(half), rest, rest)));
  sine = b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, sine, r);  // of -0 the sum would be 0
  Value* cosine = Poly(z, {-1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
                           2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02});
  cosine = Fma(b_.CreateFMul(z, z), cosine, b_.CreateFNeg(b_.CreateFMul(r, rest)));
  Value* least = b_.CreateFSub(F(x, 1.0), half);
  cosine = b_.CreateFAdd(least, b_.CreateFAdd(b_.CreateFSub(b_.CreateFSub(F(x, 1.0), least), half), cosine));
  Value* y = OfQuarter(turns, quarter, sine, cosine);
  return Rarely(IsLarge(x), y, [&] { return CallEach(name, {x}); });
}

// Behind so many quarters, the sine or the cosine of what is left, or less than nothing.
Value* VectorMath::OfQuarter(Value* turns, int quarter, Value* sine, Value* cosine) {
  llvm::Type* ints = turns->getType();
  turns = b_.CreateAdd(turns, llvm::ConstantInt::get(ints, quarter));
  Value* y = b_.CreateSelect(IsOdd(turns), cosine, sine);
  Value* second = b_.CreateAnd(turns, llvm::ConstantInt::get(ints, 2));
  Value* sign = b_.CreateShl(second, llvm::ConstantInt::get(ints, ints->getScalarSizeInBits() - 2));
  return b_.CreateBitCast(b_.CreateXor(b_.CreateBitCast(y, ints), sign), y->getType());
}

Value* VectorMath::SinCos(Value* x, int quarter, const char* name) {
  if (!IsF32(x)) return WideSinCos(x, quarter, name);
  const auto [turns, reduced, r] = ReduceHalfPi(x);
  Value* z = b_.CreateFMul(r, r);
  Value* sine = Poly(z, {-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1});
  // Of -0 the sum would be 0.
  sine = b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, Fma(b_.CreateFMul(sine, z), r, r), r);
  Value* cosine = Poly(z, {2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2});
  cosine = Fma(cosine, b_.CreateFMul(z, z), Fma(F(x, -0.5), z, F(x, 1.0)));
  return Rarely(IsLarge(x), OfQuarter(turns, quarter, sine, cosine), [&] { return CallEach(name, {x}); });
}

Value* VectorMath::Rarely(Value* lanes, Value* usual, llvm::function_ref<Value*()> otherwise) {
  llvm::BasicBlock* here = b_.GetInsertBlock();
  auto* rare = llvm::BasicBlock::Create(b_.getContext(), "rare", here->getParent());
  auto* done = llvm::BasicBlock::Create(b_.getContext(), "done", here->getParent());
  b_.CreateCondBr(lanes->getType()->isVectorTy() ? b_.CreateOrReduce(lanes) : lanes, rare, done);
  b_.SetInsertPoint(rare);
  Value* mended = b_.CreateSelect(lanes, otherwise(), usual);
  llvm::BasicBlock* end = b_.GetInsertBlock();
  b_.CreateBr(done);
  b_.SetInsertPoint(done);
  llvm::PHINode* result = b_.CreatePHI(usual->getType(), 2);
  result->addIncoming(usual, here);
  result->addIncoming(mended, end);
  return result;
}

Value* VectorMath::WholePower(Value* x, Value* y) {
  llvm::Type* const type = x->getType();
  llvm::Constant *zero = llvm::ConstantInt::get(type, 0), *one = llvm::ConstantInt::get(type, 1);
  llvm::BasicBlock* const before = b_.GetInsertBlock();
  auto* bit = llvm::BasicBlock::Create(b_.getContext(), "bit", before->getParent());
  auto* done = llvm::BasicBlock::Create(b_.getContext(), "done", before->getParent());
  b_.CreateBr(bit);
  b_.SetInsertPoint(bit);
  llvm::PHINode *power = b_.CreatePHI(type, 2), *square = b_.CreatePHI(type, 2), *left = b_.CreatePHI(type, 2);
  Value* const odd = b_.CreateICmpNE(b_.CreateAnd(left, one), zero);
  Value* const product = b_.CreateSelect(odd, b_.CreateMul(power, square), power);
  Value* const rest = b_.CreateLShr(left, one);
  power->addIncoming(one, before);
  power->addIncoming(product, bit);
  square->addIncoming(x, before);
  square->addIncoming(b_.CreateMul(square, square), bit);
  left->addIncoming(y, before);
  left->addIncoming(rest, bit);
  Value* const more = b_.CreateICmpNE(rest, zero);
  b_.CreateCondBr(type->isVectorTy() ? b_.CreateOrReduce(more) : more, bit, done);
  b_.SetInsertPoint(done);
  return product;
}

Value* VectorMath::Logistic(Value* x) {
  Value* one = F(x, 1.0);
  return b_.CreateFDiv(one, b_.CreateFAdd(one, Exp(b_.CreateFNeg(x))));
}

Value* VectorMath::Sqrt(Value* x) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x); }

Value* VectorMath::Fmod(Value* x, Value* y) {
  // What the rounded quotient leaves is exact while the quotient is; rounded up to the next whole number, one too much.
  Value* size = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, y);
  Value* quotient = b_.CreateFDiv(x, y);
  Value* whole = b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, quotient);
  Value* rest = b_.CreateIntrinsic(llvm::Intrinsic::fma, {x->getType()}, {b_.CreateFNeg(whole), y, x});
  Value* positive = b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, F(x, 1.0), x);
  Value* toward = b_.CreateFMul(rest, positive);
  Value* over = b_.CreateFCmpOLT(toward, F(x, 0.0));
  toward = b_.CreateSelect(over, b_.CreateFAdd(toward, size), toward);
  Value* y_is_finite = b_.CreateFCmpOLT(size, F(x, std::numeric_limits<double>::infinity()));
  Value* small = b_.CreateFCmpOLT(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, quotient), F(x, 4194304.0));
  Value* other = b_.CreateNot(b_.CreateAnd(small, y_is_finite));
  return Rarely(other, b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, toward, x),
                [&] { return CallEach("fmod", {x, y}); });
}

// `name` of as many lanes as the arguments' type has, which the loader knows.
Value* VectorMath::CallOf(const std::string& name, llvm::ArrayRef<Value*> arguments) {
  llvm::Type* type = arguments[0]->getType();
  llvm::SmallVector<llvm::Type*> types(arguments.size(), type);
  llvm::Module* module = b_.GetInsertBlock()->getModule();
  llvm::FunctionCallee callee = module->getOrInsertFunction(name, llvm::FunctionType::get(type, types, false));
  auto* function = llvm::cast<llvm::Function>(callee.getCallee());
  function->setDoesNotAccessMemory();
  function->setDoesNotThrow();
  function->addFnAttr(llvm::Attribute::WillReturn);
  return b_.CreateCall(callee, arguments);
}

Value* VectorMath::CallEach(const char* name, llvm::ArrayRef<Value*> arguments) {
  const std::string scalar = NameOf(name, arguments[0]);
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(arguments[0]->getType());
  if (vector == nullptr) return CallOf(scalar, arguments);
  Value* result = llvm::PoisonValue::get(vector);
  for (unsigned lane = 0; lane < vector->getNumElements(); ++lane) {
    llvm::SmallVector<Value*> scalars;
    for (Value* argument : arguments) scalars.push_back(b_.CreateExtractElement(argument, lane));
    result = b_.CreateInsertElement(result, CallOf(scalar, scalars), lane);
  }
  return result;
}

Value* VectorMath::Call(const char* name, llvm::ArrayRef<Value*> arguments) {
  llvm::Type* type = arguments[0]->getType();
  llvm::Type* element = type->getScalarType();
  const unsigned native = static_cast<unsigned>(VectorBits()) / element->getScalarSizeInBits();
  const std::string function = VectorFunction(NameOf(name, arguments[0]), arguments.size(), native, VectorBits());
  if (function.empty()) return CallEach(name, arguments);
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type);
  const unsigned lanes = vector != nullptr ? vector->getNumElements() : 1;
  llvm::SmallVector<Value*> parts(arguments.size());
  if (lanes < native) {  // the same function, so that an element's result does not depend on where it lies
    llvm::SmallVector<int> order(native, 0);
    for (unsigned i = 0; i < lanes; ++i) order[i] = static_cast<int>(i);
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i] =
          vector != nullptr ? b_.CreateShuffleVector(arguments[i], order) : b_.CreateVectorSplat(native, arguments[i]);
    }
    Value* result = CallOf(function, parts);
    if (vector == nullptr) return b_.CreateExtractElement(result, uint64_t{0});
    return b_.CreateShuffleVector(result, llvm::ArrayRef(order).take_front(lanes));
  }
  auto* part = llvm::FixedVectorType::get(element, native);
  Value* result = llvm::PoisonValue::get(vector);
  for (uint64_t lane = 0; lane < lanes; lane += native) {
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = b_.CreateExtractVector(part, arguments[i], lane);
    result = b_.CreateInsertVector(vector, result, CallOf(function, parts), lane);
  }
  return result;
}

std::array<Value*, 4> VectorMath::Philox(Value* counter, Value* key) {
  // Words are the low halves of wide lanes, whose high halves count for nothing until the end.
  llvm::Type* wide = counter->getType();
  llvm::Type* narrow = b_.getInt32Ty();
  if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(wide)) {
    narrow = llvm::FixedVectorType::get(narrow, vector->getNumElements());
  }
  const auto number = [&](uint64_t v) { return llvm::ConstantInt::get(wide, v); };
  const auto high = [&](Value* v) { return b_.CreateLShr(v, number(32)); };
  const auto low = [&](Value* v) { return b_.CreateAnd(v, number(0xFFFFFFFFu)); };
  std::array<Value*, 4> c = {counter, high(counter), number(0), number(0)};
  Value *key_low = key, *key_high = b_.CreateLShr(key, b_.getInt64(32));
  const auto splat = [&](Value* k) {
    auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(wide);
    return vector != nullptr ? b_.CreateVectorSplat(vector->getNumElements(), k) : k;
  };
  for (int round = 0; round < 10; ++round) {
    Value* first = b_.CreateMul(low(c[0]), number(0xD2511F53u));
    Value* second = b_.CreateMul(low(c[2]), number(0xCD9E8D57u));
    c = {b_.CreateXor(b_.CreateXor(high(second), c[1]), splat(key_low)), second,
         b_.CreateXor(b_.CreateXor(high(first), c[3]), splat(key_high)), first};
    key_low = b_.CreateAdd(key_low, b_.getInt64(0x9E3779B9u));
    key_high = b_.CreateAdd(key_high, b_.getInt64(0xBB67AE85u));
  }
  for (Value*& word : c) word = b_.CreateTrunc(word, narrow);
  return c;
}

}  // namespace tpu::host
