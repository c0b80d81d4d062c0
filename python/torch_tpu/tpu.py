"""`torch.tpu`: the names of torch.cuda that make sense for this device, and its insight.

Nothing here creates a device at import.
"""

from torch import OutOfMemoryError

from torch_tpu import graphs, memory, random, streams
from torch_tpu.devices import (  # noqa: F401
    _exchange_device,
    _is_in_bad_fork,
    _maybe_exchange_device,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from torch_tpu.graphs import TPUGraph, graph, graph_pool_handle, is_current_stream_capturing, make_graphed_callables
from torch_tpu.insight import explain, metrics, reset_metrics, wait_for_compiles
from torch_tpu.memory import (
    empty_cache,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_tpu.modes import (
    eager_mode,
    get_eager_mode,
    get_sync_debug_mode,
    set_eager_mode,
    set_sync_debug_mode,
)
from torch_tpu.random import (  # noqa: F401
    _get_generator,
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_tpu.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)


def __getattr__(name):
    if name == "_initialized":  # what torch.utils.checkpoint asks to know whether there is random state to keep
        return is_initialized()
    raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")


__all__ = [
    "Event",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "TPUGraph",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "eager_mode",
    "empty_cache",
    "explain",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_eager_mode",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "graphs",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "metrics",
    "random",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_metrics",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "streams",
    "synchronize",
    "wait_for_compiles",
]
