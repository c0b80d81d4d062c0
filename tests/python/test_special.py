"""Functions of mathematical physics, cross products and samples by a grid: lowered, and against the CPU's kernels."""

import pytest
import torch
from helpers import EMBEDDED, check, check_compiled

FUNCTIONS = {
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "polygamma of 0": lambda x: torch.polygamma(0, x),
    "polygamma of 1": lambda x: torch.polygamma(1, x),
    "erfc": torch.erfc,
    "erfcx": torch.special.erfcx,
    "log_ndtr": torch.special.log_ndtr,
    "ndtri": torch.special.ndtri,
    "i0": torch.special.i0,
    "i0e": torch.special.i0e,
    "i1": torch.special.i1,
    "i1e": torch.special.i1e,
}
GRADIENTS = {"lgamma", "digamma", "erfc", "erfcx", "i0"}


def numbers(dtype):
    """Of both signs and of every size; poles and what is beside them."""
    ends = torch.tensor([0.0, torch.inf, torch.nan, 0.5, 1.4616321449683623, 6.0, 10.0, 26.0, 1e-3, 1e-30, 1e9, 1e30])
    sizes = torch.logspace(-8, 8, 97, dtype=torch.float64)
    values = torch.cat([ends.double(), sizes, torch.linspace(0, 12, 577, dtype=torch.float64)])
    values = torch.cat([values, -values]).to(dtype)
    whole = torch.tensor([n for n in range(-9, 9) if n != 0], dtype=dtype)
    if dtype == torch.float64:  # nearer, the CPU's kernels show how they round pi * x
        return torch.cat([values, whole + 1e-7, whole - 1e-7])
    infinity = torch.tensor(torch.inf, dtype=dtype)
    return torch.cat([values, torch.nextafter(whole, infinity), torch.nextafter(whole, -infinity)])


TYPES = {name: [torch.float32, torch.float64, torch.bfloat16] for name in FUNCTIONS}
for name in ("erfcx", "log_ndtr", "ndtri"):
    TYPES[name].remove(torch.bfloat16)  # of which the CPU has no kernel


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name in FUNCTIONS for dtype in TYPES[name]])
def test_values_and_derivatives_over_the_whole_range(name, dtype):
    def program(x):
        x = x.requires_grad_(name in GRADIENTS)
        y = FUNCTIONS[name](x)
        return y.detach(), *(torch.autograd.grad(y.sum(), x) if name in GRADIENTS else ())

    check(program, numbers(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_gamma_is_accurate_beside_its_zeros_and_poles(dtype):
    steps = torch.logspace(-7, -0.4, 99, dtype=dtype)
    tiny = torch.finfo(dtype).tiny
    small = torch.tensor([tiny, tiny / 8, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps], dtype=dtype)
    small = small if EMBEDDED else small[:1]  # XLA takes the others as 0
    x = torch.cat([1 + steps, 1 - steps, 2 + steps, 2 - steps, small, -small, torch.tensor([1.0, 2.0])])
    close = {"rtol": 1e-6 if dtype == torch.float32 else 1e-14, "atol": 0}
    check(torch.lgamma, x.to(dtype), **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_inverse_error_function_and_rounding_to_decimals(dtype):
    x = torch.cat([torch.linspace(-1, 1, 999), torch.logspace(-9, -1, 99), 1 - torch.logspace(-5, -1, 99)]).to(dtype)

    def program(x):
        t = (x * 0.75).requires_grad_()  # nearer to 1, the derivative is what rounding makes of it
        rounded = (torch.round(x * 50, decimals=d) for d in (2, -1))
        return torch.erfinv(x), *torch.autograd.grad(torch.erfinv(t).sum(), t), *rounded

    holds = check if dtype == torch.float64 else check_compiled  # f64 is the library's
    holds(program, x)
    holds(torch.erfinv, torch.tensor([2, -2, torch.nan, torch.inf], dtype=dtype))


def test_quantiles_of_small_probabilities():
    check_compiled(torch.special.ndtri, torch.logspace(-37, 0, 999, dtype=torch.float64).float())
    check(torch.special.ndtri, torch.logspace(-300, 0, 999, dtype=torch.float64))


def test_a_tail_keeps_its_digits():
    """All but the last two, where XLA makes one exponential of two."""
    check(torch.erfc, torch.linspace(0, 9, 1000), rtol=1e-6 if EMBEDDED else 1e-5, atol=1e-37)
    check(torch.erfc, torch.linspace(0, 26, 1000, dtype=torch.float64), rtol=1e-14 if EMBEDDED else 1e-12, atol=1e-300)


def test_of_whole_numbers():
    check(lambda x: [FUNCTIONS[name](x) for name in FUNCTIONS], torch.arange(1, 9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_keep_their_signs(dtype):
    odd = (torch.sinh, torch.asinh, torch.erf, torch.tanh, torch.sin, torch.tan, torch.asin, torch.atan)
    check(lambda x: [torch.signbit(f(x)) for f in odd], torch.tensor([0.0, -0.0], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_cross_products(dtype):
    def program(a, b):
        products = torch.linalg.cross(a, b), torch.linalg.cross(a[:1].mT, b.mT, dim=1), torch.cross(a, a + 1, dim=-1)
        if not dtype.is_floating_point:
            return products
        a, b = a.requires_grad_(), b.requires_grad_()
        product = torch.linalg.cross(a, b[:1])
        return *products, product.detach(), *torch.autograd.grad(product.square().sum(), (a, b))

    generator = torch.Generator().manual_seed(0)
    check(program, *(torch.randn(4, 5, 3, generator=generator).mul(4).to(dtype) for _ in range(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_samples_by_a_grid(mode, padding, corners, dtype):
    def program(image, grid, weights):
        image, grid = image.requires_grad_(), grid.requires_grad_()
        y = torch.nn.functional.grid_sample(image, grid, mode, padding, corners)
        one = torch.nn.functional.grid_sample(image[:, :, :1, :1], grid, mode, padding, corners)
        return y.detach(), one.detach(), *torch.autograd.grad((y * weights).sum(), (image, grid))

    generator = torch.Generator().manual_seed(0)
    image, grid = torch.randn(2, 3, 5, 7, generator=generator), torch.randn(2, 4, 6, 2, generator=generator)
    grid[0, :2] *= 3
    check(program, *(t.to(dtype) for t in (image, grid, torch.randn(2, 3, 4, 6, generator=generator))))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_samples_by_a_grid_of_no_numbers(mode, padding):
    def program(image, grid):
        return torch.nn.functional.grid_sample(image, grid, mode, padding, align_corners=False)

    says = torch.tensor([[torch.nan, 0.2], [torch.inf, 0.0], [-torch.inf, 0.5], [-3, 0.3], [1, torch.nan], [-1, 1]])
    check(program, torch.rand(1, 2, 4, 4), says[None, None])


def test_beyond_the_ordinary():
    check(lambda x: torch.logit(x, eps=0.7), torch.tensor([0.1, 0.5, 0.9, torch.nan]))
    check(lambda x: x ** (2**53 + 1), torch.tensor([3, -1]))
    check(lambda x: torch.logaddexp2(x, x - 88), torch.zeros(3), rtol=1e-5, atol=0)
