"""The cache on disk: a second process compiles nothing, and no state of the directory is ever more than a miss."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import textwrap
import time

import pytest
from helpers import nobody_waited, run_python

PROGRAM = """
    import torch, torch.nn.functional as F
    x = torch.arange(40.0).reshape(5, 8)
    expected = (F.gelu(x) @ x.t()).softmax(-1)
    for _ in range(4):
        y = x.to("tpu")
        found = (F.gelu(y) @ y.t()).softmax(-1).cpu()
        torch.tpu.wait_for_compiles()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    m = torch.tpu.metrics()
    print(m["compiles"], m["disk_cache_hits"], m["disk_cache_errors"], m["compile_wait_ms"])
"""


def run(directory, **environment):
    done = run_python(PROGRAM, {"TORCH_TPU_CACHE": str(directory), **environment})
    compiles, hits, errors, wait = (float(x) for x in done.stdout.split())
    assert nobody_waited(wait)
    return compiles, hits, errors, done.stderr


def files(directory):
    return [p for p in pathlib.Path(directory).rglob("*") if p.is_file()]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    directory = tmp_path_factory.mktemp("filled")
    compiles, hits, _, _ = run(directory)
    assert compiles > 0 and hits == 0 and files(directory)
    return directory


@pytest.fixture
def warm(filled, tmp_path):
    return shutil.copytree(filled, tmp_path / "warm")


def test_a_second_process_compiles_nothing(warm):
    compiles, hits, errors, _ = run(warm)
    assert compiles == 0 and hits > 0 and errors == 0


def test_what_xla_is_told_is_part_of_the_key(tmp_path):
    def compiles(flags):
        environment = {"TORCH_TPU_CACHE": str(tmp_path), "TORCH_TPU_PLUGIN": "cpu", "XLA_FLAGS": flags}
        return int(run_python(PROGRAM, environment).stdout.split()[0])

    assert compiles("") > 0 and compiles("") == 0
    for value in ("true", "false"):  # ours is false, and the user's holds
        assert compiles(f"--xla_cpu_enable_fast_min_max={value}") > 0
    for value in ("true", "false"):
        (tmp_path / "flags").write_text(f"--xla_cpu_enable_fast_math={value}")
        assert compiles(str(tmp_path / "flags")) > 0


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "garbage", "swap", "pipe"])
def test_damaged_files_are_misses(warm, damage):
    entries = files(warm)
    contents = [p.read_bytes() for p in entries]
    for path, content in zip(entries, contents, strict=True):
        if damage == "truncate":
            path.write_bytes(content[: len(content) // 2])
        elif damage == "flip":
            middle = len(content) // 2
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        elif damage == "empty":
            path.write_bytes(b"")
        elif damage == "garbage":
            path.write_bytes(os.urandom(len(content)))
        elif damage == "pipe":  # that nobody writes to
            path.unlink()
            os.mkfifo(path)
        else:
            path.write_bytes(contents[0] + b"tail")
    compiles, hits, _, _ = run(warm)
    assert compiles > 0 and hits == 0
    compiles, _, _, _ = run(warm)  # and the damage is repaired
    assert compiles == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files(warm):
    for path in files(warm):
        path.chmod(0)
    assert run(warm)[0] > 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_unwritable_directory(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert run(tmp_path)[0] > 0
    tmp_path.chmod(stat.S_IRWXU)


def test_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    compiles, _, _, stderr = run(tmp_path / "file" / "cache")
    assert compiles > 0 and stderr.count("cache") <= 2, stderr


def test_full_file_system():
    compiles, hits, _, stderr = run("/dev/full/cache")
    assert compiles > 0 and hits == 0
    assert stderr.lower().count("warning") <= 1, stderr


def test_read_only_directories_behind_the_writable_one(warm, tmp_path_factory):
    compiles, hits, _, _ = run(f"{tmp_path_factory.mktemp('front')}:{warm}")
    assert compiles == 0 and hits > 0


def test_size_is_bounded(tmp_path):
    run_python(
        """
        import torch
        for n in range(2, 40):
            x = torch.ones(n, device="tpu")
            for _ in range(3):
                (x.sin() * 2).cpu()
            torch.tpu.wait_for_compiles()
        """,
        {"TORCH_TPU_CACHE": str(tmp_path), "TORCH_TPU_CACHE_SIZE": "64KiB"},
    )
    assert sum(p.stat().st_size for p in files(tmp_path)) <= 128 * 1024


def test_two_processes_at_once(tmp_path):
    environment = {**os.environ, "TORCH_TPU_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.wait(timeout=240) for process in both] == [0, 0]
    for process in both:
        process.stdout.close()
    assert run(tmp_path)[0] == 0


def test_a_process_killed_while_writing(tmp_path):
    environment = {**os.environ, "TORCH_TPU_CACHE": str(tmp_path), "TORCH_TPU_COMPILE_AFTER": "1"}
    program = "import torch\nfor n in range(2, 500):\n  (torch.ones(n, device='tpu').sin() * 2).cpu()\n"
    for delay in (0.1, 0.3):
        process = subprocess.Popen([sys.executable, "-c", program], env=environment)
        deadline = time.time() + 60
        while not files(tmp_path) and time.time() < deadline and process.poll() is None:
            time.sleep(0.05)
        time.sleep(delay)
        process.kill()
        process.wait()
    _, _, errors, _ = run(tmp_path)
    assert errors == 0
