"""Recurrent layers: one operation for a cell, one product for the input of all steps; against the CPU."""

import copy

import pytest
import torch
from helpers import assert_same, run_python
from torch import nn


def step(model, x, *state):
    """What a layer returns, and the gradients of its input and parameters."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    y, last = model(x, *state)
    last = last if isinstance(last, tuple) else (last,)
    (y.float().square().sum() + sum(t.float().sum() for t in last)).backward()
    return [t.clone() for t in (y.detach(), *(t.detach() for t in last), x.grad, *(p.grad for p in model.parameters()))]


LAYERS = {nn.LSTM: torch.lstm, nn.GRU: torch.gru, nn.RNN: torch.rnn_tanh}
LENGTH = 6


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_step_is_few_operations(kind, dtype, bias):
    """Forward and backward, op by op and compiled, with the gradients of all; no host kernel once compiled."""
    torch.manual_seed(0)
    cells = kind(8, 12, bias=bias, bidirectional=True).to(dtype)
    x = torch.randn(LENGTH, 3, 8, dtype=dtype)
    expected = step(cells, x)
    cells, x = cells.to("tpu"), x.to("tpu")
    # The CPU's fused layer rounds elsewhere.
    tolerances = {"rtol": 2e-2, "atol": 4e-2} if dtype == torch.bfloat16 else {}
    for _ in range(4):
        assert_same(expected, step(cells, x), **tolerances)
        torch.tpu.wait_for_compiles()
    before = torch.tpu.metrics()
    held = step(cells, x)  # what nobody holds is not computed
    torch.tpu.synchronize()
    after = torch.tpu.metrics()
    del held
    # A product and a cell forward; an addition, the cell's gradient and a product backward.
    assert after["recorded_ops"] - before["recorded_ops"] < 2 * LENGTH * 15
    assert after["host_kernel_calls"] == before["host_kernel_calls"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(8, 12, 3, batch_first=True),
        lambda: nn.LSTM(8, 12, 2, bidirectional=True, batch_first=True, dropout=0.5).eval(),
        lambda: nn.LSTM(8, 12, proj_size=5),
        lambda: nn.GRU(8, 12, 2, bidirectional=True),
        lambda: nn.RNN(8, 12, 2, batch_first=True),
        lambda: nn.RNN(8, 12, nonlinearity="relu", bidirectional=True),
    ],
    ids=["layers", "both_ways", "projection", "gru", "tanh", "relu"],
)
def test_layers_are_the_cpus(make):
    torch.manual_seed(0)
    on_cpu = make()
    on_tpu = copy.deepcopy(on_cpu).to("tpu")
    x = torch.randn(4, LENGTH, 8)
    output, last = on_cpu(x)
    state = tuple(torch.randn_like(t) for t in last) if isinstance(last, tuple) else torch.randn_like(last)
    moved = tuple(t.to("tpu") for t in state) if isinstance(state, tuple) else state.to("tpu")
    assert_same(step(on_cpu, x, state), step(on_tpu, x.to("tpu"), moved))
    with torch.no_grad():
        assert_same(on_cpu(x[0]), on_tpu(x[0].to("tpu")))
        assert on_tpu(x.to("tpu"))[0].stride() == output.stride()
    with torch.inference_mode():
        assert_same(on_cpu(x), on_tpu(x.to("tpu")))


@pytest.mark.parametrize("kind", LAYERS)
def test_packed_sequences(kind):
    torch.manual_seed(0)
    model = kind(8, 12)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(LENGTH, 3, 8), [6, 4, 1])
    expected = model(packed)[0].data
    assert_same(expected, model.to("tpu")(packed.to("tpu"))[0].data)


@pytest.mark.parametrize("kind", LAYERS)
def test_second_derivatives(kind):
    torch.manual_seed(0)
    model, x = kind(3, 4), torch.randn(3, 2, 3)

    def penalty(model, x):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), [x, *model.parameters()])

    expected = penalty(model, x)
    assert_same(expected, penalty(model.to("tpu"), x.to("tpu")))


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_of_parts(kind):
    """Of each result alone, into each input alone, with weights that are frozen, and of an output that was changed."""
    torch.manual_seed(0)
    model, x, first = kind(3, 4, bidirectional=True), torch.randn(LENGTH, 2, 3), torch.randn(2, 2, 4)

    def results(model, x, h, c):
        y, last = model(x, (h, c) if kind is nn.LSTM else h)
        return [y, *last] if kind is nn.LSTM else [y, last]

    def gradients(device):
        moved = copy.deepcopy(model).to(device)
        inputs = [t.to(device).requires_grad_() for t in (x, first, first + 1)][: 3 if kind is nn.LSTM else 2]
        read = [*inputs, *moved.parameters()]

        def run():
            return results(moved, *(*inputs, inputs[-1])[:3])

        found = [torch.autograd.grad(r.square().sum(), read, retain_graph=True, allow_unused=True) for r in run()]
        found += [torch.autograd.grad(run()[0][:2].exp().sum(), [t]) for t in read]
        if kind is not nn.LSTM:  # the CPU's keeps its output
            found.append(torch.autograd.grad(run()[0].mul_(2).sum(), read))
        moved.requires_grad_(False)
        found += [torch.autograd.grad(run()[1].exp().sum(), inputs)]
        return found

    for on_cpu, on_tpu in zip(gradients("cpu"), gradients("tpu"), strict=True):
        for expected, actual in zip(on_cpu, on_tpu, strict=True):
            assert (expected is None) == (actual is None)
            if expected is not None:
                assert_same(expected, actual)
    y = model.to("tpu")(x.to("tpu"))[0].sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@pytest.mark.parametrize("kind", LAYERS)
def test_derivatives_are_those_of_small_differences(kind):
    """First and second ones, of the input and the first state, and where some gradients are not there."""
    torch.manual_seed(0)
    model = kind(3, 4).double().to("tpu")
    x, h = (torch.randn(shape).double().to("tpu").requires_grad_() for shape in ((3, 2, 3), (1, 2, 4)))

    def run(x, h):
        y, last = model(x, (h, h.cos()) if kind is nn.LSTM else h)
        return y, *(last if kind is nn.LSTM else (last,))

    # Between two runs a program may take over from operators one by one, which round elsewhere.
    assert torch.autograd.gradcheck(run, (x, h), nondet_tol=1e-9)
    assert torch.autograd.gradgradcheck(run, (x, h), nondet_tol=1e-9)


@pytest.mark.parametrize("kind", LAYERS)
def test_forward_derivatives_and_traced_graphs(kind):
    torch.manual_seed(0)
    model, x = kind(3, 4).to("tpu"), torch.randn(LENGTH, 2, 3, device="tpu")
    _, derivative = torch.func.jvp(lambda x: model(x)[0].sum(), (x,), (torch.ones_like(x),))
    (gradient,) = torch.autograd.grad(model(x := x.detach().requires_grad_())[0].sum(), x)
    assert_same(gradient.sum().cpu(), derivative)
    x = x.detach()
    batches = ({1: torch.export.Dim("batch", min=2, max=64)},)
    exported = torch.export.export(model, (x,), dynamic_shapes=batches).run_decompositions().module()
    doubled = torch.cat([x, x], 1)
    assert_same(model(doubled)[0].cpu(), exported(doubled)[0])


def test_autocast_casts_a_weight_once():
    torch.manual_seed(0)
    model, x = nn.GRU(8, 12), torch.randn(20, 3, 8)
    expected = step(model, x)
    model, x = model.to("tpu"), x.to("tpu")

    def run():
        with torch.autocast("tpu", torch.bfloat16):
            return step(model, x)

    assert_same(expected, [t.float() for t in run()], rtol=5e-2, atol=1e-1)
    torch.tpu.synchronize()
    before = torch.tpu.metrics()["recorded_ops"]
    run()
    torch.tpu.synchronize()
    assert torch.tpu.metrics()["recorded_ops"] - before < 20 * 20
    with torch.autocast("tpu", torch.bfloat16):
        kept = step(model, x, torch.zeros(1, 3, 12, device="tpu"))  # rounded to bf16 for the steps, gradients not
    assert_same(expected, [t.float() for t in kept], rtol=5e-2, atol=1e-1)
    assert kept[-1].dtype == torch.float32


@pytest.mark.parametrize("kind", LAYERS)
def test_what_does_not_fit_is_refused_at_the_call(kind):
    """Not compared with the CPU's LSTM: oneDNN is not told what fits, and writes over other memory."""
    model = kind(8, 12)

    def call(device, x, state, weights):
        x, state, weights = x.to(device), state.to(device), [w.detach().to(device) for w in weights]
        LAYERS[kind](x, (state, state) if kind is nn.LSTM else state, weights, True, 1, 0.0, False, False, False)

    x, state, weights = torch.ones(5, 3, 8), torch.ones(1, 3, 12), list(model.parameters())
    call("tpu", x, state, weights)
    wrong = {
        "empty": (torch.ones(0, 3, 8), state, weights),
        "input": (torch.ones(5, 3, 7), state, weights),
        "state": (x, torch.ones(1, 3, 11), weights),
        "weights": (x, state, weights[:3]),
        "types": (x.double(), state, weights),
    }
    for arguments in wrong.values():
        with pytest.raises(RuntimeError):
            call("tpu", *arguments)
        if kind is not nn.LSTM:
            with pytest.raises(RuntimeError):
                call("cpu", *arguments)


def test_programs_do_not_depend_on_the_threads_of_who_compiles_them(tmp_path):
    """A product of few rows and what follows are cut alike in every process: they may share a cache."""
    program = """
        import torch
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        for kind, rows, width in ((torch.nn.LSTM, 32, 128), (torch.nn.GRU, 64, 256), (torch.nn.RNN, 48, 96)):
            torch.manual_seed(0)
            layer, x = kind(width, width, 2).to("tpu"), torch.randn(6, rows, width).to("tpu")
            for _ in range(4):
                with torch.no_grad():
                    y = layer(x)[0].cpu()
                torch.tpu.wait_for_compiles()
            print(y.view(torch.int32).sum().item(), y[-1, -1, :4].tolist())
    """
    one, two = (
        run_python(program, {"TORCH_TPU_THREADS": threads, "TORCH_TPU_CACHE": str(tmp_path / threads)}).stdout
        for threads in "12"
    )
    assert one == two
