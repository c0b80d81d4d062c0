"""Where PyTorch 2.13 lists devices by name and ours is not on the list: worked around, one function each."""

import ctypes
import functools
import os
import weakref

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_tpu import _C, _dynamo


def apply():
    _exchange_by_dlpack()
    _print_with_one_read()
    _files_by_way_of_the_cpu()
    _save_the_parts_of_sparse_tensors()
    _processes_by_way_of_the_cpu()
    _copies_between_devices()
    _gradients_as_bf16()
    _captured_steps()
    _traced_strides()
    _dynamo.register_on_import(
        {
            "safetensors.torch": _safetensors_by_way_of_the_cpu,
            "accelerate.state": _accelerate_takes_the_device,
            "transformers.utils.import_utils": _transformers_sees_captures,
        }
    )


def _exchange_by_dlpack():
    """A capsule holds an address, and behind ours is nothing: within PyTorch it leads back to the storage, so that
    memory is shared as on every device. Others can't read kDLExtDev; asked for the CPU (dl_device), they get a copy.
    """
    dlpack = torch.utils.dlpack
    tensor_device, from_capsule = torch.Tensor.__dlpack_device__, torch._C._from_dlpack
    exported = weakref.WeakValueDictionary()  # address -> storage, which a capsule keeps alive

    def ours(tensor):
        return type(tensor) is torch.Tensor and tensor.device.type == "tpu"

    @functools.wraps(tensor_device)
    def __dlpack_device__(self):  # compares with "privateuse1", which the device is not called any more
        return (dlpack.DLDeviceType.kDLExtDev, self.device.index) if ours(self) else tensor_device(self)

    def exporting(to_capsule):
        @functools.wraps(to_capsule)
        def export(tensor, *, dl_device=None, copy=None):
            if not ours(tensor):
                return to_capsule(tensor, dl_device=dl_device, copy=copy)
            if dl_device is not None and dl_device[0] == dlpack.DLDeviceType.kDLCPU:
                if copy is False:
                    raise BufferError("a tpu tensor gets to the CPU only by a copy")
                return to_capsule(tensor.cpu())
            shared = tensor.clone() if copy else tensor
            exported[shared.data_ptr()] = shared.untyped_storage()
            return to_capsule(shared)

        return export

    def _from_dlpack(capsule):
        tensor = from_capsule(capsule)
        if not ours(tensor):
            return tensor
        if tensor.numel() == 0:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        storage = exported.get(tensor.data_ptr())
        if storage is None:
            raise BufferError("the capsule doesn't come from a tpu tensor of this process")
        offset = (tensor.data_ptr() - storage.data_ptr()) // tensor.element_size()
        shared = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return shared.set_(storage, offset, tensor.size(), tensor.stride())

    torch.Tensor.__dlpack_device__ = __dlpack_device__
    torch._C._to_dlpack_versioned = exporting(torch._C._to_dlpack_versioned)
    torch._C._to_dlpack = torch.to_dlpack = dlpack.to_dlpack = exporting(torch._C._to_dlpack)
    torch._C._from_dlpack = _from_dlpack


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


def _save_the_parts_of_sparse_tensors():
    """Of a device that isn't its own PyTorch saves a copy on the CPU: its parts share no storages with what else is
    saved, and the older format copies it back before it reads them."""
    original = torch.Tensor._reduce_ex_internal
    layouts = {
        torch.sparse_coo: ("_indices", "_values", "size", "is_coalesced"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values", "size"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values", "size"),
        torch.sparse_bsr: ("crow_indices", "col_indices", "values", "size"),
        torch.sparse_bsc: ("ccol_indices", "row_indices", "values", "size"),
    }

    @functools.wraps(original)
    def _reduce_ex_internal(self, proto):
        if self.device.type != "tpu" or self.layout not in layouts:
            return original(self, proto)
        parts = tuple(getattr(self, part)() for part in layouts[self.layout])
        return torch._utils._rebuild_sparse_tensor, (self.layout, parts)

    torch.Tensor._reduce_ex_internal = _reduce_ex_internal


def _safetensors_by_way_of_the_cpu(module):
    """The devices that its files are read onto stand in its Rust."""
    original = module.load_file

    @functools.wraps(original)
    def load_file(filename, device="cpu", **options):
        if not str(device).startswith("tpu"):
            return original(filename, device, **options)
        return {name: tensor.to(device) for name, tensor in original(filename, **options).items()}

    module.load_file = load_file


def _accelerate_takes_the_device(module):
    """The devices that it chooses by itself stand in a list, and so do those of which it makes a group: Trainer, which
    knows this one, would get its batches on the CPU, and every rank would train by itself."""
    state = module.PartialState
    listed, original = state.default_device, state._prepare_backend

    @property
    @functools.wraps(listed.fget)
    def default_device(self):
        device = listed.fget(self)
        return torch.device("tpu") if device.type == "cpu" else device

    @functools.wraps(original)
    def _prepare_backend(self, cpu=False, sagemaker_dp=False, backend=None):
        rank = int(os.environ.get("LOCAL_RANK", -1))
        if cpu or rank < 0 or (self.device or self.default_device).type != "tpu":
            return original(self, cpu, sagemaker_dp, backend)
        self.device = torch.device("tpu", rank % torch.tpu.device_count())
        torch.tpu.set_device(self.device)
        return backend or "cpu:gloo,tpu:tpu", module.DistributedType.MULTI_GPU  # of its types the one for any device

    state.default_device, state._prepare_backend = default_device, _prepare_backend


def _transformers_sees_captures(module):
    """While a stream of CUDA or XPU is captured its models leave out what reads values."""
    original = module.is_cuda_stream_capturing

    @functools.wraps(original)
    def is_cuda_stream_capturing():
        return _C.is_capturing() or original()

    module.is_cuda_stream_capturing = is_cuda_stream_capturing


def _processes_by_way_of_the_cpu():
    """torch.multiprocessing shares storages by their memory's name; another process gets a copy of ours."""
    from multiprocessing.context import get_spawning_popen

    from torch.multiprocessing import reductions

    def reduce(storage):
        if storage.device.type != "tpu":
            return reductions.reduce_storage(storage)
        copy = storage.cpu()
        if get_spawning_popen() is None:
            return _arrived, (copy, storage.device)
        # The arguments of a process: shared memory has to live until it starts, which is after the pickling.
        return _arrived_as_bytes, (ctypes.string_at(copy.data_ptr(), copy.nbytes()), storage.device)

    reductions.reduction.register(torch.UntypedStorage, reduce)


def _arrived(storage, device):
    return storage.to(device=device)


def _arrived_as_bytes(contents, device):
    storage = torch.UntypedStorage.from_buffer(contents, dtype=torch.uint8) if contents else torch.UntypedStorage()
    return storage.to(device=device)


def _copies_between_devices():
    """nn.DataParallel's copies, which are part of builds with CUDA alone, though it takes any device."""
    if hasattr(torch._C, "_scatter"):
        return

    def name(index):
        return "cpu" if index < 0 else f"tpu:{index}"

    def _broadcast(tensor, devices):
        return [tensor.to(name(d)) for d in devices]

    def _broadcast_out(tensor, out):
        return [o.copy_(tensor) for o in out]

    def _broadcast_coalesced(tensors, devices, buffer_size):
        return [[t.to(name(d)) for t in tensors] for d in devices]

    def _scatter(tensor, devices, chunk_sizes, dim, streams):
        parts = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(chunk_sizes, dim)
        return [part.to(name(d)) for part, d in zip(parts, devices, strict=False)]

    def _scatter_out(tensor, out, dim, streams):
        parts = tensor.split([o.size(dim) for o in out], dim)
        return [o.copy_(part) for o, part in zip(out, parts, strict=True)]

    def _gather(tensors, dim, destination):
        return torch.cat([t.to(name(destination)) for t in tensors], dim)

    def _gather_out(tensors, out, dim):
        return torch.cat([t.to(out.device) for t in tensors], dim, out=out)

    copies = _broadcast, _broadcast_out, _broadcast_coalesced, _scatter, _scatter_out, _gather, _gather_out
    for copy in copies:
        setattr(torch._C, copy.__name__, copy)


def _gradients_as_bf16():
    """DDP lets the hooks that send bf16 go with CUDA and XPU only; it knows them by their names."""
    ddp = torch.nn.parallel.DistributedDataParallel
    original = ddp._check_comm_hook

    @functools.wraps(original)
    def _check_comm_hook(self, hook):
        sends_bf16 = getattr(hook, "__name__", "") in ("bf16_compress_hook", "bf16_compress_wrapper_hook")
        if self.device_type != "tpu" or not sends_bf16:
            original(self, hook)

    ddp._check_comm_hook = _check_comm_hook


def _captured_steps():
    """Of an optimizer that counts its steps on the CPU each replay of a graph would be the same step: those refuse to
    be captured, on CUDA and XPU."""
    original = torch.optim.Optimizer._accelerator_graph_capture_health_check

    @functools.wraps(original)
    def check(self):
        original(self)
        if torch.compiler.is_compiling() or not _C.is_capturing():
            return
        if not all(group.get("capturable") or group.get("fused") for group in self.param_groups):
            raise RuntimeError(
                f"Attempting TPU graph capture of step() for an instance of {type(self).__name__} but param_groups' "
                "capturable is False."
            )

    torch.optim.Optimizer._accelerator_graph_capture_health_check = check


def _traced_strides():
    """What strides tracing takes results to have depends on the device's library for some operators. Here they are the
    CPU's. (NotImplemented is PyTorch's word for a fake that leaves a call to the operator's Meta kernel.)"""
    fakes = torch._subclasses.fake_impls.op_implementations_dict
    aten = torch.ops.aten
    for op in (aten.convolution, aten._convolution, aten.convolution_backward, aten.pixel_shuffle):
        for overload in (getattr(op, name) for name in op.overloads()):
            fakes[overload] = _traced_on_the_cpu(fakes.get(overload, lambda *_, **__: NotImplemented))


def _traced_on_the_cpu(original):
    def moved(values, device):
        def move(t):
            return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)

        return tree_map_only(torch.Tensor, move, values)

    @functools.wraps(original)
    def fake(mode, op, *arguments, **named):
        tensors = [t for t in tree_leaves((arguments, named)) if isinstance(t, torch.Tensor)]
        devices = {t.device for t in tensors}
        if len(devices) != 1 or tensors[0].device.type != "tpu":
            return original(mode, op, *arguments, **named)
        with mode:
            arguments, named = moved((arguments, named), "cpu")
            return moved(op(*arguments, **named), tensors[0].device)

    return fake
