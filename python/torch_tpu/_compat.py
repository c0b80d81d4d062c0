"""Where PyTorch 2.13 lists devices by name and ours is not on the list: worked around, one function each."""

import functools

import torch


def apply():
    _fix_dlpack_device()
    _print_with_one_read()
    _files_by_way_of_the_cpu()


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


def _print_with_one_read():
    """Printing slices and reads element by element; for the devices it knows it copies to the CPU first."""
    from torch import _tensor_str

    original = _tensor_str._tensor_str

    @functools.wraps(original)
    def copied_first(self, indent):
        return original(self.cpu() if self.device.type == "tpu" else self, indent)

    _tensor_str._tensor_str = copied_first


def _files_by_way_of_the_cpu():
    """Reading and writing a storage goes through its address, where ours has nothing."""
    original = torch.UntypedStorage._write_file

    @functools.wraps(original)
    def _write_file(self, *arguments):
        return original(self.cpu() if self.device.type == "tpu" else self, *arguments)

    torch.UntypedStorage._write_file = _write_file
    set_from_file = torch.UntypedStorage._set_from_file

    @functools.wraps(set_from_file)
    def _set_from_file(self, *arguments):
        if self.device.type != "tpu":
            return set_from_file(self, *arguments)
        read = torch.UntypedStorage(self.nbytes())
        set_from_file(read, *arguments)
        return self.copy_(read)

    torch.UntypedStorage._set_from_file = _set_from_file
