"""Defects of PyTorch 2.13 that stand in the way of a renamed PrivateUse1 device, worked around one function each."""

import functools

import torch


def apply():
    _fix_dlpack_device()


def _fix_dlpack_device():
    """Tensor.__dlpack_device__ compares with "privateuse1", which the device is not called any more."""
    original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def __dlpack_device__(self):
        if type(self) is torch.Tensor and self.device.type == "tpu":
            from torch.utils.dlpack import DLDeviceType

            return (DLDeviceType.kDLExtDev, self.device.index)
        return original(self)

    torch.Tensor.__dlpack_device__ = __dlpack_device__
