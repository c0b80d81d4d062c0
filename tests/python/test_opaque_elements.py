"""Types that the compiler's kernels move and do not compute in (float8, complex halves, bits), and those that promote
with none; against the CPU."""

import math

import pytest
import torch
from helpers import COUNTS, DTYPES, assert_same, check, compiled

FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
REALS = torch.tensor([[1.5, -0.3, 2.0, -448.0], [0.01, 0.0, math.inf, math.nan]])


def several_runs(function, *arguments):
    """Recorded, and by torch.compile: each op by op and as compiled programs. Float8 results are compared by bits."""

    def program(*tensors):
        return [x.view(torch.uint8) if x.dtype in FLOAT8 else x for x in function(*tensors)]

    check(program, *arguments)
    expected = program(*arguments)
    graph = compiled(program)
    for _ in range(3):
        assert_same(expected, graph(*(x.to("tpu") for x in arguments)))
        torch.tpu.wait_for_compiles()


@pytest.mark.parametrize("eight", FLOAT8)
def test_conversions_of_float8(eight, fresh_dynamo):
    floats = [dtype for dtype in DTYPES if dtype.is_floating_point or dtype.is_complex]

    def program(counts, reals):
        small, special = counts.to(eight), reals.to(eight)
        there = [small.to(dtype) for dtype in [*DTYPES, torch.uint16, *FLOAT8]]
        there += [special.to(dtype) for dtype in [*floats, *FLOAT8]]
        return [*there, *(x.to(eight) for x in there)]

    several_runs(program, COUNTS, REALS)
    several_runs(lambda x: [x.to(dtype) for dtype in [*floats, *FLOAT8]], REALS.to(eight))


@pytest.mark.parametrize("eight", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_conversions_of_every_number_of_float8(eight, fresh_dynamo):
    """All bytes; what lies between two of them and beside that; what is too large, or no number."""
    bits = torch.arange(256, dtype=torch.uint8).view(eight)
    finite = bits.float()[bits.float().isfinite()].unique()
    largest = finite.max() / 448 * torch.arange(440.0, 520.0)
    numbers = torch.cat([finite, (finite[1:] + finite[:-1]) / 2, largest, -largest, torch.logspace(-45, 38, 400)])
    beside = [torch.nextafter(numbers, torch.full_like(numbers, far)) for far in (-math.inf, math.inf)]
    numbers = torch.cat([numbers, *beside, torch.tensor([math.inf, -math.inf, -0.0])])
    floats = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

    def program(bits, numbers):
        wide = [bits.to(dtype) * 2 for dtype in floats]
        other = [bits.to(dtype) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)]
        back = [x.nan_to_num(0, math.inf, -math.inf).to(eight) for x in wide]  # XLA's bf16 lose the sign of NaN
        return *wide, *other, *back, *(numbers.to(dtype).to(eight) for dtype in floats)

    several_runs(program, bits, numbers)


@pytest.mark.parametrize("eight", FLOAT8)
def test_elements_of_float8_are_moved(eight, fresh_dynamo):
    def program(x, reals, index):
        into = torch.empty_like(x).copy_(reals)
        window = into.clone()
        window[:, 1:3] = reals[:, :2]
        return [
            into.t().contiguous(),
            into.as_strided((2, 2), (3, 1), 1).clone(),
            x[:0].clone(),
            torch.cat([x[:0], x[:0]]),
            torch.cat([x, into, window]),
            torch.stack([x, into], -1),
            window,
            x.roll(1),
            x.clone().fill_(2),
            x.clone().zero_(),
            torch.zeros_like(x),
            torch.full_like(x, 1.5),
            torch.where(reals > 0, x, into),
            x[index],
            x.index_select(1, index),
        ]

    several_runs(program, COUNTS.to(eight), REALS, torch.tensor([1, 0]))
    check(lambda x: x[x.float() > 1].view(torch.uint8), COUNTS.to(eight))


def test_complex_halves_meet_other_types(fresh_dynamo):
    """Host kernels alone convert them."""

    def program(x):
        halves = (x + 1).to(torch.complex32)
        found = [torch.cat([x, halves]), torch.stack([halves, x + 1], -1), x + 1j, torch.where(x > 1, x, 2j)]
        return [*(c.to(torch.complex64) for c in found), x + 1 == 2j, x + 1 != 3 + 0j]

    before = torch.tpu.metrics()["compile_failures"]
    several_runs(program, torch.arange(4.0).half())
    assert torch.tpu.metrics()["compile_failures"] == before


def test_products_of_float8(fresh_dynamo):
    def program(x, y, scale):
        return [torch._scaled_mm(x, y.t(), scale_a=scale, scale_b=scale, out_dtype=torch.float32)]

    eight = torch.float8_e4m3fn
    several_runs(program, torch.randn(16, 32).to(eight), torch.randn(48, 32).to(eight), torch.tensor(0.5))


def test_formats_that_are_only_moved():
    x = torch.arange(6, dtype=torch.uint8)
    moved = x.to("tpu").view(torch.bits8)[1:5].clone()
    assert moved.cpu().view(torch.uint8).tolist() == [1, 2, 3, 4]
    for convert in (
        lambda: moved.float(),
        lambda: moved.to(torch.bits2x4),
        lambda: torch.ones(3, device="tpu").to(torch.bits8),
        lambda: moved.clone().copy_(torch.ones(4, device="tpu")),
    ):
        with pytest.raises(NotImplementedError, match=r"no conversion .*Bits8"):
            convert()


def test_positions_beside_types_that_promote_with_none():
    def program(x):
        wide = x.to(torch.uint16)
        index = torch.tensor([1, 0], device=x.device)
        return wide[index], torch.where(x > 1, wide, wide[index])

    check(program, COUNTS)


@pytest.mark.embedded_only(reason="programs of other devices do what the CPU has no kernel for")
def test_what_the_cpu_has_no_kernel_for_is_always_an_error():
    x = COUNTS.to(torch.float8_e5m2).to("tpu")
    for _ in range(4):
        with pytest.raises(NotImplementedError, match="flip_cpu"):
            x.flip(1)
        torch.tpu.wait_for_compiles()
