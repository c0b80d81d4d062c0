// Attention over sequences that lie one after another (torch.nn.attention.varlen), by the operator of scaled
// dot-product attention that the compiler knows: over each sequence, padded to the longest one, for which elements are
// gathered there and back; or over all tokens at once, where that is fewer scores. Nothing is read.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <limits>
#include <optional>
#include <tuple>
#include <vector>

namespace tpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows of places that attend to each other: one for each sequence, or one of all tokens as they lie.
struct Packing {
  Tensor tokens;    // (rows, places): of a place behind the sequence's end, any; none: there is one row of them all
  Tensor places;    // (tokens), likewise
  Tensor stray;     // (tokens): whether it is of no sequence
  Tensor inside;    // (rows, places): whether that is of a sequence, and its keys are used
  Tensor from_end;  // (rows, places): how far from what is used of the sequence, -1 for the last
  Tensor sequence;  // (places): whose, in one row
};

Packing Pack(const Tensor& bounds, const OptionalTensor& used, int64_t longest, int64_t tokens, bool together) {
  const Tensor wide = bounds.to(at::kLong), starts = wide.slice(0, 0, -1), ends = wide.slice(0, 1);
  const Tensor lengths = used ? used->to(at::kLong) : ends - starts;
  const Tensor token = at::arange(tokens, wide.options());
  const Tensor ended = token.unsqueeze(1).ge(ends).sum(1), sequence = ended.clamp_max(ends.size(0) - 1);
  const Tensor place = token - starts.index_select(0, sequence);
  const Tensor stray = ended.ge(ends.size(0)).logical_or(place.lt(0));
  if (together) {
    const Tensor from_end = place - lengths.index_select(0, sequence);
    return {{},      {}, stray, from_end.lt(0).logical_and(stray.logical_not()).unsqueeze(0), from_end.unsqueeze(0),
            sequence};
  }
  const Tensor padded = at::arange(longest, wide.options()), from_end = padded - lengths.unsqueeze(1);
  return {(starts.unsqueeze(1) + padded).clamp(0, tokens - 1),
          sequence * longest + place.clamp(0, longest - 1),
          stray,
          from_end.lt(0),
          from_end,
          {}};
}

// The pages that hold a sequence's keys are listed in its row of the table.
Packing PackPages(const Tensor& table, const Tensor& used, int64_t longest, int64_t page) {
  const Tensor wide = table.to(at::kLong);
  const Tensor place = at::arange(longest, wide.options());
  const Tensor pages = wide.index_select(1, place.floor_divide(page).clamp_max(table.size(1) - 1));
  const Tensor from_end = place - used.to(at::kLong).unsqueeze(1);
  return {pages * page + place.remainder(page), {}, {}, from_end.lt(0), from_end, {}};
}

// (tokens, heads, ..) -> (rows, heads of the queries, places, ..)
Tensor Padded(const Tensor& packed, const Packing& by, int64_t heads) {
  const Tensor rows = by.tokens.defined() ? packed.index_select(0, by.tokens.flatten()).unflatten(0, by.tokens.sizes())
                                          : packed.unsqueeze(0);
  const Tensor padded = rows.transpose(1, 2);
  return padded.size(1) == heads ? padded : padded.repeat_interleave(heads / padded.size(1), 1);
}

// (rows, heads, places, ..) -> (tokens, heads of the tokens, ..), of equal heads the sum; `nothing` for stray ones
Tensor Packed(const Tensor& padded, const Packing& by, int64_t heads, double nothing = 0) {
  const Tensor shared = padded.size(1) == heads ? padded : padded.unflatten(1, {heads, -1}).sum(2);
  const Tensor flat = shared.transpose(1, 2).flatten(0, 1);
  const Tensor packed = by.places.defined() ? flat.index_select(0, by.places) : flat;
  std::vector<int64_t> each(packed.dim(), 1);
  each[0] = packed.size(0);
  return packed.masked_fill(by.stray.view(each), nothing);
}

bool Nothing(const Tensor& query, const Tensor& key, int64_t longest_query, int64_t longest_key) {
  return query.numel() == 0 || key.numel() == 0 || longest_query == 0 || longest_key == 0;
}

struct Sequences {
  Packing queries, keys;
  Tensor query, key, value;  // padded
  bool causal = false;       // all that there is to say of what is seen; else:
  OptionalTensor mask;       // what is added to scores
  Tensor blind;              // (rows, 1, places of queries): sees nothing, or is of no sequence
};

Sequences Unpack(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& query_bounds,
                 const OptionalTensor& key_bounds, int64_t longest_query, int64_t longest_key, double dropout,
                 bool causal, std::optional<int64_t> left, std::optional<int64_t> right, const OptionalTensor& used,
                 const OptionalTensor& table) {
  TORCH_CHECK_NOT_IMPLEMENTED(query_bounds && (key_bounds || table) && dropout == 0,
                              "tpu: _flash_attention is for packed sequences without dropout; of others, "
                              "scaled_dot_product_attention does the same");
  TORCH_CHECK(query.dim() == 3 && key.sizes() == value.sizes() && key.dim() == (table ? 4 : 3),
              "Expected queries of (tokens, heads, width) and keys and values of one shape, got ", query.sizes(), ", ",
              key.sizes(), " and ", value.sizes());
  TORCH_CHECK(query.size(1) % key.size(-2) == 0, "Number of heads in key/value must divide number of heads in query");
  TORCH_CHECK(!table || used, "A block_table needs seqused_k");
  if (causal) right = 0;
  const bool from_left = left.value_or(-1) >= 0, to_right = right.value_or(-1) >= 0;
  Sequences all;
  // Each query sees those before it, of keys that are as many.
  all.causal =
      right == 0 && !from_left && !used && !table && longest_query == longest_key && query_bounds->is_same(*key_bounds);
  const double apart = static_cast<double>(query_bounds->size(0) - 1) * static_cast<double>(longest_query) *
                       static_cast<double>(longest_key) / (all.causal ? 2 : 1);
  const bool together = !table && static_cast<double>(query.size(0)) * static_cast<double>(key.size(0)) < apart;
  all.causal = all.causal && !together;

  const int64_t heads = query.size(1);
  all.queries = Pack(*query_bounds, {}, longest_query, query.size(0), together);
  all.keys = table ? PackPages(*table, *used, longest_key, key.size(1))
                   : Pack(*key_bounds, used, longest_key, key.size(0), together);
  all.query = Padded(query, all.queries, heads);
  all.key = Padded(table ? key.flatten(0, 1) : key, all.keys, heads);
  all.value = Padded(table ? value.flatten(0, 1) : value, all.keys, heads);
  all.blind = all.queries.inside.logical_not().unsqueeze(1);
  if (all.causal) return all;

  Tensor visible = all.keys.inside.unsqueeze(1);  // (rows, 1 or places of queries, places of keys)
  if (together) visible = visible.logical_and(all.queries.sequence.unsqueeze(1).eq(all.keys.sequence));
  // The last query is beside the last key.
  const Tensor distance = all.keys.from_end.unsqueeze(1) - all.queries.from_end.unsqueeze(2);
  if (to_right) visible = visible.logical_and(distance.le(*right));
  if (from_left) visible = visible.logical_and(distance.ge(-*left));
  all.mask = at::zeros({}, query.options()).masked_fill(visible.logical_not(), -kInfinity).unsqueeze(1);
  all.blind = all.blind.logical_or(visible.any(-1).logical_not().unsqueeze(1));
  return all;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> Forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& query_bounds,
    const OptionalTensor& key_bounds, int64_t longest_query, int64_t longest_key, double dropout, bool causal,
    bool /*debug*/, std::optional<double> scale, std::optional<int64_t> left, std::optional<int64_t> right,
    const OptionalTensor& used, const OptionalTensor& slopes, const OptionalTensor& table,
    std::optional<int64_t> /*splits*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(!slopes, "tpu: _flash_attention_forward takes no alibi_slopes");
  const auto plain = query.options();
  const auto results = [&](const Tensor& output, const Tensor& sums) {
    return std::tuple(output, sums, at::empty({2}, plain.dtype(at::kUInt64)), at::empty({}, plain),
                      at::empty({0}, plain));
  };
  if (Nothing(query, key, longest_query, longest_key)) {
    return results(at::zeros_like(query), at::full({query.size(1), query.size(0)}, kInfinity, plain.dtype(at::kFloat)));
  }
  const Sequences all = Unpack(query, key, value, query_bounds, key_bounds, longest_query, longest_key, dropout, causal,
                               left, right, used, table);
  const auto [padded, padded_sums] =
      at::_scaled_dot_product_flash_attention_for_cpu(all.query, all.key, all.value, 0, all.causal, all.mask, scale);
  const int64_t heads = query.size(1);
  const Tensor output = Packed(padded.masked_fill(all.blind.unsqueeze(-1), 0), all.queries, heads);
  const Tensor sums = Packed(padded_sums.masked_fill(all.blind, kInfinity), all.queries, heads, kInfinity).t();
  return results(output, sums.contiguous());
}

Tensor ForwardInto(Tensor& output, const Tensor& query, const Tensor& key, const Tensor& value,
                   const OptionalTensor& query_bounds, const OptionalTensor& key_bounds, int64_t longest_query,
                   int64_t longest_key, double dropout, bool causal, bool debug, std::optional<double> scale,
                   std::optional<int64_t> left, std::optional<int64_t> right, const OptionalTensor& used,
                   const OptionalTensor& slopes, const OptionalTensor& table, std::optional<int64_t> splits) {
  const auto results = Forward(query, key, value, query_bounds, key_bounds, longest_query, longest_key, dropout, causal,
                               debug, scale, left, right, used, slopes, table, splits);
  output.copy_(std::get<0>(results));
  return std::get<1>(results);
}

std::tuple<Tensor, Tensor, Tensor> Backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                            const Tensor& value, const Tensor& output, const Tensor& sums,
                                            const Tensor& query_bounds, const Tensor& key_bounds, int64_t longest_query,
                                            int64_t longest_key, double dropout, bool causal, const Tensor& /*random*/,
                                            const Tensor& /*unused*/, std::optional<double> scale,
                                            std::optional<int64_t> left, std::optional<int64_t> right) {
  if (Nothing(query, key, longest_query, longest_key)) {
    return {at::zeros_like(query), at::zeros_like(key), at::zeros_like(value)};
  }
  // Pages, and keys of which a part is used, are for inference.
  const Sequences all = Unpack(query, key, value, query_bounds, key_bounds, longest_query, longest_key, dropout, causal,
                               left, right, {}, {});
  const int64_t heads = query.size(1);
  const auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      Padded(grad, all.queries, heads).masked_fill(all.blind.unsqueeze(-1), 0), all.query, all.key, all.value,
      Padded(output, all.queries, heads), Padded(sums.t(), all.queries, heads).masked_fill(all.blind, kInfinity), 0,
      all.causal, all.mask, scale);
  return {Packed(of_query, all.queries, heads), Packed(of_key, all.keys, key.size(1)),
          Packed(of_value, all.keys, key.size(1))};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_flash_attention_forward", &Forward);
  m.impl("_flash_attention_forward_no_dropout_inplace", &ForwardInto);
  m.impl("_flash_attention_backward", &Backward);
}

}  // namespace tpu
