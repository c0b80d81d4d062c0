"""Windows that begin somewhere else at each step: rows of a batch, the next place of a cache."""

import pytest
import torch
from helpers import EMBEDDED, assert_same


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


def test_two_windows_of_which_one_was_always_behind_the_other():
    def step(places, x):
        read, written = places
        x = x * 1.0
        x[written : written + 4] = 7.0
        return x[read : read + 4] * 2

    behind = [(10, 0), (20, 9), (33, 22), (40, 30), (41, 30), (39, 29)]
    check_steps(step, [*behind, (10, 30), (30, 30), (29, 30), (11, 12), (31, 29)], torch.rand(200, 64))


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


def test_batches_from_anywhere_run_by_one_program():
    """Rows of one tensor, drawn at each step: how many programs are compiled does not grow with the steps."""
    data = torch.arange(3000) % 61
    weight = torch.linspace(-1, 1, 64 * 8).reshape(64, 8)

    def step(starts, data, weight):
        tokens = torch.stack([data[i : i + 12] for i in starts])
        targets = torch.stack([data[i + 1 : i + 13] for i in starts])
        hidden = torch.nn.functional.embedding(tokens, weight).tanh()
        loss = torch.nn.functional.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten())
        weight.mul_(0.99)
        return loss

    draw = torch.Generator().manual_seed(1)
    starts = [torch.randint(2980, (4,), generator=draw).tolist() for _ in range(24)]
    check_steps(step, starts[:8], data, weight)
    compiles, served = counted("compiles"), counted("sizes_served")
    check_steps(step, starts[8:], data, weight)
    assert counted("compiles") - compiles <= 1
    assert counted("sizes_served") - served >= 16
    check_steps(step, [[0, 2979, 5, 5], [2987, 0, 1, 2987], [7, 7, 7, 7]], data, weight)


def test_a_cache_that_is_written_at_the_next_place():
    def step(t, cache, x):
        cache[:, t] = x * t
        cache[:, t + 1] += cache[:, t] * 0.5
        return cache[:, :8].sum(1) + cache[:, t - 1]

    served = counted("sizes_served")
    check_steps(step, [9, 10, 11, 12, 14, 13, 20, 31, 62, 8, 7, 3, 1], torch.rand(3, 64, 5), torch.rand(3, 5))
    assert counted("sizes_served") - served >= 5


def test_rows_and_columns_that_move_on_their_own():
    def step(places, x):
        i, j = places
        x[i : i + 4] += x[j : j + 4] * 0.5
        x[:, j % 50 : j % 50 + 3] = x[i, :3].clone()
        return x[i] * x[j]

    draw = torch.Generator().manual_seed(2)
    places = [tuple(torch.randint(90, (2,), generator=draw).tolist()) for _ in range(16)]
    check_steps(step, [*places, (40, 40), (40, 41), (41, 38), (90, 90), (0, 90), (0, 0)], torch.rand(94, 60))


@pytest.mark.skipif(EMBEDDED, reason="operations are host kernels there")
def test_single_windows_share_a_program():
    x = torch.arange(6000.0, device="tpu").reshape(2000, 3)
    torch.tpu.synchronize()
    compiles = counted("compiles")
    rows = [x[i].clone() for i in range(0, 1999, 7)]
    assert rows[100].tolist() == [2100, 2101, 2102] and rows[-1].tolist() == [5985, 5986, 5987]
    assert counted("compiles") - compiles < 20


def test_a_loop_over_slices_beside_a_window_that_moves():
    """Gradients of slices are put into zeros at places, as every other window: no step needs programs of its own."""

    def step(row, table, x, w):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        mask, h = table[3 * row : 3 * row + 3], torch.zeros(3, 8, device=x.device)
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] + h @ w) * mask
        h.sum().backward()
        so_far.append((counted("compiles"), counted("launches_tier0")))
        return h, x.grad, w.grad

    so_far = []
    check_steps(step, range(36), (torch.rand(120, 8) > 0.3).float(), torch.rand(3, 24, 8), torch.rand(8, 8) * 0.3)
    assert so_far[-1] == so_far[24]
