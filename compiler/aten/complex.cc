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

// What `of_reals` gives for these parts of the arguments; nothing where it declines.
llvm::SmallVector<Tensor> OfParts(AtenCall& c, const Lowering& of_reals, llvm::ArrayRef<Part> parts) {
  AtenCall call = c.OfParts(parts);
  const Result result = of_reals(call);
  c.TakeMisread(call);
  return llvm::SmallVector<Tensor>(result.values());
}

// Its operator is linear in the arguments `terms` together, and in each of the two `factors`.
Lowering ByParts(const Lowering& of_reals, const Positions& terms, const Positions& factors) {
  return [=](AtenCall& c) -> Result {
    const auto on = [&](Part term, Part left, Part right) {
      llvm::SmallVector<Part> parts(8, Part::kWhole);
      for (int i : terms) parts[i] = term;
      if (!factors.empty()) parts[factors[0]] = left;
      if (!factors.empty()) parts[factors[1]] = right;
      return OfParts(c, of_reals, parts);
    };
    const auto real = on(Part::kReal, Part::kReal, Part::kReal);
    const auto imaginary = on(Part::kImaginary, Part::kReal, Part::kImaginary);
    llvm::SmallVector<Tensor> of_imaginary, crossed, results;
    if (!factors.empty()) {
      of_imaginary = on(Part::kZero, Part::kImaginary, Part::kImaginary);
      crossed = on(Part::kZero, Part::kImaginary, Part::kReal);
    }
    for (size_t k = 0; k < c.num_results(); ++k) {
      const DType type = RealOf(c.result_dtype(k));
      const auto part = [&](const auto& list) {
        return k < list.size() && list[k] ? ir::Convert(list[k], type) : Tensor();
      };
      Tensor x = part(real), y = part(imaginary);
      if (!x || !y) return Result::Decline();
      if (!factors.empty()) {
        const Tensor less = part(of_imaginary), more = part(crossed);
        if (!less || !more) return Result::Decline();
        x = x - less;
        y = y + more;
      }
      results.push_back(IsComplex(c.result_dtype(k)) ? ir::Complex(x, y) : x);
    }
    return results;
  };
}

// A question of the first one or two arguments: what it is answered for both parts, joined.
Lowering OfBoth(const Lowering& of_reals, Tensor (*join)(Tensor, Tensor)) {
  return [=](AtenCall& c) -> Result {
    const auto real = OfParts(c, of_reals, {Part::kReal, Part::kReal});
    const auto imaginary = OfParts(c, of_reals, {Part::kImaginary, Part::kImaginary});
    return real.size() == 1 && imaginary.size() == 1 ? Result(join(real[0], imaginary[0])) : Result::Decline();
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
Number One(Tensor like) {
  Emitter& e = like.emitter();
  return {e.Constant(like.dtype(), 1), e.Constant(like.dtype(), 0)};
}
Number Choose(Tensor here, const Number& a, const Number& b) {
  return {ir::Select(here, a.real, b.real), ir::Select(here, a.imaginary, b.imaginary)};
}

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
  return Choose(zero, Scaled(a, kInfinity),
                {(p + q * ratio) * scale, ir::Select(wide, q - p * ratio, p * ratio - q) * scale});
}

Number Reciprocal(const Number& z) { return Quotient(One(z.real), z); }

Number Sign(const Number& z) {
  const Tensor magnitude = Magnitude(z), zero = ir::Eq(magnitude, 0);
  return {ir::Select(zero, 0, z.real / magnitude), ir::Select(zero, 0, z.imaginary / magnitude)};
}

// x * y, and 0 where one of them is 0, whatever the other is.
Tensor ZeroOr(Tensor x, Tensor y) {
  const Tensor one = x.emitter().Constant(x.dtype(), 1);
  return ir::Select(ir::Eq(y, 0), CopySign(one, x) * y, x * ir::Select(ir::Eq(x, 0), CopySign(one, y), y));
}

// An angle that is none, beside an infinite real part: that tells parts of the result all the same.
Tensor IsOpen(const Number& z) { return ir::Not(IsFinite(z.imaginary)) & ir::Eq(ir::Abs(z.real), kInfinity); }
Tensor CosineOf(const Number& z) { return ir::Select(IsOpen(z), 1, ir::Cos(z.imaginary)); }

double MostOf(Tensor x) { return x.dtype() == DType::kFloat64 ? 709 : 88; }  // that e is raised to

// An exponential of the real part may overflow where its product with a sine of the angle doesn't: where `size` is too
// much for it, it is that of `of`, times a factor that the sine and cosine have.
struct Wave {
  Tensor of, cosine, sine;
};
Wave WaveOf(const Number& z, Tensor size) {
  const double most = MostOf(z.real), shift = most / 2;
  const Tensor huge = size > most;
  const Tensor factor = ir::Select(huge, z.real.emitter().Constant(z.real.dtype(), std::exp(shift)), 1);
  return {ir::Select(huge, z.real - ir::Max(ir::Min(z.real, shift), -shift), z.real), factor * CosineOf(z),
          factor * ir::Sin(z.imaginary)};
}

Number Exp(const Number& z) {
  const Wave w = WaveOf(z, z.real);
  const Tensor size = ir::Exp(w.of), sine = ir::Select(IsOpen(z) & (z.real < 0), 1, w.sine);
  return {size * w.cosine, ir::Select(ir::Eq(z.imaginary, 0), z.imaginary, size * sine)};
}

Number Sinh(const Number& z) {
  const Wave w = WaveOf(z, ir::Abs(z.real));
  return {ZeroOr(ir::Sinh(w.of), w.cosine), ZeroOr(ir::Cosh(w.of), w.sine)};
}

Number Cosh(const Number& z) {
  const Wave w = WaveOf(z, ir::Abs(z.real));
  return {ir::Cosh(w.of) * w.cosine, ZeroOr(ir::Sinh(w.of), w.sine)};
}

// From half the largest exponent on its real part is 1, and the imaginary one rounds to 0.
Number Tanh(const Number& z) {
  const double most = MostOf(z.real) / 2;
  const Tensor x = ir::Max(ir::Min(z.real, most), -most), sinh = ir::Sinh(x);
  const Tensor cosine = CosineOf(z), divisor = sinh * sinh + cosine * cosine;
  const Tensor turned = ir::Select(IsOpen(z), 1, ir::Sin(z.imaginary) * cosine);
  const Tensor imaginary = turned * ir::Select(ir::Abs(z.real) > most, 0, 1.0 / divisor);
  return {ZeroOr(sinh, ir::Cosh(x) / divisor), ir::Select(ir::Eq(z.imaginary, 0), z.imaginary, imaginary)};
}

// What f is of i z, divided by i.
template <Number (*f)(const Number&)>
Number Turned(const Number& z) {
  const Number turned = f({-z.imaginary, z.real});
  return {turned.imaginary, -turned.real};
}

Number Sigmoid(const Number& z) {
  const Number e = Exp({-z.real, -z.imaginary});
  return Reciprocal({e.real + 1.0, e.imaginary});
}

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

// In f64: what the logarithm's product is rounded by, the power is off by in parts of itself.
Number PowerOf(const Number& z, const Number& exponent) {
  const auto in = [](const Number& a, DType type) {
    return Number{ir::Convert(a.real, type), ir::Convert(a.imaginary, type)};
  };
  return in(Exp(Product(in(exponent, DType::kFloat64), Log(in(z, DType::kFloat64)))), z.real.dtype());
}

Tensor IsReal(const Number& z, double number) { return ir::Eq(z.real, number) & ir::Eq(z.imaginary, 0); }

Result Power(AtenCall& c) {  // (x, exponent)
  return Whole(PowerOf(At(c, 0), At(c, 1)));
}

Result PowerOfNumber(AtenCall& c) {  // (number, exponent)
  const Number z = At(c, 0);
  return Whole(Choose(IsReal(z, 1), One(z.real), PowerOf(z, At(c, 1))));  // whatever the exponent is
}

Result PowerByNumber(AtenCall& c) {  // (x, number)
  const Number z = At(c, 0);
  if (c.is_static(1)) {
    const double exponent = c.real(1);
    if (exponent == 2) return Whole(Product(z, z));
    if (exponent == 3) return Whole(Product(Product(z, z), z));
    if (exponent == -1) return Whole(Reciprocal(z));
    if (exponent == -2) return Whole(Reciprocal(Product(z, z)));
    if (exponent == 0.5) return Whole(Sqrt(z));
    if (exponent == -0.5) return Whole(Reciprocal(Sqrt(z)));
  }
  const Number exponent = At(c, 1);
  return Whole(Choose(IsReal(exponent, 0), One(z.real), Choose(IsReal(exponent, 1), z, PowerOf(z, exponent))));
}

Tensor NormOf(const Number& z, DType type, double order, Ints over) {
  const Number x = {ir::Convert(z.real, type), ir::Convert(z.imaginary, type)};
  return order == 2 ? ir::Sqrt(ir::Sum(x.real * x.real + x.imaginary * x.imaginary, over, true))
                    : VectorNorm(Magnitude(x), order, over);
}

Lowering Norm(int dims) {  // (x, order, ...)
  return [dims](AtenCall& c) -> Result {
    if (c.has(1) && !c.is_static(1)) return Result::Decline();
    const Number z = At(c, 0);
    const Tensor norm = NormOf(z, c.result_dtype(), c.real(1, 2), c.dims(dims, z.real.rank()));
    return ir::Reshape(norm, c.result_dims());
  };
}

Result NormOfEach(AtenCall& c) {  // (list, order, ...)
  if (c.has(1) && !c.is_static(1)) return Result::Decline();
  AtenCall real = c.OfParts({Part::kReal}), imaginary = c.OfParts({Part::kImaginary});
  llvm::SmallVector<Tensor> results;
  for (auto [k, z] : llvm::enumerate(llvm::zip_equal(real.tensors(0), imaginary.tensors(0)))) {
    const auto [x, y] = z;
    results.push_back(ir::Reshape(NormOf({x, y}, c.result_dtype(k), c.real(1, 2), AllDims(x)), {}));
  }
  return results;
}

Result Vdot(AtenCall& c) {  // (x, y)
  const Number x = At(c, 0), y = At(c, 1);
  return ir::Complex(ir::Sum(x.real * y.real + x.imaginary * y.imaginary, {0}),
                     ir::Sum(x.real * y.imaginary - x.imaginary * y.real, {0}));
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
  AddByParts(r, {"aten::_foreach_add.List", "aten::_foreach_add.Scalar", "aten::_foreach_add.Tensor"}, {0, 1});
  AddByParts(r, {"aten::_foreach_sub.List", "aten::_foreach_sub.Scalar", "aten::_foreach_lerp.Scalar"}, {0, 1});
  AddByParts(r, {"aten::_foreach_mul.List", "aten::_foreach_mul.Scalar", "aten::_foreach_mul.Tensor"}, {}, {0, 1});
  AddByParts(r, {"aten::_foreach_neg", "aten::_foreach_zero"}, {0});
  AddByParts(r, {"aten::_foreach_copy"}, {1});
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
  r.AddComplex("aten::pow.Tensor_Tensor", Power);
  r.AddComplex("aten::pow.Scalar", PowerOfNumber);
  r.AddComplex("aten::pow.Tensor_Scalar", PowerByNumber);
  r.AddComplex("aten::sinh", Unary(Sinh));
  r.AddComplex("aten::cosh", Unary(Cosh));
  r.AddComplex("aten::tanh", Unary(Tanh));
  r.AddComplex("aten::sin", Unary(Turned<Sinh>));
  r.AddComplex("aten::cos", Unary([](const Number& z) { return Cosh({-z.imaginary, z.real}); }));
  r.AddComplex("aten::tan", Unary(Turned<Tanh>));
  r.AddComplex("aten::sigmoid", Unary(Sigmoid));
  r.AddComplex("aten::vdot", Vdot);
  for (const char* name : {"aten::linalg_vector_norm", "aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype"}) {
    r.AddComplex(name, Norm(2));
  }
  for (const char* name : {"aten::norm.Scalar", "aten::norm.ScalarOpt_dtype"}) r.AddComplex(name, Norm(99));
  r.AddComplex("aten::_foreach_norm.Scalar", NormOfEach);
  r.AddComplex("aten::var.correction", OfBoth(r.Find("aten::var.correction")->lowering, ir::Add));
  r.AddComplex("aten::std.correction", OfBoth(r.Find("aten::std.correction")->lowering, Hypot));
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
