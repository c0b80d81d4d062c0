"""Shared by every Python test: a cache directory of the run's own, fused mode and a fixed seed for each test."""

import os
import tempfile

# Before torch is imported anywhere: flags are read once.
os.environ.setdefault("TORCH_TPU_CACHE", tempfile.mkdtemp(prefix="torch_tpu_tests_"))

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_state():
    torch.manual_seed(0)
    torch.tpu.set_eager_mode("fused")
    yield
    torch.tpu.synchronize()


@pytest.fixture
def metrics():
    """Counters since the beginning of the test."""
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    return torch.tpu.metrics
