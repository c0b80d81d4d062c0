"""Attention as torch.nn's layers call it in evaluation: single operators, taken apart; over many positions, with
gradients; against the CPU."""

import copy

import pytest
import torch
from helpers import assert_same, check, check_compiled, on_both
from torch import nn
from torch.nn.attention.varlen import AuxRequest, varlen_attn, varlen_attn_out

BATCH, LENGTH, WIDTH, HEADS = 2, 6, 16, 2


def padding():
    mask = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    mask[1, 4:] = True
    return mask


def causal():
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


ATTENTION = {
    "plain": {"need_weights": False},
    "weights": {},
    "weights_of_each_head": {"average_attn_weights": False},
    "padding": {"need_weights": False, "key_padding_mask": padding()},
    "causal": {"attn_mask": causal()},
    "both": {"attn_mask": causal(), "key_padding_mask": padding()},
    "nothing_left": {"need_weights": False, "key_padding_mask": torch.ones(BATCH, LENGTH, dtype=torch.bool)},
}
ENCODERS = {
    "plain": {},
    "norm_first": {"norm_first": True},
    "gelu": {"activation": "gelu"},
    "causal": {"src_mask": causal()},
    "padding": {"src_key_padding_mask": padding()},
}


def without_host_kernels(model, x, **options):
    """What a copy of the model gives on tpu, once its fragments are compiled."""
    there = copy.deepcopy(model).to("tpu")
    options = {k: v.to("tpu") if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    for _ in range(4):
        before = torch.tpu.metrics()["host_kernel_calls"]
        found = there(*x, **options)  # what nobody holds is not computed
        torch.tpu.synchronize()
        torch.tpu.wait_for_compiles()
    assert torch.tpu.metrics()["host_kernel_calls"] == before
    return found


@pytest.mark.parametrize("options", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_attention_in_evaluation(options, dtype):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval().to(dtype)
    x = torch.randn(BATCH, LENGTH, WIDTH).to(dtype)
    expected = attention(x, x, x, **options)
    x = x.to("tpu")
    assert_same(expected, without_host_kernels(attention, (x, x, x), **options))


@pytest.mark.parametrize("kind", ["plain", "padding", "causal"])
@torch.no_grad()
def test_attention_of_half_types_is_as_exact_as_the_cpus(kind):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval().bfloat16()
    x = torch.randn(8, LENGTH, WIDTH).bfloat16()
    options = {"attn_mask": causal()} if kind == "causal" else {"need_weights": False}
    if kind == "padding":
        options["key_padding_mask"] = padding().repeat(4, 1)
    rounded = attention(x, x, x, **options)[0]
    there = x.to("tpu")
    found = without_host_kernels(attention, (there, there, there), **options)[0].cpu()
    x, attention = x.float(), attention.float()
    exact = attention(x, x, x, **options)[0]
    assert (found - exact).square().mean() <= 1.1 * (rounded - exact).square().mean()


def long_attention(q, k, v, kind):
    """The output and the gradients of q, k and v, where the loss is half the sum of squares."""
    options = {"is_causal": kind != "mask", "enable_gqa": kind == "grouped"}
    if kind == "mask":
        visible = torch.arange(k.size(-2)) % 7 < torch.arange(q.size(-2))[:, None] % 5 + 1
        options["attn_mask"] = visible.to(q.device)
    output = nn.functional.scaled_dot_product_attention(q, k, v, **options)
    return output.detach(), *torch.autograd.grad(output, (q, k, v), output.detach())


@pytest.mark.parametrize("kind", ["causal", "mask", "grouped"])
@pytest.mark.parametrize("length", [1152, 1031])  # many parts and, of a prime, none but of blocks
@pytest.mark.parametrize("heads", [8, 2])  # enough for a matrix's sums to be one task's, too few
def test_attention_over_many_positions(kind, length, heads):
    torch.manual_seed(0)
    inputs = [torch.randn(1, count, length, 16) for count in ((heads, 2, 2) if kind == "grouped" else 3 * (heads,))]
    expected = long_attention(*(x.requires_grad_() for x in inputs), kind)
    there = [x.detach().to("tpu").requires_grad_() for x in inputs]
    for _ in range(3):  # the last by compiled code
        found = long_attention(*there, kind)
        torch.tpu.wait_for_compiles()
        assert_same(expected, found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("heads", [1, 3])
def test_heads_that_share_their_keys(heads, queries, dtype):
    """By the operator's option, and with the keys repeated by views; of keys as they lie and as a cache has them."""

    def both(q, k, v, mask):
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        repeated = [x[:, :, None].expand(-1, -1, 4, -1, -1).reshape(2, heads * 4, 40, 16) for x in (k, v)]
        outputs = [
            nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True),
            (q @ repeated[0].mT).softmax(-1) @ repeated[1],
        ]
        return *outputs, *torch.autograd.grad(sum(outputs), (q, k, v), outputs[0].detach())

    torch.manual_seed(0)
    q = torch.randn(2, heads * 4, queries, 16, dtype=dtype)
    cached = [torch.randn(2, 40, heads, 16, dtype=dtype).transpose(1, 2) for _ in "kv"]
    mask = torch.rand(2, 1, queries, 40) < 0.7
    check_compiled(both, q, *cached, mask)


def test_attention_over_many_positions_in_bfloat16_is_as_exact_as_the_cpus():
    torch.manual_seed(0)
    inputs = [torch.randn(1, 8, 1152, 16).bfloat16() for _ in range(3)]
    exact = long_attention(*(x.double().requires_grad_() for x in inputs), "causal")
    rounded = long_attention(*(x.clone().requires_grad_() for x in inputs), "causal")
    there = [x.to("tpu").requires_grad_() for x in inputs]
    for _ in range(3):
        found = long_attention(*there, "causal")
        torch.tpu.wait_for_compiles()
    for e, r, f in zip(exact, rounded, found, strict=True):
        assert (f.cpu() - e).square().mean() <= 1.1 * (r - e).square().mean()


@pytest.mark.parametrize(
    "kind, heads, length, most",
    [
        ("causal", 8, 2048, 48),
        ("causal", 8, 2039, 48),
        ("mask", 8, 2048, 48),
        ("mask", 8, 2039, 80),
        ("causal", 4, 2896, 80),
        ("mask", 4, 2896, 160),
    ],
)
def test_attention_over_many_positions_keeps_few_scores(kind, heads, length, most):
    """MiB beside the results; a matrix of scores for each head is 128, and backward needs two."""
    inputs = [torch.randn(1, heads, length, 64, device="tpu").requires_grad_() for _ in range(3)]
    for _ in range(3):
        torch.tpu.reset_peak_memory_stats()
        before = torch.tpu.memory_allocated()
        held = long_attention(*inputs, kind)
        torch.tpu.synchronize()
        torch.tpu.wait_for_compiles()
        peak = torch.tpu.max_memory_allocated() - before - sum(x.nbytes for x in held)
        del held
    assert peak < most << 20


@pytest.mark.parametrize("options", ENCODERS.values(), ids=ENCODERS)
@torch.no_grad()
def test_encoders_in_evaluation(options):
    torch.manual_seed(0)
    masks = {k: v for k, v in options.items() if isinstance(v, torch.Tensor)}
    options = {k: v for k, v in options.items() if k not in masks}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, **options).eval()
    x = torch.randn(BATCH, LENGTH, WIDTH)
    assert_same(layer(x, **masks), without_host_kernels(layer, (x.to("tpu"),), **masks))


@torch.no_grad()
def test_an_encoder_under_autocast_is_that_of_training():
    """PyTorch asks about autocast on CUDA alone before it takes the single operator."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True).eval().to("tpu")
    x = torch.randn(BATCH, LENGTH, WIDTH).to("tpu")
    found = []
    for single in (False, True):
        torch.backends.mha.set_fastpath_enabled(single)
        with torch.autocast("tpu", dtype=torch.bfloat16):
            found.append(layer(x))
    assert found[0].dtype == found[1].dtype
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "change",
    [
        {"query": torch.randn(BATCH, WIDTH)},
        {"embed_dim": 8},
        {"num_head": 3},
        {"qkv_weight": torch.randn(WIDTH, WIDTH)},
        {"qkv_bias": torch.randn(3, WIDTH)},
        {"query": torch.randn(BATCH, 0, WIDTH)},
    ],
    ids=["dimensions", "width", "heads", "weight", "bias", "empty"],
)
def test_arguments_that_do_not_fit_are_the_cpus_errors(change):
    values = {
        "query": torch.randn(BATCH, LENGTH, WIDTH),
        "embed_dim": WIDTH,
        "num_head": HEADS,
        "qkv_weight": torch.randn(3 * WIDTH, WIDTH),
        "qkv_bias": torch.randn(3 * WIDTH),
        "proj_weight": torch.randn(WIDTH, WIDTH),
        "proj_bias": torch.randn(WIDTH),
        **change,
    }

    def attended(device):
        given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in values.items()}
        given["key"] = given["value"] = given["query"]
        try:
            return [t for t in torch._native_multi_head_attention(**given, need_weights=False) if t is not None]
        except RuntimeError as error:
            return str(error).splitlines()[0]

    assert_same(attended("cpu"), attended("tpu"))


def test_no_heads_are_an_error():
    """By which the CPU's kernel divides."""
    x, weight = torch.randn(BATCH, LENGTH, WIDTH, device="tpu"), torch.randn(3 * WIDTH, WIDTH, device="tpu")
    arguments = weight, weight[:, 0], weight[:WIDTH], weight[:WIDTH, 0]
    with pytest.raises(RuntimeError, match="heads"):
        torch._native_multi_head_attention(x, x, x, WIDTH, 0, *arguments)
    with pytest.raises(RuntimeError, match="heads"):
        torch._transform_bias_rescale_qkv(torch.cat([x, x, x], 2), weight[:, 0], 0)


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("dim", [-1, 1])
def test_masked_softmax(kind, dim):
    torch.manual_seed(0)
    scores, gradient = torch.randn(2, BATCH, HEADS, LENGTH, LENGTH)
    mask = {0: causal(), 1: padding()}.get(kind, torch.rand(scores.shape) < 0.3)

    def softmax(scores, mask):
        return torch._masked_softmax(scores, mask, dim, kind)

    assert_same(*on_both(softmax, scores, mask))

    def backward(gradient, scores, mask):
        return torch.ops.aten._masked_softmax_backward(gradient, scores.softmax(dim), mask, dim)

    assert_same(*on_both(backward, gradient, scores, torch.rand(scores.shape) < 0.3))


@pytest.mark.parametrize("kind, shape", [(0, (9, 2)), (1, (HEADS, 2)), (2, (9,)), (None, (2, 2)), (3, (2, 2))])
def test_masks_that_do_not_fit(kind, shape):
    def refused(device):
        scores = torch.randn(BATCH, HEADS, LENGTH, LENGTH, device=device)
        with pytest.raises(RuntimeError) as error:
            torch._masked_softmax(scores, torch.zeros(shape, dtype=torch.bool, device=device), -1, kind)
        return str(error.value).splitlines()[0]

    assert refused("cpu") == refused("tpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_see_nothing(dtype):
    """Compiled forward and op-by-op backward go together, and the reverse: what one gives is the other's."""
    q, k, v = torch.randn(3, 1, 2, 40, 16, dtype=dtype)
    mask = torch.zeros(40, 40, dtype=dtype).masked_fill(torch.arange(40)[:, None] % 8 == 5, -torch.inf)
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    check(lambda q, k, v, mask: attend(q, k, v, attn_mask=mask), q, k, v, mask)


def bounds(lengths, device="tpu"):
    return torch.tensor([0, *lengths]).cumsum(0).int().to(device)


def each_alone(q, k, v, queries, keys, window):
    """Attention of packed sequences and the logarithms of its sums: one sequence after another, in plain operators."""
    outputs, sums = [], []
    for one, its_keys, its_values in zip(q.split(queries), k.split(keys), v.split(keys), strict=True):
        groups = one.size(1) // its_keys.size(1)
        scores = torch.einsum("ihd,jhd->hij", one, its_keys.repeat_interleave(groups, 1)) / one.size(-1) ** 0.5
        rows, columns = scores.shape[1:]
        distance = torch.arange(columns) - torch.arange(rows)[:, None] - (columns - rows)
        hidden = (distance > window[1]) & (window[1] >= 0) | (distance < -window[0]) & (window[0] >= 0)
        scores = scores.masked_fill(hidden, -torch.inf)
        nothing = hidden.all(1)[:, None]
        weights = scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)
        outputs.append(torch.einsum("hij,jhd->ihd", weights, its_values.repeat_interleave(groups, 1)))
        sums.append(scores.logsumexp(-1).masked_fill(nothing[:, 0], torch.inf))
    return torch.cat(outputs), torch.cat(sums, 1)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 1)])
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize(
    "lengths",
    [([5, 3, 9], [5, 3, 9]), ([2, 7, 1], [6, 4, 5]), ([4, 0, 2], [4, 0, 2]), ([1] * 6 + [12], [1] * 6 + [12])],
    ids=["equal", "unequal", "empty", "one of many"],
)
def test_attention_of_packed_sequences(lengths, key_heads, window):
    torch.manual_seed(0)
    queries, keys = lengths
    inputs = [torch.randn(sum(n), heads, 16) for n, heads in ((queries, 4), (keys, key_heads), (keys, key_heads))]
    here = [x.clone().requires_grad_() for x in inputs]
    output, sums = each_alone(*here, queries, keys, window)
    expected = output, sums, torch.autograd.grad(output.sin().sum(), here)

    def found(attention, there):
        output, sums = attention(*there)
        return output, sums, torch.autograd.grad(output.sin().sum(), there)

    def attention(*inputs):
        options = {"window_size": window, "enable_gqa": key_heads != 4, "return_aux": AuxRequest(lse=True)}
        of_queries = bounds(queries)
        of_keys = of_queries if keys == queries else bounds(keys)
        return varlen_attn(*inputs, of_queries, of_keys, max(queries), max(keys), **options)

    there = [x.to("tpu").requires_grad_() for x in inputs]
    for _ in range(3):  # the last by compiled code
        assert_same(expected, found(attention, there))
        torch.tpu.wait_for_compiles()
    torch._dynamo.reset()
    assert_same(expected, found(torch.compile(attention, fullgraph=True), there))


@torch.no_grad()
def test_attention_of_packed_sequences_whose_keys_lie_in_pages():
    torch.manual_seed(0)
    lengths, page, table = [7, 3, 10], 4, torch.tensor([[3, 1, 0], [5, 0, 0], [7, 2, 9]], dtype=torch.int32)
    query, *pools = torch.randn(3, 4, 8), torch.randn(12, page, 2, 8), torch.randn(12, page, 2, 8)
    packed = [torch.cat([p[t.long()].flatten(0, 1)[:n] for t, n in zip(table, lengths, strict=True)]) for p in pools]
    expected = each_alone(query, *packed, [1, 1, 1], lengths, (-1, 0))[0]
    inputs = [x.to("tpu") for x in (query, *pools)]
    sizes = bounds([1, 1, 1]), None, 1, 3 * page
    options = {"window_size": (-1, 0), "enable_gqa": True, "block_table": table.to("tpu")}
    options["seqused_k"] = torch.tensor(lengths, dtype=torch.int32, device="tpu")
    assert_same(expected, varlen_attn(*inputs, *sizes, **options))
    output = torch.empty_like(inputs[0])
    varlen_attn_out(output, *inputs, *sizes, **options)
    assert_same(expected, output)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0)])
def test_tokens_of_no_sequence_have_no_part(window):
    torch.manual_seed(0)
    tokens = torch.randn(14, 2, 8, device="tpu")
    ends = torch.tensor([1, 5, 11], dtype=torch.int32, device="tpu")

    def attention(x, ends):
        x = x.clone().requires_grad_()
        output, sums = varlen_attn(x, x, x, ends, ends, 6, 6, window_size=window, return_aux=AuxRequest(lse=True))
        return output, sums, torch.autograd.grad(output.sin().sum() + output.sum(), x)[0]

    output, sums, gradient = attention(tokens, ends)
    found = output[1:11], sums[:, 1:11], gradient[1:11]
    torch.testing.assert_close(found, attention(tokens[1:11], ends - 1))
    stray = [0, 11, 12, 13]
    assert (output[stray] == 0).all() and (gradient[stray] == 0).all() and (sums[:, stray] == torch.inf).all()


def test_packed_sequences_of_unequal_lengths_take_little_memory():
    """Padded to the longest, all scores of one head would be 128 MiB."""
    ends = torch.tensor([0, 2048, *range(2112, 2560, 64)], dtype=torch.int32, device="tpu")
    x = torch.randn(2496, 2, 16, device="tpu", requires_grad=True)
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    for _ in range(3):
        varlen_attn(x, x, x, ends, ends, 2048, 2048, window_size=(-1, 0)).sum().backward()
        torch.tpu.synchronize()
    assert torch.tpu.max_memory_allocated() - before < 100 << 20


def test_attention_of_no_packed_sequences():
    nothing = torch.empty(0, 4, 8, device="tpu", requires_grad=True)
    output = varlen_attn(nothing, nothing, nothing, bounds([0]), bounds([0]), 0, 0)
    output.sum().backward()
    assert output.shape == nothing.grad.shape == (0, 4, 8)
