"""Operators in the middle of programs: none runs as a host kernel, values and gradients are the CPU's."""

import pytest
import torch
from helpers import EMBEDDED, check, check_compiled
from torch.nn import functional as F


def floats(*dims):
    return torch.randn(dims, dtype=torch.float64)


def resized(mode, size, corners=False):
    return lambda x: F.interpolate(x, size, mode=mode, align_corners=corners, antialias=True)


IMAGE = (2, 3, 13, 17)
# Of inputs that get gradients.
PROGRAMS = (
    {
        "antialiased": (resized("bilinear", (7, 9)), floats(*IMAGE)),
        "antialiased, wider and lower": (resized("bilinear", (5, 40), True), floats(*IMAGE)),
        "antialiased cubic": (resized("bicubic", (6, 30)), floats(*IMAGE)),
        "antialiased cubic to one": (resized("bicubic", (1, 1), True), floats(*IMAGE)),
        "antialiased by factors": (
            lambda x: F.interpolate(x, scale_factor=(0.37, 1.6), mode="bicubic", antialias=True),
            floats(*IMAGE),
        ),
        "windows side by side": (lambda x: x.unfold(-1, 4, 4), floats(3, 18)),
        "windows that meet": (lambda x: x.unfold(0, 6, 2), floats(16, 3)),
        "windows that meet unevenly": (lambda x: x.unfold(1, 5, 2), floats(2, 16, 3)),
        "windows with gaps": (lambda x: x.unfold(1, 2, 5), floats(2, 16, 3)),
        "many windows": (lambda x: x.unfold(0, 40, 1), floats(60, 3)),
        "a window of one number": (lambda x: x.unfold(0, 1, 1), floats()),
        "no elements in windows": (lambda x: x.unfold(0, 0, 2), floats(5)),
        "adaptive pools": (lambda x: F.adaptive_max_pool2d(x, (5, 4), return_indices=True), floats(*IMAGE)),
        "even adaptive pools": (lambda x: F.adaptive_max_pool2d(x, (4, 5), return_indices=True), floats(3, 12, 20)),
        "adaptive pools, more than pixels": (
            lambda x: F.adaptive_max_pool2d(x, (20, 3), return_indices=True),
            floats(*IMAGE),
        ),
        "adaptive pools of a line": (lambda x: F.adaptive_max_pool1d(x, 5, return_indices=True), floats(2, 3, 13)),
        "adaptive pools of a volume": (
            lambda x: F.adaptive_max_pool3d(x, (4, 3, 5), return_indices=True),
            floats(2, 3, 7, 6, 11),
        ),
        "shuffled channels": (lambda x: F.channel_shuffle(x, 3), floats(2, 6, 3, 5)),
        "elements put": (lambda x, i, y: x.put(i, y), floats(3, 5), torch.tensor([[4, -2], [0, 7]]), floats(2, 2)),
        "elements added": (
            lambda x, i, y: x.put(i, y, accumulate=True),
            floats(3, 5),
            torch.tensor([4, -2, 4]),
            floats(3),
        ),
        "pools undone": (
            lambda x, i: F.max_unpool2d(x, i, 2),
            floats(1, 2, 2, 2),
            torch.tensor([[[[0, 3], [1, 5]], [[15, 2], [4, 9]]]]),
        ),
        "pools of a volume undone": (
            lambda x, i: F.max_unpool3d(x, i, 2),
            floats(1, 1, 1, 2, 2),
            torch.tensor([[[[[0, 31], [4, 15]]]]]),
        ),
        "norms bounded": (lambda x: x.renorm(2, 1, 1.5) + x.renorm(1, -1, 2) + x.renorm(3, 0, 1), floats(3, 4, 5)),
    }
    | {
        f"a margin of several classes: {p}, {reduction}, {weighed}": (
            lambda x, t, w, p=p, reduction=reduction, weighed=weighed: (
                F.multi_margin_loss(x, t, p, 0.7, w.detach() if weighed else None, reduction=reduction) + 0 * w.sum()
            ),
            floats(4, 5),
            torch.tensor([0, 4, 2, 2]),
            floats(5).abs(),
        )
        for p in (1, 2)
        for reduction in ("none", "mean", "sum")
        for weighed in (False, True)
    }
    | {
        f"samples of a volume: {mode}, {padding}, {corners}": (
            lambda x, g, mode=mode, padding=padding, corners=corners: F.grid_sample(x, g, mode, padding, corners),
            floats(2, 3, 4, 5, 6),
            floats(2, 3, 2, 4, 3),
        )
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    }
    | {
        f"cubic samples: {padding}, {corners}": (
            lambda x, g, padding=padding, corners=corners: F.grid_sample(x, g, "bicubic", padding, corners),
            floats(2, 1, 5, 6),
            floats(2, 4, 3, 2),
        )
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    }
)


def with_gradients(function):
    def program(*inputs):
        for x in inputs:
            x.requires_grad_(x.is_floating_point())
        out = function(*inputs)
        first = out[0] if isinstance(out, tuple) else out
        grads = torch.autograd.grad(first, [x for x in inputs if x.requires_grad], first.detach().cos())
        return out, grads

    return program


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_and_their_gradients(name, dtype):
    function, *inputs = PROGRAMS[name]
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    check_compiled(with_gradients(function), *inputs)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_bytes(mode):
    x = torch.randint(256, IMAGE, dtype=torch.uint8)
    sizes = [(7, 9), (5, 40), (30, 3), (13, 5)]
    holds = check if EMBEDDED else check_compiled  # on the embedded device the CPU's kernel is faster
    holds(lambda x: [F.interpolate(x, size, mode=mode, antialias=True) for size in sizes], x)


def test_antialiased_pixels_that_are_no_numbers():
    x = torch.rand(1, 2, 20, 22)
    x[0, 0, 3, 4], x[0, 1, 5, 5] = float("nan"), float("inf")
    check_compiled(resized("bilinear", (7, 9)), x)


def test_adaptive_pools_of_equal_elements_and_no_numbers():
    x = torch.tensor([[3.0, 1, 3, 3, float("nan"), 2, float("nan")], [3, 3, 1, 0, 7, 7, 7]])[None]
    check_compiled(lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True), x)
    check_compiled(lambda x: F.adaptive_max_pool2d(x, (1, 1), return_indices=True), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_adaptive_pools_of_half_types(dtype):
    x = torch.randn(IMAGE, dtype=dtype)
    check_compiled(lambda x: F.adaptive_max_pool2d(x, (5, 4), return_indices=True), x)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_of_a_volume_where_the_grid_says_no_number(padding):
    x, grid = floats(1, 2, 4, 5, 6), floats(1, 2, 2, 4, 3)
    grid[0, 0, 0, 0, 1] = grid[0, 1, 1, 2] = float("nan")
    grid[0, 0, 1, 3, 2] = float("inf")
    sampled = with_gradients(lambda x, g: F.grid_sample(x, g, padding_mode=padding, align_corners=False))
    check_compiled(sampled, x, grid)


def test_cubic_samples_where_the_grid_says_no_number_and_of_one_pixel():
    x, grid = floats(1, 2, 4, 5), floats(1, 3, 4, 2)
    grid[0, 0, 1, 0], grid[0, 2, 2, 1], grid[0, 1, 0, 1] = float("nan"), float("inf"), 1e9
    for padding in ("zeros", "border", "reflection"):
        sampled = with_gradients(lambda x, g, p=padding: F.grid_sample(x, g, "bicubic", p, align_corners=True))
        check_compiled(sampled, x[..., :1, :1], grid.nan_to_num(0.3, 0.7))
        check_compiled(lambda x, g, p=padding: F.grid_sample(x, g, "bicubic", p, align_corners=False), x, grid)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_repeats_whose_sum_is_known(dtype):
    x, repeats = floats(5, 3), torch.tensor([2, 0, 1, 0, 4], dtype=dtype)

    def program(x, repeats):
        places = torch.repeat_interleave(repeats, output_size=7)
        return places, x.repeat_interleave(repeats, 0, output_size=7), x.T.repeat_interleave(repeats, 1, output_size=7)

    check_compiled(with_gradients(lambda x, repeats: program(x, repeats)[1]), x, repeats)
    check_compiled(program, x, repeats)
    check_compiled(lambda repeats: torch.repeat_interleave(repeats, output_size=0), repeats[1:2])


@pytest.mark.embedded_only(reason="as on CUDA, nothing is checked")
@pytest.mark.parametrize("repeats, size", [((2, 0, 1), 4), ((2, 0, 1), 2), ((2, -1, 1), 2)])
def test_repeats_whose_sum_is_another(repeats, size):
    repeats = torch.tensor(repeats, device="tpu")
    with pytest.raises(RuntimeError, match=r"allocated size does not match|repeats can not be negative"):
        torch.repeat_interleave(repeats, output_size=size).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_in_rows_of_powers(dtype):
    for where in ((0, 2, 50), (-3, 2, 51, 3), (1, 1, 1, 7), (0, 8, 9, 2), (2, 3, 0), (0, 1, 5, 0.0), (0, 3, 4, -2.0)):
        check_compiled(lambda x, where=where: torch.logspace(*where, dtype=dtype, device=x.device), torch.zeros(1))


@pytest.mark.parametrize("correction", [0, 1])
def test_deviations_far_smaller_than_the_mean(correction):
    x = torch.randn(16, 4096) + 1e6
    x[3] = 1e6
    for dim in ((0,), (1,), (0, 1)):
        check_compiled(lambda x, dim=dim: torch.std(x * 1, dim, correction=correction), x)
        check_compiled(lambda x, dim=dim: torch.var_mean(x * 1, dim, correction=correction), x)


def test_deviations_of_what_overflows_and_of_few_numbers():
    x = torch.tensor([[1.0, 2, float("inf")], [1, float("nan"), 2], [1e20, -1e20, 3e20]])
    check_compiled(lambda x: torch.var(x * 1, 1), x)
    check_compiled(lambda x: torch.std(x * 1, 1), x[:, :1])
    check_compiled(lambda x: torch.std(x * 1, 1), x[:, :0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_powers_of_integers(dtype):
    info = torch.iinfo(dtype)
    signed = [] if info.min == 0 else [-1, -2, -3, -7, info.min]
    x = torch.tensor([0, 1, 2, 3, 10, info.max, *signed], dtype=dtype)
    exponents = torch.tensor([0, 1, 2, 3, 7, 31, 62, 63, 64, 100, info.max, *signed], dtype=dtype)

    def program(x, exponents):
        return x[:, None] ** exponents, 2**exponents, (-1) ** exponents, 1**exponents, x.pow_(exponents[: len(x)])

    check_compiled(program, x, exponents)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_hypotenuses(dtype):
    tiny, huge = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    x = torch.tensor([0, -0.0, 3, -4, tiny, huge, huge / 2, float("inf"), float("nan")], dtype=dtype)
    check_compiled(with_gradients(torch.hypot), x[2:4], x[3:5])
    check_compiled(lambda x: torch.hypot(x[:, None], x), x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16])
def test_in_place_forms_of_operators_whose_overload_has_another_name(dtype):
    x, y = (torch.randint(1, 9, (4, 5)).to(dtype) for _ in range(2))

    def program(x, y):
        whole = x.clone()
        whole //= y
        whole //= 2
        return x.clone().pow_(y / 2 if y.is_floating_point() else y), whole

    check_compiled(program, x, y)


@pytest.mark.parametrize("first, last", [(0, 1), (0, 3), (1, 3), (2, 4)])
def test_values_that_are_the_same_for_all_of_a_mask(first, last):
    x = torch.randn(3, 4, 5, 6)
    mask, behind = torch.rand(x.shape[first:last]) > 0.5, x.shape[last:]
    values = [torch.randn(dims) for dims in ((), behind, (1, *behind), (*x.shape[:first], 1, *behind))]

    def program(x, mask, *values):
        written = [x.clone() for _ in values]
        for y, v in zip(written, values, strict=True):
            y[(slice(None),) * first + (mask,)] = v
        index = (None,) * first + (mask,)
        return written, [torch.ops.aten.index_put(x, index, v, accumulate=True) for v in values]

    check_compiled(program, x, mask, *values)


@pytest.mark.parametrize("sizes", [(1, 3), (1,), (2, 1), (3,)])
def test_gradients_that_are_repeated_along_what_they_are_written_to(sizes):
    def program(grad):
        slices = [((4, 3), 0, 1, 3, 1), ((5, 3), 0, 0, 2**62, 3), ((4, 3), 0, -3, -1, 1)]
        whole = [torch.ops.aten.slice_backward(grad, *where) for where in slices]
        return whole, torch.ops.aten.select_backward(grad, (4, 2, 3), 0, 2)

    check_compiled(program, torch.randn(sizes))


# What the CPU has a kernel of f32 for, and none for floats of 16 bits; by name also what the gradient is asked of.
OF_F32_ALONE = {
    "averages of a volume": (lambda x: F.avg_pool3d(x, (2, 3, 2), ceil_mode=True), (2, 3, 4, 6, 8)),
    "antialiased": (resized("bilinear", (7, 9)), IMAGE),
    "margins": (lambda x: F.multi_margin_loss(x, torch.tensor([1, 0, 3], device=x.device)), (3, 5)),
    "margins of labels": (
        lambda x: F.multilabel_margin_loss(x, torch.tensor([[1, 0, -1], [2, -1, -1]], device=x.device)),
        (2, 3),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OF_F32_ALONE)
def test_floats_of_16_bits_that_the_cpu_has_no_kernel_for(name, dtype):
    function, dims = OF_F32_ALONE[name]
    x = torch.randn(dims).to(dtype)

    def run(x):
        x.requires_grad_()
        y = function(x)
        return y.detach(), torch.autograd.grad(y, x, torch.ones_like(y))[0]

    expected = [r.to(dtype) for r in run(x.float())]
    for _ in range(2):  # op by op at first, then compiled
        for one, other in zip(expected, run(x.to("tpu")), strict=True):
            torch.testing.assert_close(other.cpu(), one)
        torch.tpu.wait_for_compiles()


def test_floats_of_several_types_stay_an_error():
    x, label, weight = torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor([0, 2]), torch.ones(3)
    for device in ("cpu", "tpu"):
        with pytest.raises(NotImplementedError, match="not implemented for 'BFloat16'"):
            F.multi_margin_loss(x.to(device), label.to(device), weight=weight.to(device))


def test_what_a_kernel_of_f32_wrote_is_written_to_the_floats_of_16_bits():
    x = torch.randn(64, dtype=torch.float16, device="tpu", requires_grad=True)
    y = F.rrelu(x, 0.1, 0.3, training=True)
    (slopes,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert ((0.1 <= slopes) & (slopes < 0.31) | (slopes == 1)).all()
    torch.testing.assert_close(y, x * slopes)
