"""Shared by every Python test: a cache directory of the run's own, fused mode, a fixed seed for tests and modules.

A fragment that does not compile fails the test in which that is seen: it would run, slowly, on ready kernels.
"""

import os
import tempfile

# Before torch is imported anywhere: flags are read once. Every fragment is compiled, also those that run once.
os.environ.setdefault("TORCH_TPU_COMPILE_AFTER", "1")
os.environ.setdefault("TORCH_TPU_CACHE", tempfile.mkdtemp(prefix="torch_tpu_tests_"))

import pytest
import torch
from helpers import EMBEDDED


def pytest_collectstart(collector):
    """What a module draws as it is imported is the same in every run."""
    if isinstance(collector, pytest.Module):
        torch.manual_seed(0)


def pytest_collection_modifyitems(items):
    for item in items:
        for mark in item.iter_markers("embedded_only"):
            if not EMBEDDED:
                item.add_marker(pytest.mark.skip(reason=mark.kwargs["reason"]))


@pytest.fixture(autouse=True)
def fresh_state():
    torch.manual_seed(0)
    torch.tpu.set_eager_mode("fused")
    yield
    torch.tpu.synchronize()
    no_compile_failed()


def no_compile_failed():
    if torch.tpu.metrics()["compile_failures"] > 0:
        failed = [c for c in torch.tpu.explain().compiles if c["outcome"] not in ("compiled", "disk")]
        torch.tpu.reset_metrics()
        pytest.fail(f"fragments that do not compile: {failed}")


@pytest.fixture(scope="session", autouse=True)
def every_fragment_compiles():
    yield
    torch.tpu.wait_for_compiles()
    no_compile_failed()


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()


@pytest.fixture
def metrics():
    """Counters since the beginning of the test; what earlier ones left to compile is done."""
    torch.tpu.synchronize()
    torch.tpu.wait_for_compiles()
    no_compile_failed()
    torch.tpu.reset_metrics()
    return torch.tpu.metrics
