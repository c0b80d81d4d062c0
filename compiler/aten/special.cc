// Functions of mathematical physics: the gamma function's logarithm and its derivatives, the complementary error
// function.
#include <cmath>
#include <limits>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"

namespace tpu::aten {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Highest power last.
Tensor Polynomial(Tensor x, std::initializer_list<double> coefficients) {
  Tensor sum;
  for (auto c = std::rbegin(coefficients); c != std::rend(coefficients); ++c) {
    sum = sum ? sum * x + *c : x.emitter().Constant(x.dtype(), *c, x.dims());
  }
  return sum;
}

// What x lies beside a whole number: at most one half, exact.
Tensor BesideWhole(Tensor x) { return x - ir::RoundEven(x); }

// Lanczos' series (SIAM J. Numer. Anal. B 1, 1964) with g = 7, by Godfrey's nine coefficients; below 1/2 reflected.
Tensor LogGamma(Tensor x) {
  constexpr double kG = 7, kCoefficients[] = {676.520368121885098567009190444019, -1259.13921672240287047156078755283,
                                              771.3234287776530788486528258894,   -176.61502916214059906584551354,
                                              12.507343278686904814458936853,     -0.13857109526572011689554707,
                                              9.984369578019570859563e-6,         1.50563273514931155834e-7};
  const Tensor reflected = x < 0.5, z = ir::Select(reflected, -x, x - 1);
  Tensor sum = x.emitter().Constant(x.dtype(), 0.99999999999980993227684700473478, x.dims());
  double shift = 0;
  for (const double c : kCoefficients) sum = sum + c / (z + ++shift);
  const Tensor t = z + (kG + 0.5), log_t = std::log(kG + 0.5) + ir::Log1p(z / (kG + 0.5));
  const Tensor upper = 0.5 * std::log(2 * M_PI) + (z + 0.5 - t / log_t) * log_t + ir::Log(sum);
  const Tensor beside = ir::Abs(BesideWhole(x));
  const Tensor value = ir::Select(reflected, std::log(M_PI) - ir::Log(ir::Sin(M_PI * beside)) - upper, upper);
  const Tensor pole = (ir::Eq(beside, 0) & (x <= 0)) | ir::Eq(ir::Abs(x), kInfinity);
  return ir::Select(pole, kInfinity, value);
}

// The asymptotic series (Abramowitz and Stegun 6.3.18) from 6 on, below by recurrence, negative numbers reflected.
Tensor Digamma(Tensor x) {
  const Tensor reflected = x < 0, y = ir::Select(reflected, 1.0 - x, x), small = y < 6;
  Tensor below = 1.0 / y;  // of either sign at 0
  for (int k = 1; k < 6; ++k) below = below + 1.0 / (y + k);
  const Tensor large = ir::Select(small, y + 6, y), z = 1.0 / (large * large);
  const Tensor series =
      z * Polynomial(z, {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12});
  const Tensor upper = ir::Log(large) - 0.5 / large - series - ir::Select(small, below, 0);
  const Tensor beside = BesideWhole(x);
  const Tensor value = ir::Select(reflected, upper - M_PI / ir::Tan(M_PI * beside), upper);
  return ir::Select(reflected & ir::Eq(x, ir::RoundEven(x)), std::numeric_limits<double>::quiet_NaN(), value);
}

// As PyTorch's: what it gives beside the poles is the rounding of pi * x.
Tensor Trigamma(Tensor x) {
  const Tensor reflected = x < 0.5, sine = ir::Sin(M_PI * x);
  Tensor y = ir::Select(reflected, 1.0 - x, x), sum = ir::Select(reflected, -(M_PI * M_PI) / (sine * sine), 0);
  for (int k = 0; k < 6; ++k) {
    sum = sum + 1.0 / (y * y);
    y = y + 1;
  }
  const Tensor z = 1.0 / (y * y);
  sum = sum + (1 + 1 / (2 * y) + z * (1.0 / 6 - z * (1.0 / 30 - z * (1.0 / 42)))) / y;
  return ir::Select(reflected, -sum, sum);
}

// exp(a^2) * erfc(a) for a >= 0: (1 + 2a) times it is a polynomial in (a - k) / (a + k) (Shepherd and Laframboise,
// Math. Comp. 36, 1981), here the Chebyshev interpolation of degree 21.
Tensor ScaledTail(Tensor a) {
  constexpr double kMiddle = 3.75;
  const Tensor t = 1.0 - 2 * kMiddle / (a + kMiddle);
  const Tensor p =
      Polynomial(t, {1.2375126308378263,     -0.14024059858554526,   0.003585415485781718,   0.082276738489995063,
                     -0.10880393015455231,   0.09230432116428125,    -0.058693398387769279,  0.028362277372111139,
                     -0.0097465811943057372, 0.0017556261651970651,  0.00029372142956717465, -0.00029015535246077655,
                     5.1626016222598531e-5,  2.2387565714911817e-5,  -1.1399726074447365e-5, -9.792625707303522e-7,
                     1.6959958079430478e-6,  -5.0844653786873022e-8, -2.143069227582364e-7,  1.8790823223700481e-8,
                     1.7552176307433926e-8,  -1.9551358868985617e-9});
  return p / (1.0 + 2 * a);
}

// exp(-a^2) has its square in two parts: where it is small, the square's rounding would be 80 times as large in it.
Tensor Erfc(Tensor x) {
  const Tensor a = ir::Min(ir::Abs(x), 28), coarse = ir::Floor(a * 16) * 0.0625;
  const Tensor tail = ir::Exp(-(coarse * coarse)) * ir::Exp(-((a - coarse) * (a + coarse))) * ScaledTail(a);
  return ir::Select(x < 0, 2 - tail, tail);
}

Tensor Erfcx(Tensor x) {
  const Tensor tail = ScaledTail(ir::Abs(x));
  return ir::Select(x < 0, 2 * ir::Exp(x * x) - tail, tail);
}

template <Tensor (*kFunction)(Tensor)>
Result Of(AtenCall& c) {
  return kFunction(In(c, 0));
}

Result Polygamma(AtenCall& c) {  // (n, x)
  const int64_t n = c.integer(0);
  if (n > 1) return Result::Decline();
  const Tensor x = In(c, 1);
  return n == 0 ? Digamma(x) : Trigamma(x);
}

}  // namespace

void RegisterSpecial(Registry& r) {
  r.Add("aten::lgamma", Of<LogGamma>);
  r.Add("aten::digamma", Of<Digamma>);
  r.Add("aten::polygamma", Polygamma);
  r.Add("aten::erfc", Of<Erfc>);
  r.Add("aten::special_erfcx", Of<Erfcx>);
}

}  // namespace tpu::aten
