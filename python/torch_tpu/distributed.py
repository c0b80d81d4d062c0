"""torch.distributed's backend "tpu": made here, worked in C++ (collectives/). Users call torch.distributed only."""

import functools

import torch

from torch_tpu import _C


def register():
    """Makes "tpu" a backend, the one that tensors on `tpu` take by default."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    _C.bind_process_group()
    c10d.Backend.register_backend("tpu", _make, devices=["tpu"])
    _lead_groups_that_have_it(c10d)


def _make(store, rank, size, timeout):
    from torch.distributed import PrefixStore, ProcessGroupGloo

    store = PrefixStore(_C.meet(store, rank, size, timeout), store)
    gloo = None
    if not _C.on_one_host(store, rank, size):
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
