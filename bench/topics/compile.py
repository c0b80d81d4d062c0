"""torch.compile on tpu against Inductor on the CPU: the GPT step warm, what a call costs, the first result.

Step: as in gpt.py, forward with loss (and so backward) compiled, the optimizer eager. Call: a compiled function of two
tensors of four elements, whose work is nothing beside the call; with gradients, forward and backward. First result: a
fresh process with empty caches, from the first call of the step to its loss in Python, the compiler's imports included.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import gpt
import harness


def compiled(peer, function):
    import torch

    return torch.compile(function, backend="tpu" if peer == "tpu" else "inductor")


def step(peer):
    return gpt.build(peer, compiled)


def call(peer):
    import torch

    device = harness.device_of(peer)
    a, b = torch.randn(4, device=device), torch.randn(4, device=device)
    function = compiled(peer, lambda a, b: (a * b).sin() + a)
    return lambda: function(a, b)


def call_with_gradients(peer):
    import torch

    device = harness.device_of(peer)
    a, b = torch.randn(4, device=device, requires_grad=True), torch.randn(4, device=device)
    function = compiled(peer, lambda a, b: (a * b).sin() + a)
    ones = torch.ones(4, device=device)

    def run():
        function(a, b).backward(ones)
        a.grad = None

    return run


CASES = {"step": step, "call": call, "call with gradients": call_with_gradients}


def first_result(rounds):
    times = {"tpu": [], "inductor": []}
    for _ in range(rounds):
        for peer, values in times.items():
            with harness.scratch_directory() as cache:
                environment = harness.environment(peer, cache) | {"TORCHINDUCTOR_CACHE_DIR": cache}
                command = [sys.executable, __file__, "--child", peer]
                child = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
                values.append(float(child.stdout.split()[-1]))
    return {peer: statistics.median(values) for peer, values in times.items()}


def child(peer):
    import torch

    torch.set_num_threads(harness.THREADS)
    run = step(peer)
    start = time.perf_counter()
    run()
    print((time.perf_counter() - start) * 1e3, flush=True)
    os._exit(0)  # what still compiles is not waited for


def measure():
    steps = harness.interleave("compile", "step", ("tpu", "inductor"), rounds=7, iterations=2, warm_up=12)
    yield from harness.rows_against("compiled GPT step", steps, {"inductor": 0.85})
    for case in ("call", "call with gradients"):
        calls = harness.interleave("compile", case, ("tpu", "inductor"), rounds=21, iterations=1000, warm_up=2000)
        yield from harness.rows_against(f"compiled {case}", calls, {"inductor": 1.0})
    yield from harness.rows_against("compiled GPT, first result", first_result(rounds=1), {"inductor": 0.1})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        harness.main(measure)
