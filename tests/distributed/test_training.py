"""PyTorch's distributed training, unchanged, on tpu: each against one process that sees the whole batch, on the CPU."""

import copy
import functools
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 3


class Net(nn.Module):
    def __init__(self, unused=False):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)
        if unused:
            self.unused = nn.Linear(3, 3)

    def forward(self, x):
        return self.last(torch.relu(self.second(torch.tanh(self.first(x)))))


def net(**arguments):
    torch.manual_seed(1)
    return Net(**arguments)


def batches(world):
    """Of every step, by rank."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(STEPS, world, 5, 8, generator=generator), torch.randn(STEPS, world, 5, 4, generator=generator)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def reference(world, model=None):
    """One process, the whole batch."""
    model = model or net()
    optimizer = optimizer_of(model)
    for x, y in zip(*batches(world), strict=True):
        step(model, optimizer, x.flatten(0, 1), y.flatten(0, 1))
    return model


def train(model, rank, world, optimizer=None):
    optimizer = optimizer or optimizer_of(model)
    for x, y in zip(*batches(world), strict=True):
        step(model, optimizer, x[rank].to("tpu"), y[rank].to("tpu"))
    return optimizer


def same_parameters(model, expected, **tolerance):
    named = dict(model.named_parameters())
    for name, parameter in expected.named_parameters():
        actual = named[name]
        actual = actual.full_tensor() if isinstance(actual, DTensor) else actual
        torch.testing.assert_close(actual.detach().cpu(), parameter.detach(), rtol=1e-4, atol=1e-5, **tolerance)


def ddp(rank, world, **arguments):
    model = net(unused=arguments.get("find_unused_parameters", False))
    expected = reference(world, copy.deepcopy(model))
    model = DistributedDataParallel(model.to("tpu"), **arguments)
    train(model, rank, world)
    same_parameters(model.module, expected)


DDP_ARGUMENTS = [
    {},
    {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"broadcast_buffers": False, "device_ids": [0]},
]


def ddp_with(rank, world):
    for arguments in DDP_ARGUMENTS:
        ddp(rank, world, **arguments)


def ddp_of_a_sparse_embedding(rank, world):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(11, 4, sparse=True), nn.Linear(4, 2))
    expected = copy.deepcopy(model)
    rows = torch.randint(0, 11, (STEPS, world, 5, 3))

    def optimizers(model):
        return [torch.optim.SparseAdam(model[0].parameters()), torch.optim.SGD(model[1].parameters(), lr=0.1)]

    def one_step(run, model, rows, optimizers):
        model.zero_grad()
        run(rows).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    steps = optimizers(expected)
    for batch in rows:
        one_step(expected, expected, batch.flatten(0, 1), steps)
    wrapped = DistributedDataParallel(model.to("tpu"))
    steps = optimizers(model)
    for batch in rows:
        one_step(wrapped, model, batch[rank].to("tpu"), steps)
    same_parameters(model, expected)


def ddp_no_sync(rank, world):
    model = DistributedDataParallel(net().to("tpu"))
    expected = net()
    x, y = (t[0] for t in batches(world))
    for part in (slice(0, 2), slice(2, 5)):
        nn.functional.mse_loss(expected(x[:, part].flatten(0, 1)), y[:, part].flatten(0, 1)).backward()
    with model.no_sync():
        nn.functional.mse_loss(model(x[rank, :2].to("tpu")), y[rank, :2].to("tpu")).backward()
    nn.functional.mse_loss(model(x[rank, 2:].to("tpu")), y[rank, 2:].to("tpu")).backward()
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)


def ddp_join(rank, world):
    """Ranks with fewer batches than others."""
    model = DistributedDataParallel(net().to("tpu"))
    optimizer = optimizer_of(model)
    x, y = batches(world)
    with Join([model]):
        for i in range(rank + 1):
            step(model, optimizer, x[i, rank].to("tpu"), y[i, rank].to("tpu"))
    gathered = [torch.empty_like(model.module.last.weight) for _ in range(world)]
    dist.all_gather(gathered, model.module.last.weight.detach())
    assert all(torch.isfinite(g).all() for g in gathered)


def ddp_hooks(rank, world):
    expected = reference(world)
    for hook, tolerance in (
        (default_hooks.allreduce_hook, 1e-4),
        (default_hooks.fp16_compress_hook, 1e-2),
        (default_hooks.bf16_compress_hook, 1e-2),
        (default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook), 1e-2),
    ):
        model = DistributedDataParallel(net().to("tpu"))
        model.register_comm_hook(None, hook)
        train(model, rank, world)
        for a, b in zip(model.module.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=tolerance, atol=tolerance)


def synchronized_norms(rank, world):
    """Of parts that differ in size: values, gradients and running statistics are those of the whole batch."""
    sizes = [2 + r for r in range(world)]
    whole, weights = torch.randn(2, sum(sizes), 6, 3, 4).unbind()
    for dtype, tolerances in (
        (torch.float32, {"rtol": 1e-4, "atol": 1e-5}),
        (torch.bfloat16, {"rtol": 0.05, "atol": 0.05}),
    ):
        for arguments in ({}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}):
            expected = nn.BatchNorm2d(6, **arguments)
            for i, parameter in enumerate(expected.parameters()):
                nn.init.uniform_(parameter, i, i + 1)
            norm = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(expected)).to("tpu")
            x = whole.to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
            part = x.detach().split(sizes)[rank].to("tpu").requires_grad_()
            for _ in range(2):
                y = expected(x)
                y.backward(weights.to(dtype))
                found = norm(part)
                found.backward(weights.to(dtype).split(sizes)[rank].to("tpu"))
            same = functools.partial(torch.testing.assert_close, **tolerances)
            same(found.detach().cpu(), y.detach().split(sizes)[rank])
            same(part.grad.cpu(), x.grad.split(sizes)[rank])
            for ours, theirs in zip(norm.parameters(), expected.parameters(), strict=True):
                dist.all_reduce(ours.grad)
                same(ours.grad.cpu(), theirs.grad)
            for name, buffer in expected.named_buffers():
                same(norm.get_buffer(name).cpu(), buffer)


def sharded(rank, world, **arguments):
    model = net().to("tpu")
    for layer in (model.first, model.second, model.last):
        fully_shard(layer, **arguments)
    return fully_shard(model, **arguments)


def fsdp2(rank, world):
    expected = reference(world)
    for reshard in (True, False):
        model = sharded(rank, world, reshard_after_forward=reshard)
        train(model, rank, world)
        same_parameters(model, expected)


def fsdp2_mixed_precision(rank, world):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(rank, world, mp_policy=policy)
    train(model, rank, world)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    for a, b in zip(model.parameters(), reference(world).parameters(), strict=True):
        torch.testing.assert_close(a.full_tensor().detach().cpu(), b.detach(), rtol=5e-2, atol=5e-2)


def fsdp2_cpu_offload(rank, world):
    model = sharded(rank, world, offload_policy=CPUOffloadPolicy(pin_memory=False))
    train(model, rank, world)
    assert all(p.device.type == "cpu" for p in model.parameters())
    expected = reference(world)
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        whole = DTensor.from_local(
            a.to_local().to("tpu"), a.device_mesh, a.placements, shape=a.shape, stride=a.stride()
        )
        torch.testing.assert_close(whole.full_tensor().detach().cpu(), b.detach(), rtol=1e-4, atol=1e-5)


def fsdp1(rank, world):
    model = FullyShardedDataParallel(net().to("tpu"), device_id=torch.device("tpu", 0), use_orig_params=True)
    train(model, rank, world)
    with FullyShardedDataParallel.summon_full_params(model):
        same_parameters(model.module, reference(world))


def tensor_parallel(rank, world, made=lambda model: model):
    mesh = init_device_mesh("tpu", (world,))
    model = net().to("tpu")
    expected = net()
    plan = {
        "first": ColwiseParallel(),
        "second": RowwiseParallel(),
        "last": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    run = made(model)
    optimizer, expected_optimizer = optimizer_of(model), optimizer_of(expected)
    for x, y in zip(*batches(1), strict=True):
        step(run, optimizer, x[0].to("tpu"), y[0].to("tpu"))
        step(expected, expected_optimizer, x[0], y[0])
    same_parameters(model, expected)


def compiled(rank, world):
    """Under torch.compile, with the backend "tpu"."""
    expected = reference(world)
    model = DistributedDataParallel(net().to("tpu"))
    train(torch.compile(model, backend="tpu"), rank, world)
    same_parameters(model.module, expected)
    model = sharded(rank, world)
    train(torch.compile(model, backend="tpu"), rank, world)
    same_parameters(model, expected)
    assert torch.tpu.metrics()["graph_captures"] > 0


def compiled_tensor_parallel(rank, world):
    tensor_parallel(rank, world, functools.partial(torch.compile, backend="tpu"))
    mesh = init_device_mesh("tpu", (world,))
    x = torch.arange(24.0).reshape(6, 4)
    a = distribute_tensor(x.to("tpu"), mesh, [Shard(0)])
    product = torch.compile(lambda a: (a @ a.t()).redistribute(mesh, [Replicate()]) + 1, backend="tpu")
    torch.testing.assert_close(product(a).full_tensor().cpu(), x @ x.t() + 1)


def dtensors(rank, world):
    mesh = init_device_mesh("tpu", (world,))
    x = torch.arange(24.0).reshape(6, 4)
    whole = x.to("tpu")
    a = distribute_tensor(whole, mesh, [Shard(0)])
    b = distribute_tensor(whole.t(), mesh, [Replicate()])
    torch.testing.assert_close((a @ b).full_tensor().cpu(), x @ x.t())
    torch.testing.assert_close(a.redistribute(mesh, [Shard(1)]).full_tensor().cpu(), x)
    torch.testing.assert_close(a.sum().full_tensor().cpu(), x.sum())
    grid = init_device_mesh("tpu", (2, world // 2), mesh_dim_names=("rows", "columns"))
    c = distribute_tensor(whole, grid, [Shard(0), Shard(1)])
    torch.testing.assert_close((c * 2).full_tensor().cpu(), x * 2)


def zero(rank, world):
    model = DistributedDataParallel(net().to("tpu"))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    train(model, rank, world, optimizer)
    same_parameters(model.module, reference(world))


CHECKS = [
    ddp_with,
    ddp_of_a_sparse_embedding,
    ddp_no_sync,
    ddp_join,
    ddp_hooks,
    synchronized_norms,
    fsdp2,
    fsdp2_mixed_precision,
    fsdp2_cpu_offload,
    fsdp1,
    tensor_parallel,
    compiled,
    compiled_tensor_parallel,
    zero,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
def test_training(ranks, check):
    ranks(2, check)


def test_dtensors(ranks):
    ranks(4, dtensors)


def test_ddp_says_nothing(tmp_path):
    """On the standard error: where a device has no timer it warns of that, in C++ and not as Python does."""
    program = f"""
import torch, torch.distributed as dist
dist.init_process_group("tpu", rank=0, world_size=1, init_method="file://{tmp_path}/store")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to("tpu"))
for _ in range(3):
    model(torch.ones(2, 4, device="tpu")).sum().backward()
dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == done.stderr == ""
