"""How kernels read and write runs: short innermost dims, windows, paddings, running sums; against the CPU.

What is written along dims of two to four elements is woven from vectors along the dim around them. Short rows that are
reduced go side by side, a lane each.
"""

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same, check, check_compiled

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64, torch.bool]
AROUND = [8, 9, 13, 64, 1500]  # of one vector, of vectors and what is left, of more than a block


def elements(dtype, *shape):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(-3, 9, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_side_by_side(dtype, around):
    def program(x, y):
        pairs = torch.stack([x, y], -1)
        threes = torch.stack([x, y, x.flip(-1)], -1)
        fours = torch.stack([x, y, y.flip(0), x], -1).transpose(0, 1).contiguous()
        doubled = x.repeat_interleave(2, -1), y.repeat_interleave(3, -1), torch.cat([threes, pairs[..., :1]], -1)
        return pairs, threes, fours, *doubled, pairs.flip(-1), threes[:, 1:] == fours.transpose(0, 1)[:, 1:, :3]

    check_compiled(program, elements(dtype, 7, around), elements(dtype, 7, around).flip(1))


@pytest.mark.parametrize("short", [2, 3, 4])
def test_what_is_told_by_the_place_in_a_short_dim(short):
    def program(x, weight, index, rows):
        scaled = (x * weight + 1).exp() - weight
        turned = x[..., index] + weight, x.transpose(0, 1) * weight, x.half() * weight.half()
        x.mul_(weight).add_(x.flip(0))  # read and written at once
        return scaled, *turned, x, x[rows] * weight, torch.where(x > weight, x, weight), x.sigmoid().to(torch.int32)

    generator = torch.Generator().manual_seed(short)
    x = torch.randn(5, 37, short, generator=generator)
    rows = torch.tensor([4, 0, 0, 2])
    check_compiled(program, x, torch.randn(short, generator=generator), torch.randperm(short), rows)


def test_images_of_twice_the_size():
    def program(x, flow):
        x = x.detach().requires_grad_()
        twice = F.interpolate(x, scale_factor=2, mode="nearest")
        shuffled = F.pixel_shuffle(x, 2), F.pixel_unshuffle(twice, 2), F.interpolate(flow, scale_factor=(2, 3, 4))
        return twice, *shuffled, *torch.autograd.grad(twice.square().sum() + shuffled[0].exp().sum(), x)

    generator = torch.Generator().manual_seed(0)
    check(program, torch.randn(2, 8, 26, 28, generator=generator), torch.randn(1, 3, 4, 5, 11, generator=generator))


@pytest.mark.parametrize("window", [(2,), (3, 2, 1), (7, 7), (5, 5, 2), (2, 2, 1, True), (4, 4, 0, True)])
def test_averages_of_windows_side_by_side(window):
    """Each element has one window, where the windows do not overlap: its gradient is that of the window."""

    def program(x):
        x = x.detach().requires_grad_()
        y = F.avg_pool2d(x, *window)
        return torch.autograd.grad(y.square().sum(), x)

    for shape in ((2, 3, 14, 15), (3, 5, 7, 7)):
        check_compiled(program, torch.randn(shape, generator=torch.Generator().manual_seed(0)))


def test_pairs_of_numbers():
    def program(x, y):
        a, b = torch.view_as_complex(x), torch.view_as_complex(y)
        rotated = torch.stack([-x[..., 1], x[..., 0]], -1)
        return torch.view_as_real(a * b), rotated * y + x, torch.view_as_real(a.conj() + b)

    generator = torch.Generator().manual_seed(0)
    check(program, *torch.randn(2, 3, 50, 16, 2, generator=generator))


@pytest.mark.parametrize("batch, rows, width", [(64, 64, 32), (16, 200, 64), (256, 40, 16)])
def test_pairs_that_are_rotated_between_products(batch, rows, width):
    """Steps that run tile by tile: a tile of what is woven is of whole items."""

    def program(x, weight, keys, cosine, sine):
        even, odd = (x @ weight).unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)
        scores = turned @ keys.transpose(-1, -2)
        larger = F.pixel_shuffle(scores.unflatten(0, (-1, 4)), 2).relu()
        return scores.softmax(-1) @ keys, larger @ scores[0, :8].T.repeat(2, 1)

    generator = torch.Generator().manual_seed(0)
    shapes = (batch, rows, width), (width, width), (batch, rows, width), (rows, width // 2), (rows, width // 2)
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) / 4 for shape in shapes]
    check_compiled(program, *values)
    check_compiled(program, *(value.float() for value in values))


def test_an_index_out_of_range_is_told():
    def program(x, index):
        return torch.stack([x[index], x.flip(0)[index]], -1)

    x = torch.randn(20)
    for held in (torch.arange(20), torch.arange(20) - 20):
        check(program, x, held)
    with pytest.raises((IndexError, RuntimeError), match="index"):
        program(x.to("tpu"), torch.arange(20).to("tpu") + 1).cpu()


def test_lengths_that_change_around_a_short_dim():
    def program(size, device):
        generator = torch.Generator().manual_seed(size)
        x = torch.randn(3, size, 6, generator=generator).to(device)
        pairs = torch.stack([x[..., :3], x[..., 3:]], -1)
        return pairs.exp(), pairs.transpose(1, 2).contiguous(), x.reshape(-1, 2) * 2, pairs.sum(1), pairs.sum((0, 3))

    for size in (20, 33, 47, 64, 51, 128, 21, 0, 1, 96, 2):
        assert_same(program(size, "cpu"), program(size, "tpu"))
        torch.tpu.wait_for_compiles()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
def test_running_sums_and_products_along_rows(dtype):
    def program(x):
        some = x[:, :30]
        return x.cumsum(1), some.cumprod(1), x.reshape(-1).cumsum(0), some.cummax(1).values, x[:, :3].cumsum(1)

    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-4, 5, (9, 1027), generator=generator).to(dtype)
    check(program, x * 0.5 if dtype.is_floating_point else x)


def test_running_sums_of_no_numbers():
    rows = [[1, torch.inf, 2, 3, -torch.inf, 1, 1, 1, 1], [torch.nan, 1, 2, 3, 4, 5, 6, 7, 8]]
    for dtype in (torch.float32, torch.float64):
        check(lambda x: (x.cumsum(1), x.cumprod(1)), torch.tensor(rows, dtype=dtype))


@pytest.mark.embedded_only(
    reason="other devices add numbers of f32 in f32, which runs over where the CPU's f64 does not"
)
def test_running_sums_that_pass_beyond_what_results_hold():
    def program(x):
        return x.cumsum(1), x.cumprod(1)

    check(program, torch.tensor([[3e38, 3e38, -3e38, 1, -3e38, 0, 0, 0, 0]]))
    check(program, torch.tensor([[-1e308, 1e308, 1e308, 1, 1e-300, 1e200]]).double())


@pytest.mark.parametrize("shape, size, step", [((8, 900), 40, 16), ((3, 5, 64), 64, 1), ((2, 100), 7, 9)])
def test_windows_are_read_where_they_lie(shape, size, step):
    def program(x):
        windows = x.unfold(-1, size, step)
        return windows.mean(-1), windows.amax(-1), windows * 2, windows.transpose(-1, -2).softmax(-1)

    check(program, torch.randn(shape, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_paddings_by_what_lies_near(mode, dtype):
    """Their indices are known, and neighbours but at the edges."""

    def program(signal, image, volume):
        return (
            F.pad(signal, (3, 2), mode=mode),
            F.pad(image, (1, 4, 0, 2), mode=mode) * 2,
            F.pad(image.transpose(2, 3), (2, 2, 1, 1), mode=mode).exp(),
            F.pad(volume, (1, 1, 2, 0, 1, 2), mode=mode),
        )

    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 50), (2, 3, 5, 33), (1, 2, 3, 4, 17)
    check_compiled(program, *(torch.randn(shape, generator=generator).to(dtype) for shape in shapes))


ROWS = [33, 64, 1500]  # of vectors and what is left, of vectors, of several tasks
WIDTHS = [2, 3, 4, 7, 8, 13, 40, 52]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_short_rows_reduced(dtype, width):
    def program(*tensors):
        results = []
        for x in tensors:
            results += [x.sum(-1), x.any(-1), x.all(-1), x[:, 1:].sum(-1), x.flip(-1).sum(-1), x[:, ::2].sum(-1)]
            if dtype == torch.float64:
                results.append((x / 8).tan().sum(-1))  # of a function that is called
            if dtype != torch.bool:
                results += [x.amax(-1), x.argmax(-1), x.argmin(-1), (x % 3).prod(-1), x - x.amin(-1, keepdim=True)]
        return results

    check_compiled(program, *(elements(dtype, rows, width) for rows in ROWS))


@pytest.mark.parametrize("width", WIDTHS)
def test_short_rows_read_again(width):
    def program(x, scale, offset, rows, index):
        y = x.detach().requires_grad_()
        normed = F.layer_norm(y, (width,), scale, offset)
        losses = F.cross_entropy(y, index, reduction="none"), y.logsumexp(-1), y.softmax(-1).square().sum()
        gradient = torch.autograd.grad(normed.square().sum() + sum(loss.sum() for loss in losses), y)[0]
        taken = x[rows].softmax(-1), x[x.argmax(-1)].log_softmax(-1), (x + offset).sigmoid().var(-1)
        x.sub_(x.amax(-1, keepdim=True)).div_(x.square().mean(-1, keepdim=True).add(1))  # read and written at once
        return normed, losses, gradient, taken, x, F.rms_norm(x, (width,)), x.half().softmax(-1)

    generator = torch.Generator().manual_seed(width)
    x = torch.rand(333, width, generator=generator) / 2 + torch.arange(width) % 5  # apart: norms divide by deviations
    scale = torch.randn(2, width, generator=generator)
    rows, index = torch.randint(0, 333, (70,), generator=generator), torch.arange(333) % width
    check_compiled(program, x, *scale, rows, index)


@pytest.mark.parametrize("queries", [31, 32, 49, 80])
def test_scores_of_few_keys(queries):
    """Rows lie in several dims, and a bias is the same along one of them."""

    def program(scores, bias, mask):
        biased = scores + bias
        filled = biased.masked_fill(mask[:, None, None], -torch.inf).softmax(-1)
        return (
            biased.softmax(-1),
            filled,
            scores.amax(-1),
            biased.transpose(1, 2).argmax(-1),
            scores.transpose(2, 3).sum(-1),
        )

    generator = torch.Generator().manual_seed(queries)
    scores = torch.randn(3, 5, queries, 49, generator=generator)
    mask = torch.arange(49) > torch.tensor([[11], [48], [40]])
    check_compiled(program, scores, torch.randn(5, queries, 49, generator=generator), mask)


def test_the_first_of_equal_extrema_in_short_rows():
    inf, nan = torch.inf, torch.nan
    rows = [[1, 5, 5, nan, 2, nan], [-inf] * 6, [inf] * 6, [0, -inf, inf, -inf, inf, 0], [3] * 6, [nan] * 6]
    x = torch.tensor(rows).repeat(8, 1)
    whole = torch.full((40, 6), torch.iinfo(torch.int64).min)

    def program(x, whole):
        extrema = [(y.argmax(-1), y.argmin(-1), y.argmax(0), y.max(-1), y.min(0)) for y in (x, whole, ~whole, x.half())]
        return extrema, x.repeat(1, 50).argmax(-1)

    check_compiled(program, x, whole)
