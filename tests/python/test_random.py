"""Random numbers depend on the seed and the position in the program alone."""

import pytest
import torch
import torch.nn.functional as F
from helpers import run_python

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


def test_compiled_numbers_equal_tier_zero():
    def program():
        torch.manual_seed(5)
        return (torch.randn(100, device="tpu") * 2 + F.dropout(torch.ones(100, device="tpu"), 0.5)).cpu()

    first = program()
    for _ in range(4):
        program()
    torch.tpu.wait_for_compiles()
    torch.testing.assert_close(program(), first, rtol=1e-6, atol=1e-6)


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
    torch.tpu.set_rng_state(state)
    assert torch.equal(a, torch.rand(4, device="tpu").cpu())
    torch.tpu.set_rng_state_all(torch.tpu.get_rng_state_all())
    with torch.random.fork_rng(device_type="tpu"):
        inside = torch.rand(4, device="tpu").cpu()
    assert torch.equal(inside, torch.rand(4, device="tpu").cpu())
    assert torch.tpu.seed() != 11
    assert len(torch.tpu.default_generators) == torch.tpu.device_count()


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
