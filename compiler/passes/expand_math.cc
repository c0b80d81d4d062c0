// Pass expand-math: primitives that a target without a mathematical library lacks, or defines otherwise at the edges,
// become those that it has: exp, log and their kin, square roots, atan2, selections. Random bits become integer
// arithmetic.
//
// Half types are computed in f32 and rounded once. Formulas hold to a few units in the last place over the whole range.

#include "compiler/ir/builder.h"
#include "compiler/ir/dialect.h"
#include "compiler/passes/passes.h"
#include "llvm/ADT/TypeSwitch.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace tpu {
namespace {

using ir::Shape;
using ir::Tensor;

constexpr double kLn2 = 0.693147180559945309417232121458;
constexpr double kLn10 = 2.30258509299404568401799145468;

// Highest power last.
Tensor Polynomial(Tensor x, std::initializer_list<double> coefficients) {
  Tensor sum;
  for (auto c = std::rbegin(coefficients); c != std::rend(coefficients); ++c) {
    sum = sum ? sum * x + *c : x.emitter().Constant(x.dtype(), *c, x.dims());
  }
  return sum;
}

Tensor SignOf(Tensor x) {
  if (x.dtype() == DType::kBool) return x;
  if (IsUnsigned(x.dtype())) return ir::Convert(ir::Ne(x, 0.0), x.dtype());
  Tensor zero = x.emitter().Constant(x.dtype(), 0, x.dims());
  return ir::Select(x > 0.0, 1.0, ir::Select(x < 0.0, -1.0, zero));
}

// `magnitude` is 0 where x is, of either sign.
Tensor WithSignOf(Tensor x, Tensor magnitude) {
  return ir::Select(x < 0.0, -magnitude, ir::Select(x > 0.0, magnitude, x));
}

// f32: x * p(x^2) / q(x^2) where erf is not 1. f64: a polynomial in x^2 up to 1, then 1 - exp(-x^2) * q((x - k)/(x +
// k)).
Tensor Erf(Tensor x) {
  if (x.dtype() == DType::kFloat32) {
    constexpr double kOne = 3.8325069;  // from here on it is 1, exactly: gelu of -inf is NaN only so
    Tensor t = ir::Max(ir::Min(x, kOne), -kOne), s = t * t;
    Tensor p = Polynomial(s, {0.945355356, 0.156926557, 0.0439161696, 0.00306026172, 0.000239562301, 1.77875472e-06});
    Tensor q = Polynomial(s, {0.83779937, 0.418338627, 0.094587855, 0.0123512289, 0.000956517586, 3.25888723e-05});
    Tensor one = x.emitter().Constant(x.dtype(), 1, x.dims());
    return ir::Select(ir::Abs(x) > kOne, WithSignOf(x, one), ir::Max(ir::Min(t * p / q, 1.0), -1.0));
  }
  Tensor a = ir::Min(ir::Abs(x), 6.0), s = a * a;
  Tensor small =
      a * Polynomial(s, {1.1283791670955126, -0.37612638903183754, 0.1128379167095512, -0.02686617064512984,
                         0.0052239776254232985, -0.000854832702193483, 0.00012055332902888736, -1.4925647567519332e-05,
                         1.6462045441468418e-06, -1.6364642158167616e-07, 1.4792401209404813e-08,
                         -1.216456005728345e-09, 8.709045129053106e-11, -4.230945824295338e-12});
  Tensor tail =
      Polynomial((a - 2.5) / (a + 2.5),
                 {0.2108063640611436,     -0.37173673394897333,    0.2517131932174492,      -0.12503305237882903,
                  0.0399225390755937,     -0.003993701165879751,   -0.0026423659648248483,  0.0008759154508679362,
                  0.00022838039451608092, -0.00012887718367437126, -3.418249792579415e-05,  1.8614555996350016e-05,
                  7.555137958820191e-06,  -2.298289123379494e-06,  -1.8165376963385644e-06, 7.518953995864346e-08,
                  3.8902769657395624e-07, 8.65726375557037e-08,    -5.770784989043349e-08,  -3.1833486135619266e-08});
  return WithSignOf(x, ir::Select(a < 1.0, small, 1.0 - ir::Exp(-s) * tail));
}

Tensor Sinh(Tensor x) {
  Tensor a = ir::Abs(x), u = ir::Expm1(a);
  Tensor middle = 0.5 * (u + u / (u + 1.0));
  return WithSignOf(x, ir::Select(a > 20.0, ir::Exp(a - kLn2), middle));
}
Tensor Cosh(Tensor x) {
  Tensor half = ir::Exp(ir::Abs(x) - kLn2);
  return half + 0.25 / half;
}
Tensor Asin(Tensor x) { return ir::Atan2(x, ir::Sqrt((1.0 - x) * (1.0 + x))); }
Tensor Acos(Tensor x) { return ir::Atan2(ir::Sqrt((1.0 - x) * (1.0 + x)), x); }
Tensor Atan(Tensor x) { return ir::Atan2(x, x.emitter().Constant(x.dtype(), 1, x.dims())); }
Tensor Asinh(Tensor x) {
  Tensor a = ir::Abs(x), s = a * a;
  Tensor middle = ir::Log1p(a + s / (1.0 + ir::Sqrt(s + 1.0)));
  return WithSignOf(x, ir::Select(a > 1e9, ir::Log(a) + kLn2, middle));
}
Tensor Acosh(Tensor x) {
  Tensor t = x - 1.0;
  return ir::Select(x > 1e9, ir::Log(x) + kLn2, ir::Log1p(t + ir::Sqrt(t) * ir::Sqrt(t + 2.0)));
}
Tensor Atanh(Tensor x) { return 0.5 * (ir::Log1p(x) - ir::Log1p(-x)); }
Tensor Log2(Tensor x) { return ir::Log(x) * (1.0 / kLn2); }
Tensor Log10(Tensor x) {
  Tensor wide = ir::Convert(x, DType::kFloat64);
  return ir::Convert(ir::Log(wide) / kLn10, x.dtype());
}
Tensor Exp2(Tensor x) { return ir::Pow(2.0, x); }
Tensor Trunc(Tensor x) { return ir::Select(x < 0.0, ir::Ceil(x), ir::Floor(x)); }

// Division by zero gives 0, and the least number by -1 itself: neither reaches the target's division.
Tensor Divided(Tensor x, Tensor y, bool remainder) {
  Tensor zero = ir::Eq(y, 0.0), safe = ir::Select(zero, 1.0, y);
  Tensor nothing = x.emitter().Integer(x.dtype(), 0, x.dims());
  if (!IsSigned(x.dtype())) return ir::Select(zero, nothing, remainder ? ir::Rem(x, safe) : ir::Div(x, safe));
  Tensor minus = ir::Eq(safe, -1.0);
  safe = ir::Select(minus, 1.0, safe);
  Tensor result = remainder ? ir::Rem(x, safe) : ir::Div(x, safe);
  result = ir::Select(minus, remainder ? nothing : -x, result);
  return ir::Select(zero, nothing, result);
}

// By squaring, over all bits of y: of those XLA's own power takes the lowest alone, six of an i64.
Tensor WholePower(Tensor x, Tensor y) {
  ir::Emitter& e = x.emitter();
  const auto number = [&](int64_t value) { return e.Integer(x.dtype(), value, x.dims()); };
  const int bits = 8 * static_cast<int>(SizeOf(x.dtype())) - (IsSigned(x.dtype()) ? 1 : 0);
  Tensor power = number(1);
  for (int bit = 0; bit < bits; ++bit) {
    if (bit > 0) x = x * x;
    power = ir::Select(ir::Ne(ir::And(ir::Shr(y, number(bit)), number(1)), 0.0), power * x, power);
  }
  return power;
}

// Philox4x32-10 on blocks of four words; products of 32-bit words in 64 bits.
Tensor RandomBits(Tensor seed, Tensor offset, ir::Ints dims) {
  ir::Emitter& e = seed.emitter();
  const int64_t count = NumElements({dims.data(), dims.size()}), blocks = (count + 3) / 4;
  const auto low = [](Tensor v) { return ir::Convert(v, DType::kUInt32); };
  const auto high = [&](Tensor v) { return low(ir::Shr(v, v.emitter().Integer(DType::kUInt64, 32, v.dims()))); };
  const auto wide = [](Tensor v) { return ir::Convert(v, DType::kUInt64); };
  const auto word = [&](int64_t v, ir::Ints shape) { return e.Integer(DType::kUInt32, v, shape); };
  const Shape shape{blocks};
  Tensor counter = wide(e.Iota(DType::kInt64, shape, 0) + offset), key = wide(seed);
  Tensor c[4] = {low(counter), high(counter), word(0, shape), word(0, shape)};
  Tensor key_low = low(key), key_high = high(key);
  for (int round = 0; round < 10; ++round) {
    Tensor first = wide(c[0]) * e.Integer(DType::kUInt64, 0xD2511F53, shape);
    Tensor second = wide(c[2]) * e.Integer(DType::kUInt64, 0xCD9E8D57, shape);
    Tensor next[4] = {ir::Xor(ir::Xor(high(second), c[1]), key_low), low(second),
                      ir::Xor(ir::Xor(high(first), c[3]), key_high), low(first)};
    std::copy(std::begin(next), std::end(next), c);
    key_low = key_low + word(0x9E3779B9, {});
    key_high = key_high + word(0xBB67AE85, {});
  }
  llvm::SmallVector<Tensor> columns;
  for (Tensor& column : c) columns.push_back(ir::Unsqueeze(column, 1));
  Tensor words = ir::Reshape(ir::Concat(columns, 1), {4 * blocks});
  return ir::Reshape(ir::Bitcast(ir::SliceDim(words, 0, 0, count), DType::kInt32), dims);
}

using Unary = Tensor (*)(Tensor);
Unary FormulaOf(mlir::Operation* op) {
  return llvm::TypeSwitch<mlir::Operation*, Unary>(op)
      .Case<ir::ErfOp>([](auto) { return &Erf; })
      .Case<ir::SinhOp>([](auto) { return &Sinh; })
      .Case<ir::CoshOp>([](auto) { return &Cosh; })
      .Case<ir::AsinOp>([](auto) { return &Asin; })
      .Case<ir::AcosOp>([](auto) { return &Acos; })
      .Case<ir::AtanOp>([](auto) { return &Atan; })
      .Case<ir::AsinhOp>([](auto) { return &Asinh; })
      .Case<ir::AcoshOp>([](auto) { return &Acosh; })
      .Case<ir::AtanhOp>([](auto) { return &Atanh; })
      .Case<ir::Log2Op>([](auto) { return &Log2; })
      .Case<ir::Log10Op>([](auto) { return &Log10; })
      .Case<ir::Exp2Op>([](auto) { return &Exp2; })
      .Case<ir::TruncOp>([](auto) { return &Trunc; })
      .Case<ir::SignOp>([](auto) { return &SignOf; })
      .Default([](auto) { return nullptr; });
}

// Null: `op` stays.
Tensor Expand(mlir::Operation* op, ir::Emitter& e) {
  if (Unary formula = FormulaOf(op)) {
    Tensor x = e.Wrap(op->getOperand(0));
    const DType dtype = x.dtype();
    const bool half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
    return half ? ir::Convert(formula(ir::Convert(x, DType::kFloat32)), dtype) : formula(x);
  }
  if (mlir::isa<ir::DivOp, ir::RemOp>(op)) {
    Tensor x = e.Wrap(op->getOperand(0)), y = e.Wrap(op->getOperand(1));
    return IsInteger(x.dtype()) ? Divided(x, y, mlir::isa<ir::RemOp>(op)) : Tensor();
  }
  if (mlir::isa<ir::PowOp>(op)) {
    Tensor x = e.Wrap(op->getOperand(0)), y = e.Wrap(op->getOperand(1));
    return IsInteger(x.dtype()) ? WholePower(x, y) : Tensor();
  }
  if (auto random = mlir::dyn_cast<ir::RandomBitsOp>(op)) {
    const Shape dims(ir::TensorTypeOf(random.getResult()).getShape());
    return RandomBits(e.Wrap(random.getSeed()), e.Wrap(random.getOffset()), dims);
  }
  return Tensor();
}

struct ExpandMath : mlir::PassWrapper<ExpandMath, mlir::OperationPass<mlir::func::FuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ExpandMath)
  llvm::StringRef getArgument() const override { return "expand-math"; }
  llvm::StringRef getDescription() const override { return "Functions in terms of exp, log, sqrt and atan2"; }
  void runOnOperation() override {
    llvm::SmallVector<mlir::Operation*> ops;
    getOperation().walk([&](mlir::Operation* op) { ops.push_back(op); });
    for (mlir::Operation* op : ops) {
      if (op->getNumResults() != 1) continue;
      mlir::OpBuilder builder(op);
      ir::Emitter e(builder, op->getLoc());
      if (Tensor expanded = Expand(op, e)) {
        op->getResult(0).replaceAllUsesWith(expanded.value());
        op->erase();
      }
    }
  }
};

}  // namespace

std::unique_ptr<mlir::Pass> CreateExpandMathPass() { return std::make_unique<ExpandMath>(); }

}  // namespace tpu
