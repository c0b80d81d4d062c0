"""Complex numbers are computed by compiled programs, by their parts, and give the CPU's values."""

import pytest
import torch
from helpers import EMBEDDED, check, check_compiled, compiled

INFINITY = float("inf")


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.complex64)


Z, W, V = numbers(4, 6), numbers(4, 6), numbers(6)
X, MASK = torch.randn(4, 6), torch.randn(4, 6) > 0
INDEX = torch.tensor([[0, 3, 1, 0, 2, 2], [1, 0, 0, 3, 3, 1]])
ROWS = torch.tensor([2, 0, 2])

OPERATORS = {
    "add": (torch.add, Z, V),
    "add, scaled": (lambda z, w: torch.add(z, w, alpha=3), Z, W),
    "add of reals": (torch.add, Z, X),
    "add of a number": (lambda z: z + (2 - 1j), Z),
    "sub": (torch.sub, V, Z),
    "rsub": (lambda z: 1j - z, Z),
    "mul": (torch.mul, Z, V),
    "mul of reals": (torch.mul, X, Z),
    "mul of a number": (lambda z: z * 1.5j, Z),
    "mul of a tensor's number": (lambda z: z * torch.tensor(2 + 1j), Z),
    "div": (torch.div, Z, V),
    "div of a number": (lambda z: 1.5 / z, Z),
    "div by a number": (lambda z: z / (3 - 2j), Z),
    "div of reals": (torch.div, X, Z),
    "addcmul": (lambda z, w, v: torch.addcmul(z, w, v, value=0.5), Z, W, V),
    "lerp": (lambda z, w: torch.lerp(z, w, 0.3), Z, W),
    "neg": (torch.neg, Z),
    "conj": (lambda z: (z.conj() * 2, torch.conj_physical(z)), Z),
    "abs": (torch.abs, Z),
    "angle": (torch.angle, Z),
    "sgn": (torch.sgn, Z),
    "reciprocal": (torch.reciprocal, Z),
    "exp": (torch.exp, Z),
    "log": (lambda z: (z.log(), z.log2(), z.log10()), Z),
    "log near one": (torch.log, torch.polar(1 + 1e-4 * X, X)),
    "sqrt": (lambda z: (z.sqrt(), z.rsqrt()), Z),
    "sin": (lambda z: (z.sin(), z.cos(), z.tan()), Z),
    "sinh": (lambda z: (z.sinh(), z.cosh(), z.tanh()), Z),
    "sigmoid": (torch.sigmoid, Z),
    "pow": (lambda z: (z**2, z**3, z**-1, z**0.5), Z),
    "pow of any exponent": (lambda z, w, x: (z**2.5, z ** (1 - 2j), z**w, z**x, 2.5**z, x**w), Z, W, X),
    "norm": (
        lambda z: (
            z.norm(), z.norm(dim=1), torch.linalg.vector_norm(z, 1, 0), torch.linalg.vector_norm(z, 3, 1, True),
            torch.linalg.vector_norm(z, INFINITY), torch.linalg.vector_norm(z, -INFINITY, 1),
            torch.linalg.vector_norm(z, 0), torch.linalg.norm(z), z.norm(3),
        ), Z,
    ),
    "var": (lambda z: (z.var(), z.var(0), z.std(1, correction=0, keepdim=True), z.std()), Z),
    "vdot": (torch.vdot, V, W[0]),
    "polar": (torch.polar, X.abs(), X * 3),
    "complex": (torch.complex, X, X.flip(0)),
    "eq": (lambda z, w: (z == torch.where(w.real > 0, z, w), z != w, z == 1j), Z, W),
    "isnan": (lambda z: (torch.isnan(z / 0), torch.isinf(z * INFINITY), torch.isfinite(z)), Z),
    "where": (lambda m, z, w: torch.where(m, z, w), MASK, Z, V),
    "where of reals": (lambda m, z, x: torch.where(m, x, z), MASK, Z, X),
    "masked_fill": (lambda z, m: (z.masked_fill(m, 2 - 1j), z.masked_fill(m, 0.5)), Z, MASK),
    "sum": (lambda z: (z.sum(), z.sum(0), z.mean(1, keepdim=True), z.mean()), Z),
    "sum of reals": (lambda x: x.sum(1, dtype=torch.complex64), X),
    "cumsum": (lambda z: z.cumsum(1), Z),
    "triangles": (lambda z: (z.tril(), z.triu(1), z.trace()), Z),
    "pad": (lambda z: torch.nn.functional.pad(z, (1, 2), value=3.0), Z),
    "gather": (lambda z, i: z.gather(0, i), Z, INDEX),
    "scatter": (lambda z, i, w: (z.scatter(0, i, w), z.scatter_add(0, i, w), z.scatter(0, i, 2j)), Z, INDEX, W[:2]),
    "rows": (lambda z, i, w: (z[i], z.index_add(0, i, w[:3]), z.index_copy(0, i[1:], w[:2])), Z, ROWS, W),
    "index_put": (lambda z, i, w: (z.index_put((i,), w[:3], accumulate=True), z.take(i)), Z, ROWS, W),
    "index_fill": (lambda z, i: z.index_fill(0, i, 1j), Z, ROWS),
    "fill": (lambda z: (z.clone().fill_(1 - 2j), torch.full_like(z, 3.0), torch.ones_like(z), z.new_full((2,), 1j)), Z),
    "eye": (lambda z: z[:, :4] + torch.eye(4, dtype=z.dtype, device=z.device), Z),
    "conversions": (lambda z, x: (x.to(z.dtype), z.to(torch.complex128), z.double().sum() * z), Z, X),
    "in place": (lambda z, w: z.mul_(w).add_(1j).div_(w.conj()), Z, W),
    "its parts": (lambda z: (z.real * 2, z.imag + 1, torch.view_as_real(z * z)), Z),
    "written by parts": (lambda z, x: (z.real.copy_(x), z.imag.mul_(2), z)[-1], Z, X),
    "joined": (lambda z, w: torch.cat([z * 2, w.conj()], 1).flip(1), Z, W),
    "products": (
        lambda z, w, v: (z @ w.T, z.unsqueeze(0) @ w.mH.unsqueeze(0), z @ v, torch.dot(v, v), torch.outer(v, v)),
        Z, W, V,
    ),
    "products with sums": (
        lambda z, w, v: (torch.addmm(z, z @ w.mH, w, beta=2, alpha=0.5), torch.addmv(z[:, 0], z, v),
                         torch.baddbmm(z[None], z[None], (w.mT @ w)[None])),
        Z, W, V,
    ),
    "fft": (
        lambda z: (torch.fft.fft(z), torch.fft.ifft(z, dim=0, norm="ortho"), torch.fft.fft(z, 7, norm="forward")), Z,
    ),
    "fft of many dims": (
        lambda z: (torch.fft.fftn(z.view(2, 1, 2, 3, 2)), torch.fft.ifft2(z, dim=(1, 0)), torch.fft.fft2(z[:, :5])), Z,
    ),
    "fft of reals": (
        lambda x: (torch.fft.rfft(x), torch.fft.rfft2(x[:, :5], norm="ortho"), torch.fft.fft(x, dim=0),
                   torch.fft.rfftn(x.view(2, 3, 2, 2), dim=(1, 3, 0, 2)), torch.fft.ihfft(x)), X,
    ),
    "fft to reals": (
        lambda z: (torch.fft.irfft(z), torch.fft.irfft(z, 9), torch.fft.irfft2(z, (3, 8), norm="forward"),
                   torch.fft.irfftn(z.view(2, 2, 2, 3), dim=(3, 0, 1)), torch.fft.hfft(z)), Z,
    ),
    "stft": (lambda x: torch.stft(x, 4, 2, window=x[0, :4], return_complex=True), X),
    "cross": (lambda z, w: torch.linalg.cross(z[:, :3], w[:, :3]), Z, W),
}  # fmt: skip
# Host kernels on the embedded device, where they are faster: a library's products and transforms, and scans.
BY_HOST = {
    "cumsum",
    "products",
    "products with sums",
    "fft",
    "fft of many dims",
    "fft of reals",
    "fft to reals",
    "stft",
}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=["c64", "c128"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name, dtype):
    function, *arguments = OPERATORS[name]
    if dtype == torch.complex128:
        wider = {torch.complex64: torch.complex128, torch.float32: torch.float64}
        arguments = [a.to(wider.get(a.dtype, a.dtype)) for a in arguments]
    torch.tpu.reset_metrics()
    check(function, *arguments)
    if name not in BY_HOST or not EMBEDDED:
        assert not torch.tpu.explain().host_kernels


# PyTorch gives real arguments complex gradients there, and refuses them.
REFUSED = {"where of reals", "sum of reals"}


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in REFUSED])
def test_gradient(name):
    function, *arguments = OPERATORS[name]

    def gradients(*arguments):
        leaves = [a.detach().requires_grad_() for a in arguments if a.is_floating_point() or a.is_complex()]
        rest = iter(leaves)
        given = [next(rest) * 1 if a.is_floating_point() or a.is_complex() else a for a in arguments]
        results = function(*given)
        results = results if isinstance(results, tuple) else (results,)
        differentiable = [r for r in results if r.requires_grad]
        if not differentiable:
            return ()
        total = sum(
            (torch.view_as_real(r.resolve_conj()) if r.is_complex() else r).double().square().sum()
            for r in differentiable
        )
        return torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)

    check(gradients, *arguments)


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, float("nan"), 1e-30, 3e38])


@pytest.mark.parametrize("name", ["abs", "angle", "sgn", "eq", "mul", "neg"])
def test_special_values(name):
    parts = torch.cartesian_prod(SPECIAL, SPECIAL)
    z = torch.view_as_complex(parts.contiguous())
    if name == "sgn":  # of infinities the CPU's kernels say one thing in vectors and another behind them
        z = z[torch.isfinite(z)]
    function = {"eq": lambda z: z == z.flip(0), "mul": lambda z: z * z.flip(0)}.get(name, getattr(torch, name))
    check(function, z)


LARGE = torch.tensor([3e38, -3e38, 0.0, 1.0, 1e-30, -2.5])


def special_parts(dtype):
    real = torch.float64 if dtype == torch.complex128 else torch.float32
    most = torch.finfo(real).max
    values = torch.tensor([0.0, -0.0, 1.0, -2.5, 1e-30, -20.0, 88.8, -89.0, 100.0, 177.0, 709.8, -720.0, most, INFINITY,
                           -INFINITY, float("nan")], dtype=real)  # fmt: skip
    return torch.view_as_complex(torch.cartesian_prod(values, values).contiguous())


@pytest.mark.embedded_only(reason="XLA's sines of large angles are its own")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=["c64", "c128"])
@pytest.mark.parametrize("name", ["exp", "sin", "cos", "tan", "sinh", "cosh", "tanh"])
def test_where_a_part_overflows(name, dtype):
    z = special_parts(dtype)
    z = z[~((z.real.isinf() & ~z.imag.isfinite()) | (z.imag.isinf() & ~z.real.isfinite()))] if "in" in name else z
    # Of sinh and sin, the sign of such an infinity is anyone's.
    check(lambda z: torch.view_as_real(getattr(torch, name)(z)), z)  # a part that is infinite hides the other


def test_powers_of_no_and_of_infinite_numbers():
    z = torch.tensor(
        [0, 1, -1, 2j, INFINITY, complex(-INFINITY, 1), complex(float("nan"), 0), -2, complex(0, INFINITY)]
    )
    exponents = (0, 1, 0j, 1 + 0j, 2.5, -0.5, 0.25, 1j, 2 - 1j, INFINITY)
    check(
        lambda z: [
            *(z**exponent for exponent in exponents),
            *(torch.pow(z, torch.full_like(z, exponent)) for exponent in exponents),
            *(base**z for base in (0, 1, 1 + 0j, 2.0, -2, 1j, INFINITY)),
        ],
        z,
    )


@pytest.mark.parametrize("name", ["log", "log2", "log10", "sqrt"])
def test_of_large_numbers(name):
    check(getattr(torch, name), torch.view_as_complex(torch.cartesian_prod(LARGE, LARGE).contiguous()))


def test_roots_beside_infinite_parts():
    parts = torch.cartesian_prod(SPECIAL, torch.tensor([INFINITY, -INFINITY]))
    check(torch.sqrt, torch.view_as_complex(parts.contiguous()))


def test_quotients_by_nan_are_nan():
    check(lambda z, x: (z / x, x / z, 1 / (z * x)), numbers(4), torch.full((4,), float("nan")))
    check(torch.reciprocal, torch.tensor([complex(float("nan"), 0), complex(0, float("nan"))]))


def test_sines_on_the_imaginary_axis():
    z = torch.tensor([100j, -100j, complex(-0.0, 100), 1j])
    check(lambda z: (z.sin(), z.cos(), z.cos().imag.signbit()), z)


def rotate(x, angles):
    """Rotary positions as Llama's own code has them."""
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * angles
    return torch.view_as_real(turned).flatten(3).type_as(x)


def angles_of(length, width):
    frequencies = 1.0 / (10000 ** (torch.arange(0, width, 2) / width))
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)[None, :, None]


def rotary_step(x, angles, weight):
    leaf = x.detach().requires_grad_()
    y = rotate(leaf, angles)
    return y.detach(), *torch.autograd.grad((y * weight).sum(), leaf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_positions_run_no_host_kernels(dtype):
    x, weight = torch.randn(2, 7, 3, 8, dtype=dtype), torch.randn(2, 7, 3, 8, dtype=dtype)
    torch.tpu.reset_metrics()
    check(rotary_step, x, angles_of(7, 8), weight)
    assert not torch.tpu.explain().host_kernels


def test_rotary_positions_at_many_lengths():
    for length in (9, 5, 12, 7, 17, 11, 23):
        x, weight = torch.randn(2, length, 3, 8), torch.randn(2, length, 3, 8)
        check(rotary_step, x, angles_of(length, 8), weight)


def test_compiled(fresh_dynamo):
    x, angles = torch.randn(2, 7, 3, 8), angles_of(7, 8)
    function = compiled(rotate, fullgraph=True)
    leaf = x.to("tpu").requires_grad_()
    y = function(leaf, angles.to("tpu"))
    y.square().sum().backward()
    torch.testing.assert_close(y.detach().cpu(), rotate(x, angles))
    torch.testing.assert_close(leaf.grad.cpu(), 2 * x)  # turning keeps lengths


def test_captured():
    z, w = Z.to("tpu"), W.to("tpu")

    def step():
        return (z * w).abs() + (z / w).sum().real

    step()
    graph = torch.accelerator.Graph()
    with graph:
        result = step()
    z.copy_(W)
    graph.replay()
    torch.testing.assert_close(result.cpu(), (W * W).abs() + (W / W).sum().real)


def test_optimizers_of_complex_parameters():
    def train(start, target):
        parameter = start.clone().requires_grad_()
        optimizer = torch.optim.AdamW([parameter], lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            (parameter - target).abs().square().sum().backward()
            optimizer.step()
        return parameter.detach()

    check(train, Z, W)


LISTS = {
    "arithmetic": (
        lambda z, w, x: (
            torch._foreach_add([z, x], [w, x], alpha=0.5), torch._foreach_sub([z, x], 2.0),
            torch._foreach_mul([z, x], [w, x]), torch._foreach_mul([z, w], 1.5), torch._foreach_mul([z, x], x[0, 0]),
            torch._foreach_lerp([z, x], [w, x], 0.3), torch._foreach_neg([z, x]),
            torch._foreach_copy_([z * 1, x * 1], [w, x]), torch._foreach_zero_([z * 1, x * 1]),
        ), Z, W, X,
    ),
    "norms": (
        lambda z, v, x: [torch._foreach_norm([z, v, x], order) for order in (1, 2, 3, INFINITY)], Z, V, X,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_lists(name):
    check_compiled(*LISTS[name])


def test_lists_and_a_complex_number():
    check(lambda z, w: (torch._foreach_mul([z, w], 2 - 1j), torch._foreach_add([z, w], 1j)), Z, W)
