"""torch.compile(backend="tpu"): numbers that change from call to call compile nothing anew, and inputs that carry sizes
alone leave a graph captured."""

import copy

import pytest
import torch
from helpers import assert_same, compiled
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

# Of tensors a, b, c and numbers s, t.
USES = {
    "add": lambda a, b, c, s, t: torch.add(a, b, alpha=s),
    "sub": lambda a, b, c, s, t: torch.sub(a, b, alpha=s),
    "rsub": lambda a, b, c, s, t: s - a,
    "add a number": lambda a, b, c, s, t: torch.add(a, s, alpha=2) + s,
    "rsub with alpha": lambda a, b, c, s, t: torch.rsub(a, s, alpha=2) + torch.rsub(a, 1.0, alpha=s),
    "addcmul": lambda a, b, c, s, t: torch.addcmul(a, b, c, value=s),
    "addcdiv": lambda a, b, c, s, t: torch.addcdiv(a, b, c, value=s),
    "lerp": lambda a, b, c, s, t: torch.lerp(a, b, s),
    "pow": lambda a, b, c, s, t: torch.pow(c, s),
    "foreach add": lambda a, b, c, s, t: torch._foreach_add([a, b], s),
    "foreach add lists": lambda a, b, c, s, t: torch._foreach_add([a, b], [b, c], alpha=s),
    "foreach add each": lambda a, b, c, s, t: torch._foreach_add([a, b], [s, t]),
    "foreach sub lists": lambda a, b, c, s, t: torch._foreach_sub([a, b], [b, c], alpha=s),
    "foreach mul": lambda a, b, c, s, t: torch._foreach_mul([a, b], s),
    "foreach div each": lambda a, b, c, s, t: torch._foreach_div([a, b], [s, t]),
    "foreach addcmul": lambda a, b, c, s, t: torch._foreach_addcmul([a, b], [b, c], [c, c], s),
    "foreach addcdiv each": lambda a, b, c, s, t: torch._foreach_addcdiv([a, b], [b, c], [c, c], [s, t]),
    "foreach lerp": lambda a, b, c, s, t: torch._foreach_lerp([a, b], [b, c], s),
    "foreach pow": lambda a, b, c, s, t: torch._foreach_pow([c, c], s),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("use", USES)
def test_numbers_that_change_compile_nothing_anew(use, dtype):
    there = compiled(USES[use])
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for i in range(4):
            a, b, c = (torch.rand(3, 5) + 0.5).to(dtype)
            s, t = 0.1 * i + 0.03, 0.7 - 0.1 * i
            expected = USES[use](a, b, c, s, t)
            assert_same(expected, there(a.to("tpu"), b.to("tpu"), c.to("tpu"), s, t))


def test_sums_of_several_types_are_promoted():
    there = compiled(lambda a, b, s: torch.add(a, b, alpha=s))
    for i in range(3):
        a, b = torch.arange(4), torch.rand(4)
        assert_same(torch.add(a, b, alpha=0.5 + i), there(a.to("tpu"), b.to("tpu"), 0.5 + i))


MAKERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05),
    "AdamW, loop": lambda p: torch.optim.AdamW(p, lr=0.05, foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.05),
}


@pytest.mark.parametrize("name", MAKERS)
def test_schedulers_of_compiled_optimizers(name):
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    model = copy.deepcopy(reference).to("tpu")
    counters.clear()
    for m in (reference, model):
        optimizer = MAKERS[name](m.parameters())
        step = compiled(optimizer.step) if m is model else optimizer.step
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        for i in range(7):
            x = torch.full((3, 4), 0.1 * i, device=next(m.parameters()).device)
            optimizer.zero_grad()
            m(x).square().mean().backward()
            step()
            schedule.step()
    assert counters["stats"]["unique_graphs"] <= 3
    assert_same(list(reference.parameters()), list(model.parameters()), rtol=1e-4, atol=1e-5)


def test_sizes_of_compiled_autograd_are_captured(metrics):
    def gradient(x):
        x.requires_grad_()
        (x * 2).exp().sum().backward()
        return x.grad

    for size in (4, 5, 6):
        x = torch.randn(size)
        expected = gradient(x.clone())
        with compiled_autograd._enable(torch.compile(backend="tpu")):
            assert_same(expected, gradient(x.to("tpu")))
    assert metrics()["graph_calls"] >= 3 and metrics()["graph_calls_uncaptured"] == 0


def test_nested_tensors_are_captured(metrics):
    there = compiled(lambda x, w: (x @ w).relu() * 2)
    for size in (2, 3, 4):
        parts, w = [torch.randn(size, 4), torch.randn(5, 4)], torch.randn(4, 6)
        x = torch.nested.nested_tensor([part.to("tpu") for part in parts], layout=torch.jagged)
        expected = (torch.cat(parts) @ w).relu() * 2
        assert_same(expected, there(x, w.to("tpu")).values())
    assert metrics()["graph_calls_uncaptured"] == 0


def test_gradients_of_numbers_of_the_cpu_are_captured(metrics):
    def gradients(x, number, function):
        y = function(x, number)
        y.sum().backward()
        return y, x.grad, number.grad.to(x.device)

    def f(x, number):
        return x * number + number

    there = compiled(f)
    for i in range(3):
        x, number = torch.randn(4), torch.tensor(0.5 + i)
        expected = gradients(x.clone().requires_grad_(), number.clone().requires_grad_(), f)
        assert_same(expected, gradients(x.to("tpu").requires_grad_(), number.requires_grad_(), there))
    assert metrics()["graph_calls_uncaptured"] == 0
