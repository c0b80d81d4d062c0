"""flex_attention in compiled graphs: in blocks of queries, each beside the keys that some of its queries sees.

A block is one call of an attention with a mask or, where scores are changed, of PyTorch's plain implementation, whose
derivative computes the block's scores again, as that of the first does.
"""

import functools
import math
import operator

import torch
from torch._higher_order_ops.flex_attention import (
    _permute_strides,
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)
from torch.nn.attention.flex_attention import _vmap_for_bhqkv

_TOGETHER = 128  # blocks have a multiple of so many queries, and begin and end at a multiple of so many keys
_MOST_BLOCKS = 8  # to leave out what is not seen: of causal attention's scores, 9/16 are computed
_MOST_SCORES = 1 << 24  # of a block, of all heads: 64 MiB
_MOST_CALLS = 32  # each costs compiling time
_MOST_ASKED = 1 << 28  # pairs of positions that a mask is asked about

_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_AND = {torch.ops.aten.bitwise_and.Tensor, torch.ops.aten.logical_and.default, torch.ops.aten.__and__.Tensor}
_OR = {torch.ops.aten.bitwise_or.Tensor, torch.ops.aten.logical_or.default, torch.ops.aten.__or__.Tensor}


def spell_out(gm):
    """Has attentions in the graph, forward and backward, run in blocks where they are met."""
    for node in gm.graph.nodes:
        if node.target is flex_attention:
            parts = {n.args[1] if n.target is operator.getitem else None for n in node.users}
            plain = _keeps_scores(gm, node.args[3], node.args[7]) and parts <= {0, 1}
            node.target = _forward(_ranges(gm, node, node.args[4][-1]), plain)
        elif node.target is flex_attention_backward:
            plain = _keeps_scores(gm, node.args[7], node.args[12]) and node.args[6] is None
            node.target = _backward(_ranges(gm, node, node.args[9][-1]), plain)


def _keeps_scores(gm, score_mod, captured):
    graph = getattr(gm, score_mod.target).graph
    return not captured and graph.output_node().args[0] is next(iter(graph.nodes))


def _ranges(gm, attention, mask_mod):
    """What says the blocks of given sizes. Where sizes vary, one program serves them all: nothing in it follows what
    is seen at one of them."""
    fixed = all(isinstance(n, int) for operand in attention.args[:2] for n in operand.meta["val"].shape)
    mask = getattr(gm, mask_mod.target).graph
    positions = list(mask.find_nodes(op="placeholder"))[:4]  # of the batch, head, query and key

    @functools.lru_cache
    def ranges(batch, heads, queries, keys):
        sizes = batch, heads, queries, keys
        scores = math.prod(sizes)
        most = _divided(queries, min(scores // _MOST_SCORES + 1, _MOST_CALLS))
        step = min(most, _divided(queries, _MOST_BLOCKS))
        asked = [n if position.users else 1 for position, n in zip(positions, sizes, strict=True)]
        if fixed and math.prod(asked) <= _MOST_ASKED and step < queries:
            blocks = [(block, _seen(mask, *asked[:2], block, keys)) for block in _cut(queries, step)]
            if sum(len(block) * len(seen) for block, seen in blocks) < 0.9 * queries * keys:
                return blocks
        return [(block, range(keys)) for block in _cut(queries, most)]

    return ranges


def _divided(count, parts):
    """How many of so many one of the parts has."""
    return max(math.ceil(count / (parts * _TOGETHER)), 1) * _TOGETHER


def _cut(queries, step):
    return [range(begin, min(begin + step, queries)) for begin in range(0, max(queries, 1), step)]


def _seen(mask, batch, heads, queries, keys):
    """The keys from the first to the last that one of the queries may see."""
    positions = (torch.tensor(n, dtype=torch.int32) for n in (range(batch), range(heads), queries, range(keys)))
    sees = _of_all(functools.partial(_bound, mask), positions, ())
    found = sees.expand(-1, -1, -1, keys).any(dim=(0, 1, 2)).nonzero().flatten().tolist() or [0]
    last = math.ceil((found[-1] + 1) / _TOGETHER) * _TOGETHER
    return range(found[0] // _TOGETHER * _TOGETHER, min(last, keys))


def _bound(mask, *positions):
    """What the mask says at most, on the CPU, whatever the other tensors say that it asks."""
    exact, bound = dict(zip(mask.find_nodes(op="placeholder"), positions, strict=False)), {}
    for node in mask.nodes:
        operands = node.all_input_nodes
        if node.op == "call_function" and all(n in exact for n in operands):
            args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), exact.__getitem__)
            exact[node] = node.target(*args, **kwargs | ({"device": "cpu"} if "device" in kwargs else {}))
        elif node.target in _AND and any(n in bound for n in operands):
            bound[node] = functools.reduce(torch.logical_and, [bound[n] for n in operands if n in bound])
        elif node.target in _OR and all(n in bound for n in operands):
            bound[node] = functools.reduce(torch.logical_or, [bound[n] for n in operands])
        if node in exact:
            bound[node] = exact[node]
    return bound.get(mask.output_node().args[0], torch.tensor(True))


def _of_all(mask, positions, captured):
    """What the mask says of all positions, of size 1 along dims that it doesn't ask about."""
    says = _vmap_for_bhqkv(mask, prefix=(), suffix=(None,) * len(captured))(*positions, *captured)
    for dim in range(4):
        if says.stride(dim) == 0:
            says = says.narrow(dim, 0, 1)
    return says


def _forward(ranges, plain):
    """plain: the scores are used as they are, and their greatest are not asked for: an attention with a mask."""

    def forward(query, key, value, score_mod, block_mask, scale, options, of_scores, of_mask):
        results = []
        for queries, keys in ranges(*query.shape[:3], key.size(2)):
            operands = _part(query, queries), _part(key, keys), _part(value, keys)
            mask = _moved(block_mask[-1], 2, queries, keys)
            if plain and _has_kernel(query, key, value):
                sees = _sees(mask, *operands[:2], of_mask)
                output, logsumexp = _attention(*operands, attn_mask=_bias(sees, query), scale=scale)
                results.append((output, torch.where(sees.any(-1), logsumexp / math.log(2), -math.inf)))
            else:
                scores = _moved(score_mod, 3, queries, keys)
                results.append(sdpa_dense(*operands, scores, (mask,), scale, options, of_scores, of_mask))
        output, *of_rows = (
            parts[0] if len(parts) == 1 else torch.cat(parts, 2) for parts in zip(*results, strict=True)
        )
        return _permute_strides(output, query.stride()), *of_rows

    return forward


def _backward(ranges, plain):
    """plain: as above, and the sums of their exponentials have no gradient."""

    def backward(query, key, value, *operands):
        *of_queries, score_mod, joint, block_mask, scale, options, of_scores, of_mask = operands
        asked = [gradient is not None for gradient in joint.graph.output_node().args[0][5:]]
        of_scores = [t.detach().requires_grad_() if a else t for t, a in zip(of_scores, asked, strict=True)]
        dqueries, dkeys, dvalues = [], _Sum(key), _Sum(value)
        captured = [_Sum(t) if a else None for t, a in zip(of_scores, asked, strict=True)]
        for queries, keys in ranges(*query.shape[:3], key.size(2)):
            block = _part(query, queries), _part(key, keys), _part(value, keys)
            output, logsumexp, doutput, dlogsumexp = (_part(t, queries) for t in of_queries)
            mask = _moved(block_mask[-1], 2, queries, keys)
            if plain and _has_kernel(query, key, value):
                bias = _bias(_sees(mask, *block[:2], of_mask), query)
                rows = output, torch.where(logsumexp == -math.inf, 0.0, logsumexp * math.log(2))
                dquery, dkey, dvalue = _attention_backward(
                    doutput, *block, *rows, 0.0, False, attn_mask=bias, scale=scale
                )
            else:
                mods = (_moved(mod, 3, queries, keys) for mod in (score_mod, joint))
                rows = output, logsumexp, doutput, dlogsumexp
                of = *mods, (mask,), scale, options, of_scores, of_mask
                dquery, dkey, dvalue, dcaptured = sdpa_dense_backward(*block, *rows, *of)
                for total, part in zip(captured, dcaptured, strict=True):
                    if total is not None:
                        total.add(part)
            dqueries.append(dquery)
            dkeys.add(dkey, keys)
            dvalues.add(dvalue, keys)
        dquery = _permute_strides(torch.cat(dqueries, 2), query.stride())
        return dquery, dkeys.total(), dvalues.total(), tuple(total and total.total() for total in captured)

    return backward


def _part(tensor, positions):
    return None if tensor is None else tensor.narrow(2, positions.start, len(positions))


def _moved(mod, place, queries, keys):
    """The mod of scores whose first are those of these positions, which are arguments from `place` on."""

    def moved(*arguments):
        query, key = arguments[place : place + 2]
        there = query + queries.start, key + keys.start
        return mod(*arguments[:place], *there, *arguments[place + 2 :])

    return moved if queries.start or keys.start else mod


def _has_kernel(query, key, value):
    alike = query.size(0) == key.size(0) and query.size(3) == value.size(3) and query.dtype == key.dtype == value.dtype
    return alike and query.size(2) > 0 and key.size(2) > 0  # of nothing, the CPU's kernel ends the process


def _sees(mask, query, key, captured):
    return _of_all(mask, [torch.arange(n, device=query.device) for n in (*query.shape[:3], key.size(2))], captured)


def _bias(sees, query):
    """What is added to the scores."""
    return torch.where(sees, 0.0, -math.inf).to(query.dtype)


class _Sum:
    """Of the gradients that blocks give to some positions of an operand; half types are added up in f32."""

    def __init__(self, operand):
        self._operand = operand
        self._total = torch.zeros_like(operand, dtype=torch.promote_types(operand.dtype, torch.float32))

    def add(self, part, positions=None):
        (self._total if positions is None else _part(self._total, positions)).add_(part)

    def total(self):
        return _permute_strides(self._total.to(self._operand.dtype), self._operand.stride())
