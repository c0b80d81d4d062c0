"""Factors of matrices and solutions by them: a library's on the embedded device, compiled behind plugins."""

import pytest
import torch
from helpers import EMBEDDED, check

A, B = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)).unbind(0)
A = A + 4 * torch.eye(5)
POSITIVE = A @ A.mT + torch.eye(5)
FACTOR = torch.linalg.cholesky(POSITIVE)
SOLVES = {
    "cholesky": (lambda x: torch.linalg.cholesky_ex(x), POSITIVE),
    "upper cholesky": (lambda x: torch.linalg.cholesky_ex(x, upper=True), POSITIVE),
    "cholesky that fails": (lambda x: torch.linalg.cholesky_ex(x).info, torch.stack((POSITIVE[0], -POSITIVE[1]))),
    "cholesky of nothing": (lambda x: torch.linalg.cholesky_ex(x[:, :0, :0]), POSITIVE),
    "by a factor": (lambda l, b: (torch.cholesky_solve(b, l), torch.cholesky_solve(b, l.mH, upper=True)), FACTOR, B),
    "inverse by a factor": (lambda l: (torch.cholesky_inverse(l), torch.cholesky_inverse(l.mT, upper=True)), FACTOR),
    "triangular": (lambda a, b: torch.linalg.solve_triangular(a, b[..., :2], upper=True), A, B),
    "triangular, shared": (lambda a, b: torch.linalg.solve_triangular(a[0], b, upper=False), A, B),
    "triangular, from the right": (
        lambda a, b: torch.linalg.solve_triangular(a / 9, b[:, :2], upper=False, left=False, unitriangular=True), A, B,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=["f32", "f64", "c64"])
@pytest.mark.parametrize("name", SOLVES)
def test_solve(name, dtype):
    function, *arguments = SOLVES[name]
    arguments = [a.to(dtype) for a in arguments]
    torch.tpu.reset_metrics()
    check(function, *arguments, rtol=1e-4, atol=1e-5)
    assert EMBEDDED or not torch.tpu.explain().host_kernels


def test_gradients():
    def gradient(x, b):
        x = x.detach().requires_grad_()
        factor = torch.linalg.cholesky(x)
        loss = torch.cholesky_solve(b, factor).sum() + factor.diagonal(dim1=-2, dim2=-1).log().sum()
        return torch.autograd.grad(loss, x)

    check(gradient, POSITIVE, B, rtol=1e-4, atol=1e-5)


def test_what_has_no_factor_is_an_error():
    x = POSITIVE.to("tpu")
    x[1] = -x[1]
    with pytest.raises(torch.linalg.LinAlgError, match=r"Batch element 1.*not positive-definite"):
        torch.linalg.cholesky(x)
