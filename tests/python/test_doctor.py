"""python -m torch_tpu.doctor: what it tells, and what it says of plugins that can't be used."""

import os
import pathlib
import subprocess
import sys

import pytest
from torch_tpu import _C, doctor

FAKE = pathlib.Path(__file__).parents[2] / "build" / "tests" / "libfake_plugin.so"
needs_plugins = pytest.mark.skipif(not hasattr(_C, "describe_plugin"), reason="built without xla-cpu-pjrt")
needs_fake = pytest.mark.skipif(not FAKE.exists(), reason="the fake plugin is built with TORCH_TPU_TESTS=ON")


def run_doctor(**environment):
    return subprocess.run(
        [sys.executable, "-m", "torch_tpu.doctor"], env=os.environ | environment, capture_output=True, text=True
    )


@needs_plugins
def test_it_tells_versions_plugins_caches_and_flags():
    told = run_doctor()
    assert told.returncode == 0, told.stdout + told.stderr
    for part in ("torch ", "PJRT plugins", "PJRT API 0.", "StableHLO", "program caches", "TORCH_TPU_PLUGIN", "right"):
        assert part in told.stdout


@needs_plugins
@needs_fake
@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("too_old", "too old"),
        ("too_new", "too new"),
        ("missing", "has no function PJRT_Client_Create"),
        ("abort", "aborted the process"),
        ("error", "on fire"),
    ],
)
def test_a_bad_plugin_is_named(mode, why):
    told = run_doctor(TORCH_TPU_PLUGIN=str(FAKE), FAKE_PLUGIN=mode)
    assert told.returncode != 0
    assert str(FAKE) in told.stdout + told.stderr
    assert why in told.stdout + told.stderr


@needs_plugins
@needs_fake
def test_a_plugin_that_is_none_or_of_another_machine_is_named(tmp_path):
    other = bytearray(FAKE.read_bytes())
    other[18:20] = b"\xb7\x00"  # the header of a library for AArch64
    for name, content, why in [("other.so", other, "can't be loaded"), ("text.so", b"no library", "can't be loaded")]:
        (tmp_path / name).write_bytes(content)
        told = run_doctor(TORCH_TPU_PLUGIN=str(tmp_path / name))
        assert told.returncode != 0
        assert name in told.stdout + told.stderr and why in told.stdout + told.stderr


@needs_plugins
@needs_fake
@pytest.mark.parametrize(("mode", "call"), [("execute_error", "Execute"), ("late_error", "PJRT_Event_Await")])
def test_errors_of_a_running_plugin_name_it_the_operator_and_the_line(mode, call):
    program = "import torch\nx = torch.ones(3, device='tpu')\ny = torch.sin(x)\nprint(y.cpu())\n"
    environment = os.environ | {"TORCH_TPU_PLUGIN": str(FAKE), "FAKE_PLUGIN": mode}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert told.returncode != 0
    for part in (str(FAKE), call, "on fire", "aten::", "f32[3]", "<string>:"):
        assert part in told.stderr, told.stderr


@needs_plugins
@needs_fake
def test_a_plugin_that_hangs_is_named(monkeypatch):
    monkeypatch.setenv("FAKE_PLUGIN", "hang")
    assert "hangs" in doctor.describe(str(FAKE), timeout=10)["error"]
