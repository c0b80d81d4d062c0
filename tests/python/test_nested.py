"""Nested tensors of both layouts, as on the CPU."""

import io

import pytest
import torch
from helpers import assert_same
from torch import nn
from torch.nn import functional as F

# PyTorch says that their strided layout is a prototype, by whichever test is first.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def nested(device, **options):
    parts = [torch.linspace(-1, 2, 4 * n).view(n, 4).to(device) for n in (2, 3)]
    return torch.nested.nested_tensor(parts, **options)


def padded(x):
    return x.to_padded_tensor(0.0)


def saved_and_loaded(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


STRIDED = {
    "made": lambda x: x,
    "moved": lambda x: x.cpu().to(x.device),
    "part": lambda x: torch.nested.nested_tensor([x[1], x[0]]),
    "sums": lambda x: x * 2 + x,
    "chunks": lambda x: x.chunk(2, -1)[1].contiguous(),
    "narrowed": lambda x: x.narrow(0, 1, 1).contiguous(),
    "written": lambda x: x.clone().mul_(2).fill_(3),
    "softmax": lambda x: x.softmax(-1),
    "gelu": F.gelu,
    "total": lambda x: x.sum(-1, keepdim=True),
    "product": lambda x: x @ x.transpose(1, 2),
    "joined": lambda x: torch.cat([x, x]),
    "from padded": lambda x: torch._nested_from_padded(padded(x), x._nested_tensor_size()),
    "saved": saved_and_loaded,
}


@pytest.mark.parametrize("name", STRIDED)
def test_strided(name):
    one, other = (padded(STRIDED[name](nested(device))) for device in ("cpu", "tpu"))
    assert_same(one, other)


def test_layer_norm_of_several_dims():
    def gradients(device):
        parts = [torch.linspace(-1, 2, 12 * n).view(n, 4, 3).to(device).requires_grad_() for n in (2, 3)]
        weight, bias = (torch.linspace(0, 1, 12, device=device).view(4, 3).requires_grad_() for _ in range(2))
        y = padded(F.layer_norm(torch.nested.as_nested_tensor(parts), (4, 3), weight, bias))
        (y * torch.linspace(0, 1, y.numel(), device=device).view_as(y)).sum().backward()
        return [y, *(t.grad for t in (*parts, weight, bias))]

    for one, other in zip(gradients("cpu"), gradients("tpu"), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(
    "make",
    [lambda: nn.Linear(4, 3), lambda: nn.LayerNorm(4), lambda: nn.ReLU(), lambda: lambda x: x.sum(-1, keepdim=True)],
)
def test_gradients_of_strided_ones(make):
    def gradients(device):
        torch.manual_seed(0)
        layer = make()
        weights = list(layer.to(device).parameters()) if isinstance(layer, nn.Module) else []
        x = nested(device, requires_grad=True)
        padded(layer(x)).pow(2).sum().backward()
        return [padded(x.grad), *(w.grad for w in weights)]

    assert_same(gradients("cpu"), gradients("tpu"))


def test_attention_in_evaluation():
    def attended(device):
        torch.manual_seed(0)
        attention = nn.MultiheadAttention(4, 2, batch_first=True).to(device).eval()
        with torch.no_grad():
            x = nested(device)
            return padded(attention(x, x, x, need_weights=False)[0])

    assert_same(attended("cpu"), attended("tpu"))


def test_an_encoder_in_evaluation_leaves_padding_zero():
    def encoded(device):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2).to(device).eval()
        x = torch.randn(3, 5, 16).to(device)
        padding = torch.arange(5, device=device) >= torch.tensor([[3], [5], [2]], device=device)
        with torch.no_grad():
            return encoder(x, src_key_padding_mask=padding)

    assert_same(encoded("cpu"), encoded("tpu"))


def test_training_by_attention_of_jagged_ones():
    def trained(device):
        torch.manual_seed(0)
        layers = [nn.Linear(16, 16).to(device) for _ in range(3)]
        parts = [torch.randn(n, 16).to(device) for n in (3, 5, 2)]
        x = torch.nested.nested_tensor(parts, layout=torch.jagged)
        q, k, v = (t.unflatten(-1, [2, 8]).transpose(1, 2) for t in (layer(x) for layer in layers))
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2).values()
        out.pow(2).sum().backward()
        return out, [layer.weight.grad for layer in layers]

    assert_same(trained("cpu"), trained("tpu"))


def test_host_kernels_are_counted_by_name(metrics):
    nested("tpu").sum(-1, keepdim=True)
    assert torch.tpu.explain().host_kernels == {"aten::sum.dim_IntList": 1}


def test_causal_attention_of_ragged_sequences():
    """Against each sequence alone: PyTorch refuses it for nested tensors of the CPU."""
    torch.manual_seed(0)
    parts = [torch.randn(n, 16) for n in (5, 3, 9)]

    def heads(x):
        return x.unflatten(-1, (2, 8)).transpose(-2, -3)

    def attention(x):
        q = heads(x)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(-2, -3).flatten(-2)

    alone = [p.clone().requires_grad_() for p in parts]
    expected = torch.cat([attention(p[None])[0] for p in alone])
    expected.sin().sum().backward()
    for function in (attention, torch.compile(attention, dynamic=True, fullgraph=True)):
        there = torch.nested.nested_tensor(parts, layout=torch.jagged, device="tpu", requires_grad=True)
        found = function(there).values()
        found.sin().sum().backward()
        assert_same(expected, found)
        assert_same(torch.cat([p.grad for p in alone]), there.grad.values())
