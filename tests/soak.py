"""Random programs against the CPU, with modes, tiers, reads, streams and shapes mixed at random.

python tests/soak.py --seconds 60 [--seed N]

Every program is a dozen random operations on a few tensors, with views, in-place writes, reads in the middle and,
sometimes, a backward pass; it runs on the CPU once and on `tpu` several times, so that it is seen op by op, followed
and compiled. Fails on a value that differs, on memory that grows, and on a program that takes longer than a minute.
Prints a line every ten seconds; the seed in it repeats the run.
"""

import argparse
import faulthandler
import os
import random
import resource
import sys
import time

os.environ.setdefault("TORCH_TPU_COMPILE_AFTER", "2")

import torch

UNARY = "sin cos tanh sigmoid relu abs neg exp2 square floor".split()
BINARY = "add sub mul maximum minimum atan2".split()
REDUCTIONS = "sum mean amax amin logsumexp".split()
SIZES = (1, 2, 3, 5, 8, 33, 64)
HANG_SECONDS = 60
GROWTH_MIB = 400  # of resident memory, from a fifth of the run to its end


class Program:
    """Random operations, drawn once; run(device) does the same on any device."""

    def __init__(self, rng):
        rows, columns = rng.choice(SIZES), rng.choice(SIZES)
        self.shape = rows, columns
        self.seed = rng.randrange(1 << 30)
        self.backward = rng.random() < 0.3
        self.steps = [self.draw(rng) for _ in range(rng.randrange(3, 14))]

    def draw(self, rng):
        kind = rng.choices(
            ("unary", "binary", "scalar", "reduce", "view", "write", "matmul", "read", "where", "cat"),
            (20, 20, 10, 10, 15, 0 if self.backward else 12, 8, 6, 5, 4),
        )[0]
        return kind, rng.random(), rng.randrange(1 << 20), rng.uniform(-2, 2)

    def run(self, device):
        generator = torch.Generator().manual_seed(self.seed)
        inputs = [torch.randn(self.shape, generator=generator).to(device) for _ in range(3)]
        leaf = inputs[0].requires_grad_() if self.backward else None
        values, seen = list(inputs), []
        for kind, fraction, number, scalar in self.steps:
            x = values[int(fraction * len(values))]
            other = values[number % len(values)]
            match kind:
                case "unary":
                    y = getattr(torch, UNARY[number % len(UNARY)])(x)
                case "binary":
                    if other.shape != x.shape:
                        other = other.sum()
                    y = getattr(torch, BINARY[number % len(BINARY)])(x, other)
                case "scalar":
                    y = x * scalar + number % 3
                case "reduce":
                    y = getattr(torch, REDUCTIONS[number % len(REDUCTIONS)])(x, dim=-1 - number % 2, keepdim=True)
                    y = y + x * 0.5
                case "view":
                    y = (x.t(), x[::2], x.flip(0), x[:, -1:], x.reshape(-1, 1))[number % 5]
                case "write":
                    view = (x, x[0], x[:, :1], x.t())[number % 4]
                    view.mul_(scalar) if number % 8 < 4 else view.fill_(scalar)
                    y = x + 0
                case "matmul":
                    y = (x @ x.t()) / x.shape[1]
                case "read":
                    seen.append(x.detach().sum().item())
                    y = x.abs() + 0.5
                case "where":
                    y = torch.where(x > scalar, x, -x)
                case "cat":
                    y = torch.cat((x, x * scalar))[: max(1, x.shape[0])]
            values.append(torch.tanh(y) if number % 5 == 0 else y)
        result = [v.detach().to("cpu", copy=True) for v in values[3:]]
        if self.backward:
            sum(v.sum() for v in values if v.requires_grad).backward()
            result.append(torch.zeros(()) if leaf.grad is None else leaf.grad.cpu())
        return result, seen


def compare(program, expected, mode):
    (tensors, numbers), (found, seen) = expected, program.run("tpu")
    for i, (a, b) in enumerate(zip(tensors, found, strict=True)):
        # Long chains of sums and exponentials amplify the order in which a sum is taken.
        scale = a.abs().max().item() if a.numel() and a.isfinite().all() else 1.0
        torch.testing.assert_close(
            b, a, rtol=1e-3, atol=1e-4 * max(1.0, scale), equal_nan=True, msg=lambda m, i=i: f"{mode}, value {i}: {m}"
        )
    for a, b in zip(numbers, seen, strict=True):
        torch.testing.assert_close(torch.tensor(b), torch.tensor(a), rtol=1e-3, atol=1e-2, equal_nan=True)


def resident_mib():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    start = told = time.monotonic()
    programs, base = 0, None
    pool = []
    while (elapsed := time.monotonic() - start) < arguments.seconds:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        # New programs among old ones: fragments are met again at a higher tier.
        if not pool or rng.random() < 0.4:
            program = Program(rng)
            pool = pool[-200:] + [(program, program.run("cpu"))]
        program, expected = rng.choice(pool)
        mode = rng.choices(("fused", "strict", "debug"), (8, 1, 1))[0]
        torch.tpu.set_eager_mode(mode)
        stream = torch.tpu.Stream() if rng.random() < 0.1 else torch.tpu.default_stream()
        for _ in range(rng.choice((1, 3))):
            with torch.tpu.stream(stream):
                try:
                    compare(program, expected, mode)
                except Exception as error:
                    print(f"seed {arguments.seed}, program {programs}: {program.shape} {program.steps}: {error}")
                    sys.exit(1)
        programs += 1
        if base is None and elapsed > arguments.seconds / 5:
            base = resident_mib()
        if time.monotonic() - told > 10:
            told = time.monotonic()
            c = torch.tpu.metrics()
            print(
                f"seed {arguments.seed}: {elapsed:.0f} s, {programs} programs; {resident_mib():.0f} MiB; "
                f"launches: {c['launches_tier0']} op by op, {c['launches_tier1']} compiled",
                flush=True,
            )
    faulthandler.cancel_dump_traceback_later()
    if base is not None and resident_mib() - base > GROWTH_MIB * max(1.0, arguments.seconds / 600):
        sys.exit(f"resident memory grew from {base:.0f} to {resident_mib():.0f} MiB")
    if torch.tpu.metrics()["compile_failures"]:
        sys.exit(f"fragments that do not compile: {torch.tpu.explain()}")
    print(f"{programs} programs, none wrong")


if __name__ == "__main__":
    main()
