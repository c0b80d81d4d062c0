#include "dispatcher/host_random.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "runtime/draws.h"
#include "runtime/machine.h"

namespace tpu {
namespace {

constexpr int64_t kChunk = 1024;  // elements at a time: their words stay in the nearest cache

// Word i of the stream is word i % 4 of the block at counter offset + i / 4. Written for the vectoriser: lanes are
// blocks.
template <int kLanes>
inline void PhiloxBlocks(uint64_t seed, uint64_t counter, uint32_t* words) {
  uint32_t c[4][kLanes];
  for (int l = 0; l < kLanes; ++l) {
    c[0][l] = static_cast<uint32_t>(counter + l);
    c[1][l] = static_cast<uint32_t>((counter + l) >> 32);
    c[2][l] = c[3][l] = 0;
  }
  uint32_t key_low = static_cast<uint32_t>(seed), key_high = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t first = uint64_t{c[0][l]} * 0xD2511F53u, second = uint64_t{c[2][l]} * 0xCD9E8D57u;
      c[0][l] = static_cast<uint32_t>(second >> 32) ^ c[1][l] ^ key_low;
      c[2][l] = static_cast<uint32_t>(first >> 32) ^ c[3][l] ^ key_high;
      c[1][l] = static_cast<uint32_t>(second);
      c[3][l] = static_cast<uint32_t>(first);
    }
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  for (int l = 0; l < kLanes; ++l) {
    for (int w = 0; w < 4; ++w) words[4 * l + w] = c[w][l];
  }
}

// The functions of compiler/host/vector_math.cc for one element, operation by operation, but for Exp of f64, which may
// differ there in its last bit.
template <bool kFma>
struct Maths {
  template <typename T>
  static T Fma(T a, T b, T c) {
    if constexpr (!kFma) return a * b + c;
    if constexpr (std::is_same_v<T, float>) return __builtin_fmaf(a, b, c);
    return __builtin_fma(a, b, c);
  }
  template <typename T, typename... Lower>
  static T Poly(T x, T highest, Lower... lower) {
    T y = highest;
    ((y = Fma(y, x, lower)), ...);
    return y;
  }
  static float Log(float x) {  // of a normal number
    const int32_t bits = std::bit_cast<int32_t>(x), e = (bits - 0x3f3504f3) >> 23;
    const float m = std::bit_cast<float>(bits - static_cast<int32_t>(static_cast<uint32_t>(e) << 23));
    const float f = m - 1, z = f * f;
    float p = Poly(f, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                   -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f);
    p = Fma(-0.5f, z, p * f * z);
    const float whole = static_cast<float>(e);
    return Fma(whole, 0.693359375f, Fma(whole, -2.12194440e-4f, f + p));
  }
  static float Cos(float x) {
    const double wide = x, magic = 6755399441055744.0;
    const double shifted = Fma(wide, 0.636619772367581343, magic), whole = shifted - magic;
    const double reduced = Fma(whole, -6.12323399573676603587e-17, Fma(whole, -1.57079632679489655800e+00, wide));
    const float r = static_cast<float>(reduced), z = r * r;
    const uint32_t turns = static_cast<uint32_t>(std::bit_cast<uint64_t>(shifted)) + 1;
    const float sine = Fma(Poly(z, -1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f) * z, r, r);
    const float cosine =
        Fma(Poly(z, 2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f), z * z, Fma(-0.5f, z, 1.0f));
    const float y = (turns & 1) != 0 ? cosine : sine;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(y) ^ (turns & 2) << 30);
  }
  static float Exp(float x) {
    const float clamped = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x, magic = 12582912.0f;
    const float shifted = Fma(clamped, 1.44269504088896341f, magic), whole = shifted - magic;
    const int32_t n = std::bit_cast<int32_t>(shifted) - 0x4B400000;
    const float r = Fma(whole, -1.42860682030941723212e-6f, Fma(whole, -0.693145751953125f, clamped));
    const float p = Poly(r, 1.3814540027e-3f, 8.3687451126e-3f, 4.1668390787e-2f, 1.6666520399e-1f, 4.9999993432e-1f);
    const auto two_to = [](int32_t k) { return std::bit_cast<float>((k + 127) << 23); };
    const float y = Fma(p, r * r, r) + 1.0f;
    return y * two_to(n >> 1) * two_to(n - (n >> 1));
  }
  static double Log(double x) {  // of a normal number
    constexpr uint64_t kOne = 0x3ff0000000000000, kRootOfHalf = 0x3fe6a09e667f3bcd;
    const uint64_t bits = std::bit_cast<uint64_t>(x), biased = (bits + kOne - kRootOfHalf) >> 52;
    const double f = std::bit_cast<double>(bits - ((biased - 1023) << 52)) - 1, s = f / (f + 2), z = s * s;
    const double whole = std::bit_cast<double>(biased | std::bit_cast<uint64_t>(0x1p52)) - (0x1p52 + 1023);
    const double p =
        Poly(z, 1.479819860511658591e-1, 1.531383769920937332e-1, 1.818357216161805012e-1, 2.222219843214978396e-1,
             2.857142874366239149e-1, 3.999999999940941908e-1, 6.666666666666735130e-1);
    const double half = f * 0.5 * f, rest = Fma(s, half + z * p, whole * 1.90821492927058770002e-10);
    return Fma(whole, 6.93147180369123816490e-1, f - (half - rest));
  }
  static double Cos(double x) {  // from 0 to 2 pi
    if constexpr (!kFma) return std::cos(x);
    constexpr double kMagic = 6755399441055744.0, kWord = 6.12323399573676603587e-17;
    const double shifted = Fma(x, 0.636619772367581343, kMagic), whole = shifted - kMagic;
    const double first = Fma(whole, -1.57079632679489655800e+00, x), second = whole * kWord, r = first - second;
    const double rest = Fma(whole, 1.49738490485916980e-33, ((first - r) - second) - Fma(whole, kWord, -second));
    const double z = r * r, half = 0.5 * z;
    const double p = Poly(z, 1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
                          -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01);
    const double q = Poly(z, -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
                          2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02);
    const double sine = r + Fma(z * r, p, Fma(-half, rest, rest)), least = 1 - half;
    const double cosine = least + (((1 - least) - half) + Fma(z * z, q, -(r * rest)));
    const uint64_t turns = std::bit_cast<uint64_t>(shifted) + 1;
    return std::bit_cast<double>(std::bit_cast<uint64_t>((turns & 1) != 0 ? cosine : sine) ^ (turns & 2) << 62);
  }
  static double Exp(double x) { return std::exp(x); }
};

enum class Draw { kUniform, kNormal, kExponential, kLogNormal, kCauchy, kIntegers };

// How a draw's numbers are made: `a` and `b` are its two parameters.
struct Parameters {
  Draw draw;
  int bits = 24;  // of a uniform f32
  double a = 0, b = 1;
  uint64_t low = 0, range = 1, reciprocal = UINT64_MAX;  // 2^64 by the range
  uint64_t seed = 0, offset = 0;
};

template <typename T>
T UniformOf(const uint32_t* words, int bits) {
  if constexpr (std::is_same_v<T, float>) {
    const float unit = std::bit_cast<float>((127 - bits) << 23);
    return static_cast<float>(static_cast<int32_t>(words[0] >> (32 - bits))) * unit;
  } else {
    return (static_cast<double>(words[0] >> 5) * 0x1p26 + static_cast<double>(words[1] >> 6)) * 0x1p-53;
  }
}

// x % range by the reciprocal 2^64 / range, whose quotient is at most one too small.
inline uint64_t Modulo(uint64_t x, uint64_t range, uint64_t reciprocal) {
  const uint64_t quotient = static_cast<uint64_t>((static_cast<unsigned __int128>(x) * reciprocal) >> 64);
  const uint64_t rest = x - quotient * range;
  return rest < range ? rest : rest - range;
}

template <Draw kDraw, typename T>
constexpr int kWordsEach =
    (std::is_same_v<T, float> ? 1 : 2) * (kDraw == Draw::kNormal || kDraw == Draw::kLogNormal ? 2 : 1);

template <typename M, Draw kDraw, typename T>
inline T One(const Parameters& p, const uint32_t* words) {
  if constexpr (kDraw == Draw::kIntegers) {
    const uint64_t drawn = words[0] | uint64_t{words[1]} << 32;
    return static_cast<T>(Modulo(drawn, p.range, p.reciprocal) + p.low);
  } else {
    const T a = static_cast<T>(p.a), b = static_cast<T>(p.b), u = UniformOf<T>(words, p.bits);
    if constexpr (kDraw == Draw::kUniform) return u * (b - a) + a;
    if constexpr (kDraw == Draw::kExponential) return std::max(-M::Log(T{1} - u), a) / b;
    if constexpr (kDraw == Draw::kCauchy) {
      const T turn = (u - static_cast<T>(0.5)) * static_cast<T>(M_PI);
      return static_cast<T>(std::tan(static_cast<double>(turn))) * b + a;
    }
    const T v = UniformOf<T>(words + kWordsEach<kDraw, T> / 2, p.bits);
    const T z = std::sqrt(static_cast<T>(-2) * M::Log(T{1} - u)) * M::Cos(v * static_cast<T>(2 * M_PI));
    return kDraw == Draw::kNormal ? z * b + a : M::Exp(z * b + a);
  }
}

// Elements [begin, end) of the stream; begin is a multiple of kChunk, so of whole blocks.
template <typename M, Draw kDraw, typename T>
inline void FillChunk(const Parameters& p, int64_t begin, int64_t end, T* out) {
  constexpr int kLanes = 8, kEach = kWordsEach<kDraw, T>;
  uint32_t words[kEach * kChunk];
  for (int64_t w = 0; w < (end - begin) * kEach; w += 4 * kLanes) {
    PhiloxBlocks<kLanes>(p.seed, p.offset + static_cast<uint64_t>(begin * kEach + w) / 4, words + w);
  }
  for (int64_t i = 0; i < end - begin; ++i) out[begin + i] = One<M, kDraw, T>(p, words + i * kEach);
}

template <Draw kDraw, typename T>
__attribute__((target("avx2,fma"), flatten)) void FillWithFma(const Parameters& p, int64_t begin, int64_t end, T* out) {
  FillChunk<Maths<true>, kDraw, T>(p, begin, end, out);
}

template <Draw kDraw, typename T>
void Fill(const Parameters& p, at::Tensor& t) {
  const auto fill = UsableInstructions().avx2 ? FillWithFma<kDraw, T> : FillChunk<Maths<false>, kDraw, T>;
  T* out = t.mutable_data_ptr<T>();
  const int64_t n = t.numel();
  at::parallel_for(0, (n + kChunk - 1) / kChunk, 16, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      fill(p, chunk * kChunk, std::min((chunk + 1) * kChunk, n), out);
    }
  });
}

template <Draw kDraw>
void Fill(const Parameters& p, at::Tensor& t) {
  t.scalar_type() == c10::kDouble ? Fill<kDraw, double>(p, t) : Fill<kDraw, float>(p, t);
}

void Fill(const Parameters& p, at::Tensor& t) {
  switch (p.draw) {
    case Draw::kUniform:
      return Fill<Draw::kUniform>(p, t);
    case Draw::kNormal:
      return Fill<Draw::kNormal>(p, t);
    case Draw::kExponential:
      return Fill<Draw::kExponential>(p, t);
    case Draw::kLogNormal:
      return Fill<Draw::kLogNormal>(p, t);
    case Draw::kCauchy:
      return Fill<Draw::kCauchy>(p, t);
    case Draw::kIntegers:
      return Fill<Draw::kIntegers, int64_t>(p, t);
  }
}

using Results = std::vector<at::Tensor>;

// One call: its arguments as numbers and tensors, its seed and offset.
class PhiloxCall {
 public:
  PhiloxCall(const Call& call, absl::Span<const KernelInput> inputs, absl::FunctionRef<at::Tensor(int)> tensor)
      : call_(call), inputs_(inputs), tensor_(tensor) {}

  // How each operator draws, by its name as Plain gives it.
  using Operators = absl::flat_hash_map<std::string, Results (*)(const PhiloxCall&)>;
  static const Operators& Known();

 private:
  DType result_type() const { return call_.results[0].dtype; }
  c10::ScalarType draw_type() const { return RealOf(result_type()) == DType::kFloat64 ? c10::kDouble : c10::kFloat; }
  bool IsTensor(size_t i) const { return call_.arguments[i].kind == CallArgument::Kind::kTensor; }
  at::Tensor TensorAt(size_t i) const { return tensor_(call_.arguments[i].first); }
  double Number(size_t i, double otherwise) const {
    const CallArgument& a = call_.arguments[i];
    if (a.kind == CallArgument::Kind::kScalar) {
      const uint64_t bits = inputs_[a.first].argument.scalar_bits;
      const bool real = call_.operands[a.first].type.dtype == DType::kFloat64;
      return real ? std::bit_cast<double>(bits) : static_cast<double>(static_cast<int64_t>(bits));
    }
    if (const auto* number = std::get_if<double>(&a.attribute)) return *number;
    if (const auto* number = std::get_if<int64_t>(&a.attribute)) return static_cast<double>(*number);
    if (const auto* flag = std::get_if<bool>(&a.attribute)) return *flag ? 1 : 0;
    return otherwise;
  }
  int64_t Integer(size_t i, int64_t otherwise) const {
    const CallArgument& a = call_.arguments[i];
    if (a.kind == CallArgument::Kind::kScalar) return static_cast<int64_t>(inputs_[a.first].argument.scalar_bits);
    const auto* number = std::get_if<int64_t>(&a.attribute);
    return number != nullptr ? *number : otherwise;
  }
  int64_t FullRange() const { return IntegersEnd(result_type()); }

  // Of the result's sizes, complex where the result is.
  at::Tensor Make(const Parameters& p, c10::ScalarType type) const {
    std::vector<int64_t> dims(call_.results[0].dims.begin(), call_.results[0].dims.end());
    const bool complex = IsComplex(result_type());
    if (complex) dims.push_back(2);
    const at::Tensor t = MakeOf(dims, p, type);
    return complex ? at::view_as_complex(t) : t;
  }
  at::Tensor MakeOf(at::IntArrayRef dims, Parameters p, c10::ScalarType type) const {
    at::Tensor t = at::empty(dims, at::TensorOptions(type));
    p.seed = inputs_[inputs_.size() - 2].argument.scalar_bits;
    p.offset = inputs_.back().argument.scalar_bits;
    Fill(p, t);
    return t;
  }
  at::Tensor Uniform(c10::ScalarType type) const { return Make({Draw::kUniform}, type); }
  at::Tensor Integers(int64_t low, int64_t high) const {
    Parameters p{Draw::kIntegers};
    p.low = static_cast<uint64_t>(low);
    p.range = std::max(static_cast<uint64_t>(high) - p.low, uint64_t{1});  // [INT64_MAX, INT64_MAX) is that number
    p.reciprocal = UINT64_MAX / p.range;
    return Make(p, c10::kLong);
  }
  // The variance of complex numbers is that of their two parts together; a mean that is a number is both parts'.
  at::Tensor Normal(size_t mean, size_t std) const {
    if (!IsComplex(result_type()) && !IsTensor(mean) && !IsTensor(std)) {
      return Drawn({Draw::kNormal, 24, Number(mean, 0), Number(std, 1)});
    }
    at::Tensor z = Drawn({Draw::kNormal});
    at::Tensor parts = z.is_complex() ? at::view_as_real(z) : z;
    if (z.is_complex()) parts.mul_(M_SQRT1_2);
    const at::Tensor deviation =
        IsTensor(std) ? TensorAt(std).to(draw_type()) : at::Tensor(parts.new_full({}, Number(std, 1)));
    TORCH_CHECK(deviation.ge(0).all().item<bool>(), "normal expects all elements of std >= 0.0");
    z.mul_(deviation);
    if (!IsTensor(mean)) {
      parts.add_(parts.new_full({}, Number(mean, 0)));
    } else {
      z.add_(TensorAt(mean).to(z.scalar_type()));
    }
    return z;
  }
  at::Tensor Drawn(const Parameters& p) const { return Make(p, draw_type()); }
  Results Dropout() const;
  at::Tensor Multinomial() const;
  Results Bernoulli(const at::Tensor& p, c10::ScalarType type) const;
  Results BernoulliOfArgument() const;  // the second

  const Call& call_;
  const absl::Span<const KernelInput> inputs_;
  const absl::FunctionRef<at::Tensor(int)> tensor_;
};

Results PhiloxCall::Dropout() const {  // (x, p, train) -> y, mask
  const at::Tensor x = TensorAt(0);
  if (Number(2, 1) == 0) return {x, at::ones(x.sizes(), at::kBool)};
  const c10::ScalarType type = draw_type();
  const bool wide = type == c10::kDouble;
  const double p = Number(1, 0.5);
  const double keep = wide ? 1 - p : 1 - static_cast<float>(p);
  const double scale = keep == 0 ? 0 : wide ? 1 / keep : 1 / static_cast<float>(keep);
  const at::Tensor mask = Uniform(type) < keep;
  return {at::where(mask, x.to(type) * scale, at::zeros({}, type)), mask};
}

at::Tensor PhiloxCall::Multinomial() const {  // (p, count, replacement)
  const at::Tensor p = TensorAt(0).to(TensorAt(0).scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat);
  const int64_t count = call_.results[0].dims.back();
  const bool replaced = Number(2, 0) != 0 && count > 1;
  TORCH_CHECK(p.ge(0).logical_and_(p.lt(std::numeric_limits<double>::infinity())).all().item<bool>(),
              !replaced                    ? "probability tensor contains either `inf`, `nan` or element < 0"
              : p.lt(0).any().item<bool>() ? "invalid multinomial distribution (encountering probability entry < 0)"
                                           : "invalid multinomial distribution (encountering probability entry = "
                                             "infinity or NaN)");
  TORCH_CHECK(p.sum(-1).gt(0).all().item<bool>(), "invalid multinomial distribution (sum of probabilities <= 0)");
  if (replaced) {  // as in compiled code
    const at::Tensor sums = p.div(p.amax(-1, true)).mul_(kWholeProbability).to(c10::kLong).cumsum(-1),
                     total = sums.narrow(-1, -1, 1);
    const at::Tensor drawn = Uniform(c10::kDouble).mul_(total.to(c10::kDouble)).to(c10::kLong);
    return at::searchsorted(sums, at::minimum(drawn, total - 1), /*out_int32=*/false, /*right=*/true);
  }
  const double least = LeastExponential(p.scalar_type() == c10::kDouble ? DType::kFloat64 : DType::kFloat32);
  const at::Tensor drawn = MakeOf(p.sizes(), {Draw::kExponential, 24, least}, p.scalar_type());
  if (count == 1) return p.div(drawn).argmax(-1, true);
  return std::get<1>(p.div(drawn).sort(/*stable=*/true, -1, /*descending=*/true)).narrow(-1, 0, count).contiguous();
}

Results PhiloxCall::Bernoulli(const at::Tensor& p, c10::ScalarType type) const {
  TORCH_CHECK(p.ge(0).logical_and_(p.le(1)).all().item<bool>(),
              "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
  return {Uniform(type) < p.to(type)};
}

Results PhiloxCall::BernoulliOfArgument() const {
  if (IsTensor(1)) return Bernoulli(TensorAt(1), draw_type());
  const double p = Number(1, 0.5);
  return {Uniform(draw_type()) < (draw_type() == c10::kDouble ? p : static_cast<float>(p))};
}

const PhiloxCall::Operators& PhiloxCall::Known() {
  using C = const PhiloxCall&;
  const auto normal = [](C c) -> Results { return {c.Normal(1, 2)}; };
  const auto normal_of_tensors = [](C c) -> Results { return {c.Normal(0, 1)}; };
  const auto bernoulli = [](C c) -> Results { return c.BernoulliOfArgument(); };
  static const auto* const known = new Operators{
      {"native_dropout", [](C c) -> Results { return c.Dropout(); }},
      {"multinomial", [](C c) -> Results { return {c.Multinomial()}; }},
      {"uniform",
       [](C c) -> Results {
         return {c.Drawn({Draw::kUniform, UniformBits(c.result_type()), c.Number(1, 0), c.Number(2, 1)})};
       }},
      {"normal_functional", normal},
      {"normal", normal},
      {"normal.Tensor_float", normal_of_tensors},
      {"normal.float_Tensor", normal_of_tensors},
      {"normal.Tensor_Tensor", normal_of_tensors},
      {"exponential",
       [](C c) -> Results {
         return {c.Drawn({Draw::kExponential, 24, LeastExponential(c.result_type()), c.Number(1, 1)})};
       }},
      {"log_normal", [](C c) -> Results { return {c.Drawn({Draw::kLogNormal, 24, c.Number(1, 1), c.Number(2, 2)})}; }},
      {"cauchy", [](C c) -> Results { return {c.Drawn({Draw::kCauchy, 24, c.Number(1, 0), c.Number(2, 1)})}; }},
      {"geometric",
       [](C c) -> Results {
         const at::Tensor logarithm = c.Uniform(c10::kDouble).neg_().add_(1).log_();
         return {logarithm.div_(std::log1p(-c.Number(1, 0))).ceil_().clamp_min_(1)};
       }},
      {"random.from", [](C c) -> Results { return {c.Integers(c.Integer(1, 0), c.Integer(2, c.FullRange()))}; }},
      {"random.to", [](C c) -> Results { return {c.Integers(0, c.Integer(1, 0))}; }},
      {"random", [](C c) -> Results { return {c.Integers(0, c.FullRange())}; }},
      {"bernoulli",
       [](C c) -> Results {  // of the operand
         const at::Tensor p = c.TensorAt(0);
         return c.Bernoulli(p, p.scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat);
       }},
      {"bernoulli.p", bernoulli},
      {"bernoulli.float", bernoulli},
      {"bernoulli.Tensor", bernoulli},
  };
  return *known;
}

// "aten::bernoulli_.float" -> "bernoulli.float": in-place operators mean what their functional forms mean.
std::string Plain(const Call& call) {
  std::string op = call.op.starts_with("aten::") ? call.op.substr(6) : "";
  const size_t end = std::min(op.find('.'), op.size());
  if (end > 0 && op[end - 1] == '_') op.erase(end - 1, 1);
  return op;
}

}  // namespace

bool DrawsPhilox(const Call& call) { return PhiloxCall::Known().contains(Plain(call)); }

std::vector<at::Tensor> DrawPhilox(const Call& call, absl::Span<const KernelInput> inputs,
                                   absl::FunctionRef<at::Tensor(int operand)> tensor) {
  return PhiloxCall::Known().at(Plain(call))(PhiloxCall(call, inputs, tensor));
}

}  // namespace tpu
