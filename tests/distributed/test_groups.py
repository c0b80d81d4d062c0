"""How groups are chosen and made, and what PyTorch builds on them besides training."""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from test_training import net, optimizer_of, same_parameters, sharded, train
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor


def run_script(source, *torchrun, environment=None, prefix=()):
    """A script under torchrun; what it printed."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "script.py"
        path.write_text(textwrap.dedent(source))
        command = [*prefix, sys.executable, "-m", "torch.distributed.run", *torchrun, str(path)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=100, env={**os.environ, **(environment or {})}
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CHOSEN = """
    import os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("tpu", local)
    for arguments in ({}, {"backend": "tpu"}, {"backend": "cpu:gloo,tpu:tpu"}, {"device_id": device}):
        torch.tpu.set_device(local)
        dist.init_process_group(**arguments)
        x = torch.full((3,), float(dist.get_rank()), device="tpu")
        dist.all_reduce(x)
        assert x.tolist() == [1.0] * 3, x
        model = DistributedDataParallel(torch.nn.Linear(3, 3).to("tpu"))
        model(x).sum().backward()
        group = dist.new_group([0, 1])
        dist.all_reduce(x, group=group)
        assert x.tolist() == [2.0] * 3, x
        only_one = dist.new_group([1])
        if "device_id" in arguments:
            halves = dist.split_group(split_ranks=[[0], [1]])
            dist.all_reduce(x, group=halves)
            assert x.tolist() == [2.0] * 3, x
        dist.barrier()
        dist.destroy_process_group()
    print("chosen", torch.tpu.device_count())
"""


def test_backend_is_chosen():
    assert run_script(CHOSEN, "--nproc-per-node", "2").count("chosen 2") == 2


RESTARTED = """
    import os
    import torch
    import torch.distributed as dist

    dist.init_process_group()
    x = torch.ones(3, device="tpu")
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 3
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
        os._exit(3)
    dist.all_reduce(x)
    assert x.tolist() == [4.0] * 3
    print("went on")
    dist.destroy_process_group()
"""


def test_elastic_restart():
    output = run_script(RESTARTED, "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1")
    assert output.count("went on") == 2


def functional(rank, world):
    x = torch.full((4,), float(rank + 1), device="tpu")
    total = float(sum(range(1, world + 1)))
    group = dist.group.WORLD

    def f(x):
        y = funcol.all_reduce(x * 2, "sum", group) + 1
        return funcol.all_gather_tensor(y, 0, group), funcol.reduce_scatter_tensor(y.repeat(world), "sum", 0, group)

    expected = torch.full((4,), 2 * total + 1)
    for function in (f, torch.compile(f, backend="aot_eager", fullgraph=True)):
        gathered, scattered = function(x)
        torch.testing.assert_close(gathered.cpu(), expected.repeat(world))
        torch.testing.assert_close(scattered.cpu(), expected * world)


def pipeline(rank, world):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(world)]
    whole = nn.Sequential(*layers)
    x, y = torch.randn(6, 8), torch.randn(6, 8)
    expected = nn.functional.mse_loss(whole(x), y)
    expected.backward()
    mine = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    mine.load_state_dict(layers[rank].state_dict())
    mine.to("tpu")
    stage = PipelineStage(mine, rank, world, torch.device("tpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=3, loss_fn=nn.functional.mse_loss)
    losses = []
    if rank == 0:
        schedule.step(x.to("tpu"))
    elif rank == world - 1:
        schedule.step(target=y.to("tpu"), losses=losses)
        torch.testing.assert_close(torch.stack(losses).mean().cpu(), expected.detach())
    else:
        schedule.step()
    for a, b in zip(mine.parameters(), layers[rank].parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)


def save(rank, world, path, asynchronous):
    model = sharded(rank, world)
    optimizer = train(model, rank, world)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    if asynchronous:
        dcp.async_save(state, checkpoint_id=path).result()
    else:
        dcp.save(state, checkpoint_id=path)
    whole = net()
    for parameter, sharded_parameter in zip(whole.parameters(), model.parameters(), strict=True):
        parameter.data = sharded_parameter.full_tensor().detach().cpu()
    if rank == 0:
        torch.save(whole.state_dict(), f"{path}.whole")


def load(rank, world, path):
    model = sharded(rank, world)
    optimizer = optimizer_of(model)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    expected = net()
    expected.load_state_dict(torch.load(f"{path}.whole"))
    same_parameters(model, expected)
    for parameter in model.parameters():
        moment = optimizer.state[parameter]["exp_avg"]
        assert isinstance(moment, DTensor) and moment.full_tensor().abs().sum().item() > 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_checkpoint_is_resharded(ranks, tmp_path, asynchronous):
    path = str(tmp_path / "checkpoint")
    ranks(2, save, path, asynchronous)
    ranks(3, load, path)


def meshes(rank, world):
    mesh = init_device_mesh("tpu", (2, world // 2), mesh_dim_names=("replicas", "shards"))
    x = torch.full((2,), float(rank), device="tpu")
    dist.all_reduce(x, group=mesh["shards"].get_group())
    assert x.tolist() == [float(sum(r for r in range(world) if r // (world // 2) == rank // (world // 2)))] * 2
    dist.all_reduce(x, group=mesh["replicas"].get_group())
    assert x.tolist() == [float(sum(range(world)))] * 2


@pytest.mark.parametrize("check", [functional, pipeline], ids=lambda f: f.__name__)
def test_built_on_groups(ranks, check):
    ranks(2, check)


def test_meshes(ranks):
    ranks(4, meshes)
