"""python -m torch_tpu.aot: a program's fragments compiled for TPUs, and modules that can't be."""

import json
import subprocess
import sys

import pytest
from torch_tpu import _C, _plugins

pytestmark = pytest.mark.skipif(
    not hasattr(_C, "Topology") or _plugins.find("libtpu") is None, reason="needs libtpu and a build with PJRT"
)

SCRIPT = """
import torch
w = torch.randn(64, 64, device="tpu")
for _ in range(3):
    w = torch.nn.functional.gelu(w @ w.T / 64)
print(w.sum().item())
"""


def run_aot(*arguments):
    return subprocess.run([sys.executable, "-m", "torch_tpu.aot", *arguments], capture_output=True, text=True)


def test_a_script_is_compiled_for_a_chip(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    told = run_aot("--topology", "v5e:2x2", "--output", str(tmp_path / "out"), str(tmp_path / "script.py"))
    assert told.returncode == 0, told.stdout + told.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["fragments"] and all(not r.get("error") for r in report["results"]["v5e:2x2"])
    assert max(r["costs"]["flops"] for r in report["results"]["v5e:2x2"]) >= 2 * 64**3
    assert "fragments compile" in told.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert "HBM peak" in page and "http" not in page


def test_a_bad_module_is_told_and_the_others_go_on(tmp_path):
    good = "module @good { func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> } }"
    (tmp_path / "a.mlir").write_text("module @bad { not a function }")
    (tmp_path / "b.mlir").write_text(good)
    told = run_aot("--modules", str(tmp_path), "--output", str(tmp_path / "out"))
    assert told.returncode == 1
    results = json.loads((tmp_path / "out" / "report.json").read_text())["results"]["v5e:2x2"]
    assert results[0]["error"] and "error" not in results[1]
