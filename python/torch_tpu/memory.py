"""torch.tpu: device memory. Reading a figure waits for what was recorded before, so that it means something."""

import collections

from torch_tpu import _C
from torch_tpu.devices import _index


def _stats(device):
    index = _index(device, optional=True)
    return _C.memory_stats(index) if _C.is_initialized() else collections.defaultdict(int)


def memory_allocated(device=None):
    """Bytes held by live values."""
    return _stats(device)["allocated_bytes"]


def max_memory_allocated(device=None):
    return _stats(device)["peak_allocated_bytes"]


def memory_reserved(device=None):
    """Bytes taken from the system: live and cached."""
    return _stats(device)["reserved_bytes"]


def max_memory_reserved(device=None):
    return _stats(device)["peak_reserved_bytes"]


def mem_get_info(device=None):
    """(free, total) bytes of the device."""
    stats = _C.memory_stats(_index(device, optional=True))
    return stats["limit_bytes"] - stats["allocated_bytes"], stats["limit_bytes"]


def memory_stats(device=None):
    """The figures under torch.cuda's names, as far as they mean something here, and the device's own."""
    stats = _stats(device)
    named = collections.OrderedDict()
    for name in ("allocated_bytes", "active_bytes", "requested_bytes"):
        named[f"{name}.all.current"] = stats["allocated_bytes"]
        named[f"{name}.all.peak"] = stats["peak_allocated_bytes"]
    named["reserved_bytes.all.current"] = stats["reserved_bytes"]
    named["reserved_bytes.all.peak"] = stats["peak_reserved_bytes"]
    named["allocation.all.allocated"] = stats["num_allocs"]
    named["num_device_alloc"] = stats["num_system_allocs"]
    named["num_ooms"] = stats["num_ooms"]
    named["limit_bytes"] = stats["limit_bytes"]
    return named


def memory_stats_as_nested_dict(device=None):
    """The same figures, by the parts of their names."""
    nested = {}
    for name, figure in memory_stats(device).items():
        *groups, last = name.split(".")
        inner = nested
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = figure
    return nested


def set_per_process_memory_fraction(fraction, device=None):
    """Of the device's memory, the share that may be allocated; what would pass it is an OutOfMemoryError."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C.allow_memory(_index(device, optional=True), fraction)


def get_per_process_memory_fraction(device=None):
    stats = _C.memory_stats(_index(device, optional=True))
    return stats["allowed_bytes"] / stats["limit_bytes"]


def host_memory_stats():
    """What pinned memory of the host takes, in use (active) and kept, under torch.cuda's names."""
    stats = {}
    for name, figures in host_memory_stats_as_nested_dict().items():
        if isinstance(figures, dict):
            stats |= {f"{name}.{part}": figure for part, figure in figures.items()}
        else:
            stats[name] = figures
    return collections.OrderedDict(sorted(stats.items()))


def host_memory_stats_as_nested_dict():
    return _C.host_memory_stats()


def reset_peak_host_memory_stats():
    _C.reset_peak_host_memory_stats()


def reset_accumulated_host_memory_stats():
    _C.reset_accumulated_host_memory_stats()


def reset_peak_memory_stats(device=None):
    if _C.is_initialized():
        _C.reset_peak_memory_stats(_index(device, optional=True))


def reset_accumulated_memory_stats(device=None):
    if _C.is_initialized():
        _C.reset_accumulated_memory_stats(_index(device, optional=True))


def empty_cache():
    """Gives cached memory back to the system."""
    _C.empty_cache()


def memory_summary(device=None, abbreviated=False):
    index = _index(device, optional=True)
    stats = _stats(index)
    rows = [
        ("allocated", stats["allocated_bytes"], stats["peak_allocated_bytes"]),
        ("reserved", stats["reserved_bytes"], stats["peak_reserved_bytes"]),
    ]
    lines = [f"tpu:{index} memory (MiB)", f"{'':12}{'current':>12}{'peak':>12}"]
    lines += [f"{name:12}{now / 2**20:12.1f}{peak / 2**20:12.1f}" for name, now, peak in rows]
    lines.append(f"{'limit':12}{stats['limit_bytes'] / 2**20:12.1f}")
    if not abbreviated:
        lines.append(
            f"{stats['num_allocs']} allocations, {stats['num_system_allocs']} from the system, "
            f"{stats['num_ooms']} out of memory"
        )
    return "\n".join(lines)
