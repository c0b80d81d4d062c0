"""Calls on kinds of tensors not seen before: what they give and refuse is the CPU's, and finding it out is cheap."""

import gc
import itertools
import sys

import pytest
import torch
import torch.nn.functional as F
from helpers import EMBEDDED, assert_same, check, on_both, run_python
from torch.profiler import ProfilerActivity, profile

sizes = itertools.count(1000)  # no test before had them


def strided(*shape):
    return torch.randn(*shape, 2).select(-1, 0)


def group_norm(x, _mean, _variance, weight, bias, _training):
    return F.group_norm(x, 3, weight, bias)


def normed_with_gradients(norm, x):
    """The norm of (N, 6, ...) `x`, its gradients and what it makes of running statistics."""
    weight, bias = torch.linspace(1, 2, 6, device=x.device), torch.linspace(0, 1, 6, device=x.device)
    mean, variance = torch.zeros(6, device=x.device), torch.ones(6, device=x.device)
    inputs = [t.detach().requires_grad_() for t in (x, weight, bias)]
    y = norm(inputs[0], mean, variance, *inputs[1:], True)
    return y.detach(), mean, variance, *torch.autograd.grad(y.sin().sum(), inputs)


KINDS = {
    "broadcast": (torch.add, torch.randn(3, 1, 5), torch.randn(4, 1)),
    "numbers keep the type": (torch.mul, torch.ones(3, dtype=torch.bfloat16), 2.5),
    "numbers raise the kind": (torch.mul, torch.ones(3, dtype=torch.int32), 2.5),
    "promotion by dimensions": (torch.add, torch.ones(3, dtype=torch.float32), torch.tensor(1.0, dtype=torch.float64)),
    "booleans to integers": (torch.sum, torch.ones(3, dtype=torch.bool)),
    "comparison": (torch.lt, torch.ones(2, 3, dtype=torch.int64), torch.ones(3)),
    "strides of both": (torch.sub, torch.randn(4, 3).t(), strided(3, 4)),
    "rectified": (torch.relu, torch.randn(4, 3).t()),
    "rectified, in place": (torch.relu_, torch.randn(4, 3).t()),
    "channels last": (F.gelu, torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)),
    "pixels out of channels, last": (
        lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(F.pixel_shuffle(x, 2), 4)),
        torch.randn(2, 32, 24, 20).contiguous(memory_format=torch.channels_last),
    ),
    "pixels of none": (lambda x: (F.pixel_unshuffle(x, 2), F.pixel_shuffle(x, 2)), torch.randn(0, 4, 6, 8)),
    "transposed, in place": (torch.Tensor.add_, torch.randn(4, 3).t(), torch.randn(3, 1)),
    "strided, in place": (torch.Tensor.mul_, strided(3, 4), torch.randn(4)),
    "running sum, in place": (torch.Tensor.cumsum_, torch.randn(4, 3).t(), 1),
    "no elements": (torch.add, torch.randn(0, 3), torch.randn(3)),
    "product of nothing": (torch.mm, torch.randn(3, 0), torch.randn(0, 4)),
    "sum of nothing": (torch.sum, torch.randn(0, 3), 0),
    "softmax of nothing": (torch.softmax, torch.randn(2, 0), 1),
    "cat with a legacy empty": (lambda *parts: torch.cat(parts, 1), torch.randn(0), torch.randn(2, 3)),
    "cat of types": (lambda *parts: torch.cat(parts), torch.ones(2), torch.ones(3, dtype=torch.int64)),
    "indices": (lambda x, i, j: x[i, :, j], torch.randn(3, 4, 5), torch.tensor([[0], [2]]), torch.tensor([1, 4, 0])),
    "indices of the CPU": (lambda x: x[:, torch.tensor([1, 0])], torch.randn(3, 4)),
    "narrow indices": (lambda x, i: x[i], torch.randn(3, 4), torch.tensor([2, 0], dtype=torch.int32)),
    "conjugated": (lambda x: x.conj() * 2, torch.randn(3, dtype=torch.complex64)),
    "conjugated, in place": (torch.Tensor.conj_physical_, torch.randn(3, dtype=torch.complex64)),
    "negated": (lambda x: x.conj().imag + 1, torch.randn(3, dtype=torch.complex64)),
    "several results": (lambda x: torch.topk(x, 2), torch.randn(3, 5)),
    "greatest along a dimension": (lambda x: torch.max(x, 1), torch.randn(3, 5)),
    "norm": (lambda x: F.layer_norm(x, (7,)), torch.randn(2, 3, 7)),
    "norm with moments": (
        lambda x, w: torch.native_layer_norm(x, (3, 7), w, None, 1e-5),
        torch.randn(7, 2, 3).permute(1, 2, 0),
        torch.randn(3, 7),
    ),
    "norm of channels": (normed_with_gradients, F.batch_norm, torch.randn(2, 6, 5)),
    "norm of channels, last": (
        normed_with_gradients,
        F.batch_norm,
        torch.randn(2, 6, 4, 5).contiguous(memory_format=torch.channels_last),
    ),
    "norm of channels, strided": (normed_with_gradients, F.batch_norm, torch.randn(6, 2, 5).transpose(0, 1)),
    "norm of channels in use": (
        lambda x, m, v: F.batch_norm(x, m, v),
        torch.randn(3, 6),
        torch.randn(6),
        torch.rand(6) + 1,
    ),
    "norm of channels in use, by its own name": (
        normed_with_gradients,
        lambda x, m, v, w, b, _: torch.ops.aten._batch_norm_no_update(x, w, b, m, v, 0.1, 1e-5)[0],
        torch.randn(3, 6),
    ),
    "norm of narrow channels": (lambda x: F.batch_norm(x, None, None, training=True), torch.randn(4, 6).bfloat16()),
    "norm of groups": (normed_with_gradients, group_norm, torch.randn(2, 6, 5)),
    "norm of groups, strided": (normed_with_gradients, group_norm, torch.randn(6, 2, 5).transpose(0, 1)),
    "norm of groups, no weight": (lambda x: F.group_norm(x, 3), torch.randn(2, 6)),
    "norm of nothing": (lambda x: torch.native_layer_norm(x, (7,), None, None, 1e-5), torch.randn(0, 3, 7)),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_new_kind_gives_what_the_cpu_gives(name):
    assert_same(*on_both(*KINDS[name]))


MISTAKES = {
    "broadcast": lambda d: torch.ones(3, 401, device=d) * torch.ones(400, device=d),
    "broadcast, in place": lambda d: torch.ones(1, 400, device=d).mul_(torch.ones(400, 400, device=d)),
    "type, in place": lambda d: torch.ones(400, dtype=torch.int64, device=d).div_(2),
    "product": lambda d: torch.ones(301, 300, device=d) @ torch.ones(301, 300, device=d),
    "product of types": lambda d: torch.ones(300, 300, device=d) @ torch.ones(300, 300, device=d, dtype=torch.float64),
    "bias": lambda d: F.linear(torch.ones(9, 300, device=d), torch.ones(5, 300, device=d), torch.ones(6, device=d)),
    "cat": lambda d: torch.cat([torch.ones(300, 300, device=d), torch.ones(300, 301, device=d)]),
    "dimension": lambda d: torch.softmax(torch.ones(300, 300, device=d), 2),
    "more than there are": lambda d: torch.topk(torch.ones(300, 7, device=d), 8),
    "greatest of none": lambda d: torch.ones(300, 0, device=d).amax(1),
    "targets": lambda d: F.nll_loss(torch.ones(300, 7, device=d), torch.ones(301, dtype=torch.int64, device=d)),
    "indices": lambda d: torch.ones(300, 300, device=d)[torch.arange(2, device=d), torch.arange(3, device=d)],
    "norm": lambda d: F.layer_norm(torch.ones(300, 192, device=d), (193,)),
    "deviation": lambda d: torch.empty(3, device=d).normal_(0, -1),
    "range": lambda d: torch.empty(3, device=d).random_(5, 1),
    "range from zero": lambda d: torch.empty(3, device=d).random_(0),
    "range of a type": lambda d: torch.randint(3, 500, (3,), dtype=torch.uint8, device=d),
    "uniform integers": lambda d: torch.ones(3, dtype=torch.int64, device=d).uniform_(),
    "normal integers": lambda d: torch.randn(3, dtype=torch.int64, device=d),
    "flags of integers": lambda d: torch.bernoulli(torch.ones(3, dtype=torch.int64, device=d)),
    "magnitudes of flags": lambda d: torch.ones(3, dtype=torch.bool, device=d).abs(),
    "products of flags": lambda d: torch.mm(*[torch.ones(3, 3, dtype=torch.bool, device=d)] * 2),
    "leaks of integers": lambda d: F.leaky_relu(torch.ones(3, dtype=torch.int64, device=d)),
    "complex flips": lambda d: torch.ones(3, dtype=torch.complex64, device=d).bernoulli_(),
    "complex integers": lambda d: torch.ones(3, dtype=torch.complex64, device=d).random_(),
    "norm of integers": lambda d: F.layer_norm(torch.ones(3, 4, dtype=torch.int64, device=d), (4,)),
    "norm of many integers": lambda d: F.layer_norm(torch.ones(300, 192, dtype=torch.int64, device=d), (192,)),
    "norm of complex numbers": lambda d: F.layer_norm(torch.ones(3, 4, dtype=torch.complex64, device=d), (4,)),
    "norm of groups of integers": lambda d: F.group_norm(torch.ones(3, 4, dtype=torch.int64, device=d), 2),
    "norm of integers' channels": lambda d: F.batch_norm(
        torch.ones(3, 4, dtype=torch.int64, device=d), None, None, training=True
    ),
    "norm of groups of very many integers": lambda d: F.group_norm(
        torch.ones(2, 8, 1024, 1040, dtype=torch.uint8, device=d), 2
    ),
    "gradient of very many integers' means": lambda d: torch.ops.aten.avg_pool2d_backward(
        *(torch.ones(2, 8, n, n, dtype=torch.uint8, device=d) for n in (520, 1040)),
        [2, 2],
        [],
        [0, 0],
        False,
        True,
        None,
    ),
    "values of another size": lambda d: torch.zeros(400, 400, device=d).index_put_(
        (torch.arange(50, device=d),), torch.ones(60, 400, device=d)
    ),
    "indices of two sizes": lambda d: torch.zeros(400, 400, device=d).index_put_(
        (torch.arange(50, device=d), torch.arange(60, device=d)), torch.ones((), device=d)
    ),
    "a mask of another size": lambda d: torch.zeros(400, 400, device=d).masked_scatter_(
        torch.ones(400, 399, dtype=torch.bool, device=d), torch.ones(400, 400, device=d)
    ),
    "values beside indices of another size": lambda d: torch.zeros(400, 400, device=d).put_(
        torch.arange(50, device=d), torch.ones(60, device=d)
    ),
    "a sorter of another size": lambda d: torch.searchsorted(
        torch.arange(20000.0, device=d), torch.zeros(5, device=d), sorter=torch.arange(19999, device=d)
    ),
    "targets of another size": lambda d: F.nll_loss(
        torch.zeros(4, 5, 50, 50, device=d), torch.zeros(4, 50, 49, dtype=torch.int64, device=d)
    ),
    "exponential integers": lambda d: torch.ones(3, dtype=torch.int64, device=d).exponential_(),
    "counts by other types": lambda d: torch.binomial(torch.ones(3, device=d), torch.ones(3, device=d).double()),
    "complex of types": lambda d: torch.complex(torch.ones(3, device=d), torch.ones(3, device=d).double()),
    "polar of integers": lambda d: torch.polar(*[torch.ones(3, dtype=torch.int64, device=d)] * 2),
    "norm's weight": lambda d: F.layer_norm(torch.ones(300, 192, device=d), (192,), torch.ones(191, device=d)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_new_kind_is_refused_in_the_cpus_words(name):
    """After calls of the same operators on other sizes were found to be right."""
    big = torch.ones(300, 300, device="tpu")
    for call in (big.mul, big.matmul, lambda x: F.linear(x, x, x[0]), lambda x: torch.cat([x, x]), F.gelu):
        call(big)
    F.layer_norm(big, (300,), big[0])
    raised = {}
    for device in ("cpu", "tpu"):
        with pytest.raises((RuntimeError, IndexError, ValueError, NotImplementedError)) as raised[device]:
            MISTAKES[name](device)
    assert raised["tpu"].type is raised["cpu"].type
    assert str(raised["tpu"].value).splitlines()[0] == str(raised["cpu"].value).splitlines()[0]


@pytest.mark.parametrize("name", ["silu_backward", "mish_backward"])
def test_what_the_cpu_has_a_kernel_for_is_one_operation(name):
    """Where PyTorch has a composite for other devices as well, which rounds half types after each of its steps."""
    grad, x = (torch.randn(8, 8, device="tpu", dtype=torch.bfloat16) for _ in range(2))
    before = torch.tpu.metrics()["recorded_ops"]
    result = getattr(torch.ops.aten, name)(grad, x)
    assert torch.tpu.metrics()["recorded_ops"] == before + 1
    assert_same(getattr(torch.ops.aten, name)(grad.cpu(), x.cpu()), result)


DRAWS = {
    "normal": (lambda x, std: x.normal_(0, std), 1, -1),
    "normal of means": (lambda x, std: torch.normal(x, std), 1.0, -1.0),
    "uniform": (lambda x, to: x.uniform_(0, to), 1, -1),
    "flips": (lambda x, p: x.bernoulli_(p), 0.5, 1.5),
    "exponential": (lambda x, rate: x.exponential_(rate), 0.5, -1.5),
    "log-normal": (lambda x, std: x.log_normal_(0, std), 1, -1),
    "Cauchy": (lambda x, sigma: x.cauchy_(0, sigma), 1, -1),
    "geometric": (lambda x, p: x.geometric_(p), 0.5, 1.5),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("elements", [3, 30000])
def test_numbers_of_draws_are_checked_at_every_call(name, elements):
    draw, good, bad = DRAWS[name]
    raised = {}
    for device in ("cpu", "tpu"):
        x = torch.ones(elements, device=device)
        for _ in range(2):
            draw(x, good)
        with pytest.raises(RuntimeError) as raised[device]:
            draw(x, bad)
        assert draw(x, good).isfinite().all()
    assert str(raised["tpu"].value) == str(raised["cpu"].value)


def test_a_number_that_was_refused_does_not_speak_for_others(metrics):
    x = torch.ones(3, device="tpu")
    with pytest.raises(RuntimeError, match="lambda must be in range"):
        F.softshrink(x, -1)
    tried = sum(torch.tpu.explain().host_kernels.values())
    assert F.softshrink(x, 0.25).tolist() == [0.75] * 3
    torch.tpu.wait_for_compiles()
    assert F.softshrink(x, 0.25).tolist() == [0.75] * 3
    assert sum(torch.tpu.explain().host_kernels.values()) == tried


def test_mistakes_in_large_calls_keep_their_words_where_host_kernels_are_forbidden():
    run_python("""
        import os
        os.environ["TORCH_TPU_FALLBACK"] = "error"
        import torch
        try:
            torch.ones(2000, 200, device="tpu") + torch.ones(2000, 201, device="tpu")
        except RuntimeError as e:
            assert "must match the size of tensor b" in str(e), e
        else:
            raise AssertionError
    """)


def test_what_only_the_inference_refuses_runs():
    flags, amounts = torch.tensor([True, False]), torch.arange(2)
    assert_same(*on_both(lambda flags, amounts: flags << amounts, flags, amounts))
    small = torch.tensor([3, 1, 2], dtype=torch.uint16)
    assert_same(*on_both(lambda x, i: x[i], small, torch.tensor([2, 0])))
    assert_same(*on_both(lambda c, x: torch.where(c, x, x), torch.tensor([True, False, True]), small))


def test_a_product_of_booleans_is_refused_at_every_tier():
    x = torch.tensor([True, False], device="tpu")
    for _ in range(4):
        with pytest.raises(NotImplementedError, match="Bool"):
            torch.dot(x, x)
        torch.tpu.wait_for_compiles()


def test_structured_operators_and_norms_need_no_python():
    mean, variance = torch.zeros(8, device="tpu"), torch.ones(8, device="tpu")

    def work(n):
        x = torch.empty(n, 8, device="tpu", requires_grad=True)
        weight = torch.empty(8, device="tpu", requires_grad=True)
        y = torch.addmm(weight, x, weight.expand(8, 8)).add_(x)
        norms = [
            F.layer_norm(y, (8,), weight),
            F.batch_norm(y, mean, variance, weight, weight, True),
            F.group_norm(y, 2, weight, weight).relu(),
        ]
        torch.cat([F.gelu(y), torch.softmax(y, 1) * 2, *norms]).sum((0, 1)).backward()

    work(next(sizes))
    seen = set()
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code.co_filename))
    try:
        work(next(sizes))
    finally:
        sys.setprofile(None)
    assert not [name for name in seen if "torch/_refs" in name or "torch/_meta" in name or "torch/_decomp" in name]


def test_a_call_of_a_new_kind_reads_its_views_once(metrics):
    def work(n):
        x = torch.ones(n, 3, device="tpu")[:, None]
        return (x * 2).sum(2).tolist()

    size = next(sizes)
    counts = []
    for _ in range(2):
        before = metrics()["recorded_ops"]
        work(size)
        counts.append(metrics()["recorded_ops"] - before)
    assert counts[0] == counts[1]


def kernels(function):
    """The names of the kernels of PyTorch's that run meanwhile."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        function()
    return [event.name for event in seen.events()]


@pytest.mark.embedded_only(reason="another device has no lowering for some, which run at once")
def test_large_calls_that_shrink_to_the_same_are_tried_once():
    def norm(n):
        x = torch.empty(8, n, 192, device="tpu")
        F.layer_norm(x, (192,), x[0, 0])

    counts = [kernels(lambda: norm(next(sizes))).count("aten::native_layer_norm") for _ in range(2)]
    assert counts == [3, 1]  # the call; at first a trial: small tensors' inference and elements


def test_promotion_follows_the_default_dtype():
    def program(x):
        return x / x, x / 2, x * 2.0, x * 1j, x.sqrt(), torch.compile(lambda y: y / 2, backend="tpu")(x)

    default = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
            results = program(torch.arange(1, 4, device="tpu"))
            assert [r.dtype for r in results] == [dtype] * 3 + [complex_dtype] + [dtype] * 2
    finally:
        torch.set_default_dtype(default)


def test_the_default_dtype_is_that_of_the_call():
    def program(device):
        x, n = torch.arange(1, 6, device=device), torch.tensor([16777217, 3], device=device)
        large = x > 2
        results = [x / 3, x * 2.7, 1 / x, x.sqrt(), n == 16777216.0, torch.logsumexp(x, 0), large / 7, x.pow(0.3)]
        results += [torch.where(large, x, 2.7), torch.where(large, large, 2.7), *torch._foreach_div([x, large], 3)]
        return results + [torch.atan2(x, x + 1), x * (1 + 0.1j), torch.mean(x, dtype=torch.float64), x.clamp(max=2.7)]

    default = torch.get_default_dtype()
    try:
        for one, other in [(torch.float64, torch.float32), (torch.float32, torch.float64)] * 2:
            torch.set_default_dtype(one)
            expected, results = program("cpu"), program("tpu")
            torch.set_default_dtype(other)
            for e, r in zip(expected, results, strict=True):
                torch.testing.assert_close(r.cpu(), e)
    finally:
        torch.set_default_dtype(default)


@pytest.mark.parametrize("first", [False, True])
def test_deterministic_algorithms_are_asked_for_at_each_call(first):
    x = torch.zeros(next(sizes), device="tpu")
    place, one = torch.tensor([1], device="tpu"), torch.ones(1, device="tpu")
    try:
        for deterministic in (first, not first, first, not first):
            torch.use_deterministic_algorithms(deterministic)
            if deterministic:
                with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
                    x.put_(place, one)
            else:
                x.put_(place, one)
    finally:
        torch.use_deterministic_algorithms(False)
    assert x.sum() == 1


def test_finalizers_do_not_run_in_the_middle_of_a_call():
    calls = 600 if EMBEDDED else 100  # a plugin compiles 0.1 s for each
    x, others = torch.ones(3, device="tpu"), [torch.ones(2, n, device="tpu") for n in range(1, calls)]

    class Cycle:
        def __init__(self):
            self.itself = self

        def __del__(self):
            for other in others:
                torch.tanh(other)

    def call(function):
        gc.enable()
        result = function(x)
        gc.disable()
        return result

    thresholds = gc.get_threshold()
    gc.disable()
    try:
        call(torch.tanh)
        for _ in range(4):
            torch.tpu.synchronize()
            torch.ones(next(sizes), device="tpu").exp().cos()  # nothing known is followed: lines are looked up
            Cycle()
            gc.set_threshold(1, 1, 1)
            assert call(torch.tanh).shape == x.shape
            gc.collect()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


@pytest.mark.parametrize("function", [F.elu_, F.leaky_relu_])
def test_numbers_that_a_derivative_refuses(function):
    def backward(number):
        x = torch.ones(3, device="tpu", requires_grad=True)
        function(x.clone(), number).sum().backward()

    backward(0.5)
    with pytest.raises(RuntimeError, match=r"In-place .* backward calculation is triggered with a negative slope"):
        backward(-0.5)


def test_lists_of_complex_numbers():
    numbers = [1 + 2j, 3, 0.5, True]

    def program(*xs):
        added = torch._foreach_add(list(xs), numbers)
        torch._foreach_mul_(added, numbers)
        return (*added, *torch._foreach_addcmul(list(xs), list(xs), list(xs), numbers))

    check(program, *[torch.randn(n, n, dtype=torch.complex64) for n in (2, 3, 4, 5)])
    check(lambda x: torch._foreach_add([x, x], [1j, 2]), torch.arange(3.0))


def test_numbers_for_lists_that_a_tensor_of_the_cpu_packs():
    numbers = torch.tensor([0.5, 2.0])

    def program(x, y):
        lists = [x, y], [y, x], [x, x]
        added = torch._foreach_addcmul(*lists, scalars=numbers)
        torch._foreach_addcdiv_(added, *lists[1:], numbers)
        return tuple(added)

    check(program, torch.arange(1.0, 4), torch.arange(3.0, 6))
    xs = [torch.ones(2, device="tpu")] * 2
    for wrong in (numbers[0], torch.ones(3), numbers * 1j):
        with pytest.raises(RuntimeError, match=r"of dimension 1|input of length 2|without overflow"):
            torch._foreach_addcmul(xs, xs, xs, wrong)


def test_whole_numbers_to_the_power_of_lists():
    check(lambda x: tuple(torch._foreach_pow([x, x], [x % 3, x + 1])), torch.arange(4))


def test_lists_of_truths_to_the_power_of_one():
    """PyTorch infers whole numbers for their results, the CPU's kernels make truths."""

    def program(x):
        y = x.clone()
        torch._foreach_pow_([y], True)
        return (y, *torch._foreach_pow([x, x], True), *torch._foreach_pow([x], False), *torch._foreach_pow([x], 2))

    check(program, torch.tensor([True, False]))


@pytest.mark.parametrize(
    "write",
    [
        lambda out, x, y: torch.mm(x, y, out=out),
        lambda out, x, y: out.addmm_(x, y),
        lambda out, x, y: torch.linalg.solve_triangular(x, y, upper=True, out=out),
        lambda out, x, y: out.mul_(x),
        lambda out, x, y: out.imag.add_(1),
    ],
    ids=["out", "in place", "library", "elements", "negated"],
)
def test_what_is_lazily_conjugated_is_written_conjugated(write):
    def program(z, x, y):
        write(z.conj(), x, y)
        return z

    x = torch.randn(3, 3, dtype=torch.complex64).triu() + 3 * torch.eye(3)
    check(program, torch.randn(3, 3, dtype=torch.complex64), x, torch.randn(3, 3, dtype=torch.complex64))


@pytest.mark.parametrize("out", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]
)
def test_a_result_is_of_the_operands_type_before_it_is_of_outs(dtype, out):
    def program(x):
        made = torch.zeros(3, 2, dtype=out, device=x.device)
        torch.mul(x, x, out=made[:, 1])
        empties = [torch.empty(0, dtype=out, device=x.device) for _ in range(5)]
        torch.add(x, x, out=empties[0])
        torch.add(x, 150, alpha=2, out=empties[1])
        torch.exp(x * 0 + 3, out=empties[2])
        torch.div(x, 7, out=empties[3])
        torch.pow(x, 2, out=empties[4])
        return made, *empties

    # A GPU's quotients and exponentials of f32 are one unit off here and there, and still in an f64 result.
    tolerances = {} if EMBEDDED or out != torch.float64 else {"rtol": 1.3e-6, "atol": 1e-5}
    check(program, torch.tensor([250, 33000, 2000000011]).to(dtype), **tolerances)


def test_observers_give_what_they_write_its_size():
    def fake_quantized(x, later):
        """By channels, whose least and greatest values are not known before the first call."""
        on = torch.ones(1, dtype=torch.int64, device=x.device)
        least, greatest = torch.empty(0, device=x.device), torch.empty(0, device=x.device)
        scale, zero_point = torch.ones(1, device=x.device), torch.zeros(1, dtype=torch.int32, device=x.device)
        seen = (least, greatest, scale, zero_point)
        results = [torch.fused_moving_avg_obs_fake_quant(t, on, on, *seen, 0.1, -128, 127, 0, True) for t in (x, later)]
        return *results, *seen

    check(fake_quantized, *torch.randn(2, 4, 9))
