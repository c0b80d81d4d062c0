"""Tensors and models leave and come back: save/load with map_location, pickle, deepcopy, DataLoader, DLPack, numpy."""

import copy
import gc
import io
import pickle

import pytest
import torch
import torch.nn as nn
from helpers import assert_same
from torch.utils.data import DataLoader, TensorDataset


def round_trip(obj, **options):
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


@pytest.mark.parametrize("target", [None, "cpu", "tpu", "tpu:0", torch.device("tpu")])
def test_save_and_load(target):
    x = torch.randn(3, 4, device="tpu")
    found = round_trip({"x": x, "t": x.t()}, map_location=target)
    assert found["x"].device.type == ("tpu" if target is None else torch.device(target).type)
    torch.testing.assert_close(found["x"].cpu(), x.cpu())
    assert found["t"].stride() == x.t().stride()
    assert found["t"].untyped_storage().data_ptr() == found["x"].untyped_storage().data_ptr()


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, file = nn.Linear(3, 4), tmp_path / "model.safetensors"
    safetensors.save_file(model.to("tpu").state_dict(), file)
    for target in ("cpu", "tpu", "tpu:0", torch.device("tpu")):
        found = safetensors.load_file(file, device=target)
        assert {t.device.type for t in found.values()} == {torch.device(target).type}
        torch.testing.assert_close(found["weight"].cpu(), model.weight.detach().cpu())
    other = nn.Linear(3, 4).to("tpu")
    safetensors.load_model(other, file, device="tpu")
    assert torch.equal(other.weight, model.weight)


def test_cpu_checkpoint_onto_tpu():
    x = torch.randn(3)
    found = round_trip(x, map_location="tpu")
    assert found.device.type == "tpu"
    torch.testing.assert_close(found.cpu(), x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float64, torch.complex64])
def test_dtypes(dtype):
    x = torch.arange(5).to(dtype)
    assert torch.equal(round_trip(x.to("tpu")).cpu(), x)


def test_model_state():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to("tpu")
    state = round_trip(model.state_dict(), map_location="cpu")
    other = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    other.load_state_dict(state)
    other.to("tpu")
    x = torch.randn(2, 3, device="tpu")
    torch.testing.assert_close(model.eval()(x).cpu(), other.eval()(x).cpu())


def test_module_to_keeps_parameters():
    model = nn.Linear(3, 3)
    parameters = list(model.parameters())
    model.to("tpu")
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    model.cpu()
    assert all(p.device.type == "cpu" for p in parameters)


def test_pickle_and_deepcopy():
    x = torch.randn(4, device="tpu", requires_grad=True)
    for other in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert other.requires_grad and other.device.type == "tpu"
        torch.testing.assert_close(other.detach().cpu(), x.detach().cpu())
    with torch.no_grad():
        other.add_(1)
    assert not torch.equal(other.detach().cpu(), x.detach().cpu())


def test_deepcopy_keeps_aliasing():
    x = torch.zeros(4, device="tpu")
    a, b = copy.deepcopy((x, x[1:]))
    a.fill_(2)
    assert b.tolist() == [2, 2, 2]


def test_data_loader_pins_memory():
    data = TensorDataset(torch.arange(12.0).reshape(6, 2))
    for pin in (True, False):
        loader = DataLoader(data, batch_size=2, pin_memory=pin, num_workers=1 if pin else 0)
        batches = [batch for (batch,) in loader]
        assert all(batch.is_pinned() == pin for batch in batches)
        assert torch.cat([b.to("tpu", non_blocking=True) for b in batches]).cpu().tolist() == data.tensors[0].tolist()


def test_pin_memory():
    x = torch.randn(5)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned() and pinned[1:].is_pinned()
    torch.testing.assert_close(pinned, x)
    assert torch.empty(3, pin_memory=True).is_pinned()
    y = pinned.to("tpu", non_blocking=True)
    pinned.fill_(0)  # the copy has the value of its moment
    torch.testing.assert_close(y.cpu(), x)


def test_numpy_and_lists():
    import numpy

    assert torch.tensor([[1, 2], [3, 4]], device="tpu").tolist() == [[1, 2], [3, 4]]
    assert torch.as_tensor(numpy.ones(3), device="tpu").cpu().numpy().sum() == 3


def test_dlpack_shares_memory():
    x = torch.arange(12.0, device="tpu").reshape(3, 4)
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLExtDev, 0)
    for part in (x, x[1:, ::2], x.t()):
        for y in (torch.from_dlpack(part), torch.from_dlpack(torch.utils.dlpack.to_dlpack(part))):
            assert y.tolist() == part.tolist()
            assert y.device == x.device and y.stride() == part.stride() and y.storage_offset() == part.storage_offset()
    torch.from_dlpack(x[1]).add_(100)
    assert x[1].tolist() == [104, 105, 106, 107]
    torch.from_dlpack(x, copy=True).zero_()
    assert x[1].tolist() == [104, 105, 106, 107]
    empty = torch.from_dlpack(torch.empty(0, 3, device="tpu"))
    assert empty.shape == (0, 3) and empty.sum().item() == 0
    with pytest.raises(BufferError):
        torch.from_dlpack(x.clone().requires_grad_())


def test_dlpack_capsule_outlives_its_tensor():
    capsule = (torch.ones(3, device="tpu") * 2).__dlpack__()
    gc.collect()
    assert torch.from_dlpack(capsule).tolist() == [2, 2, 2]


def test_dlpack_to_other_libraries_is_a_copy_on_the_cpu():
    x = torch.arange(4.0, device="tpu")
    capsule = x.__dlpack__(dl_device=(torch.utils.dlpack.DLDeviceType.kDLCPU, 0))
    assert torch.from_dlpack(capsule).tolist() == x.tolist()
    assert torch.from_dlpack(x, device="cpu").tolist() == x.tolist()
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(torch.utils.dlpack.DLDeviceType.kDLCPU, 0), copy=False)


def test_storage():
    storage = torch.arange(4, dtype=torch.uint8, device="tpu").untyped_storage()
    assert storage.nbytes() == 4 and storage.device.type == "tpu"
    assert list(storage.cpu()) == [0, 1, 2, 3]
    assert list(storage.clone().cpu()) == [0, 1, 2, 3]


def traced(device):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv1d(3, 4, 3), torch.nn.ReLU(), torch.nn.ConvTranspose1d(4, 2, 3, groups=2))
    return torch.jit.trace(net.to(device), torch.randn(2, 3, 9).to(device))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_traces_of_convolutions(device):
    """PyTorch traces them as `_convolution`: what was traced on any device runs and trains here."""
    file = io.BytesIO()
    torch.jit.save(traced(device), file)
    file.seek(0)
    loaded, expected = torch.jit.load(file, map_location="tpu"), traced("cpu")
    x = torch.randn(2, 3, 9)
    found = loaded(x.to("tpu"))
    assert_same(expected(x), found)
    expected(x).sum().backward()
    found.sum().backward()
    for a, b in zip(expected.parameters(), loaded.parameters(), strict=True):
        assert_same(a.grad, b.grad)
