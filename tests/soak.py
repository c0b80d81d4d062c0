"""Random programs against the CPU, with modes, tiers, reads, streams and shapes mixed at random.

python tests/soak.py --seconds 60 [--seed N]

Every program is a dozen random operations on a few tensors, with views, in-place writes, reads in the middle and,
sometimes, a backward pass; it runs on the CPU once and on `tpu` several times, so that it is seen op by op, followed,
compiled and, where nothing of it waits for a value, as a graph that is captured and replayed. Some run at many
lengths, or with windows at many places, new ones each time, with others in between, so that one program is made for all
of them. Fails on a value
that differs, on memory that grows, on a program that takes longer than a minute, and when programs for many sizes
served hardly any length. Prints a line every ten seconds; the seed in it repeats the run.

What is right is told by the CPU, and how near to it a value must be by the CPU in float64: some thousand roundings, and
thirty times as far as the CPU's own value is off (of bfloat16, where that may be much, twice: ours may be off by as
much the other way). Where rounding decides (which side of a kink, a gradient; of a
threshold, a value), there is nothing to compare: such runs are counted.
"""

import argparse
import copy
import ctypes
import faulthandler
import os
import random
import resource
import sys
import time

os.environ.setdefault("TORCH_TPU_COMPILE_AFTER", "2")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SIZES = (1, 2, 3, 5, 8, 33, 64)
MANY_ROWS = 256  # beyond, no square of the length
BEYOND_TANH = 1.5  # where a choice is made that a value shows: most values are within tanh's range
INTEGERS = torch.int64, torch.int32, torch.uint8
# By type of the elements: how far a value may be off, how many times the CPU's own error besides, and how near to a
# choice rounding decides it.
TOLERANCE = {torch.float32: 2e-3, torch.float64: 1e-9, torch.bfloat16: 6e-2}
ERRORS = {torch.float32: 30, torch.bfloat16: 2}
NEAR = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}
PLACE = 64  # from one place of a window to the next, in the number that is drawn for it
CHANGING_SHARE = 0.2  # of the runs
GRAPH_SHARE = 0.3  # of those that may be captured
CHANGING_AT_ONCE = 8  # programs
LENGTHS = 12  # of each
SERVED_SHARE = 0.2  # at least so many fragments by programs for many sizes, for each run at another length
HANG_SECONDS = 60
GROWTH_MIB = 400  # of resident memory, from a fifth of the run to its end
SIGNATURE_KIB = 6  # that each operator on new shapes may keep for good


def unary(*names):
    return lambda x, other, number, scalar: getattr(torch, names[number % len(names)])(x)


def positive(*names):
    """Of numbers away from zero: of sums that cancel, rounding would decide the sign."""
    return lambda x, other, number, scalar: getattr(torch, names[number % len(names)])(x.square() + 0.5)


def one_number(x):
    return x.mean() if x.dtype.is_floating_point else x.sum()


def binary(*names):
    def operation(x, other, number, scalar):
        return getattr(torch, names[number % len(names)])(x, other if other.shape == x.shape else one_number(other))

    return operation


def product(x, dim, keepdim):
    """Of factors near one: whether many others overflow depends on the order in which they are multiplied."""
    return (x * 0.1 + 1).prod(dim, keepdim)


def reduce(x, other, number, scalar):
    reduction = (torch.sum, torch.mean, torch.amax, torch.amin, torch.logsumexp, product)[number % 6]
    dim = -1 - number // 8 % 2
    y = x.var(dim, correction=0, keepdim=True) if number % 7 == 0 else reduction(x, dim=dim, keepdim=True)
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
            target.copy_(one_number(other))
        case 3:
            target.add_(target.clone(), alpha=2)
    return x + 0


def places(x, number):
    """Where two windows of some rows begin, and how many rows: the number decides, and Program.moved changes it."""
    rows = min(x.shape[0], 1 + number % 3)
    begins = x.shape[0] - rows + 1
    return number // PLACE % begins, number // (7 * PLACE) % begins, rows


def window(x, other, number, scalar):
    first, second, rows = places(x, number)
    a, b = x[first : first + rows], x[second : second + rows]
    return (a + b, torch.cat((b, a)), a * 2, torch.cat((a, a[:, :1].expand_as(b) - b)))[number // 3 % 4]


def rewrite(x, other, number, scalar):
    first, second, rows = places(x, number)
    target, source = x[first : first + rows], x[second : second + rows]
    match number // 3 % 4:
        case 0:
            target.copy_(source.clone())
        case 1:
            target.fill_(int(scalar * 4))
            return source + 0
        case 2:
            target.add_(source.clone())
            source.mul_(2)
        case 3:
            target.t()[:1] = one_number(other)
    return x + 0


def matmul(x, other, number, scalar):
    return (x @ x[: MANY_ROWS if x.shape[0] <= 16 * MANY_ROWS else 1].t()) / x.shape[1]


def indexing(x, other, number, scalar):
    rows = torch.tensor([number % x.shape[0], 0, -1], device=x.device)
    all_rows = torch.arange(x.shape[0], device=x.device) * 5
    match number // 64 % 7:
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
        case 5:
            return x[all_rows % x.shape[0]]
        case 6:
            return torch.zeros_like(x[:1]).repeat(7, 1).index_add(0, all_rows % 7, x)


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


def sequence(x, other, number, scalar):
    """Of rows as positions of a sequence."""
    length, some = x.shape[0], number // 8 % 3 + 1
    match number % 6:
        case 0:
            return torch.cat((x, x[:some] * 2))
        case 1:
            return torch.nn.functional.pad(x, (0, 0, some, number // 64 % 3))
        case 2:
            return torch.roll(x, some - 2, 0)
        case 3:
            return x + (torch.arange(length, device=x.device) % 5)[:, None].to(x.dtype)
        case 4:
            return x[: length // 2 * 2].reshape(length // 2, 2, -1).sum(1) if length > 1 else x
        case 5:
            return (x[some:], x[:-some])[number // 64 % 2] if length > 8 else x


def attention(x, other, number, scalar):
    x = x[:MANY_ROWS]
    if number % 3 == 0:
        return torch.ones(len(x), len(x), device=x.device, dtype=x.dtype).tril() @ x / len(x)
    q = x[None, None]
    return torch.nn.functional.scaled_dot_product_attention(q, q * scalar, q + 1, is_causal=number % 3 == 1)[0, 0]


# Name -> weight, function of (x, other, a random integer, a random number), for which elements: f, i or both.
OPERATIONS = {
    "unary": (20, unary("sin", "cos", "tanh", "sigmoid", "exp2", "erf"), "f"),
    "positive": (6, positive("rsqrt", "sqrt", "log", "reciprocal"), "f"),
    "simple": (10, unary("relu", "abs", "neg", "square"), "fi"),
    "binary": (20, binary("add", "sub", "mul", "maximum", "minimum"), "fi"),
    "comparison": (4, lambda x, other, number, scalar: torch.where(x > 0, x, x * 2), "fi"),
    "number": (10, lambda x, other, number, scalar: x * int(scalar * 3) + number % 3, "fi"),
    "convert": (5, convert, "fi"),
    "reduce": (10, reduce, "f"),
    "view": (15, view, "fi"),
    "write": (12, write, "fi"),
    "window": (10, window, "fi"),
    "rewrite": (8, rewrite, "fi"),
    "matmul": (8, matmul, "f"),
    "indexing": (8, indexing, "fi"),
    "normalize": (8, normalize, "f"),
    "shape": (8, shape, "fi"),
    "sequence": (8, sequence, "fi"),
    "attention": (4, attention, "f"),
}


class Program:
    """Random operations, drawn once; run(device) does the same on any device."""

    def __init__(self, rng):
        self.dtype = rng.choices((torch.float32, torch.float64, torch.bfloat16, torch.int64), (12, 2, 2, 2))[0]
        self.shape = rng.choice(SIZES), rng.choice(SIZES)
        self.seed = rng.randrange(1 << 30)
        self.backward = self.dtype == torch.float32 and rng.random() < 0.3
        self.has_nan = self.dtype.is_floating_point and not self.backward and rng.random() < 0.1
        kind = "f" if self.dtype.is_floating_point else "i"
        # The CPU's attention loses some NaN, and what is written over has no gradient.
        left_out = ("attention",) if self.has_nan else ("write", "rewrite") if self.backward else ()
        names = [n for n, (_, _, kinds) in OPERATIONS.items() if kind in kinds and n not in left_out]
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

    def at(self, length):
        """The same operations on longer or shorter tensors."""
        other = copy.copy(self)
        other.shape = length, self.shape[1]
        return other

    def moved(self, to):
        """The same operations on windows elsewhere."""
        other = copy.copy(self)
        other.shape = 61, self.shape[1]
        other.steps = [
            (n, f, number + (n in ("window", "rewrite")) * to * PLACE, *rest) for n, f, number, *rest in self.steps
        ]
        return other

    def __str__(self):
        return f"{self.dtype} {self.shape} seed {self.seed} backward {self.backward} NaN {self.has_nan} {self.steps}"

    def given(self):
        generator = torch.Generator().manual_seed(self.seed)
        values = [(torch.randn(self.shape, generator=generator) * 2).to(self.dtype) for _ in range(3)]
        if self.has_nan:
            values[0][0, 0] = torch.nan
        return values

    def run(self, device, dtype=None):
        """All values and, last, the sums that were read on the way."""
        values, sums = self.record([v.to(device, dtype) for v in self.given()])
        return [*(v.detach().to("cpu", copy=True) for v in values), torch.tensor(sums, dtype=torch.float64)]

    def may_be_captured(self):
        """Whether nothing is copied from the CPU (indices) or asked of it (zeros, by a product's gradient)."""
        waits = ("indexing", "reduce") if self.backward else ("indexing",)
        return not any(read or name in waits for name, *_, read in self.steps)

    def replay(self, device):
        """The same by the second replay of a graph."""
        given = self.given()
        inputs = [torch.empty_like(v, device=device) for v in given]
        graph = torch.accelerator.Graph()
        with graph:
            values, sums = self.record([v.detach() for v in inputs])
        for _ in range(2):
            for mine, v in zip(inputs, given, strict=True):
                mine.copy_(v)
            graph.replay()
        return [*(v.detach().to("cpu", copy=True) for v in values), torch.tensor(sums, dtype=torch.float64)]

    def record(self, values):
        leaf = values[0].requires_grad_() if self.backward else None
        read_sums = []
        for name, fraction, number, scalar, read in self.steps:
            x, other = values[int(fraction * len(values))], values[number % len(values)]
            y = OPERATIONS[name][1](x, other, number, scalar)
            if self.dtype.is_floating_point:  # stays where differences of rounding stay small
                y = torch.tanh(y)
            values.append(y)
            if read:
                read_sums.append(y.detach().double().sum().item())
        if self.backward:
            sum(v.sum() for v in values if v.requires_grad).backward()
            values.append(leaf.grad)
        return values, read_sums


class Choices(TorchDispatchMode):
    """How far from turning each choice was that operations made: of a value, and with a backward pass of a gradient."""

    def __init__(self, program):
        super().__init__()
        self.backward = program.backward
        self.margins = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        match function.overloadpacket.__name__:
            case "gt" if self.backward or args[1] == BEYOND_TANH:
                self.margins.append(args[0] - args[1])
            case "relu" | "abs" if self.backward:
                self.margins.append(args[0])
            case "maximum" | "minimum" if self.backward:
                self.margins.append(args[0] - args[1])
            case "amax" | "amin" if self.backward:
                self.margins.append(args[0] - result)
        return result


class Expected:
    """What a program gives on the CPU, and how far off that is."""

    def __init__(self, program):
        with Choices(program) as choices:
            self.values = program.run("cpu")
        self.comparable, self.errors = True, [0.0] * len(self.values)
        if not program.dtype.is_floating_point:
            return
        with Choices(program) as exact_choices:
            exact = program.run("cpu", torch.float64)
        self.comparable = not any(
            ((b.abs() < NEAR[program.dtype]) & ((a != 0) | (b != 0))).any()
            for a, b in zip(choices.margins, exact_choices.margins, strict=True)
        )
        if program.dtype in ERRORS:
            self.errors = [
                (a - b).abs().nan_to_num().amax().item() if a.numel() else 0.0
                for a, b in zip(self.values, exact, strict=True)
            ]


def compare(program, expected, by_graph):
    """Raises where a value on tpu is not the CPU's."""
    found = program.replay("tpu") if by_graph else program.run("tpu")
    if not expected.comparable:
        return
    tolerance = TOLERANCE.get(program.dtype, 0)
    for i, (a, b, error) in enumerate(zip(expected.values, found, expected.errors, strict=True)):
        is_sums = i == len(found) - 1
        torch.testing.assert_close(
            b,
            a,
            rtol=tolerance,
            atol=(1e2 if is_sums else 1) * tolerance + ERRORS.get(program.dtype, 0) * error,
            equal_nan=True,
            msg=lambda m, i=i: f"value {i}: {m}",
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
    programs, changed, unclear, base = 0, 0, 0, None
    pool = []
    changing = [(None, [])] * CHANGING_AT_ONCE  # the program at a length, or a place, and those it has yet to run at
    while (elapsed := time.monotonic() - start) < arguments.seconds:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        if rng.random() < CHANGING_SHARE:
            turn = rng.randrange(CHANGING_AT_ONCE)
            if not changing[turn][1]:
                step = rng.choice((1, 1, 1, 2, 8))
                program = Program(rng)
                change = rng.choice((program.at, program.moved))
                changing[turn] = change, [n * step for n in rng.sample(range(2, 150), LENGTHS)]
            program = changing[turn][0](changing[turn][1].pop())
            expected = Expected(program)
            changed += 1
        else:
            # New programs among old ones: fragments are met again at a higher tier.
            if not pool or rng.random() < 0.4:
                program = Program(rng)
                pool = pool[-200:] + [(program, Expected(program))]
            program, expected = rng.choice(pool)
        mode = rng.choices(("fused", "strict", "debug"), (8, 1, 1))[0]
        by_graph = mode != "debug" and program.may_be_captured() and rng.random() < GRAPH_SHARE
        torch.tpu.set_eager_mode(mode)
        stream = torch.tpu.Stream() if rng.random() < 0.1 else torch.tpu.default_stream()
        for _ in range(rng.choice((1, 3))):
            with torch.tpu.stream(stream):
                try:
                    compare(program, expected, by_graph)
                except Exception as error:
                    how = f"{mode}, by a graph" if by_graph else mode
                    print(f"seed {arguments.seed}, program {programs}, {how}: {program}\n{error!r}")
                    sys.exit(1)
        programs += 1
        unclear += not expected.comparable
        c = torch.tpu.metrics()
        if base is None and elapsed > arguments.seconds / 5:
            base = resident_mib(), c["inferences"]
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(
                f"seed {arguments.seed}: {elapsed:.0f} s, {programs} programs, {changed} of them at changing lengths "
                f"or places, {c['graph_replays']} replays of graphs, {unclear} where rounding decides; "
                f"{resident_mib():.0f} MiB, "
                f"{c['inferences']} signatures; launches: "
                f"{c['launches_tier0']} op by op, {c['launches_tier1']} compiled; "
                f"{c['sizes_served']} fragments by programs for many sizes",
                flush=True,
            )
    faulthandler.cancel_dump_traceback_later()
    c = torch.tpu.metrics()
    if base is not None:
        (before, signatures), now = base, resident_mib()
        allowed = GROWTH_MIB * max(1.0, arguments.seconds / 600) + (c["inferences"] - signatures) * SIGNATURE_KIB / 1024
        if now - before > allowed:
            sys.exit(f"resident memory grew from {before:.0f} to {now:.0f} MiB, where {allowed:.0f} more are explained")
    if c["sizes_served"] < changed * SERVED_SHARE and not os.environ.get("TORCH_TPU_PLUGIN"):
        sys.exit(
            f"of {changed} runs at changing lengths or places, programs for many served {c['sizes_served']} fragments"
        )
    if c["compile_failures"]:
        sys.exit(f"fragments that do not compile: {torch.tpu.explain()}")
    print(f"{programs} programs, {changed} of them at changing lengths or places, none wrong; {unclear} not compared")


if __name__ == "__main__":
    main()
