"""torch.compile(backend="tpu"): the CPU's values, captured (no graph runs operation by operation), in every mode."""

import gc
import weakref

import pytest
import torch
from helpers import assert_same, compiled, on_both, run_python
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.common_utils import freeze_rng_state
from torch.utils.checkpoint import checkpoint
from torch_tpu import _C

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def check_torch_compiled(function, *arguments, calls=3, captured=True, **options):
    """Compiled on tpu, called several times, gives what the function gives on the CPU and writes the same."""
    torch._dynamo.reset()
    torch.tpu.reset_metrics()
    there = compiled(function, **options)
    for _ in range(calls):

        def result(device):
            moved = [a.detach().clone().to(device) if isinstance(a, torch.Tensor) else a for a in arguments]
            return (there if device == "tpu" else function)(*moved), moved

        assert_same(result("cpu"), result("tpu"))
    found = torch.tpu.metrics()
    assert found["graph_calls"] >= calls
    assert (found["graph_calls_uncaptured"] == 0) == captured, torch.tpu.explain().uncaptured_graphs


class Mlp(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(dropout), nn.Linear(32, 5)
        )

    def forward(self, x):
        return self.layers(x)


def train(model, make_optimizer, device, wrap=lambda step: step, steps=5, batch=16):
    """Losses of some steps, and the parameters after them; the same data on every device."""
    data = torch.Generator().manual_seed(1)
    model = model.to(device)
    optimizer = make_optimizer(model.parameters())

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    step = wrap(step)
    losses = []
    for _ in range(steps):
        x = torch.randn(batch, 12, generator=data).to(device)
        y = torch.randint(5, (batch,), generator=data).to(device)
        losses.append(step(x, y).detach())
        optimizer.step()
        optimizer.zero_grad()
    return losses, [p.detach() for p in model.parameters()]


def test_named_as_a_backend():
    assert "tpu" in torch._dynamo.list_backends()


def test_forward():
    check_torch_compiled(
        lambda a, b: (F.gelu(a @ b).softmax(-1), (a * 2).sum(0), a.amax(1)), torch.randn(8, 4), torch.randn(4, 6)
    )


def test_module_forward_and_backward(metrics):
    reference, model = Mlp(), Mlp().to("tpu")
    model.load_state_dict(reference.state_dict())
    there = compiled(model, fullgraph=True)
    for _ in range(3):
        x = torch.randn(7, 12)
        near, far = x.clone().requires_grad_(), x.to("tpu").requires_grad_()
        reference(near).square().mean().backward()
        there(far).square().mean().backward()
        assert_same(near.grad, far.grad)
        assert_same([p.grad for p in reference.parameters()], [p.grad for p in model.parameters()])
    found = metrics()
    assert (found["graph_captures"], found["graph_calls"], found["graph_calls_uncaptured"]) == (2, 6, 0)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("before", [0, 1])
def test_backward_twice(dynamic, before):
    a = torch.randn(4, device="tpu", requires_grad=True)
    there = compiled(lambda a: ((a.sin() * a).exp() * a.cos()).sum(), dynamic=dynamic)
    for _ in range(before):
        there(a).backward()
    y = there(a)
    first = torch.autograd.grad(y, a, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y, a), first)
    b = a.detach().cpu().requires_grad_()
    ((b.sin() * b).exp() * b.cos()).sum().backward()
    assert_same(b.grad, first[0])


@pytest.mark.parametrize("mode", ["fused", "strict", "debug"])
def test_modes_agree(mode):
    torch.tpu.set_eager_mode(mode)
    a, b = torch.randn(6, 6), torch.randn(6)
    expected, found = on_both(lambda a, b: torch.tanh(a @ a + b).cumsum(1), a, b)
    assert_same(expected, found)
    assert_same(expected, compiled(lambda a, b: torch.tanh(a @ a + b).cumsum(1))(a.to("tpu"), b.to("tpu")))


def test_no_backend_named_gets_there(metrics):
    x = torch.randn(4, 4)
    assert_same(F.silu(x) + 1, torch.compile(lambda x: F.silu(x) + 1)(x.to("tpu")))
    assert metrics()["graph_calls"] == 1


def test_unknown_options_are_named():
    with pytest.raises(Exception, match=r"has no options.*max_autotune"):
        compiled(lambda x: x + 1, options={"max_autotune": True})(torch.ones(2, device="tpu"))


def test_wait_returns_when_compiled(metrics):
    f = compiled(lambda x: (x.sin() * 2 + x).sum(), options={"wait": True})
    x = torch.randn(33, 7, device="tpu")
    x.cpu()
    torch.tpu.wait_for_compiles()  # what made x
    f(x)
    torch.tpu.synchronize()  # a plugin's tier 0 compiles single operations
    before = metrics()["compiles"] + metrics()["disk_cache_hits"]
    assert before > 0
    f(x).item()
    found = metrics()
    assert found["launches_tier1"] > 0 and found["compiles"] + found["disk_cache_hits"] == before


# What graphs take and give.


def test_inputs_that_are_written():
    def f(a, b):
        a.add_(1)
        b.mul_(a.sum())
        return a * b

    check_torch_compiled(f, torch.randn(4, 3), torch.randn(4, 3))


def test_views_that_are_written():
    def f(a):
        a[1:3].mul_(2)
        a.t()[0].zero_()
        return a.sum()

    check_torch_compiled(f, torch.randn(4, 4))


def test_an_input_over_part_of_a_storage_is_written():
    def run(device, step):
        base = torch.arange(24.0).reshape(4, 6).to(device)
        out = [step(base[:, 1:4]), step(base[1:3]), step(base.t()[2:4])]
        return out, base

    def step(x):
        x.add_(1)
        return x * 2, x.t()

    assert_same(run("cpu", step), run("tpu", compiled(step)))


def test_inputs_with_gaps_overlaps_and_orders():
    def f(a, b, c, d, e):
        return a + 1, b * 2, c.sum(0), d.reshape(-1), e @ c[:4]

    x = torch.randn(4, 6)
    nhwc = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    there = compiled(f)
    for _ in range(2):

        def arguments(device):
            t, n = x.to(device), nhwc.to(device)
            return t[:, ::2], t[0].expand(3, 6), t.t(), n, t[1:3, :4]

        # d.reshape(-1) copies: strides agree
        assert_same(f(*arguments("cpu")), there(*arguments("tpu")))


def test_outputs_that_are_inputs_and_views_of_them():
    def f(a, b):
        return a, a.t(), a[1:], b.view(-1), a[0, 0], None, 3, a.detach()

    there = compiled(f)
    a, b = torch.randn(3, 3), torch.randn(2, 2)
    for _ in range(2):
        x, y = a.to("tpu"), b.to("tpu")
        out = there(x, y)
        assert_same(f(a, b), out)
        assert out[0] is x
        x.fill_(5)  # seen through every view
        assert out[1].sum().item() == 45 and out[2].sum().item() == 30 and out[4].item() == 5


def test_outputs_that_alias_each_other():
    def f(a):
        b = a + 1
        return b, b.t(), b[0]

    out = compiled(f)(torch.zeros(2, 2, device="tpu"))
    out[0].fill_(7)
    assert out[1].sum().item() == 28 and out[2].sum().item() == 14


def test_calls_do_not_share_outputs():
    f = compiled(lambda a: (a + 1, torch.zeros(3, device=a.device), torch.empty(2, device=a.device)))
    a = torch.zeros(3, device="tpu")
    first, second = f(a), f(a)
    for t in first:
        t.fill_(9)
    assert second[0].tolist() == [1, 1, 1] and second[1].tolist() == [0, 0, 0]
    assert second[2].data_ptr() != first[2].data_ptr()


def test_inputs_and_outputs_are_not_kept_alive():
    f = compiled(lambda a: (a @ a).relu())
    a = torch.randn(256, 256, device="tpu")
    f(a)
    held = weakref.ref(a)
    out = f(a)
    del a
    gc.collect()
    assert held() is None
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    for _ in range(5):
        out = f(torch.randn(256, 256, device="tpu"))
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() <= before
    del out
    assert torch.tpu.memory_allocated() < before


def test_constants_and_numbers():
    table = torch.arange(6.0)

    def f(a, scale):
        return a * scale + table.to(a.device) + torch.tensor(0.25) + torch.tensor([1.0] * 6, device=a.device)

    there = compiled(f)
    for scale in (2.0, 3.0, torch.tensor(4.0), torch.tensor(5.0)):
        a = torch.randn(2, 6)
        assert_same(f(a, scale), there(a.to("tpu"), scale))


def test_tensors_of_the_cpu_in_the_graph(metrics):
    def f(a, host, number):
        host = host * 2
        number = number + 1
        b = a * host.to(a.device) + number
        return b.cpu() + host, b * number, number

    there = compiled(f, fullgraph=True)
    for i in range(3):
        a, host, number = torch.randn(3, 4), torch.randn(4), torch.tensor(float(i))
        near, far = f(a, host, number), there(a.to("tpu"), host, number)
        torch.testing.assert_close(far[0], near[0])
        assert_same(near[1], far[1])
        assert far[2] == near[2]
    assert metrics()["graph_calls_uncaptured"] == 0


def test_results_whose_size_depends_on_data(metrics):
    def f(a):
        found = (a * 2 > 1).nonzero()
        return (found + 1).contiguous(), a.relu()  # the strides of nonzero are the CPU's own

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        there = compiled(f, fullgraph=True)
        for n in (3, 4, 5):
            a = torch.randn(n, 4)
            assert_same(f(a), there(a.to("tpu")))


def test_integers_as_indices_are_captured(metrics):
    def f(a, rows, columns):
        return (a.exp()[rows] * 2).sum(-1), a[:, columns].tanh(), a[rows, columns] + 1

    arguments = torch.randn(5, 4), torch.tensor([3, 0, 3]), torch.tensor([1, 2, 0])
    there = compiled(f, fullgraph=True)
    for calls in (1, 2):
        assert_same(f(*arguments), there(*(t.to("tpu") for t in arguments)))
        assert metrics()["graph_calls"] == calls  # not split around the indexing
    assert metrics()["graph_calls_uncaptured"] == 0


def test_masks_as_indices(metrics):
    def f(a, rows):
        return a[a > 0] * 2, a[rows].relu()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        there = compiled(f, fullgraph=True)
        for _ in range(3):
            a, rows = torch.randn(5, 4), torch.tensor([3, 0, 3])
            assert_same(f(a, rows), there(a.to("tpu"), rows.to("tpu")))
    assert metrics()["graph_calls_uncaptured"] == 0


# What surrounds graphs.


def test_dynamic_shapes_do_not_recompile():
    def f(a, b):
        return (a @ b).softmax(-1).sum(0) * a.shape[0]

    there = compiled(f, dynamic=True, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (3, 7, 5, 3, 9):
            a, b = torch.randn(n, 4), torch.randn(4, n)
            assert_same(f(a, b), there(a.to("tpu"), b.to("tpu")))


def test_dynamic_shapes_backward():
    def f(a, w):
        return F.gelu(a @ w).mean()

    there = compiled(f, dynamic=True)
    for n in (4, 6, 9):
        a, w = torch.randn(n, 8), torch.randn(8, 8)
        near, far = w.clone().requires_grad_(), w.to("tpu").requires_grad_()
        f(a, near).backward()
        there(a.to("tpu"), far).backward()
        assert_same(near.grad, far.grad)


def test_graph_breaks():
    def f(a):
        b = a * 2
        if b.sum() > 0:
            b = b + 1
        else:
            b = b - 1
        print(end="")
        return b.relu()

    check_torch_compiled(f, torch.ones(3))
    check_torch_compiled(f, -torch.ones(3))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(f, fullgraph=True)(torch.ones(3, device="tpu"))


def test_the_devices_own_functions_are_not_traced():
    @compiled
    def f(x):
        with freeze_rng_state():  # calls them where no fake tensor can be made
            return (x * 2).sum().item()

    for _ in range(2):
        assert f(torch.ones(3, device="tpu")) == 6


def test_errors_are_the_programs():
    with pytest.raises(Exception, match="size"):
        compiled(lambda a, b: a @ b)(torch.ones(2, 3, device="tpu"), torch.ones(2, 3, device="tpu"))


def test_autocast():
    def f(a, w):
        with torch.autocast(a.device.type, torch.bfloat16):
            return F.linear(a, w).float().softmax(-1)

    check_torch_compiled(f, torch.randn(8, 16), torch.randn(4, 16))
    a, w = torch.randn(8, 16), torch.randn(4, 16)
    there = compiled(lambda a, w: F.linear(a, w) + 1)
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.linear(a, w) + 1
    with torch.autocast("tpu", torch.bfloat16):
        found = [there(a.to("tpu"), w.to("tpu")) for _ in range(2)]
    assert_same([expected] * 2, found)


def test_inference_mode_and_no_grad():
    model = Mlp().to("tpu")
    there = compiled(model)
    x = torch.randn(3, 12, device="tpu")
    expected = model(x)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            torch.testing.assert_close(there(x), expected)


def test_random_numbers_are_eagers():
    def f(a):
        return F.dropout(a, 0.5) + torch.rand_like(a), torch.randn(3, device=a.device)

    there = compiled(f)
    a = torch.randn(50, device="tpu")
    for _ in range(2):  # captured, replayed
        torch.manual_seed(4)
        expected = [f(a), f(a)]
        torch.manual_seed(4)
        found = [there(a), there(a)]
        torch.testing.assert_close(found, expected)
        assert not torch.equal(found[0][1], found[1][1])


def test_checkpoint_with_dropout(metrics):
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).to("tpu")
    nn.init.eye_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    there = compiled(lambda x: checkpoint(model, x, use_reentrant=False) * 3)
    masks = set()
    for _ in range(3):
        x = torch.ones(20, 6, device="tpu", requires_grad=True)
        y = there(x)
        y.sum().backward()  # drops again what the forward dropped
        torch.testing.assert_close(x.grad, y)
        masks.add(str(y.tolist()))
    assert len(masks) == 3
    assert metrics()["graph_calls_uncaptured"] == 0


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW], ids=["sgd", "adamw"])
def test_compiled_optimizer(make):
    def optimizer(parameters):
        made = make(parameters, lr=0.05)
        if next(iter(made.param_groups[0]["params"])).device.type == "tpu":
            made.step = compiled(made.step)
        return made

    reference, model = Mlp(), Mlp()
    model.load_state_dict(reference.state_dict())
    assert_same(train(reference, optimizer, "cpu"), train(model, optimizer, "tpu"))


def test_compiled_step_with_backward_inside():
    reference, model = Mlp(), Mlp()
    model.load_state_dict(reference.state_dict())

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    assert_same(train(reference, sgd, "cpu"), train(model, sgd, "tpu", wrap=compiled))


def test_batch_norm_writes_its_statistics():
    reference = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    model.load_state_dict(reference.state_dict())
    there = compiled(model.to("tpu"))
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        near, far = reference(x), there(x.to("tpu"))
        near.sum().backward()
        far.sum().backward()
        assert_same(near, far)
    assert_same(list(reference.buffers()), list(model.buffers()))


def test_exported_program():
    model = Mlp()
    x = torch.randn(3, 12)
    program = torch.export.export(model, (x,))
    expected = model(x)
    there = compiled(program.module().to("tpu"))
    assert_same(expected, there(x.to("tpu")))


def test_export_with_tensors_that_are_no_parameters():
    class Affine(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = torch.randn(5, 12, device="tpu"), torch.randn(5, device="tpu")

        def forward(self, x):
            return F.linear(x, self.weight, self.bias)

    model, x = Affine(), torch.randn(3, 12, device="tpu")
    program = torch.export.export(model, (x,)).run_decompositions({})
    assert_same(model(x).cpu(), program.module()(x))


def test_custom_operator(metrics):
    @torch.library.custom_op("torch_tpu_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    there = compiled(lambda x: twice(x.sin()) + 1, fullgraph=True)
    for _ in range(2):
        x = torch.randn(4)
        assert_same(x.sin() * 2 + 1, there(x.to("tpu")))


@pytest.mark.parametrize("returned", [False, True])
def test_storages_given_up_in_a_graph(returned):
    def program(x):
        y = torch.sin(x + 1)
        storage = x.untyped_storage()
        storage.resize_(0)
        return (torch.cos(y), storage) if returned else torch.cos(y)

    step = torch.compile(program, backend="tpu", fullgraph=True)
    for first in (0, 7):
        x = torch.arange(first, first + 10.0, device="tpu")
        results = step(x)
        torch.testing.assert_close(
            (results[0] if returned else results).cpu(), torch.cos(torch.sin(torch.arange(first, first + 10.0) + 1))
        )
        assert x.untyped_storage().size() == 0
        assert not returned or results[1] is x.untyped_storage()


def test_threads_call_one_graph():
    import threading

    there = compiled(lambda x: (x @ x).tanh().sum())
    x = torch.randn(16, 16)
    expected = (x @ x).tanh().sum()
    found = []

    def work():
        for _ in range(5):
            found.append(there(x.to("tpu")).cpu())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 15
    for f in found:
        torch.testing.assert_close(f, expected)


def test_uncaptured_graphs_are_told():
    graph = _C.CompiledGraph(lambda x: (x * x.sum().item(),))
    torch.tpu.reset_metrics()
    assert graph([torch.ones(3, device="tpu")])[0].tolist() == [3, 3, 3]
    told = torch.tpu.explain()
    assert told.counters["graph_calls_uncaptured"] == 1
    assert "can't be read" in next(iter(told.uncaptured_graphs)) and "can't be read" in str(told)
    beyond_64_bits = _C.CompiledGraph(lambda x, n: (x + n % 7,))
    for n in (2**70, 2**70 + 1):
        assert beyond_64_bits([torch.ones(3, device="tpu"), n])[0].tolist() == [1 + n % 7] * 3


def test_uncaptured_graphs_can_be_forbidden():
    refused = run_python(
        """
        import torch
        from torch_tpu import _C
        graph = _C.CompiledGraph(lambda x: (x * x.sum().item(),))
        graph([torch.ones(3, device="tpu")])
        """,
        {"TORCH_TPU_FALLBACK": "error"},
        expect=1,
    ).stderr
    assert "NotImplementedError" in refused and "can't be read" in refused
