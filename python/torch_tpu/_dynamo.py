"""Dynamo's view of the device, registered when (and only if) the program imports torch._dynamo.

torch registers an interface of its own for the name "tpu" (no f64, complex, half); ours takes its place. Importing
torch._dynamo takes seconds, so this waits for it with an import hook instead of importing it.
"""

import importlib.abc
import importlib.machinery
import sys

_TARGET = "torch._dynamo.device_interface"


def register_on_import():
    if _TARGET in sys.modules:
        _register(sys.modules[_TARGET])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        _register(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


def _register(module):
    import torch

    from torch_tpu import tpu

    class TpuInterface(module.DeviceInterface):
        device = tpu.device
        Event = torch.Event
        Stream = torch.Stream

        class Worker:
            set_device = staticmethod(tpu.set_device)
            current_device = staticmethod(tpu.current_device)
            get_device_properties = staticmethod(tpu.get_device_properties)

        current_device = staticmethod(tpu.current_device)
        set_device = staticmethod(tpu.set_device)
        device_count = staticmethod(tpu.device_count)
        is_available = staticmethod(tpu.is_available)
        stream = staticmethod(tpu.stream)
        current_stream = staticmethod(tpu.current_stream)
        set_stream = staticmethod(tpu.set_stream)
        synchronize = staticmethod(tpu.synchronize)
        get_device_properties = staticmethod(tpu.get_device_properties)
        memory_allocated = staticmethod(tpu.memory_allocated)
        exchange_device = staticmethod(tpu._exchange_device)
        maybe_exchange_device = staticmethod(tpu._maybe_exchange_device)

        @staticmethod
        def _set_stream_by_id(stream_id, device_index, device_type):
            tpu.set_stream(torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

        @staticmethod
        def get_raw_stream(device_index):
            return tpu.current_stream(device_index).stream_id

        @staticmethod
        def get_compute_capability(device=None):
            return ""

        @staticmethod
        def is_bf16_supported(including_emulation=False):
            return True

        @classmethod
        def is_dtype_supported(cls, dtype, including_emulation=False):
            return True

    module.init_device_reg()  # it would overwrite ours if it came later
    module.register_interface_for_device("tpu", TpuInterface)
    for index in range(tpu.device_count()):
        module.register_interface_for_device(f"tpu:{index}", TpuInterface)
