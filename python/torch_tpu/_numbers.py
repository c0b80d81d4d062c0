"""Numbers of Python's that change from call to call (a scheduler's learning rate), as compiled graphs take them.

Dynamo hands them over as tensors of the CPU where every use is arithmetic of tensors with them. Any other use, as the
`alpha` of a sum or in `_foreach_mul`, has the graph compiled anew for every number, up to Dynamo's limit. Those that
optimizers make of them, on tensors without gradients, are spelled out so here.
"""

import torch
from torch._prims_common import get_computation_dtype

aten = torch.ops.aten


def _tensor(number, like):
    return like.new_zeros(()) + number


_OF_ELEMENTS = {
    aten.add.Tensor: lambda a, b, alpha: a + b * alpha,
    aten.sub.Tensor: lambda a, b, alpha: a - b * alpha,
    aten.rsub.Scalar: lambda a, number, alpha=1: a * -alpha + number,
    aten.addcmul.default: lambda a, b, c, value: a + b * value * c,
    aten.addcdiv.default: lambda a, b, c, value: a + b * value / c,
    aten.lerp.Scalar: lambda a, b, weight: torch.lerp(a, b, _tensor(weight, a)),
    aten.pow.Tensor_Scalar: lambda a, exponent: torch.pow(a, _tensor(exponent, a)),
}
_OF_LISTS = {
    "_foreach_add": lambda a, b, alpha=1: torch.add(a, b, alpha=alpha),
    "_foreach_sub": lambda a, b, alpha=1: torch.sub(a, b, alpha=alpha),
    "_foreach_mul": torch.mul,
    "_foreach_div": torch.div,
    "_foreach_addcmul": lambda a, b, c, value: torch.addcmul(a, b, c, value=value),
    "_foreach_addcdiv": lambda a, b, c, value: torch.addcdiv(a, b, c, value=value),
    "_foreach_lerp": torch.lerp,
    "_foreach_pow": torch.pow,
}


def _changes(thing):
    return any(map(_changes, thing)) if isinstance(thing, list | tuple) else isinstance(thing, torch.SymFloat)


def _spelled_out(arithmetic):
    """In the precision that the operator computes with."""
    needed = arithmetic.__code__.co_argcount - len(arithmetic.__defaults__ or ())

    def decomposition(*args, **kwargs):
        given = [*args, *kwargs.values()]
        if not _changes(given) or len(given) < needed:
            return NotImplemented
        dtypes = {a.dtype for a in given if isinstance(a, torch.Tensor)}
        dtype = dtypes.pop()
        if dtypes or not dtype.is_floating_point:
            return NotImplemented
        precise = [a.to(get_computation_dtype(dtype)) if isinstance(a, torch.Tensor) else a for a in given]
        return arithmetic(*precise).to(dtype)

    return decomposition


def _for_each(function):
    def decomposition(*args, **kwargs):
        if not _changes([*args, *kwargs.values()]):
            return NotImplemented
        columns = [a if isinstance(a, list | tuple) else [a] * len(args[0]) for a in [*args, *kwargs.values()]]
        return [function(*row) for row in zip(*columns, strict=True)]

    return decomposition


DECOMPOSITIONS = {operator: _spelled_out(arithmetic) for operator, arithmetic in _OF_ELEMENTS.items()} | {
    getattr(getattr(aten, name), kind): _for_each(function)
    for name, function in _OF_LISTS.items()
    for kind in ("Scalar", "ScalarList", "List")
    if kind in getattr(aten, name).overloads()
}
