"""Every operator that models reach the device with gives the CPU's results, and runs where it should."""

import pathlib
import re

import pytest
import reached_ops
import torch


@pytest.mark.parametrize("name", reached_ops.SAMPLES)
def test_reached_operator(name, metrics):
    expected = reached_ops.run(name, "cpu")
    found = reached_ops.run(name, "tpu")
    found = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, found)
    torch.testing.assert_close(found, expected, equal_nan=True)
    kernels = torch.tpu.explain().host_kernels
    if torch.tpu.get_device_properties().target.startswith("pjrt:"):
        assert not kernels, f"{name} ran as host kernels {kernels}"


def test_the_table_is_whole():
    """The table names each operator of the list that models were seen to reach."""
    listed = pathlib.Path(__file__).with_name("reached_by_models.txt").read_text().split()
    known = {name.split(".")[0] for name in reached_ops.SAMPLES}
    assert [op for op in listed if op.removeprefix("aten::").split(".")[0] not in known] == []


def test_every_primitive_has_a_text_test_of_its_stablehlo():
    root = pathlib.Path(__file__).parents[2]
    declared = {
        name
        for file in (root / "compiler" / "ir").glob("*.td")
        if file.stem != "fusion"  # the host compiler's own
        for name in re.findall(r'^def Tpu_\w+\s+: \w+<"([a-z]\w*)"', file.read_text(), re.M)
    }
    tested = "".join(file.read_text() for file in (root / "tests" / "ir" / "stablehlo").glob("*.mlir"))
    assert len(declared) > 60
    assert [name for name in sorted(declared - {"aten"}) if not re.search(rf"\btpu\.{name}\b", tested)] == []
