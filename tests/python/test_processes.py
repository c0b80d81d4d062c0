"""Threads, forks, interrupts, and processes that die."""

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
import torch.multiprocessing as multiprocessing
import torch.nn as nn
from helpers import run_python, threads_named


def test_eight_threads():
    errors = []

    def work(number):
        try:
            x = torch.full((32, 32), float(number), device="tpu")
            for _ in range(50):
                x = (x + 1).clamp(max=1000) * 1
                if number % 2:
                    assert x[0, 0].item() > 0
            assert x[0, 0].item() == min(1000, number + 50), (number, x[0, 0].item())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_threads_train_their_own_models():
    results = {}

    def work(number):
        generator = torch.Generator().manual_seed(number)
        layer = nn.Linear(8, 8)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(8, 8, generator=generator) * 0.1)
            layer.bias.zero_()
        results[number, "cpu"] = train(layer)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(8, 8, generator=torch.Generator().manual_seed(number)) * 0.1)
            layer.bias.zero_()
        results[number, "tpu"] = train(layer.to("tpu"))

    def train(layer):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        x = torch.linspace(-1, 1, 32).reshape(4, 8).to(layer.weight.device)
        for _ in range(10):
            optimizer.zero_grad()
            layer(x).pow(2).mean().backward()
            optimizer.step()
        return layer.weight.detach().cpu().clone()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        torch.testing.assert_close(results[number, "tpu"], results[number, "cpu"], rtol=1e-4, atol=1e-5)


def test_fork_after_use_is_a_clear_error():
    run_python("""
        import os, torch
        torch.ones(3, device="tpu").sum().item()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                torch.ones(3, device="tpu").sum().item()
                text = "no error"
            except RuntimeError as error:
                text = str(error)
            os.write(write, f"{torch.tpu._is_in_bad_fork()} {text}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        text = os.read(read, 4096).decode()
        assert text.startswith("True") and "spawn" in text and "fork" in text, text
        assert torch.ones(3, device="tpu").sum().item() == 3
    """)


def test_every_read_after_a_fork_is_an_error_or_right():
    run_python("""
        import os, torch
        layer = torch.nn.Linear(2, 2).to("tpu")
        torch.nn.init.ones_(layer.weight)
        done = torch.ones(2, device="tpu") + 1
        assert done.tolist() == [2, 2] and layer.weight.sum().item() == 4
        launched = done + 5
        torch.tpu.synchronize()
        pending = done * 3

        def told(read):
            read_end, write_end = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    text = str(read())
                except RuntimeError as error:
                    text = "fork" if "forked subprocess" in str(error) else str(error)
                os.write(write_end, text.encode())
                os._exit(0)
            os.close(write_end)
            assert os.waitpid(child, 0)[1] == 0  # no signal
            return os.read(read_end, 4096).decode()

        def read_after_the_first_read_of_another():
            assert launched.tolist() == [7, 7]
            return pending.cpu()

        for read in (lambda: pending.cpu(), lambda: pending.tolist(), lambda: torch.zeros(2).copy_(pending),
                     read_after_the_first_read_of_another):
            assert told(read) == "fork"
        assert told(lambda: done.cpu().tolist()) == "[2.0, 2.0]"
        assert told(lambda: layer.weight.cpu().tolist()) == "[[1.0, 1.0], [1.0, 1.0]]"  # autograd asks for its stream
        assert told(lambda: layer(done)) == "fork"
        assert pending.tolist() == [6, 6]
    """)


def test_fork_before_use_works():
    run_python("""
        import os, torch
        child = os.fork()
        assert torch.ones(3, device="tpu").sum().item() == 3
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """)


def test_data_loader_workers_fork_after_use():
    x = torch.ones(3, device="tpu")
    loader = torch.utils.data.DataLoader(range(8), batch_size=2, num_workers=2)
    assert sum(int(batch.sum()) for batch in loader) == 28
    assert (x + 1).tolist() == [2, 2, 2]


class Rows(torch.utils.data.Dataset):
    """Made on the device by the worker."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((3,), float(index), device="tpu")


def test_tensors_reach_other_processes_as_copies():
    batches = list(torch.utils.data.DataLoader(Rows(), 2, num_workers=1, multiprocessing_context="spawn"))
    assert [batch.device.type for batch in batches] == ["tpu", "tpu"]
    assert torch.cat(batches)[:, 0].tolist() == [0, 1, 2, 3]

    queue = multiprocessing.get_context("spawn").Queue()
    whole = torch.arange(6.0, device="tpu")
    queue.put((nn.Parameter(whole * 2), whole[1:4], whole.view(2, 3).T, whole[:0]))
    parameter, part, turned, none = queue.get(timeout=60)
    assert isinstance(parameter, nn.Parameter) and parameter.requires_grad and parameter.is_leaf
    assert parameter.tolist() == [0, 2, 4, 6, 8, 10]
    assert turned.device == whole.device and turned.tolist() == [[0, 3], [1, 4], [2, 5]] and none.shape == (0,)
    part.fill_(7)
    assert turned.tolist() == [[0, 7], [7, 4], [7, 5]]  # what shared memory does
    assert whole.tolist() == [0, 1, 2, 3, 4, 5]


def test_arguments_of_a_process_are_copies(tmp_path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
        import os
        import torch
        import torch.multiprocessing

        def work(rank, layer, whole, part, none):
            part.fill_(rank)
            values = [parameter.sum().item() for parameter in layer.parameters()]
            line = f"{rank} {values} {whole.tolist()} {layer.weight.device} {none.shape[0]}\\n"
            os.write(1, line.encode())  # one piece: print writes several where output is unbuffered

        if __name__ == "__main__":
            layer = torch.nn.Linear(2, 1).to("tpu")
            torch.nn.init.ones_(layer.weight), torch.nn.init.zeros_(layer.bias)
            whole = torch.ones(3, device="tpu")
            arguments = (layer, whole, whole[1:], whole[:0].clone())
            for method in ("spawn", "forkserver"):
                torch.multiprocessing.start_processes(work, arguments, nprocs=2, start_method=method)
            assert whole.tolist() == [1, 1, 1]
        """)
    )
    output = run_python(f"import runpy; runpy.run_path({str(tmp_path / 'program.py')!r}, run_name='__main__')").stdout
    expected = [f"{rank} [2.0, 0.0] [1.0, {rank:.1f}, {rank:.1f}] tpu:0 0" for rank in (0, 0, 1, 1)]
    assert sorted(output.splitlines()) == expected


def test_exception_in_the_middle_of_recording():
    x = torch.ones(3, device="tpu")
    y = x + 1
    try:
        x * 3
        raise KeyError
    except KeyError:
        pass
    assert (y * 2).tolist() == [4, 4, 4]


def test_keyboard_interrupt():
    program = """
        import signal, sys, torch
        signal.signal(signal.SIGINT, signal.default_int_handler)
        x = torch.zeros(64, device="tpu")
        (x + 1).clamp(max=5).cpu()  # an operator's first call imports PyTorch's shape inference, which no ^C may cut
        print("ready", flush=True)
        try:
            while True:
                x = x + 1
                x = x.clamp(max=5)
        except KeyboardInterrupt:
            pass
        assert x[0].item() in (5, 6)  # between the two lines or after them
        print((torch.ones(2, device="tpu") + 1).tolist(), flush=True)
    """
    import textwrap

    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and out == "[2.0, 2.0]\n"


def test_waiting_for_compiles_is_interrupted():
    run_python(
        """
        import os, signal, threading, torch
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        for order in range(30):
            x = torch.ones(3 + order, 7, device="tpu")
            for i in range(70):
                x = x.softmax(i % 2) + (x.cumsum(0) if order >> (i % 7) & 1 else x.sin())
            x.sum().item()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            torch.tpu.wait_for_compiles()
            raise AssertionError("all was compiled")
        except KeyboardInterrupt:
            before = torch.tpu.metrics()["compiles"]
        torch.tpu.wait_for_compiles()
        assert torch.tpu.metrics()["compiles"] > before + 1
        """,
        {"TORCH_TPU_COMPILE_AFTER": "1"},
    )


def test_compiling_has_the_threads_it_is_given():
    program = """
        import contextlib, pathlib, time, torch

        def compiling():
            return threads_named("tpu-compile")

        torch.ones(1, device="tpu").item()
        end = time.monotonic() + 20
        while compiling() < 3 and time.monotonic() < end:  # threads name themselves
            time.sleep(0.01)
        assert compiling() == 3
    """
    run_python(inspect.getsource(threads_named) + textwrap.dedent(program), {"TORCH_TPU_COMPILE_THREADS": "3"})


@pytest.mark.embedded_only(reason="another device compiles single operations at their first launch")
def test_compiling_rests_beside_a_program_that_runs_compiled():
    run_python(
        """
        import itertools, time, torch

        def spent():
            return torch.tpu.metrics()["compile_ms"]

        def compiled():
            return torch.tpu.metrics()["compiles"]

        def run(seconds):
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                (x + 1).sum().item()

        x = torch.ones(1000, device="tpu")
        run(0.1)
        torch.tpu.wait_for_compiles()
        for order in itertools.islice(itertools.permutations(("sin", "cos", "tanh", "exp", "sigmoid", "neg")), 100):
            y = x
            for name in order:
                y = getattr(y, name)()
            y.sum().item()
        run(0.3)  # until it is known
        before = compiled()
        run(1)
        beside = compiled() - before
        begun = time.perf_counter(), spent(), compiled()
        torch.tpu.wait_for_compiles()  # rests no longer
        took = time.perf_counter() - begun[0]
        assert (spent() - begun[1]) / 1e3 > took / 2, (took, spent() - begun[1])
        each_second = (compiled() - begun[2]) / took
        assert beside - 1 < each_second / 4, (beside, each_second)  # one was under way
        assert torch.tpu.metrics()["compiles"] > 100
        """,
        {"TORCH_TPU_COMPILE_AFTER": "1"},
    )


def test_little_address_space():
    """`ulimit -v`, as clusters and graders set it."""
    run_python(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (5 << 30, resource.RLIM_INFINITY))
        import torch
        x = torch.ones(64, 64, device="tpu")
        for _ in range(3):
            assert ((x @ x) * 2 + 1).sum().item() == 129 * 64 * 64
            torch.tpu.wait_for_compiles()
        assert torch.tpu.metrics()["launches_tier1"] > 0
        assert len({x.data_ptr(), x[1:].data_ptr(), x.clone().data_ptr()}) == 3
    """,
        {"TORCH_TPU_COMPILE_AFTER": "1", "TORCH_TPU_THREADS": "2"},
    )


def test_doctor():
    done = subprocess.run([sys.executable, "-m", "torch_tpu.doctor"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("torch_tpu", "tpu:0", "TORCH_TPU_MEMORY", "TORCH_TPU_CACHE", "right"):
        assert word in done.stdout


def test_threads_that_compile_first():
    run_python("""
        import threading, torch
        barrier, found, errors = threading.Barrier(4), [], []

        def work(number):
            try:
                barrier.wait()
                function = torch.compile(lambda x: x * number, backend="tpu")
                found.append(function(torch.ones(2, device="tpu")).tolist())
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert sorted(found) == [[n, n] for n in range(4)]
    """)


def test_backward_runs_on_its_caller():
    run_python(
        """
        import threading
        import torch

        def threads_of_backward():
            x = torch.ones(2, device="tpu", requires_grad=True)
            found = []
            x.register_hook(lambda grad: found.append(threading.get_ident()))
            (x * 2).sum().backward()
            assert x.grad.tolist() == [2, 2]
            return found

        def check():
            assert threads_of_backward() == [threading.get_ident()]
            with torch.autograd.set_multithreading_enabled(True):
                assert threads_of_backward() != [threading.get_ident()]
            checked.append(True)

        assert torch.autograd.is_multithreading_enabled()  # nothing is changed before the device is used
        checked = []
        check()
        def check_after_inference():
            with torch.inference_mode():
                torch.ones(2, device="tpu").sum().item()
            check()

        other = threading.Thread(target=check_after_inference)
        other.start()
        other.join()
        assert len(checked) == 2
        """
    )


def test_several_devices():
    run_python(
        """
        import torch
        assert torch.tpu.device_count() == torch.accelerator.device_count() == 3
        assert torch.tpu.current_device() == 0
        x = torch.ones(3, device="tpu:2")
        assert x.device.index == 2 and (x + 1).tolist() == [2, 2, 2]
        y = x.to("tpu:1") * 5
        assert y.device.index == 1 and y.tolist() == [5, 5, 5]
        with torch.tpu.device(1):
            assert torch.ones(1, device="tpu").device.index == 1
        with torch.tpu.device_of(x):
            assert torch.tpu.current_device() == 2
        assert torch.tpu.current_device() == 0
        torch.tpu.set_device("tpu:1")
        assert torch.empty(1, device="tpu").device.index == 1
        try:
            x + y
        except RuntimeError as error:
            assert "device" in str(error)
        else:
            raise SystemExit("no error")
        z = torch.nn.Linear(3, 3, device="tpu:2")
        z(x).sum().backward()
        assert z.weight.grad.device.index == 2
        """,
        {"TORCH_TPU_DEVICES": "3"},
    )


def test_what_is_made_of_nothing_is_on_its_device():
    run_python(
        """
        import torch

        made_there = torch.arange(3, device="tpu:1"), torch.zeros(3, device="tpu:1"), torch.eye(3, device="tpu:1")[0]
        for made in (*made_there, torch.tril_indices(2, 2, device="tpu:1")[0]):
            torch.tpu.synchronize(1)
            assert made.device.index == 1 and (made + 1).tolist() == [x + 1 for x in made.tolist()]
        try:
            torch.add(torch.ones(3, device="tpu:0"), 1, out=torch.empty(3, device="tpu:1"))
        except RuntimeError as error:
            assert "tpu:0 and tpu:1" in str(error)
        else:
            raise AssertionError("computed on one device, written to another")
        """,
        {"TORCH_TPU_DEVICES": "2"},
    )


def test_compiled_graphs_of_several_devices():
    run_python(
        """
        import torch

        def run(a, b):
            c = (a * 2).to("tpu:1") + b
            return a + 1, b - 1, c, torch.full((2,), 3.0, device="tpu:1"), torch.rand_like(b), c.to("tpu:0") * a

        def only_made_there(a):
            return torch.arange(3, device="tpu:1"), a + 1

        a = torch.ones(3, device="tpu:0", requires_grad=True)
        b = torch.ones(3, device="tpu:1", requires_grad=True)
        for function, inputs in [(run, (a, b)), (only_made_there, (a,)), (only_made_there, (b,))]:
            expected, found = function(*inputs), torch.compile(function, backend="tpu")(*inputs)
            assert [t.device for t in found] == [t.device for t in expected]
            for x, y in zip(expected[:4], found[:4]):
                torch.testing.assert_close(x, y)
        found = torch.compile(run, backend="tpu")(a, b)
        (found[0].sum() + found[2].sum().to("tpu:0") + found[5].sum()).backward()
        assert a.grad.device == a.device and b.grad.device == b.device
        assert a.grad.tolist() == [1 + 2 + 5] * 3 and b.grad.tolist() == [1 + 1] * 3
        assert torch.tpu.metrics()["graph_calls"] > 0 and torch.tpu.metrics()["graph_calls_uncaptured"] == 0
        """,
        {"TORCH_TPU_DEVICES": "2"},
    )


@pytest.mark.parametrize("devices", [1, 2])
def test_data_parallel(devices):
    run_python(
        """
        import copy, torch

        whole = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        parallel = torch.nn.DataParallel(copy.deepcopy(whole).to("tpu"))
        assert parallel.device_ids == list(range(torch.tpu.device_count()))
        x = torch.randn(7, 4)
        for given in (x, x.to("tpu")):
            found, expected = parallel(given), whole(x)
            assert found.device == torch.device("tpu:0")
            torch.testing.assert_close(found.cpu(), expected)
            expected.pow(2).sum().backward()
            found.pow(2).sum().backward()
            for a, b in zip(whole.parameters(), parallel.parameters(), strict=True):
                torch.testing.assert_close(b.grad.cpu(), a.grad)
        parts = torch.nn.parallel.comm.scatter(x, [0, 0], chunk_sizes=[3, 4])
        assert [len(p) for p in parts] == [3, 4]
        assert torch.nn.parallel.comm.gather(parts, destination="cpu").equal(x)
        """,
        {"TORCH_TPU_DEVICES": str(devices)},
    )


def test_default_device():
    with torch.device("tpu"):
        assert torch.ones(2).device.type == "tpu"
        assert nn.Linear(2, 2).weight.device.type == "tpu"
        assert torch.arange(3).device.type == "tpu" and torch.randn(2).device.type == "tpu"
    assert torch.ones(2).device.type == "cpu"
    torch.set_default_device("tpu")
    try:
        assert torch.zeros(2).device.type == "tpu"
    finally:
        torch.set_default_device(None)


def test_device_surface():
    assert torch.tpu.device_count() == 1 and torch.tpu.current_device() == 0
    assert torch.tpu.get_device_name() and torch.tpu.get_device_properties().total_memory > 0
    assert torch.bfloat16 in torch.tpu.get_amp_supported_dtype() and torch.tpu.is_bf16_supported()
    assert torch.get_device_module("tpu") is torch.tpu
    x = torch.ones(2).tpu()
    assert x.is_tpu and x.device.type == "tpu" and x.get_device() == 0
    supported = torch.tpu.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.uint64, torch.complex64, torch.float8_e5m2} <= supported
    assert torch.bits8 not in supported


@pytest.mark.skipif(os.environ.get("TORCH_TPU_SLOW") == "0", reason="takes seconds to import dynamo")
def test_dynamo_sees_our_interface():
    run_python("""
        import torch
        from torch._dynamo.device_interface import get_interface_for_device
        interface = get_interface_for_device("tpu")
        assert interface.is_available() and interface.is_dtype_supported(torch.float64)
        assert interface.device_count() == 1
    """)
