// Functions of mathematical physics: the gamma function's logarithm and its derivatives, error functions and their
// inverse, modified Bessel functions.
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

// log gamma(z + 1) from 1/2 to 3, which is 0 at z = 0 and 1: over z * (z - 1) a polynomial in (y - k) / (y + k), where
// y = z + 1, here the Chebyshev interpolation of degree 22.
Tensor LogGammaNearItsZeros(Tensor z) {
  constexpr double kMiddle = 1.224744871391589;  // the root of 1/2 * 3
  constexpr double kScale = (3 + kMiddle) / (3 - kMiddle);
  const Tensor t = (z + (1 - kMiddle)) / (z + (1 + kMiddle)) * kScale;
  return z * (z - 1) *
         Polynomial(t,
                    {0.528838744145037,      -0.19499299920071322,    0.022916637181315466,   -0.011832449240938212,
                     0.0026949455119654924,  -0.0012759724664100653,  0.00035464773440718365, -0.00016222038544473985,
                     4.9839421780918583e-05, -2.2377172359663254e-05, 7.3056547901984834e-06, -3.2412256922793396e-06,
                     1.1023284346898086e-06, -4.865429467238517e-07,  1.70455460159751e-07,   -7.221148040787415e-08,
                     2.5813546739024295e-08, -1.3881248092946275e-08, 5.094107287491903e-09,  -3.5748202786439956e-10,
                     1.1686620065695127e-10, -7.917649331865806e-10,  2.98741784819784e-10});
}

// Beyond, Lanczos' series (SIAM J. Numer. Anal. B 1, 1964) with g = 7, by Godfrey's nine coefficients; below 1/2
// reflected.
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
  const Tensor far = 0.5 * std::log(2 * M_PI) + (z + 0.5 - t / log_t) * log_t + ir::Log(sum);
  const Tensor upper = ir::Select(z < 2, LogGammaNearItsZeros(z), far);
  const Tensor beside = ir::Abs(BesideWhole(x));
  // Near a pole the sine is its angle, which may round.
  const Tensor sine = ir::Select(beside < 1e-9, beside, ir::Sin(M_PI * beside) * M_1_PI);
  const Tensor value = ir::Select(reflected, -ir::Log(sine) - upper, upper);
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

Tensor LogNormalDistribution(Tensor x) {
  const Tensor t = x * M_SQRT1_2;
  return ir::Select(x < -1, ir::Log(Erfcx(-t) * 0.5) - t * t, ir::Log1p(-0.5 * Erfc(t)));
}

// The inverse error function of x, where w = -log(1 - x^2), to 5e-10: over x a function of w up to
// 6, over x and the root of w then one of the root's reciprocal, by their Chebyshev interpolations.
Tensor InverseErf(Tensor x, Tensor w) {
  constexpr double kMiddle = 6, kNear = 1 / 2.449489742783178, kFar = 1 / 27.5;
  const Tensor root = ir::Sqrt(ir::Max(w, kMiddle)), t = (1.0 / root - kFar) * (2 / (kNear - kFar)) - 1;
  const Tensor small =
      Polynomial(ir::Min(w, kMiddle) * (2 / kMiddle) - 1,
                 {1.6235420064648298,      0.7248912124984771,      -0.051643216989051104,  -0.022576907976752252,
                  0.015799967277408934,    -0.0030900906960069146,  -0.0012742935269051566, 0.0009841180632147223,
                  -0.00015542174564679535, -0.00010761006984247841, 6.559153551390515e-05,  -5.568625219273167e-06,
                  -9.209264951016121e-06,  4.307416289840317e-06,   2.992422598689565e-08,  -7.670039379467481e-07,
                  2.7249848831772916e-07,  4.378491474930378e-08,   -6.269618803038916e-08, 9.081428930595508e-09,
                  7.0004130724063135e-09,  -1.7464278707660834e-09, -2.992412449965611e-10});
  const Tensor large =
      root *
      Polynomial(t, {0.9654839907910231, -0.037428102635816744, 0.001037374189311137, 0.004239150272849392,
                     -0.0012101587598277652, 0.00041744928862158114, 0.0002477327940827471, 0.0009634555297951309,
                     0.0009226171804156852, -0.00044802496461644677, -0.0018089730792463159, -0.00025066700028920474,
                     0.0017547039373091466, 0.0005015425075408011, -0.0011309545081216246, -0.00029214473780932073,
                     0.0004439963379629531, 6.807761008543221e-05, -8.220607845015554e-05});
  return x * ir::Select(w <= kMiddle, small, large);
}

Tensor ErfInverse(Tensor x) { return InverseErf(x, -ir::Log((1.0 - x) * (1.0 + x))); }

// Of a probability: that of 2p - 1, whose square is 1 - 4p(1 - p).
Tensor NormalQuantile(Tensor p) { return M_SQRT2 * InverseErf(2 * p - 1, -ir::Log(4 * p * (1.0 - p))); }

// The modified Bessel functions of the first kind, of order 0 and 1; scaled: times exp(-|x|). The power series up to 8;
// beyond, exp(-x) * sqrt(x) times them is interpolated in 1 / x.
template <int kOrder, bool kScaled>
Tensor Bessel(Tensor x) {
  constexpr double kMiddle = 8;
  const Tensor a = ir::Abs(x), low = ir::Min(a, kMiddle), high = ir::Max(a, kMiddle), z = low * low * 0.25;
  Tensor series = x.emitter().Constant(x.dtype(), 1, x.dims());  // by Horner's scheme: z / (k * (k + order)) each
  for (int k = 24; k > 0; --k) series = series * z * (1.0 / (k * (k + kOrder))) + 1;
  if (kOrder == 1) series = series * low * 0.5;
  const Tensor t = 2 * kMiddle / high - 1;
  const Tensor p = kOrder == 0
                       ? Polynomial(t, {0.4021765094450081,      0.0033605519836669103,   0.00013621607438931758,
                                        1.1143033860495017e-05,  1.4838477678808023e-06,  2.973583433473054e-07,
                                        8.871772134958215e-08,   3.9341151967621574e-08,  2.1593921284189837e-08,
                                        7.468652718445711e-09,   -7.004556901394248e-09,  -1.3113874879941897e-08,
                                        -4.522137715543013e-09,  6.905503273684613e-09,   5.492774410203639e-09,
                                        -2.5824509003351837e-09, -3.1868021662287506e-09, 6.702584046528111e-10,
                                        1.0915893161016653e-09,  -8.853076246050108e-11,  -1.7166164938175488e-10})
                       : Polynomial(t, {0.38939845902587233,     -0.009749577193234856,   -0.0002192357638311702,
                                        -1.5038547264883471e-05, -1.8349103429663388e-06, -3.483841753091222e-07,
                                        -1.0000822498071297e-07, -4.314332246730572e-08,  -2.3421321386723802e-08,
                                        -8.34829836133379e-09,   7.0017870784877524e-09,  1.3761872558441389e-08,
                                        5.056045544132708e-09,   -7.045449593614895e-09,  -5.872315764049016e-09,
                                        2.575022015245385e-09,   3.364402906942886e-09,   -6.563550610824565e-10,
                                        -1.1459875492084381e-09, 8.556534373260018e-11,   1.79708076202127e-10});
  const Tensor small = kScaled ? series * ir::Exp(-low) : series, large = kScaled ? p : p * ir::Exp(high);
  const Tensor value = ir::Select(a <= kMiddle, small, large / ir::Sqrt(high));
  return kOrder == 1 ? ir::Select(x < 0, -value, value) : value;
}

template <Tensor (*kFunction)(Tensor)>
Result Of(AtenCall& c) {
  return kFunction(In(c, 0));
}
// What is as exact as f32 has it, not as f64.
template <Tensor (*kFunction)(Tensor)>
Result OfF32(AtenCall& c) {
  return c.float_compute() == DType::kFloat64 ? Result::Decline() : Result(kFunction(In(c, 0)));
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
  r.Add("aten::special_log_ndtr", Of<LogNormalDistribution>);
  r.Add("aten::special_ndtri", OfF32<NormalQuantile>);
  r.Add("aten::erfinv", OfF32<ErfInverse>);
  r.Add("aten::i0", Of<Bessel<0, false>>);
  r.Add("aten::special_i0e", Of<Bessel<0, true>>);
  r.Add("aten::special_i1", Of<Bessel<1, false>>);
  r.Add("aten::special_i1e", Of<Bessel<1, true>>);
}

}  // namespace tpu::aten
