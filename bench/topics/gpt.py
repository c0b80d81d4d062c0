"""The character GPT of examples/: its first step from process start, its step once warm, a second process.

First step: fresh processes from an empty cache, from start to the first loss value in Python.
Step: forward, loss, backward, gradient clipping, AdamW; a read every step. Inductor compiles forward with loss
(and so backward); its optimizer is eager, as most programs have it. fp32, and bf16 by autocast; two threads.
"""

import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

EXAMPLES = harness.HERE.parent / "examples"
BATCH, CONTEXT = 8, 256


def build(peer, compiled=harness.compiled, bf16=False):
    sys.path.insert(0, str(EXAMPLES))
    import char_gpt
    import torch

    device = harness.device_of(peer)
    torch.manual_seed(0)
    model = char_gpt.CharGPT(char_gpt.Config(context=CONTEXT)).to(device)
    optimizer = char_gpt.make_optimizer(model, 1e-3, 0.1)
    loss_of = compiled(peer, lambda tokens, targets: char_gpt.loss_of(model, tokens, targets))
    generator = torch.Generator().manual_seed(0)

    def step():
        tokens = torch.randint(len(char_gpt.VOCABULARY), (BATCH, CONTEXT + 1), generator=generator).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


CASES = {"training step": build, "training step, bf16": functools.partial(build, bf16=True)}


def fresh_process(peer, cache, steps=1):
    """Seconds from the start of a process to its first loss value, and the device's counters after `steps`."""
    command = [sys.executable, __file__, "--child", peer, str(steps)]
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=harness.environment(peer, cache))
    child.stdout.readline()
    seconds = time.perf_counter() - start
    counters = json.loads(child.stdout.readline())
    child.wait()
    return seconds, counters


def child(peer, steps):
    import torch

    torch.set_num_threads(harness.THREADS)
    step = build(peer)
    print(step(), flush=True)
    for _ in range(steps - 1):
        step()
    if peer == "tpu":
        torch.tpu.wait_for_compiles()
    print(json.dumps(torch.tpu.metrics() if peer == "tpu" else {}), flush=True)


def first_step(rounds=5):
    times, waited = {"tpu": [], "eager": []}, []
    for _ in range(rounds):
        for peer, values in times.items():
            with harness.scratch_directory() as cache:
                seconds, counters = fresh_process(peer, cache)
                values.append(seconds * 1e3)
                waited.append(counters.get("compile_wait_ms", 0))
    medians = {peer: statistics.median(values) for peer, values in times.items()}
    note = f"compile_wait_ms {max(waited):g}"
    return harness.Row(
        "GPT, process start to first loss, empty cache", medians["tpu"], "eager", medians["eager"], 1.3, note=note
    )


def second_process(steps=4):
    """Programs that the second of two processes compiled, over those of the first: promised 0."""
    with harness.scratch_directory() as cache:
        _, first = fresh_process("tpu", cache, steps)
        _, second = fresh_process("tpu", cache, steps)
    return harness.Row(
        "GPT, a second process with a warm cache",
        second["compiles"],
        "first process",
        max(1, first["compiles"]),
        0.0,
        unit="compiles",
        note=f"{second['disk_cache_hits']} disk cache hits",
    )


def on_the_plugin():
    """The step on the CPU plugin of PJRT against JAX, where BENCH_JAX_PYTHON names a Python that has JAX."""
    if "BENCH_JAX_PYTHON" not in os.environ:
        return []
    times = harness.interleave("gpt", "training step", ("pjrt", "jax"), rounds=5, iterations=2, warm_up=12)
    return [harness.Row("GPT training step on the CPU plugin, fp32", times["pjrt"], "jax", times["jax"], 1.2)]


def measure():
    yield first_step()
    times = harness.interleave("gpt", "training step", ("tpu", "eager", "inductor"), rounds=7, iterations=2, warm_up=20)
    yield from harness.rows_against("GPT training step after 20, fp32", times, {"eager": 0.82, "inductor": 0.85})
    times = harness.interleave("gpt", "training step, bf16", ("tpu", "eager"), rounds=7, iterations=2, warm_up=20)
    yield from harness.rows_against("GPT training step after 20, bf16 autocast", times, {"eager": 0.82})
    yield second_process()
    yield from on_the_plugin()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]))
    else:
        harness.main(measure)
