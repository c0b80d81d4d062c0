"""What results are is told without Python (dispatcher/*shapes.cc, norms.cc), and is what the CPU says."""

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same, check, run_python

IMAGE, KERNEL = torch.randn(2, 4, 7, 6), torch.randn(6, 2, 3, 2)
LAST, LAST_3D = torch.channels_last, torch.channels_last_3d


def into(function, *arguments, like):
    arguments = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
    return function(*arguments, out=torch.zeros_like(like.detach()))


CALLS = {
    "conv2d": lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 0), (1, 2), 2),
    "conv2d, channels last": lambda x, w: F.conv2d(x.contiguous(memory_format=LAST), w, None, groups=2),
    "conv_transpose2d": lambda x, w: F.conv_transpose2d(x, w[:4], None, 2, 1, (1, 0), 2),
    "conv1d": lambda x, w: F.conv1d(x[0], w[:, 0, None, :].expand(6, 4, 2)),
    "conv2d of a kernel that is too large": lambda x, w: F.conv2d(x[..., :1], w, groups=2),
    "conv2d of too few channels": lambda x, w: F.conv2d(x[:, 1:], w, groups=2),
    "conv2d by strides of zero": lambda x, w: F.conv2d(x, w, None, 0, groups=2),
    "attention": lambda x, w: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention, heads last": lambda x, w: F.scaled_dot_product_attention(*[x.transpose(1, 2)] * 3),
    "adaptive_avg_pool2d": lambda x, w: F.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive_avg_pool2d, channels last": lambda x, w: F.adaptive_avg_pool2d(x.contiguous(memory_format=LAST), 2),
    "arange": lambda x, w: torch.arange(2, 9, 3, device=x.device),
    "arange, f32": lambda x, w: torch.arange(0.0, 1.0, 0.1, device=x.device),
    "arange the wrong way": lambda x, w: torch.arange(9, 2, device=x.device),
    "arange, out=": lambda x, w: torch.arange(6, out=torch.empty(2, 3, device=x.device)),
    "arange to an end, out=": lambda x, w: torch.arange(6, out=torch.empty(0, dtype=torch.int32, device=x.device)),
    "eye, out=": lambda x, w: torch.eye(2, out=torch.empty(3, 3, device=x.device).resize_(0)),
    "full, out=": lambda x, w: torch.full((2, 2), 3.0, out=torch.empty(2, 2, device=x.device).t()),
    "fftfreq": lambda x, w: torch.fft.fftfreq(7, 0.5, device=x.device),
    "angle": lambda x, w: torch.angle(x.transpose(0, 1)),
    "angle of integers": lambda x, w: torch.angle(x.detach().long()),
    "conj_physical": lambda x, w: torch.view_as_real(torch.complex(x, x).transpose(0, 1).conj().resolve_conj()),
    "reflected": lambda x, w: F.pad(x, (1, 2, 0, 3), mode="reflect"),
    "reflected, channels last": lambda x, w: F.pad(x.contiguous(memory_format=LAST), (1, 0, 2, 1), mode="reflect"),
    "reflected, one image": lambda x, w: F.pad(x[0].transpose(0, 1), (1, 0, 2, 1), mode="reflect"),
    "reflected too far": lambda x, w: F.pad(x, (6, 0, 0, 0), mode="reflect"),
    "hardswish in place": lambda x, w: F.hardswish((x * 2).transpose(0, 1), inplace=True),
    "relu6 in place": lambda x, w: F.relu6((x * 2)[..., ::2], inplace=True),
    "classes of positions": lambda x, w: F.nll_loss(x, x.detach()[:, 0].gt(0).long(), x[0, :, 0, 0].detach().abs()),
    "classes of positions, channels last": lambda x, w: F.nll_loss(
        x.detach().contiguous(memory_format=LAST), x.detach()[:, 0].gt(0).long(), reduction="none", ignore_index=1
    ),
    "classes of too few positions": lambda x, w: F.nll_loss(x, x.detach()[:, 0, 1:].gt(0).long()),
    "median": lambda x, w: x.transpose(0, 1).median(1, keepdim=True)[0],
    "median along a dimension that isn't there": lambda x, w: x.median(7)[0],
    "nanmedian": lambda x, w: x.nanmedian(-1)[0],
    "linspace": lambda x, w: torch.linspace(0, 1, 5, device=x.device),
    "linspace of less than nothing": lambda x, w: torch.linspace(0, 1, -1, device=x.device),
    "eye": lambda x, w: torch.eye(3, 4, dtype=torch.int32, device=x.device),
    "randperm": lambda x, w: torch.randperm(7, device=x.device).sort()[0],
    "roll": lambda x, w: x.transpose(0, 1).roll((1, 2), (0, -1)),
    "roll along a dimension that isn't there": lambda x, w: x.roll(1, 9),
    "binary_cross_entropy": lambda x, w: F.binary_cross_entropy(x.sigmoid(), x.sigmoid(), reduction="none"),
    "huber_loss": lambda x, w: F.huber_loss(x.transpose(0, 1), x.transpose(0, 1) * 3, reduction="none"),
    "hardswish": lambda x, w: F.hardswish(x[..., ::2]),
    "relu6": lambda x, w: F.relu6(x.transpose(0, 1)),
    "mish": lambda x, w: F.mish(x.transpose(0, 1)),
    "mish, bf16": lambda x, w: F.mish(x.bfloat16()),
    "silu, bf16": lambda x, w: F.silu(x.bfloat16()),
    "prelu": lambda x, w: F.prelu(x, x[0, :, 0, 0]),
    "select": lambda x, w: x.select(1, 2) * 2,
    "hardswish's gradient": lambda x, w: F.hardswish(x.transpose(0, 1)),
    "logsigmoid": lambda x, w: F.logsigmoid(x),
    "glu": lambda x, w: F.glu(x, 1),
    "group_norm without weights": lambda x, w: F.group_norm(x, 2),
    "instance_norm": lambda x, w: F.instance_norm(x),
    "index_put": lambda x, w: x.index_put((torch.tensor([1, 0], device=x.device),), x * 2),
    "windows": lambda x, w: x.unfold(2, 3, 2),
    "batch_norm without weights": lambda x, w: F.batch_norm(x.transpose(0, 1), None, None, training=True),
    "normal": lambda x, w: torch.normal(x.detach().transpose(0, 1), 1.0) * 0,
    "normal of deviations": lambda x, w: torch.normal(0.0, x.detach().transpose(0, 1).abs()) * 0,
    "normal of both": lambda x, w: torch.normal(x.detach().transpose(0, 1), x.detach().transpose(0, 1).abs()) * 0,
    "poisson": lambda x, w: torch.poisson(x.detach().transpose(0, 1).abs()) * 0,
    "binomial": lambda x, w: torch.binomial(x.detach().transpose(0, 1).abs().ceil(), x.detach().sigmoid()) * 0,
    "gamma": lambda x, w: torch._standard_gamma(x.detach().transpose(0, 1).abs() + 1) * 0,
    "grid_sample, channels last": lambda x, w: F.grid_sample(
        x.contiguous(memory_format=LAST), x[:, :2].detach().movedim(1, 3), mode="nearest", align_corners=True
    ),
    "grid_sample of too few numbers": lambda x, w: F.grid_sample(x, x[:, :3].movedim(1, 3), align_corners=False),
    "unfold, channels last": lambda x, w: F.unfold(x.contiguous(memory_format=LAST), 2, dilation=2),
    "fold of too few windows": lambda x, w: F.fold(F.unfold(x, 2)[..., 1:], x.shape[2:], 2),
    "erfinv": lambda x, w: torch.erfinv(x.detach().tanh()),
    "erfinv_": lambda x, w: x.detach().tanh().transpose(0, 1).erfinv_(),
    "lgamma of integers": lambda x, w: torch.lgamma(torch.arange(1, 4, device=x.device)),
    "bicubic": lambda x, w: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "logit": lambda x, w: x.sigmoid().logit(1e-3),
    "complex": lambda x, w: torch.view_as_real(torch.complex(x, x[:1])),
    "complex of two types": lambda x, w: torch.complex(x, x.double()),
    "polar": lambda x, w: torch.view_as_real(torch.polar(x.abs(), x)),
    "index_fill": lambda x, w: x.index_fill(-1, torch.tensor([0, 3], device=x.device), 2),
    "index_fill along a dimension that isn't there": lambda x, w: x.index_fill(
        4, torch.tensor([0], device=x.device), 2
    ),
    "masked_scatter": lambda x, w: x.masked_scatter(x > 0, x * 2),
    "masked_scatter's source": lambda x, w: x.detach().masked_scatter(x[0].detach() > 0, x.flatten() * 2),
    "masked_scatter's source of just enough": lambda x, w: x.detach().masked_scatter(
        torch.arange(6, device=x.device) < 2, x[..., :2].contiguous()
    ),
    "take": lambda x, w: x.take(torch.tensor([[0, 9], [-1, 2]], device=x.device)),
    "kthvalue": lambda x, w: x.transpose(1, 2).kthvalue(2, 1)[0],
    "kthvalue, keepdim": lambda x, w: x.kthvalue(2, keepdim=True)[0],
    "kthvalue beyond the last": lambda x, w: x.kthvalue(9)[0],
    "searchsorted": lambda x, w: torch.searchsorted(x.detach().sort()[0], x.detach()),
    "searchsorted, i32": lambda x, w: torch.searchsorted(w[0, 0, 0].detach().sort()[0], x.detach(), out_int32=True),
    "searchsorted of other rows": lambda x, w: torch.searchsorted(x.detach().sort()[0], x[0].detach()),
    "histc": lambda x, w: x.detach().histc(7, -2, 2),
    "histc of no bins": lambda x, w: x.detach().histc(0),
    "count_nonzero": lambda x, w: x.detach().relu().count_nonzero((0, 2)),
    "count_nonzero of all": lambda x, w: x.detach().relu().count_nonzero(),
    "cdist": lambda x, w: torch.cdist(x[:, :1], x * 2),
    "cdist of two lengths": lambda x, w: torch.cdist(x, w),
    "unfold": lambda x, w: F.unfold(x, (3, 2), (1, 2), (1, 0), 2),
    "unfold of what is too small": lambda x, w: F.unfold(x, 9),
    "fold": lambda x, w: F.fold(x.reshape(2, 4, 42), (7, 8), (2, 2)),
    "fold to another size": lambda x, w: F.fold(x.reshape(2, 4, 42), (9, 9), (2, 2)),
    "grid_sample": lambda x, w: F.grid_sample(x, x.transpose(1, 3)[..., :2].tanh(), align_corners=False),
    "fft": lambda x, w: torch.view_as_real(torch.fft.fft(x, dim=1)),
    "rfft2": lambda x, w: torch.view_as_real(torch.fft.rfft2(x.transpose(2, 3))),
    "irfft": lambda x, w: torch.fft.irfft(torch.fft.rfft(x, dim=2), n=5, dim=2),
    "multi_margin_loss": lambda x, w: F.multi_margin_loss(
        x[0, 0], torch.tensor([3, 0, 1, 1, 2, 5, 4], device=x.device)
    ),
    "multi_margin_loss of each, squared": lambda x, w: F.multi_margin_loss(
        x[0, 0], torch.arange(7, device=x.device) % 6, 2, weight=x[0, 0, 0].detach().abs(), reduction="none"
    ),
    "multi_margin_loss of too few targets": lambda x, w: F.multi_margin_loss(x[0, 0], torch.arange(3, device=x.device)),
    "multilabel_margin_loss": lambda x, w: F.multilabel_margin_loss(
        x[0, 0], torch.tensor([[3, 0, -1, 1, 2, 5]] * 7, device=x.device)
    ),
    "multilabel_margin_loss of each": lambda x, w: F.multilabel_margin_loss(
        x[0, 0], torch.tensor([[3, 0, -1, 1, 2, 5]] * 7, device=x.device), reduction="none"
    ),
    "multilabel_margin_loss of one": lambda x, w: F.multilabel_margin_loss(
        x[0, 0, 0], torch.tensor([3, 0, -1, 1, 2, 5], device=x.device), reduction="none"
    ),
    "soft_margin_loss": lambda x, w: F.soft_margin_loss(x.transpose(0, 1), x.detach().transpose(0, 1).sign()),
    "soft_margin_loss of each": lambda x, w: F.soft_margin_loss(x, x.detach().sign(), reduction="none"),
    "soft_margin_loss of integers": lambda x, w: F.soft_margin_loss(x, x.detach().sign().long()),
    "max_pool3d": lambda x, w: F.max_pool3d(x, (2, 3, 2), (1, 2, 2), (1, 1, 0), ceil_mode=True),
    "max_pool3d, channels last": lambda x, w: F.max_pool3d(
        x[:, None].expand(2, 3, 4, 7, 6).contiguous(memory_format=LAST_3D), 2
    ),
    "max_pool3d of what is too small": lambda x, w: F.max_pool3d(x, 9),
    "max_pool3d's indices": lambda x, w: F.max_pool3d(x, 2, dilation=2, return_indices=True)[1],
    "adaptive_avg_pool3d": lambda x, w: F.adaptive_avg_pool3d(x, (2, 3, 2)),
    "adaptive_avg_pool3d, channels last": lambda x, w: F.adaptive_avg_pool3d(
        x[:, None].expand(2, 3, 4, 7, 6).contiguous(memory_format=LAST_3D), 2
    ),
    "embedding_bag": lambda x, w: F.embedding_bag(torch.tensor([[3, 0], [1, 1]], device=x.device), x[0, 0]),
    "embedding_bag of the largest": lambda x, w: F.embedding_bag(
        torch.tensor([3, 0, 1], device=x.device), x[0, 0], torch.tensor([0, 2], device=x.device), mode="max"
    ),
    "embedding_bag of weighed ones": lambda x, w: F.embedding_bag(
        torch.tensor([[3, 0], [1, 1]], device=x.device), x[0, 0], per_sample_weights=w[:2, 0, 0], mode="sum"
    ),
    "embedding_bag with the last offset": lambda x, w: F.embedding_bag(
        torch.tensor([3, 0, 1], device=x.device),
        x[0, 0].detach(),
        torch.tensor([0, 2, 3], device=x.device),
        mode="sum",
        include_last_offset=True,
    ),
    "embedding_bag of weighed averages": lambda x, w: F.embedding_bag(
        torch.tensor([[3, 0], [1, 1]], device=x.device), x[0, 0], per_sample_weights=w[:2, 0, 0]
    ),
    "pdist": lambda x, w: torch.pdist(x[0, 0], 3),
    "pdist of columns": lambda x, w: torch.pdist(x[0, 0].t()),
    "pdist of one": lambda x, w: torch.pdist(x[0, 0, :1]),
    "matrix_exp": lambda x, w: torch.matrix_exp(x[..., :6, :]),
    "matrix_exp of rows": lambda x, w: torch.matrix_exp(x),
    "solve_triangular": lambda x, w: torch.linalg.solve_triangular(
        x[0, 0, :6] + 4 * torch.eye(6, device=x.device), x[..., :6, :], upper=True
    ),
    "solve_triangular from the right": lambda x, w: torch.linalg.solve_triangular(
        x[:, :1, :6].tril() + 4 * torch.eye(6, device=x.device), x, upper=False, left=False
    ),
    "solve_triangular of other sizes": lambda x, w: torch.linalg.solve_triangular(x[..., :6, :], x, upper=True),
    "eigenvalues": lambda x, w: torch.view_as_real(torch.linalg.eigvals(x.detach()[..., :6, :])).square().sum(-2),
    "eigenvectors": lambda x, w: torch.linalg.eig(x.detach()[..., :6, :])[1].abs(),
    "rrelu": lambda x, w: F.rrelu(x.transpose(0, 1)),
    "rrelu that draws": lambda x, w: F.rrelu(x.transpose(0, 1), 0.2, 0.2, training=True),
    "rrelu_": lambda x, w: F.rrelu_(x.transpose(0, 1) * 2),
    "logspace": lambda x, w: torch.logspace(0, 1, 5, 2, device=x.device),
    "logspace of less than nothing": lambda x, w: torch.logspace(0, 1, -1, device=x.device),
    "tril_indices": lambda x, w: torch.tril_indices(3, 4, -1, device=x.device),
    "triu_indices": lambda x, w: torch.triu_indices(3, 4, 1, dtype=torch.int32, device=x.device),
    "triu_indices of nothing": lambda x, w: torch.triu_indices(0, 4, device=x.device),
    "tril_indices of less": lambda x, w: torch.tril_indices(-1, 4, device=x.device),
    "a shift by a number": lambda x, w: x.detach().long().transpose(0, 1) << 2,
    "a shift of bytes": lambda x, w: x.detach().abs().byte() >> 1,
    "a shift by as many": lambda x, w: torch.arange(7, device=x.device)[:, None] << torch.arange(3, device=x.device),
    "a shift in place": lambda x, w: x.detach().int().__irshift__(1),
    "a shift of floats": lambda x, w: x.detach() << 2,
    "trace": lambda x, w: x[0, 0].trace(),
    "trace of whole numbers": lambda x, w: x.detach()[0, 0].int().trace(),
    "trace of a row": lambda x, w: x[0, 0, 0].trace(),
    "a product in an out tensor": lambda x, w: into(torch.mul, x.transpose(0, 1), x.transpose(0, 1), like=x),
    "a sum in one of another type": lambda x, w: into(torch.add, x, 1, like=x.double()),
    "a sum in one of a type that it can't have": lambda x, w: into(torch.add, x, 1, like=x.long()),
    "a running sum in one of other strides": lambda x, w: into(torch.cumsum, x, 0, like=x.transpose(0, 1).clone()),
    "a running sum in one of a smaller type": lambda x, w: into(torch.cumsum, x.int(), 0, like=x.int()),
    "a choice in one without elements": lambda x, w: into(torch.where, x > 0, x, x * 2, like=x[:0, 0, 0, 0]),
    "a sum of sizes that don't fit in an out tensor": lambda x, w: into(torch.add, x, x[..., :2], like=x),
    "sums of lists": lambda x, w: torch.cat(torch._foreach_add([x, x.transpose(0, 1).reshape(x.shape)], [x * 2, x])),
    "roots of lists": lambda x, w: torch._foreach_sqrt([x.transpose(0, 1).abs() + 1])[0],
    "products of lists by numbers": lambda x, w: torch._foreach_mul([x.detach().int()], [2.5])[0],
    "products of lists in place": lambda x, w: torch._foreach_mul_([x * 1], 2)[0],
    "rfft along a dimension that isn't there": lambda x, w: torch.fft.rfft(x, dim=7),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_are_as_those_of_the_cpu(name):
    def results(device):
        x, w = (t.to(device, copy=True).requires_grad_() for t in (IMAGE, KERNEL))
        y = CALLS[name](x, w)
        if not y.requires_grad:
            return [y]
        y.square().sum().backward()
        return [y.detach(), x.grad] if w.grad is None else [y.detach(), x.grad, w.grad]

    try:
        expected = results("cpu")
    except (RuntimeError, IndexError) as error:
        with pytest.raises(type(error)):
            results("tpu")
    else:
        assert_same(expected, results("tpu"))


def test_first_calls_import_nothing():
    run_python(
        """
        import sys
        import torch, torch.nn.functional as F
        x = torch.ones(6, 6).to("tpu").requires_grad_()
        mask = x > 0
        results = [
            x.abs(), x.mean(), x.std(), x.var(1), 1 - x, x.detach() // 2, x.isnan(), ~mask & mask, x.logsumexp(1),
            torch.where(mask, x, 0.0), x.masked_fill(mask, 1.0), F.dropout(x), torch.stack([x, x]), x.mv(x[0]),
            x[0].dot(x[0]), torch.randn(3, device="tpu"), torch.rand(3, device="tpu"), x.sort()[0], x.fmod(2),
            torch.multinomial(x.detach(), 2), x.flip(0), F.binary_cross_entropy_with_logits(x, x.detach()),
            x.index_select(0, mask[0].long()), F.mse_loss(x, x.detach() * 2), torch.stack([x] * 300, 1),
        ]
        image, kernel = x[None, None], x[None, None, :3, :3]
        results += [
            torch.arange(9, device="tpu"), torch.linspace(0, 1, 5, device="tpu"), torch.eye(3, device="tpu"),
            torch.randperm(5, device="tpu"), x.roll(1, 0), F.conv2d(image, kernel), F.conv1d(x[None], x[:, :, None]),
            F.conv_transpose2d(image, kernel), F.adaptive_avg_pool2d(image, 2), F.hardswish(x.detach()),
            F.scaled_dot_product_attention(image, image, image), F.huber_loss(x.detach(), x.detach()),
            F.binary_cross_entropy(x.sigmoid(), x.detach()), F.relu6(x.detach()),
            F.prelu(x.detach(), x.detach()[0, :1]), F.mish(x), F.silu(x), x.erfinv(), x.lgamma(), x.sigmoid().logit(),
            F.hardswish(x), F.relu6(x), F.logsigmoid(x), F.glu(x), F.prelu(x, x[0, :1]), F.group_norm(x[None], 2),
            F.instance_norm(x[None]), x.index_put((mask[0].long(),), x), x.unfold(0, 2, 1),
            F.interpolate(image, scale_factor=2, mode="bicubic"), torch.complex(x, x).abs(), x.kthvalue(2)[0],
            x.index_fill(0, mask[0].long(), 1), x.masked_scatter(mask, x), x.take(mask.long()), torch.cdist(x, x + 1),
            torch.searchsorted(x.detach(), x.detach()), x.detach().count_nonzero(), x.detach().histc(3),
            F.unfold(image, 2), F.fold(x[:4, :1], (2, 2), 2), torch.fft.fft(x).abs(),
            F.grid_sample(image, x[:, :2][None, None], align_corners=True),
            torch.fft.irfft(torch.fft.rfft(x)), torch.ones_like(x).exponential_(),
            torch.poisson(x.detach()), torch.normal(x.detach(), x.detach()), torch.normal(x.detach(), 1.0),
            torch.normal(0.0, x.detach()), torch.binomial(x.detach(), x.detach()), F.gumbel_softmax(x),
            torch.distributions.Gamma(x.detach(), 1).sample(),
        ]
        volume, labels = x[:, :4].reshape(1, 1, 2, 3, 4), mask.long()
        results += [
            torch.tril_indices(3, 3, device="tpu"), torch.triu_indices(3, 3, device="tpu"), labels << 2,
            labels >> labels,
            F.multi_margin_loss(x, labels[0]), F.multilabel_margin_loss(x, labels), F.soft_margin_loss(x, x.detach()),
            F.max_pool3d(volume, 2), F.adaptive_avg_pool3d(volume, 2), torch.pdist(x * x[0]), torch.matrix_exp(x),
            torch.linalg.solve_triangular(x, x, upper=True), torch.linalg.cholesky(x + 9 * torch.eye(6, device="tpu")),
            torch.linalg.eig(x.detach())[0].abs(), F.rrelu(x, training=True),
            torch.logspace(0, 1, 5, device="tpu"), F.embedding_bag(labels[:2], x),
            F.embedding_bag(labels[:2], x.detach(), mode="max"),
        ]
        classes = (image > 0)[:, 0].long()
        results += [
            F.pad(image, (1, 1, 2, 1), mode="reflect"), F.hardswish(x * 2, inplace=True), F.relu6(x * 2, inplace=True),
            F.cross_entropy(torch.cat([image, image], 1), classes), torch.complex(x, x).angle(),
            x.median(1)[0], x.nanmedian(0)[0],
            torch.fft.fftfreq(6, device="tpu"), torch.fft.hfft(torch.complex(x, x)),
            (torch.complex(x, x).conj() * 2).real, torch.arange(3, out=torch.zeros(3, device="tpu")),
            torch.eye(2, out=torch.zeros(2, 2, device="tpu")), torch.full((2,), 3.0, out=torch.zeros(2, device="tpu")),
            torch.mul(x.detach(), x.detach(), out=torch.zeros(6, 6, device="tpu")), x.trace(),
            torch.cumsum(x.detach(), 0, out=torch.empty(0, device="tpu")), *torch._foreach_mul([x, x], 2.0),
            torch.where(mask, x.detach(), x.detach(), out=torch.zeros(6, 6, device="tpu")), *torch._foreach_sqrt([x]),
        ]
        largest, places = F.max_pool2d(image, 2, return_indices=True)
        unpooled = torch._C._nn.max_unpool2d(largest, places, (6, 6))  # F.max_unpool2d's own check imports sympy
        largest, places = F.max_pool3d(volume, 2, return_indices=True)
        results += [
            unpooled, torch._C._nn.max_unpool3d(largest, places, (2, 3, 4), (2, 2, 2), (0, 0, 0)),
        ]
        sum(r.double().sum() for r in results if r.requires_grad).backward()
        for result in results:
            result.tolist()
        assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules
        """
    )


def channels_last(*sizes):
    return torch.randn(sizes).contiguous(memory_format=LAST if len(sizes) == 4 else LAST_3D)


def convolved(convolution, x, w):
    """Strides of the result and of both gradients."""
    x, w = x.requires_grad_(), w.requires_grad_()
    y = convolution(x, w)
    y.backward(torch.ones_like(y))
    return y.stride(), x.grad.stride(), w.grad.stride()


@pytest.mark.embedded_only(reason="another device has lowerings alone for some, and the strides of Meta kernels")
@pytest.mark.parametrize(
    ("convolution", "x", "w"),
    [
        (F.conv2d, channels_last(2, 4, 6, 6), torch.randn(6, 4, 3, 3)),
        (F.conv2d, torch.randn(2, 4, 6, 6), channels_last(6, 4, 1, 1)),
        (F.conv3d, channels_last(2, 4, 4, 6, 6), torch.randn(6, 4, 3, 3, 3)),
        (F.conv_transpose2d, channels_last(2, 8, 96, 96), torch.randn(8, 6, 3, 3)),
        (F.conv_transpose3d, torch.randn(2, 8, 8, 40, 40), channels_last(8, 6, 3, 3, 3)),
    ],
)
def test_convolutions_keep_channels_last(convolution, x, w):
    check(lambda x, w: convolved(convolution, x, w), x, w)


@pytest.mark.parametrize("size", [4, 128])
def test_one_image_keeps_channels_last(size):
    """Whose first stride counts, where operators look what the layout is."""
    x = channels_last(1, 8, size, size)
    check(lambda x: (F.group_norm(x, 2).stride(), F.group_norm(x, 2) + torch.ones(1, 8, 1, 1, device=x.device)), x)
