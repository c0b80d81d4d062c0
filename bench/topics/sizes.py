"""Training at sizes that change: twenty sequence lengths against one, twenty pairs of batch and length against eager.

A small GPT's training steps with a read each, in a process of its own with an empty cache; nothing is warmed up. A pass
is twenty steps: each of the lengths or pairs once, or all of one length. The first pass meets every size for the first
time; the first ten are a training that meets its sizes as it goes; once warm all is compiled. Medians of the processes.
Behind the CPU plugin ("pjrt") two passes of the lengths and of one: there XLA compiles whatever has sizes of its own.
"""

import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

DRAWN = random.Random(0)
LENGTHS = range(23, 143, 6)
# (batch, length) of each step of a pass.
STEPS = {
    "one": [(8, int(statistics.mean(LENGTHS)))] * len(LENGTHS),
    "lengths": [(8, length) for length in LENGTHS],
    "pairs": [(DRAWN.randint(3, 16), DRAWN.randint(23, 142)) for _ in range(20)],
}
CONTEXT = max(length for steps in STEPS.values() for _, length in steps)
PASSES = 10
FIRST, TEN, WARM = "first pass", f"first {PASSES} passes", "once warm"


def passes(peer, steps):
    """Seconds of a pass over `steps`: the first, of the first ten, and once all is compiled."""
    sys.path.insert(0, str(harness.HERE.parent / "tests" / "python"))
    sys.path.insert(0, str(harness.HERE.parent / "examples"))
    import char_gpt
    import models
    import torch

    torch.set_num_threads(harness.THREADS)
    device = harness.device_of(peer)
    torch.manual_seed(0)
    config = char_gpt.Config(layers=4, width=192, heads=3, context=CONTEXT, vocabulary=models.VOCABULARY)
    model = models.TokenLoss(char_gpt.CharGPT(config)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def run():
        start = time.perf_counter()
        for batch, length in steps:
            tokens = torch.randint(models.VOCABULARY, (batch, length + 1)).to(device)
            loss = model(tokens[:, :-1], tokens[:, 1:])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            loss.item()
        return time.perf_counter() - start

    first = [run() for _ in range(PASSES if peer != "pjrt" else 2)]
    compiles = 0
    if peer in harness.OURS:
        for _ in range(3 if peer == "tpu" else 1):
            torch.tpu.wait_for_compiles()
            run()
        compiles = torch.tpu.metrics()["compiles"]
    warm = [run() for _ in range(5)]
    return {FIRST: first[0], TEN: sum(first) / len(first), WARM: statistics.median(warm), "compiles": compiles}


def measured(rounds):
    """Medians of `passes`, by peer and steps."""
    found = {(peer, kind): [] for kind in STEPS for peer in ("tpu", "eager")}
    found |= {("pjrt", kind): [] for kind in ("one", "lengths")}
    for _ in range(rounds):
        for (peer, kind), seen in found.items():
            if peer == "pjrt" and seen:
                continue
            with harness.scratch_directory() as cache:
                command = [sys.executable, __file__, f"--{kind}", peer]
                child = subprocess.run(
                    command, stdout=subprocess.PIPE, text=True, env=harness.environment(peer, cache), check=True
                )
            seen.append(json.loads(child.stdout.splitlines()[-1]))
    return {key: {case: statistics.median(s[case] for s in seen) for case in seen[0]} for key, seen in found.items()}


def measure():
    found = measured(rounds=3)
    one, lengths, pairs = (found["tpu", kind] for kind in STEPS)
    compiles = f"{lengths['compiles']:.0f} compiles, one length {one['compiles']:.0f}"

    def row(case, other, note=""):
        return harness.Row(f"twenty lengths, {case}", lengths[case], f"one length, {other}", one[other], 1.2, "s", note)

    for case in (FIRST, TEN, WARM):
        theirs = f"eager {found['eager', 'lengths'][case]:.3g} s to {found['eager', 'one'][case]:.3g} s"
        yield row(case, case, f"{compiles}; {theirs}")
    for case in (FIRST, TEN):
        yield row(case, WARM)
    for case in (FIRST, TEN, WARM):
        theirs = found["eager", "pairs"][case]
        note = f"{pairs['compiles']:.0f} compiles"
        yield harness.Row(f"twenty batches and lengths, {case}", pairs[case], "eager", theirs, None, "s", note)
    for case in (FIRST, WARM):
        ours, theirs = (found["pjrt", kind][case] for kind in ("lengths", "one"))
        note = f"{found['pjrt', 'lengths']['compiles']:.0f} compiles, one length {found['pjrt', 'one']['compiles']:.0f}"
        yield harness.Row(f"twenty lengths on the CPU plugin, {case}", ours, "one length", theirs, None, "s", note)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].removeprefix("--") in STEPS:
        print(json.dumps(passes(sys.argv[2], STEPS[sys.argv[1].removeprefix("--")])), flush=True)
        os._exit(0)
    else:
        harness.main(measure)
