"""Tier 2: programs are exchanged for faster ones while the program runs, and what was decided is there in the next
process. That a faster candidate is adopted: tests/unit/jit/tuning_test.cc."""

import json
import pathlib

import pytest
from helpers import has_panels, run_python

pytestmark = pytest.mark.embedded_only(reason="other backends offer no candidates")

# Every result is compared with the CPU's: before, while and after candidates are measured and exchanged.
PROGRAM = """
    import json, sys, time
    import torch, torch.nn.functional as F
    torch.manual_seed(0)
    x, w, v = torch.randn(192, 256), torch.randn(256, 512) / 16, torch.randn(512, 256) / 16
    def f(x, w, v):
        return F.layer_norm(F.gelu(x @ w) @ v + x, (256,)).softmax(-1)
    expected = f(x, w, v)
    arguments = [t.to("tpu") for t in (x, w, v)]
    {before}
    end = time.time() + 100
    for step in range(4000):
        torch.testing.assert_close(f(*arguments).cpu(), expected, rtol=1e-4, atol=1e-5)
        if step % 50 == 49:
            torch.tpu.wait_for_compiles()
            hot = max(torch.tpu.explain().fragments, key=lambda y: sum(y["milliseconds"]))
            if {done} or time.time() > end:
                break
    print(json.dumps(torch.tpu.metrics() | {{"tuning": hot["tuning"], "decisions": hot["decisions"], "steps": step,
                                             "finished": hot["finished"]}}))
"""


def run(directory, budget="100", before="", done='hot["finished"]'):
    environment = {"TORCH_TPU_CACHE": str(directory), "TORCH_TPU_TUNE_BUDGET": budget, "TORCH_TPU_TUNE_AFTER": "20"}
    return json.loads(run_python(PROGRAM.format(before=before, done=done), environment).stdout)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cache")
    return directory, run(directory)


def test_candidates_are_measured_on_launches(tuned):
    _, found = tuned
    assert found["finished"] and found["candidates_measured"] == len(found["decisions"]) > 0
    assert found["candidates_adopted"] == sum(d["adopted"] for d in found["decisions"])
    adopted = [d["candidate"] for d in found["decisions"] if d["adopted"]]
    assert found["tuning"] == (adopted[-1] if adopted else "")
    assert all(d["before"] > 0 and d["after"] > 0 for d in found["decisions"])


def test_a_second_process_has_what_was_decided(tuned):
    directory, first = tuned
    second = run(directory, done="step > 200")
    assert second["compiles"] == second["candidates_compiled"] == second["tune_ms"] == 0
    assert (second["tuning"], second["decisions"]) == (first["tuning"], first["decisions"])


def test_convolutions_by_either_library_are_the_cpus(tmp_path):
    program = """
        import torch, torch.nn as nn, torch.nn.functional as F
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(8, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 16, 3, padding=2, dilation=2),
                            nn.GroupNorm(4, 16), nn.Conv2d(16, 40, (1, 3), stride=2, bias=False),
                            nn.ConvTranspose2d(40, 16, 4, stride=2, padding=1), nn.Conv2d(16, 8, 3, stride=5))
        x = torch.randn(4, 8, 33, 32)
        def gradients(net, x):
            net.zero_grad()
            net(x).square().mean().backward()
            return [p.grad.to("cpu", copy=True) for p in net.parameters()]
        expected = gradients(net, x)
        net, x = net.to("tpu"), x.to("tpu")
        for step in range(600):
            torch.testing.assert_close(gradients(net, x), expected, rtol=1e-4, atol=1e-5)
            if step % 20 == 19:
                torch.tpu.wait_for_compiles()
                tried = {d["candidate"] for f in torch.tpu.explain().fragments for d in f["decisions"]}
                if any("convolutions=" in t for t in tried):
                    break
        print(any("convolutions=" in t for t in tried))
    """
    environment = {
        "TORCH_TPU_CACHE": str(tmp_path),
        "TORCH_TPU_TUNE_BUDGET": "100",
        "TORCH_TPU_TUNE_AFTER": "20",
    }
    assert run_python(program, environment).stdout == f"{has_panels()}\n"


def test_a_damaged_profile_is_none(tuned, tmp_path):
    directory, _ = tuned
    for path in pathlib.Path(directory).rglob("*.ttp"):
        content = path.read_bytes()
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        damaged = content[:-1] + bytes([content[-1] ^ 1]) if b"profile" in content[:100] else content
        (tmp_path / path.parent.name / path.name).write_bytes(damaged)
    found = run(tmp_path)
    assert found["finished"] and found["candidates_measured"] > 0


def test_without_a_budget_nothing_is_measured(tmp_path):
    found = run(tmp_path, budget="0", done="step > 500")
    assert found["candidates_compiled"] == found["tune_ms"] == 0 and found["decisions"] == []


def test_deterministic_algorithms_fix_programs(tmp_path):
    found = run(tmp_path, before="torch.use_deterministic_algorithms(True)", done="step > 500")
    assert found["launches_tier0"] == found["candidates_compiled"] == 0 and found["decisions"] == []


def test_explain_tells_what_was_decided(tuned):
    directory, first = tuned
    text = run_python(
        PROGRAM.format(before="", done="step > 40") + "    print(torch.tpu.explain())",
        {"TORCH_TPU_CACHE": str(directory), "TORCH_TPU_COMPILE_AFTER": "1"},
    ).stdout
    assert all(d["candidate"] in text for d in first["decisions"])
