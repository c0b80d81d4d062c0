"""What every topic of bench/ shares: workers, interleaved repetitions, rows with a ratio and a bound.

A worker is a child process that holds one peer of one case and runs it when told to, so each peer has its own threads,
malloc settings and caches, and is idle while another is measured. `interleave` asks the workers in turn, round after
round: what else the machine does falls on all of them alike.
"""

import argparse
import dataclasses
import importlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TUNED_MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592"
THREADS = 2
# A peer that takes long (bf16 where the processor has none) is asked for less.
ASK_SECONDS, ROUNDS_SECONDS = 30, 180
# Peers that are this device: the embedded one, the CPU plugin of PJRT, the embedded one that knows a fragment only
# while somebody holds it, and that without tier 2.
OURS = ("tpu", "pjrt", "forgetful", "untuned")


@dataclasses.dataclass
class Row:
    """One comparison: `ours` and the time of `peer`, in `unit`; `bound` is the greatest ratio that was promised."""

    name: str
    ours: float
    peer: str
    theirs: float
    bound: float | None = None
    unit: str = "ms"
    note: str = ""

    @property
    def ratio(self):
        return self.ours / self.theirs

    def __str__(self):
        verdict = "" if self.bound is None else f" (promised {self.bound:g}: {'met' if self.met else 'NOT MET'})"
        line = f"{self.name}: tpu {self.ours:.4g} {self.unit}, {self.peer} {self.theirs:.4g} {self.unit}, "
        return line + f"ratio {self.ratio:.2f}{verdict}" + (f" [{self.note}]" if self.note else "")

    @property
    def met(self):
        return self.bound is None or self.ratio <= self.bound


def environment(peer, cache=None):
    """The environment of a worker of `peer`: threads, malloc, and whether the tpu device is loaded."""
    env = dict(os.environ, OMP_NUM_THREADS=str(THREADS), MKL_NUM_THREADS=str(THREADS))
    if peer in OURS:
        env["TORCH_TPU_THREADS"] = str(THREADS)
        env["TORCH_TPU_PLUGIN"] = "cpu" if peer == "pjrt" else "host"
        if peer == "forgetful":
            env["TORCH_TPU_KNOWN_OPS"] = "1"
        if peer == "untuned":
            env["TORCH_TPU_TUNE_BUDGET"] = "0"
        env["TORCH_TPU_CACHE"] = str(cache or ":")
    else:
        env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if peer == "eager, tuned malloc":
        env["GLIBC_TUNABLES"] = TUNED_MALLOC
    return env


class Timed(float):
    """What an iteration returns that took its own time (in the row's unit), instead of having it taken."""


class Worker:
    """A child that holds `case` of bench/topics/<topic>.py for `peer`; of JAX, bench/peers/jax_<topic>.py."""

    def __init__(self, topic, case, peer, cache=None):
        self.peer = peer
        command = [sys.executable, str(HERE / "harness.py"), topic, case, peer]
        if peer == "jax":
            command = [os.environ["BENCH_JAX_PYTHON"], str(HERE / "peers" / f"jax_{topic}.py"), "--serve"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(peer, cache)
        )

    def ask(self, iterations):
        """Milliseconds (or the case's own unit) that an iteration took, the mean of `iterations`."""
        self.process.stdin.write(f"{iterations}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker of {self.peer} died")
        return float(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def interleave(topic, case, peers, rounds=9, iterations=10, warm_up=10, tuned_after=None):
    """Median milliseconds of an iteration of `case`, by peer. The workers are measured in turn in every round.

    `warm_up`: iterations before that; `tuned_after`: those of ours, where tier 2 takes more. After ROUNDS_SECONDS no
    further round begins, which is said.
    """
    with scratch_directory() as cache:
        workers = [Worker(topic, case, peer, pathlib.Path(cache, peer)) for peer in peers]
        try:
            for worker in workers:  # while one warms up, none of the others is still importing
                worker.ask(1)
            for worker in workers:
                worker.ask(tuned_after if tuned_after and worker.peer in OURS else warm_up)
            times = {peer: [] for peer in peers}
            start = time.monotonic()
            for done in range(rounds):
                if time.monotonic() - start > ROUNDS_SECONDS:
                    print(f"{topic}, {case}: {done} of {rounds} rounds in {ROUNDS_SECONDS} s", file=sys.stderr)
                    break
                for worker in workers:
                    times[worker.peer].append(worker.ask(iterations))
        finally:
            for worker in workers:
                worker.close()
    return {peer: statistics.median(values) for peer, values in times.items()}


def rows_against(name, times, bounds):
    """A row for each peer in `bounds` (peer -> promised ratio or None)."""
    return [Row(name, times["tpu"], peer, times[peer], bound) for peer, bound in bounds.items()]


def best_peer_row(name, times, bound):
    """A row against the fastest of the peers; the others' times in its note."""
    peer = min((p for p in times if p != "tpu"), key=times.get)
    others = ", ".join(f"{p} {t:.3g}" for p, t in times.items() if p not in ("tpu", peer))
    return Row(name, times["tpu"], peer, times[peer], bound, note=others)


class scratch_directory:
    """A temporary directory, gone at the end."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="torch_tpu_bench_")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def device_of(peer):
    return "tpu" if peer in OURS else "cpu"


def finish(peer):
    """Waits until everything that was asked of the device is done."""
    if peer in OURS:
        import torch

        torch.tpu.synchronize()


def compiled(peer, function):
    """`function` as `peer` runs it: through Inductor, or as it is."""
    if peer != "inductor":
        return function
    import torch

    return torch.compile(function)


def main(measure):
    """The command line of a topic: prints each row that `measure()` yields, as text or (--json) a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for row in measure():
        line = json.dumps(dataclasses.asdict(row) | {"ratio": row.ratio, "met": row.met}) if args.json else row
        print(line, flush=True)


def serve(topic, case, peer):
    """The worker's side: reads a number of iterations, runs them, answers the mean time of one.

    A peer that isn't ours begins none after ASK_SECONDS.
    """
    sys.path.insert(0, str(HERE / "topics"))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the case prints is not an answer
    import torch

    torch.set_num_threads(THREADS)
    run = importlib.import_module(topic).CASES[case](peer)
    for line in sys.stdin:
        results = []
        start = time.perf_counter()
        for _ in range(int(line)):
            results.append(run())
            if peer not in OURS and time.perf_counter() - start > ASK_SECONDS:
                break
        finish(peer)  # what is still queued belongs to these iterations, not to the next peer's time
        total = (time.perf_counter() - start) * 1e3
        if isinstance(results[0], Timed):
            total = sum(results)
        print(total / len(results), file=answers, flush=True)


if __name__ == "__main__":
    sys.modules["harness"] = sys.modules["__main__"]
    serve(*sys.argv[1:])
