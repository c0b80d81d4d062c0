// Attention over sequences that lie one after another (torch.nn.attention.varlen): taken apart, over each sequence
// padded to the longest one, into the operator of scaled dot-product attention that the compiler knows. Elements are
// gathered there and back, forward and backward; nothing is read.
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

namespace tpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Where each sequence's elements are: among all tokens and, back, among those of the padded sequences.
struct Packing {
  Tensor lengths;  // (N, 1)
  Tensor tokens;   // (N, longest): of a place behind the end, any token
  Tensor places;   // (tokens): of a token of no sequence, any place
};

Packing Pack(const Tensor& bounds, const OptionalTensor& used, int64_t longest, int64_t tokens) {
  const Tensor wide = bounds.to(at::kLong);
  const Tensor starts = wide.slice(0, 0, -1).unsqueeze(1);
  const Tensor token = at::arange(tokens, wide.options());
  const Tensor ends = wide.slice(0, 1);
  const Tensor sequence = token.unsqueeze(1).ge(ends).sum(1).clamp_max(ends.size(0) - 1);
  const Tensor place = (token - starts.squeeze(1).index_select(0, sequence)).clamp(0, longest - 1);
  return {used ? used->to(at::kLong).unsqueeze(1) : ends.unsqueeze(1) - starts,
          (starts + at::arange(longest, wide.options())).clamp(0, tokens - 1), sequence * longest + place};
}

// The pages that hold a sequence's keys are listed in its row of the table.
Packing PackPages(const Tensor& table, const Tensor& used, int64_t longest, int64_t page) {
  const Tensor wide = table.to(at::kLong);
  const Tensor place = at::arange(longest, wide.options());
  const Tensor pages = wide.index_select(1, place.floor_divide(page).clamp_max(table.size(1) - 1));
  return {used.to(at::kLong).unsqueeze(1), pages * page + place.remainder(page), Tensor()};
}

// (tokens, heads, ..) -> (N, heads of the queries, longest, ..)
Tensor Padded(const Tensor& packed, const Tensor& tokens, int64_t heads) {
  const Tensor padded = packed.index_select(0, tokens.flatten()).unflatten(0, tokens.sizes()).transpose(1, 2);
  return padded.size(1) == heads ? padded : padded.repeat_interleave(heads / padded.size(1), 1);
}

// (N, heads, longest, ..) -> (tokens, heads of the tokens, ..), of equal heads the sum
Tensor Packed(const Tensor& padded, const Tensor& places, int64_t heads) {
  const Tensor shared = padded.size(1) == heads ? padded : padded.unflatten(1, {heads, -1}).sum(2);
  return shared.transpose(1, 2).flatten(0, 1).index_select(0, places);
}

bool Nothing(const Tensor& query, const Tensor& key, int64_t longest_query, int64_t longest_key) {
  return query.numel() == 0 || key.numel() == 0 || longest_query == 0 || longest_key == 0;
}

struct Sequences {
  Packing queries, keys;
  Tensor query, key, value;  // padded
  Tensor visible;            // (N, 1, queries, keys)

  Tensor Mask() const {
    return at::zeros(visible.sizes(), query.options()).masked_fill(visible.logical_not(), -kInfinity);
  }
};

Sequences Sequence(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& query_bounds,
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
  const int64_t heads = query.size(1);
  Sequences all;
  all.queries = Pack(*query_bounds, {}, longest_query, query.size(0));
  all.keys =
      table ? PackPages(*table, *used, longest_key, key.size(1)) : Pack(*key_bounds, used, longest_key, key.size(0));
  all.query = Padded(query, all.queries.tokens, heads);
  all.key = Padded(table ? key.flatten(0, 1) : key, all.keys.tokens, heads);
  all.value = Padded(table ? value.flatten(0, 1) : value, all.keys.tokens, heads);

  // The last query is beside the last key.
  const Tensor i = at::arange(longest_query, all.keys.tokens.options()).view({1, -1, 1});
  const Tensor j = at::arange(longest_key, i.options()).view({1, 1, -1});
  const Tensor queries = all.queries.lengths.unsqueeze(2), keys = all.keys.lengths.unsqueeze(2);
  const Tensor distance = j - i - (keys - queries);
  Tensor visible = i.lt(queries).logical_and(j.lt(keys));
  if (causal) right = 0;
  if (right.value_or(-1) >= 0) visible = visible.logical_and(distance.le(*right));
  if (left.value_or(-1) >= 0) visible = visible.logical_and(distance.ge(-*left));
  all.visible = visible.unsqueeze(1);
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
  const Sequences all = Sequence(query, key, value, query_bounds, key_bounds, longest_query, longest_key, dropout,
                                 causal, left, right, used, table);
  const auto [padded, padded_sums] =
      at::_scaled_dot_product_flash_attention_for_cpu(all.query, all.key, all.value, 0, false, all.Mask(), scale);
  const Tensor nothing = all.visible.any(-1).logical_not();  // (N, 1, queries)
  const Tensor output = Packed(padded.masked_fill(nothing.unsqueeze(-1), 0), all.queries.places, query.size(1));
  const Tensor sums = Packed(padded_sums.masked_fill(nothing, kInfinity), all.queries.places, query.size(1)).t();
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
  const Sequences all = Sequence(query, key, value, query_bounds, key_bounds, longest_query, longest_key, dropout,
                                 causal, left, right, {}, {});
  const int64_t heads = query.size(1);
  const auto queries = [&](const Tensor& packed) { return Padded(packed, all.queries.tokens, heads); };
  // Behind a sequence's end are other sequences' queries: none of theirs counts.
  const Tensor nothing = all.visible.any(-1).logical_not();
  const auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      queries(grad).masked_fill(nothing.unsqueeze(-1), 0), all.query, all.key, all.value, queries(output),
      queries(sums.t()).masked_fill(nothing, kInfinity), 0, false, all.Mask(), scale);
  const Tensor& places = all.keys.places;
  return {Packed(of_query, all.queries.places, heads), Packed(of_key, places, key.size(1)),
          Packed(of_value, places, key.size(1))};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_flash_attention_forward", &Forward);
  m.impl("_flash_attention_forward_no_dropout_inplace", &ForwardInto);
  m.impl("_flash_attention_backward", &Backward);
}

}  // namespace tpu
