"""Random numbers depend on the seed and the position in the program alone."""

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same, compiled, nobody_waited, run_python
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

DRAWS = {
    "rand": lambda: torch.rand(7, 9, device="tpu"),
    "randn": lambda: torch.randn(7, 9, device="tpu"),
    "randn_f64": lambda: torch.randn(63, dtype=torch.float64, device="tpu"),
    "randint": lambda: torch.randint(-5, 50, (63,), device="tpu"),
    "randperm": lambda: torch.randperm(63, device="tpu"),
    "uniform_": lambda: torch.empty(63, device="tpu").uniform_(-2, 3),
    "normal_": lambda: torch.empty(63, device="tpu").normal_(1, 2),
    "bernoulli": lambda: torch.full((63,), 0.3, device="tpu").bernoulli(),
    "dropout": lambda: F.dropout(torch.ones(63, device="tpu"), 0.4),
    "exponential_": lambda: torch.empty(63, device="tpu").exponential_(),
    "multinomial": lambda: torch.multinomial(torch.ones(9, device="tpu"), 4),
    "multinomial of one": lambda: torch.multinomial(torch.ones(50, 9, device="tpu"), 1),
    "multinomial with replacement": lambda: torch.multinomial(torch.ones(50, 9, device="tpu"), 3, replacement=True),
    "rand_like": lambda: torch.rand_like(torch.empty(5, 5, device="tpu", dtype=torch.bfloat16)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_same_seed_same_numbers_in_every_mode(name):
    found = {}
    for mode in ("fused", "strict", "debug", "fused"):
        with torch.tpu.eager_mode(mode):
            torch.manual_seed(7)
            first, second = DRAWS[name](), DRAWS[name]()
            found.setdefault(mode, (first.cpu(), second.cpu()))
            torch.manual_seed(7)
            assert torch.equal(DRAWS[name]().cpu(), found[mode][0])
    for mode in ("strict", "debug"):
        assert torch.equal(found[mode][0], found["fused"][0]) and torch.equal(found[mode][1], found["fused"][1])
    assert not torch.equal(*found["fused"])


def full(dtype, n=2500):
    return torch.full((n,), 0.25, dtype=dtype, device="tpu")


KINDS = {
    "multinomial of one": lambda: torch.multinomial(full(torch.float32).view(50, 50), 1),
    "multinomial of f64": lambda: torch.multinomial(full(torch.float64).view(50, 50), 7),
    "multinomial of bf16": lambda: torch.multinomial(full(torch.bfloat16), 100),
    "multinomial with replacement": lambda: torch.multinomial(full(torch.float32).view(50, 50), 70, replacement=True),
    "multinomial of one line": lambda: torch.multinomial(full(torch.bfloat16), 3, replacement=True),
    "geometric": lambda: full(torch.float32).geometric_(0.3),
    "geometric of integers": lambda: full(torch.int64).geometric_(0.01),
    "geometric of a small probability": lambda: full(torch.float32).geometric_(1e-17),
    "normal f32": lambda: full(torch.float32).normal_(1, 3),
    "normal f64": lambda: full(torch.float64).normal_(1, 3),
    "normal f16": lambda: full(torch.float16).normal_(1, 3),
    "normal of tensors": lambda: torch.normal(full(torch.float32), full(torch.float32) * 2),
    "normal of mean": lambda: torch.normal(full(torch.float32), 2.5),
    "normal of std": lambda: torch.normal(0.1, full(torch.float32)),
    "uniform f32": lambda: full(torch.float32).uniform_(-2, 3),
    "uniform f64": lambda: full(torch.float64).uniform_(-2, 3),
    "uniform bf16": lambda: full(torch.bfloat16).uniform_(),
    "bernoulli of tensor": lambda: full(torch.float32).bernoulli(),
    "bernoulli f64": lambda: full(torch.float64).bernoulli(),
    "bernoulli of number": lambda: full(torch.int64).bernoulli_(0.3),
    "bernoulli in place of tensor": lambda: full(torch.float32).bernoulli_(full(torch.float32)),
    "dropout f32": lambda: F.dropout(full(torch.float32), 0.4),
    "dropout bf16": lambda: F.dropout(full(torch.bfloat16), 0.1),
    "dropout f64": lambda: F.dropout(full(torch.float64), 0.4),
    "exponential": lambda: full(torch.float32).exponential_(1.5),
    "exponential bf16": lambda: full(torch.bfloat16).exponential_(1.5),
    "exponential f16": lambda: full(torch.float16).exponential_(1.5),
    "cauchy bf16": lambda: full(torch.bfloat16).cauchy_(1, 2),
    "exponential f64": lambda: full(torch.float64).exponential_(1.5),
    "log_normal": lambda: full(torch.float32).log_normal_(0.5, 2),
    "cauchy": lambda: full(torch.float32).cauchy_(1, 2),
    "random i32": lambda: full(torch.int32).random_(),
    "random f32": lambda: full(torch.float32).random_(),
    "random u8 to": lambda: full(torch.uint8).random_(200),
    "random i64 from to": lambda: full(torch.int64).random_(-7, 2**40),
    "random i64 of a range beyond 2^63": lambda: full(torch.int64).random_(-(2**62), 2**62 + 5),
    "random i64, any": lambda: full(torch.int64).random_(-(2**63), None),
    "random i64, the last": lambda: full(torch.int64).random_(2**63 - 1, None),
    "of several threads": lambda: full(torch.float32, 40_001).normal_(1, 3),
    "empty": lambda: full(torch.float32, 0).normal_(),
    "number": lambda: torch.randn((), device="tpu"),
    "matrix": lambda: torch.randn(37, 3, device="tpu").t(),
}


@pytest.mark.parametrize("name", KINDS)
def test_compiled_numbers_equal_tier_zero(name, metrics):
    torch.manual_seed(5)
    first, second = KINDS[name]().cpu(), KINDS[name]().cpu()
    assert nobody_waited(metrics()["compile_wait_ms"])
    torch.tpu.wait_for_compiles()
    torch.manual_seed(5)
    assert torch.equal(KINDS[name]().cpu(), first) and torch.equal(KINDS[name]().cpu(), second)
    assert metrics()["launches_tier1"] > 0 or first.numel() == 0
    assert not torch.tpu.explain().host_kernels


@pytest.mark.embedded_only(reason="tier 0 of a plugin's device compiles single operations")
def test_the_first_step_waits_for_no_compile():
    run_python(
        """
        import torch, torch.nn as nn
        torch.manual_seed(0)
        with torch.device("tpu"):
            model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(32), nn.Linear(32, 4))
            x, y = torch.randn(8, 16), torch.randint(4, (8,))
        optimizer = torch.optim.AdamW(model.parameters())
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        print([p.sum().item() for p in model.parameters()])
        found = torch.tpu.metrics()
        assert found["launches_tier0"] > 0 and found["compile_wait_ms"] == 0, found
        """
    )


def test_moments():
    torch.manual_seed(0)
    n = 200_000
    u, g = torch.rand(n, device="tpu").cpu(), torch.randn(n, device="tpu").cpu()
    assert 0 <= u.min() and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.01
    assert abs(g.mean()) < 0.02 and abs(g.std() - 1) < 0.02
    assert abs(F.dropout(torch.ones(n, device="tpu"), 0.3).mean().item() - 1) < 0.02
    assert torch.randperm(1000, device="tpu").sort().values.tolist() == list(range(1000))
    i = torch.randint(3, 9, (n,), device="tpu").cpu()
    assert i.min() == 3 and i.max() == 8
    wide = torch.empty(n, dtype=torch.int64, device="tpu").random_(-(2**63), None).cpu()
    assert abs(wide.double().mean()) < 0.01 * 2**63 and wide.max() > 0.99 * 2**63
    assert (torch.empty(3, dtype=torch.int64, device="tpu").random_(2**63 - 1, None).cpu() == 2**63 - 1).all()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers(dtype):
    """Normal ones have their variance in both parts together, as PyTorch's; uniform ones in each."""
    torch.manual_seed(0)
    n = 100_000
    made = {
        "randn": (torch.randn(n, dtype=dtype, device="tpu"), 0, 0.5**0.5),
        "normal_": (torch.empty(n, dtype=dtype, device="tpu").normal_(3, 2), 3 + 3j, 2**0.5),
        "of means": (torch.normal(torch.full((n,), 2 + 3j, dtype=dtype, device="tpu"), 0.5), 2 + 3j, 0.5**1.5),
        "rand": (torch.rand(n, dtype=dtype, device="tpu"), 0.5 + 0.5j, 12**-0.5),
        "uniform_": (torch.empty(n, dtype=dtype, device="tpu").uniform_(-2, 2), 0, 4 / 12**0.5),
    }
    for name, (z, mean, deviation) in made.items():
        z = z.cpu()
        assert z.dtype == dtype and abs(z.mean() - mean) < 0.02, name
        for part in (z.real, z.imag):
            assert abs(part.std() - deviation) < 0.02, name
        assert abs(torch.corrcoef(torch.stack([z.real, z.imag]))[0, 1]) < 0.02, name
    first, second = (torch.randn(5, dtype=dtype, device="tpu").cpu() for _ in range(2))
    assert not torch.isin(torch.view_as_real(first), torch.view_as_real(second)).any()


def test_generators():
    one, two = (torch.Generator("tpu").manual_seed(3) for _ in range(2))
    assert one.device.type == "tpu"
    a = torch.randn(5, generator=one, device="tpu")
    assert torch.equal(a.cpu(), torch.randn(5, generator=two, device="tpu").cpu())
    state = one.get_state()
    assert state.dtype == torch.uint8 and state.numel() == 16 and state.device.type == "cpu"
    b = torch.randn(5, generator=one, device="tpu")
    one.set_state(state)
    assert torch.equal(b.cpu(), torch.randn(5, generator=one, device="tpu").cpu())
    clone = one.clone_state() if hasattr(one, "clone_state") else None
    if clone is not None:
        assert torch.equal(clone.get_state(), one.get_state())
    with pytest.raises(RuntimeError):
        torch.randn(5, generator=torch.Generator("cpu"), device="tpu")


def test_state_functions():
    torch.tpu.manual_seed(11)
    assert torch.tpu.initial_seed() == 11
    state = torch.tpu.get_rng_state()
    a = torch.rand(4, device="tpu").cpu()
    torch.tpu.set_rng_state(torch.stack([state, state], 1)[:, 0])
    assert torch.equal(a, torch.rand(4, device="tpu").cpu())
    with pytest.raises(TypeError, match="ByteTensor"):
        torch.tpu.set_rng_state(torch.ones(16))
    torch.tpu.set_rng_state_all(torch.tpu.get_rng_state_all())
    with FakeTensorMode():  # what torch.distributed does where it asks for an operator's shapes
        torch.tpu.set_rng_state(torch.tpu.get_rng_state())
    with torch.random.fork_rng(device_type="tpu"):
        inside = torch.rand(4, device="tpu").cpu()
    assert torch.equal(inside, torch.rand(4, device="tpu").cpu())
    assert torch.tpu.seed() != 11
    assert len(torch.tpu.default_generators) == torch.tpu.device_count()


@pytest.mark.parametrize("length", [8, 300])
def test_attention_without_dropout_leaves_the_generator_where_it_was(length):
    q = torch.randn(1, 2, length, 64, device="tpu", requires_grad=True)
    state = torch.tpu.get_rng_state()
    for _ in range(2):
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    assert torch.equal(torch.tpu.get_rng_state(), state)


def test_state_is_read_while_tensors_are_fake():
    state = torch.tpu.get_rng_state()
    with FakeTensorMode():
        found = torch.tpu.get_rng_state()
    assert torch.equal(found, state)


def test_compiled_checkpoint_keeps_the_generators_state_as_a_tensor():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.5)).to("tpu")
    there = compiled(lambda x: checkpoint(model, x, use_reentrant=False))
    eager = torch.ones(20, 6, device="tpu", requires_grad=True)
    torch.manual_seed(3)
    expected = checkpoint(model, eager, use_reentrant=False)
    expected.sum().backward()
    x = torch.ones(20, 6, device="tpu", requires_grad=True)
    with torch._inductor.config.patch(fallback_random=True):
        torch.manual_seed(3)
        y = there(x)
        later = torch.rand(2, device="tpu")
        y.sum().backward()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(x.grad, eager.grad)
    assert not torch.equal(later, torch.rand(2, device="tpu"))  # the backward has not set the generator back


def test_traced_operators_that_draw_again():
    save, restore = torch._prims.rng_prims.run_and_save_rng_state, torch._prims.rng_prims.run_with_rng_state

    def drawn_twice():
        state, first = save(torch.ops.aten.rand.default, [4], device="tpu")
        return first, restore(state, torch.ops.aten.rand.default, [4], device="tpu")

    first, second = make_fx(drawn_twice)()()
    assert torch.equal(first, second)


def test_manual_seed_covers_tpu_and_creates_no_device():
    run_python("""
        import torch
        torch.manual_seed(1)
        assert not torch.tpu.is_initialized()
        assert torch.tpu.initial_seed() == 1
    """)


def test_shared_state_of_graphsafe_generators():
    generator = torch.Generator("tpu").manual_seed(9)
    shared = generator.graphsafe_get_state()
    torch.rand(3, device="tpu", generator=generator)
    assert shared.get_offset() == generator.get_offset() > 0


@pytest.mark.parametrize(
    "draw",
    [
        lambda p: torch.bernoulli(p),
        lambda p: torch.zeros_like(p).bernoulli_(p),
        lambda p: torch.normal(torch.zeros_like(p), p - 1),
        lambda p: torch.normal(0.0, p - 1),
    ],
)
@pytest.mark.parametrize("bad", [-0.5, float("nan")])
@pytest.mark.embedded_only(reason="programs of PJRT devices report nothing")
def test_bad_probabilities_and_deviations_are_errors_of_their_draw(draw, bad):
    def read(value):
        p = torch.full((5, 40), 1.0, device="tpu")
        p[3, 7] = value
        return draw(p).cpu()

    for _ in range(3):  # op by op, then compiled
        read(1.0)
        with pytest.raises(RuntimeError, match=r"(?s)p_in >= 0|std >= 0|out of its range.*(bernoulli|normal)"):
            read(bad)
        torch.tpu.wait_for_compiles()


@pytest.mark.parametrize("count, replacement", [(1, False), (1, True), (2, False)])
def test_multinomial_follows_its_weights(count, replacement):
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 6.0])
    torch.manual_seed(0)
    drawn = torch.multinomial(weights.to("tpu").expand(20000, 5), count, replacement).cpu()
    assert drawn.shape == (20000, count)
    share = torch.bincount(drawn[:, 0], minlength=5) / 20000
    torch.testing.assert_close(share, weights / 10, atol=0.015, rtol=0)
    if count == 2:  # the second is drawn from what is left
        second = torch.bincount(drawn[drawn[:, 0] == 4, 1], minlength=5).double()
        torch.testing.assert_close(
            second / second.sum(), torch.tensor([0, 0.25, 0.75, 0, 0]).double(), atol=0.02, rtol=0
        )


def test_draws_of_a_distribution_take_numbers_of_their_own():
    """One index is drawn by as many random numbers as there are weights: what comes next has others."""
    torch.manual_seed(3)
    chosen = torch.multinomial(torch.ones(4000, device="tpu"), 1)
    after = torch.empty(4000, device="tpu").exponential_()
    assert chosen.item() != after.argmin().item()


@pytest.mark.embedded_only(reason="a plugin's programs don't check what they are given")
@pytest.mark.parametrize("weights", [[1.0, -1.0], [1.0, float("nan")], [float("inf"), 1.0], [0.0, 0.0]])
def test_weights_that_are_none_are_refused_at_the_read(weights):
    for _ in range(3):
        with pytest.raises(RuntimeError):
            torch.multinomial(torch.tensor(weights, device="tpu"), 1).item()
        torch.tpu.wait_for_compiles()


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("late", ["operator", "branch"])
def test_the_cpu_draws_in_a_compiled_programs_order(late):
    number = torch.tensor(1)

    def draw():
        if late == "operator":
            return torch.rand(3)
        return torch.cond(number > 0, lambda c: c + torch.rand(3), lambda c: c * 1, (torch.ones(3),))

    def f(a):
        drawn = torch.rand(3), torch.bernoulli(a.sigmoid().cpu()), draw()
        return a + torch.stack(drawn).to(a.device)

    there = compiled(f, fullgraph=True)
    for seed in range(2):
        a = torch.randn(3)
        torch.manual_seed(seed)
        expected = f(a)
        torch.manual_seed(seed)
        assert_same(expected, there(a.to("tpu")))


@pytest.fixture
def noise():
    """An operator of a library, which draws and reads: no capture holds it."""
    with torch.library._scoped_library("torch_tpu_test", "FRAGMENT") as library:
        library.define("noise(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
        library.impl("noise", lambda x: torch.rand_like(x) + x.sum().item() * 0, "PrivateUse1")
        library.impl("noise", torch.empty_like, "Meta")
        yield torch.ops.torch_tpu_test.noise


@pytest.mark.usefixtures("fresh_dynamo")
def test_what_is_not_captured_draws_in_the_programs_order(noise):
    def f(x, on):
        dropped = F.dropout(x, 0.5)
        return dropped, noise(x), torch.cond(on, lambda x: torch.rand_like(x), lambda x: x * 1, (x,))

    there = compiled(f, fullgraph=True)
    x, on = torch.ones(20, device="tpu"), torch.tensor(True, device="tpu")
    for seed in range(2):
        torch.manual_seed(seed)
        expected = f(x, on)
        torch.manual_seed(seed)
        torch.testing.assert_close(there(x, on), expected)


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_call_that_fails_under_another_state_leaves_the_generator_its_own(noise):
    def f(x):
        return F.dropout(x * noise(x.detach()), 0.5) * x

    there = compiled(lambda x: checkpoint(f, x, use_reentrant=False))
    for _ in range(4):
        x = torch.ones(20, device="tpu", requires_grad=True)
        y = there(x)
        torch.rand(2, device="tpu")
        y.sum().backward()  # drops again what the forward dropped
        torch.testing.assert_close(x.grad, 2 * y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_exponential_numbers_are_above_zero(dtype):
    x = torch.empty(1_000_000, dtype=dtype, device="tpu")
    for _ in range(3):  # the last by compiled code
        assert x.exponential_().min().item() > 0
        assert x.max().item() > 11
        torch.tpu.wait_for_compiles()
    assert torch.nn.functional.gumbel_softmax(x.view(-1, 100)).isfinite().all().item()
