"""Collectives and distributed training at 2 and 4 ranks, against Gloo on CPU tensors.

Every rank holds both peers and measures them in turn, so what else the machine does falls on both; a rank computes
with its share of the cores. Times are rank 0's: from the call to the end of the collective. Memory is what FSDP2's
parameters, gradients and optimizer state take of the device at most, of a step at 4 ranks over that of one.
"""

import datetime
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

SIZES = [2**10, 2**16, 2**20, 2**24, 2**26, 2**28]  # bytes of the larger side
VERBS = ["all_reduce", "all_gather", "reduce_scatter"]
ROUNDS = 7
BATCH, CONTEXT = 8, 128


def operation(verb, size, world, device):
    import torch
    import torch.distributed as dist

    whole = torch.ones(size // 4, device=device)
    part = torch.ones(size // 4 // world, device=device)
    return {
        "all_reduce": lambda: dist.all_reduce(whole, dist.ReduceOp.MAX),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.MAX),
    }[verb]


def timed(function, count, device):
    import torch

    start = time.perf_counter()
    for _ in range(count):
        function()
        if device == "tpu":
            torch.tpu.synchronize()
    return (time.perf_counter() - start) / count * 1e3


def in_turn(functions, count, rounds=ROUNDS):
    """Median milliseconds of each peer's function."""
    import torch.distributed as dist

    times = {device: [] for device in functions}
    for device, function in functions.items():
        timed(function, 2, device)
    for _ in range(rounds):
        for device, function in functions.items():
            dist.barrier()
            times[device].append(timed(function, count, device))
    return {device: statistics.median(values) for device, values in times.items()}


def verbs(rank, world):
    rows = []
    for verb in VERBS:
        for size in SIZES:
            times = in_turn(
                {device: operation(verb, size, world, device) for device in ("cpu", "tpu")},
                max(2, min(50, 2**23 // size)),
            )
            name = f"{verb} of {size >> 10} KiB, {world} ranks"
            rows.append(harness.Row(name, times["tpu"], "gloo", times["cpu"], 0.5))
    return rows


def gpt_step(how, device, rank, world, batch=BATCH, context=CONTEXT, layers=6):
    sys.path.insert(0, str(harness.HERE.parent / "examples"))
    import char_gpt
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = char_gpt.CharGPT(char_gpt.Config(context=context, layers=layers)).to(device)
    if how == "DDP":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif how == "FSDP2":
        mesh = init_device_mesh(device, (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = char_gpt.make_optimizer(model, 1e-3, 0.1)
    generator = torch.Generator().manual_seed(rank)

    def step():
        tokens = torch.randint(len(char_gpt.VOCABULARY), (batch, context + 1), generator=generator).to(device)
        loss = char_gpt.loss_of(model, tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def training(rank, world):
    import torch

    rows = []
    for how in ("DDP", "FSDP2"):
        steps = {device: gpt_step(how, device, rank, world) for device in ("cpu", "tpu")}
        for _ in range(3):
            for _ in range(3):
                steps["tpu"]()
            torch.tpu.wait_for_compiles()
        times = in_turn(steps, 1, rounds=5)
        name = f"GPT step of {BATCH} x {CONTEXT} a rank, {how}, {world} ranks"
        rows.append(harness.Row(name, times["tpu"], "gloo", times["cpu"], 0.85))
    return rows


def peak_memory(rank, world):
    import torch

    peaks = {}
    for how in ("one rank", "FSDP2"):
        torch.tpu.synchronize()
        torch.tpu.empty_cache()
        # The activations of so few characters are small beside parameters, gradients and optimizer state.
        step = gpt_step(how, "tpu", rank, world, batch=1, context=16, layers=12)
        for _ in range(3):
            step()
        torch.tpu.reset_peak_memory_stats()
        for _ in range(2):
            step()
        peaks[how] = torch.tpu.max_memory_allocated() / 2**20
        del step
    name = f"peak device memory of a GPT step, FSDP2 at {world} ranks"
    return [harness.Row(name, peaks["FSDP2"], "one rank", peaks["one rank"], 0.35, unit="MiB")]


def rank_main(rank, world, port, function, results):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        "cpu:gloo,tpu:tpu", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=300)
    )
    rows = function(rank, world)
    dist.barrier()
    if rank == 0:
        results.put([vars(row) for row in rows])
    dist.destroy_process_group()


def on_ranks(world, function):
    import torch.distributed as dist
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    with harness.scratch_directory() as cache:
        os.environ.update(harness.environment("tpu", cache), OMP_NUM_THREADS="1", TORCH_TPU_THREADS="1")
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        results = context.SimpleQueue()
        ranks = [
            context.Process(target=rank_main, args=(rank, world, store.port, function, results))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise RuntimeError(f"{function.__name__} failed at {world} ranks")
        return [harness.Row(**row) for row in results.get()]


def measure():
    for function in (verbs, training):
        for world in (2, 4):
            yield from on_ranks(world, function)
    yield from on_ranks(4, peak_memory)


if __name__ == "__main__":
    harness.main(measure)
