"""torch.compile(backend="tpu") of branches, loops, maps and regions: higher-order operators and their gradients."""

import pytest
import torch
from helpers import assert_same, compiled
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def check_with_gradients(function, there, *arguments):
    """What is compiled gives the function's results and gradients on the CPU."""
    near = [a.clone().requires_grad_() for a in arguments]
    far = [a.to("tpu").requires_grad_() for a in arguments]
    results = function(*near), there(*far)
    assert_same(*results)
    for result in results:
        result.sum().backward()
    assert_same([t.grad for t in near], [t.grad for t in far])


def test_control_flow_operators():
    def f(a):
        a = torch.cond(a.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (a,))
        return torch._higher_order_ops.while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (torch.zeros((), dtype=torch.int64, device=a.device), a)
        )

    for sign in (1, -1):
        a = sign * torch.rand(4)
        near = f(a)
        far = compiled(f)(a.to("tpu"))
        assert_same(near, far)


def test_scan_and_nested_control_flow():
    def combine(carry, x):
        carry = torch.cond(x.sum() > 0, lambda c, x: c + x, lambda c, x: c * 0.5 - x, (carry, x))
        return carry, carry.tanh()

    def f(start, xs):
        return torch._higher_order_ops.scan(combine, start, xs)

    there = compiled(f, fullgraph=True)
    for _ in range(2):
        start, xs = torch.randn(3), torch.randn(6, 3)
        assert_same(f(start, xs), there(start.to("tpu"), xs.to("tpu")))


def test_gradients_through_cond():
    def f(x, w):
        return torch.cond(x.sum() > 0, lambda x, w: (x * w).sin(), lambda x, w: (x + w).exp() * w, (x, w)).sum()

    there = compiled(f, fullgraph=True)
    for sign in (1, -1):
        check_with_gradients(f, there, sign * torch.rand(5), torch.randn(5))


def test_map_and_its_gradients(metrics):
    def f(xs, w):
        return torch._higher_order_ops.map(lambda x, w: (x * w).sin().cumsum(0), xs, w)

    there = compiled(f, fullgraph=True)
    for _ in range(2):
        check_with_gradients(f, there, torch.randn(4, 3), torch.randn(3))
    assert metrics()["graph_calls_uncaptured"] == 0


def test_nested_compile_regions(metrics):
    @torch.compiler.nested_compile_region
    def layer(x, w):
        return F.gelu(x @ w) + x

    def f(x, *ws):
        for w in ws:
            x = layer(x, w)
        return x

    there = compiled(f, fullgraph=True)
    for _ in range(2):
        check_with_gradients(f, there, *(torch.randn(4, 4) for _ in range(4)))
    assert metrics()["graph_calls_uncaptured"] == 0


def test_loop_bodies_are_captured(metrics):
    def body(i, a):
        return i + 1, (a * 1.5 + i).tanh().cumsum(0) - a

    there = compiled(lambda i, a: torch._higher_order_ops.while_loop(lambda i, a: i < 50, body, (i, a)), fullgraph=True)
    i, a = torch.zeros((), dtype=torch.int64, device="tpu"), torch.randn(4, device="tpu")
    there(i, a)
    before = metrics()["graph_calls"]
    there(i, a)
    found = metrics()
    assert found["graph_calls"] - before >= 51 + 50  # condition and body
    assert found["graph_calls_uncaptured"] == 0


def attend(q, k, v, slopes):
    """With scores changed by how far apart two positions are, of which each sees those before it."""

    def farther(score, batch, head, i, j):
        return score - slopes[head] * (i - j)

    sees = flex.create_block_mask(lambda batch, head, i, j: i >= j, None, None, 128, 128, device=q.device)
    return flex.flex_attention(q, k, v, score_mod=farther, block_mask=sees)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("wrap", [lambda f: f, torch.compile], ids=["eager", "compiled"])
def test_flex_attention(wrap):
    q, k, v = torch.randn(3, 2, 4, 128, 8)
    slopes = torch.rand(4)
    apart = torch.arange(128)[:, None] - torch.arange(128)
    wanted = [t.clone().requires_grad_() for t in (q, k, v, slopes)]
    scores = wanted[0] @ wanted[1].mT / 8**0.5 - wanted[3][:, None, None] * apart
    expected = scores.masked_fill(apart < 0, -torch.inf).softmax(-1) @ wanted[2]
    expected.pow(2).sum().backward()
    given = [t.to("tpu").requires_grad_() for t in (q, k, v, slopes)]
    found = wrap(attend)(*given)
    found.pow(2).sum().backward()
    torch.testing.assert_close(found.cpu(), expected)
    for a, b in zip(given, wanted, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("wrap", [lambda f: f, torch.compile], ids=["eager", "compiled"])
def test_flex_attention_under_autocast(wrap):
    q, k, v = torch.randn(3, 1, 2, 128, 8, device="tpu")
    slopes = torch.rand(2, device="tpu")
    expected = attend(*(t.bfloat16() for t in (q, k, v)), slopes)
    with torch.autocast("tpu", torch.bfloat16):
        found = wrap(attend)(q, k, v, slopes)
    torch.testing.assert_close(found, expected)
