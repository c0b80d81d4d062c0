"""A thousand small operations, one read at the end: the loop of a program that computes little things."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness


def adds(peer):
    import torch

    device = harness.device_of(peer)
    start, step = torch.zeros(4, device=device), torch.full((4,), 1e-3, device=device)

    def iteration():
        x = start
        for _ in range(1000):
            x = x + step
        return x.tolist()

    return iteration


def mixed(peer):
    import torch

    device = harness.device_of(peer)
    start, other = torch.ones(4, 4, device=device), torch.full((4, 4), 0.5, device=device)

    def iteration():
        x = start.clone()
        for _ in range(125):
            y = x.t() * other
            x = (y - x).relu()
            x[0].add_(0.25)
            x = x.reshape(16).view(4, 4)
        return x.tolist()

    return iteration


CASES = {"1000 adds of 4 elements, one read": adds, "1000 mixed small ops, views, in-place": mixed}


def measure():
    for name in CASES:
        times = harness.interleave("chain", name, ("tpu", "eager"), rounds=11, iterations=20, warm_up=40)
        yield from harness.rows_against(name, times, {"eager": 0.7})


if __name__ == "__main__":
    harness.main(measure)
