// Random numbers from Philox4x32-10, counter-based: the same numbers in every mode, tier, cut and device.
//
// The dispatcher appends two scalar operands to every random operator: seed (i64) and offset (i64), after those of the
// schema's arguments. Element i (row-major) of a 32-bit draw is word i % 4 of the block at counter offset + i / 4. A
// draw of n elements uses at most n counters, so the generator's offset advances by the number of elements drawn.
//   uniform f32: the top 24 bits of a word times 2^-24, in [0, 1) (f16: 11 bits, bf16: 8); f64: 53 bits of two words.
//   normal: Box-Muller of two uniforms, the first taken in (0, 1].
#include <cmath>
#include <limits>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"
#include "runtime/draws.h"

namespace tpu::aten {
namespace {

// The top `bits` bits of signless 32-bit words, as non-negative numbers of `dtype`.
Tensor TopBits(Tensor words, int bits, DType dtype) {
  Emitter& e = words.emitter();
  Tensor top = ir::Shr(ir::Bitcast(words, DType::kUInt32), e.Integer(DType::kUInt32, 32 - bits));
  return ir::Convert(ir::Bitcast(top, DType::kInt32), dtype);
}

// `count` independent draws in [0, 1) for each element, f32 or f64, as a list.
llvm::SmallVector<Tensor> Uniforms(AtenCall& c, DType dtype, int64_t count, Ints dims, int bits = 24) {
  Emitter& e = c.emitter();
  int64_t words_each = dtype == DType::kFloat64 ? 2 : 1;
  Shape drawn(dims);
  if (count * words_each > 1) drawn.push_back(count * words_each);
  Tensor words = e.RandomBits(c.seed(), c.offset(), drawn);
  auto word = [&](int64_t k) {
    return count * words_each == 1 ? words : ir::Reshape(ir::SliceDim(words, -1, k, k + 1), dims);
  };
  llvm::SmallVector<Tensor> draws;
  for (int64_t k = 0; k < count; ++k) {
    if (words_each == 1) {
      draws.push_back(TopBits(word(k), bits, dtype) * std::ldexp(1.0, -bits));
    } else {
      Tensor high = TopBits(word(2 * k), 27, dtype), low = TopBits(word(2 * k + 1), 26, dtype);
      draws.push_back((high * 0x1p26 + low) * 0x1p-53);
    }
  }
  return draws;
}

DType DrawType(AtenCall& c) { return RealOf(c.result_dtype()) == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

// Of complex results two draws an element: the parts.
Shape DrawnDims(AtenCall& c) {
  Shape dims(c.result_dims());
  if (IsComplex(c.result_dtype())) dims.push_back(2);
  return dims;
}
Tensor Numbers(AtenCall& c, Tensor drawn) {
  if (!IsComplex(c.result_dtype())) return drawn;
  const auto part = [&](int64_t k) { return ir::Reshape(ir::SliceDim(drawn, -1, k, k + 1), c.result_dims()); };
  return ir::Complex(part(0), part(1));
}

Tensor Uniform(AtenCall& c) { return Uniforms(c, DrawType(c), 1, DrawnDims(c), UniformBits(c.result_dtype()))[0]; }

// The variance of complex numbers is that of their two parts together.
Tensor Normal(AtenCall& c) {
  llvm::SmallVector<Tensor> u = Uniforms(c, DrawType(c), 2, DrawnDims(c));
  Tensor z = ir::Sqrt(-2.0 * ir::Log(1.0 - u[0])) * ir::Cos(u[1] * (2 * M_PI));
  return IsComplex(c.result_dtype()) ? z * M_SQRT1_2 : z;
}

// 1 with probability p, which tensors are only known to be when they are there.
Tensor Bernoulli(AtenCall& c, Tensor p, bool given) {
  if (given) p = ir::Require(p, ir::Ge(p, 0) & ir::Le(p, 1));
  Tensor u = Uniforms(c, p.dtype(), 1, c.result_dims())[0];
  return u < p;
}

Result Dropout(AtenCall& c) {  // (x, p, train) -> y, mask
  Tensor x = In(c, 0);
  if (!c.boolean(2, true)) return {x, c.emitter().Constant(DType::kBool, 1, x.dims())};
  DType dtype = DrawType(c);
  Tensor keep = 1.0 - c.as(1, dtype);
  Tensor mask = Uniforms(c, dtype, 1, x.dims())[0] < keep;
  Tensor scale = ir::Select(ir::Eq(keep, 0), 0, 1.0 / keep);
  return {ir::Select(mask, x * ir::Convert(scale, x.dtype()), 0), mask};
}

// Integers in [low, high): 64 random bits modulo the range, up to 2^64 - 1 (its bias is below range / 2^64).
Result RandomIntegers(AtenCall& c, Tensor low, Tensor high) {
  Shape drawn(c.result_dims());
  drawn.push_back(2);
  Tensor words = c.emitter().RandomBits(c.seed(), c.offset(), drawn);
  Tensor bits = ir::Reshape(ir::Bitcast(words, DType::kUInt64), c.result_dims());
  Tensor range = ir::Max(ir::Bitcast(high - low, DType::kUInt64), 1);  // [INT64_MAX, INT64_MAX) is that number
  return ir::Bitcast(ir::Rem(bits, range), DType::kInt64) + low;
}

Tensor FullRange(AtenCall& c) { return c.emitter().Integer(DType::kInt64, IntegersEnd(c.result_dtype())); }

Result RandomFrom(AtenCall& c) {  // (x, from, to)
  Tensor high = c.has(2) ? c.as(2, DType::kInt64) : FullRange(c);
  return RandomIntegers(c, c.as(1, DType::kInt64), high);
}

// The first category up to which the probabilities, as whole numbers, sum to more than what is drawn.
Tensor Replaced(AtenCall& c, Tensor p) {
  const int64_t dim = p.rank() - 1, n = p.size(dim);
  const Tensor scaled = p / ir::Reduce(ir::ReduceKind::max, p, {dim}, true);
  const Tensor sums = ir::Scan(ir::ReduceKind::sum, ir::Convert(scaled * kWholeProbability, DType::kInt64), dim);
  const Tensor total = ir::SliceDim(sums, dim, n - 1, n), u = Uniforms(c, DType::kFloat64, 1, c.result_dims())[0];
  const Tensor drawn = ir::Convert(u * ir::Convert(total, DType::kFloat64), DType::kInt64);
  return PlacesIn(sums, ir::Min(drawn, total - 1), /*right=*/true);
}

// Without replacement, or one: where the quotients of the probabilities and independent exponential numbers are
// greatest (as at::multinomial draws them).
Result Multinomial(AtenCall& c) {  // (p, count, replacement)
  const int64_t count = c.result_dims().back();
  Tensor p = c.as(0, c.tensor(0).dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32);
  const int64_t dim = p.rank() - 1;
  p = ir::Require(p, ir::Ge(p, 0) & ir::Lt(p, std::numeric_limits<double>::infinity()));
  p = ir::Require(p, ir::BroadcastTo(ir::Gt(ir::Sum(p, {dim}, true), 0), p.dims()));
  if (c.boolean(2) && count > 1) return Replaced(c, p);
  Tensor u = Uniforms(c, p.dtype(), 1, p.dims())[0];
  Tensor quotients = p / ir::Max(-ir::Log(1.0 - u), LeastExponential(p.dtype()));
  if (count == 1) return ir::Reshape(ir::ArgReduce(ir::ExtremumKind::max, quotients, dim), c.result_dims());
  return ir::SliceDim(ir::Sort(quotients, dim, true).second, dim, 0, count);
}

// The order of 64 random bits each. (A device with host kernels has the CPU's, which draws other numbers.)
Result Permutation(AtenCall& c) {  // (n, _, out)
  const int64_t n = c.result_dims()[0];
  const Tensor bits = ir::Bitcast(c.emitter().RandomBits(c.seed(), c.offset(), {n, 2}), DType::kInt64);
  return ir::Sort(Flat(bits), 0, /*descending=*/false).second;
}

// How many trials of probability p one takes, itself counted.
Result Geometric(AtenCall& c) {  // (x, p)
  const Tensor u = Uniforms(c, DType::kFloat64, 1, c.result_dims())[0];
  return ir::Max(ir::Ceil(ir::Log(1.0 - u) / ir::Log1p(-c.as(1, DType::kFloat64))), 1);
}

}  // namespace

void RegisterRandom(Registry& r) {
  r.Add(
      "aten::uniform",
      [](AtenCall& c) -> Result {  // (x, from, to)
        Tensor u = Uniform(c), from = c.as(1, u.dtype(), 0), to = c.as(2, u.dtype(), 1);
        return Numbers(c, u * (to - from) + from);
      },
      kComplexToo);
  r.Add(
      {"aten::normal_functional", "aten::normal"},
      [](AtenCall& c) -> Result {  // (x, mean, std)
        Tensor z = Normal(c);
        return Numbers(c, z * c.as(2, z.dtype(), 1) + c.as(1, z.dtype(), 0));
      },
      kComplexToo);
  r.Add({"aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor"},
        [](AtenCall& c) -> Result {  // (mean, std)
          Tensor z = Normal(c), deviation = c.as(1, z.dtype(), 1);
          return z * ir::Require(deviation, ir::Ge(deviation, 0)) + c.as(0, z.dtype());
        });
  r.Add({"aten::rand", "aten::rand_like"}, [](AtenCall& c) -> Result { return Numbers(c, Uniform(c)); }, kComplexToo);
  r.Add({"aten::randn", "aten::randn_like"}, [](AtenCall& c) -> Result { return Numbers(c, Normal(c)); }, kComplexToo);
  r.Add("aten::bernoulli", [](AtenCall& c) -> Result { return Bernoulli(c, In(c, 0), true); });
  r.Add({"aten::bernoulli.p", "aten::bernoulli.float"},
        [](AtenCall& c) -> Result { return Bernoulli(c, c.as(1, DrawType(c), 0.5), false); });
  r.Add("aten::bernoulli.Tensor", [](AtenCall& c) -> Result { return Bernoulli(c, c.as(1, DrawType(c), 0.5), true); });
  r.Add("aten::exponential", [](AtenCall& c) -> Result {  // (x, lambda)
    Tensor u = Uniforms(c, DrawType(c), 1, c.result_dims())[0];
    return ir::Max(-ir::Log(1.0 - u), LeastExponential(c.result_dtype())) / c.as(1, u.dtype(), 1);
  });
  r.Add("aten::log_normal", [](AtenCall& c) -> Result {
    Tensor z = Normal(c);
    return ir::Exp(z * c.as(2, z.dtype(), 2) + c.as(1, z.dtype(), 1));
  });
  r.Add("aten::cauchy", [](AtenCall& c) -> Result {
    Tensor u = Uniforms(c, DrawType(c), 1, c.result_dims())[0];
    Tensor tangent = ir::Tan(ir::Convert((u - 0.5) * M_PI, DType::kFloat64));
    return ir::Convert(tangent, u.dtype()) * c.as(2, u.dtype(), 1) + c.as(1, u.dtype(), 0);
  });
  r.Add("aten::geometric", Geometric);
  r.Add("aten::multinomial", Multinomial);
  r.Add("aten::randperm.generator_out", Permutation, kHostKernelFirst);
  r.Add("aten::native_dropout", Dropout);
  r.Add("aten::native_dropout_backward", [](AtenCall& c) -> Result {  // (dy, mask, scale)
    Tensor dy = In(c, 0);
    return dy * ir::Convert(c.tensor(1), dy.dtype()) * c.as(2, dy.dtype());
  });
  r.Add("aten::random.from", RandomFrom);
  r.Add("aten::random.to", [](AtenCall& c) -> Result {
    return RandomIntegers(c, c.emitter().Integer(DType::kInt64, 0), c.as(1, DType::kInt64));
  });
  r.Add("aten::random",
        [](AtenCall& c) -> Result { return RandomIntegers(c, c.emitter().Integer(DType::kInt64, 0), FullRange(c)); });
}

}  // namespace tpu::aten
