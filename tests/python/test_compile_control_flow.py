"""torch.compile(backend="tpu") of branches, loops, maps and regions: higher-order operators and their gradients."""

import pytest
import torch
from helpers import assert_same, compiled
from torch.nn import functional as F

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
