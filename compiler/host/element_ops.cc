#include "compiler/host/element_ops.h"

#include <algorithm>
#include <limits>

#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/IR/Intrinsics.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"

namespace tpu::host {

using ir::ElementOf;
using llvm::Value;
using llvm::Intrinsic::ID;

namespace {

bool IsHalf(mlir::Type t) { return t.isF16() || t.isBF16(); }
bool IsFloat(mlir::Type t) { return mlir::isa<mlir::FloatType>(t); }
bool IsBool(mlir::Type t) { return t.isInteger(1); }
bool IsUnsigned(mlir::Type t) { return IsBool(t) || t.isUnsignedInteger(); }

llvm::Type* Lanes(llvm::Type* scalar, int width) {
  return width == 1 ? scalar : llvm::FixedVectorType::get(scalar, width);
}
llvm::Type* Like(Value* v, llvm::Type* scalar) {
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
  return vector ? llvm::FixedVectorType::get(scalar, vector->getNumElements()) : scalar;
}
llvm::Constant* Int(Value* like, int64_t v) { return llvm::ConstantInt::get(like->getType(), v, true); }
llvm::Constant* Number(Value* like, double v) { return llvm::ConstantFP::get(like->getType(), v); }

}  // namespace

int64_t ElementOps::BytesOf(mlir::Type element) { return ir::BytesOf(element); }

llvm::Align ElementOps::AlignOf(mlir::Type element) { return llvm::Align(std::min<int64_t>(BytesOf(element), 8)); }

llvm::Type* ElementOps::RegisterType(mlir::Type element, int width) {
  if (IsHalf(element) || element.isF32()) return Lanes(b_.getFloatTy(), width);
  if (element.isF64()) return Lanes(b_.getDoubleTy(), width);
  if (IsBool(element)) return Lanes(b_.getInt1Ty(), width);
  return Lanes(b_.getIntNTy(static_cast<unsigned>(BytesOf(element) * 8)), width);
}

llvm::Type* ElementOps::MemoryType(mlir::Type element, int width) {
  if (element.isF16()) return Lanes(b_.getHalfTy(), width);
  if (element.isF32()) return Lanes(b_.getFloatTy(), width);
  if (element.isF64()) return Lanes(b_.getDoubleTy(), width);
  return Lanes(b_.getIntNTy(static_cast<unsigned>(BytesOf(element) * 8)), width);
}

Value* ElementOps::FromMemory(mlir::Type element, Value* loaded) {
  if (IsBool(element)) return b_.CreateICmpNE(loaded, Int(loaded, 0));
  if (element.isF16()) return b_.CreateFPExt(loaded, Like(loaded, b_.getFloatTy()));
  if (element.isBF16()) {
    Value* wide = b_.CreateZExt(loaded, Like(loaded, b_.getInt32Ty()));
    return b_.CreateBitCast(b_.CreateShl(wide, Int(wide, 16)), Like(loaded, b_.getFloatTy()));
  }
  return loaded;
}

Value* ElementOps::ToMemory(mlir::Type element, Value* value) {
  if (IsBool(element)) return b_.CreateZExt(value, Like(value, b_.getInt8Ty()));
  if (element.isF16()) return b_.CreateFPTrunc(value, Like(value, b_.getHalfTy()));
  if (element.isBF16()) {  // already rounded
    Value* bits = b_.CreateBitCast(value, Like(value, b_.getInt32Ty()));
    return b_.CreateTrunc(b_.CreateLShr(bits, Int(bits, 16)), Like(value, b_.getInt16Ty()));
  }
  return value;
}

Value* ElementOps::Load(mlir::Type element, Value* pointer, int width) {
  return FromMemory(element, b_.CreateAlignedLoad(MemoryType(element, width), pointer, AlignOf(element)));
}

void ElementOps::Store(mlir::Type element, Value* value, Value* pointer, bool non_temporal) {
  Value* stored = ToMemory(element, value);
  bool vector = stored->getType()->isVectorTy();
  llvm::StoreInst* store =
      b_.CreateAlignedStore(stored, pointer, non_temporal && vector ? llvm::Align(32) : AlignOf(element));
  if (non_temporal && vector) {
    store->setMetadata(llvm::LLVMContext::MD_nontemporal,
                       llvm::MDNode::get(b_.getContext(), llvm::ConstantAsMetadata::get(b_.getInt32(1))));
  }
}

Value* ElementOps::Constant(mlir::Attribute splat, mlir::Type element) {
  auto elements = mlir::cast<mlir::DenseElementsAttr>(splat);
  llvm::Type* type = RegisterType(element, 1);
  if (IsFloat(element)) return llvm::ConstantFP::get(type, elements.getSplatValue<llvm::APFloat>().convertToDouble());
  if (element.isIntOrIndex()) return llvm::ConstantInt::get(b_.getContext(), elements.getSplatValue<llvm::APInt>());
  // Complex numbers only move: their bits.
  auto number = elements.getSplatValue<std::complex<llvm::APFloat>>();
  unsigned half = static_cast<unsigned>(BytesOf(element) * 4);
  llvm::APInt bits =
      number.imag().bitcastToAPInt().zext(2 * half).shl(half) | number.real().bitcastToAPInt().zext(2 * half);
  return llvm::ConstantInt::get(b_.getContext(), bits);
}

Value* ElementOps::Round(mlir::Type element, Value* value) {
  if (element.isF16()) {
    return b_.CreateFPExt(b_.CreateFPTrunc(value, Like(value, b_.getHalfTy())), value->getType());
  }
  if (!element.isBF16()) return value;
  Value* bits = b_.CreateBitCast(value, Like(value, b_.getInt32Ty()));
  Value* odd = b_.CreateAnd(b_.CreateLShr(bits, Int(bits, 16)), Int(bits, 1));
  Value* rounded = b_.CreateAdd(bits, b_.CreateAdd(odd, Int(bits, 0x7fff)));
  rounded = b_.CreateAnd(rounded, Int(bits, static_cast<int32_t>(0xffff0000u)));
  rounded = b_.CreateSelect(b_.CreateFCmpUNO(value, value), Int(bits, 0x7fc00000), rounded);
  return b_.CreateBitCast(rounded, value->getType());
}

// A complex number's bits: the real part, and above it the imaginary one.
Value* ElementOps::Part(mlir::Type part, Value* x, bool imaginary) {
  const unsigned width = part.getIntOrFloatBitWidth();
  Value* bits = imaginary ? b_.CreateLShr(x, Int(x, width)) : x;
  return b_.CreateBitCast(b_.CreateTrunc(bits, Like(x, b_.getIntNTy(width))), Like(x, RegisterType(part, 1)));
}

Value* ElementOps::Complex(mlir::Type part, Value* real, Value* imaginary) {
  const unsigned width = part.getIntOrFloatBitWidth();
  const auto bits = [&](Value* v) {
    return b_.CreateZExt(b_.CreateBitCast(v, Like(v, b_.getIntNTy(width))), Like(v, b_.getIntNTy(2 * width)));
  };
  Value* low = bits(real);
  return imaginary == nullptr ? low : b_.CreateOr(b_.CreateShl(bits(imaginary), Int(low, width)), low);
}

Value* ElementOps::ConvertComplex(mlir::Type from, mlir::Type to, Value* x) {
  Value *real = x, *imaginary = nullptr;
  if (auto complex = mlir::dyn_cast<mlir::ComplexType>(from)) {
    from = complex.getElementType();
    real = Part(from, x, false);
    imaginary = Part(from, x, true);
    if (IsBool(to)) return b_.CreateOr(Convert(from, to, real), Convert(from, to, imaginary));
  }
  auto complex = mlir::dyn_cast<mlir::ComplexType>(to);
  if (!complex) return Convert(from, to, real);
  to = complex.getElementType();
  return Complex(to, Convert(from, to, real), imaginary == nullptr ? nullptr : Convert(from, to, imaginary));
}

Value* ElementOps::Convert(mlir::Type from, mlir::Type to, Value* x) {
  if (from == to) return x;
  if (mlir::isa<mlir::ComplexType>(from) || mlir::isa<mlir::ComplexType>(to)) return ConvertComplex(from, to, x);
  llvm::Type* type = Like(x, RegisterType(to, 1));
  if (IsBool(to)) return IsFloat(from) ? b_.CreateFCmpUNE(x, Number(x, 0)) : b_.CreateICmpNE(x, Int(x, 0));
  if (IsFloat(from) && IsFloat(to)) {
    if (to.isF64()) return b_.CreateFPExt(x, type);
    if (from.isF64()) x = b_.CreateFPTrunc(x, type);
    return Round(to, x);
  }
  if (IsFloat(to)) {
    return Round(to, IsUnsigned(from) ? b_.CreateUIToFP(x, type) : b_.CreateSIToFP(x, type));
  }
  if (IsFloat(from)) {
    // Narrow types go through a wider signed one, so that values out of range wrap as C++ does on this CPU.
    unsigned bits = to.getIntOrFloatBitWidth();
    bool wide = bits == 64 || (bits == 32 && to.isUnsignedInteger());
    Value* whole = b_.CreateFreeze(b_.CreateFPToSI(x, Like(x, wide ? b_.getInt64Ty() : b_.getInt32Ty())));
    if (bits == 64 && to.isUnsignedInteger()) {
      Value* above = b_.CreateFreeze(b_.CreateFPToUI(x, type));
      return b_.CreateSelect(b_.CreateFCmpOGE(x, Number(x, 0x1p63)), above, whole);
    }
    return b_.CreateTrunc(whole, type);
  }
  return b_.CreateIntCast(x, type, !IsUnsigned(from));
}

Value* ElementOps::MaxMin(bool max, mlir::Type element, Value* a, Value* b) {
  if (IsFloat(element)) {
    Value* found = b_.CreateBinaryIntrinsic(max ? llvm::Intrinsic::maximum : llvm::Intrinsic::minimum, a, b);
    llvm::cast<llvm::Instruction>(found)->setHasNoSignedZeros(true);  // as the processor has it, and so ATen
    return found;
  }
  bool u = IsUnsigned(element);
  ID id =
      max ? (u ? llvm::Intrinsic::umax : llvm::Intrinsic::smax) : (u ? llvm::Intrinsic::umin : llvm::Intrinsic::smin);
  return b_.CreateBinaryIntrinsic(id, a, b);
}

Value* ElementOps::Divide(mlir::Type element, Value* x, Value* y, bool remainder) {
  Value* zero = b_.CreateICmpEQ(y, Int(y, 0));
  Value* safe = b_.CreateSelect(zero, Int(y, 1), y);
  if (IsUnsigned(element)) {
    Value* r = remainder ? b_.CreateURem(x, safe) : b_.CreateUDiv(x, safe);
    return b_.CreateSelect(zero, Int(y, 0), r);
  }
  Value* minus = b_.CreateICmpEQ(y, Int(y, -1));  // the lowest number by -1 would trap
  safe = b_.CreateSelect(minus, Int(y, 1), safe);
  Value* r = remainder ? b_.CreateSRem(x, safe) : b_.CreateSDiv(x, safe);
  r = b_.CreateSelect(minus, remainder ? Int(y, 0) : b_.CreateNeg(x), r);
  return b_.CreateSelect(zero, Int(y, 0), r);
}

Value* ElementOps::Compare(mlir::Operation* op, Value* x, Value* y) {
  auto compare = mlir::cast<ir::CompareOp>(op);
  mlir::Type element = ElementOf(compare.getLhs());
  using P = llvm::CmpInst::Predicate;
  int kind = static_cast<int>(compare.getKind());
  constexpr P kFloat[] = {P::FCMP_OEQ, P::FCMP_UNE, P::FCMP_OLT, P::FCMP_OLE, P::FCMP_OGT, P::FCMP_OGE};
  constexpr P kSigned[] = {P::ICMP_EQ, P::ICMP_NE, P::ICMP_SLT, P::ICMP_SLE, P::ICMP_SGT, P::ICMP_SGE};
  constexpr P kUnsigned[] = {P::ICMP_EQ, P::ICMP_NE, P::ICMP_ULT, P::ICMP_ULE, P::ICMP_UGT, P::ICMP_UGE};
  if (IsFloat(element)) return b_.CreateFCmp(kFloat[kind], x, y);
  return b_.CreateICmp(IsUnsigned(element) ? kUnsigned[kind] : kSigned[kind], x, y);
}

Value* ElementOps::Unary(mlir::Operation* op, mlir::Type t, Value* x) {
  bool is_float = IsFloat(t);
  auto intrinsic = [&](ID id) { return b_.CreateUnaryIntrinsic(id, x); };
  return llvm::TypeSwitch<mlir::Operation*, Value*>(op)
      .Case<ir::NegOp>([&](auto) { return is_float ? b_.CreateFNeg(x) : b_.CreateNeg(x); })
      .Case<ir::AbsOp>([&](auto) {
        if (is_float) return static_cast<Value*>(intrinsic(llvm::Intrinsic::fabs));
        return IsUnsigned(t) ? x : b_.CreateBinaryIntrinsic(llvm::Intrinsic::abs, x, b_.getFalse());
      })
      .Case<ir::SignOp>([&](auto) {
        if (IsBool(t)) return x;
        if (is_float) {
          Value* negative = b_.CreateSelect(b_.CreateFCmpOLT(x, Number(x, 0)), Number(x, -1), Number(x, 0));
          return b_.CreateSelect(b_.CreateFCmpOGT(x, Number(x, 0)), Number(x, 1), negative);
        }
        if (IsUnsigned(t)) return b_.CreateZExt(b_.CreateICmpNE(x, Int(x, 0)), x->getType());
        Value* negative = b_.CreateSelect(b_.CreateICmpSLT(x, Int(x, 0)), Int(x, -1), Int(x, 0));
        return b_.CreateSelect(b_.CreateICmpSGT(x, Int(x, 0)), Int(x, 1), negative);
      })
      .Case<ir::NotOp>([&](auto) { return b_.CreateNot(x); })
      .Case<ir::ExpOp>([&](auto) { return math_.Exp(x); })
      .Case<ir::Exp2Op>([&](auto) { return math_.Exp2(x); })
      .Case<ir::Expm1Op>([&](auto) { return math_.Expm1(x); })
      .Case<ir::LogOp>([&](auto) { return math_.Log(x); })
      .Case<ir::Log1pOp>([&](auto) { return math_.Log1p(x); })
      .Case<ir::Log2Op>([&](auto) { return math_.Log2(x); })
      .Case<ir::Log10Op>([&](auto) { return math_.Log10(x); })
      .Case<ir::SqrtOp>([&](auto) { return math_.Sqrt(x); })
      .Case<ir::RsqrtOp>([&](auto) { return b_.CreateFDiv(Number(x, 1), math_.Sqrt(x)); })
      .Case<ir::SinOp>([&](auto) { return math_.Sin(x); })
      .Case<ir::CosOp>([&](auto) { return math_.Cos(x); })
      .Case<ir::TanhOp>([&](auto) { return math_.Tanh(x); })
      .Case<ir::ErfOp>([&](auto) { return math_.Erf(x); })
      .Case<ir::LogisticOp>([&](auto) { return math_.Logistic(x); })
      .Case<ir::TanOp>([&](auto) { return math_.Tan(x); })
      .Case<ir::AsinOp, ir::AcosOp, ir::AtanOp, ir::SinhOp, ir::CoshOp, ir::AsinhOp, ir::AcoshOp, ir::AtanhOp>(
          [&](auto o) { return math_.Call(o->getName().stripDialect().str().c_str(), {x}); })
      .Case<ir::FloorOp>([&](auto) { return intrinsic(llvm::Intrinsic::floor); })
      .Case<ir::CeilOp>([&](auto) { return intrinsic(llvm::Intrinsic::ceil); })
      .Case<ir::TruncOp>([&](auto) { return intrinsic(llvm::Intrinsic::trunc); })
      .Case<ir::RoundEvenOp>([&](auto) { return intrinsic(llvm::Intrinsic::roundeven); })
      .Case<ir::IsFiniteOp>([&](auto) {
        return b_.CreateFCmpOLT(intrinsic(llvm::Intrinsic::fabs), Number(x, std::numeric_limits<double>::infinity()));
      })
      .Default([](auto) { return nullptr; });
}

Value* ElementOps::Binary(mlir::Operation* op, mlir::Type t, Value* x, Value* y) {
  bool is_float = IsFloat(t);
  return llvm::TypeSwitch<mlir::Operation*, Value*>(op)
      .Case<ir::AddOp>([&](auto) {
        return is_float ? b_.CreateFAdd(x, y) : IsBool(t) ? b_.CreateOr(x, y) : b_.CreateAdd(x, y);
      })
      .Case<ir::SubOp>([&](auto) { return is_float ? b_.CreateFSub(x, y) : b_.CreateSub(x, y); })
      .Case<ir::MulOp>([&](auto) {
        return is_float ? b_.CreateFMul(x, y) : IsBool(t) ? b_.CreateAnd(x, y) : b_.CreateMul(x, y);
      })
      .Case<ir::DivOp>([&](auto) { return is_float ? b_.CreateFDiv(x, y) : Divide(t, x, y, false); })
      .Case<ir::RemOp>([&](auto) { return is_float ? math_.Fmod(x, y) : Divide(t, x, y, true); })
      .Case<ir::PowOp>([&](auto) { return is_float ? math_.Call("pow", {x, y}) : math_.WholePower(x, y); })
      .Case<ir::Atan2Op>([&](auto) { return math_.Call("atan2", {x, y}); })
      .Case<ir::MaxOp>([&](auto) { return MaxMin(true, t, x, y); })
      .Case<ir::MinOp>([&](auto) { return MaxMin(false, t, x, y); })
      .Case<ir::AndOp>([&](auto) { return b_.CreateAnd(x, y); })
      .Case<ir::OrOp>([&](auto) { return b_.CreateOr(x, y); })
      .Case<ir::XorOp>([&](auto) { return b_.CreateXor(x, y); })
      .Case<ir::CompareOp>([&](auto) { return Compare(op, x, y); })
      .Case<ir::ShlOp>([&](auto) {
        unsigned bits = x->getType()->getScalarSizeInBits();
        Value* fits = b_.CreateICmpULT(y, Int(y, bits));
        return b_.CreateSelect(fits, b_.CreateShl(x, b_.CreateSelect(fits, y, Int(y, 0))), Int(x, 0));
      })
      .Case<ir::ShrOp>([&](auto) {
        unsigned bits = x->getType()->getScalarSizeInBits();
        Value* fits = b_.CreateICmpULT(y, Int(y, bits));
        if (!IsUnsigned(t)) return b_.CreateAShr(x, b_.CreateSelect(fits, y, Int(y, bits - 1)));
        return b_.CreateSelect(fits, b_.CreateLShr(x, b_.CreateSelect(fits, y, Int(y, 0))), Int(x, 0));
      })
      .Default([](auto) { return nullptr; });
}

Value* ElementOps::Apply(mlir::Operation* op, llvm::ArrayRef<Value*> operands) {
  mlir::Type from = ElementOf(op->getOperand(0)), to = ElementOf(op->getResult(0));
  if (mlir::isa<ir::ConvertOp>(op)) return Convert(from, to, operands[0]);
  if (mlir::isa<ir::SelectOp>(op)) return b_.CreateSelect(operands[0], operands[1], operands[2]);
  if (mlir::isa<ir::RealOp, ir::ImaginaryOp>(op)) return Part(to, operands[0], mlir::isa<ir::ImaginaryOp>(op));
  if (mlir::isa<ir::ComplexOp>(op)) return Complex(from, operands[0], operands[1]);
  if (mlir::isa<ir::BitcastOp>(op)) {
    Value* stored = ToMemory(from, operands[0]);
    return FromMemory(to, b_.CreateBitCast(stored, Like(stored, MemoryType(to, 1))));
  }
  Value* result = operands.size() == 1 ? Unary(op, from, operands[0]) : Binary(op, from, operands[0], operands[1]);
  return result == nullptr || KeepsRounded(op) ? result : Round(to, result);
}

bool ElementOps::KeepsRounded(mlir::Operation* op) { return mlir::isa<ir::NegOp, ir::AbsOp, ir::MaxOp, ir::MinOp>(op); }

Value* ElementOps::Combine(Fold fold, mlir::Type t, Value* a, Value* b) {
  bool is_float = IsFloat(t);
  switch (fold) {
    case Fold::kSum:
      return is_float ? b_.CreateFAdd(a, b) : IsBool(t) ? b_.CreateOr(a, b) : b_.CreateAdd(a, b);
    case Fold::kProd:
      return is_float ? b_.CreateFMul(a, b) : IsBool(t) ? b_.CreateAnd(a, b) : b_.CreateMul(a, b);
    case Fold::kMax:
    case Fold::kMin:
      return MaxMin(fold == Fold::kMax, t, b, a);  // whether b is NaN is known without waiting for a
    case Fold::kAll:
      return b_.CreateAnd(a, b);
    case Fold::kAny:
      return b_.CreateOr(a, b);
  }
  return nullptr;
}

Value* ElementOps::Identity(Fold fold, mlir::Type t, int width) {
  llvm::Type* type = RegisterType(t, width);
  bool low = fold == Fold::kMax;
  if (IsFloat(t)) {
    double infinity = std::numeric_limits<double>::infinity();
    double v = fold == Fold::kProd ? 1 : fold == Fold::kSum ? 0 : low ? -infinity : infinity;
    return llvm::ConstantFP::get(type, v);
  }
  unsigned bits = type->getScalarSizeInBits();
  bool u = IsUnsigned(t);
  switch (fold) {
    case Fold::kMax:
      return llvm::ConstantInt::get(type, u ? llvm::APInt::getMinValue(bits) : llvm::APInt::getSignedMinValue(bits));
    case Fold::kMin:
      return llvm::ConstantInt::get(type, u ? llvm::APInt::getMaxValue(bits) : llvm::APInt::getSignedMaxValue(bits));
    case Fold::kProd:
      return llvm::ConstantInt::get(type, 1);
    case Fold::kAll:
      return llvm::Constant::getAllOnesValue(type);
    default:
      return llvm::Constant::getNullValue(type);
  }
}

}  // namespace tpu::host
