"""What the tests share: running one function on both devices, and Python programs in processes of their own."""

import contextlib
import os
import pathlib
import subprocess
import sys
import textwrap

import torch
from torch._prims_common import check_significant_strides
from torch_tpu import _plugins

# False where TORCH_TPU_PLUGIN names another device.
EMBEDDED = _plugins.chosen() == ""
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
COUNTS = torch.tensor([[1.0, 2.0, 3.0, 16.0], [0.0, 64.0, 0.0, 8.0]])


def has_panels():
    """Whether the embedded device has products of its own, which need AVX2 (TORCH_TPU_INSTRUCTIONS)."""
    target = torch.tpu.get_device_properties(0).target
    return any(level in target for level in ("avx2", "x86-64-v3", "x86-64-v4"))


def on_both(function, *arguments):
    """The results of function(*arguments) on cpu and on tpu, on copies: the function may write to its arguments."""

    def moved(device):
        return [a.detach().clone().to(device) if isinstance(a, torch.Tensor) else a for a in arguments]

    return function(*moved("cpu")), function(*moved("tpu"))


def compiled(function, **options):
    return torch.compile(function, backend="tpu", **options)


def assert_same(expected, found, **tolerances):
    """Equal structure; tensors close in value and equal in dtype, shape, strides and storage offset.

    Strides as PyTorch compares them between devices: those of dimensions with one element say nothing.
    """
    if isinstance(expected, torch.Tensor):
        assert found.device.type == "tpu", found.device
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        same, _ = check_significant_strides(found, expected, only_cuda=False)
        assert same, (found.stride(), expected.stride())
        assert found.storage_offset() == expected.storage_offset()
        torch.testing.assert_close(found.detach().cpu(), expected.detach(), equal_nan=True, **tolerances)
    elif isinstance(expected, tuple | list):
        assert len(expected) == len(found)
        for one, other in zip(expected, found, strict=True):
            assert_same(one, other, **tolerances)
    else:
        assert expected == found


def check(function, *arguments, **tolerances):
    """The results on tpu are the CPU's: op by op at first, then compiled."""
    assert_same(*on_both(function, *arguments), **tolerances)
    torch.tpu.wait_for_compiles()
    assert_same(*on_both(function, *arguments), **tolerances)


def nobody_waited(milliseconds):
    """For a compile. Devices without ready kernels, unlike the embedded one, compile single operations first."""
    return milliseconds == 0 or not EMBEDDED


def threads_named(name):
    """How many of this process's threads have the name."""
    count = 0
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            count += task.joinpath("comm").read_text().strip() == name
    return count


def run_python(program, environment=None, timeout=240, expect=0):
    """Runs the program (dedented text) in a new Python; returns its output. `expect`: the return code (None: any)."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if expect is not None:
        assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def check_compiled(function, *arguments, **tolerances):
    """check, and nothing runs on the host once it is compiled."""
    check(function, *arguments, **tolerances)
    before = torch.tpu.metrics()["host_kernel_calls"]
    held = on_both(function, *arguments)  # what nobody holds is not computed
    torch.tpu.synchronize()
    assert torch.tpu.metrics()["host_kernel_calls"] == before, torch.tpu.explain().host_kernels
    del held
