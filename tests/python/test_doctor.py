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
    [("too_old", "too old"), ("too_new", "too new"), ("abort", "aborted the process"), ("error", "on fire")],
)
def test_a_bad_plugin_is_named(mode, why):
    told = run_doctor(TORCH_TPU_PLUGIN=str(FAKE), FAKE_PLUGIN=mode)
    assert told.returncode != 0
    assert str(FAKE) in told.stdout + told.stderr
    assert why in told.stdout + told.stderr


@needs_plugins
@needs_fake
def test_a_plugin_that_hangs_is_named(monkeypatch):
    monkeypatch.setenv("FAKE_PLUGIN", "hang")
    assert "hangs" in doctor.describe(str(FAKE), timeout=30)["error"]
