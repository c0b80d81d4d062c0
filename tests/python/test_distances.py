"""Distances between rows of every order, and their gradients: lowered, and against the CPU's kernels."""

import pytest
import torch
from helpers import check_compiled

ORDERS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, torch.inf]


def rows(*dims, dtype=torch.float32):
    """Some are equal, and some of their elements."""
    x = torch.randn(*dims, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    x[..., -1, :] = x[..., 0, :]
    x[..., 0] = 0.5
    return x


def with_gradients(distances):
    def program(*tensors):
        tensors = [t.requires_grad_() for t in tensors]
        d = distances(*tensors)
        weights = torch.arange(d.numel(), dtype=d.dtype, device=d.device).view(d.shape) % 7 - 2
        return d.detach(), *torch.autograd.grad((d * weights).sum(), tensors)

    return program


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize("columns", [3, 40])
def test_distances(columns, p, dtype):
    def distances(a, b):
        return torch.cdist(a, b, p, "donot_use_mm_for_euclid_dist")

    a, b = rows(2, 1, 9, columns, dtype=dtype), rows(3, 9, columns, dtype=dtype)[:, :7]
    near = {"rtol": 5e-5, "atol": 1e-3} if p < 1 and dtype == torch.float32 else {}  # large terms of both signs
    check_compiled(with_gradients(distances), a, b, **near)
    check_compiled(with_gradients(lambda x: torch.pdist(x, p)), b[0], **near)


@pytest.mark.parametrize("p", ORDERS)
def test_without_rows_or_columns(p):
    for a, b in (((0, 3), (2, 3)), ((2, 3), (0, 3)), ((2, 0), (3, 0)), ((0, 2, 3), (0, 4, 3))):
        check_compiled(with_gradients(lambda x, y: torch.cdist(x, y, p)), torch.ones(a), torch.ones(b))
    for dims in ((1, 3), (2, 3), (4, 0)):  # of no rows, the CPU's gradients end the process
        check_compiled(with_gradients(lambda x: torch.pdist(x, p)), torch.ones(dims))


@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize("columns", [3, 40])
def test_distances_beside_nan(columns, p):
    a, b = rows(5, columns), rows(4, columns)
    a[1, 1] = b[2, 2] = torch.nan
    check_compiled(with_gradients(lambda x, y: torch.cdist(x, y, p, "donot_use_mm_for_euclid_dist")), a, b)
    check_compiled(with_gradients(lambda x: torch.pdist(x, p)), a)


@pytest.mark.embedded_only(reason="what a plugin keeps while it computes is its own")
def test_differences_are_not_kept():
    """Of 1000 rows of 64 they are 244 MiB."""
    x = rows(1000, 64).to("tpu")
    for distances in (lambda x: torch.pdist(x, 2), lambda x: torch.cdist(x, x, 3)):
        for _ in range(3):  # the last by compiled code
            torch.tpu.synchronize()
            torch.tpu.wait_for_compiles()
            torch.tpu.reset_peak_memory_stats()
            before = torch.tpu.memory_allocated()
            held = with_gradients(distances)(x)
            torch.tpu.synchronize()
            del held
        assert torch.tpu.max_memory_allocated() - before < 100 << 20


def test_half_types_are_computed_in_f32():
    x, y = rows(2, 3).half(), rows(4, 3).half()
    expected = torch.cdist(x.float(), y.float(), 1).half()
    for _ in range(2):  # op by op at first, then compiled
        torch.testing.assert_close(torch.cdist(x.to("tpu"), y.to("tpu"), 1).cpu(), expected)
        torch.tpu.wait_for_compiles()
