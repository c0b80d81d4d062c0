// Complex numbers, by their parts. An operator that is linear in its complex arguments is the one of real numbers on
// the real and on the imaginary parts; one that multiplies two of them, on the four pairs. The rest are formulas, which
// scale where squares would overflow, as PyTorch's do (c10/util/complex.h).
#include <cmath>
#include <limits>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

using Part = AtenCall::Part;
using Positions = llvm::SmallVector<int, 2>;  // of arguments

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Number {
  Tensor real, imaginary;
};

// What `of_reals` gives for these parts of the arguments; null where it declines.
Tensor OfParts(AtenCall& c, const Lowering& of_reals, llvm::ArrayRef<Part> parts) {
  AtenCall call = c.OfParts(parts);
  const Result result = of_reals(call);
  c.TakeMisread(call);
  return result.values().size() == 1 ? result.values()[0] : Tensor();
}

// Its operator is linear in the arguments `terms` together, and in each of the two `factors`.
Lowering ByParts(const Lowering& of_reals, const Positions& terms, const Positions& factors) {
  return [=](AtenCall& c) -> Result {
    const DType type = RealOf(c.result_dtype());
    const auto on = [&](Part term, Part left, Part right) -> Tensor {
      llvm::SmallVector<Part> parts(8, Part::kWhole);
      for (int i : terms) parts[i] = term;
      if (!factors.empty()) parts[factors[0]] = left;
      if (!factors.empty()) parts[factors[1]] = right;
      return OfParts(c, of_reals, parts);
    };
    Tensor real = on(Part::kReal, Part::kReal, Part::kReal);
    Tensor imaginary = on(Part::kImaginary, Part::kReal, Part::kImaginary);
    if (!real || !imaginary) return Result::Decline();
    real = ir::Convert(real, type);
    imaginary = ir::Convert(imaginary, type);
    if (!factors.empty()) {
      const Tensor of_imaginary = on(Part::kZero, Part::kImaginary, Part::kImaginary);
      const Tensor crossed = on(Part::kZero, Part::kImaginary, Part::kReal);
      if (!of_imaginary || !crossed) return Result::Decline();
      real = real - ir::Convert(of_imaginary, type);
      imaginary = imaginary + ir::Convert(crossed, type);
    }
    return ir::Complex(real, imaginary);
  };
}

// A question of the first one or two arguments: what it is answered for both parts, joined.
Lowering OfBoth(const Lowering& of_reals, Tensor (*join)(Tensor, Tensor)) {
  return [=](AtenCall& c) -> Result {
    const Tensor real = OfParts(c, of_reals, {Part::kReal, Part::kReal});
    const Tensor imaginary = OfParts(c, of_reals, {Part::kImaginary, Part::kImaginary});
    return real && imaginary ? Result(join(real, imaginary)) : Result::Decline();
  };
}

// Argument i in the type that the call computes in.
Number At(AtenCall& c, int i) {
  const auto part = [&](Part p) {
    llvm::SmallVector<Part> parts(i + 1, Part::kWhole);
    parts[i] = p;
    AtenCall call = c.OfParts(parts);
    const Tensor x = call.x(i);
    c.TakeMisread(call);
    return x;
  };
  return {part(Part::kReal), part(Part::kImaginary)};
}

Tensor Whole(const Number& z) { return ir::Complex(z.real, z.imaginary); }
Number Scaled(const Number& z, double factor) { return {z.real * factor, z.imaginary * factor}; }

Number Product(const Number& a, const Number& b) {
  return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
}

Tensor Magnitude(const Number& z) { return Hypot(z.real, z.imaginary); }

// By Smith's method ("Algorithm 116: Complex division", 1962); by 0, each part by it.
Number Quotient(const Number& a, const Number& b) {
  const Tensor wide = ir::Abs(b.real) >= ir::Abs(b.imaginary);
  const Tensor larger = ir::Select(wide, b.real, b.imaginary), smaller = ir::Select(wide, b.imaginary, b.real);
  const Tensor p = ir::Select(wide, a.real, a.imaginary), q = ir::Select(wide, a.imaginary, a.real);
  const Tensor ratio = smaller / larger, scale = 1.0 / (larger + smaller * ratio);
  const Tensor zero = ir::Eq(b.real, 0) & ir::Eq(b.imaginary, 0);  // of NaN beside 0 the larger is 0, too
  const Tensor real = (p + q * ratio) * scale;
  const Tensor imaginary = ir::Select(wide, q - p * ratio, p * ratio - q) * scale;
  return {ir::Select(zero, a.real * kInfinity, real), ir::Select(zero, a.imaginary * kInfinity, imaginary)};
}

Number Reciprocal(const Number& z) {
  Emitter& e = z.real.emitter();
  return Quotient({e.Constant(z.real.dtype(), 1), e.Constant(z.real.dtype(), 0)}, z);
}

Number Sign(const Number& z) {
  const Tensor magnitude = Magnitude(z), zero = ir::Eq(magnitude, 0);
  return {ir::Select(zero, 0, z.real / magnitude), ir::Select(zero, 0, z.imaginary / magnitude)};
}

Number Exp(const Number& z) {
  const Tensor size = ir::Exp(z.real);
  const Tensor real = ir::Eq(z.imaginary, 0);  // e to an infinity has no NaN beside it then
  return {ir::Select(real, size, size * ir::Cos(z.imaginary)),
          ir::Select(real, z.imaginary, size * ir::Sin(z.imaginary))};
}

// x * y, and 0 where x is 0 and y overflows.
Tensor ZeroOr(Tensor x, Tensor y) { return x * ir::Select(ir::Eq(x, 0), ir::Max(ir::Min(y, 1.0), -1.0), y); }

// Near a magnitude of 1 the logarithm of its square, without cancellation.
Number Log(const Number& z) {
  const Tensor a = ir::Abs(z.real), b = ir::Abs(z.imaginary), x = ir::Max(a, b), y = ir::Min(a, b);
  const Tensor huge = x > 1e30;  // the magnitude may overflow
  const Tensor magnitude = Magnitude({ir::Select(huge, a * 0.125, a), ir::Select(huge, b * 0.125, b)});
  const Tensor near_one = 0.5 * ir::Log1p((x - 1.0) * (x + 1.0) + y * y);
  const Tensor log = ir::Log(magnitude), far = ir::Select(huge, log + 3 * M_LN2, log);
  return {ir::Select((magnitude > 0.5) & (magnitude < 2.0), near_one, far), ir::Atan2(z.imaginary, z.real)};
}

Number Sqrt(const Number& z) {
  const Number eighth = Scaled(z, 0.125);
  const Tensor finite = 2.0 * ir::Sqrt(Magnitude(eighth) + ir::Abs(eighth.real));
  const Tensor b = ir::Abs(z.imaginary), infinite = ir::Eq(b, kInfinity);
  const Tensor root = ir::Select(infinite, kInfinity, finite),
               half = ir::Select(ir::Eq(finite, 0), 0, b / (finite * 2.0));
  const Tensor other = ir::Select(infinite, kInfinity, half);
  const Tensor right = z.real >= 0;
  return {ir::Select(right, root, other), CopySign(ir::Select(right, other, root), z.imaginary)};
}

template <typename F>
Lowering Unary(F f) {
  return [f](AtenCall& c) -> Result { return Whole(f(At(c, 0))); };
}

Result Power(AtenCall& c) {  // (x, exponent)
  if (!c.is_static(1)) return Result::Decline();
  const Number z = At(c, 0);
  const double exponent = c.real(1);
  if (exponent == 2) return Whole(Product(z, z));
  if (exponent == 3) return Whole(Product(Product(z, z), z));
  if (exponent == -1) return Whole(Reciprocal(z));
  if (exponent == 0.5) return Whole(Sqrt(z));
  return Result::Decline();
}

void AddByParts(Registry& r, std::initializer_list<const char*> names, const Positions& terms,
                const Positions& factors = {}) {
  for (const char* name : names) r.AddComplex(name, ByParts(r.Find(name)->lowering, terms, factors));
}

// Where host kernels run in place they are faster: products of a library, for four of parts that have to be made
// first, and scans of whole numbers.
void AddWithoutHostKernels(Registry& r, std::initializer_list<const char*> names, const Positions& terms,
                           const Positions& factors = {}) {
  AddByParts(r, names, terms, factors);
  for (const char* name : names) {
    r.AddComplex(name, [by_parts = r.Find(name)->complex](AtenCall& c) -> Result {
      return c.host_kernels() ? Result::Decline() : by_parts(c);
    });
  }
}

void AddLinear(Registry& r) {
  AddByParts(r, {"aten::neg", "aten::tril", "aten::triu", "aten::trace", "aten::take"}, {0});
  AddByParts(r, {"aten::sum", "aten::sum.dim_IntList", "aten::mean", "aten::mean.dim"}, {0});
  AddByParts(r, {"aten::gather", "aten::index.Tensor", "aten::_unsafe_index.Tensor"}, {0});
  AddByParts(r, {"aten::embedding_dense_backward", "aten::scalar_tensor"}, {0});
  AddByParts(r, {"aten::add.Tensor", "aten::add.Scalar", "aten::sub.Tensor", "aten::sub.Scalar"}, {0, 1});
  AddByParts(r, {"aten::rsub.Tensor", "aten::rsub.Scalar", "aten::lerp.Scalar"}, {0, 1});
  AddByParts(r, {"aten::fill.Scalar", "aten::fill.Tensor", "aten::full", "aten::full.out", "aten::full_like"}, {1});
  AddByParts(r, {"aten::where.self"}, {1, 2});
  AddByParts(r, {"aten::new_full"}, {2});
  AddByParts(r, {"aten::masked_fill.Scalar", "aten::masked_fill.Tensor", "aten::constant_pad_nd"}, {0, 2});
  AddByParts(r, {"aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index_put"}, {0, 2});
  AddByParts(r, {"aten::scatter.src", "aten::scatter.value", "aten::scatter_add", "aten::index_add"}, {0, 3});
  AddByParts(r, {"aten::index_copy", "aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor"}, {0, 3});
  AddByParts(r, {"aten::mul.Tensor", "aten::mul.Scalar", "aten::linalg_cross"}, {}, {0, 1});
  AddByParts(r, {"aten::addcmul", "aten::addr"}, {0}, {1, 2});
  AddWithoutHostKernels(r, {"aten::cumsum"}, {0});
  AddWithoutHostKernels(r, {"aten::mm", "aten::bmm", "aten::mv", "aten::dot"}, {}, {0, 1});
  AddWithoutHostKernels(r, {"aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::addmv"}, {0}, {1, 2});
}

}  // namespace

void RegisterComplex(Registry& r) {
  AddLinear(r);
  r.AddComplex("aten::conj_physical", Unary([](const Number& z) { return Number{z.real, -z.imaginary}; }));
  r.AddComplex("aten::complex", [](AtenCall& c) -> Result { return ir::Complex(c.tensor(0), c.tensor(1)); });
  r.AddComplex("aten::polar", [](AtenCall& c) -> Result {
    const Tensor size = c.tensor(0), angle = c.tensor(1);
    return ir::Complex(size * ir::Cos(angle), size * ir::Sin(angle));
  });
  r.AddComplex("aten::abs", [](AtenCall& c) -> Result { return Magnitude(At(c, 0)); });
  r.AddComplex("aten::angle", [](AtenCall& c) -> Result {
    const Number z = At(c, 0);
    return ir::Atan2(z.imaginary, z.real);
  });
  r.AddComplex("aten::sgn", Unary(Sign));
  r.AddComplex("aten::reciprocal", Unary(Reciprocal));
  r.AddComplex("aten::exp", Unary(Exp));
  r.AddComplex("aten::log", Unary(Log));
  r.AddComplex("aten::log2", Unary([](const Number& z) { return Scaled(Log(z), M_LOG2E); }));
  r.AddComplex("aten::log10", Unary([](const Number& z) { return Scaled(Log(z), M_LOG10E); }));
  r.AddComplex("aten::sqrt", Unary(Sqrt));
  r.AddComplex("aten::rsqrt", Unary([](const Number& z) { return Reciprocal(Sqrt(z)); }));
  r.AddComplex("aten::pow.Tensor_Scalar", Power);
  r.AddComplex("aten::sin", Unary([](const Number& z) {
                 return Number{ZeroOr(ir::Sin(z.real), ir::Cosh(z.imaginary)), ir::Cos(z.real) * ir::Sinh(z.imaginary)};
               }));
  r.AddComplex("aten::cos", Unary([](const Number& z) {
                 return Number{ir::Cos(z.real) * ir::Cosh(z.imaginary),
                               -ZeroOr(ir::Sin(z.real), ir::Sinh(z.imaginary))};
               }));
  for (const char* name : {"aten::div.Tensor", "aten::div.Scalar"}) {
    r.AddComplex(name, [](AtenCall& c) -> Result { return Whole(Quotient(At(c, 0), At(c, 1))); });
  }
  for (const char* name : {"aten::eq.Tensor", "aten::eq.Scalar"}) {
    r.AddComplex(name, OfBoth(r.Find(name)->lowering, ir::And));
  }
  for (const char* name : {"aten::ne.Tensor", "aten::ne.Scalar", "aten::isnan", "aten::isinf"}) {
    r.AddComplex(name, OfBoth(r.Find(name)->lowering, ir::Or));
  }
}

}  // namespace tpu::aten
