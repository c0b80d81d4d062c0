// Vector math and element types against libm in f64.
#include <bit>
#include <cmath>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/substitute.h"
#include "tests/unit/compiler/host_testing.h"

namespace tpu::host {
namespace {

// Numbers of every magnitude and sign, and the special ones; a length that leaves a tail.
std::vector<float> Everything() {
  std::vector<float> v = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.0f, 1e-45f, -1e-45f, 3e38f, -3e38f, 0.5f};
  for (uint32_t bits = 0; bits < 0xffc00000u; bits += 65521 * 97) {
    float x = std::bit_cast<float>(bits);
    if (!std::isnan(x)) v.push_back(x);
  }
  for (float x = -110; x < 110; x += 0.0137f) v.push_back(x);
  for (float x = -2; x < 2; x += 0.000713f) v.push_back(x);
  return v;
}

double Ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e9;
  float rounded = static_cast<float>(want);
  if (std::isinf(rounded) || std::isinf(got)) {
    // The last number before infinity may go either way.
    if (got == rounded) return 0;
    return std::abs(want) > 3.4028e38 && std::abs(got) > 3.4028e38f ? 0 : 1e9;
  }
  int exponent;
  std::frexp(rounded, &exponent);
  double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::abs(static_cast<double>(got) - want) / ulp;
}

// What `op` gives for each element, or pair of elements, of `type`.
template <typename T>
std::vector<T> Elementwise(const std::string& op, const std::string& type, const std::vector<std::vector<T>>& inputs) {
  const std::string tensor = absl::StrCat("tensor<", inputs[0].size(), "x", type, ">");
  const bool two = inputs.size() > 1;
  std::vector<Bytes> packed;
  for (const std::vector<T>& input : inputs) packed.push_back(Pack(input));
  return RunFor<T>(
      absl::StrCat("func.func @fragment(%x: ", tensor, two ? ", %y: " + tensor : "", ") -> ", tensor, " { %0 = tpu.",
                   op, two ? " %x, %y : " : " %x : ", tensor, " return %0 : ", tensor, " }"),
      packed);
}

struct Function {
  const char* name;
  std::function<double(double)> exact;
  double ulps;
};

TEST(Math, UnaryFunctionsAreAccurate) {
  const Function functions[] = {
      {"exp", [](double x) { return std::exp(x); }, 2},
      {"exp2", [](double x) { return std::exp2(x); }, 2},
      {"expm1", [](double x) { return std::expm1(x); }, 3},
      {"log", [](double x) { return std::log(x); }, 2},
      {"log2", [](double x) { return std::log2(x); }, 3},
      {"log10", [](double x) { return std::log10(x); }, 3},
      {"log1p", [](double x) { return std::log1p(x); }, 3},
      {"tanh", [](double x) { return std::tanh(x); }, 4},
      {"erf", [](double x) { return std::erf(x); }, 4},
      {"logistic", [](double x) { return x < -88.7 ? 0 : 1 / (1 + std::exp(-x)); }, 4},
      {"sqrt", [](double x) { return std::sqrt(x); }, 0.51},
      {"rsqrt", [](double x) { return 1 / std::sqrt(x); }, 2},
      {"tan", [](double x) { return std::tan(x); }, 2},
      {"asin", [](double x) { return std::asin(x); }, 4},
      {"acos", [](double x) { return std::acos(x); }, 4},
      {"atan", [](double x) { return std::atan(x); }, 2},
      {"sinh", [](double x) { return std::sinh(x); }, 4},
      {"cosh", [](double x) { return std::cosh(x); }, 4},
      {"asinh", [](double x) { return std::asinh(x); }, 2},
      {"acosh", [](double x) { return std::acosh(x); }, 4},
      {"atanh", [](double x) { return std::atanh(x); }, 4},
      {"floor", [](double x) { return std::floor(x); }, 0},
      {"round_even", [](double x) { return std::nearbyint(x); }, 0},
  };
  std::vector<float> x = Everything();
  for (const Function& f : functions) {
    const std::vector<float> got = Elementwise<float>(f.name, "f32", {x});
    ASSERT_EQ(got.size(), x.size());
    double worst = 0;
    float at = 0, was = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      double ulps = Ulps(got[i], f.exact(x[i]));
      if (ulps > worst) worst = ulps, at = x[i], was = got[i];
    }
    EXPECT_LE(worst, f.ulps) << f.name << "(" << at << ") gave " << was << ", exact " << f.exact(at);
  }
}

TEST(Math, FunctionsOfDoublesAreAccurate) {
  std::vector<double> x = {INFINITY, -INFINITY, NAN,    0.0,   -0.0,   709.78,   709.79,
                           -708.4,   -745.1,    -745.2, 1e308, 5e-324, 2.2e-308, 1e-310};
  for (double at = -750; at < 720; at += 0.0713) x.push_back(at);
  for (double at = -0.4; at < 2; at += 0.000317) x.push_back(at);
  for (double at = 1e-308; at < 1e308; at *= 1.37) x.push_back(at);
  for (double quarters = 1; quarters < 7e8; quarters = std::ceil(quarters * 1.003)) x.push_back(quarters * M_PI_2);
  const std::pair<const char*, long double (*)(long double)> functions[] = {
      {"exp", std::exp}, {"log", std::log}, {"sin", std::sin}, {"cos", std::cos}};
  for (const auto& [name, function] : functions) {
    const std::vector<double> got = Elementwise<double>(name, "f64", {x});
    for (size_t i = 0; i < x.size(); ++i) {
      const long double exact = function(x[i]);
      const auto rounded = static_cast<double>(exact);
      if (!std::isfinite(rounded)) {
        EXPECT_TRUE(std::isnan(rounded) ? std::isnan(got[i]) : got[i] == rounded) << name << " " << x[i];
        continue;
      }
      const long double size = std::abs(rounded), ulp = std::nextafter(static_cast<double>(size), INFINITY) - size;
      EXPECT_LE(std::abs(got[i] - exact), 1.2L * ulp) << name << "(" << x[i] << ") gave " << got[i];
    }
  }
}

// Pairs of all kinds of numbers: of alike magnitudes, and of very different ones.
template <typename T>
std::pair<std::vector<T>, std::vector<T>> Pairs() {
  const std::vector<float> all = Everything();
  std::vector<T> x, y;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t step : {size_t{0}, size_t{1}, size_t{12}, size_t{1777}, size_t{7919}, i * i}) {
      x.push_back(all[i]);
      y.push_back(all[(i + step) % all.size()]);
    }
  }
  return {x, y};
}

TEST(Math, RemaindersAreExact) {
  const auto [x, y] = Pairs<float>();
  const std::vector<float> got = Elementwise<float>("rem", "f32", {x, y});
  const auto [wide_x, wide_y] = Pairs<double>();
  const std::vector<double> wide = Elementwise<double>("rem", "f64", {wide_x, wide_y});
  ASSERT_EQ(got.size(), x.size());
  const auto same = [](auto a, auto b) {
    return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
  };
  for (size_t i = 0; i < x.size(); ++i) {
    const float exact = std::fmod(x[i], y[i]);
    ASSERT_TRUE(same(exact, got[i])) << x[i] << " rem " << y[i] << " gave " << got[i] << ", exact " << exact;
    const double wider = std::fmod(wide_x[i], wide_y[i]);
    ASSERT_TRUE(same(wider, wide[i])) << wide_x[i] << " rem " << wide_y[i] << " gave " << wide[i] << ", exact "
                                      << wider;
  }
}

TEST(Math, ResultsDoNotDependOnPlaces) {
  const auto same = []<typename T>(const std::string& op, const std::string& type, T x) {
    // Full vectors, and some of every narrower width.
    const auto got = Elementwise<T>(op, type, {std::vector<T>(109, x)});
    EXPECT_EQ(got, std::vector<T>(109, got.at(0))) << op << " " << type << " of " << x;
  };
  for (float x : {0.3f, 0.5512f, 0.874f}) {
    for (const char* op : {"asin", "acos", "atan", "sinh", "cosh", "asinh", "atanh", "tan", "exp", "sin"}) {
      same(op, "f32", x);
      same(op, "f64", double{x});
    }
  }
}

TEST(Math, PowersAndAnglesAreAccurate) {
  const auto [x, y] = Pairs<float>();
  const std::vector<float> powers = Elementwise<float>("pow", "f32", {x, y});
  const std::vector<float> angles = Elementwise<float>("atan2", "f32", {x, y});
  for (size_t i = 0; i < x.size(); ++i) {
    const double power = std::pow(double{x[i]}, double{y[i]}), angle = std::atan2(double{x[i]}, double{y[i]});
    ASSERT_LE(Ulps(powers[i], power), 2) << x[i] << " to " << y[i] << " gave " << powers[i] << ", exact " << power;
    ASSERT_LE(Ulps(angles[i], angle), 4) << x[i] << " atan2 " << y[i] << " gave " << angles[i] << ", exact " << angle;
    ASSERT_TRUE(std::isnan(angle) || std::signbit(angles[i]) == std::signbit(angle)) << x[i] << " atan2 " << y[i];
  }
}

TEST(Math, SineAndCosineOfLargeArguments) {
  std::vector<float> x;
  for (float v = 1e-6f; v < 1e7f; v *= 1.0173f) x.push_back(v), x.push_back(-v);
  for (const char* name : {"sin", "cos"}) {
    auto got = RunFor<float>(
        absl::StrReplaceAll("func.func @fragment(%x: tensor<$Nxf32>) -> tensor<$Nxf32> { %0 = tpu.$F %x : "
                            "tensor<$Nxf32> return %0 : tensor<$Nxf32> }",
                            {{"$N", std::to_string(x.size())}, {"$F", name}}),
        {Pack(x)});
    for (size_t i = 0; i < x.size(); ++i) {
      double want = name[0] == 's' ? std::sin(static_cast<double>(x[i])) : std::cos(static_cast<double>(x[i]));
      EXPECT_NEAR(got[i], want, 1.5e-7) << name << " " << x[i];
    }
  }
}

uint16_t ToBFloat16(float f) {
  if (std::isnan(f)) return 0x7fc0;
  uint32_t bits = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float FromBFloat16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

TEST(Types, BFloat16RoundsAfterEveryOperation) {
  std::vector<uint16_t> a, b;
  for (int i = 0; i < 1003; ++i) {
    a.push_back(ToBFloat16(0.37f * static_cast<float>(i) - 100));
    b.push_back(ToBFloat16(1.0f / static_cast<float>(i + 1)));
  }
  a[7] = 0x7fc0, b[8] = 0x7f80;
  auto got =
      RunFor<uint16_t>(R"(func.func @fragment(%a: tensor<1003xbf16>, %b: tensor<1003xbf16>) -> tensor<1003xbf16> {
    %0 = tpu.mul %a, %b : tensor<1003xbf16>
    %1 = tpu.add %0, %a : tensor<1003xbf16>
    return %1 : tensor<1003xbf16> })",
                       {Pack(a), Pack(b)});
  ASSERT_EQ(got.size(), a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    uint16_t product = ToBFloat16(FromBFloat16(a[i]) * FromBFloat16(b[i]));
    EXPECT_EQ(got[i], ToBFloat16(FromBFloat16(product) + FromBFloat16(a[i]))) << i;
  }
}

TEST(Types, IntegersDivideWithoutTraps) {
  std::vector<int32_t> a = {7, -7, INT32_MIN, 5, INT32_MIN, 0}, b = {2, 2, -1, 7, 3, -5};
  const char* text = R"(func.func @fragment(%a: tensor<6xi32>, %b: tensor<6xi32>) -> (tensor<6xi32>, tensor<6xi32>) {
    %0 = tpu.div %a, %b : tensor<6xi32>
    %1 = tpu.rem %a, %b : tensor<6xi32>
    return %0, %1 : tensor<6xi32>, tensor<6xi32> })";
  EXPECT_EQ(RunFor<int32_t>(text, {Pack(a), Pack(b)}), (std::vector<int32_t>{3, -3, INT32_MIN, 0, INT32_MIN / 3, 0}));
  EXPECT_EQ(RunFor<int32_t>(text, {Pack(a), Pack(b)}, 1), (std::vector<int32_t>{1, -1, 0, 5, INT32_MIN % 3, 0}));
  b[3] = 0;
  const absl::Status zero = RunText(text, {Pack(a), Pack(b)}).status();
  EXPECT_EQ(zero.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(zero.message(), "ZeroDivisionError")) << zero;
}

TEST(Types, ConversionsAndBool) {
  std::vector<float> x = {0.0f, 1.9f, -1.9f, 300.0f, NAN, -0.0f, 7.0f};
  const char* text = R"(func.func @fragment(%x: tensor<7xf32>) -> (tensor<7xi1>, tensor<7xi64>, tensor<7xf64>) {
    %0 = tpu.convert %x : (tensor<7xf32>) -> tensor<7xi1>
    %c = tpu.constant dense<7.0> : tensor<7xf32>
    %p = tpu.compare le %x, %c : tensor<7xf32>
    %z = tpu.constant dense<0.0> : tensor<7xf32>
    %s = tpu.select %p, %x, %z : tensor<7xi1>, tensor<7xf32>
    %1 = tpu.convert %s : (tensor<7xf32>) -> tensor<7xi64>
    %2 = tpu.convert %0 : (tensor<7xi1>) -> tensor<7xf64>
    return %0, %1, %2 : tensor<7xi1>, tensor<7xi64>, tensor<7xf64> })";
  EXPECT_EQ(RunFor<uint8_t>(text, {Pack(x)}), (std::vector<uint8_t>{0, 1, 1, 1, 1, 0, 1}));
  EXPECT_EQ(RunFor<int64_t>(text, {Pack(x)}, 1), (std::vector<int64_t>{0, 1, -1, 0, 0, 0, 7}));
  EXPECT_EQ(RunFor<double>(text, {Pack(x)}, 2), (std::vector<double>{0, 1, 1, 1, 1, 0, 1}));
}

TEST(Types, SineAndCosineOfOneDouble) {
  const std::vector<double> x = {0, 0.5, -1, 3, 100};
  const auto got = RunFor<double>(R"(func.func @fragment(%x: tensor<5xf64>) -> tensor<5xf64> {
    %0 = tpu.sin %x : tensor<5xf64>
    %1 = tpu.cos %x : tensor<5xf64>
    %2 = tpu.sub %0, %1 : tensor<5xf64>
    return %2 : tensor<5xf64> })",
                                  {Pack(x)});
  ASSERT_EQ(got.size(), x.size());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got[i], std::sin(x[i]) - std::cos(x[i]), 1e-15);
}

TEST(Random, BitsDependOnPositionOnly) {
  const char* text = R"(func.func @fragment(%s: tensor<i64>, %o: tensor<i64>) -> (tensor<1000xi32>, tensor<10x99xi32>) {
    %0 = tpu.random_bits %s, %o : (tensor<i64>, tensor<i64>) -> tensor<1000xi32>
    %1 = tpu.slice %0 [5] to [995] by [1] : (tensor<1000xi32>) -> tensor<990xi32>
    %2 = tpu.reshape %1 : (tensor<990xi32>) -> tensor<10x99xi32>
    %3 = tpu.transpose %2 [1, 0] : (tensor<10x99xi32>) -> tensor<99x10xi32>
    %4 = tpu.not %3 : tensor<99x10xi32>
    %5 = tpu.transpose %4 [1, 0] : (tensor<99x10xi32>) -> tensor<10x99xi32>
    return %0, %5 : tensor<1000xi32>, tensor<10x99xi32> })";
  std::vector<Bytes> inputs = {Pack(std::vector<int64_t>{0}), Pack(std::vector<int64_t>{0})};
  auto all = RunFor<uint32_t>(text, inputs);
  // The first block of Philox4x32-10 for key 0, counter 0 (Random123's known answers).
  EXPECT_EQ(std::vector<uint32_t>(all.begin(), all.begin() + 4),
            (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  auto part = RunFor<uint32_t>(text, inputs, 1);
  ASSERT_EQ(part.size(), 990u);
  for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], ~all[i + 5]) << i;
}

TEST(Random, SeveralWordsOfAnElement) {
  const std::vector<Bytes> inputs = {Pack(std::vector<int64_t>{1L << 40 | 3}), Pack(std::vector<int64_t>{7})};
  const auto all = RunFor<uint32_t>(R"(func.func @fragment(%s: tensor<i64>, %o: tensor<i64>) -> tensor<1000xi32> {
    %0 = tpu.random_bits %s, %o : (tensor<i64>, tensor<i64>) -> tensor<1000xi32>
    return %0 : tensor<1000xi32> })",
                                    inputs);
  for (const int64_t each : {2, 4}) {
    const int64_t n = 1000 / each;
    for (int64_t word = 0; word < each; ++word) {
      const auto got =
          RunFor<uint32_t>(absl::Substitute(R"(func.func @fragment(%s: tensor<i64>, %o: tensor<i64>) -> tensor<$0xi32> {
            %1 = tpu.random_bits %s, %o : (tensor<i64>, tensor<i64>) -> tensor<$0x$1xi32>
            %2 = tpu.slice %1 [0, $2] to [$0, $3] by [1, 1] : (tensor<$0x$1xi32>) -> tensor<$0x1xi32>
            %3 = tpu.reshape %2 : (tensor<$0x1xi32>) -> tensor<$0xi32>
            return %3 : tensor<$0xi32> })",
                                            n, each, word, word + 1),
                           inputs);
      ASSERT_EQ(got.size(), static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(got[i], all[i * each + word]) << i;
    }
  }
}

}  // namespace
}  // namespace tpu::host
