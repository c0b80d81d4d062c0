"""Writes to memory that is written or read twice: what the CPU refuses is refused, in its words; what it takes gives
the CPU's elements."""

import warnings

import pytest
import torch
from helpers import check, check_compiled


def ramp(device, *sizes):
    return torch.arange(1.0, 1 + torch.Size(sizes).numel(), device=device).view(sizes)


def expanded(device, rows=3, columns=4):
    return ramp(device, rows, 1).expand(rows, columns)


def mask(device):
    return torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]], device=device) > 0


def first(device):
    return torch.tensor([0], device=device)


def shifted(function, *sizes):
    """function(x[1:], x[:-1]): the memory."""

    def run(device):
        x = ramp(device, *sizes)
        function(x[1:], x[:-1])
        return x

    return run


def in_place(function, *sizes):
    """function(x, x) with another tensor over the same memory."""

    def run(device):
        x = ramp(device, *sizes)
        function(x, x.view(sizes))
        return x

    return run


def lists(function):
    """function(a, b) of two tensors."""

    def run(device):
        a, b = ramp(device, 3), 10 * ramp(device, 3)
        function(a, b)
        return torch.cat([a, b])

    return run


def parts(function):
    """function(x), which takes parts of it: the memory."""

    def run(device):
        function(x := ramp(device, 6))
        return x

    return run


def windows(function):
    """function(windows of two that overlap by one): the memory."""

    def run(device):
        x = ramp(device, 10)
        function(x.unfold(0, 2, 1))
        return x

    return run


def positions(like, *values):
    return torch.tensor(values, device=like.device)


def numbers(like, *values):
    return torch.tensor(values, dtype=like.dtype, device=like.device)


TO_ITSELF = {
    "fill_": lambda d: expanded(d).fill_(7),
    "fill_ tensor": lambda d: expanded(d).fill_(torch.tensor(7.0, device=d)),
    "zero_": lambda d: expanded(d).zero_(),
    "masked_fill_": lambda d: expanded(d).masked_fill_(mask(d), 9.0),
    "masked_fill_ tensor": lambda d: expanded(d).masked_fill_(mask(d), torch.tensor(9.0, device=d)),
    "masked_fill": lambda d: expanded(d).masked_fill(mask(d), 9.0),
    "index_fill_": lambda d: expanded(d).index_fill_(0, first(d), 9.0),
    "index_put_": lambda d: expanded(d).index_put_((first(d),), torch.tensor(9.0, device=d)),
    "of many": lambda d: expanded(d, 300, 200).fill_(7),
    "in the middle": lambda d: expanded(d)[1:].fill_(7),
    "no rows": lambda d: expanded(d, 0).fill_(7),
    "add_": lambda d: expanded(d).add_(1),
    "add_ to many": lambda d: expanded(d, 300, 200).add_(1),
    "copy_": lambda d: expanded(d).copy_(ramp(d, 3, 4)),
    "copy_ from the CPU": lambda d: expanded(d).copy_(torch.ones(3, 4)),
    "setitem": lambda d: expanded(d).__setitem__(0, 1.0),
    "normal_": lambda d: expanded(d).normal_(),
    "bernoulli_": lambda d: expanded(d).bernoulli_(0.5),
    "out": lambda d: torch.add(ramp(d, 3, 4), 1, out=expanded(d)),
    "out of a product": lambda d: torch.mm(ramp(d, 3, 3), ramp(d, 3, 4), out=expanded(d)),
    "foreach": lambda d: torch._foreach_add_([ramp(d, 3), expanded(d)], 1.0),
}
TO_WINDOWS = {
    "index_put_": windows(lambda w: w.index_put_((positions(w, 2, 6), positions(w, 1, 0)), numbers(w, -1, -2))),
    "index_put_ adds": windows(lambda w: w.index_put_((positions(w, 2, 2),), numbers(w, 10, 20), accumulate=True)),
    "index_fill_": windows(lambda w: w.index_fill_(0, positions(w, 3), -1.0)),
    "index_copy_": windows(lambda w: w.index_copy_(0, positions(w, 3), numbers(w, -1, -2)[None])),
    "index_add_": windows(lambda w: w.index_add_(0, positions(w, 3), numbers(w, -10, -20)[None])),
    "scatter_": windows(lambda w: w.scatter_(0, positions(w, 2, 2)[None], -5.0)),
    "scatter_add_": windows(lambda w: w.scatter_add_(0, positions(w, 2, 2)[None], numbers(w, 30, 40)[None])),
    "scatter_reduce_": windows(
        lambda w: w.scatter_reduce_(0, positions(w, 2, 2)[None], numbers(w, 30, 40)[None], "amax")
    ),
    "put_": windows(lambda w: w.put_(positions(w, 5), numbers(w, -3))),
    "masked_fill_": windows(lambda w: w.masked_fill_(w == 5, -1.0)),
    "masked_scatter_": windows(lambda w: w.masked_scatter_(w == 5, numbers(w, 70, 80))),
    "fill_diagonal_": windows(lambda w: w.fill_diagonal_(-1.0)),
    "fill_": windows(lambda w: w[2:5].fill_(-1.0)),
}
WITH_OTHERS = {
    "add_": shifted(lambda a, b: a.add_(b), 5),
    "add_ to many": shifted(lambda a, b: a.add_(b), 300, 200),
    "sqrt out": shifted(lambda a, b: torch.sqrt(a, out=b), 5),
    "add out": shifted(lambda a, b: torch.add(b, 1, out=a), 5),
    "copy_": shifted(lambda a, b: a.copy_(b), 5),
    "setitem": shifted(lambda a, b: a.__setitem__(slice(None), b), 5),
    "where": shifted(lambda a, b: torch.where(a > 2, a, b, out=b), 5),
    "foreach": shifted(lambda a, b: torch._foreach_add_([a], [b]), 5),
    "addcmul_": shifted(lambda a, b: a.addcmul_(b, b), 5),
    "index_add_": shifted(lambda a, b: a.index_add_(0, torch.arange(4, device=a.device), b), 5),
    "index_copy_": shifted(lambda a, b: a.index_copy_(0, torch.arange(4, device=a.device), b), 5),
    "scatter_": shifted(lambda a, b: a.scatter_(0, torch.arange(4, device=a.device), b), 5),
    "gather out": shifted(lambda a, b: torch.gather(a, 0, torch.arange(4, device=a.device), out=b), 5),
    "cat out": shifted(lambda a, b: torch.cat([a[:2], a[:2]], out=b), 5),
    "where, out as one and in part the other": shifted(lambda a, b: torch.where(a > 2, a, b, out=a), 5),
    "lerp, out as the first and in part the second": shifted(lambda a, b: torch.lerp(a, b, 0.3, out=a), 5),
    "lerp, out as the second and in part the first": shifted(lambda a, b: torch.lerp(a, b, 0.3, out=b[:]), 5),
    "lerp of many": shifted(lambda a, b: torch.lerp(a, b, 0.3, out=a), 300, 200),
    "clamp between others": shifted(lambda a, b: torch.clamp(a, b, b + 1, out=a), 5),
    "addcmul, out as the first": shifted(lambda a, b: torch.addcmul(a, b, b, out=a[:]), 5),
    "index_add, out as the first": shifted(
        lambda a, b: torch.index_add(a, 0, torch.arange(4, device=a.device), b, out=a[:]), 5
    ),
    "out as both": in_place(lambda a, b: torch.lerp(a, b, 0.3, out=a), 4, 4),
    "transposed": in_place(lambda a, b: a.add_(b.t()), 4, 4),
    "another type": in_place(lambda a, b: a.add_(b.view(torch.int32)[:3]), 4),
    "all of it": in_place(lambda a, b: a.add_(b), 4, 4),
    "all of many": in_place(lambda a, b: a.mul_(b), 300, 200),
    "itself": in_place(lambda a, b: a.mul_(a), 4, 4),
    "out itself": in_place(lambda a, b: torch.mul(a, b, out=a), 4, 4),
    "cat of itself": in_place(lambda a, b: torch.cat([a, b], out=a), 4),
    "gather of itself": in_place(lambda a, b: torch.gather(a, 0, torch.arange(4, device=a.device), out=a), 4),
    "take of itself": in_place(lambda a, b: torch.take(a, torch.arange(4, device=a.device), out=a), 4),
    "index_select of itself": in_place(
        lambda a, b: torch.index_select(a, 0, torch.arange(4, device=a.device), out=b), 4
    ),
    "cumsum of itself": in_place(lambda a, b: torch.cumsum(a, 0, out=b), 4),
    "cat of nothing to itself": lambda d: (lambda x: torch.cat([x, ramp(d, 4)], out=x))(torch.zeros(0, device=d)),
    "add out, broadcast": lambda d: (lambda x: torch.add(x, ramp(d, 4, 1), out=x))(ramp(d, 4)),
    "add out of many, broadcast": lambda d: (lambda x: torch.add(x, ramp(d, 300, 1), out=x))(ramp(d, 300)),
    "masked_scatter_ of itself": in_place(lambda a, b: a.masked_scatter_(a > 2, b), 4),
    "apart": in_place(lambda a, b: a[:2].add_(b[2:]), 4, 4),
    "apart, out": in_place(lambda a, b: torch.sum(b[2:], 0, out=a[0]), 4, 4),
    "a list, twice": lists(lambda a, b: torch._foreach_add_([a, b, a], [1.0, 2.0, 3.0])),
    "a list, in part twice": lists(lambda a, b: torch._foreach_mul_([a, a[1:]], 3.0)),
    "a list from what it wrote": lists(lambda a, b: torch._foreach_add_([a, b], [b, a])),
    "a list, exchanged": lists(lambda a, b: torch._foreach_copy_([a, b], [b, a])),
    "a list with itself": lists(lambda a, b: torch._foreach_mul_([a, b], [a, b])),
    "a list, two of three in part": parts(lambda x: torch._foreach_add_([x[:2], x[2:4], x[3:5]], 1.0)),
    "a list, beside gaps": parts(lambda x: torch._foreach_add_([x[::2], x[1:4]], 1.0)),
    "a list, all beside gaps": parts(lambda x: torch._foreach_mul_([x[::2], x], 3.0)),
    "a list from parts that it wrote": parts(
        lambda x: torch._foreach_copy_([x[:2], x[2:4], x[4:]], [-x[4:], -x[:2], x[2:4]])
    ),
    "a list apart": parts(lambda x: torch._foreach_mul_([x[::3], x[1::3], x[2::3]], 3.0)),
    "columns": in_place(lambda a, b: a[:, :2].add_(b[:, 2:]), 4, 4),
}


def outcome(function, device):
    try:
        result = function(device)
    except Exception as error:
        return type(error), str(error)
    return result.cpu() if isinstance(result, torch.Tensor) else result


@pytest.mark.parametrize(
    "function", [pytest.param(f, id=n) for cases in (TO_ITSELF, TO_WINDOWS, WITH_OTHERS) for n, f in cases.items()]
)
@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
def test_overlapping_writes_are_the_cpus(function):
    expected = outcome(function, "cpu")
    for _ in range(2):
        found = outcome(function, "tpu")
        if isinstance(expected, torch.Tensor):
            assert isinstance(found, torch.Tensor), found
            torch.testing.assert_close(found, expected)
        else:
            assert found == expected
        torch.tpu.wait_for_compiles()


def test_writes_to_elements_with_gaps_between_them_are_recorded():
    kernels = torch.tpu.metrics()["host_kernel_calls"]
    x = ramp("tpu", 6, 4, 5)
    x.transpose(0, 2)[::2, 1:, ::3].add_(1)
    x.as_strided((2, 3), (60, 2), 1).index_fill_(0, first("tpu"), 0.0)
    torch.tpu.synchronize()
    assert torch.tpu.metrics()["host_kernel_calls"] == kernels


def test_a_refused_write_leaves_its_memory_and_those_apart_are_taken():
    x = ramp("tpu", 6)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="single memory location"):
            x[1:].add_(x[:-1])
        x[3:].add_(x[:3])
    assert x.tolist() == [1, 2, 3, 6, 9, 12]


def test_writes_to_expanded_tensors_warn_as_on_the_cpu():
    for device in ("cpu", "tpu"):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            torch._C._set_warnAlways(True)
            expanded(device).masked_fill_(mask(device), 1.0)
            torch._C._set_warnAlways(False)
        assert any("expanded tensors is deprecated" in str(w.message) for w in heard), device


def test_lazily_negated_operands_of_operators_that_run_at_once():
    def values(device):
        z = torch.tensor([1 + 2j, 3 - 4j, 1 + 2j], device=device)
        return torch.unique(z.conj().imag)

    assert values("tpu").tolist() == values("cpu").tolist() == [-2, 4]


COLUMNS = {
    "chunks": lambda x: x.chunk(3, 1),
    "columns": lambda x: x.unbind(1),
    "every other row": lambda x: (x[::2], x[1::2]),
    "columns of some rows": lambda x: (x[1:4, :2], x[2:, 2:5], x[0]),
    "heads": lambda x: x.view(6, 3, 2).unbind(1),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_lists_of_columns_of_one_matrix(name):
    def program(x):
        x = x * 1
        torch._foreach_add_(COLUMNS[name](x), 1)
        torch._foreach_mul_(COLUMNS[name](x), 3)
        return x

    check_compiled(program, torch.randn(6, 6))


def test_lists_of_columns_that_meet():
    def program(x):
        x = x * 1
        torch._foreach_add_([x[:, :3], x[:, 2:5]], 1)
        torch._foreach_mul_([x[::2], x[1], x[2, 1:]], 3)
        torch._foreach_mul_([x[:, ::2], x[:, 1:4:2], x[3]], 3)
        return x

    check(program, torch.randn(6, 6))
