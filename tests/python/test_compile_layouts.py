"""torch.compile(backend="tpu"): strides that tracing counts on are those that results have, and inputs are over the
storages, and the parts of them, that they are over without it."""

import pytest
import torch
from helpers import assert_same, compiled
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

IMAGE = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
WEIGHT = torch.randn(6, 4, 3, 3)
VALUES = torch.randn(4, 5, 3)
# Of channels-last images x (2, 4, 8, 8) and a contiguous weight w (6, 4, 3, 3).
USES = {
    "convolution": lambda x, w: F.conv2d(x, w),
    "flattened": lambda x, w: F.conv2d(x, w).flatten(1).sin(),
    "transposed convolution": lambda x, w: F.conv_transpose2d(x, w[:4].transpose(0, 1)).flatten(1),
    "channels-last weight": lambda x, w: F.conv2d(
        x.contiguous(), w.clone(memory_format=torch.channels_last), padding=1
    ).flatten(1),
    "volumes": lambda x, w: F.conv3d(
        x[:, :, None].expand(2, 4, 3, 8, 8).clone(memory_format=torch.channels_last_3d), w[:, :, None]
    ).flatten(1),
    "sequences": lambda x, w: F.conv1d(x[:, :, 0].contiguous(), w[:, :, 0]).flatten(1),
    "a stride that is read": lambda x, w: F.conv2d(x, w) * F.conv2d(x, w).stride(1),
    "a window": lambda x, w: torch.as_strided(F.conv2d(x, w), (4, 4), (4, 1)),
    "norms": lambda x, w: F.group_norm(F.conv2d(x, w), 2).flatten(2).transpose(1, 2).softmax(-1),
    "shuffled pixels": lambda x, w: F.pixel_shuffle(torch.cat([x, x], 1), 2).flatten(1),
    "shuffled pixels, not flattened": lambda x, w: F.pixel_shuffle(torch.cat([x, x], 1), 2),
}
# Of transposed values t (4, 3, 5) and images x, whose strides tracing takes to be other ones than kernels give.
OTHERS = {
    "batch norm": lambda t, x: F.batch_norm(t, None, None, training=True).transpose(1, 2).reshape(4, -1),
    "logsigmoid": lambda t, x: F.logsigmoid(t).transpose(1, 2).reshape(4, -1),
    "powers": lambda t, x: torch.pow(2.0, t).transpose(1, 2).reshape(4, -1),
    "unpooled": lambda t, x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2).flatten(1),
    "shuffled channels": lambda t, x: F.channel_shuffle(x, 2).flatten(1),
    "padded": lambda t, x: F.pad(x, (1, 1, 1, 1), mode="replicate").flatten(1),
}


@pytest.mark.parametrize("use", USES)
def test_channels_last(use):
    """Results and gradients, in values and strides: to flatten channels-last values takes a copy."""

    def run(device, function):
        x, w = (t.to(device, copy=True).requires_grad_() for t in (IMAGE, WEIGHT))
        y = function(x, w)
        y.square().sum().backward()
        return [y.detach(), x.grad] + ([] if w.grad is None else [w.grad])

    torch.tpu.reset_metrics()
    assert_same(run("cpu", USES[use]), run("tpu", compiled(USES[use])), rtol=1e-4, atol=1e-3)
    assert torch.tpu.metrics()["graph_calls_uncaptured"] == 0, torch.tpu.explain().uncaptured_graphs


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("use", OTHERS)
def test_strides_that_tracing_has_wrong(use, dynamic):
    def run(device, function):
        values, x = (
            t.to(device, copy=True).requires_grad_() for t in (torch.arange(60.0).reshape(4, 5, 3).cos(), IMAGE)
        )
        y = function(values.transpose(1, 2), x)
        y.square().sum().backward()
        return y.detach(), next(t.grad for t in (values, x) if t.grad is not None).reshape(-1)

    torch.tpu.reset_metrics()
    assert_same(run("cpu", OTHERS[use]), run("tpu", compiled(OTHERS[use], dynamic=dynamic)), rtol=1e-4, atol=1e-5)
    assert torch.tpu.metrics()["graph_calls_uncaptured"] == 0, torch.tpu.explain().uncaptured_graphs


PARTS = {
    "rows": lambda x: (x[::2], x[1::2]),
    "columns": lambda x: (x[:, :4], x[:, 4:]),
    "queries and keys": lambda x: x.view(4, 3, 2).unbind(1)[:2],
}


@pytest.mark.parametrize("parts", PARTS)
def test_inputs_in_the_gaps_of_each_other_are_written(parts, metrics):
    def f(a, b):
        a.add_(1)
        b.mul_(2)
        return a.sum() + b.sum()

    def run(device, function):
        x = torch.arange(24.0).reshape(4, 6).to(device)
        return function(*PARTS[parts](x)), x

    there = compiled(f)
    for _ in range(2):
        assert_same(run("cpu", f), run("tpu", there))
    assert metrics()["graph_calls_uncaptured"] == 0


def test_an_input_that_gets_the_memory_of_another():
    def f(a, b):
        a.data = b
        return a + 1

    there = compiled(f, fullgraph=True)
    for _ in range(2):
        a, b = torch.zeros(4, device="tpu"), torch.ones(4, device="tpu")
        former = a.view(2, 2)
        assert there(a, b).tolist() == [2] * 4
        b.fill_(7)
        assert a.tolist() == [7] * 4 and former.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("written", ["weight", "result"])
def test_gradients_that_would_follow_a_later_write_are_refused(written):
    """What backward keeps as views of inputs and of results is as old as those."""

    def f(x, w):
        y = (x @ w.t()).exp()
        return y, (y.t() @ x).sum() + y.sum()

    there = compiled(f)
    for _ in range(2):
        x, w = (torch.randn(3, 3, device="tpu", requires_grad=True) for _ in range(2))
        y, loss = there(x, w)
        with torch.no_grad():
            (w if written == "weight" else y).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


PLACES = {
    "read": lambda x: x.as_strided((3,), (1,), 12) * 2,
    "read, of a view": lambda x: x.view(4, 5)[1:].as_strided((3,), (2,), 12) * 2,
    "written": lambda x: (x.as_strided((3,), (1,), 12).add_(5), x.view(4, 5).sum(1))[1],
    "read once written": lambda x: (
        torch.as_strided_scatter(x, x[:3] * 7, (3,), (1,), 12).as_strided((4,), (3,), 10) + 1
    ),
}


@pytest.mark.parametrize("use", PLACES)
def test_places_in_storages(use):
    """Inputs begin somewhere in theirs, elsewhere at each call."""
    there = compiled(PLACES[use])
    for begin in (2, 0, 10, 5):
        here, values = torch.arange(40.0), torch.arange(40.0, device="tpu")
        expected = PLACES[use](here[begin : begin + 20])
        assert_same((expected, here), (there(values[begin : begin + 20]), values))
