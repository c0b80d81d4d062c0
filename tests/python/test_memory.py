"""Device memory: figures, limits, what happens when there is none left, and flat memory over long loops."""

import gc

import pytest
import torch
from helpers import EMBEDDED, run_python

MIB = 1 << 20


def test_allocated_follows_tensors():
    gc.collect()
    before = torch.tpu.memory_allocated()
    x = torch.ones(4 * MIB, device="tpu")
    y = x + 1
    assert torch.tpu.memory_allocated() - before >= 32 * MIB
    peak = torch.tpu.max_memory_allocated()
    del x, y
    assert torch.tpu.memory_allocated() - before < 16 * MIB
    assert torch.tpu.max_memory_allocated() >= peak
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() < peak


@pytest.mark.parametrize("part", [0, 1])
def test_a_copied_part_does_not_keep_the_whole(part):
    gc.collect()
    before = torch.tpu.memory_allocated()
    x = torch.ones(4 * MIB).to("tpu").chunk(4)[part].clone()
    assert torch.tpu.memory_allocated() - before < 5 * MIB
    assert x.sum().item() == MIB


@pytest.mark.embedded_only(reason="a plugin's cached memory is the plugin's own")
def test_empty_cache():
    x = torch.ones(8 * MIB, device="tpu") * 2
    torch.tpu.synchronize()
    del x
    held = torch.tpu.memory_reserved()
    torch.tpu.empty_cache()
    assert torch.tpu.memory_reserved() <= held - 16 * MIB


def test_accelerator_figures():
    x = torch.ones(MIB, device="tpu") + 0
    assert torch.accelerator.memory_allocated() == torch.tpu.memory_allocated() > 0
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    assert "allocated_bytes.all.current" in torch.accelerator.memory_stats()
    free, total = torch.tpu.mem_get_info()
    assert 0 < free < total and torch.accelerator.get_memory_info() == (free, total)
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.memory_stats()["allocation.all.allocated"] == 0
    assert torch.tpu.memory_stats()["allocation.all.allocated"] == 0
    torch.accelerator.empty_cache()
    assert "limit" in torch.tpu.memory_summary() and torch.tpu.memory.memory_summary is torch.tpu.memory_summary
    assert torch.tpu.memory_stats()["allocated_bytes.all.current"] > 0
    nested = torch.tpu.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] > 0 and nested["limit_bytes"] > 0
    del x


def test_too_much_memory_raises_with_the_numbers_and_goes_on():
    run_python(
        """
        import torch
        x = torch.ones(1 << 20, device="tpu")
        try:
            y = torch.ones(1 << 28, device="tpu") + 1  # 1 GiB
            y.sum().item()
        except torch.tpu.OutOfMemoryError as error:
            text = str(error)
            assert "MiB" in text or "GiB" in text, text
        else:
            raise SystemExit("no error")
        y = None
        assert (x + 1).sum().item() == 2 << 20
        a = torch.ones(32 << 20, device="tpu") + 1  # 128 MiB fit
        assert a[0].item() == 2
        assert torch.tpu.memory_stats()["num_ooms"] >= 1
        """,
        {"TORCH_TPU_MEMORY": "512MiB"},
    )


def test_what_is_empty_takes_memory_when_it_is_written():
    before = torch.tpu.memory_allocated()
    made = [torch.empty(1 << 40, device="tpu") for _ in range(3)]
    assert torch.tpu.memory_allocated() == before
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 4096"):
        made[0].fill_(1)[0].item()
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 4096"):
        made[1].sum().item()
    assert torch.ones(3, device="tpu").sum().item() == 3


@pytest.mark.embedded_only(reason="a plugin fills new memory beside what is there; its share: conformance/device_test")
def test_a_share_of_the_memory():
    run_python(
        """
        import torch

        def filled(mebibytes):
            return torch.ones(mebibytes << 18, device="tpu")

        assert torch.tpu.get_per_process_memory_fraction() == 1
        held, cached = filled(20), filled(40)
        assert held.sum().item() + cached.sum().item() == 60 << 18
        del cached
        torch.tpu.set_per_process_memory_fraction(0.5, "tpu:0")
        assert torch.tpu.get_per_process_memory_fraction(0) == 0.5
        assert torch.tpu.mem_get_info()[1] == 64 << 20
        try:
            filled(16).sum().item()
        except torch.OutOfMemoryError as error:
            text = str(error)
            assert "Tried to allocate 16.00 MiB" in text and "32.00 MiB allowed" in text, text
        else:
            raise SystemExit("no error")
        del held
        steps = filled(8)
        for _ in range(20):
            steps = steps + 1
        assert steps[0].item() == 21
        assert filled(20).sum().item() == 20 << 18
        torch.tpu.set_per_process_memory_fraction(1.0)
        assert filled(50).sum().item() == 50 << 18
        for wrong, kind in ((1, TypeError), (1.5, ValueError), (-0.1, ValueError)):
            try:
                torch.tpu.set_per_process_memory_fraction(wrong)
            except kind:
                continue
            raise SystemExit("no error")
        """,
        {"TORCH_TPU_MEMORY": "64MiB"},
    )


def test_figures_of_pinned_memory():
    gc.collect()  # what earlier tests pinned
    torch.ones(1, device="tpu").item()  # torch.accelerator does nothing before a device's first memory
    torch.tpu.reset_accumulated_host_memory_stats()
    before = torch.tpu.host_memory_stats()
    x = torch.ones(MIB).pin_memory()
    now = torch.tpu.host_memory_stats()
    assert now["active_bytes.current"] - before["active_bytes.current"] == 4 * MIB
    assert now["active_bytes.allocated"] == 4 * MIB and now["active_requests.allocated"] == 1
    del x
    torch.tpu.reset_peak_host_memory_stats()
    torch.accelerator.empty_host_cache()
    after = torch.tpu.host_memory_stats_as_nested_dict()
    assert after["allocated_bytes"]["current"] < now["allocated_bytes.current"] and after["num_host_free"] > 0
    assert after["active_bytes"]["peak"] == before["active_bytes.current"]


def test_zeros_that_are_added_take_no_memory_of_their_own():
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    total = sum(torch.zeros(1 << 18, device="tpu") for _ in range(64)) + 1
    assert total[-1].item() == 1
    assert torch.tpu.max_memory_allocated() - before < 8 << 20


@pytest.mark.embedded_only(reason="a plugin's memory is the plugin's own")
def test_most_of_the_memory_is_written_in_place_at_every_tier():
    program = """
        import torch

        def step():
            x = torch.zeros(700, 1 << 10, device="tpu")
            x.add_(1)
            x.fill_(x[0, 0].item() + 1)
            x.mul_(2).relu_()
            return x[-1, -1].item()

        for _ in range(6):
            assert step() == 4
            torch.tpu.wait_for_compiles()
        assert torch.tpu.max_memory_allocated() < 3 << 20
    """
    run_python(program, {"TORCH_TPU_MEMORY": "4MiB"})


@pytest.mark.embedded_only(reason="a plugin plans a program's memory, and has no ready kernels")
def test_what_fits_operation_by_operation_fits_when_it_is_compiled():
    run_python(
        """
        import torch
        source = torch.rand(20 << 18)  # 20 MiB
        expected = source.sort()[0].cumsum(0).flip(0).sort()[0].cumsum(0)[3].item()
        for _ in range(6):
            x = source.to("tpu")
            for f in (torch.sort, lambda t: t.cumsum(0), lambda t: t.flip(0), torch.sort, lambda t: t.cumsum(0)):
                x = f(x)
                x = x if isinstance(x, torch.Tensor) else x[0]
            torch.testing.assert_close(x[3].item(), expected, rtol=1e-4, atol=1e-6)
            torch.tpu.wait_for_compiles()
        assert torch.tpu.metrics()["launches_tier1"] > 0
        """,
        {"TORCH_TPU_MEMORY": "128MiB", "TORCH_TPU_COMPILE_AFTER": "1"},
    )


@pytest.mark.embedded_only(reason="a plugin's program fails as a whole")
def test_a_step_that_has_no_memory_leaves_the_update_before_it():
    run_python(
        """
        import torch
        models = {}
        for device in ("cpu", "tpu"):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
            models[device] = model, torch.optim.SGD(model.parameters(), 0.01)

        def step(device, x):
            model, optimizer = models[device]
            loss = model(x.to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            found = loss.item()
            optimizer.step()  # one fragment with what comes next
            return found

        for n in 3 * (100, 20000, 100, 100):
            x = torch.randn(n, 64)
            if n == 100:
                torch.testing.assert_close(step("tpu", x), step("cpu", x))
            else:
                try:
                    step("tpu", x)
                except torch.OutOfMemoryError:
                    pass
                else:
                    raise SystemExit("no error")
            torch.tpu.wait_for_compiles()
        """,
        {"TORCH_TPU_MEMORY": "16MiB", "TORCH_TPU_COMPILE_AFTER": "1"},
    )


@pytest.mark.parametrize("compile_after", ["1", "1000000"])
def test_what_is_copied_ahead_of_the_device_leaves_it_room(compile_after):
    run_python(
        """
        import torch
        batch, total = torch.ones(8 << 20), torch.zeros((), device="tpu")  # 32 MiB
        for step in range(12):
            x = batch.to("tpu")
            total = total + (x * 2).cumsum(0)[9]
            del x
            if step == 3:
                torch.tpu.wait_for_compiles()
        assert total.item() == 240
        """,
        {"TORCH_TPU_MEMORY": "256MiB", "TORCH_TPU_COMPILE_AFTER": compile_after},
    )


def test_freed_memory_is_used_again():
    run_python(
        """
        import torch
        x = torch.zeros(16 << 20, device="tpu")  # 64 MiB of 256
        for i in range(50):
            x = x + 1
        assert x[0].item() == 50
        assert torch.tpu.max_memory_reserved() <= 256 << 20
        """,
        {"TORCH_TPU_MEMORY": "256MiB"},
    )


def test_results_nobody_reads_are_not_computed(metrics):
    x = torch.ones(8, device="tpu")
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    y = x.exp()
    del y
    assert (x + 1)[0].item() == 2
    assert torch.tpu.metrics()["dropped_ops"] >= 1


def test_flat_memory_without_reads():
    steps = 2000 if EMBEDDED else 500  # a plugin's take 25 ms
    done = run_python(f"""
        import resource, torch, torch.nn as nn
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).to("tpu")
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(16, 32, device="tpu")
        def rss():
            return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
        for step in range({steps}):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            if step == 100:
                torch.tpu.wait_for_compiles()
                early = rss()
        torch.tpu.synchronize()
        print(early, rss())
    """)
    early, late = map(int, done.stdout.split())
    assert late < early * 1.05, (early, late)


@pytest.mark.parametrize("size", [0, 1, 3, 4097])
def test_odd_sizes(size):
    x = torch.arange(size, device="tpu", dtype=torch.uint8)
    assert (x + 1).cpu().tolist() == [(i + 1) % 256 for i in range(size)]


@pytest.mark.embedded_only(reason="counts the code that the embedded device has loaded")
def test_code_of_old_fragments_is_given_up():
    program = """
        import torch

        def loaded():
            with open("/proc/self/maps") as maps:
                return sum(line.split()[1] == "r-xp" and len(line.split()) == 5 for line in maps)

        counts = []
        for size in [*range(1, 91), 1, 2, 3]:
            x = torch.arange(float(size + 40 * (size % 7))).view(-1, 1).expand(-1, size * 5 % 13 + 1)  # no two alike
            for _ in range(3):
                found = (x.to("tpu") * 2 + size).softmax(0).cumsum(0).cpu()
                torch.tpu.wait_for_compiles()
                torch.testing.assert_close(found, (x * 2 + size).softmax(0).cumsum(0))
            counts.append(loaded())
        print(counts[29], max(counts[30:]), torch.tpu.metrics()["launches_tier1"])
    """
    settled, most, compiled = map(int, run_python(program, environment={"TORCH_TPU_KNOWN_OPS": "60"}).stdout.split())
    assert compiled > 60
    assert 0 < settled and most < 2 * settled


@pytest.mark.embedded_only(reason="what is given up is the recorder's, and a plugin compiles for every pair of sizes")
def test_calls_of_old_sizes_are_given_up():
    """What values are of outlives the calls that made them, and sizes that come back are right."""
    program = """
        import random, torch

        sizes = [(a, b) for a in range(1, 65) for b in range(1, 65)]
        random.Random(0).shuffle(sizes)  # fragments that follow no size: compile jobs hold them
        kept = []
        for i, (a, b) in enumerate(sizes + sizes[:200]):
            x = torch.full((a, b), 2.0, device="tpu")
            y = (x * 3 + x.t().sum(0)[:1]).view(-1)[1:].exp()
            if i % 50 == 0:
                kept.append((a, b, y))
                torch.tpu.synchronize()
        for a, b, y in kept:
            assert y.shape == (a * b - 1,) and (y + 0).shape == y.shape
            torch.testing.assert_close(y.cpu(), torch.full((a * b - 1,), 6.0 + 2 * b).exp())
        found = torch.tpu.metrics()
        print(found["inferences"], found["signatures_given_up"])
    """
    environment = {"TORCH_TPU_KNOWN_OPS": "100", "TORCH_TPU_COMPILE_AFTER": "1000"}
    made, given_up = map(int, run_python(program, environment=environment).stdout.split())
    assert made > 10_000 and made - given_up < 1500, (made, given_up)


@pytest.mark.embedded_only(reason="its pool has a job for every new fragment")
def test_freed_tensors_of_the_cpu_do_not_fill_the_heap_with_holes():
    """Between them lie the small things that a new size leaves: 68 MiB a step stayed in the process."""
    program = """
        import torch
        from torch.testing import assert_close, make_tensor

        most = 0
        for step in range(40):
            x = make_tensor((1029, 917 + step), dtype=torch.complex128, device="tpu")
            assert_close(x.cos().cpu(), torch.from_numpy(x.cpu().numpy()).cos())
            with open("/proc/self/statm") as memory:
                most = max(most, int(memory.read().split()[1]) * 4096)
        print(most)
    """
    assert int(run_python(program).stdout) < 1700 * MIB


@pytest.mark.embedded_only(reason="how a plugin maps its code is its own")
def test_code_takes_few_mappings():
    """Linux lets a process have so many: 65530, where nobody says otherwise."""

    def mappings():
        with open("/proc/self/maps") as maps:
            return sum(" r-xp " in line or " r--p " in line for line in maps)

    def programs():
        counted = torch.tpu.metrics()
        return counted["compiles"] + counted["disk_cache_hits"]

    x = torch.rand(64, 16, device="tpu")
    functions = [torch.sin, torch.cos, torch.exp, torch.tanh, torch.sigmoid, torch.erf, torch.log1p]
    before, known = mappings(), programs()
    for f in functions:
        for g in functions:
            for _ in range(8):  # known only when it has been seen some times
                g(f(x) * 3).sum(1).cpu()
    torch.tpu.wait_for_compiles()
    assert programs() - known >= 40
    assert mappings() - before < 40
