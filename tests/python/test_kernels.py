"""What kernels compute and how they read: joined parts, strides, powers, products, resampling; against the CPU.

Those that are ready too: which memory they read, and which they write over.
"""

import inspect
import math
import textwrap
import time

import pytest
import torch
from helpers import check, check_compiled, run_python


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_parts_that_are_joined_are_read_in_any_way(dtype):
    """A concatenation is no copy: its readers read the part that a position lies in."""

    def program(table, index):
        rows = torch.cat([table[i : i + 1 + i % 3] for i in range(40)])  # of many lengths
        blocks = torch.cat([part.reshape(16, -1) for part in table.split(2)], 1)
        nested = torch.cat([torch.cat([table[:3], table.flip(0)[:5]]), torch.cat([table[1:2], table[index]])])
        pairs = torch.stack([table[i] for i in range(0, 40, 2)], 1)
        turned = rows.t().contiguous(), rows.flip(0), rows[3:50:2, 1:9], blocks.t().reshape(-1), rows[index, 3]
        sums = [x.double().sum(dim) for x in (rows, blocks, nested, pairs) for dim in (0, 1)]
        best = rows.double().softmax(0), blocks.double().argmax(1), nested.double().cumsum(0)
        return rows, blocks, nested, pairs, *turned, *sums, *best, torch.cat([rows == 0, nested != 0])

    generator = torch.Generator().manual_seed(0)
    table = torch.randint(-3, 9, (44, 24), generator=generator).to(dtype)
    check(program, table, torch.tensor([0, 43, 7, 7, 20, 1]))


def joined(x):
    return torch.cat([x, x[:1]])


def shifted_and_centred(x):
    x = torch.nn.functional.pad(x, (1, 0))[:, :-1] + x
    return x - x.mean(1, keepdim=True)


def turned(x):
    return (x.t().reshape(x.shape) + x) * 0.5


@pytest.mark.embedded_only(reason="about the code that is written for the embedded device")
@pytest.mark.parametrize("step", [joined, shifted_and_centred, turned])
def test_long_chains_compile_in_no_time(step):
    """Each step reads the one before twice: what is walked or written twice at each doubles thirty times."""
    program = f"""
        import torch

        {textwrap.indent(inspect.getsource(step), " " * 8).lstrip()}
        def chain(x):
            x = x.exp()
            for _ in range(30):
                x = {step.__name__}(x)
            return x, x.square().sum()

        x = torch.randn(8, 45, dtype=torch.float64)
        for _ in range(6):
            for expected, found in zip(chain(x), chain(x.to("tpu"))):
                torch.testing.assert_close(found.cpu(), expected)
            torch.tpu.wait_for_compiles()
        print(torch.tpu.metrics()["launches_tier1"])
    """
    assert int(run_python(program, environment={"TORCH_TPU_COMPILE_AFTER": "2"}).stdout) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool])
def test_every_second_element(dtype):
    def program(x):
        y = x.reshape(-1)
        return (
            x[:, ::2] * 2,
            x[:, 1::2] * 2,
            y[1::2] * 2,
            y[-3::2] * 2,
            x[:, ::2].double().sum(1),
            y[::2].double().sum(),
        )

    for width in (1, 2, 15, 16, 33, 257, 1000):
        check(program, torch.arange(3 * width).reshape(3, width).to(dtype))


def tens_and_twos(dtype):
    tens = torch.tensor([10.0**k for k in range(-30, 31)], dtype=torch.float64).to(dtype)
    return tens, torch.arange(-150, 131, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers(dtype):
    def program(tens, twos):
        return (
            torch.log10(tens),
            torch.exp2(twos),
            torch.logaddexp2(twos, -twos),
            torch._foreach_log10([tens, tens * 2]),
        )

    check(program, *tens_and_twos(dtype))


@pytest.mark.embedded_only(reason="XLA makes them of other functions")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_are_exact(dtype):
    tens, twos = tens_and_twos(dtype)
    assert torch.equal(torch.exp2(twos.to("tpu")).cpu(), torch.exp2(twos.double()).to(dtype))
    if dtype == torch.float64:
        assert torch.equal(torch.log10(tens.to("tpu"))[30:].cpu(), torch.arange(31, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("length", [0, 1, 7, 1000, 70000])
def test_inner_products(dtype, length):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4, length, generator=generator).to(dtype) / max(length, 1) ** 0.5 for _ in range(2))

    def program(x, y):
        return torch.dot(x[0], y[1]), x[:1] @ y.t()[:, :1], torch.bmm(x[:, None], y[:, :, None]), torch.vdot(x[0], y[0])

    check(program, x, y, rtol=2e-2, atol=2e-2) if dtype.itemsize == 2 else check(program, x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_products_of_integers(dtype):
    def program(x, y, z):
        return x @ y, x @ z.t(), y.t() @ x.t(), x[0] @ y, x @ y[:, 0], torch.bmm(x[None], y[None]), x[:, :0] @ y[:0]

    generator = torch.Generator().manual_seed(0)
    shapes = (33, 70), (70, 41), (41, 70)
    check(program, *(torch.randint(-9, 9, shape, generator=generator).to(dtype) for shape in shapes))


@pytest.mark.parametrize("rows,depth,columns", [(20, 37, 45), (70, 530, 33), (1, 17, 3)])
def test_products_of_half_precision(rows, depth, columns):
    """Sums in f32, rounded once; conversions keep what is no number, too large or too small."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(rows, depth, generator=generator).half(), torch.randn(depth, columns, generator=generator).half()
    a[0, 0], b[0, 0], b[1, 1], b[2, 2], a[-1, -1] = 6e-8, 65504, float("inf"), float("nan"), 6e-5
    exact = (a.double() @ b.double()).half()
    for left, right in ((a, b), (a.t().contiguous().t(), b), (a, b.t().contiguous().t())):
        got = torch.mm(left.to("tpu"), right.to("tpu")).cpu()
        torch.testing.assert_close(got, exact, rtol=2e-3, atol=1e-3, equal_nan=True)


# Operator, channels, size, kernel, and the rest.
GROUPED = {
    "depthwise": ("conv2d", (12, 12), (16, 16), (7, 7), {"padding": 3, "groups": 12}),
    "stride": ("conv2d", (12, 24), (15, 17), (3, 3), {"padding": 1, "stride": 2, "groups": 12}),
    "groups of eight": ("conv2d", (24, 24), (14, 9), (3, 3), {"padding": (0, 1), "stride": (1, 2), "groups": 3}),
    "groups of many": ("conv2d", (40, 8), (5, 5), (3, 3), {"padding": 1, "groups": 2}),
    "groups of many, one after the other": ("conv2d", (64, 80), (13, 11), (3, 3), {"padding": 1, "groups": 2}),
    "patches": ("conv2d", (3, 32), (64, 64), (16, 16), {"stride": 16}),
    "transposed": ("conv_transpose2d", (12, 8), (6, 5), (4, 4), {"padding": 1, "stride": 2, "groups": 4}),
    "transposed beyond the last window": (
        "conv_transpose2d",
        (2, 4),
        (4, 4),
        (4, 5),
        {"padding": (1, 2), "stride": (3, 2), "groups": 2, "dilation": 4, "output_padding": (2, 3)},
    ),
    "signal": ("conv1d", (6, 10), (90,), (3,), {"padding": 4, "dilation": 4}),
    "depthwise signal": ("conv1d", (12, 12), (90,), (4,), {"padding": 3, "groups": 12}),
    "transposed signal": ("conv_transpose1d", (6, 10), (30,), (4,), {"padding": 1, "stride": 3}),
}
# The window covers the image.
COVERING = {
    "image": ("conv2d", (12, 8), (5, 4), (5, 4), {}),
    "point": ("conv2d", (12, 8), (1, 1), (1, 1), {"stride": 2, "dilation": 3}),
    "signal": ("conv1d", (6, 10), (9,), (9,), {}),
    "volume": ("conv3d", (6, 10), (2, 3, 4), (2, 3, 4), {}),
    "transposed": ("conv_transpose2d", (12, 8), (1, 1), (4, 3), {"stride": 2}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", [*GROUPED.values(), *COVERING.values()], ids=[*GROUPED, *COVERING])
def test_convolutions_in_groups_of_signals_and_whole_images(case, dtype):
    operator, (inputs, outputs), size, kernel, arguments = case
    groups = arguments.get("groups", 1)
    outer = (inputs, outputs // groups) if "transpose" in operator else (outputs, inputs // groups)

    def program(x, w, b):
        operands = [t.requires_grad_() for t in (x, w, b)]
        y = getattr(torch.nn.functional, operator)(*operands, **arguments)
        return y.detach(), *torch.autograd.grad(y.float().square().mean(), operands)

    generator = torch.Generator().manual_seed(0)
    shapes = (3, inputs, *size), (*outer, *kernel), (outputs,)
    close = 1e-4 if dtype == torch.float32 else 4e-2
    operands = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    check(program, *operands, rtol=close, atol=close)
    before = torch.tpu.metrics()["host_kernel_calls"]
    held = program(*(t.detach().to("tpu") for t in operands))  # what nobody holds is not computed
    torch.tpu.synchronize()
    assert torch.tpu.metrics()["host_kernel_calls"] == before
    del held


RESAMPLED = {
    "linear": [((2, 3, 5), 9), ((2, 3, 400), 1000), ((1, 2, 1000), 300), ((1, 1, 30), 30)],
    "bilinear": [((2, 3, 6, 7), (11, 3)), ((1, 2, 40, 60), (100, 33)), ((1, 2, 8, 300), (160, 40))],
    "bicubic": [
        ((2, 3, 6, 7), (11, 3)),
        ((1, 2, 40, 60), (100, 33)),
        ((1, 2, 8, 300), (160, 40)),
        ((1, 2, 4, 5), (4, 9)),
    ],
    "trilinear": [((1, 2, 3, 4, 5), (5, 2, 9)), ((1, 1, 20, 24, 18), (31, 40, 7))],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", RESAMPLED)
@pytest.mark.parametrize("corners", [False, True])
def test_resampled_between_neighbours(mode, corners, dtype):
    """Two neighbours weighed, or four; gradients of few positions are summed by a matrix of weights."""
    for shape, size in RESAMPLED[mode]:

        def program(x, size=size):
            x = x.requires_grad_()
            sizes = torch.nn.functional.interpolate(x, size=size, mode=mode, align_corners=corners)
            scaled = torch.nn.functional.interpolate(x, scale_factor=1.7, mode=mode, align_corners=corners)
            weights = torch.arange(sizes.numel(), dtype=x.dtype, device=x.device).reshape(sizes.shape) % 11
            return sizes.detach(), scaled.detach(), *torch.autograd.grad((sizes * weights).sum() + scaled.sum(), x)

        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        check(program, x, rtol=1e-4 if dtype == torch.float32 else 1e-9, atol=1e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("scale", [1.15, 2.1, 0.85, 2.0, 41.0])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_resampled_by_a_scale_that_sizes_do_not_tell(dims, mode, scale):
    """Five positions by 1.15 are five, but not the same five."""
    mode = mode if mode != "linear" else ("linear", "bilinear", "trilinear")[dims - 1]
    scale = scale if dims == 1 else (1.0,) * (dims - 2) + (scale, 1.19)

    def program(x):
        x = x.requires_grad_()
        resampled = torch.nn.functional.interpolate(x, scale_factor=scale, mode=mode)
        weights = torch.arange(resampled.numel(), device=x.device).reshape(resampled.shape) % 11
        return resampled.detach(), *torch.autograd.grad((resampled * weights).sum(), x)

    check(program, torch.randn(1, 2, *(5,) * dims, generator=torch.Generator().manual_seed(0)), rtol=1e-4, atol=1e-4)


WINDOWS = {
    "beside each other": {"kernel_size": (3, 2), "stride": (3, 2)},
    "beside each other, padded": {"kernel_size": 4, "stride": 4, "padding": 1},
    "over each other": {"kernel_size": (3, 4), "padding": (1, 2)},
    "with gaps": {"kernel_size": 2, "stride": (3, 5), "padding": 1},
    "of elements apart": {"kernel_size": (2, 3), "dilation": (3, 2), "padding": (0, 3), "stride": (1, 2)},
    "of one element": {"kernel_size": 1},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
def test_windows_as_columns(windows, dtype):
    def program(x):
        x = x.requires_grad_()
        columns = torch.nn.functional.unfold(x, **windows)
        one = torch.nn.functional.unfold(x[0], **windows)
        folded = torch.nn.functional.fold(columns.sin(), x.shape[2:], **windows)
        gradient = torch.autograd.grad(columns.sin().sum() + one.sum() + folded.sum(), x)
        return columns.detach(), one.detach(), folded.detach(), *gradient

    x = torch.randn(2, 3, 9, 11, generator=torch.Generator().manual_seed(0)).to(dtype)
    half = {"rtol": 2e-2, "atol": 5e-2} if dtype.itemsize == 2 else {}
    check(program, x, **half)
    for _ in range(2):
        before = torch.tpu.metrics()["host_kernel_calls"]
        held = program(x.to("tpu"))  # what nobody holds is not computed
        torch.tpu.synchronize()
        torch.tpu.wait_for_compiles()
    assert torch.tpu.metrics()["host_kernel_calls"] == before
    del held


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_traces_and_angles(dtype):
    def program(x):
        return torch.trace(x), torch.trace(x.t()), torch.trace(x[:1]), torch.trace(x[:0]), torch.angle(x)

    x = torch.tensor([[1.5, -2, 0, -0.0], [math.nan, -3, 7, 2], [math.inf, -math.inf, -1, 9]])
    x = x if dtype.is_floating_point else x.nan_to_num(1, 5, -5)
    check(program, x.to(dtype))


def test_gradients_of_traces_and_angles():
    def program(x):
        x = x.requires_grad_()
        return torch.autograd.grad(torch.trace(x).square() + x.angle().sum(), x)

    check(program, torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))


def test_pooled_to_a_size_that_does_not_divide_a_long_one():
    def program(x):
        x = x.requires_grad_()
        pooled = torch.nn.functional.adaptive_avg_pool1d(x, 1100)
        return pooled.detach(), *torch.autograd.grad((pooled * torch.arange(1100, device=x.device)).sum(), x)

    check(program, torch.randn(1, 2, 3001, generator=torch.Generator().manual_seed(0)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", [0, 1, 300])
@pytest.mark.parametrize("override", [None, 7])
def test_pooled_by_a_window_that_is_larger_than_what_it_covers(padding, override):
    """EfficientNet pools so: what hangs over in ceil_mode is not read, nor summed."""

    def program(x):
        x = x.requires_grad_()
        average = torch.nn.functional.avg_pool2d
        pools = [average(x, 640, None, padding, True, counts, override) for counts in (True, False)]
        pools += [average(x, (640, 2), (640, 1), (padding, 1), True, False, override)]
        pools += torch.nn.functional.max_pool2d(x, 640, None, padding, 1, True, return_indices=True)
        weighed = sum((y * torch.arange(1, y.numel() + 1, device=y.device).reshape(y.shape)).sum() for y in pools[:-1])
        return *(y.detach() for y in pools), *torch.autograd.grad(weighed, x)

    check(program, torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)))


@pytest.mark.embedded_only(reason="about the code that is written for the embedded device")
def test_pooled_by_windows_of_thousands():
    def program(x):
        F = torch.nn.functional
        tiles = F.avg_pool1d(x, 3000), F.max_pool1d(x, 3000, ceil_mode=True), F.lp_pool1d(x, 2.0, 3000)
        pools = F.avg_pool1d(x, 3001, 7, 100), F.max_pool1d(x, 1001, 3, 400, dilation=6), F.avg_pool1d(x, 4096, 1)
        return *tiles, *pools, F.max_pool1d(x, 3000, 500, return_indices=True)[1]

    start = time.monotonic()
    check(program, torch.rand(1, 2, 9001, generator=torch.Generator().manual_seed(0)))
    assert time.monotonic() - start < 20  # where there was code for every element: minutes


@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_what_is_no_number_stays_where_it_is_weighed(number):
    """A weight of 0 for every other position would spread it over all of them."""

    def program(x):
        pools = torch.nn.functional.adaptive_avg_pool2d(x, (3, 5)), torch.nn.functional.adaptive_avg_pool1d(x[0], 13)
        resampled = [
            torch.nn.functional.interpolate(x, size=(13, 5), mode=mode) for mode in ("bilinear", "bicubic", "area")
        ]
        return *pools, *resampled

    x = torch.rand(1, 2, 7, 8, generator=torch.Generator().manual_seed(0))
    x[0, 1, 2, 3] = number
    check(program, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_products_with_vectors_and_of_depth_one(dtype):
    """Each by a kernel of its own making where it is small, forward and backward, by matrices that lie either way."""

    def program(a, b, x, y):
        a, b, x, y = (t.clone().requires_grad_() for t in (a, b, x, y))
        results = [
            (a @ x.unsqueeze(-1)).squeeze(-1).sin(),
            (x.unsqueeze(1) @ b).relu(),
            (y.unsqueeze(1) @ a).sin(),
            x.unsqueeze(-1) @ y.unsqueeze(1),
            torch.mv(a[0], x[0]),
            torch.outer(x[0], y[0]),
            torch.nn.functional.linear(x[:1], a[0], y[0]),
            torch.dot(x[0], x[1]),
            (b.transpose(1, 2) @ x.unsqueeze(-1)),
        ]
        gradients = torch.autograd.grad(sum(r.float().square().sum() for r in results), (a, b, x, y))
        return *(r.detach() for r in results), *gradients

    generator = torch.Generator().manual_seed(0)
    shapes = (3, 9, 17), (3, 17, 9), (3, 17), (3, 9)
    half = {"rtol": 2e-2, "atol": 5e-2} if dtype.itemsize == 2 else {}
    check(program, *(torch.randn(shape, generator=generator).div(2).to(dtype) for shape in shapes), **half)


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_with_quantized_weights(dtype, rows):
    """As torchao writes them: bytes, scaled after the product or before it, with a zero point or without."""

    def program(x, w, turned, eighth, zero, scale):
        scaled = (eighth.to(torch.float32) * scale[:, None]).to(x.dtype)
        shifted = (w.to(x.dtype) - zero[:, None].to(x.dtype)) * scale[:, None].to(x.dtype)
        return (
            x @ w.t().to(x.dtype) * scale.to(x.dtype),
            x @ turned.to(x.dtype),
            x @ scaled.t(),
            x @ shifted.t(),
            torch.nn.functional.linear(x, w.to(x.dtype), scale.to(x.dtype)),
        )

    generator = torch.Generator().manual_seed(0)
    w = torch.randint(-128, 128, (220, 80), dtype=torch.int8, generator=generator)
    x, scale = torch.randn(rows, 80, generator=generator).div(64).to(dtype), torch.rand(220, generator=generator)
    zero = torch.randint(-9, 9, (220,), dtype=torch.int8, generator=generator)
    check(program, x, w, w.view(80, 220), (w / 32).to(torch.float8_e4m3fn), zero, scale)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.uint8])
def test_places_in_sorted_sequences(dtype, right, metrics):
    values = torch.randint(0, 50, (3, 40), generator=torch.Generator().manual_seed(1)).to(dtype)
    for length in (0, 1, 2, 37, 64):
        sequences = torch.randint(0, 50, (3, length), generator=torch.Generator().manual_seed(2)).sort(-1).values
        sequences = sequences.to(dtype)
        for kind in (torch.int32, torch.int64):
            options = {"out_int32": kind == torch.int32, "right": right}
            check(lambda s, v, options=options: torch.searchsorted(s, v, **options), sequences, values)
            check(lambda s, v, options=options: torch.bucketize(v, s[1], **options), sequences, values)
        check(lambda s: torch.searchsorted(s, 7, side="right" if right else "left"), sequences[0].clone())
    check(lambda s: torch.searchsorted(s, torch.tensor(3.5, device=s.device), right=right), sequences[0].clone())
    assert not torch.tpu.explain().host_kernels


@pytest.mark.parametrize("right", [False, True])
def test_places_in_sequences_that_are_not_sorted(right):
    infinity, nan = math.inf, math.nan
    values = torch.tensor([nan, -infinity, infinity, 0.0, -0.0, 2.5])
    for sequence in ([1.0, nan, 0.0, 3.0, 2.0], [nan, nan], [-infinity, -0.0, 0.0, infinity], [-1.0, 0.0, 5.0, nan]):
        check(lambda s, v: torch.searchsorted(s, v, right=right), torch.tensor(sequence), values)


TIER_0 = {"TORCH_TPU_COMPILE_AFTER": "1000000"}


def test_ready_kernels_write_only_what_is_given_up():
    """At tier 0 a kernel writes over operands that nobody else holds, and over nothing else."""
    run_python(
        """
        import os
        import torch

        def program(device):
            base = torch.arange(24.0, device=device)
            kept = base * 1
            parts = torch.unsafe_split(base * 1, 8)
            parts[1].add_(100)  # its memory is a part of what parts[0] and parts[2] have
            row = base.view(4, 6)[1]
            row.mul_(2)
            chain = base + 0
            for i in range(5):
                chain.add_(chain).sub_(base.view(4, 6).t().reshape(-1))
            scattered = torch.diagonal_scatter(base.view(4, 6), torch.zeros(4, device=device))
            weight, gradient = base.clone(), base.clone()
            moment, second, steps = torch.zeros_like(weight), torch.zeros_like(weight), torch.ones((), device=device)
            before = weight.clone()
            torch._fused_adamw_([weight], [gradient], [moment], [second], [], [steps], lr=0.1, beta1=0.9, beta2=0.99,
                                weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)
            trained = weight, gradient, moment, second, before
            return [t.cpu() for t in (base, kept, *parts, chain, scattered, *trained)]

        for expected, found in zip(program("cpu"), program("tpu"), strict=True):
            torch.testing.assert_close(found, expected)
        m = torch.tpu.metrics()
        # On a plugin a fragment of one operation has the program that tier 0 made of it.
        assert m["launches_tier1"] == 0 or os.environ.get("TORCH_TPU_PLUGIN", "host") != "host"
        assert m["launches_tier0"] > 0
        """,
        TIER_0,
    )


def test_ready_kernels_find_copies_contiguous():
    """Some read memory as if it were, or refuse what is not: their callers make it so."""
    run_python(
        """
        import torch
        import torch.nn.functional as F

        x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))

        def program(x):
            turned = x.transpose(1, 3).contiguous()
            same = x[:, :1].expand(2, 4, 4, 5).contiguous()
            last = x.contiguous(memory_format=torch.channels_last)
            flat = last.permute(0, 2, 3, 1).reshape(2, 20, 3)
            return (
                F.scaled_dot_product_attention(turned, turned, turned),
                F.scaled_dot_product_attention(flat, flat, flat),
                F.group_norm(x.transpose(1, 3), 1),
                F.group_norm(turned, 1),
                torch._weight_norm(turned, torch.ones(2, 1, 1, 1, device=x.device), 0),
                torch.pdist(x[0, 0].t()),
                same.median(1)[0],
                x.mT.reshape(6, 20).pow(2),
            )

        for expected, found in zip(program(x), program(x.to("tpu")), strict=True):
            torch.testing.assert_close(found.cpu(), expected)
        """,
        TIER_0,
    )


@pytest.mark.embedded_only(reason="programs of a plugin read whole values, not windows of them")
def test_ready_kernels_read_views_where_they_lie():
    """At tier 0 reading a view copies nothing: the kernel gets the strides."""
    run_python(
        """
        import torch

        x = torch.randn(1 << 20, device="tpu")
        torch.tpu.synchronize()
        torch.tpu.reset_peak_memory_stats()
        before = torch.tpu.memory_allocated()
        y = x.view(1024, 1024).t().sum(1)
        torch.tpu.synchronize()
        assert torch.tpu.max_memory_allocated() - before < (1 << 20), torch.tpu.max_memory_allocated() - before
        torch.testing.assert_close(y.cpu(), x.cpu().view(1024, 1024).t().sum(1))
        """,
        TIER_0,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_beside_half_types_are_rounded_where_the_cpu_rounds_them(dtype):
    """Bit for bit, op by op and compiled: remainders, comparisons, whole quotients jump where a number is another."""
    x = torch.cat(
        [torch.randn(4000) * 8, torch.rand(4000) * 200 - 100, torch.full((99,), 0.37), torch.full((9,), 0.3711)]
    ).to(dtype)
    y, n = x.roll(1), 0.37

    def binary(x, y):
        quotients = [torch.div(x, by, rounding_mode=mode) for by in (y, n, y[0], y[:1]) for mode in ("trunc", "floor")]
        remainders = x % y, x % n, n % y, x.fmod(n), x // y, x // n, n // y
        compared = x == n, x != n, x < n, x >= n, x > torch.tensor(n), torch.nn.functional.hardshrink(x, n)
        return *quotients, *remainders, *compared, x + n, x - n, n - x, x * n, n * x, x / n, n / x

    def lists(x, y):
        numbers = [f([x], n)[0] for f in (torch._foreach_add, torch._foreach_mul, torch._foreach_div)]
        return *numbers, torch._foreach_sub([x], [n])[0], torch.add(x, torch.arange(len(x), device=x.device) + 257)

    def lists_beside_f32(x, wide):
        calls = torch._foreach_add_, torch._foreach_sub_, torch._foreach_mul_, torch._foreach_div_
        written = [x.clone() for _ in calls]
        for call, z in zip(calls, written, strict=True):
            call([z], [wide])
        return written

    def thresholds(x, y):
        nn = torch.nn.functional
        x = x.detach().requires_grad_()
        outs = nn.threshold(x, 0.3705, 9.0), nn.hardshrink(x, 0.3705), nn.softshrink(x, 0.3705)
        return *outs, *torch.autograd.grad(sum(outs).sum(), x)

    check(binary, x, y, rtol=0, atol=0)
    check(lists, x, y, rtol=0, atol=0)
    check(lists_beside_f32, x, y.float() * 0.3701, rtol=0, atol=0)
    check(thresholds, x, y, rtol=0, atol=0)
    check(
        lambda x: (x.abs() ** 2.37, 2.37**x, torch._foreach_pow([x.abs()], 2.37)[0]),
        x.clamp(-40, 40),
        rtol=5e-3,
        atol=0,
    )


@pytest.mark.parametrize(
    ("shape", "dim"),
    [((16000, 4), 0), ((100003, 3), 0), ((1300, 47), 0), ((32, 2000, 8), 1), ((60000,), 0), ((40, 50000), 1)],
)
def test_long_sums_are_as_accurate_as_the_cpus(shape, dim):
    """Of equal numbers, whose sums are rounded the same way again and again."""
    check(lambda x: (x.sum(dim), (x * 3).mean(dim)), torch.full(shape, 0.1))


@pytest.mark.parametrize("shape", [(70001, 2), (3, 22000, 5), (9000, 15), (5050, 13)])
def test_few_long_columns(shape):
    def reductions(x):
        y = (x * 2 + 1).relu()
        return x.sum(-2), y.mean(-2), x.amax(-2), x.amin(-2), x.argmax(-2), x.var(-2), (x > 4).any(-2), (x < 4).all(-2)

    torch.manual_seed(0)
    check_compiled(reductions, torch.randn(shape))
    check_compiled(lambda x: (x.sum(-2), x.amax(-2)), torch.randn(shape).bfloat16())
    check_compiled(lambda x: x.sum(-2), torch.randint(-99, 99, shape))
