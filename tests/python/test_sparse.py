"""Sparse tensors of every layout, as on the CPU."""

import io
import pickle

import pytest
import torch
from helpers import assert_same, compiled, run_python
from torch import nn
from torch.nn import functional as F

# PyTorch says that they are in beta and unchecked, by whichever test is first.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def coo(device, dtype=torch.float32):
    """With elements of several parts, in no order."""
    indices = torch.tensor([[0, 2, 1, 0, 2], [3, 1, 0, 3, 4]])
    values = torch.tensor([1.0, -2.0, 3.0, 4.0, 0.5])
    return torch.sparse_coo_tensor(indices, values, (3, 5), device=device, dtype=dtype)


def hybrid(device):
    indices = torch.tensor([[0, 2, 0]])
    return torch.sparse_coo_tensor(indices, torch.linspace(-1, 1, 12).view(3, 4), (3, 4), device=device)


def csr(device):
    return torch.sparse_csr_tensor([0, 2, 2, 3, 4], [0, 3, 2, 1], [1.0, -2.0, 3.0, 4.0], (4, 4), device=device)


def dense(device, *shape):
    return torch.linspace(-1, 2, torch.Size(shape).numel()).view(shape).to(device)


def told(x):
    """What can be compared of a result: of a sparse tensor its kind, and its elements."""
    if isinstance(x, tuple | list):
        return [told(y) for y in x]
    if not isinstance(x, torch.Tensor) or x.layout == torch.strided:
        return x
    return [x.layout, x.dtype, x.sparse_dim(), x.dense_dim(), x._nnz(), x.is_sparse and x.is_coalesced(), x.to_dense()]


def same(function, make=lambda device: device):
    """function(make(device)), on both."""
    one, other = (told(function(make(device))) for device in ("cpu", "tpu"))
    assert_same(one, other)


def saved_and_loaded(x, map_location=None, **options):
    file = io.BytesIO()
    torch.save(x, file, **options)
    file.seek(0)
    return torch.load(file, map_location)


COO = {
    "made": lambda x: x,
    "parts": lambda x: [x._indices(), x._values(), x._nnz(), x.sparse_dim(), x.dense_dim(), x.is_coalesced()],
    "coalesced": lambda x: [x.coalesce(), x.coalesce().indices().contiguous(), x.coalesce().values()],
    "moved": lambda x: x.cpu().to(x.device),
    "copied": lambda x: torch.empty_like(x).copy_(x),
    "cloned": lambda x: x.clone(),
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
    "saved": saved_and_loaded,
    "double": lambda x: x.double(),
    "from dense": lambda x: x.to_dense().to_sparse(),
    "from dense, hybrid": lambda x: x.to_dense().to_sparse(1),
    "transposed": lambda x: [x.t(), x.transpose(0, 1)],
    "numbers": lambda x: [x * 2, x / 2, 3 * x, -x, x.pow(2)],
    "of two": lambda x: [x.div(3, rounding_mode="floor"), x // 2],
    "sums": lambda x: [
        x + x,
        x + x.coalesce(),
        x.coalesce() + x.coalesce(),
        x - x.coalesce(),
        torch.add(x, x, alpha=2),
    ],
    "products": lambda x: [x * x, x * x.to_dense(), x.to_dense() * x],
    "dense and sparse": lambda x: [x.to_dense() + x, x.to_dense().add_(x, alpha=-0.5), x.to_dense() - x],
    "in place": lambda x: [x.clone().mul_(2), x.clone().add_(x), x.clone().zero_(), x.coalesce().clone().neg_()],
    "reduced": lambda x: [
        x.sum(),
        torch.sparse.sum(x),
        torch.sparse.sum(x, 0),
        torch.sparse.sum(x, 1),
        x.sum(0),
        x.norm(),
        x.coalesce().norm(),
    ],
    "selected": lambda x: [x.index_select(0, torch.tensor([2, 0], device=x.device)), x[0], x.narrow_copy(0, 1, 2)],
    "joined": lambda x: [torch.cat([x, x]), torch.stack([x, x])],
    "reshaped": lambda x: [x.unsqueeze(0), x.permute(1, 0), x.clone().sparse_resize_((4, 6), 2, 0)],
    "masked": lambda x: dense(x.device, 3, 5).sparse_mask(x.coalesce()),
    "masked by": lambda x: x.coalesce().sparse_mask((2 * x).coalesce()),
    "softmax": lambda x: [torch.sparse.softmax(x, 1), torch.sparse.log_softmax(x, 0)],
    "matrices": lambda x: [
        x @ dense(x.device, 5, 2),
        torch.sparse.mm(x, dense(x.device, 5, 2)),
        torch.sparse.mm(x, x.t()),
        x @ dense(x.device, 5),
        torch.addmm(dense(x.device, 3, 2), x, dense(x.device, 5, 2), beta=0.5, alpha=2),
        torch.sparse.addmm(dense(x.device, 3, 2), x, dense(x.device, 5, 2)),
        torch.hspmm(x, dense(x.device, 5, 2)),
        torch.bmm(torch.stack([x, x]), dense(x.device, 2, 5, 2)),
    ],
    "filled": lambda x: [torch.zeros_like(x), torch.zeros(2, 3, layout=torch.sparse_coo, device=x.device)],
    "nothing in it": lambda x: [torch.sparse_coo_tensor(size=(2, 3), device=x.device), (x * 0).coalesce()],
    "checked": lambda x: [x.isnan(), x.isinf()],
    "compressed": lambda x: [x.to_sparse_csr(), x.to_sparse_csc(), x.to_sparse_bsr((3, 1)), x.to_sparse_bsc((1, 5))],
}
COMPRESSED = {
    "made": lambda x: x,
    "parts": lambda x: [x.crow_indices(), x.col_indices(), x.values(), x._nnz(), x.sparse_dim(), x.dense_dim()],
    "moved": lambda x: x.cpu().to(x.device),
    "copied": lambda x: torch.empty_like(x).copy_(x),
    "cloned": lambda x: x.clone(),
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
    "saved": saved_and_loaded,
    "double": lambda x: x.double(),
    "others": lambda x: [x.to_sparse(), x.to_sparse_csc(), x.to_sparse_bsr((1, 2)), x.to_sparse_bsc((2, 2))],
    "back": lambda x: [x.to_sparse_csc().to_sparse_csr(), x.to_sparse_bsr((2, 1)).to_sparse()],
    "from dense": lambda x: [
        x.to_dense().to_sparse_csr(),
        x.to_dense().to_sparse_csc(),
        x.to_dense().to_sparse_bsr((2, 2)),
        x.to_dense().to_sparse_bsc((2, 2)),
    ],
    "transposed": lambda x: x.t(),
    "numbers": lambda x: [x * 2, 3 * x, -x],
    "written": lambda x: [x.clone().fill_(2), x.clone().resize_(5, 5)],
    "sums": lambda x: [x + x, x + 2 * x, x.to_dense() + x, torch.add(x, x, alpha=2)],
    "products": lambda x: [x * x, x * x.to_dense()],
    "in place": lambda x: [x.clone().mul_(2), x.clone().add_(x), x.clone().zero_(), x.clone().neg_()],
    "reduced": lambda x: [x.sum(), x.sum(0, keepdim=True), x.sum(1, keepdim=True)],
    "selected": lambda x: [x[0], x.select(1, 1)],
    "masked": lambda x: dense(x.device, 4, 4).sparse_mask(x),
    "matrices": lambda x: [
        x @ dense(x.device, 4, 2),
        torch.sparse.mm(x, dense(x.device, 4, 2)),
        torch.sparse.mm(x, x),
        x @ dense(x.device, 4),
        torch.addmm(dense(x.device, 4, 2), x, dense(x.device, 4, 2), beta=0.5, alpha=2),
        torch.sparse.mm(x, dense(x.device, 4, 2), reduce="mean"),
        torch.sparse.sampled_addmm(x, dense(x.device, 4, 3), dense(x.device, 3, 4)),
    ],
}


@pytest.mark.parametrize("name", COO)
def test_coo(name):
    same(COO[name], coo)


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed(name):
    same(COMPRESSED[name], csr)


ELEMENT_BY_ELEMENT = """abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac isinf isnan isneginf
    isposinf log1p neg rad2deg relu round sgn sign signbit sin sinh sqrt tan tanh trunc""".split()


def test_a_block_sparse_tensor_is_added_to_itself():
    def results(x):
        x = x.to_dense().to_sparse_bsr((2, 2))  # of two tensors PyTorch adds none
        return [x + x, torch.add(x, x, alpha=2)]

    same(results, csr)


@pytest.mark.parametrize("name", ELEMENT_BY_ELEMENT)
def test_element_by_element(name):
    def results(x):
        x = x.coalesce() if x.is_sparse else x
        in_place = getattr(torch.Tensor, name + "_", torch.clone)
        return [getattr(torch, name)(x * 0.2), in_place(x * 0.2)]

    same(results, coo)
    same(results, csr)


HYBRID = ["made", "coalesced", "moved", "cloned", "saved", "sums", "dense and sparse", "in place", "selected", "joined"]


@pytest.mark.parametrize("name", HYBRID)
def test_rows(name):
    same(COO[name], hybrid)


GRADIENTS = {
    "of a matrix": lambda a, x: torch.sparse.mm(a, x),
    "of two sparse ones": lambda a, x: torch.sparse.mm(a, a.t()).to_dense(),
    "of all": lambda a, x: torch.addmm(x[:3], a, x, beta=2),
    "of sums": lambda a, x: torch.sparse.sum(a, 1).to_dense(),
    "of values": lambda a, x: a.coalesce().values(),
    "of a mask": lambda a, x: a.to_dense().sparse_mask(a.detach().coalesce()).to_dense(),
    "of a sum": lambda a, x: a.sum(),
    "of a product": lambda a, x: (a * a).to_dense(),
    "of softmax": lambda a, x: torch.sparse.softmax(a, 1).to_dense(),
    "to sparse": lambda a, x: x.to_sparse().to_dense() * 2,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    def gradients(device):
        a, x = coo(device).requires_grad_(), dense(device, 5, 2).requires_grad_()
        GRADIENTS[name](a, x).pow(2).sum().backward()
        return [t.grad.coalesce() if t.grad is not None and t.grad.is_sparse else t.grad for t in (a, x)]

    same(gradients)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_gradients_of_compressed_ones(reduce):
    def gradients(device):
        a, x = csr(device).requires_grad_(), dense(device, 4, 3).requires_grad_()
        (torch.sparse.mm(a, x, reduce=reduce) * dense(device, 4, 3)).sum().backward()
        return [a.grad, x.grad]

    same(gradients)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
}


LAYERS = {
    "embedding": lambda: nn.Embedding(11, 4, sparse=True),
    "with padding": lambda: nn.Embedding(11, 4, sparse=True, padding_idx=1),
    "of a largest norm": lambda: nn.Embedding(11, 4, sparse=True, max_norm=1.0),
    "bags of sums": lambda: nn.EmbeddingBag(11, 4, sparse=True, mode="sum"),
    "bags of means": lambda: nn.EmbeddingBag(11, 4, sparse=True, mode="mean"),
}


def trained(layer, optimizer, device, steps=3):
    torch.manual_seed(0)
    layer = LAYERS[layer]().to(device)
    optimizer = OPTIMIZERS[optimizer](list(layer.parameters()))
    for step in range(steps):
        optimizer.zero_grad()
        rows = torch.tensor([[1, 2, 1], [step, 9, 0]], device=device)
        (layer(rows).sum(-1) + layer(rows + 1).sum(-1)).pow(2).mean().backward()
        optimizer.step()
    return [layer.weight, layer.weight.grad.coalesce()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layer", LAYERS)
def test_embeddings_train(layer, optimizer):
    same(lambda device: trained(layer, optimizer, device))


def test_an_embedding_is_trained_without_reads_or_host_kernels(metrics):
    weight = nn.Parameter(torch.ones(11, 4, device="tpu"))
    rows = torch.tensor([1, 2, 1], device="tpu")
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.embedding(rows, weight, sparse=True).pow(2).sum().backward()
        optimizer.step()
    torch.tpu.synchronize()
    assert metrics()["host_kernel_calls"] == metrics()["reads"] == 0


def test_gradients_of_dense_and_sparse_uses_are_summed():
    def gradient(device, *uses):
        weight = dense(device, 11, 4).requires_grad_()
        rows = torch.tensor([1, 2, 1], device=device)
        for use in uses:
            (weight if use == "dense" else F.embedding(rows, weight, sparse=True)).pow(2).sum().backward()
        return weight.grad if "dense" in uses else weight.grad.coalesce()

    for uses in [("dense", "sparse"), ("sparse", "dense"), ("sparse", "sparse")]:
        same(lambda device, uses=uses: gradient(device, *uses))


def test_a_compiled_embedding_trains(fresh_dynamo):
    def weight(device, wrap):
        torch.manual_seed(0)
        layer = nn.Embedding(11, 4, sparse=True).to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        run = wrap(lambda rows: layer(rows).pow(2).sum())
        for step in range(3):
            optimizer.zero_grad()
            run(torch.tensor([1, step, 1], device=device)).backward()
            optimizer.step()
        return [layer.weight, layer.weight.grad.coalesce()]

    assert_same(told(weight("cpu", lambda f: f)), told(weight("tpu", compiled)))


def test_loads_where_it_is_told():
    file = io.BytesIO()
    torch.save([coo("tpu"), csr("tpu")], file)
    file.seek(0)
    for x, expected in zip(torch.load(file, map_location="cpu"), (coo("cpu"), csr("cpu")), strict=True):
        assert x.device.type == "cpu"
        assert torch.equal(x.to_dense(), expected.to_dense())


def test_a_graph_network_trains():
    def weights(device):
        torch.manual_seed(0)
        layers = [nn.Linear(5, 8), nn.Linear(8, 3)]
        parameters = [p for layer in layers for p in layer.to(device).parameters()]
        optimizer = torch.optim.Adam(parameters, lr=0.01)
        edges = (torch.eye(6) + torch.eye(6).roll(1, 0)).to(device)
        x = dense(device, 6, 5)
        for adjacency in (edges.to_sparse(), edges.to_sparse_csr(), edges.to_sparse()):
            optimizer.zero_grad()
            hidden = torch.sparse.mm(adjacency, layers[0](x)).relu()
            F.cross_entropy(adjacency @ layers[1](hidden), torch.arange(6, device=device) % 3).backward()
            optimizer.step()
        return parameters

    same(weights)


def test_rows_are_counted_of_indices_with_gaps():
    rows = torch.tensor([[0, 9], [0, 9], [2, 9], [3, 9]], device="tpu")[:, 0]
    assert torch._convert_indices_from_coo_to_csr(rows, 5).tolist() == [0, 2, 2, 3, 4, 4]


def test_host_kernels_are_counted_by_name(metrics):
    torch.sparse.mm(coo("tpu"), dense("tpu", 5, 2))
    (coo("tpu") + coo("tpu")).coalesce()
    kernels = torch.tpu.explain().host_kernels
    assert kernels == {"aten::addmm": 1, "aten::add.Tensor": 1, "aten::_coalesce": 1}
    assert metrics()["host_kernel_calls"] == 3


def test_host_kernels_can_be_forbidden():
    run_python(
        """
        import torch
        x = torch.sparse_coo_tensor(torch.tensor([[0], [1]]).to("tpu"), torch.ones(1, device="tpu"), (3, 3))
        (torch.ones(3, 3, device="tpu") + x * 2).sum().item()
        try:
            x @ torch.ones(3, 3, device="tpu")
        except NotImplementedError as error:
            assert "aten::mm runs only as a host kernel" in str(error), error
        else:
            raise AssertionError
        """,
        {"TORCH_TPU_FALLBACK": "error"},
    )


@pytest.mark.parametrize("mode", ["strict", "debug"])
def test_modes(mode):
    torch.tpu.set_eager_mode(mode)
    same(lambda device: trained("embedding", "SparseAdam", device))


def test_what_was_recorded_is_finished_before_it_is_read():
    def result(device):
        values = dense(device, 3) * 2
        x = torch.sparse_coo_tensor(torch.tensor([[2, 0, 2]], device=device), values + 1, (4,))
        values.mul_(100)
        y = x.coalesce()
        x._values().zero_()
        return [y, x]

    same(result)


def elsewhere(x, *shape):
    return dense("cpu" if x.device.type == "tpu" else "tpu", *shape)


ERRORS = {
    "sum on two devices": lambda x: x + elsewhere(x, 3, 5).to_sparse(),
    "sum with a dense one on two devices": lambda x: elsewhere(x, 3, 5) + x,
    "product on two devices": lambda x: x * elsewhere(x, 3, 5),
    "product of matrices on two devices": lambda x: x @ elsewhere(x, 5, 2),
    "mask on two devices": lambda x: elsewhere(x, 3, 5).sparse_mask(x.coalesce()),
    "sizes": lambda x: x.to_dense()[:2] + x,
    "sizes of matrices": lambda x: x @ dense(x.device, 4, 2),
    "of indices": lambda x: torch.sparse_coo_tensor(x._indices() + 9, x._values(), x.shape, check_invariants=True),
    "parts of what is not coalesced": lambda x: x.indices(),
    "no such operator": lambda x: x.cumsum(0),
    "exponential": lambda x: x.exp(),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        ERRORS[name](coo("cpu"))
    with pytest.raises(expected.type) as found:
        ERRORS[name](coo("tpu"))
    said, theirs = str(found.value), str(expected.value)
    if "two devices" in name:
        assert "device" in said
    else:  # the rest of what is said of a missing kernel is a list of those there are
        assert said.split(" backend")[0].replace("Sparsetpu", "SparseCPU") == theirs.split(" backend")[0]


def test_invariants_are_checked():
    places, numbers = torch.tensor([[0, 1, 2], [2, 0, 1]], device="tpu"), torch.ones(3, device="tpu")

    def make(places, sizes=(3, 3)):
        return torch.sparse_coo_tensor(places, numbers, sizes, check_invariants=True, is_coalesced=True)

    assert make(places).is_coalesced()
    for wrong, sizes in ((places.flip(1), (3, 3)), (places - 1, (3, 3)), (places, (2, 2)), (places[:, :2], (3, 3))):
        with pytest.raises(RuntimeError, match=r"uncoalesced|negative|inconsistent|nnz"):
            make(wrong, sizes)


def test_views_as_other_elements_share_memory():
    pairs = torch.tensor([[2.0, 3.0], [4.0, 5.0]], device="tpu")
    x = torch.sparse_coo_tensor(torch.tensor([[0, 2], [0, 1]], device="tpu"), pairs, (3, 3, 2))
    numbers = torch.view_as_complex(x)
    numbers._values().mul_(2)
    torch.view_as_real(numbers)._values()[0, 0] = 9
    assert x._values().tolist() == [[9, 6], [8, 10]]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr])
@pytest.mark.parametrize("zipped", [True, False])
def test_parts_are_saved_as_the_tensors_they_are(layout, zipped):
    size = (2, 2) if layout == torch.sparse_bsr else None
    x = torch.eye(4).to_sparse(layout=layout, blocksize=size)
    made = x.to("tpu")
    values = made._values() if layout == torch.sparse_coo else made.values()
    for target in ("cpu", "tpu"):
        y, found = saved_and_loaded([made, values], target, _use_new_zipfile_serialization=zipped)
        assert y.device.type == found.device.type == target
        assert torch.equal(y.to_dense().cpu(), x.to_dense())
        found.mul_(3)
        assert torch.equal(y.to_dense().cpu(), x.to_dense() * 3)
