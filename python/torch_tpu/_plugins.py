"""Which PJRT plugin the process uses, and where the plugins that have names lie."""

import glob
import importlib.util
import os

from torch_tpu import _C

# Name -> packages of which the first that is installed is taken, file in it, and how to get it.
NAMED = {
    "libtpu": (["libtpu"], "libtpu.so", "pip install libtpu"),
    "cpu": (["xla_plugins.xla_cpu_pjrt"], "xla_cpu_pjrt.so", "pip install xla-cpu-pjrt"),
    "cuda": (["jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"], "xla_cuda_plugin.so", "pip install jax-cuda13-pjrt"),
}


def find(name):
    """Path of the plugin `name`; None when its package is not installed. Loads nothing."""
    packages, file, _ = NAMED[name]
    for package in packages:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for directory in spec.submodule_search_locations if spec else ():
            path = os.path.join(directory, file)
            if os.path.exists(path):
                return path
    return None


def has_tpu_chips():
    return bool(glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"))


def chosen():
    """Path of the plugin that TORCH_TPU_PLUGIN or this machine's chips ask for; "" for the embedded device."""
    asked = next(flag["value"] for flag in _C.flags() if flag["name"] == "TORCH_TPU_PLUGIN")
    if asked in ("", "host"):
        return (find("libtpu") or "") if asked == "" and has_tpu_chips() else ""
    if asked not in NAMED:
        return asked
    path = find(asked)
    if path is None:
        raise ImportError(f"TORCH_TPU_PLUGIN={asked}: its package is not installed ({NAMED[asked][2]})")
    return path
