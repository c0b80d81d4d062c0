"""Medians, k-th values, modes, running extrema and sums of exponentials, against the CPU's kernels."""

import pytest
import torch
from helpers import EMBEDDED, check, check_compiled

RANKS = {
    "kthvalue": lambda x: torch.kthvalue(x, 3),
    "kthvalue, first dim": lambda x: torch.kthvalue(x, 2, 0, keepdim=True),
    "median": torch.median,
    "median.dim": lambda x: torch.median(x, 0),
    "nanmedian": torch.nanmedian,
    "nanmedian.dim": lambda x: torch.nanmedian(x, -1, keepdim=True),
    "mode": torch.mode,
    "mode, first dim": lambda x: torch.mode(x, 0, keepdim=True),
}
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]


def numbers(dtype):
    """Some in every line equal."""
    return torch.randint(0, 9, (6, 11), generator=torch.Generator().manual_seed(0)).to(dtype)


def values(ranked, x):
    """What is ranked, and what the indices name: of equal elements any."""
    if isinstance(ranked, torch.Tensor):
        return ranked
    kept = ranked.indices.dim() == x.dim()
    dim = next(d for d in range(2) if x.size(d) not in ranked.indices.shape)
    indices = ranked.indices if kept else ranked.indices.unsqueeze(dim)
    return [ranked.values, x.gather(dim, indices)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", RANKS)
def test_ranks(name, dtype):
    (check if EMBEDDED else check_compiled)(lambda x: values(RANKS[name](x), x), numbers(dtype))


@pytest.mark.parametrize("name", ["median", "median.dim", "nanmedian", "nanmedian.dim"])
def test_medians_beside_nan(name):
    x = numbers(torch.float32)
    x[1, 2] = x[3, 4] = x[3, 6] = torch.nan
    if name != "nanmedian.dim":  # of nothing but NaN, any is its index
        x[4] = torch.nan
    check(RANKS[name], x)


def test_of_numbers():
    x = torch.tensor(2.5)
    check(lambda x: [x.median(), x.nanmedian(), *x.median(0), *x.kthvalue(1), *x.mode(), *x.cummax(0)], x)


def test_gradients_of_ranks():
    def program(x):
        x = x.requires_grad_()
        y = x.median() + x.kthvalue(2, 0).values.sum() + x.nanmedian(1).values.square().sum()
        return torch.autograd.grad(y, x)

    check(program, torch.randn(6, 11))


@pytest.mark.parametrize("dtype", [*TYPES, torch.bool])
@pytest.mark.parametrize("running", [torch.cummax, torch.cummin])
def test_running_extrema(running, dtype):
    check_compiled(lambda x: [*running(x, 0), *running(x, 1), *running(x[:, :0], 1)], numbers(dtype))


def test_running_extrema_beside_nan():
    x = numbers(torch.float32)
    x[1, 2] = x[3, 4] = x[3, 6] = torch.nan
    x[2, 3] = torch.inf
    check_compiled(lambda x: [*torch.cummax(x, 1), *torch.cummin(x, 1)], x)


@pytest.mark.embedded_only(reason="XLA's extrema of zeros are either")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("running", [torch.cummax, torch.cummin])
def test_running_extrema_have_the_last_zero_s_sign(running, dtype):
    zeros = torch.tensor([0.0, -0.0, 0.0, -1.0, -0.0, 1.0, -0.0, 0.0], dtype=dtype)
    check(lambda x: [running(y, 0).values.signbit() for y in (x, -x, x[:3], -x[:3])], zeros)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_running_sums_of_exponentials(dtype):
    def program(x):
        x = x.requires_grad_()
        return torch.autograd.grad(torch.logcumsumexp(x, 1).sum(), x)

    def sums(x):
        return [torch.logcumsumexp(x, d) for d in (0, 1)]

    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(0)).mul(20).to(dtype)
    check_compiled(program, x / 20, **({"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}))
    check_compiled(sums, x)
    check_compiled(lambda x: torch.logcumsumexp(x[:, :0], 1), x)
    x[0, 7], x[1, 9], x[2, 8] = torch.inf, torch.nan, -torch.inf
    x[3, :9] = -torch.inf
    x[4, 100:] -= 3000
    check_compiled(sums, x)
    x[4, 280:] = 1e6
    check_compiled(sums, x)
