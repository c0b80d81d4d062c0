"""Sweeps PyTorch's own operator database: forward and backward in fp32 on tpu against the CPU.

    python tests/python/op_sweep.py --output build/op_sweep      a bounded number of samples of every operator
    python tests/python/op_sweep.py --all                        every sample
    python tests/python/op_sweep.py --ops softmax,linalg.qr -v   some, with their errors
    python tests/python/op_sweep.py --in-process                 prints results only; torch_tpu.aot sees the fragments

Each sample runs twice, with the compiles finished in between, so that tier 0 and tier 1 are both held to the CPU, at
the tolerance of torch.testing.assert_close for the dtype or what the database states for the operator. Samples that
the CPU refuses are left out. Operators run in worker processes: one that crashes or hangs is counted as wrong, and so
is one of which a fragment does not compile. Writes table.md (one line an operator: lowered, decomposed, host kernel,
wrong) and results.json; exits 1 when the share of right samples is under the bound.
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

BOUND = 0.97
DEFAULT = (1.3e-6, 1e-5)  # rtol, atol of assert_close for float32
SAMPLES = 10  # of each operator, spread over its samples
SECONDS_PER_OPERATOR = 120


# ---- the worker: operators by index from the command line, one line of JSON for each ----------------------------


def run_worker(indices, samples):
    warnings.simplefilter("ignore")
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    for index in indices:
        op = op_db[index]
        print(json.dumps({"begin": index}), flush=True)
        result = sweep_operator(torch, op, samples)
        print(json.dumps({"index": index, "name": full_name(op), **result}), flush=True)


def full_name(op):
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def sweep_operator(torch, op, limit):
    right, errors = 0, []
    drawn = taken_by_the_cpu(torch, op, draw_samples(torch, op, limit))
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()  # drawing has its own host kernels
    for sample, expected in drawn:
        error = check_sample(torch, op, sample, expected)
        if error is None:
            right += 1
        else:
            errors.append(error)
    host_kernels = torch.tpu.explain().host_kernels
    kind = "host kernel" if host_kernels else "decomposed" if is_composite(torch, op) else "lowered"
    return {
        "samples": len(drawn),
        "right": right,
        "errors": errors[:5],
        "kind": "wrong" if errors else kind if drawn else "no samples",
        "host_kernels": host_kernels,
    }


def is_composite(torch, op):
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


def draw_samples(torch, op, limit):
    """Samples as PyTorch's device tests draw them: on the device, with what must be on the CPU there.

    Only those that are kept stay alive while the others are drawn: what nobody reads is never computed. None is drawn
    behind the last.
    """
    if torch.float32 not in op.supported_dtypes("cpu"):
        return []

    def draw(device):
        torch.manual_seed(0)
        return op.sample_inputs(device, torch.float32, requires_grad=op.supports_autograd)

    count = sum(1 for _ in draw("cpu"))
    stride = max(1, -(-count // limit)) if limit else 1
    kept = (0, stride * (limit - 1) + 1 if limit else None, stride)
    try:
        return list(itertools.islice(draw("tpu"), *kept))
    except Exception:
        samples = itertools.islice(draw("cpu"), *kept)
        return [s.transform(lambda x: x.to("tpu") if isinstance(x, torch.Tensor) else x) for s in samples]


def taken_by_the_cpu(torch, op, samples):
    """The samples that the CPU takes, each with what it gives."""
    taken = []
    for sample in samples:
        try:
            taken.append((sample, run_once(torch, op, sample, "cpu")))
        except Exception:
            continue
    return taken


def tolerance_of(torch, op):
    """(rtol, atol) for float32: what the database states for the tests that compare values, else the default."""
    from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride

    rtol, atol = DEFAULT
    for info in op.decorators or ():
        tests = getattr(info, "cls_name", None), getattr(info, "device_type", None)
        if tests[0] not in (None, "TestCommon") or tests[1] not in (None, "cpu"):
            continue
        for override in getattr(info, "decorators", [info]):
            if isinstance(override, toleranceOverride) and torch.float32 in override.d:
                rtol = max(rtol, override.d[torch.float32].rtol)
                atol = max(atol, override.d[torch.float32].atol)
            elif isinstance(override, precisionOverride) and torch.float32 in override.d:
                atol = max(atol, override.d[torch.float32])
    return rtol, atol


def run_once(torch, op, sample, device):
    """Forward results, and gradients where there are any. Tensors that the sample has on the CPU stay there."""
    leaves = []

    def move(value):
        if not isinstance(value, torch.Tensor):
            return value
        moved = value.detach().clone()
        moved = (moved.to(device) if value.device.type == "tpu" else moved).requires_grad_(value.requires_grad)
        if value.requires_grad:
            leaves.append(moved)
        return moved

    def place(value):
        return device if str(value) in ("tpu", "tpu:0") and isinstance(value, str | torch.device) else value

    moved = sample.transform(move)
    moved.args = tuple(place(value) for value in moved.args)
    moved.kwargs = {name: place(value) for name, value in moved.kwargs.items()}
    torch.manual_seed(1)
    output = op(moved.input, *moved.args, **moved.kwargs)
    with_grad = sample.output_process_fn_grad(output)
    outputs = [t for t in flatten(torch, with_grad) if t.requires_grad and (t.is_floating_point() or t.is_complex())]
    gradients = None
    if outputs and leaves:
        generator = torch.Generator().manual_seed(2)
        seeds = [torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device) for t in outputs]
        try:
            gradients = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
        except Exception as error:
            gradients = error
    return flatten(torch, output), gradients


def flatten(torch, result):
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [t for part in result for t in flatten(torch, part)]
    if isinstance(result, dict):
        return [t for part in result.values() for t in flatten(torch, part)]
    return []


UNINITIALIZED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize_"}


def is_random(torch, op, sample, expected):
    """True when the CPU gives other values from another seed: then only types and shapes can be compared."""
    manual_seed = torch.manual_seed
    with unittest.mock.patch("torch.manual_seed", lambda seed: manual_seed(seed + 1)):  # the database sets its own too
        again = run_once(torch, op, sample, "cpu")
    for one, other in zip(expected, again, strict=True):
        try:
            if not isinstance(one, Exception):
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        except (AssertionError, TypeError):
            return True
    return False


def compare(torch, op, expected, found, what, values):
    if len(expected) != len(found):
        return f"{what}: {len(expected)} results on cpu, {len(found)} on tpu"
    for one, other in zip(expected, found, strict=True):
        if (one is None) != (other is None):
            return f"{what}: one is None"
        if one is None:
            continue
        if one.layout != torch.strided:
            one, other = one.to_dense(), other.to_dense()
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{what}: {one.dtype}{list(one.shape)} on cpu, {other.dtype}{list(other.shape)} on tpu"
        if not values:
            other.cpu()
            continue
        single = one.dtype in (torch.float32, torch.complex64)
        rtol, atol = tolerance_of(torch, op) if single else (None, None)
        try:
            torch.testing.assert_close(
                other.detach().cpu(), one.detach(), rtol=rtol, atol=atol, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return f"{what}: " + " ".join(str(error).split())[:200]
    return None


def check_sample(torch, op, sample, on_cpu):
    """None if right, else what is wrong."""
    expected, expected_gradients = on_cpu
    values = op.name not in UNINITIALIZED and not is_random(torch, op, sample, on_cpu)
    failures = torch.tpu.metrics()["compile_failures"]
    for tier in ("tier 0", "tier 1"):
        try:
            found, gradients = run_once(torch, op, sample, "tpu")
            error = compare(torch, op, expected, found, f"{tier} forward", values)
            if error is None and isinstance(gradients, Exception) and not isinstance(expected_gradients, Exception):
                error = f"{tier} backward: {type(gradients).__name__}: {gradients}"[:300]
            both = isinstance(gradients, tuple) and isinstance(expected_gradients, tuple)
            if error is None and both:
                error = compare(torch, op, expected_gradients, gradients, f"{tier} backward", values)
        except Exception as caught:
            error = f"{tier} forward: {type(caught).__name__}: {caught}"[:300]
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

    def __init__(self, indices, samples):
        self.left = list(indices)
        environment = {**os.environ, "TORCH_TPU_COMPILE_AFTER": "1"}
        command = [sys.executable, __file__, "--worker", ",".join(map(str, indices)), "--samples", str(samples)]
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


def sweep(indices, names, samples, chunk, report):
    """Results of all operators, by index."""
    results = {}
    todo = list(indices)
    while todo:
        worker = Worker(todo[:chunk], samples)
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
    parser.add_argument("--chunk", type=int, default=60, help="operators a worker process")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--in-process", action="store_true", help="in this process: no table, no verdict")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    samples = 0 if args.all else args.samples
    if args.worker:
        run_worker([int(i) for i in args.worker.split(",")], samples)
        return 0

    from torch.testing._internal.common_methods_invocations import op_db

    names = [full_name(op) for op in op_db]
    wanted = set(args.ops.split(",")) if args.ops else None
    indices = [i for i, op in enumerate(op_db) if wanted is None or {op.name, names[i]} & wanted]
    if args.in_process:
        run_worker(indices, samples)
        return 0

    def report(result):
        if args.verbose or result["kind"] == "wrong":
            print(f"{result['name']}: {result['kind']}, {result['right']}/{result['samples']} {result['errors'][:2]}")

    start = time.time()
    results = sweep(indices, names, samples, args.chunk, report)
    share, summary = write_table(results, args.output)
    print(f"{summary}; {time.time() - start:.0f} s; {args.output / 'table.md'}")
    return 0 if share >= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
