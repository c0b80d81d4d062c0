"""Random programs against the CPU, with modes, tiers, reads, streams and shapes mixed at random.

python tests/soak.py --seconds 60 [--seed N]

Every program is a dozen random operations on a few tensors, with views, in-place writes, reads in the middle and,
sometimes, a backward pass; it runs on the CPU once and on `tpu` several times, so that it is seen op by op, followed
and compiled. Fails on a value that differs, on memory that grows, and on a program that takes longer than a minute.
Prints a line every ten seconds; the seed in it repeats the run.
"""

import argparse
import ctypes
import faulthandler
import os
import random
import resource
import sys
import time

os.environ.setdefault("TORCH_TPU_COMPILE_AFTER", "2")

import torch

SIZES = (1, 2, 3, 5, 8, 33, 64)
BEYOND_TANH = 1.5  # steps are taken only where values are exact: rounding never decides which way
INTEGERS = torch.int64, torch.int32, torch.uint8
HANG_SECONDS = 60
GROWTH_MIB = 400  # of resident memory, from a fifth of the run to its end


def unary(*names):
    return lambda x, other, number, scalar: getattr(torch, names[number % len(names)])(x)


def binary(*names):
    def operation(x, other, number, scalar):
        return getattr(torch, names[number % len(names)])(
            x, other if other.shape == x.shape else other.sum().to(x.dtype)
        )

    return operation


def reduce(x, other, number, scalar):
    name = ("sum", "mean", "amax", "amin", "logsumexp", "prod")[number % 6]
    dim = -1 - number // 8 % 2
    y = x.var(dim, correction=0, keepdim=True) if number % 7 == 0 else getattr(torch, name)(x, dim=dim, keepdim=True)
    return y + x * 0.5


def convert(x, other, number, scalar):
    other_type = torch.float64 if x.dtype.is_floating_point else INTEGERS[number % len(INTEGERS)]
    return x.to(other_type).mul(2).to(x.dtype)


def view(x, other, number, scalar):
    return (x.t(), x[::2], x.flip(0), x[:, -1:], x.reshape(-1, 1), x[None, ..., 0].t(), x.unfold(0, 1, 1)[..., 0])[
        number % 7
    ]


def write(x, other, number, scalar):
    target = (x, x[0], x[:, :1], x.t(), x[x.shape[0] // 2 :])[number % 5]
    match number // 5 % 4:
        case 0:
            target.mul_(2)
        case 1:
            target.fill_(int(scalar * 4))
        case 2:
            target.copy_(other.sum().to(x.dtype))
        case 3:
            target.add_(target.clone(), alpha=2)
    return x + 0


def indexing(x, other, number, scalar):
    rows = torch.tensor([number % x.shape[0], 0, -1], device=x.device)
    match number // 64 % 5:
        case 0:
            return x[rows]
        case 1:
            return x.index_select(0, rows % x.shape[0])
        case 2:
            return x.index_add(0, rows % x.shape[0], x[rows])
        case 3:
            return x.gather(1, (x > BEYOND_TANH).long() * (x.shape[1] - 1))
        case 4:
            return x.masked_fill(x > BEYOND_TANH, 1)


def normalize(x, other, number, scalar):
    match number % 4:
        case 0:
            return torch.softmax(x, -1)
        case 1:
            return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1.0)
        case 2:
            return x.cumsum(number // 4 % 2)
        case 3:
            return torch.nn.functional.log_softmax(x, 0)


def shape(x, other, number, scalar):
    match number % 4:
        case 0:
            return torch.cat((x, x * 2))[: max(1, x.shape[0])]
        case 1:
            return torch.stack((x, x + 1)).sum(0)
        case 2:
            return torch.nn.functional.pad(x, (1, 0))[:, :-1]
        case 3:
            return x.expand(2, *x.shape)[1].contiguous()


# Name -> weight, function of (x, other, a random integer, a random number), for which elements: f, i or both.
OPERATIONS = {
    "unary": (20, unary("sin", "cos", "tanh", "sigmoid", "exp2", "erf", "rsqrt"), "f"),
    "simple": (10, unary("relu", "abs", "neg", "square"), "fi"),
    "binary": (20, binary("add", "sub", "mul", "maximum", "minimum"), "fi"),
    "comparison": (4, lambda x, other, number, scalar: torch.where(x > 0, x, x * 2), "fi"),
    "number": (10, lambda x, other, number, scalar: x * int(scalar * 3) + number % 3, "fi"),
    "convert": (5, convert, "fi"),
    "reduce": (10, reduce, "f"),
    "view": (15, view, "fi"),
    "write": (12, write, "fi"),
    "matmul": (8, lambda x, other, number, scalar: (x @ x.t()) / x.shape[1], "f"),
    "indexing": (8, indexing, "fi"),
    "normalize": (8, normalize, "f"),
    "shape": (8, shape, "fi"),
}


class Program:
    """Random operations, drawn once; run(device) does the same on any device."""

    def __init__(self, rng):
        self.dtype = rng.choices((torch.float32, torch.float64, torch.bfloat16, torch.int64), (12, 2, 2, 2))[0]
        self.shape = rng.choice(SIZES), rng.choice(SIZES)
        self.seed = rng.randrange(1 << 30)
        self.backward = self.dtype == torch.float32 and rng.random() < 0.3
        kind = "f" if self.dtype.is_floating_point else "i"
        names = [n for n, (_, _, kinds) in OPERATIONS.items() if kind in kinds and not (self.backward and n == "write")]
        weights = [OPERATIONS[n][0] for n in names]
        self.steps = [
            (
                rng.choices(names, weights)[0],
                rng.random(),
                rng.randrange(1 << 20),
                rng.uniform(-2, 2),
                rng.random() < 0.06,
            )
            for _ in range(rng.randrange(3, 14))
        ]

    def __str__(self):
        return f"{self.dtype} {self.shape} seed {self.seed} backward {self.backward} {self.steps}"

    def run(self, device):
        generator = torch.Generator().manual_seed(self.seed)
        values = [(torch.randn(self.shape, generator=generator) * 2).to(self.dtype).to(device) for _ in range(3)]
        leaf = values[0].requires_grad_() if self.backward else None
        seen = []
        for name, fraction, number, scalar, read in self.steps:
            x, other = values[int(fraction * len(values))], values[number % len(values)]
            y = OPERATIONS[name][1](x, other, number, scalar)
            if self.dtype.is_floating_point:  # stays where differences of rounding stay small
                y = torch.tanh(y)
            values.append(y)
            if read:
                seen.append(y.detach().double().sum().item())
        if self.backward:
            sum(v.sum() for v in values if v.requires_grad).backward()
            values.append(leaf.grad)
        return [v.detach().to("cpu", copy=True) for v in values], seen


def compare(program, expected):
    """Raises where a value on tpu is not the CPU's, to some thousand roundings of the type."""
    (tensors, numbers), (found, seen) = expected, program.run("tpu")
    tolerance = {torch.float64: 1e-9, torch.bfloat16: 6e-2}.get(program.dtype, 2e-3)
    for i, (a, b) in enumerate(zip(tensors, found, strict=True)):
        torch.testing.assert_close(
            b, a, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, i=i: f"value {i}: {m}"
        )
    for a, b in zip(numbers, seen, strict=True):
        torch.testing.assert_close(
            torch.tensor(b), torch.tensor(a), rtol=tolerance, atol=1e2 * tolerance, equal_nan=True
        )


def resident_mib():
    """Without what compilers have given back to malloc, which keeps it."""
    ctypes.CDLL(None).malloc_trim(0)
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
                    compare(program, expected)
                except Exception as error:
                    print(f"seed {arguments.seed}, program {programs}, {mode}: {program}\n{error!r}")
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
