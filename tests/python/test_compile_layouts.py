"""torch.compile(backend="tpu"): strides that tracing counts on are those that results have."""

import pytest
import torch
from helpers import assert_same, compiled
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

IMAGE = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
WEIGHT = torch.randn(6, 4, 3, 3)
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


@pytest.mark.parametrize("use", USES)
def test_channels_last(use):
    """Results and gradients, in values and strides: to flatten a channels-last tensor takes a copy, which no view is."""

    def run(device, function):
        x, w = (t.to(device, copy=True).requires_grad_() for t in (IMAGE, WEIGHT))
        y = function(x, w)
        y.square().sum().backward()
        return [y.detach(), x.grad] + ([] if w.grad is None else [w.grad])

    torch.tpu.reset_metrics()
    assert_same(run("cpu", USES[use]), run("tpu", compiled(USES[use])), rtol=1e-4, atol=1e-3)
    assert torch.tpu.metrics()["graph_calls_uncaptured"] == 0, torch.tpu.explain().uncaptured_graphs
