"""Streams and events are real: order within a stream, independence between streams, events across them."""

import json
import threading
import time

import pytest
import torch
from helpers import EMBEDDED, run_python, threads_named


def test_current_and_default_stream():
    default = torch.tpu.default_stream()
    assert torch.tpu.current_stream() == default and default.stream_id == 0
    side = torch.tpu.Stream()
    assert side != default and side.device == torch.device("tpu:0")
    with torch.tpu.stream(side) as inside:
        assert inside is side and torch.tpu.current_stream() == side
        assert torch.accelerator.current_stream() == side
        x = torch.ones(3, device="tpu") * 2
    assert torch.tpu.current_stream() == default
    side.synchronize()
    assert x.tolist() == [2, 2, 2]
    with side:
        assert torch.tpu.current_stream() == side
    torch.tpu.set_stream(default)


def test_streams_are_asked_for_by_priority():
    least, greatest = torch.tpu.Stream.priority_range()
    assert torch.tpu.Stream(priority=greatest).priority == torch.tpu.current_stream().priority == least


@pytest.mark.parametrize("number", [-1, 33, 1000])
def test_a_stream_that_there_is_not(number):
    default = torch.tpu.default_stream()
    stream = torch.Stream(stream_id=number, device_index=default.device_index, device_type=default.device_type)
    with pytest.raises(ValueError, match=f"no stream {number}"):
        stream.synchronize()


def test_work_of_one_stream_read_on_another():
    x = torch.arange(4.0, device="tpu")
    side = torch.tpu.Stream()
    side.wait_stream(torch.tpu.current_stream())
    with torch.tpu.stream(side):
        y = x * 3
    torch.tpu.current_stream().wait_stream(side)
    assert (y + 1).tolist() == [1, 4, 7, 10]


def test_events_measure_and_order():
    start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    a = torch.randn(300, 300, device="tpu")
    start.record()
    for _ in range(20):
        a = a @ a * 1e-3
    end.record()
    end.synchronize()
    assert end.query() and start.query()
    assert 0 < start.elapsed_time(end) < 60_000


def test_event_never_recorded_is_done():
    assert torch.tpu.Event().query()


def test_event_on_another_stream():
    side, event = torch.tpu.Stream(), torch.tpu.Event()
    with torch.tpu.stream(side):
        x = torch.ones(10, device="tpu").cumsum(0)
        event.record(side)
    event.wait(torch.tpu.current_stream())
    assert x[-1].item() == 10


def test_query_and_synchronize():
    torch.randn(100, 100, device="tpu").sum()
    stream = torch.tpu.current_stream()
    stream.query()
    stream.synchronize()
    assert stream.query()
    torch.tpu.synchronize()
    torch.accelerator.synchronize()


def test_threads_that_wait_for_room_hold_nothing_that_others_need():
    """Each records events until its stream has no room; who asks a stream for its state holds Python's lock."""
    run_python(
        """
        import threading, torch
        x = torch.randn(400, 400, device="tpu") * 0.05
        found = {}

        def work(k):
            stream, event = torch.tpu.Stream(), torch.tpu.Event()
            with torch.tpu.stream(stream):
                y = x
                for _ in range(200):
                    y = y @ x
                    event.record(stream)
                    stream.query()
                found[k] = y.isfinite().all().item()

        threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {0: True, 1: True, 2: True}, found
        """,
        timeout=120,
    )


def test_record_stream():
    side = torch.tpu.Stream()
    x = torch.ones(100, device="tpu")
    x.record_stream(side)
    del x


def test_python_goes_on_while_the_device_works():
    x = torch.randn(700, 700, device="tpu")
    torch.tpu.synchronize()
    start = time.perf_counter()
    for _ in range(60):
        x = x @ x
        x = x / x.norm()
    recorded = time.perf_counter() - start
    torch.tpu.synchronize()
    whole = time.perf_counter() - start
    assert recorded < whole, (recorded, whole)


def test_backward_runs_on_the_stream_of_its_forward():
    side = torch.tpu.Stream()
    x = torch.ones(3, device="tpu", requires_grad=True)
    side.wait_stream(torch.tpu.current_stream())
    with torch.tpu.stream(side):
        y = (x * x).sum()
        y.backward()
    torch.tpu.current_stream().wait_stream(side)
    assert x.grad.tolist() == [2, 2, 2]


def test_profiler_has_a_row_for_each_stream(tmp_path):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    side = torch.tpu.Stream()

    def work():
        x = torch.ones(64, 64, device="tpu")
        with torch.tpu.stream(side):
            torch.full((8,), 2.0, device="tpu").exp().cpu()
        (x @ x).cpu()

    work()  # what nobody records leaves no trace
    for _ in range(2):  # one profile after the other
        with torch.profiler.profile(activities=activities) as profile:
            work()
        path = tmp_path / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
        spans = [e for e in events if e.get("cat") == "kernel"]
        rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 0}
        found = {(rows[e["tid"]], e["name"]) for e in spans}
        assert any(row == "stream 0: fragments" and "mm" in name for row, name in found), found
        assert any(row == f"stream {side.stream_id}: fragments" and "exp" in name for row, name in found), found
        assert all(e["args"]["operations"] and e["args"]["tier"] in ("compiled", "op by op") for e in spans)
        calls = {e["name"]: e for e in events if e.get("cat") == "cpu_op"}
        product = next(e for e in spans if "mm" in e["name"])
        assert calls["aten::mm"]["ts"] <= product["ts"]


def test_a_reader_that_computes_lets_other_threads_go_on():
    """A launch that is awaited at once runs on the reader's thread, without Python's lock and that of recording."""
    x = torch.rand(700, 700, device="tpu") / 400

    def chain():
        y = x
        for _ in range(12):
            y = y @ x
        return y.sum().item()

    for _ in range(20):
        chain()
    torch.tpu.wait_for_compiles()

    def counted_beside(work):
        counted, stop = 0, threading.Event()

        def count():
            nonlocal counted
            while not stop.is_set():
                counted += 1

        thread = threading.Thread(target=count)
        thread.start()
        start = time.perf_counter()
        work()
        took = time.perf_counter() - start
        stop.set()
        thread.join()
        return counted / took

    alone = counted_beside(lambda: time.sleep(0.2))
    assert counted_beside(lambda: [chain() for _ in range(10)]) > alone / 10


def sums_right(i):
    return (torch.full((3,), i, device="tpu") + 1).tolist() == [i + 1] * 3


def sorts_right(i):
    """On a brief host kernel."""
    values, places = torch.tensor([i + 1.0, i, i + 2], device="tpu").sort()
    return (values.tolist(), places[0].item()) == ([i, i + 1, i + 2], 1)


@pytest.mark.parametrize("right", [sums_right, sorts_right])
def test_threads_that_read_on_one_stream(right):
    wrong = []

    def check(first):
        wrong.extend(i for i in range(first, first + 300) if not right(i))

    in_threads(lambda k: check(1000 * k))
    assert wrong == []


def in_threads(work, count=4):
    """work(k) in `count` threads at once; what they raised."""
    raised = []

    def run(k):
        try:
            work(k)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised, raised[0]


def test_threads_write_parts_of_one_storage():
    places = 60 if EMBEDDED else 20  # a plugin compiles for each
    source = torch.arange(float(places), device="tpu")
    for lies in (torch.zeros(4, places), torch.zeros(places, 4).t()):
        shared = lies.to("tpu")

        def fill(k, shared=shared):
            for i in range(places):
                shared[k, i] = source[i] * (k + 1)

        in_threads(fill)
        assert torch.equal(shared.cpu(), torch.arange(float(places)) * torch.arange(1.0, 5.0)[:, None])


def test_threads_add_to_one_tensor():
    shared = torch.zeros(16, device="tpu")

    def add(_):
        for _ in range(400):
            shared.add_(1)

    for _ in range(3):
        in_threads(add)
    assert shared.tolist() == [3 * 4 * 400] * 16


@pytest.mark.parametrize("lies", ["whole", "row"])
@pytest.mark.parametrize("index", ["cpu", "tpu"])
def test_threads_put_elements_of_one_tensor(lies, index):
    tensor = torch.zeros(400, device="tpu") if lies == "whole" else torch.zeros(2, 400, device="tpu")[1]
    places, one = [torch.tensor([i], device=index) for i in range(400)], torch.ones(1, device="tpu")

    def put(k):
        for i in range(100):
            tensor.index_put_((places[100 * k + i],), one)

    in_threads(put)
    assert tensor.sum().item() == 400


def test_threads_read_what_another_trains():
    """Actors beside a learner: what they read is a value of some step, and none is gone before they read it."""
    model = torch.nn.Linear(8, 4).to("tpu")
    optimizer = torch.optim.Adam(model.parameters())
    stop = threading.Event()

    def work(k):
        if k > 0:
            x = torch.ones(2, 8, device="tpu")
            while not stop.is_set():
                with torch.no_grad():
                    assert model(x).isfinite().all()
            return
        try:
            for _ in range(200):
                model(torch.ones(16, 8, device="tpu")).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        finally:
            stop.set()

    in_threads(work)


@pytest.mark.embedded_only(reason="a plugin's launch takes as long as waking a thread")
def test_a_brief_launch_wakes_no_thread_that_sleeps():
    """What is cut without anybody waiting for it runs on the thread that records, where that takes less."""
    program = """
        import pathlib, time, torch

        x = torch.linspace(0, 1, 64, device="tpu")
        former = x + 1
        tasks = pathlib.Path("/proc/self/task")
        stream = next(t for t in tasks.iterdir() if (t / "comm").read_text().strip() == "tpu-stream-0")

        def sleeps():
            return int((stream / "status").read_text().split("\\nvoluntary_ctxt_switches:")[1].split()[0])

        def step():
            global former
            now = x.sin() + 2
            right = former.tolist()  # is queued, and read for the first time: what is pending leaves now
            former = now
            time.sleep(0.001)
            return right

        for _ in range(200):
            step()
        torch.tpu.wait_for_compiles()
        for _ in range(200):
            step()
        before = sleeps()
        results = [step() for _ in range(400)]
        took = sleeps() - before
        expected = (x.cpu().sin() + 2).tolist()
        assert all(abs(a - b) < 1e-6 for r in results for a, b in zip(r, expected))
        print(took)
    """
    assert int(run_python(program).stdout) < 100


@pytest.mark.embedded_only(reason="a plugin's programs hold no host kernels: each is a launch of its own")
def test_a_brief_host_kernel_runs_for_its_reader():
    """Handing it to the stream's thread would take longer than it; what the reader has set it doesn't see."""
    seen = []

    def kernel(x):
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        seen.append((threading.get_ident(), *modes))
        return x + 1

    library = torch.library.Library("tpu_test_streams", "DEF")
    library.define("state(Tensor x) -> Tensor")
    library.impl("state", kernel, "CPU")
    library.impl("state", lambda x: torch.empty_like(x), "Meta")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for size in range(3, 43):  # other programs make some launches long: each size is measured by itself
            x = torch.ones(size, device="tpu")
            x.tolist()
            for _ in range(10):
                keep = torch.ops.tpu_test_streams.state(x)
                torch.tpu.Event().record()
                time.sleep(0.001)  # the stream's thread gets Python's lock at once: it takes little time there
                assert torch.ops.tpu_test_streams.state(keep).tolist() == [3] * size
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")
    assert {tuple(modes) for _, *modes in seen} == {(True, False, False)}
    if all(thread != threading.get_ident() for thread, *_ in seen):
        pytest.skip("the machine is so busy that no launch took less than handing it over")


@pytest.mark.embedded_only(reason="a plugin's programs hold no host kernels: each is a launch of its own")
def test_a_host_kernel_that_is_sooner_alone_runs_for_its_reader():
    """Two threads that sleep and are woken take longer than some 100 us of work; the reader gets no team for it."""
    program = """
        import threading, time, torch

        torch.set_num_threads(2)  # MKL's own number, too
        seen = []
        def kernel(x):
            time.sleep(2e-5)  # and what the clock adds
            seen.append((threading.get_ident(), torch.get_num_threads()))
            return x + 1

        library = torch.library.Library("tpu_test_streams", "DEF")
        library.define("alone(Tensor x) -> Tensor")
        library.impl("alone", kernel, "CPU")
        library.impl("alone", lambda x: torch.empty_like(x), "Meta")
        for size in range(3, 23):  # other programs make some launches long: each size is measured by itself
            x = torch.ones(size, device="tpu")
            for _ in range(20):
                time.sleep(0.001)  # Python's lock is free
                assert torch.ops.tpu_test_streams.alone(x).tolist() == [2] * size
        here = [threads for thread, threads in seen if thread == threading.get_ident()]
        assert torch.get_num_threads() == 2
        print(len(here), set(here) <= {1})
    """
    times, alone = run_python(program).stdout.split()
    assert alone == "True"
    assert int(times) > 100, times


def test_a_brief_host_kernel_that_fails_is_heard_of_at_the_read():
    for _ in range(50):
        assert torch.linalg.inv(torch.eye(2, device="tpu")).tolist() == [[1, 0], [0, 1]]
    y = torch.linalg.inv_ex(torch.zeros(2, 2, device="tpu"), check_errors=False).info
    assert y.item() == 1
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.inv(torch.zeros(2, 2, device="tpu")).tolist()
    assert torch.linalg.inv(torch.eye(2, device="tpu")).tolist() == [[1, 0], [0, 1]]


@pytest.mark.embedded_only(reason="a plugin's programs hold no host kernels: each is a launch of its own")
@pytest.mark.parametrize("sooner", ["alone", "team"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_host_kernels_have_the_threads_they_are_sooner_with(sooner, deterministic):
    """By what their runs took; not where sums, which depend on how many there are, must be the same in every run."""
    if torch.get_num_threads() < 2:
        pytest.skip("kernels of the CPU have one thread here")
    program = f"""
        import time, torch

        seen = []
        def kernel(x):
            seen.append(torch.get_num_threads())
            time.sleep(0.03 if (seen[-1] == 1) == ({sooner!r} == "team") else 0)
            return x + 1

        library = torch.library.Library("tpu_test_streams", "DEF")
        library.define("threads(Tensor x) -> Tensor")
        library.impl("threads", kernel, "CPU")
        library.impl("threads", lambda x: torch.empty_like(x), "Meta")
        torch.use_deterministic_algorithms({deterministic})
        x = torch.ones(3, device="tpu")
        for _ in range(60):
            torch.tpu.wait_for_compiles()  # beside a compiler there is one
            assert torch.ops.tpu_test_streams.threads(x).tolist() == [2, 2, 2]
        print(seen.count(1), seen[-30:].count(1))
    """
    alone, lately = map(int, run_python(program, {"TORCH_TPU_TUNE_BUDGET": "0"}).stdout.split())
    if deterministic:
        assert alone == 0
    else:
        assert lately == 30 if sooner == "alone" else lately < 15  # some ran beside a compiler


def stream_threads():
    """Those of default streams and what they made (OpenMP's, TBB's), which has the name of the thread that made it."""
    return threads_named("tpu-stream-0")


@pytest.mark.embedded_only(reason="a plugin sorts by itself")
def test_threads_of_host_kernels_are_given_up():
    """Their number would slow the CPU's own kernels for ever: OpenMP counts the threads of all teams."""
    if torch.get_num_threads() < 2:
        pytest.skip("kernels of the CPU have one thread here")
    time.sleep(1)  # what earlier tests left is given up
    before = stream_threads()
    x = torch.randn(64, 1 << 14)
    for _ in range(20):  # on a busy machine this thread may come too late to see them
        values = x.to("tpu").sort().values
        torch.tpu.synchronize()
        if (seen := stream_threads()) > before:
            break
    assert seen > before
    torch.testing.assert_close(values.cpu(), x.sort().values)
    assert_given_up(before)


def assert_given_up(before):
    deadline = time.monotonic() + 10
    while stream_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stream_threads() <= before


@pytest.mark.embedded_only(reason="a plugin's threads are its own")
def test_working_streams_have_the_users_threads_sleep():
    """By a team that nothing runs on: OpenMP lets no thread spin once all teams have more of them than there are cores
    (torch.randn and the like would take a core from the stream for milliseconds)."""
    if torch.get_num_threads() < 2:
        pytest.skip("kernels of the CPU have one thread here")
    x = torch.randn(1024, 1024, device="tpu")

    def work():
        y = x
        for _ in range(20):
            y = x @ y / 32
        torch.tpu.synchronize()

    work()  # makes the threads that stay
    torch.tpu.wait_for_compiles()
    work()
    time.sleep(1)
    before, kernels = stream_threads(), torch.tpu.metrics()["host_kernel_calls"]
    for _ in range(20):
        work()
        if (seen := stream_threads()) > before:
            break
    assert seen > before
    assert torch.tpu.metrics()["host_kernel_calls"] == kernels
    assert_given_up(before)


def test_what_waits_is_told_of():
    assert torch.tpu.get_sync_debug_mode() == 0
    x, host = torch.ones(3, device="tpu"), torch.empty(3)
    waits = [x.sum().item, x.tolist, x.cpu, lambda: str(x), lambda: host.copy_(x), x.nonzero, lambda: bool(x[0] > 0)]
    try:
        torch.tpu.set_sync_debug_mode("error")
        assert torch.tpu.get_sync_debug_mode() == 2
        for wait in waits:
            with pytest.raises(RuntimeError, match="called a synchronizing tpu operation"):
                wait()
        y = x.mul(2).add_(1)  # nothing waits
        torch.tpu.set_sync_debug_mode(1)
        for wait in waits:
            with pytest.warns(UserWarning, match="called a synchronizing tpu operation"):
                wait()
        with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
            torch.tpu.set_sync_debug_mode("loud")
    finally:
        torch.tpu.set_sync_debug_mode("default")
    assert y.tolist() == [3, 3, 3]


def on_streams_of_its_own(x, y):
    one, other = torch.Stream(device="tpu"), torch.Stream(device="tpu")
    with one:
        a = x * y + 1
    with other:
        b = x.sin() * 2
    return a, b


def beside_an_event(x, y):
    side, ready = torch.Stream(device="tpu"), torch.Event(device="tpu")
    with side:
        z = (x * y).sin()
        ready.record()
    ready.wait()
    return z * x, z


@pytest.mark.parametrize("function", [on_streams_of_its_own, beside_an_event])
@pytest.mark.parametrize("backend", ["tpu", "aot_eager"])
def test_compiled_functions_with_streams_are_trained(function, backend):
    there = torch.compile(function, backend=backend, fullgraph=True)
    torch.manual_seed(0)

    def results(f, inputs):
        outputs = f(*inputs)
        return *outputs, *torch.autograd.grad(sum(t.sum() for t in outputs), inputs)

    for _ in range(3):
        inputs = [torch.randn(4, 4, device="tpu", requires_grad=True) for _ in range(2)]
        torch.testing.assert_close(results(there, inputs), results(function, inputs))
