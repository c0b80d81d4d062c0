"""scaled_dot_product_attention on DTensors and under context parallelism: on CUDA by the names of its kernels."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard, set_rotate_method
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.nn import functional as F

LENGTH = 32
STEPS = 3
same = functools.partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5, check_stride=False)


def operands(step, groups=4):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(2, heads, LENGTH, 8, generator=generator) for heads in (4, groups, groups)]


def attend(query, key, value, weight, **arguments):
    """The result and the gradients."""
    inputs = [x.detach().clone().requires_grad_() for x in (query, key, value)]
    result = F.scaled_dot_product_attention(*inputs, **arguments)
    (result.square() * weight).sum().backward()
    return [result.detach(), *(x.grad for x in inputs)]


def in_a_ring(rank, world):
    mesh, positions = init_device_mesh("tpu", (world,)), torch.arange(LENGTH).float()[:, None]
    for method in ("allgather", "alltoall"):
        for causal in (True, False):
            set_rotate_method(method)
            _attention._cp_options.enable_load_balance = causal
            for step in range(STEPS):
                expected = attend(*operands(step), positions, is_causal=causal)
                buffers = [x.to("tpu") for x in (*operands(step), positions)]
                with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2, 0]):
                    assert buffers[0].shape[2] == LENGTH // world
                    parts = attend(*buffers, is_causal=causal)
                    found = context_parallel_unshard(mesh, parts, [2] * 4)
                for ours, theirs in zip(found, expected, strict=True):
                    same(ours.cpu(), theirs)
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2, 0]):
        mask = torch.ones(2, 4, LENGTH // world, LENGTH, dtype=torch.bool, device="tpu")
        with pytest.raises(NotImplementedError, match="mask"):
            F.scaled_dot_product_attention(*buffers[:3], attn_mask=mask)


# How queries, keys and values lie; heads of keys; a mask's shape and how it lies; arguments; how the result lies.
R, B, H = Replicate(), Shard(0), Shard(1)
CASES = [
    (R, 4, None, R, {}, R),
    (B, 4, None, R, {"is_causal": True}, B),
    (H, 4, None, R, {"is_causal": True}, H),
    (Shard(2), 4, None, R, {}, R),
    (H, 2, None, R, {"enable_gqa": True}, H),
    (B, 1, None, R, {"enable_gqa": True}, B),
    (H, 4, (LENGTH, LENGTH), R, {}, H),
    (H, 4, (2, 1, LENGTH, LENGTH), R, {}, H),
    (B, 4, (2, 1, LENGTH, LENGTH), R, {}, R),
    (B, 4, (2, 1, LENGTH, LENGTH), B, {}, B),
    (R, 4, (2, 4, LENGTH, LENGTH), H, {}, H),
]


def on_dtensors(rank, world):
    mesh, one = init_device_mesh("tpu", (world,)), torch.ones(())
    for layout, groups, shape, mask_layout, arguments, expected_layout in CASES:
        for step in range(STEPS):
            inputs, mask = operands(step, groups), None if shape is None else torch.randn(shape)
            expected = attend(*inputs, one, attn_mask=mask, **arguments)
            inputs = [distribute_tensor(x.to("tpu"), mesh, [layout]) for x in inputs]
            if mask is not None:
                mask = distribute_tensor(mask.to("tpu"), mesh, [mask_layout])
            found = attend(*inputs, DTensor.from_local(one.to("tpu"), mesh), attn_mask=mask, **arguments)
            assert found[0].placements == (expected_layout,), (layout, shape, found[0].placements)
            for ours, theirs in zip(found, expected, strict=True):
                same(ours.full_tensor().cpu(), theirs)
    mask = distribute_tensor(torch.zeros(LENGTH, LENGTH, device="tpu"), mesh, [Shard(1)])
    with pytest.raises(Exception, match="replicate it"):
        F.scaled_dot_product_attention(*inputs, attn_mask=mask)
    dist.barrier()


@pytest.mark.parametrize("check", [in_a_ring, on_dtensors], ids=lambda f: f.__name__)
def test_attention(ranks, check):
    ranks(2, check)
