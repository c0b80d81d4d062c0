"""Sizes that change behind a PJRT plugin: programs for padded values, whatever the padding holds."""

import pytest
import test_sizes
import torch
import torch.nn.functional as F
from helpers import EMBEDDED, assert_same
from test_sizes import counted, run_at, values

pytestmark = pytest.mark.skipif(EMBEDDED, reason="the embedded device's programs take any size as it is")

LENGTHS = (20, 33, 47, 64, 51, 128, 21, 96, 30, 17, 66)


def poisoned(*shape, device, seed=0):
    """The same values, from a program for padded ones whose padding, zeros at first, is NaN behind it."""
    x = values(*shape, device=device, seed=seed)
    if device == "tpu":
        x = x + 0 * (1 / x)
        torch.tpu.synchronize()
    return x


@pytest.fixture
def f64():
    """What test_sizes has of f32 is known, and served, already."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", ["head", "attention", "table", "joined", "stacked", "scattered", "divided", "written"])
def test_padding_never_matters(name, monkeypatch, f64):
    monkeypatch.setattr(test_sizes, "values", poisoned)
    _, served = run_at(getattr(test_sizes, name), LENGTHS, rtol=1e-4, atol=1e-5)
    assert served >= 2 * (len(LENGTHS) - 3)


@pytest.mark.parametrize("name", ["perceptron", "outer", "scores", "heads", "pieced", "spread"])
def test_padding_of_two_sizes_never_matters(name, monkeypatch, f64):
    monkeypatch.setattr(test_sizes, "values", poisoned)
    _, served = run_at(getattr(test_sizes, name), test_sizes.PAIRS, rtol=1e-4, atol=1e-5)
    assert served >= len(test_sizes.PAIRS) - 4


def test_gradients_of_convolutions_and_recurrent_layers():
    torch.manual_seed(0)
    layers = {"cpu": (torch.nn.Conv1d(3, 5, 3, padding=1), torch.nn.GRU(5, 4, batch_first=True))}
    layers["tpu"] = [type(m)(**a).to("tpu") for m, a in zip(layers["cpu"], ARGUMENTS, strict=True)]
    for of_cpu, of_tpu in zip(*layers.values(), strict=True):
        of_tpu.load_state_dict(of_cpu.state_dict())

    def step(size, device):
        convolution, recurrent = layers[device]
        x = values(size, 3, 6, device=device).requires_grad_()
        y = recurrent(convolution(x).transpose(1, 2))[0]
        parameters = [x, *convolution.parameters(), *recurrent.parameters()]
        return torch.autograd.grad((y * y).sum(), parameters)

    _, served = run_at(step, (3, 7, 12, 9, 5, 16, 31, 22), rtol=1e-3, atol=1e-4)
    assert served >= 3


ARGUMENTS = (
    {"in_channels": 3, "out_channels": 5, "kernel_size": 3, "padding": 1},
    {"input_size": 5, "hidden_size": 4, "batch_first": True},
)


def test_random_numbers_are_those_of_any_other_program():
    def noisy(size):
        torch.manual_seed(size)
        x = torch.ones(3, size, 5, device="tpu")
        return F.dropout(x, 0.3), torch.randn(size, device="tpu"), torch.rand(2, size, device="tpu") * 2

    served = counted("sizes_served")
    for size in LENGTHS:
        several = [x.cpu() for x in noisy(size)]
        torch.tpu.wait_for_compiles()
        torch.use_deterministic_algorithms(True)  # a program of its own
        alone = [x.cpu() for x in noisy(size)]
        torch.use_deterministic_algorithms(False)
        assert all(torch.equal(a, b) for a, b in zip(several, alone, strict=True))
    assert counted("sizes_served") - served >= len(LENGTHS) - 4


def test_fixed_programs_are_not_those_for_many_sizes(monkeypatch):
    """Though one serves already: what is compiled meanwhile may round otherwise, and timing would tell which runs."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)

    def product(size, device):
        x = values(size, 64, device=device)
        return x.t() @ x, x.sum(0)

    run_at(product, (1200, 1333, 1447, 1364), rtol=1e-4, atol=1e-3)
    served = counted("sizes_served")
    [x.cpu() for x in product(1111, "tpu")]
    assert counted("sizes_served") > served
    torch.use_deterministic_algorithms(True)
    try:
        first = [x.cpu() for x in product(1111, "tpu")]
        torch.tpu.wait_for_compiles()
        again = product(1111, "tpu")
        assert all(torch.equal(a, b.cpu()) for a, b in zip(first, again, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_larger_program_serves_until_there_is_a_closer_one():
    def doubled(size, device):
        return (values(size, 7, device=device) * 2).softmax(0)

    run_at(doubled, (100, 110, 120, 125), rtol=1e-4, atol=1e-6)
    served, op_by_op = counted("sizes_served"), counted("launches_tier0")
    assert_same(doubled(20, "cpu"), doubled(20, "tpu"), rtol=1e-4, atol=1e-6)
    assert counted("sizes_served") == served + 1 and counted("launches_tier0") == op_by_op
    torch.tpu.wait_for_compiles()
    ranges = [r["summary"].rsplit(" ", 1)[1] for r in torch.tpu.explain().compiles if ", sizes " in r["summary"]]
    assert ranges[-2:] == ["128", "24"]
    compiles = counted("compiles")
    run_at(doubled, (19, 21, 23, 24), rtol=1e-4, atol=1e-6)
    assert counted("compiles") == compiles  # its step has a program now


def test_values_go_from_padded_programs_to_others_and_back():
    """A size that is used often gets programs of its own; what is kept from before is padded then."""

    def begun(size, device):
        return values(size, 6, device=device) * 2

    def gone_on(state, x):
        state.add_(x.sin(), alpha=0.5)
        return state * 2

    run_at(begun, (20, 33, 47), rtol=1e-4, atol=1e-5)
    state, twin = begun(40, "tpu"), begun(40, "cpu")
    for i in range(300):
        x = begun(40, "tpu") + i
        torch.tpu.synchronize()
        y = gone_on(state, x)
        expected = gone_on(twin, begun(40, "cpu") + i)
        if i % 25 == 0 or i > 250:
            assert_same(expected, y, rtol=1e-4, atol=1e-3)
        if i == 260:
            torch.tpu.wait_for_compiles()
    assert_same(twin, state, rtol=1e-4, atol=1e-3)


def test_what_becomes_smaller_as_a_size_grows():
    """The largest size is not where the rest of a table is largest: there is no padded program for that."""

    def rest(size, device):
        x = poisoned(200, 4, device=device)
        return x[size:] * 2, torch.cat([x[:size] + 1, x[size:] * 3])

    run_at(rest, LENGTHS, rtol=1e-4, atol=1e-6)


def test_explain_tells_why_there_is_none():
    def strided(size, device):
        return values(size * size, device=device)[::size] + 1

    run_at(strided, (5, 6, 7, 11, 12, 9), rtol=1e-4, atol=1e-6)
    told = [r["outcome"] for r in torch.tpu.explain().compiles if ", sizes " in r["summary"]]
    assert "tpu.slice: strides follow the sizes" in told


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_padded_rows_of_a_vector(dtype):
    x = torch.arange(128).reshape(32, 4).to(dtype)
    for pads in ((0, 0, 0, 1), (0, 0, 2, 1)):
        assert_same(F.pad(x, pads, value=7), F.pad(x.to("tpu"), pads, value=7))
