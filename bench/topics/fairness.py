"""What compiling in the background costs: steps and small reads while the compile pool has work, against the
same with an idle pool, and against CPU eager beside a busy thread at the pool's niceness; exit in the middle of it.

The pool's work is made beforehand, outside what is timed: fragments of elementwise operations in ever other orders,
which are compiled when first launched. The pool has work left at the end of each timing.
"""

import hashlib
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

NICE = 7  # of the threads of the pool: jit/compile_pool.cc
READS = 3000
LEAD = 0.3  # seconds of the loop before it is timed: the pool knows by then that the program runs compiled code
MOMENTS = (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)  # seconds of compiling before an exit


class CompileLoad:
    """Keeps jobs waiting for the pool."""

    def __init__(self):
        import torch

        self.torch = torch
        self.orders = itertools.permutations(("sin", "cos", "tanh", "exp", "sigmoid", "square", "neg"))
        self.x = torch.ones(1000, device="tpu")
        self.asked = 0
        self.begun = torch.tpu.metrics()["compiles"]

    def waiting(self):
        return self.asked - (self.torch.tpu.metrics()["compiles"] - self.begun)

    def begin(self, jobs=60):
        while self.waiting() < jobs:
            for order in itertools.islice(self.orders, 10):
                y = self.x
                for name in order:
                    y = getattr(y, name)()
                y.sum().item()
                self.asked += 1
        self.torch.tpu.synchronize()

    def end(self):
        """Another worker's turn: nothing is left to do."""
        if self.waiting() <= 0:
            raise RuntimeError("the pool ran out of work")
        self.torch.tpu.wait_for_compiles()


class BusyThread:
    """What eager has beside it: a thread that computes all the time, without Python's lock."""

    def __init__(self):
        self.wanted = threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while self.wanted.wait():
            hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 20_000)

    def begin(self):
        self.wanted.set()

    def end(self):
        self.wanted.clear()


class NoLoad:
    def begin(self):
        pass

    def end(self):
        pass


def training(optimizer, loss_of):
    def step():
        loss = loss_of()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def mlp(device, torch):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    x = torch.randn(128, 256).to(device)

    return training(optimizer, lambda: (net(x) - x).square().mean()), 1500


def gpt(device, torch):
    sys.path.insert(0, str(harness.HERE.parent / "examples"))
    import char_gpt

    torch.manual_seed(0)
    config = char_gpt.Config(layers=4, width=192, heads=3, context=128, vocabulary=96)
    model = char_gpt.CharGPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tokens = torch.randint(96, (8, 129)).to(device)

    def loss():
        logits = model(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return training(optimizer, loss), 36


def small_read(device, torch):
    x = torch.ones(4, device=device)
    return lambda: (x + 1).sum().item(), READS


def case(make, busy, statistic):
    """`statistic` of the milliseconds of a number of steps."""

    def build(peer):
        import torch

        step, count = make(harness.device_of(peer), torch)
        for _ in range(4):
            step()
            if peer == "tpu":
                torch.tpu.wait_for_compiles()
        load = NoLoad() if not busy else CompileLoad() if peer == "tpu" else BusyThread()

        def iteration():
            load.begin()
            begun = time.perf_counter()
            while time.perf_counter() - begun < LEAD:
                step()
            times = []
            for _ in range(count):
                start = time.perf_counter()
                step()
                times.append((time.perf_counter() - start) * 1e3)
            load.end()
            return harness.Timed(statistic(times))

        return iteration

    return build


def p99(times):
    return sorted(times)[int(len(times) * 0.99)]


MEASURED = {
    "MLP step": (mlp, statistics.mean),
    "GPT step": (gpt, statistics.mean),
    "small read, p50": (small_read, statistics.median),
    "small read, p99": (small_read, p99),
}
LOADS = ("idle", "busy")
CASES = {
    f"{name}, {load}": case(make, load == "busy", statistic)
    for name, (make, statistic) in MEASURED.items()
    for load in LOADS
}


def interleave(name, rounds):
    """Median milliseconds by (peer, load)."""
    with harness.scratch_directory() as cache:
        keys = [(peer, load) for peer in ("tpu", "eager") for load in LOADS]
        workers = {key: harness.Worker("fairness", f"{name}, {key[1]}", key[0], f"{cache}/{key[1]}") for key in keys}
        try:
            times = {key: [] for key in keys}
            for turn in range(rounds + 1):  # the first is no measurement
                for key, worker in workers.items():
                    took = worker.ask(1)
                    if turn:
                        times[key].append(took)
        finally:
            for worker in workers.values():
                worker.close()
    return {key: statistics.median(values) for key, values in times.items()}


def exit_in_the_middle(seconds):
    """Lets the pool compile for that long and says when it leaves."""
    load = CompileLoad()
    load.begin(jobs=200)
    time.sleep(seconds)
    assert load.waiting() > 0
    print(time.time(), flush=True)


def longest_exit():
    took = []
    for moment in MOMENTS:
        with harness.scratch_directory() as cache:
            command = [sys.executable, __file__, "--exit", str(moment)]
            child = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, env=harness.environment("tpu", cache), check=True
            )
            took.append(time.time() - float(child.stdout.splitlines()[-1]))
    note = " ".join(f"{t:.2f}" for t in took)
    return harness.Row("exit while compiling, the longest", max(took), "promised", 1.0, 1.0, "s", note)


def measure():
    os.environ["TORCH_TPU_COMPILE_AFTER"] = "1"
    for name in MEASURED:
        times = interleave(name, rounds=5)
        theirs = times["eager", "busy"] / times["eager", "idle"]
        note = f"eager beside a busy thread {theirs:.2f}"
        bound = None if "read" in name else 1.03
        yield harness.Row(
            f"{name}, busy pool", times["tpu", "busy"], "idle pool", times["tpu", "idle"], bound, note=note
        )
    yield longest_exit()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--exit"]:
        exit_in_the_middle(float(sys.argv[2]))
    else:
        harness.main(measure)
