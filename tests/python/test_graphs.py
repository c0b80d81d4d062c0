"""torch.accelerator.Graph and torch.tpu's graphs: captured once, replayed on what storages hold, as CUDA graphs are."""

import copy
import functools
import threading

import pytest
import torch
from helpers import run_python

DEVICE = "tpu"
metrics = torch.tpu.metrics


def captured(function, warm=1):
    """The graph of a call, and what the call returned."""
    for _ in range(warm):
        function()
    graph = torch.accelerator.Graph()
    with torch.Stream(), graph:
        result = function()
    return graph, result


def test_a_replay_takes_what_its_inputs_hold():
    x, y = torch.zeros(3, device=DEVICE), torch.empty(3, device=DEVICE)
    graph, result = captured(lambda: torch.mul(x, 2, out=y) + 1)
    for value in (1.0, 2.0, -3.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * value] * 3 and result.tolist() == [2 * value + 1] * 3


def test_nothing_runs_while_it_is_captured():
    x = torch.ones(3, device=DEVICE)
    before = metrics()
    graph, _ = captured(lambda: x.add_(1), warm=0)
    assert x.tolist() == [1, 1, 1]  # what it held before
    assert metrics()["recorded_ops"] == before["recorded_ops"]
    graph.replay()
    graph.replay()
    assert x.tolist() == [3, 3, 3]
    assert metrics()["graph_replays"] == before["graph_replays"] + 2


@pytest.mark.parametrize("read", [lambda x: x.t().sum(1), lambda x: x.view(6)[:3].sum(), lambda x: x.sum(0)])
def test_memory_that_holds_nothing_yet_is_an_input(read):
    x = torch.empty(2, 3, device=DEVICE)
    graph, result = captured(lambda: read(x), warm=0)
    x.copy_(torch.arange(6.0).view(2, 3))
    graph.replay()
    assert result.tolist() == read(x).tolist()
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_copies_of_tensors_and_modules_are_captured():
    x, layer = torch.ones(2, 3, device=DEVICE), torch.nn.Linear(3, 2, device=DEVICE).requires_grad_(False)
    graph, (copied, copied_layer, result) = captured(lambda: (*(c := copy.deepcopy((x, layer))), c[1](c[0])))
    layer.weight.copy_(x.fill_(2.0))
    graph.replay()
    assert copied.tolist() == copied_layer.weight.tolist() == x.tolist() and result.tolist() == layer(x).tolist()


def test_memory_made_while_it_is_captured_keeps_what_is_written_between_replays():
    x, place = torch.ones(2, device=DEVICE), torch.zeros(1, dtype=torch.long, device=DEVICE)

    def step():
        cache = torch.empty(3, 2, device=DEVICE)
        cache.index_copy_(0, place, x[None])
        place.add_(1)
        return cache, cache.sum(), torch.empty(2, device=DEVICE).add_(x), torch.zeros(2, device=DEVICE).add_(x)

    graph, (cache, total, grown, fresh) = captured(step, warm=0)
    cache.zero_()
    grown.zero_()
    for value in (1.0, 2.0, 3.0):
        x.fill_(value)
        graph.replay()
    assert cache.tolist() == [[1, 1], [2, 2], [3, 3]] and total.item() == 12
    assert grown.tolist() == [6, 6] and fresh.tolist() == [3, 3]


def test_a_storage_resized_meanwhile_is_as_large_as_it_says():
    x = torch.arange(4.0, device=DEVICE)
    graph = torch.accelerator.Graph()
    with graph:
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(32)
    y = torch.empty(0, device=DEVICE).set_(x.untyped_storage(), 0, (8,))
    assert (y + 1).shape == (8,)
    assert y.fill_(3).tolist() == [3] * 8 and x.tolist() == [3] * 4
    graph.replay()


def check_replays(step, x):
    """Of step(x), captured at once, against the CPU."""
    graph, results = captured(lambda: step(x), warm=0)
    for start in (0.0, 5.0):
        x.copy_(torch.arange(start, start + len(x)))
        graph.replay()
        assert [r.tolist() for r in results] == [r.tolist() for r in step(x.cpu())]


def test_what_is_made_meanwhile_is_resized():
    def step(x):
        y = x * 2
        y.resize_(7)[4:].fill_(9)
        part = x + 1
        part.untyped_storage().resize_(9)  # two elements, and a piece of the third
        return y, torch.empty(0, device=x.device).set_(part.untyped_storage(), 0, (2,)) + 1

    check_replays(step, torch.zeros(4, device=DEVICE))


@pytest.mark.parametrize("change", [lambda y: y.resize_(6), lambda y: y.resize_(1).resize_(6)])
def test_memory_made_meanwhile_is_resized(change):
    """Some of it is written before, so that the rest is read."""

    def step(x):
        y = torch.empty(4, device=x.device)
        y[:2].copy_(x)
        first = y[:2] * 3
        change(y)[1:].fill_(9)
        freed = torch.empty(4, device=x.device)
        freed[1:3].copy_(x)
        again = freed[1:3] + 1
        freed.untyped_storage().resize_(0)
        return first, y, again, y * 2

    check_replays(step, torch.zeros(2, device=DEVICE))


def test_what_was_there_before_keeps_its_size():
    x = torch.ones(3, device=DEVICE)
    with pytest.raises(NotImplementedError, match="can't get another size"):
        captured(lambda: x.add_(1).resize_(5), warm=0)
    assert x.tolist() == [1, 1, 1]


def test_inputs_may_lie_otherwise_and_results_are_views():
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    graph, (columns, part) = captured(lambda: ((x * 2).t(), x[:, 1:]))
    x.copy_(torch.arange(6.0, 12.0).view(3, 2).t())
    graph.replay()
    assert columns.tolist() == [[12, 14], [16, 18], [20, 22]] and part.tolist() == [[8, 10], [9, 11]]
    x.view(torch.int32).fill_(0x3F800000)  # ones, as another type over the same bytes
    graph.replay()
    assert columns.tolist() == [[2, 2]] * 3


def test_writes_to_parts_of_what_is_read():
    x = torch.zeros(4, device=DEVICE)

    def step():
        x[1:3].add_(1)
        x[:2].mul_(2)

    graph, _ = captured(step, warm=0)
    expected = torch.zeros(4)
    for _ in range(3):
        graph.replay()
        expected[1:3].add_(1)
        expected[:2].mul_(2)
    assert x.tolist() == expected.tolist()


def test_a_result_nobody_has_is_not_written():
    x = torch.ones(3, device=DEVICE)
    kept = []

    def step():
        temporary = x + 1
        kept.append(temporary * 2)

    graph, _ = captured(step, warm=0)
    graph.replay()
    assert kept[0].tolist() == [4, 4, 4]
    kept.clear()
    graph.replay()
    assert x.tolist() == [1, 1, 1]


def test_random_numbers_go_on():
    graph, drawn = captured(lambda: torch.rand(8, device=DEVICE), warm=0)
    torch.manual_seed(5)
    expected = [torch.rand(8, device=DEVICE).tolist() for _ in range(3)]
    torch.manual_seed(5)
    found = []
    for _ in range(3):
        graph.replay()
        found.append(drawn.tolist())
    assert found == expected and found[0] != found[1]


def test_a_generator_of_its_own():
    generator = torch.Generator(DEVICE).manual_seed(3)
    torch.tpu.TPUGraph().register_generator_state(generator)
    graph, drawn = captured(lambda: torch.randn(4, generator=generator, device=DEVICE), warm=0)
    other = torch.Generator(DEVICE).manual_seed(3)
    for _ in range(2):
        graph.replay()
        assert drawn.tolist() == torch.randn(4, generator=other, device=DEVICE).tolist()


def trained(graphed, optimizer, steps=6, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16, bias=False),  # one's gradient would be rounding, of which AdamW makes whole steps
        torch.nn.BatchNorm1d(16),
        torch.nn.Dropout(0.2),
        torch.nn.GELU(),
        torch.nn.Linear(16, 4),
    ).to(DEVICE)
    optimizer = optimizer(model.parameters(), **options)
    x, y = torch.zeros(32, 8, device=DEVICE), torch.zeros(32, dtype=torch.long, device=DEVICE)
    batches = [(torch.randn(32, 8), torch.randint(4, (32,))) for _ in range(steps)]

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def feed(batch):
        x.copy_(batch[0])
        y.copy_(batch[1])

    losses, graph = [], None
    torch.manual_seed(1)
    for i, batch in enumerate(batches):
        feed(batch)
        if not graphed or i < 2:
            loss = step()
        else:
            if graph is None:
                graph = torch.accelerator.Graph()
                with graph:
                    static = step()
            graph.replay()
            loss = static
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()] + [b.cpu() for b in model.buffers()]


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.AdamW, {"lr": 1e-2, "capturable": True}),
        (torch.optim.AdamW, {"lr": 1e-2, "fused": True}),
    ],
)
def test_a_training_step(optimizer, options):
    expected, state = trained(False, optimizer, **options)
    found, after = trained(True, optimizer, **options)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(after, state)


def test_additions_to_indexed_elements():
    def step(x, index, rows):
        x.grad = None
        (x[index].sin().sum() + x[:, index].cos().sum() + x[index, index].sum()).backward()
        rows.index_put_((index,), x.detach()[index], accumulate=True)
        return x.grad, rows

    index = torch.tensor([1, 1, 0, -1])
    on_cpu = torch.ones(4, 4, requires_grad=True), index, torch.zeros(4, 4)
    there = [t.detach().to(DEVICE).requires_grad_(t.requires_grad) for t in on_cpu]
    graph, results = captured(lambda: step(*there), warm=0)
    for places in ([1, 1, 0, -1], [2, 2, 2, 2], [0, 1, 2, 3]):
        for where in (on_cpu[1], there[1]):
            where.copy_(torch.tensor(places))
        graph.replay()
        torch.testing.assert_close([r.cpu() for r in results], list(step(*on_cpu)))


@pytest.mark.parametrize(
    "operation",
    [lambda x: x.cummax(1), lambda x: x.cummin(0), lambda x: [x.logcumsumexp(1)], lambda x: [torch.linalg.svdvals(x)]],
)
def test_operators_that_are_host_kernels(operation):
    x = torch.zeros(3, 4, device=DEVICE)
    graph, results = captured(lambda: operation(x), warm=0)
    for _ in range(2):
        x.copy_(torch.randn(3, 4))
        graph.replay()
        torch.testing.assert_close([r.cpu() for r in results], list(operation(x.cpu())))


@pytest.mark.parametrize("mode", ["strict", "debug"])
def test_other_eager_modes(mode):
    x, y = torch.zeros(3, device=DEVICE), torch.empty(3, device=DEVICE)
    with torch.tpu.eager_mode(mode):
        graph, result = captured(lambda: torch.mul(x, 2, out=y).add(1).cumsum(0))
        for value in (1.0, -3.0):
            x.fill_(value)
            graph.replay()
            assert y.tolist() == [2 * value] * 3
            assert result.tolist() == [(2 * value + 1) * i for i in (1, 2, 3)]
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [10] * 3


def test_a_replay_in_debug_mode_raises_what_goes_wrong_in_it():
    x, place = torch.ones(3, device=DEVICE), torch.zeros(1, dtype=torch.long, device=DEVICE)
    graph, _ = captured(lambda: x.index_select(0, place), warm=0)
    with torch.tpu.eager_mode("debug"):
        graph.replay()
        place.fill_(3)
        with pytest.raises(IndexError, match="out of range"):
            graph.replay()


CAPTURABLE = ("Adadelta", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
OPTIMIZERS = [
    *((name, {"capturable": True, "foreach": foreach}) for name in CAPTURABLE for foreach in (False, True)),
    *((name, {"fused": True}) for name in ("Adagrad", "Adam", "AdamW", "SGD")),
    ("SGD", {"fused": True, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adagrad", {"fused": True, "lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adagrad", {}),
    ("Muon", {}),
]


def stepped(optimizer, device, graphed=False, lr=0.1):
    """A weight after some steps, each at half the rate if that is a tensor."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 3).to(device))
    weight.grad = torch.zeros_like(weight)
    step = optimizer([weight], lr=lr).step
    for i, gradient in enumerate(torch.randn(6, 4, 3)):
        weight.grad.copy_(gradient)
        step()
        if graphed and i == 0:
            step = captured(step, warm=0)[0].replay
        if isinstance(lr, torch.Tensor):
            lr.mul_(0.5)
    return weight.detach().cpu()


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_an_optimizer_steps_as_on_the_cpu(name, options):
    kind = getattr(torch.optim, name)
    on_cpu = {key: value for key, value in options.items() if key != "capturable"}
    expected = stepped(functools.partial(kind, **on_cpu), "cpu")
    torch.testing.assert_close(stepped(functools.partial(kind, **options), DEVICE, graphed=True), expected)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_replays_take_the_rate_that_a_tensor_holds(name):
    optimizer = functools.partial(getattr(torch.optim, name), fused=True)
    expected = stepped(optimizer, "cpu", lr=torch.tensor(0.1))
    found = stepped(optimizer, DEVICE, graphed=True, lr=torch.tensor(0.1, device=DEVICE))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adafactor])
def test_a_step_that_counts_on_the_cpu_is_refused(kind):
    weight = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    optimizer = kind([weight])
    weight.grad = torch.ones(3, device=DEVICE)
    optimizer.step()
    with pytest.raises(RuntimeError, match=f"for an instance of {kind.__name__}"):
        captured(optimizer.step, warm=0)
    before = weight.tolist()
    optimizer.step()
    assert weight.tolist() != before


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (lambda x: x.sum().item(), "can't be read"),
        (lambda x: x.tolist(), "can't be read"),
        (lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=DEVICE), "copied from the CPU"),
        (lambda x: x.copy_(torch.ones(3)), "copied from the CPU"),
        (lambda x: x.nonzero(), "can't be captured|can't be read"),
    ],
)
def test_what_waits_for_a_value_is_an_error(operation, error):
    x = torch.ones(3, device=DEVICE)
    with pytest.raises(RuntimeError, match=error):
        captured(lambda: operation(x.mul_(2)), warm=0)
    assert x.tolist() == [1, 1, 1] and (x + 1).tolist() == [2, 2, 2]


def test_numbers_are_those_of_the_capture():
    x, number = torch.ones(2, device=DEVICE), torch.tensor(3.0)
    graph, result = captured(lambda: x * number + 0.5)
    number.fill_(7)
    graph.replay()
    assert result.tolist() == [3.5, 3.5]


def test_capturing_is_seen():
    stream, graph = torch.Stream(), torch.accelerator.Graph()
    assert not stream.is_capturing() and not torch.tpu.is_current_stream_capturing()
    seen = []
    with stream, graph:
        seen += [stream.is_capturing(), torch.tpu.is_current_stream_capturing()]
        seen.append(torch.tpu.default_stream().is_capturing())
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.is_current_stream_capturing()))
        thread.start()
        thread.join()
    assert seen == [True, True, False, False]
    assert not stream.is_capturing()


def test_another_thread_goes_on_meanwhile():
    x, results = torch.ones(3, device=DEVICE), []
    graph = torch.accelerator.Graph()
    with graph:
        x * 2
        thread = threading.Thread(target=lambda: results.append((torch.ones(4, device=DEVICE) + 1).tolist()))
        thread.start()
        thread.join()
    assert results == [[2, 2, 2, 2]]


def test_threads_replay_one_after_the_other():
    x = torch.zeros(2, device=DEVICE)
    graph, _ = captured(lambda: x.add_(1), warm=0)
    threads = [threading.Thread(target=lambda: [graph.replay() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.tolist() == [200, 200]


def test_what_a_graph_is_asked_at_the_wrong_time():
    graph = torch.accelerator.Graph()
    for early in (graph.replay, graph.instantiate, graph.capture_end, lambda: graph.debug_dump("/tmp/none")):
        with pytest.raises(RuntimeError, match="graph"):
            early()
    x = torch.ones(3, device=DEVICE)
    with graph:
        y = x + 1
        with pytest.raises(RuntimeError, match="inside another"):
            torch.accelerator.Graph().capture_begin()
    with pytest.raises(RuntimeError, match="reset"):
        graph.capture_begin()
    graph.reset()
    with pytest.raises(RuntimeError, match="holds no capture"):
        graph.replay()
    with graph:
        y = x + 2
    graph.replay()
    assert y.tolist() == [3, 3, 3]


def test_a_tensor_of_another_size_now():
    x = torch.ones(3, device=DEVICE)
    graph, _ = captured(lambda: x * 2)
    x.resize_(5)
    with pytest.raises(RuntimeError, match="another size now: 20 bytes, 12"):
        graph.replay()


def test_a_compiled_function_inside():
    compiled = torch.compile(lambda x: torch.nn.functional.dropout(x.sin() + 1, 0.5), backend="tpu")
    x = torch.ones(64, device=DEVICE)
    for warm in (0, 1):  # captured inside for the first time, and known before
        graph, result = captured(lambda: compiled(x), warm=warm)
        drawn = []
        for value in (0.0, 2.0, 2.0):
            x.fill_(value)
            graph.replay()
            kept = result[result != 0]
            torch.testing.assert_close(kept, (x.sin() + 1)[: len(kept)] * 2)
            drawn.append((result == 0).tolist())
        assert drawn[0] != drawn[1] != drawn[2]


def test_graphed_callables():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(DEVICE)
    twin = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(DEVICE)
    twin.load_state_dict(model.state_dict())
    model = torch.tpu.make_graphed_callables(model, (torch.randn(5, 4, device=DEVICE, requires_grad=True),))
    before = metrics()["graph_replays"]
    for _ in range(3):
        x = torch.randn(5, 4, device=DEVICE)
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        model(mine).square().sum().backward()
        twin(theirs).square().sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
        torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
    assert metrics()["graph_replays"] - before == 6
    model.eval()
    torch.testing.assert_close(model(x), twin(x))
    assert metrics()["graph_replays"] - before == 6
    with pytest.raises(ValueError, match="graphed for a tensor"):
        model.train()(torch.randn(6, 4, device=DEVICE))


def test_graphed_callables_and_what_lies_where_their_sample_does():
    x = torch.arange(9.0, device=DEVICE).view(3, 3)
    doubled = torch.tpu.make_graphed_callables(lambda y: y * 2, (x,))
    expected = (x.t() * 2).tolist()
    assert doubled(x.t()).tolist() == expected


def test_graphed_callables_in_the_other_mode_take_what_their_forward_does():
    layer = torch.nn.Linear(3, 3).to(DEVICE)
    x = torch.randn(2, 3, device=DEVICE)
    torch.tpu.make_graphed_callables(layer, (x,))
    expected = layer(x)
    torch.testing.assert_close(layer.eval()(input=x), expected)


def test_graphed_callables_under_autocast():
    layer = torch.nn.Linear(3, 3).to(DEVICE)
    x = torch.randn(2, 3, device=DEVICE)
    with torch.autocast("tpu", torch.bfloat16), pytest.raises(RuntimeError, match="cache_enabled=False"):
        torch.tpu.make_graphed_callables(layer, (x,))
    with torch.autocast("tpu", torch.bfloat16, cache_enabled=False):
        torch.tpu.make_graphed_callables(layer, (x,))
        with torch.no_grad():
            layer.weight.add_(1)
        expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
        torch.testing.assert_close(layer(x), expected)


def test_graphed_callables_of_several():
    a = torch.nn.Linear(3, 3).to(DEVICE)
    x = torch.randn(2, 3, device=DEVICE, requires_grad=True)
    first, second = torch.tpu.make_graphed_callables((a, lambda y: (y * 2, y.detach().argmax(1))), ((x,), (x,)))
    y = torch.randn(2, 3, device=DEVICE)
    doubled, best = second(first(y))
    doubled.sum().backward()
    expected = torch.nn.functional.linear(y, a.weight, a.bias)
    torch.testing.assert_close(doubled, expected * 2)
    assert best.tolist() == expected.argmax(1).tolist() and not best.requires_grad
    torch.testing.assert_close(a.bias.grad, torch.full((3,), 4.0, device=DEVICE))
    hooked = torch.nn.Linear(3, 3).to(DEVICE)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="must not have hooks"):
        torch.tpu.make_graphed_callables(hooked, (x,))


def test_pools_and_pictures(tmp_path):
    x = torch.ones(3, device=DEVICE)
    first, second = torch.tpu.TPUGraph(), torch.tpu.TPUGraph()
    first.enable_debug_mode()
    with torch.tpu.graph(first, stream=torch.tpu.Stream()):
        y = (x + 1).exp()
    with torch.tpu.graph(second, pool=first.pool()):
        z = y * 2
    assert second.pool() == first.pool() != torch.tpu.graph_pool_handle()
    first.replay()
    second.replay()
    torch.testing.assert_close(z, (x + 1).exp() * 2)
    first.debug_dump(str(tmp_path / "graph.dot"))
    picture = (tmp_path / "graph.dot").read_text()
    assert picture.startswith("digraph") and "aten::exp" in picture and "c0 -> c1" in picture
    with pytest.raises(RuntimeError, match="can't write"):
        first.debug_dump(str(tmp_path / "no" / "graph.dot"))


def test_a_graph_holds_no_more_memory_than_its_step():
    x = torch.zeros(1 << 20, device=DEVICE)

    def step():
        x.copy_(((x + 1) * 2 - 1).relu())

    graph, _ = captured(step)
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    for _ in range(20):
        graph.replay()
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == before
    assert torch.tpu.max_memory_allocated() - before <= 12 << 20


def test_a_graph_given_up_while_it_captures():
    run_python("""
        import threading, torch
        x = torch.ones(3, device="tpu")
        graph = torch.accelerator.Graph()
        graph.capture_begin()
        y = x + 1
        del graph
        assert (x + 1).tolist() == [2, 2, 2]
        holder = [torch.accelerator.Graph()]
        holder[0].capture_begin()
        thread = threading.Thread(target=holder.clear)
        thread.start()
        thread.join()
        x + 1
    """)
