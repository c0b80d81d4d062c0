"""Random numbers of captured graphs: each replay does to the generators' states what the captured code did."""

import pytest
import torch
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

DEVICE = "tpu"


def captured(function):
    graph = torch.accelerator.Graph()
    with graph:
        result = function()
    return graph, result


def settle(run):
    """Compiles what `run` does: operations that run one by one may differ from it in the last bit."""
    for _ in range(4):
        run()
        torch.tpu.synchronize()
        torch.tpu.wait_for_compiles()


def check_replays(function, times=4, seed=lambda _: None):
    """Replays draw what the function does, and leave the generator where it does."""
    settle(function)
    torch.manual_seed(7)
    seed(7)
    expected = []
    for _ in range(times):
        expected.append(([x.tolist() for x in function()], torch.tpu.get_rng_state().tolist()))
    graph, results = captured(function)
    settle(graph.replay)
    torch.manual_seed(7)
    seed(7)
    found = []
    for _ in range(times):
        graph.replay()
        found.append(([x.tolist() for x in results], torch.tpu.get_rng_state().tolist()))
    assert found == expected
    return expected


def drawn(count=5):
    return torch.rand(count, device=DEVICE)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    """The second forward draws the first's masks, and each replay draws others."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.Dropout(0.3))
    layers.to(DEVICE)
    x = torch.randn(4, 6, device=DEVICE, requires_grad=True)

    def step(run):
        x.grad = None
        layers.zero_grad()
        y = dropout(x, 0.2)
        for _ in range(2):
            y = dropout(run(y), 0.2)
        y.square().sum().backward()
        return y, x.grad, layers[0].weight.grad, drawn()

    expected = check_replays(lambda: step(lambda y: checkpoint(layers, y, use_reentrant=reentrant)))
    assert expected[0][0][0] != expected[1][0][0]
    settle(lambda: step(layers))
    torch.manual_seed(7)
    torch.testing.assert_close([t.tolist() for t in step(layers)], expected[0][0])


def test_two_generators():
    own = torch.Generator(DEVICE)

    def step():
        before = own.get_state()
        first = torch.rand(3, generator=own, device=DEVICE)
        other = drawn()
        own.set_state(before)
        return first, other, torch.rand(3, generator=own, device=DEVICE), drawn()

    for (first, other, same, others), _ in check_replays(step, seed=own.manual_seed):
        assert first == same and other != others


def test_forks_and_states_that_are_set_back():
    def step():
        first = drawn()
        before = torch.tpu.get_rng_state()
        with torch.random.fork_rng(device_type=DEVICE):
            inside = drawn(9)
        same = drawn(9)
        torch.tpu.set_rng_state(before)
        again = drawn(30)  # further than what was drawn from there
        state = torch.tpu.default_generators[0]
        state.set_offset(state.get_offset() + 8)
        return first, inside, same, again, drawn()

    for (_, inside, same, again, _), _ in check_replays(step):
        assert inside == same == again[:9]


def test_a_fork_at_the_end_draws_the_same_at_every_replay():
    def step():
        with torch.random.fork_rng(device_type=DEVICE):
            return (drawn(),)

    expected = check_replays(step)
    assert expected[0] == expected[1]


def test_a_replay_inside_another_capture():
    inner, numbers = captured(lambda: drawn() + drawn())

    def step():
        before = torch.tpu.get_rng_state()
        inner.replay()
        first = numbers.clone()
        torch.tpu.set_rng_state(before)
        inner.replay()
        return first, numbers.clone(), drawn()

    for (first, second, _), _ in check_replays(step):
        assert first == second


def test_a_compiled_checkpoint_inside():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).to(DEVICE)
    compiled = torch.compile(lambda x: checkpoint(layers, x, use_reentrant=False) * 3, backend="tpu")
    x = torch.randn(64, 4, device=DEVICE, requires_grad=True)

    def step():
        x.grad = None
        y = compiled(x)
        y.sum().backward()
        return y, x.grad

    step()
    graph, (y, gradient) = captured(step)
    for _ in range(3):
        graph.replay()
        kept = (y != 0).float() * 6  # what the forward kept is what has a gradient
        torch.testing.assert_close(gradient, kept @ layers[0].weight.detach())


def test_the_state_that_a_default_generator_has_while_it_is_captured():
    default, own = torch.tpu.default_generators[0], torch.Generator(DEVICE)

    def step():
        former = default.graphsafe_get_state()
        default.graphsafe_set_state(own)
        numbers = drawn()
        default.graphsafe_set_state(former)
        return numbers, drawn()

    own.manual_seed(5)
    graph, (numbers, others) = captured(step)
    other = torch.Generator(DEVICE).manual_seed(5)
    torch.manual_seed(2)
    for _ in range(2):
        graph.replay()
        assert numbers.tolist() == torch.rand(5, generator=other, device=DEVICE).tolist()
    torch.manual_seed(2)
    drawn()
    assert others.tolist() == drawn().tolist()


def test_states_are_as_before_when_it_is_over():
    torch.manual_seed(4)
    before = torch.tpu.get_rng_state().tolist()
    captured(lambda: (drawn(), torch.tpu.set_rng_state(torch.tpu.get_rng_state())))
    assert torch.tpu.get_rng_state().tolist() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda state: torch.tpu.manual_seed(3),
        lambda state: torch.tpu.seed(),
        lambda state: torch.tpu.set_rng_state(state),
        lambda state: torch.Generator(DEVICE).set_state(torch.tpu.get_rng_state()),
        lambda state: torch.tpu.default_generators[0].set_offset(0),
    ],
)
def test_states_from_outside_are_refused(change):
    state = torch.tpu.get_rng_state()
    with pytest.raises(RuntimeError, match="can't be set while a graph is captured"):
        captured(lambda: (drawn(), change(state)))
    assert torch.tpu.get_rng_state().tolist() == state.tolist()


def test_states_of_a_capture_are_none_outside_it():
    kept = []
    captured(lambda: kept.append(torch.tpu.get_rng_state()))
    with pytest.raises(RuntimeError, match="no state for other uses"):
        torch.tpu.set_rng_state(kept[0])
    with pytest.raises(RuntimeError, match="can't be set while a graph is captured"):
        captured(lambda: torch.tpu.set_rng_state(kept[0]))
    with pytest.raises(RuntimeError, match="can't be cloned while a graph is captured"):
        captured(lambda: torch.tpu.default_generators[0].clone_state())
