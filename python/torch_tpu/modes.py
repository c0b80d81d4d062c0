"""torch.tpu: how recorded operations run. All modes give the same values."""

import contextlib

from torch_tpu import _C


def set_eager_mode(mode):
    """'fused' (default): fragments, compiled; 'strict': each operation alone, asynchronous; 'debug': each alone,
    synchronous, so that an error is raised at its line."""
    _C.set_eager_mode(mode)


def get_eager_mode():
    return _C.get_eager_mode()


@contextlib.contextmanager
def eager_mode(mode):
    former = _C.get_eager_mode()
    _C.set_eager_mode(mode)
    try:
        yield
    finally:
        _C.set_eager_mode(former)


_SYNC_DEBUG_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode):
    """What happens where a program waits for a value (`item`, printing, a copy to the CPU, sizes that depend on data):
    "default" (0) nothing, "warn" (1) a UserWarning, "error" (2) a RuntimeError. See torch.cuda.set_sync_debug_mode."""
    modes = {mode: number for number, name in enumerate(_SYNC_DEBUG_MODES) for mode in (number, name)}
    if debug_mode not in modes:
        raise RuntimeError(f"invalid value of debug_mode, expected one of {', '.join(_SYNC_DEBUG_MODES)}, or 0 to 2")
    _C.set_sync_debug_mode(modes[debug_mode])


def get_sync_debug_mode():
    """The number of the mode."""
    return _C.get_sync_debug_mode()
