"""Products by groups, whose sizes are data: the experts of a mixture; against the CPU."""

import pytest
import torch
from helpers import assert_same, check, compiled, on_both


def operands_of(dtype, form):
    generator = torch.Generator().manual_seed(0)
    shapes = {"rows": ((16, 8), (4, 8, 24)), "columns": ((4, 8, 24), (24, 16)), "parts": ((8, 16), (16, 24))}[form]
    operands = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return *operands, torch.tensor([3, 3, 9, 16], dtype=torch.int32)


@pytest.mark.parametrize("form", ["rows", "columns", "parts"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_by_groups(dtype, form):
    multiply = torch.nn.functional.grouped_mm

    def program(a, b, ends, function=multiply):
        a, b = a.requires_grad_(), b.requires_grad_()
        product = function(a, b, offs=ends)
        return product.detach(), *torch.autograd.grad(product.float().square().sum(), (a, b))

    operands = operands_of(dtype, form)
    check(program, *operands)
    whole = compiled(lambda a, b, offs: multiply(a, b, offs=offs), fullgraph=True)
    assert_same(on_both(program, *operands)[0], program(*(t.to("tpu") for t in operands), whole))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 13])
def test_any_number_of_rows_goes_by_groups(dtype, rows):
    """Backward multiplies columns of so many elements, which the CPU's kernel wants to begin every 16 bytes."""

    def program(x, weights, ends):
        x, weights = x.requires_grad_(), weights.requires_grad_()
        product = torch.nn.functional.grouped_mm(x, weights, offs=ends)
        return product.detach(), *torch.autograd.grad(product.float().square().sum(), (x, weights))

    generator = torch.Generator().manual_seed(0)
    x, weights = (torch.randn(shape, generator=generator).to(dtype) for shape in ((rows, 8), (2, 8, 24)))
    check(program, x, weights, torch.tensor([rows // 2, rows], dtype=torch.int32))
