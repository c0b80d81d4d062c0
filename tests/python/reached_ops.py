"""Every operator that models were seen to reach the device with: one sample each, on any device.

As a script it runs them all on tpu (`python -m torch_tpu.aot --topology v5e:2x2 tests/python/reached_ops.py`).
"""

import torch
import torch.nn.functional as F

aten = torch.ops.aten


def _floats(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def _unit(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


X, Y, Z = _floats(6, 8), _floats(6, 8) + 0.1, _unit(6, 8) + 0.5
IMAGE = _floats(2, 4, 8, 8)
LABELS = torch.tensor([0, 3, 7, 1, 2, 5])
INDEX = torch.tensor([0, 2, 5, 2])
MASK = X > 0


def _in_place(function):
    """The operator on a copy of its first argument, which is the result."""

    def run(x, *rest):
        x = x.clone()
        function(x, *rest)
        return x

    return run


def _backward(function):
    """The gradients of a function's float arguments."""

    def run(*arguments):
        leaves = [a.detach().requires_grad_() if a.is_floating_point() else a for a in arguments]
        function(*leaves).square().sum().backward()
        return [a.grad for a in leaves if a.is_floating_point()]

    return run


def _adamw(p, g):
    p = torch.nn.Parameter(p.clone())
    optimizer = torch.optim.AdamW([p], lr=0.1, fused=True)
    for _ in range(2):
        p.grad = g.clone()
        optimizer.step()
    return p.detach()


def _sgd(p, g):
    p = torch.nn.Parameter(p.clone())
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9, fused=True)
    for _ in range(2):
        p.grad = g.clone()
        optimizer.step()
    return p.detach()


def _unscale(g, scale):
    found = torch.zeros((), device=g.device)
    grads = [g.clone(), g.clone() * 2]
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
    return [*grads, found]


def _update_scale(scale):
    scale, growth = scale.clone(), torch.zeros((), dtype=torch.int32, device=scale.device)
    torch._amp_update_scale_(scale, growth, torch.zeros((), device=scale.device), 2.0, 0.5, 1)
    return scale, growth


def _moments(x):
    """Of random numbers only the kind can be compared."""
    return x.mean().abs() < 1, x.std() > 0.1


# Operator -> (function, arguments); the function's results on tpu are those on the CPU.
SAMPLES = {
    "_amp_foreach_non_finite_check_and_unscale_": (_unscale, (X, torch.tensor(0.5))),
    "_amp_update_scale_": (_update_scale, (torch.tensor(8.0),)),
    "_copy_from": (lambda x: x.to(torch.bfloat16).to(torch.float64), (X,)),
    "_embedding_bag": (lambda w, i, o: F.embedding_bag(i, w, o, mode="mean"), (X, INDEX, torch.tensor([0, 2]))),
    "_embedding_bag_backward": (
        lambda w, i, o: _backward(lambda v: F.embedding_bag(i, v, o, mode="sum"))(w),
        (X, INDEX, torch.tensor([0, 2])),
    ),
    "_fused_adamw_": (_adamw, (X, Y)),
    "_fused_sgd_": (_sgd, (X, Y)),
    "_has_compatible_shallow_copy_type": (lambda x: setattr(y := x.clone(), "data", x * 2) or y, (X,)),
    "_index_put_impl_": (_in_place(lambda x, i, v: x.index_put_((i,), v, accumulate=True)), (X, INDEX, _floats(4, 8))),
    "_local_scalar_dense": (lambda x: torch.tensor(x[2, 3].item()), (X,)),
    "_grouped_mm": (
        lambda a, b, c, ends: [
            _backward(lambda x, y: F.grouped_mm(x, y, offs=ends))(*pair)
            for pair in ((a, b), (b, c.T.contiguous()), (a.T.contiguous(), c))  # rows, columns, parts of sums
        ],
        (_floats(12, 8), _floats(3, 8, 16), _floats(12, 16), torch.tensor([4, 4, 12], dtype=torch.int32)),
    ),
    "_log_softmax": (lambda x: F.log_softmax(x, -1), (X,)),
    "_log_softmax_backward_data": (_backward(lambda x: F.log_softmax(x, -1)), (X,)),
    "_softmax": (lambda x: F.softmax(x, 0), (X,)),
    "_softmax_backward_data": (_backward(lambda x: F.softmax(x, -1)), (X,)),
    "_weight_norm_interface": (lambda v, g: torch._weight_norm(v, g, 1), (X, _unit(1, 8))),
    "_weight_norm_interface_backward": (
        _backward(lambda v, g: torch._weight_norm(v, g, 0)),
        (IMAGE, _unit(2, 1, 1, 1)),
    ),
    "_unique2": (lambda i: torch.unique(i, return_inverse=True), (INDEX,)),
    "abs": (torch.abs, (X,)),
    "add": (lambda x, y: torch.add(x, y, alpha=0.5), (X, Y)),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=0.3), (X, Y, Z)),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.3), (X, Y, Z)),
    "addmm": (lambda b, x, y: torch.addmm(b, x, y.T), (_floats(6), X, Y)),
    "all.all": (lambda m: m.all(), (MASK,)),
    "all": (lambda m: m.all(1), (MASK,)),
    "any.all": (lambda m: m.any(), (MASK,)),
    "arange": (lambda x: x + torch.arange(1, 17, 2, device=x.device), (X,)),
    "argmax": (lambda x: x.argmax(1), (X,)),
    "as_strided": (lambda x: x.as_strided((3, 4), (16, 2), 1) * 1, (X,)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), (IMAGE,)),
    "avg_pool2d_backward": (_backward(lambda x: F.avg_pool2d(x, 2)), (IMAGE,)),
    "binary_cross_entropy": (F.binary_cross_entropy, (_unit(6, 8), _unit(6, 8))),
    "binary_cross_entropy_backward": (
        lambda x, y: _backward(lambda p: F.binary_cross_entropy(p, y))(x),
        (_unit(6, 8), _unit(6, 8)),
    ),
    "bitwise_not": (lambda m: ~m, (MASK,)),
    "bmm": (torch.bmm, (_floats(3, 4, 5), _floats(3, 5, 6))),
    "cat": (lambda x, y: torch.cat([x, y], 1), (X, Y)),
    "cauchy_": (lambda x: _moments(x.clone().cauchy_().sigmoid() - 0.5), (_floats(100, 100),)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (X,)),
    "clamp_min.Tensor": (torch.clamp_min, (X, Y)),
    "clamp_min": (lambda x: x.clamp_min(0.1), (X,)),
    "convolution_overrideable": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), (IMAGE, _floats(6, 4, 3, 3), _floats(6))),
    "convolution_backward_overrideable": (
        _backward(lambda x, w, b: F.conv2d(x, w, b, 2, 1, groups=2)),
        (IMAGE, _floats(6, 2, 3, 3), _floats(6)),
    ),
    "cos": (torch.cos, (X,)),
    "cumsum": (lambda x: x.cumsum(1), (X,)),
    "digamma": (torch.digamma, (X,)),
    "div": (torch.div, (X, Z)),
    "embedding_dense_backward": (lambda w, i: _backward(lambda v: F.embedding(i, v))(w), (X, INDEX)),
    "empty.memory_format": (lambda x: torch.empty(3, 4, device=x.device).fill_(2), (X,)),
    "empty_strided": (lambda x: torch.empty_strided((3, 4), (1, 3), device=x.device).fill_(2), (X,)),
    "eq.Scalar": (lambda x: x == 0, (X,)),
    "eq.Tensor": (torch.eq, (LABELS, LABELS.flip(0))),
    "erfc": (torch.erfc, (X,)),
    "exp": (torch.exp, (X,)),
    "fill_.Scalar": (_in_place(lambda x: x.fill_(3)), (X,)),
    "ge.Scalar": (lambda x: x >= 0, (X,)),
    "gelu": (F.gelu, (X,)),
    "gelu_backward": (_backward(F.gelu), (X,)),
    "grid_sampler_2d": (lambda x, g: F.grid_sample(x, g, align_corners=False), (IMAGE, _floats(2, 3, 3, 2))),
    "grid_sampler_2d_backward": (
        _backward(lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=True)),
        (IMAGE, _floats(2, 3, 3, 2)),
    ),
    "gt.Scalar": (lambda x: x > 0, (X,)),
    "histc": (lambda x: torch.histc(x, 7, -1.5, 2), (X,)),
    "huber_loss": (F.huber_loss, (X, Y)),
    "huber_loss_backward": (_backward(F.huber_loss), (X, Y)),
    "index.Tensor": (lambda x, i: x[i], (X, INDEX)),
    "index_copy": (lambda x, i, v: x.index_copy(0, i, v), (X, torch.tensor([4, 1]), _floats(2, 8))),
    "index_select": (lambda x, i: x.index_select(1, i), (X, INDEX)),
    "isin.Tensor_Tensor": (torch.isin, (LABELS, INDEX)),
    "isneginf": (torch.isneginf, (torch.tensor([1.0, -torch.inf, torch.inf, torch.nan]),)),
    "leaky_relu": (F.leaky_relu, (X,)),
    "leaky_relu_backward": (_backward(F.leaky_relu), (X,)),
    "lerp.Scalar": (lambda x, y: torch.lerp(x, y, 0.3), (X, Y)),
    "lgamma": (torch.lgamma, (X,)),
    "linalg_cross": (torch.linalg.cross, (_floats(4, 3), _floats(4, 3))),
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=1), (X,)),
    "log_sigmoid_forward": (F.logsigmoid, (X,)),
    "lt.Tensor": (torch.lt, (X, Y)),
    "masked_fill_.Scalar": (_in_place(lambda x, m: x.masked_fill_(m, -1)), (X, MASK)),
    "masked_scatter": (lambda x, m, y: x.masked_scatter(m[0], y) + x.clone().masked_scatter_(m, y), (X, MASK, Y)),
    "masked_scatter_backward": (_backward(lambda y, x, m: x.masked_scatter(m, y)), (Y, X, MASK)),
    "max_pool2d_with_indices": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (IMAGE,)),
    "max_pool2d_with_indices_backward": (_backward(lambda x: F.max_pool2d(x, 2)), (IMAGE,)),
    "mean": (lambda x: x.mean(0), (X,)),
    "mm": (lambda x, y: x @ y.T, (X, Y)),
    "mse_loss": (F.mse_loss, (X, Y)),
    "mse_loss_backward": (_backward(F.mse_loss), (X, Y)),
    "mul": (torch.mul, (X, Y)),
    "multinomial": (lambda w: torch.multinomial(w, 3).sum() >= 0, (Z,)),
    "native_batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, w, True), (IMAGE, _unit(4))),
    "native_batch_norm_backward": (
        _backward(lambda x, w: F.batch_norm(x, None, None, w, w, True)),
        (IMAGE, _unit(4)),
    ),
    "native_dropout": (lambda x: _moments(F.dropout(x, 0.5)), (_floats(100, 100),)),
    "native_dropout_backward": (lambda x: _moments(_backward(lambda v: F.dropout(v, 0.5))(x)[0]), (_floats(100, 100),)),
    "native_group_norm": (lambda x, w: F.group_norm(x, 2, w, w), (IMAGE, _unit(4))),
    "native_group_norm_backward": (_backward(lambda x, w: F.group_norm(x, 2, w, w)), (IMAGE, _unit(4))),
    "native_layer_norm_backward": (_backward(lambda x, w: F.layer_norm(x, (8,), w, w)), (X, _unit(8))),
    "neg": (torch.neg, (X,)),
    "nll_loss_backward": (lambda x, t: _backward(lambda v: F.nll_loss(v, t))(x), (X, LABELS)),
    "nll_loss_forward": (F.nll_loss, (X, LABELS)),
    "nonzero": (lambda m: m.nonzero(), (MASK,)),
    "norm": (lambda x: x.norm(), (X,)),
    "normal_": (lambda x: _moments(x.clone().normal_()), (_floats(100, 100),)),
    "polar": (lambda r, a: torch.view_as_real(torch.polar(r, a)), (Z, X)),
    "polygamma": (lambda x: torch.polygamma(1, x), (X,)),
    "pow.Scalar": (lambda x: 2.0**x, (X,)),
    "pow.Tensor_Scalar": (lambda x: x**3, (X,)),
    "random_.from": (lambda x: (r := x.clone().random_(0, 10)).min() >= 0 and r.max() < 10, (_floats(100, 100),)),
    "reciprocal": (torch.reciprocal, (Z,)),
    "relu": (torch.relu, (X,)),
    "relu_": (_in_place(torch.relu_), (X,)),
    "resize_": (lambda x: x.clone().resize_(4, 8) * 1, (X,)),
    "rsqrt": (torch.rsqrt, (Z,)),
    "scatter.src": (lambda x, i, s: x.scatter(1, i, s), (X, LABELS[:, None], _floats(6, 1))),
    "sgn": (torch.sgn, (X,)),
    "sigmoid": (torch.sigmoid, (X,)),
    "sigmoid_backward": (_backward(torch.sigmoid), (X,)),
    "silu": (F.silu, (X,)),
    "sin": (torch.sin, (X,)),
    "smooth_l1_loss": (F.smooth_l1_loss, (X, Y)),
    "smooth_l1_loss_backward": (_backward(F.smooth_l1_loss), (X, Y)),
    "sort.values_stable": (lambda x: torch.sort(x, dim=1, stable=True, descending=True), (X,)),
    "special_erfcx": (torch.special.erfcx, (X,)),
    "sqrt": (torch.sqrt, (Z,)),
    "sub": (torch.sub, (X, Y)),
    "sum.IntList": (lambda x: x.sum(1), (X,)),
    "threshold_backward": (_backward(torch.relu), (X,)),
    "topk.values": (lambda x: x.topk(3), (X,)),
    "tril": (torch.tril, (X,)),
    "tril_indices": (lambda x: torch.tril_indices(4, 4, device=x.device), (X,)),
    "triu": (torch.triu, (X,)),
    "uniform_": (lambda x: (u := x.clone().uniform_()).min() >= 0 and u.std() > 0.2, (_floats(100, 100),)),
    "upsample_bicubic2d": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (IMAGE,)),
    "upsample_bicubic2d_backward": (_backward(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")), (IMAGE,)),
    "upsample_bilinear2d": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGE,)),
    "upsample_bilinear2d_backward": (_backward(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")), (IMAGE,)),
    "upsample_nearest2d": (lambda x: F.interpolate(x, scale_factor=2), (IMAGE,)),
    "upsample_nearest2d_backward": (_backward(lambda x: F.interpolate(x, scale_factor=2)), (IMAGE,)),
    "view": (lambda x: x.view(8, 6) * 1, (X,)),
    "view_as_complex": (lambda x: torch.view_as_real(torch.view_as_complex(x.view(6, 4, 2)).clone()), (X,)),
    "view_as_real": (lambda x: torch.view_as_real(torch.view_as_complex(x.view(6, 4, 2))) * 2, (X,)),
    "where.self": (torch.where, (MASK, X, Y)),
    "xlogy": (torch.xlogy, (X, Z)),
    "zero_": (_in_place(torch.zero_), (X,)),
}

# Operators that the embedded device runs by kernels of its own and reads at once: they are in no fragment there.
# tests/ir/stablehlo/compact.mlir has their programs.
READ_AT_ONCE = ("_unique2", "nonzero")


def run(name, device):
    function, arguments = SAMPLES[name]
    return function(*(a.to(device) for a in arguments))


if __name__ == "__main__":
    torch.tpu.set_eager_mode("fused")
    for name in SAMPLES:
        torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, run(name, "tpu"))
