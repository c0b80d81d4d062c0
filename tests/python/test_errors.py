"""Mistakes raise at the call, with the CPU's exception type."""

import pytest
import torch


def error_of(function, device):
    try:
        function(device)
    except Exception as error:
        return error
    raise AssertionError(f"no error on {device}")


CASES = {
    "shapes don't broadcast": lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
    "matmul shapes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "matmul dtypes": lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, dtype=torch.float64, device=d),
    "view of the wrong size": lambda d: torch.ones(6, device=d).view(4, 2),
    "view of strided": lambda d: torch.ones(4, 4, device=d).t().view(16),
    "dim out of range": lambda d: torch.ones(2, device=d).sum(3),
    "dim twice": lambda d: torch.ones(2, 2, device=d).sum((0, 0)),
    "in-place promotion": lambda d: torch.ones(2, dtype=torch.int32, device=d).add_(1.5),
    "in-place broadcast": lambda d: torch.ones(2, device=d).add_(torch.ones(3, 2, device=d)),
    "cat shapes": lambda d: torch.cat([torch.ones(2, 2, device=d), torch.ones(2, 3, device=d)]),
    "stack shapes": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "index dtype": lambda d: torch.ones(3, device=d)[torch.ones(3, device=d)],
    "select out of range": lambda d: torch.ones(3, device=d)[5],
    "narrow out of range": lambda d: torch.ones(3, device=d).narrow(0, 2, 4),
    "bitwise of floats": lambda d: torch.ones(3, device=d) & 1,
    "mean of integers": lambda d: torch.ones(3, dtype=torch.int64, device=d).mean(),
    "item of many": lambda d: torch.ones(3, device=d).item(),
    "bool of many": lambda d: bool(torch.ones(3, device=d)),
    "grad of integers": lambda d: torch.ones(3, dtype=torch.int64, device=d).requires_grad_(),
    "in-place on leaf": lambda d: torch.ones(3, device=d, requires_grad=True).add_(1),
    "backward of many": lambda d: (torch.ones(3, device=d, requires_grad=True) * 2).backward(),
    "conv channels": lambda d: torch.conv2d(torch.ones(1, 3, 4, 4, device=d), torch.ones(2, 4, 3, 3, device=d)),
    "linear shapes": lambda d: torch.nn.functional.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
    "embedding dtype": lambda d: torch.nn.functional.embedding(torch.ones(2, device=d), torch.ones(3, 2, device=d)),
    "overlapping write": lambda d: torch.ones(1, device=d).expand(3).add_(1),
    "out dtype": lambda d: torch.add(torch.ones(2, device=d), 1.5, out=torch.ones(2, dtype=torch.int32, device=d)),
    "expand": lambda d: torch.ones(2, 3, device=d).expand(2, 4),
    "squeeze dim": lambda d: torch.ones(2, device=d).squeeze(4),
    "repeat": lambda d: torch.ones(2, 3, device=d).repeat(2),
    "negative size": lambda d: torch.empty(-1, device=d),
    "split": lambda d: torch.ones(5, device=d).split([2, 2]),
    "scatter index dtype": lambda d: torch.ones(3, device=d).scatter_(0, torch.ones(1, device=d), 1.0),
    "cross_entropy shapes": lambda d: torch.nn.functional.cross_entropy(
        torch.ones(2, 3, device=d), torch.ones(4, dtype=torch.int64, device=d)
    ),
    "no such overload": lambda d: torch.add(torch.ones(2, device=d), "one"),
}


@pytest.mark.parametrize("name", CASES)
def test_same_error_at_the_call(name):
    expected, found = error_of(CASES[name], "cpu"), error_of(CASES[name], "tpu")
    assert type(found) is type(expected), f"{expected!r} on cpu, {found!r} on tpu"
    assert str(found)


def test_an_error_leaves_the_device_usable():
    x = torch.ones(2, 3, device="tpu")
    y = x * 2
    with pytest.raises(RuntimeError):
        x + torch.ones(4, device="tpu")
    assert y.sum().item() == 12


def test_errors_of_values_surface_at_the_read():
    table = torch.ones(3, 2, device="tpu")
    rows = torch.nn.functional.embedding(torch.tensor([7], device="tpu"), table)
    with pytest.raises((IndexError, RuntimeError), match=r"embedding|index"):
        rows.cpu()
    assert table.sum().item() == 6


def test_error_of_a_value_names_operator_and_line():
    table = torch.ones(3, 2, device="tpu")
    rows = torch.nn.functional.embedding(torch.tensor([7], device="tpu"), table)
    with pytest.raises((IndexError, RuntimeError)) as caught:
        rows.cpu()
    assert "embedding" in str(caught.value) or "index_select" in str(caught.value)


def test_debug_mode_raises_at_the_line():
    table = torch.ones(3, 2, device="tpu")
    with torch.tpu.eager_mode("debug"), pytest.raises((IndexError, RuntimeError)):
        torch.nn.functional.embedding(torch.tensor([7], device="tpu"), table)


def test_invalid_device():
    with pytest.raises(RuntimeError, match=r"ordinal"):
        torch.ones(1, device="tpu:99")
    with pytest.raises(RuntimeError, match=r"ordinal"):
        torch.tpu.set_device(99)
