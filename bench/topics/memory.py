"""Two thousand training steps without a read: the process must not grow after the first hundred."""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness


def resident_mib():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def child(steps=2000, settled=100):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(32, 64).to("tpu"), torch.randint(10, (32,)).to("tpu")
    before, peak = 0.0, 0.0
    for step in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step == settled:
            before = resident_mib()
        elif step > settled:
            peak = max(peak, resident_mib())
    print(before, peak)


def measure():
    with harness.scratch_directory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--child"],
            env=harness.environment("tpu", cache),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    before, peak = map(float, done.stdout.split())
    yield harness.Row("resident memory, greatest of steps 100-2000", peak, "at step 100", before, 1.05, unit="MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child()
    else:
        harness.main(measure)
