"""torch.tpu: which devices there are and which is current."""

import dataclasses

import torch

from torch_tpu import _C


def is_available():
    return _C.device_count() > 0


def is_initialized():
    """True once the devices have been created (at the first tensor, or by init())."""
    return _C.is_initialized() and not _C.in_bad_fork()


def init():
    _C.init()


def _is_in_bad_fork():
    """True in a process forked from one that was using its devices: they can't be used here."""
    return _C.in_bad_fork()


def device_count():
    return _C.device_count()


def current_device():
    return _C.current_device()


def set_device(device):
    """Makes `device` current for this thread; a negative index changes nothing."""
    index = _index(device)
    if index >= 0:
        _C.set_device(index)


def synchronize(device=None):
    """Waits until everything recorded for the device has run."""
    _C.synchronize(_index(device, optional=True))


def get_device_name(device=None):
    return get_device_properties(device).name


def get_device_capability(device=None):
    return torch.accelerator.get_device_capability(device)


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    name: str
    total_memory: int
    target: str  # what code is compiled for
    multi_processor_count: int
    major: int = 0
    minor: int = 0


def get_device_properties(device=None):
    import os

    index = _index(device, optional=True)
    return DeviceProperties(
        name=_C.describe(index),
        total_memory=_C.memory_stats(index)["limit_bytes"],
        target=_C.target(index),
        multi_processor_count=len(os.sched_getaffinity(0)),
    )


def get_amp_supported_dtype():
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported(including_emulation=True):
    return True


class device:
    """Context manager: the current device of the thread. None or a negative index changes nothing."""

    def __init__(self, device):
        self.idx = _index(device, optional=True) if device is not None else -1
        self.prev_idx = -1

    def __enter__(self):
        self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(self, *exception):
        _C.maybe_exchange_device(self.prev_idx)
        return False


class device_of(device):
    """Context manager: the device of a tensor or storage of tpu; of another device's, nothing changes."""

    def __init__(self, obj):
        super().__init__(obj.device if obj.device.type == "tpu" else None)


def _exchange_device(index):
    return _C.exchange_device(index)


def _maybe_exchange_device(index):
    return _C.maybe_exchange_device(index)


def _index(device, optional=False):
    """The index meant by an int, a string, a torch.device or (optional) None."""
    if device is None:
        if optional:
            return _C.current_device()
        raise ValueError("expected a tpu device, got None")
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "tpu":
        raise ValueError(f"expected a tpu device, got {device}")
    return _C.current_device() if device.index is None else device.index
