"""Ranks for tests: processes that are started once and run one function after the other, each in a group of its own."""

import datetime
import os
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

MOST_RANKS = 4
PATIENCE = 240  # seconds for one function on a loaded machine
BACKEND = "cpu:gloo,tpu:tpu"


def _serve(pipe, port):
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    while (job := pipe.recv()) is not None:
        number, function, rank, world, timeout, arguments = job
        try:
            dist.init_process_group(
                BACKEND,
                store=dist.PrefixStore(f"job{number}", store),
                rank=rank,
                world_size=world,
                timeout=datetime.timedelta(seconds=timeout),
            )
            torch.manual_seed(0)
            function(rank, world, *arguments)
            outcome = None
        except BaseException:
            outcome = traceback.format_exc()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        pipe.send(outcome)


class Ranks:
    def __init__(self):
        self._context = mp.get_context("spawn")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._workers = []
        self._jobs = 0

    def __call__(self, world, function, *arguments, timeout=60, dies=()):
        """function(rank, world, *arguments) on `world` ranks; the ranks in `dies` are expected to."""
        while len(self._workers) < world:
            self._start()
        self._jobs += 1
        for rank in range(world):
            self._workers[rank][1].send((self._jobs, function, rank, world, timeout, arguments))
        failures = []
        for rank in range(world):
            pipe = self._workers[rank][1]
            try:
                outcome = pipe.recv() if pipe.poll(PATIENCE) else f"no answer in {PATIENCE} s"
            except EOFError:
                outcome = None if rank in dies else "the process died"
            if outcome is not None:
                failures.append(f"rank {rank} of {world}: {outcome}")
        for rank in dies:
            self._workers[rank][0].join()
        self._workers = [w for w in self._workers if w[0].is_alive()]
        if failures:
            self.stop()  # the others may wait for what will never come
            pytest.fail("\n".join(failures), pytrace=False)

    def _start(self):
        here, there = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(there, self._store.port), daemon=True)
        process.start()
        there.close()
        self._workers.append((process, here))

    def stop(self):
        for process, _ in self._workers:
            process.kill()
            process.join()
        self._workers = []


@pytest.fixture(scope="session")
def ranks():
    # As torchrun does: the ranks share the machine's cores.
    os.environ.update(OMP_NUM_THREADS="1", TORCH_TPU_THREADS="1")
    pool = Ranks()
    yield pool
    pool.stop()
