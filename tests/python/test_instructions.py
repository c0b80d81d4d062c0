"""The processor's instructions, and those of lesser ones: on all of them results are the CPU's."""

import os
import pathlib

import pytest
from helpers import run_python

pytestmark = pytest.mark.embedded_only(reason="other devices have instructions of their own")

KERNELS = """
    import os
    os.environ["TORCH_TPU_COMPILE_AFTER"] = "1"
    import torch, torch.nn.functional as F
    from helpers import check

    torch.manual_seed(0)
    x, w = torch.randn(40, 72), torch.randn(72, 36)
    image, window, each = torch.randn(2, 8, 14, 14), torch.randn(8, 8, 3, 3), torch.randn(8, 1, 3, 3)
    at = torch.randint(0, 40, (17,))

    def gradients(image, window):
        image, window = image.requires_grad_(), window.requires_grad_()
        return torch.autograd.grad(F.conv2d(image, window, padding=1).square().mean(), (image, window))

    check(lambda x, w: F.softmax(F.gelu(x @ w), -1), x, w)
    check(lambda x, w: x[:3] @ w, x, w)
    check(lambda x, w: w.t() @ x[:1].t(), x, w)
    for half in (torch.float16, torch.bfloat16):
        check(lambda x: (x.sin() * 3 + x).tanh().sum(0), x.to(half))
        check(lambda x: x.float().exp().to(half), x)
        check(lambda x: x.double().to(half), x)
        check(lambda x, w: x[:3] @ w, x.to(half), w.to(half))
        check(lambda x, w: x @ w, x.to(half), w.to(half))
        check(lambda i, w: F.conv2d(i, w, padding=1), image.to(half), window.to(half))
    for function in (torch.exp, torch.erf, torch.erfc, torch.sinh, torch.atan, torch.sin, torch.round, torch.floor):
        check(function, x)
        check(function, x.double())
    check(lambda x: x.abs().pow(0.3), x)
    check(lambda x, at: (x[at], x.index_add(0, at, x[:17]), x.argmax(1), x.cumsum(1), x.sort(1)), x, at)
    check(lambda x: (x * 100).round().int() // 7, x)
    check(lambda x: F.pad(x, (3, 2), mode="reflect")[:, ::2], x)
    check(lambda i, w: F.conv2d(i, w, padding=1), image, window)
    check(lambda i, w: F.conv2d(i, w, padding=1, groups=8), image, each)
    check(lambda i: (F.max_pool2d(i, 2), F.interpolate(i, scale_factor=2.0, mode="bilinear")), image)
    check(gradients, image, window)
    q = torch.randn(2, 2, 48, 32)
    check(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q)

    def drawn():
        torch.manual_seed(5)
        return torch.stack([torch.rand(99, device="tpu"), torch.randn(99, device="tpu")]).cpu()

    one_by_one = drawn()
    torch.tpu.wait_for_compiles()
    assert torch.equal(drawn(), one_by_one)
    metrics = torch.tpu.metrics()
    assert metrics["compiles"] > 0 and metrics["compile_failures"] == 0, metrics
"""


@pytest.mark.parametrize("level", ["x86-64-v4", "x86-64-v3", "x86-64-v2"])
def test_every_level_computes_what_the_cpu_does(level):
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    run_python(KERNELS, {"TORCH_TPU_INSTRUCTIONS": level, "PYTHONPATH": path})


def test_code_is_kept_for_its_instructions(tmp_path):
    program = """
        import torch
        x = torch.arange(40.0).reshape(5, 8).to("tpu")
        print((x.exp() @ x.t()).sum().item())
        torch.tpu.wait_for_compiles()
        print(torch.tpu.metrics()["compiles"])
    """

    def compiles(level):
        environment = {
            "TORCH_TPU_CACHE": str(tmp_path),
            "TORCH_TPU_INSTRUCTIONS": level,
            "TORCH_TPU_COMPILE_AFTER": "1",
        }
        return int(run_python(program, environment).stdout.split()[1])

    for level in ("all", "x86-64-v3", "x86-64-v2"):
        assert compiles(level) > 0 and compiles(level) == 0, level
