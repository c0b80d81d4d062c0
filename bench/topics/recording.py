"""Recording one small operation, against the whole operation on CPU eager: from Python, and from C++ to C++.

An iteration records 200 operations and then cuts the window without waiting for the device, as a program's reads do:
the time of an operation includes its share of the cut. Between two rounds the device is left to finish.
"""

import ctypes
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

OPERATIONS = 200
LIBRARY = harness.HERE.parent / "build" / "bench" / "librecord_bench.so"


def from_python(operation):
    """A case that runs operation(x, y) 200 times; the time is that of one operation, in microseconds."""

    def build(peer):
        import time

        import torch

        device = harness.device_of(peer)
        x, y = torch.ones(4, device=device), torch.full((4,), 0.5, device=device)

        def iteration():
            harness.finish(peer)
            start = time.perf_counter()
            for _ in range(OPERATIONS):
                operation(x, y)
            if peer == "tpu":
                torch.tpu.current_stream().record_event()
            return harness.Timed((time.perf_counter() - start) * 1e6 / OPERATIONS)

        return iteration

    return build


def new_sizes(operation):
    """A case that runs operation(x), of 4 operations, 50 times, each on a size not seen before."""

    def build(peer):
        import itertools
        import time

        import torch

        x = torch.ones(1 << 18, device=harness.device_of(peer))
        sizes = itertools.count(20_000)

        def iteration():
            harness.finish(peer)
            start = time.perf_counter()
            for _ in range(50):
                operation(x[: next(sizes)])
            if peer == "tpu":
                torch.tpu.current_stream().record_event()
            return harness.Timed((time.perf_counter() - start) * 1e6 / 200)

        return iteration

    return build


def from_cpp(function):
    def build(peer):
        import torch  # loads the libraries that the bench is linked against, and the device

        if peer == "tpu":
            torch.tpu.init()
        call = getattr(ctypes.CDLL(str(LIBRARY)), function)
        call.restype = ctypes.c_double
        return lambda: harness.Timed(call(int(peer == "tpu"), OPERATIONS) / 1e3)

    return build


NEW_SIZES = "an operation at ever new sizes, Python"
CASES = {
    "x + y of 4 elements, Python": from_python(lambda x, y: x + y),
    "x.add_(y) of 4 elements, Python": from_python(lambda x, y: x.add_(y)),
    "x.view(2, 2), Python": from_python(lambda x, y: x.view(2, 2)),
    NEW_SIZES: new_sizes(lambda x: ((x * 2) + x).tanh().sum()),
    "at::add of 4 elements, C++": from_cpp("record_add"),
    "Tensor::add_ of 4 elements, C++": from_cpp("record_add_in_place"),
}


def measure():
    rows = []
    for name in CASES:
        times = harness.interleave("recording", name, ("tpu", "eager"), rounds=15, iterations=20, warm_up=50)
        bound = None if name == NEW_SIZES else 0.5 if "C++" in name else 0.8
        rows.append(harness.Row(name, times["tpu"], "eager", times["eager"], bound, unit="us"))
    return rows


if __name__ == "__main__":
    harness.main(measure)
