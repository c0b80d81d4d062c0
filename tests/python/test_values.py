"""Values, dtypes and promotion agree with the CPU: NaN, infinities, empty and 0-dim tensors, integers, scalars."""

import itertools
import math

import pytest
import torch
from helpers import COUNTS, DTYPES, EMBEDDED, assert_same, check

# XLA's devices take numbers below the least normal one as 0; the embedded one does not.
SMALL = 1e-40 if EMBEDDED else 1.2e-38
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, SMALL, 3.4e38, 88.8, -104.0])


def sample(dtype, shape=(3, 4)):
    x = torch.arange(math.prod(shape)).reshape(shape) % 5
    return x.to(dtype)


@pytest.mark.parametrize("a,b", itertools.product(DTYPES, DTYPES))
def test_promotion(a, b):
    def program(x, y):
        return x + y, x * y, x == y, torch.where(x == y, x, y), x + y[0, 0], torch.result_type(x, y)

    check(program, sample(a), sample(b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [True, 2, 2.5, 2 + 1j])
def test_promotion_with_numbers(dtype, number):
    check(lambda x: (x + number, x * number, number * x), sample(dtype))


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_numbers_above_the_signed_ones(number):
    def program(x):
        held = torch.tensor(number, dtype=torch.uint64)  # a number that the CPU holds
        filled = torch.full_like(x, number)
        return filled, filled == number, filled == held, torch.empty_like(x).fill_(held), x == number

    check(program, torch.tensor([1, 2**63, 2**64 - 1], dtype=torch.uint64))


@pytest.mark.parametrize("a,b", itertools.product(DTYPES, DTYPES))
def test_casts(a, b):
    check(lambda x: x.to(b), sample(a))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_above_the_signed_ones_become_unsigned_ones(dtype):
    check(
        lambda x: x.to(torch.uint64).view(torch.int64),
        torch.tensor([0.0, 2.5, 2.0**63 - 2.0**40, 2.0**63, 1.8e19], dtype=dtype),
    )


UNARY = (
    "abs neg exp log sqrt rsqrt sin cos tanh sigmoid erf floor ceil round trunc log10 "
    "reciprocal relu isnan isinf isfinite sign log1p expm1 exp2 log2 atan logical_not nan_to_num softplus gelu silu"
).split()


@pytest.mark.parametrize("name", UNARY)
def test_special_values(name):
    function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    # On the CPU, gelu near infinity depends on the machine: oneDNN's of infinity is nan on some, infinity on others.
    check(lambda x: function(x), SPECIAL[~(SPECIAL.abs() > 1e38)] if name == "gelu" else SPECIAL)


@pytest.mark.parametrize(
    "name", "add sub mul div maximum minimum fmod remainder pow atan2 hypot eq lt ge fmax logical_and".split()
)
def test_special_pairs(name):
    function = getattr(torch, name)
    check(lambda x: function(x[:, None], x[None, :]), SPECIAL)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ldexp_beyond_the_range_of_the_power_alone(dtype):
    x = torch.tensor([0.0, 1.0, -5.0, 1e-3, 6e4, float("inf"), float("nan")], dtype=dtype).repeat(6, 1)
    e = torch.tensor([[0], [16], [-16], [130], [-140], [5000]]).repeat(1, 7)
    check(lambda x, e: (torch.ldexp(x, e), torch.ldexp(x, e.int()), x.ldexp_(e)), x, e)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_next_numbers(dtype):
    limits = torch.finfo(dtype)
    numbers = [0.0, -0.0, 1.0, -1.0, 3.5, limits.tiny, -limits.tiny, limits.max, limits.min]
    x = torch.tensor([*numbers, float("inf"), float("-inf"), float("nan")], dtype=dtype)
    smallest = torch.nextafter(x[:1], x[2:3])
    x = torch.cat([x, smallest, -smallest])

    def program(x):
        y = torch.nextafter(x[:, None], x[None, :])
        return y, y.signbit(), x.clone().nextafter_(x.flip(0))

    torch.tpu.reset_metrics()
    check(program, x)
    assert "aten::nextafter" not in torch.tpu.explain().host_kernels


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lerp_rounds_weights_that_are_tensors(dtype):
    start, end = torch.tensor([-700.0, 3.0, 11.0]).to(dtype), torch.tensor([900.0, 250.0, 11.5]).to(dtype)
    weights = torch.tensor([0.4375, 0.337, 0.8371])  # the first leaves nearly nothing
    for weight in (*weights, *weights.double(), weights.to(dtype)):
        check(
            lambda x, y, w: (*torch._foreach_lerp([x], [y], [w]), torch.lerp(x, y, w), x.lerp_(y, w)),
            start,
            end,
            weight,
        )
    check(lambda x, y: torch.lerp(x, y, 0.337), start, end)


@pytest.mark.parametrize(
    "name", "sum mean prod amax amin argmax argmin std var logsumexp any all cumsum norm softmax".split()
)
def test_reductions_of_special_values(name):
    function = getattr(torch, name)
    x = SPECIAL[:6].repeat(2, 1)
    check(lambda t: function(t, 1), x)
    check(lambda t: function(t, dim=0), x)


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_gradients_of_a_smooth_loss_of_special_values(beta):
    def program(x, y):
        loss = torch.nn.functional.smooth_l1_loss(x.requires_grad_(), y, beta=beta, reduction="sum")
        return torch.autograd.grad(loss, x)

    check(program, SPECIAL.clone(), torch.zeros_like(SPECIAL))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_class_of_weight_0_is_not_ignored(reduction):
    def program(x, target, weight):
        loss = torch.nn.functional.nll_loss(x.requires_grad_(), target, weight, reduction=reduction, ignore_index=2)
        return loss, *torch.autograd.grad(loss.sum(), x)

    x = torch.tensor([[math.nan, 1.0, 2.0], [1.0, 2.0, -math.inf], [-math.inf, 3.0, 4.0], [1.0, 2.0, 3.0]])
    check(program, x, torch.tensor([0, 2, 0, 1]), torch.tensor([0.0, 1.0, 1.0]))
    check(program, x, torch.tensor([0, 2, 0, 0]), torch.tensor([0.0, 1.0, 1.0]))  # of weight 0 altogether


def test_integer_division_and_overflow():
    x = torch.tensor([127, -128, 5, -5], dtype=torch.int8)
    y = torch.tensor([2, -1, 3, 3], dtype=torch.int8)
    check(lambda a, b: (a + b, a * b, a // b, a / b, a % b, a << 1, a & b, ~a), x, y)


@pytest.mark.embedded_only(reason="0, and no error: as on other accelerators, kernels raise nothing there")
def test_integer_division_by_zero_raises_as_on_cpu():
    x, zero = torch.arange(40), torch.arange(40).clamp(max=35) - 35
    programs = [
        lambda x, zero: x // zero,
        lambda x, zero: x.int() % zero.int() + 1,
        lambda x, zero: torch.div(x, zero, rounding_mode="trunc").sum(),
        lambda x, zero: torch.fmod(x, zero.bool()),
        lambda x, zero: x.clone().remainder_(zero[-1]),
        lambda x, zero: x.to(torch.uint8) // 0,
    ]
    for program in programs:
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            program(x, zero)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                program(x.to("tpu"), zero.to("tpu")).cpu()
            torch.tpu.wait_for_compiles()
    check(lambda x: (x // (x + 1), (x[1:] % x[1:]).roll(3), torch.where(x > 2, 7 // x.clamp(min=1), x)), x)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), ()])
def test_empty_and_zero_dim(shape):
    def program(x):
        return (
            x + 1,
            x * x,
            x.sum(),
            x.sum(-1),
            x.exp(),
            x.clone(),
            x.reshape(-1),
            torch.cat([x.reshape(-1), x.reshape(-1)]),
            x.to(torch.int64),
            x.tolist(),
            x.numel(),
        )

    check(program, torch.ones(shape))


def test_empty_products():
    check(lambda a, b: (a @ b, b @ a), torch.ones(3, 0), torch.ones(0, 3))


def test_max_of_nothing_raises_as_on_cpu():
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="numel"):
            torch.empty(0, device=device).max()


def test_numbers_are_not_rounded():
    check(lambda x: (x + 2**53 - 1, x * (2**62), (x + 1) / 3), torch.ones(3, dtype=torch.int64))
    check(lambda x: (x + 1e-12, x * 1e300, x.exp()), torch.ones(3, dtype=torch.float64), rtol=1e-15, atol=0)


def test_integers_are_not_computed_in_floats():
    x = torch.tensor([2**24 + 1, -(2**31) + 1], dtype=torch.int32)
    check(lambda a: torch._foreach_add([a, a + 1], 3) + torch._foreach_mul([a], 2), x)
    check(lambda a: (a << 1, a >> 3, a.fill_(2**24 + 1)), x)


def test_mixed_devices():
    x = torch.ones(3, device="tpu")
    assert_same(torch.ones(3) * 2, x * torch.tensor(2.0))  # a 0-dim tensor of the CPU is a number
    with pytest.raises(RuntimeError, match="device"):
        x + torch.ones(3)


def test_lists_of_tensors_on_several_devices():
    """Each with its own, as on other devices: FSDP brings what gradient scalers found to the CPU so."""
    ours, theirs = torch.zeros(3, device="tpu"), torch.zeros(3)
    x, y = torch.ones(3, device="tpu"), torch.full((3,), 2.0)
    torch._foreach_copy_([ours, theirs], [y, x])
    assert ours.tolist() == [2.0] * 3 and theirs.tolist() == [1.0] * 3
    torch._foreach_mul_([ours, theirs], 3.0)
    assert ours.tolist() == [6.0] * 3 and theirs.tolist() == [3.0] * 3
    assert (ours._version, theirs._version) == (2, 2)
    results = torch._foreach_add([x, y], [x, y])
    assert [(t.device.type, t.tolist()) for t in results] == [("tpu", [2.0] * 3), ("cpu", [4.0] * 3)]
    with pytest.raises(RuntimeError, match="device"):
        torch._foreach_add([x], [y])
    number, on_the_device = torch.zeros(()), torch.tensor(5.0, device="tpu")
    torch._foreach_copy_([number], [on_the_device])
    assert number.item() == 5


def test_printing_costs_one_read(metrics):
    x = torch.randn(50, 50, device="tpu")
    text = repr(x)
    assert metrics()["reads"] <= 1, metrics()["reads"]
    assert repr(x.cpu())[:-1] in text.replace(", device='tpu:0'", "")


def test_reading():
    x = torch.arange(6, device="tpu").reshape(2, 3)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x[1, 2].item() == 5 and int(x[1, 1]) == 4 and bool((x >= 0).all())
    assert x.cpu().numpy().sum() == 15
    assert f"{x[0, 1]}" == "1"
    with pytest.raises(TypeError, match="cpu"):
        x.numpy()


def put(x, index, values, accumulate=False):
    return x.index_put(index, values, accumulate=accumulate)


def nonzeros(*tensors):  # the CPU's strides are its own
    found = [[x.nonzero(), *x.nonzero(as_tuple=True)] for x in tensors]
    return [[i.clone(memory_format=torch.contiguous_format) for i in parts] for parts in found]


def gradient_of_selected(x):
    x = x.detach().float().requires_grad_()
    (x[x > 0] * torch.arange(3.0, device=x.device)).sum().backward()
    return x.grad


GRID = torch.tensor([[1, 0, -2], [0, 3, 1]])
BY_DATA = {
    "nonzero": lambda x: nonzeros(x, x[1], x > 9, x.view(1, 2, 3)),
    "nonzero of few": lambda x: nonzeros(x[0, 0], x[0, 1], x[:0], x[:, :0]),
    "nonzero of a size": lambda x: [torch.nonzero_static(x, size=n, fill_value=7) for n in (0, 2, 4, 9)],
    "nonzero of a size and few": lambda x: [torch.nonzero_static(t, size=2) for t in (x[0, 0], x[0, 1], x[:0], x > 9)],
    "masks": lambda x: (x[x > 0], x[x[:, 0] > 0], x[:, x[0] != 0], x[x[:, 0] > 0, 1], x[x > 9], (x > 0)[x > 0]),
    "a mask of the cpu": lambda x: x[torch.tensor([[True, False, True], [False, True, False]])],
    "writes": lambda x: (put(x, (x > 0,), x[0, 0]), put(x, (x != 0,), x.new_tensor([5, 6, 7, 8]))),
    "sums": lambda x: put(x, (x[:, 2] > 0, x.new_tensor([1, 1])), x.new_tensor(4), accumulate=True),
    "gradient": gradient_of_selected,
    "masked_select": lambda x: (
        x.masked_select(x < 0),
        x.float().masked_select(x[0] == 0),
        x[:0].masked_select(x[0] > 0),
    ),
    "unique": lambda x: (x.unique(), x.unique(return_inverse=True), x.unique(return_counts=True), (x > 0).unique()),
    "unique of few": lambda x: (x[0, :1].unique(return_inverse=True, return_counts=True), x[:0].unique()),
    "unique of floats": lambda x: (x / x).unique(return_counts=True, return_inverse=True),
    "runs": lambda x: x.view(-1).clamp(0, 1).unique_consecutive(return_inverse=True, return_counts=True),
    "read on": lambda x: (x.nonzero() * 2).sum(0) + x[x > 0].cumsum(0)[-1],
}


@pytest.mark.parametrize("name", BY_DATA)
def test_shapes_that_depend_on_data(name, metrics):
    check(BY_DATA[name], GRID)
    if not EMBEDDED:  # whose own kernels for these run in place
        assert not torch.tpu.explain().host_kernels


def test_indices_are_recorded(metrics):
    def program(x):
        return x[x.new_tensor([1, -1])], x[:, torch.tensor([2, 0])], x[x.new_tensor([0, 1]), x.new_tensor([2, 2])]

    check(program, GRID)
    assert not torch.tpu.explain().host_kernels and metrics()["cuts_data_dependent"] == 0


def test_a_mask_of_another_shape_is_an_error():
    messages = []
    for x in (GRID, GRID.to("tpu")):
        with pytest.raises(IndexError) as error:
            x[torch.ones(3, dtype=torch.bool, device=x.device)]
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_joined_with_complex_numbers():
    def program(x, c):
        wide = c.to(torch.complex128)
        parts = [c, x, x.to(torch.int32), x.half(), x.bool()]
        return torch.cat(parts), torch.cat([wide, *parts]), torch.cat([c[:0], wide[:0]]), [c.to(t) for t in DTYPES]

    check(program, COUNTS, torch.complex(COUNTS, COUNTS.flip(1)))


@pytest.mark.parametrize("one", [lambda x: x * 2, torch.sum])
def test_very_many_are_joined(one):
    check(lambda x: torch.stack([one(part) for part in x.split(2)]), torch.randn(1400))


@pytest.mark.parametrize("reduce", ["mean", "prod", "amax", "amin"])
@pytest.mark.parametrize("rows", [5, 5000])
def test_a_reduction_by_no_indices(rows, reduce):
    none = torch.zeros(0, dtype=torch.int64)
    check(lambda x, index: x.index_reduce(0, index, x[:0], reduce), torch.randn(rows, 6), none)
    check(lambda x, index: x.index_reduce_(0, index, x[:0], reduce, include_self=False), torch.randn(rows, 6), none)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8])
def test_reductions_into_elements_at_indices(reduce, dtype):
    """As neighbours of nodes are: the same index for a whole row, kept in one number."""

    def f(base, index, src, some):
        found = []
        for include_self in (True, False):
            for one in (index[:, None].expand(-1, 5), index[:3, None].expand(-1, 2), some):
                found.append(base.scatter_reduce(0, one, src, reduce, include_self=include_self))
            found.append(base.T.scatter_reduce(1, index.expand(5, -1), src.T, reduce, include_self=include_self))
            if reduce != "sum":
                found.append(base.index_reduce(0, index, src, reduce, include_self=include_self))
        return found, base.gather(0, index[:, None].expand(-1, 5)), base.gather(0, index[:, None].expand(-1, 3))

    base, src = (torch.randint(-9, 9, (n, 5)).to(dtype) for n in (6, 4))
    check(f, base, torch.tensor([3, 0, 3, 4]), src, torch.randint(0, 6, (4, 5)))


@pytest.mark.parametrize("shape", [(), (1,)])
def test_mean_with_the_only_element(shape):
    """Its count is one added to one: the same constant twice."""
    base, src = torch.randn(shape), torch.randn(shape)
    check(lambda x, i, y: x.index_reduce(0, i, y, "mean"), base, torch.zeros(shape, dtype=torch.int64), src)


OTHER_TYPES = {
    "cumsum": (lambda x, out: torch.cumsum(x, 0, out=out), torch.zeros(4, dtype=torch.int64)),
    "cumprod": (lambda x, out: torch.cumprod(x, 0, out=out), torch.zeros(4, dtype=torch.int32)),
    "sum": (lambda x, out: torch.sum(x, 0, out=out), torch.zeros((), dtype=torch.int64)),
    "prod": (lambda x, out: torch.prod(x, 0, out=out), torch.zeros((), dtype=torch.int64)),
    "nansum": (lambda x, out: torch.nansum(x, 0, out=out), torch.zeros((), dtype=torch.float64)),
    "mean": (lambda x, out: torch.mean(x, 0, out=out), torch.zeros((), dtype=torch.float64)),
}


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_sums_are_computed_in_the_type_of_out(name):
    function, out = OTHER_TYPES[name]
    check(function, torch.tensor([1.6, 1.6, 1.7, 2.7]), out)


def test_norms_of_complex_numbers_into_given_tensors():
    check(lambda x, out: torch.linalg.vector_norm(x, out=out), torch.randn(5, dtype=torch.complex64), torch.zeros(()))


@pytest.mark.parametrize("number", [0.5, 1e30, torch.inf, -torch.inf, torch.nan])
def test_softmax_of_a_number(number):
    def program(x, y):
        one, log = torch.softmax(x, 0), torch.log_softmax(x, -1)
        slope = torch._softmax_backward_data(y, one, 0, torch.float32)
        slope_of_log = torch._log_softmax_backward_data(y, log, 0, torch.float32)
        return one, log, torch._safe_softmax(x, 0), slope, slope_of_log

    check(program, torch.tensor(number), torch.tensor(2.0))


def test_results_that_host_kernels_leave_conjugated():
    factors, pivots = torch.linalg.lu_factor(torch.randn(3, 3, dtype=torch.complex64))
    right = torch.randn(4, 3, dtype=torch.complex64)
    check(lambda *given: torch.linalg.lu_solve(*given, left=False).resolve_conj(), factors, pivots, right)


def test_a_number_that_a_host_kernel_reads_as_a_tensor():
    def f(x):
        return x / torch.scalar_tensor(4, dtype=torch.int64, device=x.device)

    check(f, torch.randn(3, dtype=torch.complex64))


def test_conjugates_that_host_kernels_and_the_cpu_give():
    def f(a, b):
        out = torch.zeros(2, 3, dtype=a.dtype, device=a.device)
        return torch.linalg.solve(a, b, left=False), torch.linalg.solve(a, b, left=False, out=out).clone()

    a, b = torch.randn(3, 3, dtype=torch.complex128), torch.randn(2, 3, dtype=torch.complex128)
    check(f, a, b)
    for lazily in (a.conj(), a.conj().imag.mT):
        torch.testing.assert_close(lazily.to("tpu").cpu(), lazily.clone())
        torch.testing.assert_close(torch.zeros_like(lazily, device="tpu").copy_(lazily).cpu(), lazily.clone())


def test_mode_into_given_tensors():
    def f(x):
        out = torch.zeros(2, device=x.device), torch.zeros(2, dtype=torch.int64, device=x.device)
        torch.mode(x, 1, out=out)
        return out

    check(f, torch.tensor([[1.0, 2, 2], [3, 3, 1]]))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_host_kernels_read_tensors_made_of_a_number(shape):
    def program(x):
        number = torch.full(shape, 1.5, dtype=torch.float64, device=x.device)
        return torch.complex(number, number), torch.polar(number, number), number, x * 2

    check(program, COUNTS)


def test_kaiser_windows():
    def program(x):
        of = {"device": x.device}
        made = [torch.kaiser_window(n, **of) for n in (0, 1, 2, 9)]
        made.append(torch.kaiser_window(9, periodic=False, dtype=torch.float64, **of))
        return *made, torch.kaiser_window(9, True, 3.0, **of)

    check(program, COUNTS)
    torch.tpu.reset_metrics()
    torch.kaiser_window(9, device="tpu:0")
    assert torch.tpu.explain().host_kernels == {"aten::kaiser_window": 1}
    assert torch.tpu.metrics()["host_kernel_calls"] == 1


@pytest.mark.filterwarnings("ignore:An output with one or more elements")
@pytest.mark.parametrize("shape", [(0,), (3,), (4, 4), (5,), (2, 3)])
def test_ranges_give_out_its_sizes(shape):
    def program(x):
        numbers, whole = (torch.zeros(shape, dtype=t, device=x.device) for t in (torch.float32, torch.int64))
        part = torch.zeros(10, device=x.device)
        torch.arange(5.0, out=part[2:4].view(-1))
        return torch.arange(5, out=numbers), numbers, torch.arange(1, 10, 2, out=whole), whole, part

    check(program, COUNTS)


@pytest.mark.parametrize("rows", [5, 100])
def test_results_lie_as_the_cpus_lie(rows):
    def program(x):
        z = torch.complex(x, x + 1)
        image = x.view(1, 4, rows // 5, -1).contiguous(memory_format=torch.channels_last)
        return (
            torch.complex(x.t(), x.t()),
            torch.polar(x.t(), x.t() / 100),
            torch.polar(x.t(), x.t() / 100, out=torch.empty(0, dtype=torch.complex64, device=x.device)),
            z.t().angle(),
            x.t().angle(),
            torch.roll(image, 1, 1),
            torch.roll(x.t(), 1, 1),
        )

    check(program, torch.arange(4.0 * rows * rows).view(rows, -1) / 1000)


@pytest.mark.parametrize("classes", [5, 20000])
def test_one_loss_has_the_cpus_dimensions(classes):
    def program(x, target):
        x.requires_grad_()
        losses = [
            torch.nn.functional.multilabel_margin_loss(y, target.view_as(y), reduction="none") for y in (x, x[None])
        ]
        torch.stack([loss.sum() for loss in losses]).sum().backward()
        return [loss.detach() for loss in losses], x.grad

    check(program, torch.linspace(-1, 1, classes), torch.tensor([2, 0, -1]).repeat(classes)[:classes])


@pytest.mark.parametrize("shape", [(4, 3), (2, 3), (3, 3)])
def test_what_host_kernels_resize_lies_as_they_leave_it(shape):
    def program(a, b):
        given = torch.zeros(20, device=a.device)[2:2]
        solution = torch.linalg.lstsq(a, b).solution
        return solution, torch.linalg.lstsq(a, b, out=(given, *(b.new_empty(0) for _ in range(3))))[0], given.exp()

    check(program, torch.eye(*shape) + torch.randn(shape) / 20, torch.randn(shape[0], 2))


@pytest.mark.parametrize("rows", [3, 100])
def test_eigenvectors_lie_as_the_cpus_lie(rows):
    check(lambda x: torch.linalg.eig(x)[1].stride(), torch.eye(rows) + torch.arange(float(rows)).diag())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_histograms_of_integers_are_counted_as_on_cuda(dtype):
    x = torch.tensor([3, 0, 7, 7, 2, 9, 1, 3, 200 if dtype == torch.uint8 else -5], dtype=dtype)

    def program(x, bins, least, most):
        counts = torch.histc(x if x.device.type == "tpu" else x.double(), bins, least, most)
        return counts.to(x.dtype)

    for arguments in ((8, 0, 7), (3, 0, 9), (5, 1, 8), (4, 0, 0)):
        check(program, x, *arguments)
    assert torch.histc(x.to("tpu"), 8, 0, 7).dtype == dtype


def test_histograms():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    x[:4] = torch.tensor([math.nan, math.inf, 2, -1])

    def program(x):
        edges = (x * 4).round() / 4  # many on the borders between bins
        return [torch.histc(y, bins, -1, 2) for y in (x, edges, x.double()) for bins in (1, 7, 12)]

    check(program, x)


def test_isin(metrics):
    def program(x, among):
        found = [torch.isin(x, y, invert=invert) for y in (among, among[:0], 3) for invert in (False, True)]
        return *found, torch.isin(3, among), torch.isin(x.double(), among), torch.isin(x, among.double() + 0.5)

    check(program, torch.arange(24).reshape(2, 3, 4) % 7, torch.tensor([[3, 5], [-1, 0]]))
    assert not torch.tpu.explain().host_kernels


def test_integers_take_whole_factors():
    def f(a, b):
        return torch.addcmul(a, a, b, value=1.7), a.addcmul_(b, b, value=0.5), torch.addmm(a, b, b, alpha=2.9, beta=0.5)

    for dtype in (torch.int64, torch.int8):
        check(f, torch.arange(4, dtype=dtype).view(2, 2), torch.tensor([[1, 2], [-3, 2]], dtype=dtype))


@pytest.mark.embedded_only(reason="XLA sums as it does")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_long_inner_products_are_accurate(dtype):
    """Of equal numbers, whose sum is rounded the same way again and again."""
    x = torch.full((1 << 21, 3), 0.1, dtype=dtype, device="tpu")
    y, rows = x[:, 0].contiguous(), x.t().contiguous()
    exact = (0.1 * torch.ones(1, dtype=dtype)).double().square().item() * len(x)
    for _ in range(3):
        products = x.t() @ y, rows @ y, rows @ x, rows @ rows.t(), rows[:1] @ y[:, None], y @ x, torch.dot(y, y)
        found = torch.cat([product.double().reshape(-1) for product in products]).cpu()
        torch.tpu.wait_for_compiles()
    tolerance = 1e-4 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(found, torch.full_like(found, exact), rtol=tolerance, atol=0)


@pytest.mark.parametrize("name, training", [("_legit", [False]), ("_legit_no_training", [])])
def test_batch_norm_in_evaluation_gives_the_statistics_that_it_took(name, training):
    """As devices other than the CPU, and what PyTorch says of shapes, do; at both tiers."""
    norm = getattr(torch.ops.aten, f"_native_batch_norm{name}")
    mean, variance = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.25])
    for _ in range(2):
        x, m, v = (t.to("tpu") for t in (torch.ones(3, 2), mean, variance))
        saved = norm(x, None, None, m, v, *training, 0.1, 0.0)[1:]
        m.zero_()
        assert_same((mean, variance.rsqrt()), saved)
        torch.tpu.wait_for_compiles()


def test_batch_norm_into_given_tensors_writes_its_statistics():
    def normed(x, mean, variance):
        out = tuple(torch.empty(0, device=x.device) for _ in range(3))
        return torch.native_batch_norm(x, None, None, mean, variance, True, 0.5, 1e-5, out=out), mean, variance

    check(normed, torch.randn(4, 2, 3), torch.ones(2), torch.ones(2))
