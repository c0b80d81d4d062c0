"""Every optimizer of torch.optim, in its loop, foreach and fused forms, agrees with the CPU over several steps."""

import copy

import pytest
import torch
import torch.nn as nn
from helpers import check

MAKERS = {
    "SGD": lambda p, **k: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, **k),
    "Adam": lambda p, **k: torch.optim.Adam(p, lr=0.01, amsgrad=True, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, lr=0.01, **k),
    "Adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=0.1, **k),
    "Adadelta": lambda p, **k: torch.optim.Adadelta(p, **k),
    "Adamax": lambda p, **k: torch.optim.Adamax(p, **k),
    "NAdam": lambda p, **k: torch.optim.NAdam(p, **k),
    "RAdam": lambda p, **k: torch.optim.RAdam(p, **k),
    "RMSprop": lambda p, **k: torch.optim.RMSprop(p, momentum=0.5, centered=True, **k),
    "Rprop": lambda p, **k: torch.optim.Rprop(p, **k),
    "ASGD": lambda p, **k: torch.optim.ASGD(p, **k),
}
FUSED = {"SGD", "Adam", "AdamW", "Adagrad"}


def train(model, make, options, steps=6):
    optimizer = make(model.parameters(), **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    generator = torch.Generator().manual_seed(1)
    device = next(model.parameters()).device
    for _ in range(steps):
        x = torch.randn(5, 4, generator=generator).to(device)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return optimizer


@pytest.mark.parametrize("form", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("name", MAKERS)
def test_agrees_with_cpu(name, form):
    if form == "fused" and name not in FUSED:
        pytest.skip("torch has no fused form of it")
    options = {"foreach": form == "foreach"} if form != "fused" else {"fused": True}
    torch.manual_seed(0)
    on_cpu = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    on_tpu = copy.deepcopy(on_cpu).to("tpu")
    train(on_cpu, MAKERS[name], {"foreach": False})
    train(on_tpu, MAKERS[name], options)
    for one, other in zip(on_cpu.parameters(), on_tpu.parameters(), strict=True):
        torch.testing.assert_close(other.detach().cpu(), one.detach(), rtol=1e-4, atol=1e-5)


def test_a_changing_learning_rate_compiles_nothing_new(metrics):
    model = nn.Linear(4, 4).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(2, 4, device="tpu")

    def step(lr):
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        torch.tpu.synchronize()

    for i in range(6):
        step(0.1 / (i + 1))
    torch.tpu.wait_for_compiles()
    before = metrics()["fragments_distinct"]
    for i in range(6):
        step(0.01 / (i + 1))
    assert metrics()["fragments_distinct"] == before


def test_state_dict_round_trip():
    model = nn.Linear(4, 4).to("tpu")
    optimizer = train(model, MAKERS["AdamW"], {})
    other = MAKERS["AdamW"](copy.deepcopy(model).parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, two in zip(optimizer.state.values(), other.state.values(), strict=True):
        torch.testing.assert_close(one["exp_avg"].cpu(), two["exp_avg"].cpu())


def test_operators_that_return_several_lists():
    def results(device):
        def lists(n):
            return [[torch.full((2 + i,), k / 10 + i, device=device) for i in range(2)] for k in range(1, n + 1)]

        one = torch.ones((), device=device)
        adam = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
        updated = torch.ops.aten._fused_adam(*lists(4), [], [one, one], **adam, amsgrad=False, maximize=False)
        unscaled = torch.ops.aten._amp_foreach_non_finite_check_and_unscale(lists(1)[0], one * 0, one / 2)
        return updated, unscaled

    (updated, unscaled), expected = results("tpu"), results("cpu")
    assert [len(one) for one in updated] == [2, 2, 2, 2, 0]
    torch.testing.assert_close((updated, unscaled), expected, check_device=False)


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("name", sorted(FUSED))
def test_gradients_are_unscaled_but_where_an_infinity_was_found(name, found):
    def program(weight, grad, scale, found):
        optimizer = getattr(torch.optim, name)([weight.requires_grad_()], lr=0.1, fused=True)
        optimizer.grad_scale, optimizer.found_inf = scale, found
        weight.grad = grad
        optimizer.step()
        return weight.detach(), grad

    check(program, torch.ones(5), torch.arange(5.0), torch.tensor(4.0), torch.tensor(found))


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_running_squares_take_as_much_of_a_gradient_as_the_cpus(name):
    """1 - 0.9999, of which few digits are left where 0.9999 is of 32 bits; of 1e20 the square alone is infinite."""

    def program(weight, grad):
        optimizer = getattr(torch.optim, name)([weight.requires_grad_()], lr=0.1, betas=(0.99, 0.9999), fused=True)
        weight.grad = grad
        optimizer.step()
        return [optimizer.state[weight][key] for key in ("exp_avg", "exp_avg_sq")]

    check(program, torch.ones(4), torch.tensor([10.0, 100.0, 1000.0, 1e20]))


@pytest.mark.parametrize("name", sorted(FUSED))
def test_a_rate_on_the_cpu_may_have_one_element_of_any_dims(name, metrics):
    """As on CUDA, whose kernels take its item; no other rate makes another fragment."""

    def trained(device, shape):
        weight = torch.ones(5, device=device, requires_grad=True)
        rate = torch.full(shape, 0.1)
        optimizer = getattr(torch.optim, name)([weight], lr=rate, fused=True)
        for i in range(5):
            rate.fill_(0.1 / (i + 1))
            weight.grad = torch.full((5,), i - 2.0, device=device)
            optimizer.step()
            torch.tpu.synchronize()
            if i == 2:
                optimizer.distinct = metrics()["fragments_distinct"]
        assert metrics()["fragments_distinct"] == optimizer.distinct
        return weight.detach().cpu()

    for shape in ((), (1,), (1, 1)):
        torch.testing.assert_close(trained("tpu", shape), trained("cpu", ()))
