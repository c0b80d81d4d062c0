"""Autograd on tpu: gradients, hooks, double backward, custom functions, autocast, checkpointing."""

import copy

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from helpers import assert_same, check
from torch.utils.checkpoint import checkpoint


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def gradients(model, x):
    model.zero_grad()
    F.cross_entropy(model(x), torch.arange(len(x), device=x.device) % 4).backward()
    return [p.grad for p in model.parameters()]


def test_gradients_of_a_model():
    model = make_model()
    x = torch.randn(6, 8)
    assert_same(gradients(model, x), gradients(copy.deepcopy(model).to("tpu"), x.to("tpu")))


def test_hooks_run_in_order_and_change_gradients():
    def program(x):
        seen = []
        x = x.clone().requires_grad_()
        y = x * 2
        y.register_hook(lambda g: (seen.append("y"), g * 10)[1])
        x.register_post_accumulate_grad_hook(lambda t: seen.append("x"))
        y.sum().backward()
        return x.grad, seen

    check(program, torch.randn(3))


def test_module_hooks():
    model = make_model().to("tpu")
    shapes = []
    model[0].register_forward_hook(lambda m, i, o: shapes.append(tuple(o.shape)))
    model[3].register_full_backward_hook(lambda m, i, o: shapes.append(tuple(o[0].shape)))
    gradients(model, torch.randn(2, 8, device="tpu"))
    assert shapes == [(2, 16), (2, 4)]


def test_double_backward():
    def program(x):
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad((x.sin() * x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
        return first, second, third

    check(program, torch.randn(5))


def test_double_backward_through_a_model():
    def penalty(model, x):
        x = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
        model.zero_grad()
        g.pow(2).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    model, x = make_model(), torch.randn(3, 8)
    assert_same(penalty(model, x), penalty(copy.deepcopy(model).to("tpu"), x.to("tpu")), rtol=1e-4, atol=1e-4)


def test_gradcheck():
    x = torch.randn(3, 3, dtype=torch.float64, device="tpu", requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: (t @ t.t()).tanh().sum(0), (x,))


def test_custom_function():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

    def program(x):
        x = x.clone().requires_grad_()
        Cube.apply(x).sum().backward()
        return x.grad

    check(program, torch.randn(4))


def test_saved_tensor_versions_are_checked():
    x = torch.ones(3, device="tpu", requires_grad=True)
    y = x * 1
    z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


LISTS_IN_PLACE = [
    lambda tensors: torch._foreach_add_(tensors, 1.0),
    lambda tensors: torch._foreach_mul_(tensors, [t.clone() for t in tensors]),
    lambda tensors: torch._foreach_copy_(tensors, [t * 2 for t in tensors]),
    torch._foreach_exp_,
    torch._foreach_zero_,
]


@pytest.mark.parametrize("write", LISTS_IN_PLACE)
def test_writes_of_operators_on_lists_are_counted(write):
    x = torch.ones(3, device="tpu", requires_grad=True)
    y, other = x.exp(), torch.ones(2, device="tpu")
    write([other, y.detach()])
    assert (other._version, y._version) == (1, 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.inference_mode():
        frozen = torch.ones(3, device="tpu")
        write([frozen])
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        write([frozen])


def test_inplace_and_views_under_autograd():
    def program(x):
        x = x.clone().requires_grad_()
        y = x * 1
        y[1:].mul_(3)
        y.view(-1)[0] = 7
        y.sum().backward()
        return y, x.grad

    check(program, torch.randn(4))


def test_no_grad_inference_mode_detach():
    x = torch.ones(3, device="tpu", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        assert (x * 2).is_inference()
    assert not x.detach().requires_grad


def test_accumulation_and_retain_graph():
    def program(x):
        x = x.clone().requires_grad_()
        loss = (x * x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return x.grad

    check(program, torch.randn(3))


def test_anomaly_mode_names_the_function():
    x = torch.tensor([-1.0], device="tpu", requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="SqrtBackward0"):
        x.sqrt().sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_with_dropout(reentrant):
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh()).to("tpu")
    x = torch.randn(4, 8, device="tpu")

    def run(through_checkpoint):
        torch.manual_seed(3)
        layer.zero_grad()
        t = x.clone().requires_grad_()
        y = checkpoint(layer, t, use_reentrant=reentrant) if through_checkpoint else layer(t)
        y.sum().backward()
        return [y, t.grad] + [p.grad.clone() for p in layer.parameters()]

    for one, other in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu())


def test_autocast_bf16():
    model, x = make_model().to("tpu"), torch.randn(4, 8, device="tpu")
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("tpu")
        y = model(x)
        assert y.dtype == torch.bfloat16
        assert (x @ x.t()).dtype == torch.bfloat16
        assert F.softmax(y, -1).dtype == torch.float32
        assert (y + x[:, :4]).dtype == torch.float32
        loss = F.cross_entropy(y, torch.zeros(4, dtype=torch.int64, device="tpu"))
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    torch.testing.assert_close(y.float(), model(x), rtol=0.05, atol=0.05)


def test_autocast_agrees_with_cpu():
    model, x = make_model(), torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        found = copy.deepcopy(model).to("tpu")(x.to("tpu"))
    torch.testing.assert_close(found.cpu().float(), expected.float(), rtol=0.02, atol=0.02)


def test_grad_scaler():
    model = make_model().to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("tpu", init_scale=1024.0)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, device="tpu")).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert any(not torch.equal(a.cpu(), b.detach().cpu()) for a, b in zip(before, model.parameters(), strict=True))


def test_functorch():
    def program(x, w):
        return (
            torch.func.vmap(lambda row: (row * w).sum())(x),
            torch.func.grad(lambda t: (t * w).sin().sum())(x),
            torch.func.jacrev(lambda t: t.sin())(w),
        )

    check(program, torch.randn(3, 4), torch.randn(4))


@pytest.mark.parametrize("product", [torch.dot, torch.vdot, torch.mul, torch.linalg.cross])
def test_forward_gradients_where_one_side_has_none(product):
    def program(x, w, tangent):
        return torch.func.jvp(lambda t: product(t, w), (x,), (tangent,))

    check(program, torch.randn(3), torch.randn(3), torch.randn(3))
    zeros = torch._efficientzerotensor((3,), device="tpu")
    x = torch.randn(3, device="tpu")
    assert zeros.clone().tolist() == (zeros + 0 * x).tolist() == [0, 0, 0]
    assert product(zeros, x).eq(0).all()


ATTENTION = {
    "full": {},
    "causal": {"is_causal": True},
    "scaled": {"is_causal": True, "scale": 0.3},
    "mask": {"attn_mask": torch.randn(10, 10)},
    "bool_mask": {"attn_mask": torch.ones(10, 10, dtype=torch.bool).tril(2)},
    "first_sees_nothing": {"attn_mask": torch.ones(10, 10, dtype=torch.bool).tril(-1)},
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    options = ATTENTION[name]

    def program(q, k, v):
        moved = {key: o.to(q.device) if isinstance(o, torch.Tensor) else o for key, o in options.items()}
        q, k, v = (t.clone().requires_grad_() for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, **moved)
        y.sin().sum().backward()
        return y, q.grad, k.grad, v.grad

    check(program, *(torch.randn(2, 3, 10, 8) for _ in range(3)))


def test_attention_is_one_operation(metrics):
    q = torch.randn(2, 3, 10, 8, device="tpu")
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    F.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert metrics()["recorded_ops"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [(256, 256), (200, 150), (150, 200)])
@pytest.mark.parametrize("causal", [False, True])
def test_long_attention(causal, lengths, dtype):
    """Products that skip what the mask hides, tile by tile; projections and a bias around them."""

    def program(x, w, kv):
        x, w, kv = (t.clone().requires_grad_() for t in (x, w, kv))
        q = (x @ w).view(4, lengths[0], 4, 64).transpose(1, 2)
        k, v = kv.unbind()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        y.transpose(1, 2).reshape(4, lengths[0], 256).sin().sum().backward()
        return y.contiguous(), x.grad, w.grad, kv.grad

    data = torch.randn(4, lengths[0], 64), torch.randn(64, 256) / 8, torch.randn(2, 4, 4, lengths[1], 64)
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 0.1, "atol": 0.2}
    for _ in range(3):  # op by op, then compiled
        check(program, *(t.to(dtype) for t in data), **tolerance)
        torch.tpu.wait_for_compiles()


def test_attention_whose_result_has_no_gradient():
    def program(x):
        inputs = [x.clone().requires_grad_() for _ in range(3)]
        out = torch._C._functions.UndefinedGrad()(F.scaled_dot_product_attention(*inputs))
        return [g is None for g in torch.autograd.grad(out.sum(), inputs, allow_unused=True)]

    check(program, torch.randn(2, 3, 5, 4))


@pytest.mark.parametrize("heads", [4, 2])
def test_attention_goes_the_way_the_cpu_goes(heads):
    """One operator forward and one backward, whose tier 0 is the CPU's kernel; grouped heads as on the CPU."""

    def names(device):
        q = torch.randn(2, 4, 10, 8, device=device, requires_grad=True)
        k = torch.randn(2, heads, 10, 8, device=device)
        y = F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=heads != 4)
        return type(y.grad_fn).__name__, y.shape, y.stride()

    assert names("tpu") == names("cpu")


LAYERS = {
    "conv": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 9, 9)),
    "conv_groups": (lambda: nn.Conv2d(4, 8, 3, groups=2), (2, 4, 7, 7)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (2, 3, 5, 5)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, dilation=2), (2, 3, 9)),
    "conv1d weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3)), (2, 3, 9)),
    "conv1d weight_norm last": (lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3), dim=2), (2, 3, 9)),
    "batch_norm": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 5, 5)),
    "max_pool": (lambda: nn.MaxPool2d(2), (2, 3, 6, 6)),
    "avg_pool": (lambda: nn.AvgPool2d(3, 2, 1), (2, 3, 7, 7)),
    "adaptive_pool": (lambda: nn.AdaptiveAvgPool2d(2), (2, 3, 7, 7)),
    "lstm": (lambda: nn.LSTM(5, 6, 2, batch_first=True), (2, 4, 5)),
    "gru": (lambda: nn.GRU(5, 6), (4, 2, 5)),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), (2, 5, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    on_cpu = make()
    on_tpu = copy.deepcopy(on_cpu).to("tpu")
    x = torch.randn(shape)

    def run(layer, x):
        x = x.clone().requires_grad_()
        y = layer(x, x, x) if name == "attention" else layer(x)
        y = y[0] if isinstance(y, tuple) else y
        (y * torch.linspace(-1, 1, y.numel(), device=y.device).reshape(y.shape)).sum().backward()
        return [y.contiguous(), x.grad.contiguous()] + [p.grad.contiguous() for p in layer.parameters()]

    assert_same(run(on_cpu, x), run(on_tpu, x.to("tpu")), rtol=1e-4, atol=1e-4)
    for one, other in zip(on_cpu.buffers(), on_tpu.buffers(), strict=True):
        torch.testing.assert_close(other.cpu(), one)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LayerNorm(6),
        lambda: nn.LayerNorm(6, elementwise_affine=False),
        lambda: nn.RMSNorm(6),
        lambda: nn.GroupNorm(2, 4),
        lambda: nn.BatchNorm1d(4),
        lambda: nn.BatchNorm1d(4).eval(),
        lambda: nn.InstanceNorm1d(4, affine=True),
        lambda: nn.Linear(6, 3),
    ],
    ids=["layer", "layer without weights", "rms", "group", "batch", "batch in eval", "instance", "linear"],
)
def test_modules_in_16_bit_floats(make, dtype):
    def program(x, *parameters):
        torch.manual_seed(0)
        module = make().to(x.device, dtype)
        x = x.clone().requires_grad_()
        y = module(x)
        (y.float() * torch.arange(1, y.numel() + 1, device=x.device).view(y.shape).cos()).sum().backward()
        return y.detach(), x.grad, *[p.grad for p in module.parameters()]

    check(program, torch.randn(3, 4, 6).to(dtype), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("function", ["det", "slogdet"])
@pytest.mark.parametrize("lies", ["plain", "turned", "with gaps", "expanded"])
def test_determinants_of_matrices_wherever_they_lie(function, lies, dtype):
    """The factors are of the transposed matrix where it is contiguous; the derivative asks the tensor the same."""
    torch.manual_seed(0)
    matrices = torch.randn(3, 5, 5, dtype=dtype)

    def run(device):
        x = matrices.to(device).requires_grad_()
        views = {"turned": lambda: x.mT, "with gaps": lambda: x[:, ::2, 1:4], "expanded": lambda: x[:1].expand(4, 5, 5)}
        a = views.get(lies, lambda: x)()
        results = getattr(torch.linalg, function)(a)
        results = results if isinstance(results, tuple) else (results,)
        sum(r.abs().sum() for r in results[-1:]).backward()
        return *(r.detach().cpu() for r in results), x.grad.cpu()

    for ours, theirs in zip(run("tpu"), run("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs)
