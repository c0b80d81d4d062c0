"""Bags of embeddings: recorded and captured, and against the CPU's kernels."""

import itertools

import pytest
import torch
from helpers import check, compiled
from torch import nn
from torch.nn import functional as F

ROWS, WIDTH = 11, 21
INDICES = torch.tensor([3, 0, 7, 7, 2, 9, 2, 2, 2, 10, 1, 4, 2, 6, 6, 6, 3, 8, 5, 0])
OFFSETS = {  # empty bags at every place
    False: torch.tensor([0, 0, 3, 6, 9, 9, 20]),
    True: torch.tensor([0, 3, 6, 9, 9, 20]),
}
OPTIONS = [
    (mode, padding, last, weighed)
    for mode, padding, last, weighed in itertools.product(
        ("sum", "mean", "max"), (None, 2), (False, True), (False, True)
    )
    if mode == "sum" or not weighed
]


def table(dtype=torch.float32, rows=ROWS, width=WIDTH):
    return torch.randn(rows, width, dtype=torch.float64).to(dtype)


def bags(options):
    """-> function(table, indices, offsets, weights)"""
    mode, padding, last, weighed = options

    def function(w, indices, offsets, weights):
        given = {"per_sample_weights": weights} if weighed else {}
        return F.embedding_bag(indices, w, offsets, mode=mode, padding_idx=padding, include_last_offset=last, **given)

    return function


def with_gradients(options, function=None):
    """-> function(table, indices, offsets, weights[, the bags' gradient]): the bags, and the gradients of floats"""

    def program(w, indices, offsets, weights, grad=None):
        inputs = [w.requires_grad_(), weights.requires_grad_()][: 1 + options[3]]
        out = (function or bags(options))(w, indices, offsets, weights)
        return out.detach(), *torch.autograd.grad(out, inputs, out.detach().cos() if grad is None else grad)

    return program


@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", OPTIONS)
def test_bags_and_their_gradients(options, dtype, index):
    given = table(dtype), INDICES.to(index), OFFSETS[options[2]].to(index), torch.randn(20, dtype=dtype)
    check(bags(options), *given)
    check(with_gradients(options), *given)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS)
def test_bags_of_halves_are_summed_in_f32(options, dtype):
    """The CPU rounds after each row, in gradients; here as on GPUs it is once."""
    given = table(dtype), INDICES, OFFSETS[options[2]], torch.randn(20).to(dtype)
    check(bags(options), *given)
    given += (torch.randn(OFFSETS[options[2]].numel() - options[2], WIDTH).to(dtype),)
    _, *wide = with_gradients(options)(*(t.float() if t.is_floating_point() else t for t in given))
    for _ in range(2):
        _, *found = (t.cpu() for t in with_gradients(options)(*(t.detach().to("tpu") for t in given)))
        torch.tpu.wait_for_compiles()
    for one, other in zip(found, wide, strict=True):
        torch.testing.assert_close(one, other.to(dtype))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_by_frequency(mode):
    """A host kernel: the CPU's divides by how often another index occurs."""

    def program(w, indices, offsets):
        out = F.embedding_bag(indices, w.requires_grad_(), offsets, mode=mode, scale_grad_by_freq=True)
        return out.detach(), *torch.autograd.grad(out.square().sum(), w)

    check(program, table(), INDICES, OFFSETS[False])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_many_bags(mode, last):
    """More than one kernel's part of the work, in both directions; sizes that change."""
    for count in (5000, 5016, 7001, 5000):
        offsets = torch.cat([torch.tensor([0]), torch.randint(0, count, (699,)).sort()[0], torch.tensor([count])])
        indices = torch.randint(0, 3000, (count,))
        check(
            with_gradients((mode, None, last, mode == "sum")),
            table(rows=3000, width=70),
            indices,
            offsets[: 700 + last],
            torch.rand(count),
        )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_row_of_indices_is_a_bag(mode):
    check(lambda w, i: F.embedding_bag(i, w, mode=mode), table(), INDICES.view(4, 5))
    check(lambda w, i: F.embedding_bag(i, w, mode=mode), table(), INDICES.view(20, 1))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("offsets", [[], [0], [0, 0]])
def test_of_nothing(mode, offsets):
    given = table(), torch.tensor([], dtype=torch.int64), torch.tensor(offsets, dtype=torch.int64), torch.zeros(0)
    check(with_gradients((mode, None, False, False)), *given)


@pytest.mark.parametrize("padding", [None, 2])
def test_the_largest_of_numbers_that_are_none(padding):
    w = table()
    w[7, ::2], w[2, ::3], w[3, 1::4], w[6] = torch.nan, torch.nan, -torch.inf, -torch.inf
    check(with_gradients(("max", padding, False, False)), w, INDICES, OFFSETS[False], torch.zeros(0))


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("operator", [torch.ops.aten._embedding_bag, torch.ops.aten._embedding_bag_forward_only])
@pytest.mark.parametrize(("last", "padding"), [(False, -1), (True, -1), (False, 2)])
def test_what_lies_beside_the_bags_is_as_on_gpus(mode, operator, last, padding):
    """The CPU leaves some of it out; every tier gives it as PyTorch's shape inference says."""
    w, offsets = table().to("tpu"), OFFSETS[last]
    bags = offsets.numel() - last
    bag_of_each = torch.bucketize(torch.arange(20), offsets[:bags], right=True) - 1
    sizes = torch.bincount(bag_of_each[INDICES != padding], minlength=offsets.numel())
    for _ in range(3):
        out, bag, size, largest = operator(
            w, INDICES.to("tpu"), offsets.to("tpu"), False, mode, False, None, last, padding
        )
        assert bag.cpu().equal(bag_of_each)
        assert size.cpu().equal(sizes)
        assert largest.shape == ((bags, WIDTH) if mode == 2 else (0,))
        if mode == 2:
            filled = (sizes[:bags] > 0).nonzero().squeeze(1)
            found = w.cpu().gather(0, largest.cpu()[filled])
            assert found.equal(out.cpu()[filled])
            assert not largest.cpu()[sizes[:bags] == 0].any()
        torch.tpu.wait_for_compiles()


@pytest.mark.parametrize("options", OPTIONS)
def test_bags_are_captured_and_no_host_kernels(options, metrics, fresh_dynamo):
    given = table(), INDICES, OFFSETS[options[2]], torch.randn(20)
    program = with_gradients(options, compiled(bags(options), fullgraph=True))
    expected = with_gradients(options)(*(t.clone() for t in given))
    for _ in range(3):
        found = program(*(t.clone().to("tpu") for t in given))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other)
        torch.tpu.wait_for_compiles()
    assert metrics()["host_kernel_calls"] == 0


def test_a_model_of_bags_trains_compiled():
    def trained(device, wrap):
        torch.manual_seed(0)
        tables = [nn.EmbeddingBag(50 * (i + 1), 8, mode=mode) for i, mode in enumerate(("sum", "mean", "sum"))]
        model = nn.ModuleList([*tables, nn.Linear(24, 1)]).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(indices, offsets):
            return model[3](torch.cat([bag(indices, offsets) for bag in model[:3]], 1)).square().mean()

        loss = wrap(loss)
        for step in range(4):
            indices = torch.randint(0, 50, (64,), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss(indices.to(device), torch.arange(0, 64, 4).to(device)).backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    expected = trained("cpu", lambda f: f)
    torch.testing.assert_close(trained("tpu", lambda f: f), expected)
    torch.testing.assert_close(trained("tpu", lambda f: compiled(f, fullgraph=True)), expected)


@pytest.mark.parametrize(
    ("indices", "offsets"), [([0, ROWS], [0]), ([0, -1], [0]), ([0, 1], [1]), ([0, 1], [0, 3]), ([0, 1], [0, -1])]
)
def test_what_is_out_of_range_is_told_where_it_is_read(indices, offsets):
    def program():
        given = [torch.tensor(x, device="tpu") for x in (indices, offsets)]
        return F.embedding_bag(given[0], torch.ones(ROWS, 2, device="tpu"), given[1], mode="sum")

    for _ in range(3):
        with pytest.raises((IndexError, RuntimeError)):
            program().cpu()
        torch.tpu.wait_for_compiles()


def test_an_empty_table_has_no_rows():
    for device in ("cpu", "tpu"):
        table = torch.ones(0, 4, device=device)
        with pytest.raises((IndexError, RuntimeError)):
            F.embedding_bag(torch.tensor([[0, 1]], device=device), table, mode="sum").cpu()


def test_functional_derivatives():
    def program(w):
        indices, offsets = INDICES.to(w.device), OFFSETS[False].to(w.device)
        return torch.func.grad(lambda v: F.embedding_bag(indices, v, offsets).square().sum())(w)

    check(program, table())
