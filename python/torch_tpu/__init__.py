"""torch_tpu: the `tpu` device of PyTorch. `import torch` loads it (entry point `torch.backends`); no import is needed.

Loading registers the device and creates nothing: devices come with the first tensor. A broken installation warns and
leaves torch without `tpu`, never without torch.
"""

import warnings

__version__ = "0.1.0"

_loaded = False


def _autoload():
    """Called by torch at the end of `import torch`."""
    global _loaded
    if _loaded:
        return
    try:
        from torch_tpu import _register
    except Exception as error:
        warnings.warn(
            f"torch_tpu is installed but could not be loaded; there is no 'tpu' device in this process. "
            f"{type(error).__name__}: {error}. Run `python -m torch_tpu.doctor`.",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    _register.register()
    _loaded = True
