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
