"""What makes the loaded extension PyTorch's device `tpu`."""

import atexit
import os
import sys

import torch

from torch_tpu import _C, _compat, _dynamo, _plugins, distributed, tpu


def register():
    _C.set_library_directories(_directory(torch), os.path.dirname(os.path.abspath(__file__)) + os.sep)
    _C.set_plugin(_plugins.chosen())
    torch.utils.rename_privateuse1_backend("tpu")
    _C.register_graphs()
    torch._register_device_module("tpu", tpu)
    sys.modules["torch.tpu"] = tpu
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _compat.apply()
    _dynamo.register_on_import()
    distributed.register()
    atexit.register(_C.shutdown)  # work and compiles end before the libraries under them do
    atexit.register(_C.leave_process_groups)  # before that: collectives that wait for other ranks end


def _directory(module):
    return os.path.dirname(os.path.abspath(module.__file__)) + os.sep
