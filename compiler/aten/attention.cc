// Scaled dot-product attention as products and a softmax, [batch, heads, length, width], without dropout. Forward also
// gives the row logarithm of the sum of exponentials, from which backward rebuilds the weights.
#include <algorithm>
#include <cmath>

#include "compiler/aten/families.h"
#include "compiler/aten/maths.h"
#include "compiler/aten/registry.h"
#include "llvm/Support/MathExtras.h"

namespace tpu::aten {
namespace {

using ir::Triangle;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Attention {
  Tensor query, key, value, bias;  // bias: added to the scores, or a mask of bools; may be empty
  Tensor scale;                    // a number
  bool causal = false;             // a query sees the keys up to its own number
  int64_t first = 0;               // the number of its first query
};

int64_t Heads(Tensor x) {
  int64_t heads = 1;
  for (int64_t size : x.dims().drop_back(2)) heads *= size;
  return heads;
}
Shape Batch(Tensor x) {
  Shape batch;
  for (int64_t d = 0; d < x.rank() - 2; ++d) batch.push_back(d);
  return batch;
}

// a @ b over the last two dims.
Tensor Product(Tensor a, Tensor b, DType result, Triangle triangle) {
  return ir::Dot(a, b, Batch(a), Batch(b), {a.rank() - 1}, {b.rank() - 2}, result, triangle);
}
// a @ b.T
Tensor ProductTransposed(Tensor a, Tensor b, DType result, Triangle triangle, bool again = false) {
  return ir::Dot(a, b, Batch(a), Batch(b), {a.rank() - 1}, {b.rank() - 1}, result, triangle, again);
}
// a.T @ b
Tensor TransposedProduct(Tensor a, Tensor b, DType result, Triangle triangle) {
  return ir::Dot(a, b, Batch(a), Batch(b), {a.rank() - 2}, {b.rank() - 2}, result, triangle);
}

// [length of the queries, of the keys]: which keys a query sees.
Tensor Visible(const Attention& a) {
  Emitter& e = a.query.emitter();
  Shape matrix{a.query.size(-2), a.key.size(-2)};
  Tensor number = e.Iota(DType::kInt32, matrix, 0);
  if (a.first > 0) number = number + a.first;
  return e.Iota(DType::kInt32, matrix, 1) <= number;
}
// What is known of products whose result, or whose left side, only has what is visible.
bool IsTriangular(const Attention& a) { return a.causal && a.first == 0; }
Triangle ResultOf(const Attention& a) { return IsTriangular(a) ? Triangle::result_lower : Triangle::none; }
Triangle LeftOf(const Attention& a) { return IsTriangular(a) ? Triangle::lhs_lower : Triangle::none; }
Triangle TurnedLeftOf(const Attention& a) { return IsTriangular(a) ? Triangle::lhs_upper : Triangle::none; }

// So many scores of a head are not kept from forward to backward where both are in one fragment, but computed again.
// The embedded device has a part of a head's queries at a time and adds up what these give keys and values: in wide
// sums. Of sizes that change they are taken to be many at the largest.
constexpr int64_t kManyScores = 1 << 19;
bool HasManyScores(AtenCall& c, const Attention& a) {
  return c.host_kernels() && (c.open_sizes() || a.query.size(-2) * a.key.size(-2) > kManyScores);
}

Tensor Scores(const Attention& a, bool again = false) {
  Emitter& e = a.query.emitter();
  DType compute = OpMath(a.query.dtype());
  Tensor scores = ProductTransposed(a.query, a.key, compute, ResultOf(a), again) * ir::Convert(a.scale, compute);
  if (a.bias) {
    scores = a.bias.dtype() == DType::kBool ? ir::Select(a.bias, scores, e.Constant(compute, -kInfinity))
                                            : scores + ir::Convert(a.bias, compute);
  }
  if (a.causal) scores = ir::Select(Visible(a), scores, e.Constant(compute, -kInfinity));
  return scores;
}

Tensor DefaultScale(AtenCall& c, int scale, Tensor query) {
  DType compute = OpMath(query.dtype());
  return c.as(scale, compute, 1.0 / std::sqrt(static_cast<double>(query.size(-1))));
}

// Scores of a block of queries, one after the other: a device that has them all in memory (any but the embedded one,
// whose tiles never do) runs out of it, a TPU v5e at 16 thousand queries of 12 heads. Each block costs compiling time.
constexpr int64_t kMostScores = 1 << 28, kMostBlocks = 32;
constexpr int64_t kQueriesTogether = 128;  // what devices multiply at once
// Of causal attention the embedded device leaves out what no query of a block sees: of eight blocks, 7/16 of the
// scores. In blocks, too, are those of so few heads that their sums over queries leave threads without work where these
// are in tiles.
constexpr int64_t kLeastQueriesOfHost = 256, kMostBlocksOfHost = 8, kFewHeads = 8;

// The queries [begin, end) of each block. sums: of what they give keys and values.
struct Queries {
  int64_t begin, end;
};
llvm::SmallVector<Queries> BlocksOf(AtenCall& c, const Attention& a, bool sums) {
  const int64_t queries = a.query.size(-2), heads = Heads(a.query);
  int64_t blocks = 1;
  if (!c.host_kernels()) {
    blocks = std::clamp<int64_t>(llvm::divideCeil(heads * queries * a.key.size(-2), kMostScores), 1, kMostBlocks);
  } else if (!c.open_sizes() && HasManyScores(c, a) && (a.causal || (sums && heads < kFewHeads))) {
    blocks = std::clamp<int64_t>(queries / kLeastQueriesOfHost, 1, kMostBlocksOfHost);
  }
  const int64_t step = blocks == 1 ? queries : llvm::alignTo(llvm::divideCeil(queries, blocks), kQueriesTogether);
  llvm::SmallVector<Queries> all;
  for (int64_t begin = 0; begin < queries; begin += step) all.push_back({begin, std::min(begin + step, queries)});
  return all;
}

// The queries [begin, end) beside the keys that some of them sees.
Attention Block(const Attention& a, int64_t begin, int64_t end) {
  const int64_t keys = a.causal ? std::min(a.key.size(-2), a.first + end) : a.key.size(-2);
  Attention block = a;
  block.query = ir::SliceDim(a.query, -2, begin, end);
  block.key = ir::SliceDim(a.key, -2, 0, keys);
  block.value = ir::SliceDim(a.value, -2, 0, keys);
  block.first = a.first + begin;
  if (a.bias && a.bias.rank() > 0 && a.bias.size(-1) != 1) block.bias = ir::SliceDim(block.bias, -1, 0, keys);
  if (a.bias && a.bias.rank() > 1 && a.bias.size(-2) != 1) block.bias = ir::SliceDim(block.bias, -2, begin, end);
  return block;
}

struct Forward {
  Tensor output, logsumexp;
};
Forward RunBlock(const Attention& a) {
  Tensor scores = Scores(a);
  int64_t last = scores.rank() - 1;
  Tensor greatest = ir::Reduce(ir::ReduceKind::max, scores, {last}, true);
  Tensor shift = ir::Select(ir::Eq(greatest, -kInfinity), 0, greatest);
  Tensor e = ir::Exp(scores - shift), sum = ir::Sum(e, {last}, true);
  Tensor weights = e * ir::Select(ir::Eq(sum, 0), 0, 1 / sum);
  DType stored = a.value.dtype();
  Tensor output = Product(ir::Convert(weights, stored), a.value, stored, LeftOf(a));
  Shape rows(scores.dims().drop_back());
  // As the CPU has it: 0 of rows that see nothing.
  Tensor logsumexp = ir::Select(ir::Eq(sum, 0), 0, ir::Log(sum) + shift);
  return {output, ir::Reshape(logsumexp, rows)};
}
Forward Run(AtenCall& c, const Attention& a) {
  const llvm::SmallVector<Queries> blocks = BlocksOf(c, a, /*sums=*/false);
  if (blocks.size() <= 1) return RunBlock(a);
  llvm::SmallVector<Tensor> outputs, logsumexps;
  for (auto [begin, end] : blocks) {
    Forward block = RunBlock(Block(a, begin, end));
    outputs.push_back(block.output);
    logsumexps.push_back(block.logsumexp);
  }
  return {ir::Concat(outputs, outputs[0].rank() - 2), ir::Concat(logsumexps, logsumexps[0].rank() - 1)};
}

struct Gradients {
  Tensor query, key, value, scores;  // of key and value in `sums`
};
// again: scores are computed again.
Gradients DifferentiateBlock(const Attention& a, Tensor dy, Tensor output, Tensor logsumexp, DType sums,
                             bool again = false) {
  DType compute = OpMath(a.query.dtype()), stored = a.query.dtype();
  Tensor scores = Scores(a, again);
  Tensor row = ir::Unsqueeze(ir::Convert(logsumexp, compute), -1);
  Tensor weights = ir::Exp(scores - row);  // zero in rows that see nothing, whose sum counts as 1
  Tensor rounded = ir::Convert(weights, stored), wide_dy = ir::Convert(dy, compute);
  Tensor delta = ir::Sum(wide_dy * ir::Convert(output, compute), {dy.rank() - 1}, true);
  Tensor dscores = weights * (ProductTransposed(dy, a.value, compute, ResultOf(a)) - delta);
  if (a.causal) dscores = ir::Select(Visible(a), dscores, 0);
  Tensor scaled = ir::Convert(dscores * ir::Convert(a.scale, compute), stored);
  return {Product(scaled, a.key, stored, LeftOf(a)), TransposedProduct(scaled, a.query, sums, TurnedLeftOf(a)),
          TransposedProduct(rounded, dy, sums, TurnedLeftOf(a)), dscores};
}
// `scores`: their gradient is wanted, too, which is as large as they are.
Gradients Differentiate(AtenCall& c, const Attention& a, Tensor dy, Tensor output, Tensor logsumexp, bool scores) {
  const DType stored = a.query.dtype(), sums = OpMath(stored);
  const int64_t keys = a.key.size(-2);
  const bool many = HasManyScores(c, a);
  const llvm::SmallVector<Queries> blocks = BlocksOf(c, a, /*sums=*/true);
  if (blocks.size() <= 1 || scores) {
    Gradients g = DifferentiateBlock(a, dy, output, logsumexp, many ? sums : stored, many);
    return {g.query, ir::Convert(g.key, stored), ir::Convert(g.value, stored), g.scores};
  }
  const auto add = [&](Tensor& sum, Tensor part) {
    Shape none(part.rank(), 0), behind = none;
    behind[part.rank() - 2] = keys - part.size(-2);
    part = ir::Pad(part, 0, none, behind);
    sum = sum ? sum + part : part;
  };
  llvm::SmallVector<Tensor> query;
  Tensor key, value;
  for (auto [begin, end] : blocks) {
    Gradients block =
        DifferentiateBlock(Block(a, begin, end), ir::SliceDim(dy, -2, begin, end), ir::SliceDim(output, -2, begin, end),
                           ir::SliceDim(logsumexp, -1, begin, end), sums, many);
    query.push_back(block.query);
    add(key, block.key);
    add(value, block.value);
  }
  return {ir::Concat(query, query[0].rank() - 2), ir::Convert(key, stored), ir::Convert(value, stored), Tensor()};
}

// Heads of the queries for each head of the keys, [batch, heads, length, width].
int64_t Group(Tensor query, Tensor key) {
  const bool grouped = query.rank() == 4 && key.rank() == 4 && key.size(1) > 0 && query.size(1) % key.size(1) == 0;
  return grouped ? query.size(1) / key.size(1) : 1;
}
// Keys or values repeated for every head of their group, and back: the sum of what the group's heads give.
Tensor Spread(Tensor x, int64_t group) {
  if (group == 1) return x;
  Tensor repeated = ir::BroadcastTo(ir::Unsqueeze(x, 2), {x.size(0), x.size(1), group, x.size(2), x.size(3)});
  return ir::Reshape(repeated, {x.size(0), x.size(1) * group, x.size(2), x.size(3)});
}
Tensor Gather(Tensor x, int64_t group) {
  if (group == 1) return x;
  return ir::Sum(ir::Reshape(x, {x.size(0), x.size(1) / group, group, x.size(2), x.size(3)}), {2}, false);
}

// Equal shapes, and no dropout that a number of the fragment might turn on.
bool Supported(AtenCall& c, const Attention& a, int dropout) {
  bool no_dropout = !c.has(dropout) || (c.is_static(dropout) && c.real(dropout) == 0);
  return no_dropout && Batch(a.query) == Batch(a.key) && a.query.dims().drop_back(2) == a.key.dims().drop_back(2) &&
         a.query.dtype() == a.key.dtype() && a.key.dtype() == a.value.dtype();
}

// Summed over the dims that a bias of these dims was broadcast along.
Tensor SumTo(Tensor x, Ints dims) {
  Shape along;
  int64_t lead = x.rank() - static_cast<int64_t>(dims.size());
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (d < lead || (dims[d - lead] == 1 && x.size(d) != 1)) along.push_back(d);
  }
  return ir::Reshape(ir::Sum(x, along, true), dims);
}

// (q, k, v, bias, dropout, causal, debug_mask; scale) -> output, logsumexp, and empty or unused bookkeeping
Result Overrideable(AtenCall& c) {
  Attention a{c.tensor(0), c.tensor(1), c.tensor(2), c.optional(3), DefaultScale(c, 7, c.tensor(0)), c.boolean(5)};
  if (!Supported(c, a, 4)) return Result::Decline();
  Forward f = Run(c, a);
  llvm::SmallVector<Tensor> results{f.output, f.logsumexp};
  for (size_t i = 2; i < c.num_results(); ++i) {
    results.push_back(c.emitter().Constant(c.result_dtype(i), 0, c.result_dims(i)));
  }
  return results;
}

// (dy, q, k, v, bias, mask, out, logsumexp, cum_q, cum_k, max_q, max_k, dropout, causal, seed, offset; scale)
Result OverrideableBackward(AtenCall& c) {
  Attention a{c.tensor(1), c.tensor(2), c.tensor(3), c.optional(4), DefaultScale(c, 16, c.tensor(1)), c.boolean(13)};
  if (!Supported(c, a, 12)) return Result::Decline();
  const bool of_bias =
      c.num_results() == 4 && a.bias && a.bias.dtype() != DType::kBool && c.result_dims(3) == a.bias.dims();
  Gradients g = Differentiate(c, a, c.tensor(0), c.tensor(6), c.tensor(7), of_bias);
  llvm::SmallVector<Tensor> results{g.query, g.key, g.value};
  if (c.num_results() == 4) {
    results.push_back(of_bias ? SumTo(g.scores, a.bias.dims())
                              : c.emitter().Constant(c.result_dtype(3), 0, c.result_dims(3)));
  }
  return results;
}

// (q, k, v, dropout, causal; mask, scale) -> output, logsumexp
Result FlashForCpu(AtenCall& c) {
  const int64_t group = Group(c.tensor(0), c.tensor(1));
  Attention a{c.tensor(0),   Spread(c.tensor(1), group),      Spread(c.tensor(2), group),
              c.optional(5), DefaultScale(c, 6, c.tensor(0)), c.boolean(4)};
  if (!Supported(c, a, 3)) return Result::Decline();
  Forward f = Run(c, a);
  return {f.output, f.logsumexp};
}

// (dy, q, k, v, out, logsumexp, dropout, causal; mask, scale)
Result FlashForCpuBackward(AtenCall& c) {
  const int64_t group = Group(c.tensor(1), c.tensor(2));
  Attention a{c.tensor(1),   Spread(c.tensor(2), group),      Spread(c.tensor(3), group),
              c.optional(8), DefaultScale(c, 9, c.tensor(1)), c.boolean(7)};
  if (!Supported(c, a, 6)) return Result::Decline();
  Gradients g = Differentiate(c, a, c.tensor(0), c.tensor(4), c.tensor(5), false);
  return {g.query, Gather(g.key, group), Gather(g.value, group)};
}

}  // namespace

void RegisterAttention(Registry& r) {
  r.Add("aten::_scaled_dot_product_fused_attention_overrideable", Overrideable, kStaticScalars | kProducts);
  r.Add("aten::_scaled_dot_product_fused_attention_overrideable_backward", OverrideableBackward,
        kStaticScalars | kProducts);
  r.Add("aten::_scaled_dot_product_flash_attention_for_cpu", FlashForCpu, kStaticScalars | kProducts);
  r.Add("aten::_scaled_dot_product_flash_attention_for_cpu_backward", FlashForCpuBackward, kStaticScalars | kProducts);
}

}  // namespace tpu::aten
