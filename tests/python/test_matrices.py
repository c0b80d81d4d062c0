"""Factors of matrices and solutions by them: a library's on the embedded device, but for small ones, which are
compiled, as all are behind plugins that are."""

import pytest
import torch
from helpers import EMBEDDED, check, check_compiled

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


def small(rows, *batch):
    """Matrices of which some need rows exchanged, and as many right sides of two columns."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(*batch, rows, rows, generator=generator) + 3 * torch.eye(rows)
    return x[..., torch.randperm(rows, generator=generator), :], torch.randn(*batch, rows, 2, generator=generator)


def positive(x):
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


SMALL = {
    "cholesky": lambda x, b: (torch.linalg.cholesky(positive(x)), torch.linalg.cholesky_ex(positive(x), upper=True)),
    "by a cholesky factor": lambda x, b: (
        torch.cholesky_solve(b, positive(x).tril()),
        torch.cholesky_solve(b, positive(x).triu(), upper=True),
        torch.cholesky_inverse(positive(x)),
    ),
    "triangular": lambda x, b: [
        torch.linalg.solve_triangular(positive(x), b if left else b.mT, upper=upper, left=left, unitriangular=unit)
        for upper in (True, False)
        for left in (True, False)
        for unit in (True, False)
    ],
    "factors": lambda x, b: torch.linalg.lu_factor_ex(x),
    "inverse": lambda x, b: torch.linalg.inv_ex(x),
    "inverse, checked": lambda x, b: torch.linalg.inv(x.mT),
    "determinant": lambda x, b: torch.linalg.det(x),
    "its sign and logarithm": lambda x, b: torch.linalg.slogdet(x.mT),
    "solution": lambda x, b: torch.ops.aten._linalg_solve_ex(x, b),
    "of vectors": lambda x, b: torch.linalg.solve_ex(x, b[..., 0]),
    "from the right": lambda x, b: torch.linalg.solve_ex(x, b.mT, left=False),
    "of a batch by one": lambda x, b: torch.linalg.solve_ex(x.flatten(0, -3)[0] if x.dim() > 2 else x, b),
    "by factors": lambda x, b: [
        torch.linalg.lu_solve(*torch.linalg.lu_factor(x), b if left else b.mT, left=left, adjoint=adjoint)
        for left in (True, False)
        for adjoint in (True, False)
    ],
}


@pytest.mark.parametrize("rows, batch, dtype", [
    (1, (2, 3), torch.float64), (2, (), torch.float32), (3, (37,), torch.float64), (4, (2, 3), torch.float32),
])  # fmt: skip
@pytest.mark.parametrize("name", SMALL)
def test_small_matrices(name, rows, batch, dtype):
    check_compiled(SMALL[name], *[t.to(dtype) for t in small(rows, *batch)])


def test_small_matrices_without_a_factor():
    x = torch.eye(3).repeat(4, 1, 1)
    x[1, 0, 0], x[2, 1, 1], x[3, 2, :2], x[3, :2, 2] = -1, 0, 2, 2
    check(lambda x: torch.linalg.cholesky_ex(x).info, x)
    with pytest.raises(torch.linalg.LinAlgError, match=r"Batch element 1.*not positive-definite"):
        torch.linalg.cholesky(x.to("tpu"))


def test_small_matrices_without_an_inverse():
    """Columns without a pivot, the first row of those with equal elements, and what the factors say of it."""
    x = torch.tensor([[[0.0, 1], [1, 0]], [[1, 2], [2, 4]], [[0, 0], [0, 3]], [[2, -2], [-2, 3]]])
    check(lambda x: (*torch.linalg.lu_factor_ex(x), torch.linalg.inv_ex(x).info, torch.linalg.det(x)), x)
    with pytest.raises(torch.linalg.LinAlgError, match=r"Batch element 1.*singular"):
        torch.linalg.inv(x.to("tpu"))


@pytest.mark.parametrize(
    "name", ["cholesky", "triangular", "inverse", "determinant", "its sign and logarithm", "solution"]
)
def test_gradients_of_small_matrices(name):
    def gradients(x, b):
        x, b = x.detach().requires_grad_(), b.detach().requires_grad_()
        results = [r for r in SMALL[name](x, b)[:1] if r.requires_grad]
        return torch.autograd.grad([r.sum() for r in results], (x, b), allow_unused=True, materialize_grads=True)

    check_compiled(gradients, *small(3, 5))


def test_larger_matrices_are_the_librarys():
    check(lambda a, b: (torch.linalg.inv_ex(a), torch.linalg.solve_ex(a, b)), A, B, rtol=1e-4, atol=1e-5)
