"""Ranks that are threads of one process, with a device of the CPU plugin each: their devices exchange the elements."""

import os
import subprocess
import sys
import textwrap

import pytest
from torch_tpu import _C, _plugins

pytestmark = pytest.mark.skipif(
    not hasattr(_C, "Topology") or _plugins.find("cpu") is None, reason="needs xla-cpu-pjrt and a build with PJRT"
)

# What every script begins with: run(function) calls function(rank, device) as every rank of torch.distributed.
RANKS = """
    import datetime, faulthandler, threading, traceback

    faulthandler.dump_traceback_later(150, exit=True)  # says where it hangs, before its test gives it up
    import torch, torch.distributed as dist
    from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg

    RANKS = 3
    _install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    store, errors = dist.HashStore(), []

    def run(function, timeout=60):
        def rank_main(rank):
            try:
                torch.tpu.set_device(rank)
                seconds = datetime.timedelta(seconds=timeout)
                dist.init_process_group("tpu", store=store, rank=rank, world_size=RANKS, timeout=seconds)
                function(rank, torch.device("tpu", rank))
                dist.destroy_process_group()
            except BaseException:
                errors.append(traceback.format_exc())

        threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors[0]
"""


def run_ranks(body, directory):
    environment = os.environ | {
        "TORCH_TPU_DUMP": str(directory),
        "TORCH_TPU_PLUGIN": "cpu",
        "TORCH_TPU_PLUGIN_OPTIONS": "cpu_device_count=4",
        "TORCH_TPU_DEVICES": "3",
    }
    script = textwrap.dedent(RANKS) + textwrap.dedent(body)
    told = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=200)
    assert told.returncode == 0, told.stdout[-4000:] + told.stderr[-4000:]
    return {path.name for path in directory.iterdir()}  # the programs that were written


def test_every_verb(tmp_path):
    programs = run_ranks(
        """
        def verbs(rank, device):
            ones = torch.ones(2, 3, device=device)
            x = ones * (rank + 1)
            dist.all_reduce(x)
            assert x.tolist() == [[6.0] * 3] * 2
            x = ones.bfloat16() * (rank + 1)
            dist.all_reduce(x, op=dist.ReduceOp.AVG)
            assert x.dtype == torch.bfloat16 and x.tolist() == [[2.0] * 3] * 2
            flags = torch.tensor([rank == 1, False], device=device)
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
            assert flags.tolist() == [True, False]
            gathered = [torch.empty(r + 1, device=device) for r in range(RANKS)]  # of different sizes
            dist.all_gather(gathered, torch.full((rank + 1,), float(rank), device=device))
            assert [g.tolist() for g in gathered] == [[0.0], [1.0] * 2, [2.0] * 3]
            whole = torch.zeros(RANKS * 2, dtype=torch.int64, device=device)
            part = whole[rank * 2 : rank * 2 + 2]  # of what it is gathered to
            part += rank + 1
            dist.all_gather_into_tensor(whole, part)
            assert whole.tolist() == [1, 1, 2, 2, 3, 3]
            out = torch.empty(2, device=device)
            dist.reduce_scatter_tensor(out, torch.arange(6.0, device=device))
            assert out.tolist() == [rank * 6.0, rank * 6.0 + 3]
            bits = torch.full((2,), 1.0, device=device).view(torch.int32)  # floats, read as whole numbers
            dist.broadcast(bits, 1)
            assert bits.view(torch.float32).tolist() == [1.0, 1.0]
            mine = torch.full((4,), rank, device=device)
            dist.broadcast(mine, 2)
            assert mine.tolist() == [2] * 4
            scattered = torch.empty(2, device=device)
            parts = [torch.full((2,), r + 10.0, device=device) for r in range(RANKS)]
            dist.scatter(scattered, parts if rank == 1 else None, src=1)
            assert scattered.tolist() == [rank + 10.0] * 2
            sent = torch.arange(6.0, device=device) + 10 * rank
            received = torch.empty(6, device=device)
            dist.all_to_all_single(received, sent)
            assert received.tolist() == [2.0 * rank + i + 10 * r for r in range(RANKS) for i in range(2)]
            total = torch.full((3,), rank + 1.0, device=device)
            dist.reduce(total, 0)
            assert rank != 0 or total.tolist() == [6.0] * 3
            elements = torch.full((rank + 1,), 1.0, device=device)
            x = torch.sparse_coo_tensor(torch.arange(rank + 1, device=device)[None], elements, (3,))
            dist.all_reduce(x)
            assert x.to_dense().tolist() == [3.0, 2.0, 1.0]
            dist.barrier()
            following, former = (rank + 1) % RANKS, (rank - 1) % RANKS
            theirs = torch.empty(5, device=device)
            sending = dist.isend(torch.full((5,), float(rank), device=device), following)
            dist.recv(theirs, former)
            sending.wait()
            assert theirs.tolist() == [float(former)] * 5

        run(verbs)
    """,
        tmp_path,
    )
    for program in ("all_reduce_sum_f32_6", "all_reduce_avg_bf16_6", "all_gather_f32_move_3", "all_to_all_f32_2"):
        assert any(p.startswith(program) for p in programs), programs
    for verb in ("broadcast", "scatter", "reduce", "send"):
        assert any(p.startswith(verb) and "_move_" in p for p in programs), programs


def test_one_that_does_something_else_is_named_to_all(tmp_path):
    programs = run_ranks(
        """
        heard = {}

        def diverge(rank, device):
            x = torch.ones(4 if rank != 1 else 5, device=device)
            try:
                dist.all_reduce(x)
                x.tolist()
            except RuntimeError as error:
                heard[rank] = str(error)

        run(diverge)
        assert sorted(heard) == [0, 1, 2], heard
        assert all("diverge" in text and "rank 1" in text and "all_reduce(f32[5]" in text for text in heard.values())
    """,
        tmp_path,
    )
    assert not any(p.startswith("all_reduce") for p in programs), programs


def test_data_parallel_training_is_that_of_one_rank(tmp_path):
    programs = run_ranks(
        """
        from torch.nn.parallel import DistributedDataParallel

        inputs = torch.randn(RANKS * 4, 8, generator=torch.Generator().manual_seed(1))
        models = {}
        lock = threading.Lock()

        def net():
            with lock:
                torch.manual_seed(0)
                return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

        def train(model, x):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            return [p.detach().cpu() for p in model.parameters()]

        def data_parallel(rank, device):
            model = DistributedDataParallel(net().to(device))
            models[rank] = train(model, inputs[rank * 4 : rank * 4 + 4].to(device))

        run(data_parallel)
        expected = train(net(), inputs)
        for trained in models.values():
            torch.testing.assert_close(trained, expected)
    """,
        tmp_path,
    )
    assert any(p.startswith("all_reduce_sum_f32") for p in programs), programs
