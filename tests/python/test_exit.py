"""How processes end: in the middle of work, of compiles, of a backward pass; children."""

import os
import time

import pytest
from helpers import run_python


def run_and_leave(program, environment=None):
    """Runs a program that prints time.process_time() last; its output, and the processor time that it took to end."""
    before = sum(os.times()[2:4])
    lines = run_python(program, environment).stdout.splitlines()
    return lines[:-1], sum(os.times()[2:4]) - before - float(lines[-1])


def test_a_child_that_ends_as_programs_do_waits_for_nothing():
    """Autograd would wait ten seconds for its threads, of which a child has none."""
    done = run_python("""
        import os, sys, time, torch
        w = torch.ones(3, 3, device="tpu", requires_grad=True)
        torch.autograd.set_multithreading_enabled(True)
        w.square().sum().backward()
        torch.tpu.synchronize()
        child = os.fork()
        if child == 0:
            print("said by the child")
            sys.exit(7)
        start = time.monotonic()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert time.monotonic() - start < 10, time.monotonic() - start
    """)
    assert done.stdout == "said by the child\n"


def test_exit_with_work_pending():
    start = time.perf_counter()
    run_python("""
        import torch
        x = torch.randn(500, 500, device="tpu")
        for _ in range(50):
            x = x @ x / x.norm()
    """)
    assert time.perf_counter() - start < 60


@pytest.mark.embedded_only(reason="what a plugin has taken can't be taken back")
@pytest.mark.parametrize("compile_after", ["1", "1000000"])
def test_exit_leaves_long_work_undone(compile_after):
    lines, leaving = run_and_leave(
        """
        import atexit, time

        def say():
            try:
                y.cpu()
            except RuntimeError as error:
                print(str(error).splitlines()[0])
                print(product)
                print(leaves)

        atexit.register(say)  # before torch is there: called after all of its own
        import torch
        x = torch.randn(2000, 2000, device="tpu")
        for _ in range(3):
            start = time.process_time()
            y = x
            for _ in range(9):  # as many as a launch has, and one
                y = (y @ x) / 45
            y[0, 0].item()
            product = (time.process_time() - start) / 9
            torch.tpu.wait_for_compiles()
        for _ in range(300):
            y = (y @ x) / 45
        leaves = time.process_time()
        """,
        {"TORCH_TPU_COMPILE_AFTER": compile_after},
    )
    said, product = lines
    assert said == "the process ends, and this was not computed any more"
    assert leaving < 100 * float(product), (leaving, product)


def test_exit_while_compiling():
    run_python(
        """
        import torch, torch.nn.functional as F
        for n in range(30):
            x = torch.randn(n + 2, 7, device="tpu")
            for _ in range(3):
                F.gelu(x).sum().item()
        """,
        {"TORCH_TPU_COMPILE_AFTER": "1"},
    )


def test_exit_does_not_wait_for_a_long_compile():
    _, leaving = run_and_leave(
        """
        import time, torch

        x = torch.linspace(-1, 1, 512, device="tpu").view(8, 64)
        for _ in range(10):
            y = x
            for _ in range(250):
                y = y.softmax(0) + y
            y.sum().item()
            time.sleep(0.05)
        found = torch.tpu.metrics()
        # It takes the embedded device eight seconds; others, which waited for single operations, may be through.
        assert found["compiles"] == 0 or found["compile_wait_ms"] > 0, found
        print(time.process_time())
        """,
        {"TORCH_TPU_COMPILE_AFTER": "2"},
    )
    assert leaving < 3


@pytest.mark.parametrize("where", ["the main thread", "a thread beside one that never used the device"])
def test_exit_waits_for_the_threads_of_backward(where):
    # Backwards told to run on autograd's threads: one that has its last task to drop when the interpreter ends would
    # abort the process. Here that thread gets what other processes leave of one processor.
    run_python(
        """
        import contextlib, os, subprocess, sys, threading, time
        import torch

        def run_last(grad):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)

        cpu = {min(os.sched_getaffinity(0))}
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cpu)
        busy = "import time; end = time.time() + 3; [0 for _ in iter(lambda: time.time() < end, False)]"
        subprocess.Popen([sys.executable, "-c", busy])
        time.sleep(0.3)

        def train():
            layer = torch.nn.Linear(3, 3, device="tpu")
            torch.autograd.set_multithreading_enabled(True)
            layer.weight.register_hook(run_last)
            layer.bias.register_hook(run_last)
            layer(torch.ones(3, device="tpu")).sum().backward()

        if WHERE == "the main thread":
            train()
        else:
            threads = [threading.Thread(target=train) for _ in range(3)]
            for thread in threads:
                thread.start()
                thread.join()
        """.replace("WHERE", repr(where))
    )
