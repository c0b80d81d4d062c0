"""python -m torch_tpu.doctor: versions, devices, caches and flags of this installation, and whether it works."""

import importlib.metadata
import os
import platform
import sys
import time


def _line(name, value):
    print(f"  {name:26} {value}")


def main():
    print("torch_tpu doctor")
    _line("python", platform.python_version())
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # loaded below, where a failure can be shown
    try:
        import torch
    except ImportError as error:
        _line("torch", f"missing: {error}")
        return 1
    _line("torch", torch.__version__)
    try:
        _line("torch_tpu", f"{importlib.metadata.version('torch-tpu')} in {os.path.dirname(__file__)}")
    except importlib.metadata.PackageNotFoundError:
        _line("torch_tpu", f"in {os.path.dirname(__file__)}; not installed, so `import torch` alone does not load it")
    try:
        start = time.perf_counter()
        from torch_tpu import _register

        _register.register()
        _line("loaded in", f"{(time.perf_counter() - start) * 1000:.0f} ms")
    except Exception as error:
        _line("loading failed", f"{type(error).__name__}: {error}")
        return 1
    from torch_tpu import _C

    print("devices")
    for index in range(_C.device_count()):
        properties = torch.tpu.get_device_properties(index)
        _line(f"tpu:{index}", properties.name)
        _line("", f"memory {properties.total_memory / 2**30:.1f} GiB, code for {properties.target}")
    print("flags (environment variables)")
    for flag in _C.flags():
        _line(flag["name"], f"{flag['value']!s:16} {flag['meaning']} (default: {flag['default'] or '-'})")
    return _check(torch)


def _check(torch):
    print("check")
    a = torch.arange(12.0).reshape(3, 4)
    found = ((a.to("tpu") + 1) @ a.to("tpu").T).cpu()
    if torch.equal(found, (a + 1) @ a.T):
        _line("a sum and a product", "right")
        return 0
    _line("a sum and a product", "WRONG")
    return 1


if __name__ == "__main__":
    sys.exit(main())
