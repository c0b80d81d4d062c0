"""python -m torch_tpu.aot: programs and graphs compiled for TPUs and for a GPU, and modules that can't be."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import reached_ops
from helpers import run_python
from torch_tpu import _C, _plugins

pytestmark = pytest.mark.skipif(
    not hasattr(_C, "Topology") or _plugins.find("libtpu") is None, reason="needs libtpu and a build with PJRT"
)

ROOT = pathlib.Path(__file__).parents[2]
TPU_OPT = ROOT / "build" / "tools" / "tpu-opt"
CHIPS = ["v5e:2x2", "tpu7x:2x2x1"]  # the oldest and the newest; the examples are compiled for what lies between, too

SCRIPT = """
import torch
w = torch.randn(64, 64, device="tpu")
for _ in range(3):
    w = torch.nn.functional.gelu(w @ w.T / 64)
print(w.sum().item())
"""


def run_aot(*arguments, options=""):
    environment = os.environ | {"TORCH_TPU_PLUGIN": "host", "TORCH_TPU_PLUGIN_OPTIONS": options}
    command = [sys.executable, "-m", "torch_tpu.aot", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def compile_for_gpu(modules, devices=1):
    """The modules of a directory, for one or more NVIDIA H100 together; the error of each that does not compile."""
    if _plugins.find("cuda") is None:
        pytest.skip("needs jax-cuda13-pjrt")
    about = (ROOT / "tests" / "support" / "h100.txtpb").read_text()
    options = f"topology=1x1x{devices},target_config={about}"
    output = modules.parent / "gpu"
    arguments = ["--plugin", "cuda", "--topology", "h100", "--modules", str(modules), "--output", str(output)]
    told = run_aot(*arguments, options=options)
    assert (output / "report.json").exists(), told.stdout + told.stderr
    return [(f["name"], r["error"]) for f, r in results_of(output, "h100") if r.get("error")]


def results_of(output, chip):
    """(fragment, result) of each fragment for the chip."""
    report = json.loads((output / "report.json").read_text())
    return list(zip(report["fragments"], report["results"][chip], strict=True))


def test_a_script_is_compiled_for_a_chip(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    told = run_aot("--topology", "v5e:2x2", "--output", str(tmp_path / "out"), str(tmp_path / "script.py"))
    assert told.returncode == 0, told.stdout + told.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["fragments"] and all(not r.get("error") and not r.get("host") for r in report["results"]["v5e:2x2"])
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


def test_the_time_can_be_bounded(tmp_path):
    reads = "".join(f"print(torch.ones({n}, device='tpu').sin().sum().item())\n" for n in range(2, 8))
    (tmp_path / "script.py").write_text(SCRIPT + reads)
    told = run_aot("--seconds", "0.001", "--output", str(tmp_path / "out"), str(tmp_path / "script.py"))
    assert told.returncode == 0, told.stdout + told.stderr
    assert "not tried: the time was up" in told.stdout


@pytest.mark.timeout(900)
def test_every_reached_operator_compiles(tmp_path):
    told = run_aot("--topology", ",".join(CHIPS), "--output", str(tmp_path / "out"), reached_ops.__file__)
    for chip in CHIPS:
        results = results_of(tmp_path / "out", chip)
        assert [(f["name"], r["error"]) for f, r in results if r.get("error")] == [], told.stderr
        assert [f["name"] for f, r in results if r.get("host")] == []
        assert len(results) >= len(reached_ops.SAMPLES) - len(reached_ops.READ_AT_ONCE)
    assert compile_for_gpu(tmp_path / "out") == []


def modules_of(text, directory, prefix=""):
    """Each module of the text to a file of its own."""
    directory.mkdir(exist_ok=True)
    for module in re.findall(r"^module @.*?^}", text, re.M | re.S):
        name = re.match(r"module @([\w.]+)", module)[1]
        (directory / f"{prefix}{name}.mlir").write_text(module)


@pytest.mark.timeout(900)
@pytest.mark.skipif(not TPU_OPT.exists(), reason="tpu-opt is built with TORCH_TPU_TESTS=ON")
def test_every_graph_of_the_text_tests_compiles(tmp_path):
    modules = tmp_path / "modules"
    for file in sorted(ROOT.glob("tests/ir/lower/*.mlir")) + sorted(ROOT.glob("tests/ir/stablehlo/*.mlir")):
        for part, text in enumerate(file.read_text().split("// -----")):
            source = tmp_path / "part.mlir"
            source.write_text(text)
            emitted = subprocess.run([TPU_OPT, "--emit-stablehlo", source], capture_output=True, text=True)
            # A call that stays one has no module.
            assert [e for e in emitted.stderr.splitlines() if "no lowering to StableHLO" not in e] == []
            modules_of(emitted.stdout, modules, f"{file.stem}-{part}-")
    assert len(list(modules.glob("*.mlir"))) > 40
    told = run_aot("--topology", ",".join(CHIPS), "--modules", str(modules), "--output", str(tmp_path / "out"))
    assert told.returncode == 0, told.stdout[-4000:] + told.stderr[-4000:]
    assert compile_for_gpu(modules) == []


@pytest.mark.timeout(300)
@pytest.mark.skipif(not TPU_OPT.exists(), reason="tpu-opt is built with TORCH_TPU_TESTS=ON")
def test_every_collective_of_four_devices_compiles(tmp_path):
    emitted = subprocess.run([TPU_OPT, "--emit-exchanges", "4"], capture_output=True, text=True, check=True)
    modules_of(emitted.stdout, tmp_path / "modules")
    assert len(list((tmp_path / "modules").glob("*.mlir"))) == emitted.stdout.count("module @") > 60
    arguments = ["--modules", str(tmp_path / "modules"), "--output", str(tmp_path / "out")]
    told = run_aot("--topology", ",".join(CHIPS), *arguments)
    assert told.returncode == 0, told.stdout[-4000:] + told.stderr[-4000:]
    assert compile_for_gpu(tmp_path / "modules", devices=4) == []


PADDED = """
import test_sizes, torch
for name in ("head", "attention", "joined", "stacked", "scattered", "divided", "written"):
    for size in (20, 33, 47):
        getattr(test_sizes, name)(size, "tpu")
        torch.tpu.synchronize()
for name in ("perceptron", "heads", "pieced", "spread"):
    for sizes in test_sizes.PAIRS[:4]:
        getattr(test_sizes, name)(sizes, "tpu")
        torch.tpu.synchronize()
torch.tpu.wait_for_compiles()
"""


@pytest.mark.timeout(600)
@pytest.mark.skipif(_plugins.find("cpu") is None, reason="needs xla-cpu-pjrt")
def test_programs_for_padded_values_compile(tmp_path):
    path = os.pathsep.join([str(ROOT / "tests" / "python"), os.environ.get("PYTHONPATH", "")])
    environment = {"TORCH_TPU_DUMP": str(tmp_path / "dump"), "TORCH_TPU_PLUGIN": "cpu", "PYTHONPATH": path}
    run_python(PADDED, environment | {"TORCH_TPU_CACHE": str(tmp_path / "cache")})
    modules = tmp_path / "modules"
    modules.mkdir()
    for file in (tmp_path / "dump").glob("*-padded.stablehlo.mlir"):
        file.rename(modules / file.name)
    assert len(list(modules.iterdir())) >= 11
    told = run_aot("--topology", "v5e:2x2", "--modules", str(modules), "--output", str(tmp_path / "out"))
    assert told.returncode == 0, told.stdout[-4000:] + told.stderr[-4000:]
    assert compile_for_gpu(modules) == []
