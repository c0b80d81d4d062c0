"""Windows that begin somewhere else at each step: rows of a batch, the next place of a cache."""

import torch
from helpers import assert_same


def counted(name):
    return torch.tpu.metrics()[name]


def check_steps(step, starts, *tensors):
    """Checks step(start, *tensors), which may write to the tensors, at each of `starts` in turn."""
    here, there = [t.clone() for t in tensors], [t.to("tpu") for t in tensors]
    for start in starts:
        assert_same(step(start, *here), step(start, *there))
        torch.tpu.wait_for_compiles()
    assert_same(here, there)


def test_a_window_that_is_written_meets_one_that_is_read():
    """At first it lies before it, or behind it, and the program that serves all places knows it so."""

    def step(places, x):
        t, read = places
        x[t] = t * 100.0 + torch.arange(8.0, device=x.device)
        return x[read] * 2 + x[read + 1]

    places = [(t, read) for read in (5, 17, 30) for t in range(3, 60) if t not in (read, read + 1)]
    check_steps(step, [*places, *[(t, 30) for t in (30, 31, 7, 30, 31)]], torch.arange(512.0).reshape(64, 8))


def test_windows_that_are_written_meet():
    def step(t, x):
        x = x.clone()
        x[t : t + 3] = t * 100.0
        x[40:44] += x[t + 1 : t + 5] * 0.5
        x[2 * t : 2 * t + 2] = x[40:42] + 1
        return x

    check_steps(
        step, [5, 9, 14, 26, 30, 48, 19, 20, 21, 38, 39, 40, 41, 42, 43], torch.arange(19500.0).reshape(150, 130) / 1e4
    )
