// Arithmetic, element by element. Computation is in the op-math type of PyTorch's promoted type; the pass rounds once.
#include <cmath>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {

Tensor Hypot(Tensor a, Tensor b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  a = ir::Abs(a), b = ir::Abs(b);
  const Tensor infinite = ir::Eq(a, kInfinity) | ir::Eq(b, kInfinity);  // beside NaN, too
  if (a.dtype() == DType::kFloat32) {
    const Tensor x = ir::Convert(a, DType::kFloat64), y = ir::Convert(b, DType::kFloat64);
    return ir::Select(infinite, kInfinity, ir::Convert(ir::Sqrt(x * x + y * y), DType::kFloat32));
  }
  const Tensor larger = ir::Max(a, b), ratio = ir::Min(a, b) / larger;
  const Tensor scaled = ir::Select(ir::Eq(larger, 0), 0, larger * ir::Sqrt(ratio * ratio + 1.0));
  return ir::Select(infinite, kInfinity, scaled);
}

// The bits of a float as a signed integer.
Tensor Bits(Tensor x) {
  return ir::Bitcast(x, SizeOf(x.dtype()) == 8   ? DType::kInt64
                        : SizeOf(x.dtype()) == 4 ? DType::kInt32
                                                 : DType::kInt16);
}

Tensor SignBit(Tensor x) {
  if (!IsFloat(x.dtype())) return IsSigned(x.dtype()) ? x < 0 : x.emitter().Constant(DType::kBool, 0, x.dims());
  return Bits(x) < 0;
}

Tensor CopySign(Tensor magnitude, Tensor sign) {
  Tensor size = ir::Abs(magnitude);
  return ir::Select(SignBit(sign), -size, size);
}

// Floats of one sign lie as their bits do. Bits are compared, as a device may take the smallest floats as 0.
Tensor NextAfter(Tensor x, Tensor toward) {
  const Tensor from = Bits(x), to = Bits(toward);
  const Tensor sign = x.emitter().Integer(from.dtype(), -1ll << (8 * SizeOf(x.dtype()) - 1));
  const auto order = [&](Tensor bits) { return ir::Select(bits < 0, sign - bits, bits); };  // both zeros are 0
  const Tensor here = order(from), there = order(to);
  const Tensor step = ir::Select(ir::Eq(here < there, from < 0), from - 1, from + 1);
  const Tensor next = ir::Bitcast(ir::Select(ir::Eq(here, 0), ir::Or(to & sign, 1), step), x.dtype());
  const Tensor ordered = ir::Select(ir::Eq(here, there), toward, next);
  return ir::Select(IsNan(x) | IsNan(toward), x + toward, ordered);
}

Tensor FloorDivide(Tensor a, Tensor b) {
  Tensor rest = ir::Rem(a, b);
  Tensor opposite = ir::Ne(rest, 0) & ir::Ne(b < 0, rest < 0);
  if (!IsFloat(a.dtype())) {
    Tensor quotient = a / b;
    return IsSigned(a.dtype()) ? ir::Select(opposite, quotient - 1, quotient) : quotient;
  }
  Tensor exact = (a - rest) / b;
  exact = ir::Select(opposite, exact - 1, exact);
  Tensor floor = ir::Floor(exact);
  floor = ir::Select(exact - floor > 0.5, floor + 1, floor);
  floor = ir::Select(ir::Eq(exact, 0), CopySign(exact, a / b), floor);
  return ir::Select(ir::Eq(b, 0), a / b, floor);
}

Tensor Remainder(Tensor a, Tensor b) {
  Tensor rest = ir::Rem(a, b);
  if (!IsFloat(a.dtype()) && !IsSigned(a.dtype())) return rest;
  return ir::Select(ir::Ne(rest, 0) & ir::Ne(b < 0, rest < 0), rest + b, rest);
}

bool IsPowStatic(DType type, double exponent) { return IsFloat(type) || (exponent >= 0 && exponent < 0x1p53); }

Tensor PowStatic(Tensor x, double exponent, DType type) {
  Emitter& e = x.emitter();
  bool integral = exponent == std::trunc(exponent);
  if (!IsFloat(x.dtype()) || (integral && exponent >= 0 && exponent <= 3)) {
    Tensor result;  // by squaring; wraps as PyTorch's integers do
    Tensor square = x;
    for (auto bits = static_cast<uint64_t>(exponent); bits != 0; bits >>= 1) {
      if (bits & 1) result = result ? result * square : square;
      if (bits > 1) square = square * square;
    }
    return result ? result : e.Constant(x.dtype(), 1, x.dims());
  }
  if (exponent == 0.5) return ir::Sqrt(x);
  if (exponent == -0.5) return 1.0 / ir::Sqrt(x);
  if (exponent == -1) return 1.0 / x;
  if (exponent == -2) return 1.0 / (x * x);
  return ir::Pow(x, Operand(e.Constant(type, exponent), type));
}

Tensor Lerp(Tensor start, Tensor end, Tensor weight) {
  Tensor difference = end - start;
  return ir::Select(ir::Abs(weight) < 0.5, start + weight * difference, end - difference * (1.0 - weight));
}

Tensor XLogY(Tensor x, Tensor y) { return ir::Select(IsNan(y), y, ir::Select(ir::Eq(x, 0), 0, x * ir::Log(y))); }

namespace {

Tensor LogAddExp(Tensor a, Tensor b, double base) {  // 2 or e
  Tensor greater = ir::Max(a, b), apart = -ir::Abs(a - b);
  Tensor sum = greater + (base == 2 ? ir::Log1p(ir::Exp2(apart)) * M_LOG2E : ir::Log1p(ir::Exp(apart)));
  return ir::Select(ir::Eq(a, b) & ir::Not(IsFinite(a)), a, sum);
}

using UnaryFunction = Tensor (*)(Tensor);
using BinaryFunction = Tensor (*)(Tensor, Tensor);

Lowering Unary(UnaryFunction f) {
  return [f](AtenCall& c) -> Result { return f(c.x(0)); };
}
Lowering FloatUnary(UnaryFunction f) {
  return [f](AtenCall& c) -> Result { return f(In(c, 0)); };
}
// Rounds floats; integers and bools stay.
Lowering Rounding(UnaryFunction f) {
  return [f](AtenCall& c) -> Result { return IsFloat(c.compute()) ? f(c.x(0)) : c.x(0); };
}
Lowering Binary(BinaryFunction f) {
  return [f](AtenCall& c) -> Result { return f(c.x(0), c.x(1)); };
}
Lowering FloatBinary(BinaryFunction f) {
  return [f](AtenCall& c) -> Result { return f(c.float_x(0), c.float_x(1)); };
}

Tensor Scaled(AtenCall& c, int tensor, int alpha) { return c.has(alpha) ? c.x(tensor) * c.x(alpha) : c.x(tensor); }

// Quotients of half types are rounded before they are cut to whole numbers, except where all are by one number.
DType QuotientType(AtenCall& c) { return c.tensor(1).elements() == 1 ? c.compute() : c.promoted(); }

Result WholeQuotient(AtenCall& c) {
  const DType type = QuotientType(c);
  return FloorDivide(ir::Convert(c.x(0), type), ir::Convert(c.factor(1), type));
}

Result Divide(AtenCall& c) {
  std::string mode = c.string(2);
  if (mode.empty()) return c.float_x(0) / (IsFloat(c.promoted()) ? c.factor(1) : c.float_x(1));
  if (mode == "floor") return WholeQuotient(c);
  Tensor quotient = ir::Convert(c.x(0) / c.factor(1), QuotientType(c));
  return IsFloat(quotient.dtype()) ? ir::Trunc(quotient) : quotient;
}

Result Power(AtenCall& c) {
  if (!c.is_tensor(1) && c.is_static(1)) {
    if (!IsPowStatic(c.compute(), c.real(1))) return Result::Decline();
    return PowStatic(c.x(0), c.real(1), c.promoted());
  }
  const DType type = c.compute();
  if (type == DType::kBool) return Result::Decline();
  Tensor x = c.x(0), exponent = c.x(1);
  if (IsFloat(type) || !IsSigned(type)) return ir::Pow(x, exponent);
  const Tensor odd = ir::Ne(ir::Rem(exponent, 2), 0);
  const Tensor fraction = ir::Select(ir::Eq(ir::Abs(x), 1), ir::Select(odd, x, 1), 0);  // 1 / x^n, cut
  return ir::Select(exponent < 0, fraction, ir::Pow(x, ir::Max(exponent, 0)));
}

// x * 2^e, exact in f64 also where 2^e alone overflows the result's type. Beyond 400 all is 0 or infinite.
Result ScaleByPowerOf2(AtenCall& c) {
  const DType x = c.tensor(0).dtype(), exponent = c.tensor(1).dtype();
  if (!IsFloat(x) || c.float_compute() != DType::kFloat32 || IsFloat(exponent) || exponent == DType::kBool) {
    return Result::Decline();
  }
  Tensor e = ir::Max(ir::Min(c.as(1, DType::kInt64), 400), -400);
  Tensor scale = ir::Bitcast(ir::Shl(e + 1023, 52), DType::kFloat64);
  return ir::Convert(c.as(0, DType::kFloat64) * scale, DType::kFloat32);
}

Tensor Clamp(Tensor x, Tensor low, Tensor high) {
  if (low) x = ir::Max(x, low);
  return high ? ir::Min(x, high) : x;
}

// The greatest finite value of a float type.
double GreatestFinite(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 65504.0;
    case DType::kBFloat16:
      return 0x1.fep127;
    case DType::kFloat32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

Result NanToNum(AtenCall& c) {
  if (!IsFloat(c.result_dtype())) return c.tensor(0);
  Tensor x = c.x(0);
  double greatest = GreatestFinite(c.result_dtype()), infinity = std::numeric_limits<double>::infinity();
  Tensor y = ir::Select(IsNan(x), c.as(1, x.dtype(), 0), x);
  y = ir::Select(ir::Eq(x, infinity), c.as(2, x.dtype(), greatest), y);
  return ir::Select(ir::Eq(x, -infinity), c.as(3, x.dtype(), -greatest), y);
}

Result RoundDecimals(AtenCall& c) {  // (x, decimals)
  if (!IsFloat(c.result_dtype())) return Result::Decline();
  const Tensor x = c.x(0);
  const int64_t decimals = c.integer(1);
  const Tensor power = c.emitter().Constant(x.dtype(), std::pow(10.0, std::abs(decimals)));
  if (decimals < 0) return ir::RoundEven(x / power) * power;
  return ir::RoundEven(x * power) / power;
}

Tensor Sinc(Tensor x) {
  Tensor t = x * M_PI;
  return ir::Select(ir::Eq(x, 0), 1, ir::Sin(t) / t);
}
Tensor FMax(Tensor a, Tensor b) { return ir::Select(IsNan(a), b, ir::Select(IsNan(b), a, ir::Max(a, b))); }
Tensor FMin(Tensor a, Tensor b) { return ir::Select(IsNan(a), b, ir::Select(IsNan(b), a, ir::Min(a, b))); }

void RegisterUnary(Registry& r) {
  r.Add("aten::neg", Unary(ir::Neg));
  r.Add("aten::abs", [](AtenCall& c) -> Result { return IsUnsigned(c.compute()) ? c.x(0) : ir::Abs(c.x(0)); });
  r.Add({"aten::sign", "aten::sgn"}, Unary(ir::Sign));
  r.Add("aten::floor", Rounding(ir::Floor));
  r.Add("aten::ceil", Rounding(ir::Ceil));
  r.Add("aten::trunc", Rounding(ir::Trunc));
  r.Add("aten::round", Rounding(ir::RoundEven));
  r.Add("aten::round.decimals", RoundDecimals);
  r.Add("aten::frac", Unary([](Tensor x) { return x - ir::Trunc(x); }));
  r.Add("aten::reciprocal", FloatUnary([](Tensor x) { return 1.0 / x; }));
  r.Add("aten::exp", FloatUnary(ir::Exp));
  r.Add("aten::exp2", FloatUnary(ir::Exp2));
  r.Add("aten::expm1", FloatUnary(ir::Expm1));
  r.Add("aten::log", FloatUnary(ir::Log));
  r.Add("aten::log2", FloatUnary(ir::Log2));
  r.Add("aten::log10", FloatUnary(ir::Log10));
  r.Add("aten::log1p", FloatUnary(ir::Log1p));
  r.Add("aten::sqrt", FloatUnary(ir::Sqrt));
  r.Add("aten::rsqrt", FloatUnary(ir::Rsqrt));
  r.Add("aten::sin", FloatUnary(ir::Sin));
  r.Add("aten::cos", FloatUnary(ir::Cos));
  r.Add("aten::tan", FloatUnary(ir::Tan));
  r.Add("aten::asin", FloatUnary(ir::Asin));
  r.Add("aten::acos", FloatUnary(ir::Acos));
  r.Add("aten::atan", FloatUnary(ir::Atan));
  r.Add("aten::sinh", FloatUnary(ir::Sinh));
  r.Add("aten::cosh", FloatUnary(ir::Cosh));
  r.Add("aten::tanh", FloatUnary(ir::Tanh));
  r.Add("aten::asinh", FloatUnary(ir::Asinh));
  r.Add("aten::acosh", FloatUnary(ir::Acosh));
  r.Add("aten::atanh", FloatUnary(ir::Atanh));
  r.Add("aten::erf", FloatUnary(ir::Erf));
  r.Add("aten::sigmoid", FloatUnary(ir::Logistic));
  r.Add("aten::sinc", FloatUnary(Sinc));
  r.Add("aten::deg2rad", FloatUnary([](Tensor x) { return x * (M_PI / 180); }));
  r.Add("aten::rad2deg", FloatUnary([](Tensor x) { return x * (180 / M_PI); }));
  r.Add("aten::angle", FloatUnary([](Tensor x) {
          return ir::Select(IsNan(x), x, ir::Select(x < 0, M_PI, x.emitter().Constant(x.dtype(), 0, x.dims())));
        }));
  r.Add("aten::special_entr", FloatUnary([](Tensor x) {
          Tensor inside = ir::Select(ir::Eq(x, 0), 0, -x * ir::Log(x));
          return ir::Select(x < 0, -std::numeric_limits<double>::infinity(), inside);
        }));
  r.Add("aten::nan_to_num", NanToNum);
  r.Add("aten::logit", [](AtenCall& c) -> Result {
    Tensor x = In(c, 0);
    if (c.has(1)) {
      const Tensor low = c.as(1, x.dtype());
      x = ir::Select(x < low, low, ir::Min(x, 1.0 - low));
    }
    return ir::Log(x / (1.0 - x));
  });
}

void RegisterBinary(Registry& r) {
  r.Add({"aten::add.Tensor", "aten::add.Scalar"}, [](AtenCall& c) -> Result { return c.x(0) + Scaled(c, 1, 2); });
  r.Add({"aten::sub.Tensor", "aten::sub.Scalar"}, [](AtenCall& c) -> Result { return c.x(0) - Scaled(c, 1, 2); });
  r.Add({"aten::rsub.Tensor", "aten::rsub.Scalar"}, [](AtenCall& c) -> Result { return c.x(1) - Scaled(c, 0, 2); });
  r.Add({"aten::mul.Tensor", "aten::mul.Scalar"}, [](AtenCall& c) -> Result { return c.x(0) * c.factor(1); });
  r.Add({"aten::div.Tensor", "aten::div.Scalar", "aten::div.Tensor_mode", "aten::div.Scalar_mode"}, Divide);
  r.Add({"aten::floor_divide", "aten::floor_divide.Scalar"}, WholeQuotient);
  r.Add({"aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor"}, Binary(Remainder));
  r.Add({"aten::fmod.Tensor", "aten::fmod.Scalar"}, Binary(ir::Rem));
  r.Add("aten::pow.Tensor_Scalar", Power, kStaticScalars);
  r.Add({"aten::pow.Tensor_Tensor", "aten::pow.Scalar"}, Power);
  r.Add({"aten::ldexp.Tensor", "aten::ldexp.out"}, ScaleByPowerOf2);
  r.Add("aten::atan2", FloatBinary(ir::Atan2));
  r.Add("aten::maximum", Binary(ir::Max));
  r.Add("aten::minimum", Binary(ir::Min));
  r.Add("aten::fmax",
        [](AtenCall& c) -> Result { return IsFloat(c.compute()) ? FMax(c.x(0), c.x(1)) : ir::Max(c.x(0), c.x(1)); });
  r.Add("aten::fmin",
        [](AtenCall& c) -> Result { return IsFloat(c.compute()) ? FMin(c.x(0), c.x(1)) : ir::Min(c.x(0), c.x(1)); });
  r.Add({"aten::copysign.Tensor", "aten::copysign.Scalar"}, FloatBinary(CopySign));
  r.Add({"aten::xlogy.Tensor", "aten::xlogy.Scalar_Self", "aten::xlogy.Scalar_Other"}, FloatBinary(XLogY));
  r.Add({"aten::special_xlog1py", "aten::special_xlog1py.self_scalar", "aten::special_xlog1py.other_scalar"},
        FloatBinary(
            [](Tensor x, Tensor y) { return ir::Select(IsNan(y), y, ir::Select(ir::Eq(x, 0), 0, x * ir::Log1p(y))); }));
  r.Add("aten::logaddexp", FloatBinary([](Tensor a, Tensor b) { return LogAddExp(a, b, M_E); }));
  r.Add("aten::logaddexp2", FloatBinary([](Tensor a, Tensor b) { return LogAddExp(a, b, 2); }));
  r.Add("aten::nextafter", [](AtenCall& c) -> Result {
    const DType type = c.promoted();  // of half types, too: the next number of their own
    if (!IsFloat(type)) return Result::Decline();
    return NextAfter(c.as(0, type), c.as(1, type));
  });
  r.Add("aten::heaviside", Binary([](Tensor x, Tensor at_zero) {
          Tensor step = ir::Convert(x > 0, x.dtype());
          return ir::Select(ir::Eq(x, 0), at_zero, step);
        }));
  r.Add("aten::hypot", FloatBinary(Hypot));
}

void RegisterTernary(Registry& r) {
  r.Add({"aten::clamp", "aten::clamp.Tensor"}, [](AtenCall& c) -> Result {
    return Clamp(c.x(0), c.has(1) ? c.x(1) : Tensor(), c.has(2) ? c.x(2) : Tensor());
  });
  r.Add({"aten::clamp_min", "aten::clamp_min.Tensor"}, Binary(ir::Max));
  r.Add({"aten::clamp_max", "aten::clamp_max.Tensor"}, Binary(ir::Min));
  r.Add("aten::lerp.Scalar", [](AtenCall& c) -> Result { return Lerp(c.x(0), c.x(1), c.as(2, c.compute())); });
  r.Add("aten::lerp.Tensor", [](AtenCall& c) -> Result { return Lerp(c.x(0), c.x(1), c.x(2)); });
  r.Add("aten::addcmul", [](AtenCall& c) -> Result { return c.x(0) + c.as(3, c.compute(), 1) * c.x(1) * c.x(2); });
  r.Add("aten::addcdiv", [](AtenCall& c) -> Result {
    if (!IsFloat(c.compute())) return Result::Decline();
    return c.x(0) + c.as(3, c.compute(), 1) * c.x(1) / c.x(2);
  });
}

}  // namespace

void RegisterElementwise(Registry& r) {
  RegisterUnary(r);
  RegisterBinary(r);
  RegisterTernary(r);
}

}  // namespace tpu::aten
