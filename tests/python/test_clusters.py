"""Fragments that always follow one another become one: the same values, back to the parts where the program turns."""

import json
import textwrap

import pytest
from helpers import EMBEDDED, run_python

pytestmark = pytest.mark.skipif(not EMBEDDED, reason="clusters are timed, by launches that end when they return")

# Formed as soon as possible and kept whatever they bring; fragments are short, so that there are many.
ALWAYS = {"TORCH_TPU_CLUSTERS": "always", "TORCH_TPU_TUNE_BUDGET": "1e9", "TORCH_TPU_WINDOW": "12"}

TRAINING = """
    import copy, json, torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU())))
    twin = copy.deepcopy(model).to("tpu")
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-2) for m in (model, twin)]

    def step(i, turn):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(i))
        losses = []
        for m, optimizer, device in zip((model, twin), optimizers, ("cpu", "tpu")):
            y = m(x.to(device))
            if turn:
                y = y.sin() if i % 2 else y[:4]
            loss = y.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    def train(steps, turns=()):
        for i in range(steps):
            cpu, tpu = step(i, i in turns)
            if i % 3 == 0:
                torch.testing.assert_close(tpu.cpu(), cpu, rtol=1e-4, atol=1e-5)
            torch.tpu.wait_for_compiles()
        for a, b in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(b.cpu(), a, rtol=1e-3, atol=1e-4)
        print(json.dumps(torch.tpu.metrics()))
"""

INPLACE = """
    import json, torch

    def program(device):
        x = torch.arange(24.0).view(4, 6).to(device)
        state, kept = torch.zeros(4, 6, device=device), []
        for i in range(60):
            row, column = x[1], x.clone().t()[2]
            for k in range(9):  # views made in one fragment are read and written in the next
                row.mul_(0.9).add_(column[1])
                state += x
                x[k % 4, 1:3] = state[0, 2:4] * 0.1
                column = (x * 1).t()[k % 5 + 1]
                x.tanh_()
            kept.append(torch.tensor(row.sum().item()))
            torch.tpu.wait_for_compiles()
            if i == 41:
                kept.append(x.flip(0))
        return [x, state, row, column, *kept]

    for _ in range(2):
        for a, b in zip(program("cpu"), program("tpu"), strict=True):
            torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-4)
        torch.tpu.wait_for_compiles()
    print(json.dumps(torch.tpu.metrics()))
"""


def run(program, call="", **environment):
    done = run_python(textwrap.dedent(program) + call, {**ALWAYS, **environment})
    return json.loads(done.stdout.splitlines()[-1])


def test_training_equals_the_cpu_while_clusters_form_and_where_it_turns():
    found = run(TRAINING, "train(40, turns={22, 25, 31})")
    assert found["clusters_made"] > 1 and found["launches_clusters"] > 20, found
    assert found["cluster_wrong_guesses"] > 0 and found["compile_failures"] == 0, found


def test_views_and_writes_across_the_seam():
    found = run(INPLACE)
    assert found["launches_clusters"] > 20, found


def test_a_second_process_compiles_nothing(tmp_path):
    first = run(TRAINING, "train(45)", TORCH_TPU_CACHE=str(tmp_path))
    second = run(TRAINING, "train(45)", TORCH_TPU_CACHE=str(tmp_path))
    assert first["clusters_made"] > 1 and second["launches_clusters"] > 20, (first, second)
    # Which are made hangs on when programs are ready: some may be other clusters than the first process had.
    assert second["compiles"] < first["compiles"] / 4, (first["compiles"], second["compiles"])


@pytest.mark.parametrize("flag", ["TORCH_TPU_CLUSTERS=never", "TORCH_TPU_TUNE_BUDGET=0"])
def test_switched_off(flag):
    name, value = flag.split("=")
    found = run(TRAINING, "train(12)", **{name: value})
    assert found["clusters_made"] == found["launches_clusters"] == 0


def test_none_while_algorithms_have_to_be_deterministic():
    found = run(TRAINING, "torch.use_deterministic_algorithms(True)\ntrain(12)")
    assert found["clusters_made"] == found["launches_clusters"] == 0


def test_memory_stays_bounded():
    """A device that fits a hundred results of a loop that makes thousands, without a read: windows never hold half."""
    program = """
        import json, torch

        x = torch.ones(1 << 16, device="tpu")
        for i in range(3000):
            x = torch.tanh(x * 1.01)
            if i % 500 == 0:
                torch.tpu.wait_for_compiles()
        x.cpu()
        assert torch.tpu.max_memory_allocated() < 16 << 20, torch.tpu.max_memory_allocated()
        print(json.dumps(torch.tpu.metrics()))
    """
    found = run(program, TORCH_TPU_MEMORY="32MiB")
    assert found["launches_clusters"] > 5, found


def test_explain_tells_of_clusters():
    call = "train(60)\nprint(torch.tpu.explain())\nprint(json.dumps(torch.tpu.explain().clusters))"
    clusters = run(TRAINING, call)
    assert any(c["parts"] >= 2 and c["outcome"] == "kept" and c["before"] > 0 and c["after"] > 0 for c in clusters)


def test_a_program_that_waits_for_the_host_is_left_alone():
    """By measuring: a device that is idle has nothing to gain from later launches."""
    call = "for _ in range(30):\n    train(1)"
    found = run(TRAINING, call, TORCH_TPU_CLUSTERS="measured")
    assert found["clusters_kept"] == 0, found
