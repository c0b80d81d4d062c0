"""torch.compile(backend="tpu"): what it made, saved by one process and loaded by another."""

import pickle

import torch
from helpers import compiled, run_python


def test_compiled_modules_are_pickled():
    module, x = compiled(torch.nn.Linear(4, 3).to("tpu")), torch.randn(2, 4, device="tpu")
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(x), module(x))


def test_compiled_functions_are_saved_and_loaded(tmp_path):
    common = """
        import torch
        from torch.nn import functional as F

        def function(x, w):
            q = F.gelu(x @ w)[None, None]
            return F.scaled_dot_product_attention(q, q, q)[0, 0] + x.shape[0] * torch.tensor([0.5], device="tpu")

        def hold_to_function(compiled, rows):
            x, w = torch.randn(rows, 8, device="tpu"), torch.randn(8, 16, device="tpu", requires_grad=True)
            results = []
            for f in (function, compiled):
                y = f(x, w)
                results.append((y, *torch.autograd.grad(y.sin().sum(), w)))
            torch.testing.assert_close(*results)
        """
    saves = """
        inputs = torch.ones(3, 8, device="tpu"), torch.ones(8, 16, device="tpu", requires_grad=True)
        torch._dynamo.mark_dynamic(inputs[0], 0)
        compiled = torch.compile(function, fullgraph=True).aot_compile((inputs, {}))
        hold_to_function(compiled, 3)
        compiled.save_compiled_function("saved")
        """
    loads = """
        with open("saved", "rb") as file:
            loaded = torch.compiler.load_compiled_function(file)
        for rows in (3, 7):
            hold_to_function(loaded, rows)
        """
    saved = repr(str(tmp_path / "saved"))
    for program in (saves, loads):
        run_python(common + program.replace('"saved"', saved))
