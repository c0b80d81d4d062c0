"""Sweeps PyTorch's own operator database: forward and backward on tpu against the CPU, in fp32 unless told otherwise.

    python tests/python/op_sweep.py --output build/op_sweep      a bounded number of samples of every operator
    python tests/python/op_sweep.py --all                        every sample
    python tests/python/op_sweep.py --ops softmax,linalg.qr -v   some, with their errors
    python tests/python/op_sweep.py --in-process                 prints results only; torch_tpu.aot sees the fragments
    python tests/python/op_sweep.py --dtype complex64            other elements
    python tests/python/op_sweep.py --way forward-ad             forward derivatives; other ways: results in given
                                                                 tensors (out), in-place, inputs with gaps, lazy ones

Each sample runs twice, with the compiles finished in between, so that tier 0 and tier 1 are both held to the CPU, at
the tolerance of torch.testing.assert_close for the dtype or what the database states for the operator. Where they
differ by more, float64 tells who is off: the CPU, too, knows a result to its own rounding only. Samples that the CPU
refuses are left out. Operators run in worker processes: one that crashes or hangs is counted as wrong, and so is one of
which a fragment does not compile. Writes table.md (one line an operator: lowered, decomposed, host kernel, wrong) and
results.json; exits 1 when the share of right samples is under the bound.
"""

import argparse
import collections
import itertools
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time
import unittest.mock
import warnings

import torch
from torch.testing._comparison import default_tolerances

BOUND = 0.97
SAMPLES = 10  # of each operator, spread over its samples
SECONDS_PER_OPERATOR = 120
DOUBLES = {t: torch.float64 for t in (torch.float32, torch.float16, torch.bfloat16)} | {
    torch.complex64: torch.complex128
}


# ---- the worker: operators by index from the command line, one line of JSON for each ----------------------------


def run_worker(indices, samples, dtype, way):
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    for index in indices:
        print(json.dumps({"begin": index}), flush=True)
        result = sweep_operator(op_db[index], samples, dtype, way)
        print(json.dumps({"index": index, "name": full_name(op_db[index]), **result}), flush=True)


def full_name(op):
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def sweep_operator(op, limit, dtype, way):
    errors = []
    drawn = taken_by_the_cpu(op, draw_samples(op, limit, dtype, way), way)
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()  # drawing has its own host kernels
    for sample, expected in drawn:
        error = check_sample(op, sample, expected, way)
        if error is not None:
            errors.append(error)
    host_kernels = torch.tpu.explain().host_kernels
    kind = "host kernel" if host_kernels else "decomposed" if is_composite(op) else "lowered"
    return {
        "samples": len(drawn),
        "right": len(drawn) - len(errors),
        "errors": errors[:5],
        "kind": "wrong" if errors else kind if drawn else "no samples",
        "host_kernels": host_kernels,
    }


def is_composite(op):
    """True when PyTorch itself writes the operator in terms of others."""
    name = op.aten_name or op.name
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return True

    def has(name, key):
        try:
            return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
        except RuntimeError:  # one of TorchScript's own
            return True

    keys = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    names = [f"aten::{name}" + ("" if o == "default" else f".{o}") for o in packet.overloads()]
    return all(any(has(n, key) for key in keys) for n in names)


def draw_samples(op, limit, dtype, way):
    """Samples as PyTorch's device tests draw them: on the device, with what must be on the CPU there.

    Only those that are kept stay alive while the others are drawn: what nobody reads is never computed. None is drawn
    behind the last.
    """
    if dtype not in op.supported_dtypes("cpu") or not WAYS[way].takes(op):
        return []
    requires_grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")

    def draw(device):
        torch.manual_seed(0)
        return op.sample_inputs(device, dtype, requires_grad=requires_grad)

    count = sum(1 for _ in draw("cpu"))
    stride = max(1, -(-count // limit)) if limit else 1
    kept = (0, stride * (limit - 1) + 1 if limit else None, stride)
    try:
        return list(itertools.islice(draw("tpu"), *kept))
    except Exception:
        samples = itertools.islice(draw("cpu"), *kept)
        return [s.transform(lambda x: x.to("tpu") if isinstance(x, torch.Tensor) else x) for s in samples]


def taken_by_the_cpu(op, samples, way):
    """The samples that the CPU takes, each with what it gives."""
    taken = []
    for sample in samples:
        try:
            taken.append((sample, run_once(op, sample, "cpu", way)))
        except Exception:
            continue
    return taken


def tolerance_of(op, dtype):
    """(rtol, atol): what the database states for the tests that compare values, else the default."""
    from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride

    rtol, atol = default_tolerances(dtype)
    dtype = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)
    for info in op.decorators or ():
        tests = getattr(info, "cls_name", None), getattr(info, "device_type", None)
        if tests[0] not in (None, "TestCommon") or tests[1] not in (None, "cpu"):
            continue
        for override in getattr(info, "decorators", [info]):
            if isinstance(override, toleranceOverride) and dtype in override.d:
                rtol = max(rtol, override.d[dtype].rtol)
                atol = max(atol, override.d[dtype].atol)
            elif isinstance(override, precisionOverride) and dtype in override.d:
                atol = max(atol, override.d[dtype])
    return rtol, atol


def run_once(op, sample, device, way, exact=False):
    """Forward results, and derivatives where there are any. Tensors that the sample has on the CPU stay there.

    `exact`: in float64 and complex128.
    """
    leaves = []

    def move(value):
        if not isinstance(value, torch.Tensor):
            return DOUBLES.get(value, value) if exact and isinstance(value, torch.dtype) else value
        moved = value.detach().clone()
        moved = moved.to(device) if value.device.type == "tpu" else moved
        moved = moved.to(DOUBLES.get(moved.dtype, moved.dtype)) if exact else moved
        moved.requires_grad_(value.requires_grad)
        if value.requires_grad:
            leaves.append(moved)
        return moved

    def place(value):
        return device if str(value) in ("tpu", "tpu:0") and isinstance(value, str | torch.device) else value

    moved = sample.transform(move)
    moved.args = tuple(place(value) for value in moved.args)
    moved.kwargs = {name: place(value) for name, value in moved.kwargs.items()}
    torch.manual_seed(1)
    return WAYS[way].run(op, moved, leaves)


def drawn_like(t, generator):
    """Few bits: the same numbers in every type."""
    parts = torch.randn([*t.shape, 2] if t.is_complex() else t.shape, generator=generator).bfloat16()
    parts = parts.to(torch.empty(0, dtype=t.dtype).real.dtype)
    return (torch.view_as_complex(parts) if t.is_complex() else parts).to(t.device)


class Backward:
    """Results, and gradients of the inputs that ask for them."""

    @staticmethod
    def takes(op):
        return True

    @staticmethod
    def run(op, sample, leaves):
        output = op(sample.input, *sample.args, **sample.kwargs)
        with_grad = flatten(sample.output_process_fn_grad(output))
        outputs = [t for t in with_grad if t.requires_grad and (t.is_floating_point() or t.is_complex())]
        gradients = None
        if outputs and leaves:
            generator = torch.Generator().manual_seed(2)
            seeds = [drawn_like(t, generator) for t in outputs]
            try:
                gradients = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
            except Exception as error:
                gradients = error
        return flatten(output), gradients


class ForwardAD:
    """Results, and what their tangents are for drawn tangents of the inputs."""

    @staticmethod
    def takes(op):
        return op.supports_forward_ad

    @staticmethod
    def run(op, sample, leaves):
        ad = torch.autograd.forward_ad
        generator = torch.Generator().manual_seed(2)
        with ad.dual_level():
            duals = {id(leaf): ad.make_dual(leaf.detach(), drawn_like(leaf, generator)) for leaf in leaves}
            sample = sample.transform(lambda value: duals.get(id(value), value))
            output = flatten(op(sample.input, *sample.args, **sample.kwargs))
            pairs = [ad.unpack_dual(t) for t in output]
            return [p.primal.detach() for p in pairs], [p.tangent for p in pairs]


class Out:
    """Results in tensors that are given: empty ones, which grow, and ones with gaps, which keep their strides.

    Where the CPU leaves something else in the given tensors than it returns without, there is nothing to hold to.
    """

    @staticmethod
    def takes(op):
        return op.supports_out

    @staticmethod
    @torch.no_grad()
    def run(op, sample, leaves):
        def call(**out):
            torch.manual_seed(1)
            return op(sample.input, *sample.args, **sample.kwargs, **out)

        plain = call()
        results = flatten(plain)
        grown = [t.new_empty(0) for t in results]
        gaps = [t.new_zeros([*t.shape, 2])[..., 1] for t in results]
        for out in (grown, gaps):
            returned = flatten(call(out=out[0] if isinstance(plain, torch.Tensor) else tuple(out)))
            if any(r is not o for r, o in zip(returned, out, strict=True)):
                raise AssertionError("another tensor than out is returned")
            if op.name not in UNINITIALIZED:
                torch.testing.assert_close(out, results, equal_nan=True)
        return [*grown, *gaps, *(t._base for t in gaps)], None


class InPlace(Backward):
    """The operator's form that writes its input, a copy of the leaf."""

    @staticmethod
    def takes(op):
        return op.inplace_variant is not None

    @staticmethod
    def run(op, sample, leaves):
        sample.input = sample.input.clone()
        sample.output_process_fn_grad = lambda output: output
        result, gradients = Backward.run(op.inplace_variant, sample, leaves)
        if result[0] is not sample.input:
            raise AssertionError("another tensor than the input is returned")
        return result, gradients


class Gaps(Backward):
    """Inputs that do not lie densely in memory."""

    @staticmethod
    def run(op, sample, leaves):
        sample = sample.noncontiguous()
        given = flatten([sample.input, sample.args, sample.kwargs])
        return Backward.run(op, sample, [t for t in given if t.requires_grad])


class Lazy(Backward):
    """Inputs that are views with the bits for negation and, of complex ones, conjugation."""

    @staticmethod
    def run(op, sample, leaves):
        def view(t):
            if not isinstance(t, torch.Tensor) or t.layout != torch.strided:
                return t
            t = torch._neg_view(-t) if t.is_floating_point() or t.is_complex() else t
            return torch.conj(t.conj().clone()) if t.is_complex() else t

        return Backward.run(op, sample.transform(view), leaves)


WAYS = {"backward": Backward, "forward-ad": ForwardAD, "out": Out, "in-place": InPlace, "gaps": Gaps, "lazy": Lazy}


def flatten(result):
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [t for part in result for t in flatten(part)]
    if isinstance(result, dict):
        return [t for part in result.values() for t in flatten(part)]
    return []


UNINITIALIZED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize_"}
# Evaluation leaves no statistics on the CPU; PyTorch infers some for other devices, which nothing reads.
STATISTICS = {"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"}


def is_random(op, sample, expected, way):
    """True when the CPU gives other values from other seeds: then only types and shapes can be compared."""
    manual_seed = torch.manual_seed
    for more in range(1, 25):

        def seed_another(seed, more=more):  # the database sets seeds too
            return manual_seed(seed + more)

        with unittest.mock.patch("torch.manual_seed", seed_another):
            again = run_once(op, sample, "cpu", way)
        for one, other in zip(expected, again, strict=True):
            try:
                if not isinstance(one, Exception):
                    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
            except (AssertionError, TypeError):
                return True
    return False


def as_near_as_the_cpu(op, expected, found, exact):
    """True where `found` is off from the result in float64 by no more than twice what the CPU is, and the tolerance."""
    if not isinstance(exact, torch.Tensor) or exact.shape != expected.shape:
        return False
    rtol, atol = tolerance_of(op, expected.dtype)
    expected, found, exact = expected.detach(), found.detach().cpu(), exact.detach()
    numbers = exact.isfinite()
    rest = [t[~numbers].nan_to_num(0.5, posinf=2, neginf=-2) for t in (expected, found)]
    expected, found, exact = expected[numbers], found[numbers], exact[numbers]
    of_the_cpu = (expected - exact).abs()
    of_the_cpu = of_the_cpu[of_the_cpu.isfinite()]  # where it overflows there is float64 only
    bound = atol + rtol * exact.abs() + 2 * (of_the_cpu.max() if of_the_cpu.numel() else 0)
    return torch.equal(*rest) and bool(((found - exact).abs() <= bound).all())


def compare(op, expected, found, exact, what, values):
    if len(expected) != len(found):
        return f"{what}: {len(expected)} results on cpu, {len(found)} on tpu"
    for i, (one, other) in enumerate(zip(expected, found, strict=True)):
        if (one is None) != (other is None):
            return f"{what}: one is None"
        if one is None:
            continue
        if one.layout != torch.strided:
            one, other = one.to_dense(), other.to_dense()
        if one.numel() == 0 and i > 0 and op.name in STATISTICS:
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{what}: {one.dtype}{list(one.shape)} on cpu, {other.dtype}{list(other.shape)} on tpu"
        if not values:
            other.cpu()
            continue
        rtol, atol = tolerance_of(op, one.dtype)
        try:
            torch.testing.assert_close(
                other.detach().cpu(), one.detach(), rtol=rtol, atol=atol, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            if exact is None or not as_near_as_the_cpu(op, one, other, exact[i]):
                return f"{what}: " + " ".join(str(error).split())[:200]
    return None


def difference(op, expected, found, exact, tier, values):
    """Between pairs of results and derivatives: None, or the first in words."""
    results, derivatives = zip(expected, found, exact, strict=True)
    error = compare(op, *results, f"{tier} forward", values)
    if error is None and isinstance(derivatives[1], Exception) and not isinstance(derivatives[0], Exception):
        return f"{tier} derivatives: {type(derivatives[1]).__name__}: {derivatives[1]}"[:300]
    if error is None and isinstance(derivatives[0], list | tuple) and isinstance(derivatives[1], list | tuple):
        error = compare(op, *derivatives, f"{tier} derivatives", values)
    return error


def check_sample(op, sample, on_cpu, way):
    """None if right, else what is wrong."""
    values = op.name not in UNINITIALIZED
    failures = torch.tpu.metrics()["compile_failures"]
    for tier in ("tier 0", "tier 1"):
        try:
            found = run_once(op, sample, "tpu", way)
            error = difference(op, on_cpu, found, (None, None), tier, values)
            if error is not None and values:
                values = not is_random(op, sample, on_cpu, way)
                exact = run_once(op, sample, "cpu", way, exact=True) if values else (None, None)
                error = difference(op, on_cpu, found, exact, tier, values)
        except Exception as caught:
            error = f"{tier}: {type(caught).__name__}: {caught}"[:300]
        if error is not None:
            return error
        torch.tpu.wait_for_compiles()
    if torch.tpu.metrics()["compile_failures"] > failures:
        failed = [c for c in torch.tpu.explain().compiles if c["outcome"] not in ("compiled", "disk")]
        return f"does not compile: {failed[-1]['outcome']} ({failed[-1]['summary']})"
    return None


# ---- the parent: hands operators to workers, survives theirs deaths, writes the table ----------------------------


class Worker:
    """One worker process and the operators it still has to do."""

    def __init__(self, indices, options):
        self.left = list(indices)
        environment = {**os.environ, "TORCH_TPU_COMPILE_AFTER": "1"}
        command = [sys.executable, __file__, "--worker", ",".join(map(str, indices)), *options]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines = queue.Queue()
        self.stderr = collections.deque(maxlen=5)
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=lambda: self.stderr.extend(self.process.stderr), daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def results(self):
        """Yields finished results; returns what ended the worker early, or None."""
        running = None
        deadline = time.time() + 3 * SECONDS_PER_OPERATOR  # the first one imports torch's tests
        while True:
            try:
                line = self.lines.get(timeout=max(0.1, deadline - time.time()))
            except queue.Empty:
                self.process.kill()
                return running, f"hung for {SECONDS_PER_OPERATOR} s"
            if line is None:
                code = self.process.wait()
                ended_early = running is not None or bool(self.left)
                return running, f"crashed (exit {code}): {' '.join(self.stderr)[-300:]}" if ended_early else None
            try:
                message = json.loads(line)
            except ValueError:
                continue  # something an operator printed
            deadline = time.time() + SECONDS_PER_OPERATOR
            if "begin" in message:
                running = message["begin"]
                self.left.remove(running)
            else:
                running = None
                yield message


def sweep(indices, names, options, chunk, report):
    """Results of all operators, by index."""
    results = {}
    todo = list(indices)
    while todo:
        worker = Worker(todo[:chunk], options)
        generator = worker.results()
        while True:
            try:
                message = next(generator)
            except StopIteration as stop:
                running, failure = stop.value
                break
            results[message["index"]] = message
            report(message)
        todo = worker.left + todo[chunk:]
        if failure is None:
            continue
        if running is None and worker.left == todo[:chunk]:  # died before its first operator
            running = todo.pop(0)
        if running is not None:
            message = {"index": running, "name": names[running], "samples": 1, "right": 0, "kind": "wrong"}
            message |= {"errors": [failure], "host_kernels": {}}
            results[running] = message
            report(message)
    return results


def write_table(results, output):
    output.mkdir(parents=True, exist_ok=True)
    (output / "results.json").write_text(json.dumps(list(results.values()), indent=1))
    kinds = collections.Counter(r["kind"] for r in results.values())
    samples, right = (sum(r[key] for r in results.values()) for key in ("samples", "right"))
    share = right / max(1, samples)
    summary = f"{right} of {samples} samples right ({share:.2%}); operators: " + ", ".join(
        f"{count} {kind}" for kind, count in kinds.most_common()
    )
    lines = ["# Operators of PyTorch's database on tpu (generated by tests/python/op_sweep.py)", "", summary, ""]
    lines += ["| operator | how | right / samples | host kernels, or what is wrong |", "|---|---|---|---|"]
    for r in sorted(results.values(), key=lambda r: (r["kind"] != "wrong", r["name"])):
        detail = r["errors"][0] if r["errors"] else ", ".join(r["host_kernels"])
        detail = detail.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {r['name']} | {r['kind']} | {r['right']} / {r['samples']} | {detail} |")
    (output / "table.md").write_text("\n".join(lines) + "\n")
    return share, summary


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("build/op_sweep"))
    parser.add_argument("--ops", help="names, with commas between")
    parser.add_argument("--all", action="store_true", help="every sample of every operator")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="at most so many of each operator")
    parser.add_argument("--dtype", default="float32", help="of the samples: complex64, int64, ..")
    parser.add_argument("--way", default="backward", choices=WAYS)
    parser.add_argument("--chunk", type=int, default=60, help="operators a worker process")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--in-process", action="store_true", help="in this process: no table, no verdict")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    samples = 0 if args.all else args.samples
    dtype = getattr(torch, args.dtype)
    options = ["--samples", str(samples), "--dtype", args.dtype, "--way", args.way]
    if args.worker:
        run_worker([int(i) for i in args.worker.split(",")], samples, dtype, args.way)
        return 0

    from torch.testing._internal.common_methods_invocations import op_db

    names = [full_name(op) for op in op_db]
    wanted = set(args.ops.split(",")) if args.ops else None
    indices = [i for i, op in enumerate(op_db) if wanted is None or {op.name, names[i]} & wanted]
    if args.in_process:
        run_worker(indices, samples, dtype, args.way)
        return 0

    def report(result):
        if args.verbose or result["kind"] == "wrong":
            print(f"{result['name']}: {result['kind']}, {result['right']}/{result['samples']} {result['errors'][:2]}")

    start = time.time()
    results = sweep(indices, names, options, args.chunk, report)
    share, summary = write_table(results, args.output)
    print(f"{summary}; {time.time() - start:.0f} s; {args.output / 'table.md'}")
    return 0 if share >= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
