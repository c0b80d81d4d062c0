"""python -m torch_tpu.doctor: versions, plugins, devices, caches and flags of this installation, and whether it works.

What does not fit together is told with its mend; the exit status is 1 then.
"""

import importlib.metadata
import json
import os
import platform
import subprocess
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
    from torch_tpu import _C, _plugins

    print("PJRT plugins")
    problems = _plugins_section(_C, _plugins)
    print("devices")
    try:
        torch.tpu.init()
    except Exception as error:
        _line("no device", str(error).splitlines()[0])
        _line("mend", "TORCH_TPU_PLUGIN=host uses the embedded device")
        return 1
    for index in range(_C.device_count()):
        properties = torch.tpu.get_device_properties(index)
        _line(f"tpu:{index}", properties.name)
        _line("", f"memory {properties.total_memory / 2**30:.1f} GiB, code for {properties.target}")
    print("program caches")
    directories = _cache_directories(_C)
    if not directories:
        _line("none", "programs are not kept")
    for position, directory in enumerate(directories):
        kind = "written" if position == 0 else "read only"
        there = "there" if os.path.isdir(directory) else "not there yet"
        writable = position > 0 or os.access(_nearest(directory), os.W_OK)
        _line(kind, f"{directory} ({there}{'' if writable else ', NOT WRITABLE: set TORCH_TPU_CACHE'})")
    print("flags (environment variables)")
    for flag in _C.flags():
        _line(flag["name"], f"{flag['value']!s:16} {flag['meaning']} (default: {flag['default'] or '-'})")
    return _check(torch) or int(problems)


# What a plugin says of itself is asked in another process: it may hang or abort.
ASK = "import json, sys; from torch_tpu import _C; print(json.dumps(_C.describe_plugin(sys.argv[1], 60)))"
QUIET = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def _plugins_section(core, plugins):
    """Prints a line for each known plugin and the chosen one; True when one that is wanted can't be used."""
    if not hasattr(core, "describe_plugin"):
        _line("none", "this build has no PJRT devices: xla-cpu-pjrt was not installed when it was built")
        return False
    chosen, problems = plugins.chosen(), False
    found = {name: plugins.find(name) for name in plugins.NAMED}
    if chosen and chosen not in found.values():
        found["TORCH_TPU_PLUGIN"] = chosen
    for name, path in found.items():
        mark = " (in use)" if path and path == chosen else ""
        if path is None:
            _line(name, f"not installed ({plugins.NAMED[name][2]})")
            continue
        described = describe(path)
        if "error" in described:
            problems |= path == chosen
            _line(name + mark, f"CAN'T BE USED: {described['error']}")
            _line("mend", "reinstall or upgrade the plugin's package, or name another by TORCH_TPU_PLUGIN")
            continue
        stablehlo = described.get("stablehlo_current_version", "unknown")
        _line(name + mark, f"PJRT API {described['pjrt_api_version']}, StableHLO {stablehlo} (1.13 is written), {path}")
        if stablehlo != "unknown" and tuple(map(int, stablehlo.split(".")[:2])) < (1, 13):
            problems |= path == chosen
            _line("mend", "the plugin reads an older StableHLO than is written: upgrade its package")
    return problems


def describe(path, timeout=120):
    """What the plugin at `path` says of itself, or {"error": why it can't be used}."""
    command = [sys.executable, "-c", ASK, path]
    try:
        asked = subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"hangs: no answer within {timeout} s"}
    if asked.returncode == 0:
        return json.loads(asked.stdout.splitlines()[-1])
    said = [line for line in asked.stderr.splitlines() if line.strip()]
    return {"error": said[-1] if said else f"ended with status {asked.returncode}"}


def _cache_directories(core):
    asked = next(flag["value"] for flag in core.flags() if flag["name"] == "TORCH_TPU_CACHE")
    return [d for d in asked.split(":") if d]


def _nearest(directory):
    while directory and not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    return directory or "."


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
