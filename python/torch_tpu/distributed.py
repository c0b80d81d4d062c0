"""torch.distributed's backend "tpu": made here, worked in C++ (collectives/). Users call torch.distributed only."""

import functools
import warnings

import torch

from torch_tpu import _C, _dtensor, _dynamo


def register():
    """Makes "tpu" a backend, the one that tensors on `tpu` take by default."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    _C.bind_process_group()
    # The latter is the device's default. By the former Hugging Face's libraries know it, after TorchTPU's.
    for name in ("tpu_dist", "tpu"):
        c10d.Backend.register_backend(name, _make, devices=["tpu"])
    _lead_groups_that_have_it(c10d)
    _dynamo.register_on_import(
        {
            "torch.distributed.fsdp._fully_shard._fsdp_collectives": _gather_without_copy_in,
            "torch.testing._internal.distributed.fake_pg": _serve_fake_groups,
        }
    )
    _dtensor.register()


def _serve_fake_groups(module):
    """Groups of the backend "fake" (what many ranks would do, on one) serve the devices that PyTorch lists."""
    module.dist.Backend.backend_capability[module.dist.Backend.FAKE].append("tpu")


def _make(store, rank, size, timeout):
    from torch.distributed import PrefixStore, ProcessGroupGloo

    store = PrefixStore(_C.meet(store, rank, size, timeout), store)
    gloo = None
    if not _C.on_one_host(store, rank, size, timeout):
        gloo = ProcessGroupGloo(PrefixStore("gloo/", store), rank, size, timeout=timeout)
    return _C.ProcessGroupTpu(store, rank, size, timeout, gloo)


def _lead_groups_that_have_it(c10d):
    """What PyTorch 2.13 asks of a group as a whole (its name, hooks, coalescing) goes to the group's default backend;
    for "cpu:gloo,tpu:tpu", and when nothing is named, it does not choose this one.
    """
    original = c10d._new_process_group_helper

    @functools.wraps(original)
    def _new_process_group_helper(*arguments, **named):
        group, store = original(*arguments, **named)
        if isinstance(group, c10d.ProcessGroup) and any(d.type == "tpu" for d in group._device_types):
            group._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
        return group, store

    c10d._new_process_group_helper = _new_process_group_helper


def _gather_without_copy_in(module):
    """FSDP2 copies a rank's shards into their place in what is gathered, an uninitialised tensor as large as the layer.
    Here results have memory only from when they are made: the shards go to the collective as a tensor of their own.
    """

    def all_gather_copy_in(all_gather_inputs, all_gather_output, inp_split_sizes, all_gather_input_numel, rank):
        return torch.cat([t.reshape(-1) for t in all_gather_inputs]), all_gather_output

    with warnings.catch_warnings():  # that a kernel is registered twice
        warnings.simplefilter("ignore")
        module.lib.impl("all_gather_copy_in", all_gather_copy_in, "PrivateUse1", allow_override=True)
