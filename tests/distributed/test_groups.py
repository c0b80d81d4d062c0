"""How groups are chosen and made, and what PyTorch builds on them besides training."""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from test_training import STEPS, net, optimizer_of, same_parameters, sharded, train
from test_verbs import overlapping
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


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
    named = [{"backend": name} for name in ("tpu", "tpu_dist", "cpu:gloo,tpu:tpu")]
    for arguments in ({}, *named, {"device_id": device}):
        torch.tpu.set_device(0 if "device_id" in arguments else local)
        dist.init_process_group(**arguments)
        dist.barrier(device_ids=[local])
        x = torch.full((3,), float(dist.get_rank()), device=device)
        dist.all_reduce(x)
        dist.barrier()
        assert x.tolist() == [1.0] * 3, x
        model = DistributedDataParallel(torch.nn.Linear(3, 3).to(device))
        model(x).sum().backward()
        group = dist.new_group([0, 1])
        dist.all_reduce(x, group=group)
        assert x.tolist() == [2.0] * 3, x
        only_one = dist.new_group([1])
        if "device_id" in arguments:
            halves = dist.split_group(split_ranks=[[0], [1]])
            dist.all_reduce(x, group=halves)
            assert x.tolist() == [2.0] * 3, x
            dist.split_group(split_ranks=[[1]])  # torch's names for groups differ from here on
            dist.all_reduce(x, group=dist.split_group(split_ranks=[[0, 1]]))
            assert x.tolist() == [4.0] * 3, x
        dist.barrier()
        dist.destroy_process_group()
    print(f"chosen {torch.tpu.device_count()}")  # one piece: ranks write to one pipe
"""


def test_backend_is_chosen():
    assert run_script(CHOSEN, "--nproc-per-node", "2").count("chosen 2") == 2


def test_a_fake_group_of_many_ranks():
    program = """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=64)
        mesh = init_device_mesh("tpu", (64,))
        x = distribute_tensor(torch.randn(128, 8, device="tpu"), mesh, [Shard(0)])
        assert x.to_local().shape == (2, 8) and x.redistribute(mesh, [Replicate()]).to_local().shape == (128, 8)
        dist.all_reduce(torch.ones(2, device="tpu"))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=100)


# accelerate 1.15's choices of a device and a backend, in its own words but for the devices that are not here.
ACCELERATE = """
    import enum, os
    import torch

    class DistributedType(enum.Enum):
        NO = "NO"
        MULTI_CPU = "MULTI_CPU"
        MULTI_GPU = "MULTI_GPU"

    class PartialState:
        def __init__(self, cpu=False, backend=None):
            env_device = os.environ.get("ACCELERATE_TORCH_DEVICE", None)
            self.device = torch.device(env_device) if env_device is not None else None
            self.backend, self.distributed_type = self._prepare_backend(cpu, None, backend)
            if self.device is None:
                self.device = torch.device("cpu") if cpu else self.default_device

        @property
        def default_device(self):
            return torch.device("cpu")

        def _prepare_backend(self, cpu=False, sagemaker_dp=False, backend=None):
            return ("gloo", DistributedType.MULTI_CPU) if cpu else (backend, DistributedType.NO)
"""

ACCELERATED = """
    import os
    import torch
    import torch.distributed as dist
    from accelerate.state import DistributedType, PartialState

    rank = int(os.environ["LOCAL_RANK"])
    alone = PartialState(cpu=True)
    assert alone.distributed_type == DistributedType.MULTI_CPU and alone.device == torch.device("cpu")
    assert alone.default_device == torch.device("tpu")
    assert PartialState(backend="tpu").backend == "tpu"
    state = PartialState()
    assert state.distributed_type == DistributedType.MULTI_GPU
    assert state.device == torch.device("tpu", rank) and torch.tpu.current_device() == rank
    dist.init_process_group(state.backend)
    for device in ("cpu", state.device):
        x = torch.ones(3, device=device)
        dist.all_reduce(x)
        assert x.tolist() == [2.0] * 3
    dist.destroy_process_group()
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    assert PartialState().distributed_type == DistributedType.NO
    print("accelerated")
"""


def test_ranks_of_accelerate(tmp_path):
    """They are a group, each with its device: accelerate knows neither "tpu" nor a backend for it by itself."""
    package = tmp_path / "accelerate"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "state.py").write_text(textwrap.dedent(ACCELERATE))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    output = run_script(ACCELERATED, "--nproc-per-node", "2", environment={"PYTHONPATH": path})
    assert output.count("accelerated") == 2


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


HOSTS = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("tpu")
    rank, world = dist.get_rank(), dist.get_world_size()
    for op, expected in ((dist.ReduceOp.SUM, 3.0), (dist.ReduceOp.AVG, 1.5), (dist.ReduceOp.MAX, 2.0)):
        x = torch.full((1001,), float(rank + 1), device="tpu", dtype=torch.bfloat16)
        dist.all_reduce(x, op)
        assert x.cpu().eq(expected).all(), x
    x = torch.full((4,), float(rank), device="tpu")
    whole = torch.empty(8, device="tpu")
    dist.all_gather_into_tensor(whole, x)
    assert whole.tolist() == [0.0] * 4 + [1.0] * 4
    dist.reduce_scatter_tensor(x, whole, dist.ReduceOp.SUM)
    assert x.tolist() == [2.0 * rank] * 4
    dist.all_to_all_single(whole, whole.clone())
    assert whole.tolist() == [float(rank)] * 8, whole
    dist.broadcast(x, 1)
    assert x.tolist() == [2.0] * 4
    if rank == 0:
        dist.send(x * 3, 1)
        parts = [torch.empty(4, device="tpu") for _ in range(2)]
        dist.gather(x, parts)
        assert parts[1].tolist() == [6.0] * 4
    else:
        assert dist.recv(x) == 0
        dist.gather(x)
    model = DistributedDataParallel(torch.nn.Linear(4, 4).to("tpu"))
    model(x).sum().backward()
    x = torch.ones(3 + rank, device="tpu")
    try:
        dist.all_reduce(x)
        x.cpu()
    except RuntimeError as error:
        assert "diverge" in str(error) and "rank" in str(error), error
        print("two hosts")
"""


@pytest.fixture
def two_hosts():
    """Two network namespaces with a cable between them."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    names = [f"tpu{os.getpid()}{end}" for end in "ab"]
    setup = [f"ip netns add {n}" for n in names]
    setup.append(f"ip link add {names[0]} netns {names[0]} type veth peer name {names[1]} netns {names[1]}")
    for i, n in enumerate(names, 1):
        setup += [
            f"ip -n {n} addr add 10.77.0.{i}/24 dev {n}",
            f"ip -n {n} link set {n} up",
            f"ip -n {n} link set lo up",
        ]
    try:
        for command in setup:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"network namespaces can't be made here: {done.stderr.strip()}")
        yield names
    finally:
        for n in names:
            subprocess.run(["ip", "netns", "del", n], capture_output=True)


def test_two_hosts(two_hosts):
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "script.py"
        path.write_text(textwrap.dedent(HOSTS))
        processes = []
        for rank, name in enumerate(two_hosts):
            torchrun = f"-m torch.distributed.run --nnodes 2 --nproc-per-node 1 --node-rank {rank} --master-port 29511"
            command = [
                "ip",
                "netns",
                "exec",
                name,
                sys.executable,
                *torchrun.split(),
                "--master-addr",
                "10.77.0.1",
                path,
            ]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": name, "OMP_NUM_THREADS": "1"}
            processes.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
            )
        for process in processes:
            output, _ = process.communicate(timeout=200)
            assert process.returncode == 0 and "two hosts" in output, output


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


def compiled_collectives(rank, world):
    """torch.compile with the backend "tpu": forward and backward through functional collectives."""
    torch.tpu.reset_metrics()
    group = dist.group.WORLD

    def f(x, w):
        gathered = funcol.all_gather_tensor_autograd(torch.tanh(x @ w), 0, group)
        scattered = funcol.reduce_scatter_tensor_autograd(gathered * 2 + 1, "sum", 0, group)
        exchanged = funcol.all_to_all_single_autograd(scattered.sin(), None, None, group)
        return exchanged.square().mean() + funcol.all_reduce(x.detach() * 2, "avg", group).mean()

    results = []
    for device, function in (
        ("cpu", f),
        ("tpu", torch.compile(f, backend="tpu", fullgraph=True)),
        ("tpu", torch.compile(f, backend="tpu", fullgraph=True)),
    ):
        torch.manual_seed(rank)
        x, w = (torch.randn(2 * world, 2 * world).to(device).requires_grad_() for _ in range(2))
        loss = function(x, w)
        loss.backward()
        results.append((loss.detach().cpu(), x.grad.cpu(), w.grad.cpu()))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])
    assert torch.tpu.metrics()["graph_captures"] > 0 and not torch.tpu.explain().uncaptured_graphs


def spans_by_row(path):
    """Of a chrome trace: (begin, end, name) of each row of tpu."""
    rows = {}
    for event in json.loads(pathlib.Path(path).read_text())["traceEvents"]:
        if event.get("cat") == "kernel":
            rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
    return rows


def timeline(rank, world):
    """torch.profiler shows what the streams did: here a fragment while a collective is under way."""
    model = DistributedDataParallel(net().to("tpu"))
    step = functools.partial(train, model, rank, world)
    step()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        overlapping(rank, world)
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "trace.json"
        profile.export_chrome_trace(str(path))
        rows = spans_by_row(path)
        text = path.read_text()
    assert "stream 0: fragments" in text and ": collectives" in text
    fragments = rows.pop(0)
    collectives = [span for spans in rows.values() for span in spans]
    parameters = sum(p.numel() for p in model.parameters())
    assert sum(name == f"all_reduce(sum, f32[{parameters}])" for _, _, name in collectives) == STEPS
    slow = next(span for span in collectives if span[2] == "all_reduce(sum, f32[4])")
    if rank == 0:
        assert any(slow[0] < begin and end < slow[1] for begin, end, _ in fragments)
    averages = {event.key: event for event in profile.key_averages()}
    assert averages[slow[2]].device_time_total > 0


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


@pytest.mark.parametrize("check", [functional, compiled_collectives, timeline, pipeline], ids=lambda f: f.__name__)
def test_built_on_groups(ranks, check):
    ranks(2, check)


def test_meshes(ranks):
    ranks(4, meshes)
