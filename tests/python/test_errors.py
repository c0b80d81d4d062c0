"""Mistakes raise at the call, with the CPU's exception type."""

import warnings

import pytest
import torch
from helpers import compiled, run_python


def error_of(function, device):
    try:
        function(device)
    except Exception as error:
        return error
    raise AssertionError(f"no error on {device}")


CASES = {
    "shapes don't broadcast": lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
    "matmul shapes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "matmul dtypes": lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, dtype=torch.float64, device=d),
    "view of the wrong size": lambda d: torch.ones(6, device=d).view(4, 2),
    "view of strided": lambda d: torch.ones(4, 4, device=d).t().view(16),
    "dim out of range": lambda d: torch.ones(2, device=d).sum(3),
    "dim twice": lambda d: torch.ones(2, 2, device=d).sum((0, 0)),
    "in-place promotion": lambda d: torch.ones(2, dtype=torch.int32, device=d).add_(1.5),
    "in-place broadcast": lambda d: torch.ones(2, device=d).add_(torch.ones(3, 2, device=d)),
    "copy of another size": lambda d: torch.ones(2, device=d).copy_(torch.ones(3, device=d)),
    "copy of more dims": lambda d: torch.ones((), device=d).copy_(torch.ones(1, device=d)),
    "copy of nothing in more dims": lambda d: torch.ones(0, device=d).copy_(torch.ones(1, 0)),
    "cat shapes": lambda d: torch.cat([torch.ones(2, 2, device=d), torch.ones(2, 3, device=d)]),
    "stack shapes": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "index dtype": lambda d: torch.ones(3, device=d)[torch.ones(3, device=d)],
    "select out of range": lambda d: torch.ones(3, device=d)[5],
    "narrow out of range": lambda d: torch.ones(3, device=d).narrow(0, 2, 4),
    "bitwise of floats": lambda d: torch.ones(3, device=d) & 1,
    "draws from too many": lambda d: torch.ones(1, device=d).expand(2**24 + 1).multinomial(1),
    "mean of integers": lambda d: torch.ones(3, dtype=torch.int64, device=d).mean(),
    "item of many": lambda d: torch.ones(3, device=d).item(),
    "bool of many": lambda d: bool(torch.ones(3, device=d)),
    "grad of integers": lambda d: torch.ones(3, dtype=torch.int64, device=d).requires_grad_(),
    "in-place on leaf": lambda d: torch.ones(3, device=d, requires_grad=True).add_(1),
    "backward of many": lambda d: (torch.ones(3, device=d, requires_grad=True) * 2).backward(),
    "conv channels": lambda d: torch.conv2d(torch.ones(1, 3, 4, 4, device=d), torch.ones(2, 4, 3, 3, device=d)),
    "linear shapes": lambda d: torch.nn.functional.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
    "embedding dtype": lambda d: torch.nn.functional.embedding(torch.ones(2, device=d), torch.ones(3, 2, device=d)),
    "overlapping write": lambda d: torch.ones(1, device=d).expand(3).add_(1),
    "out dtype": lambda d: torch.add(torch.ones(2, device=d), 1.5, out=torch.ones(2, dtype=torch.int32, device=d)),
    "out dtype of all": lambda d: torch.all(torch.ones(2, 2, device=d), (0, 1), out=torch.ones((), device=d)),
    "out dtype of any": lambda d: torch.any(
        torch.ones(2, 2, device=d), (0,), out=torch.ones(2, dtype=torch.int64, device=d)
    ),
    "expand": lambda d: torch.ones(2, 3, device=d).expand(2, 4),
    "squeeze dim": lambda d: torch.ones(2, device=d).squeeze(4),
    "repeat": lambda d: torch.ones(2, 3, device=d).repeat(2),
    "negative size": lambda d: torch.empty(-1, device=d),
    "split": lambda d: torch.ones(5, device=d).split([2, 2]),
    "scatter index dtype": lambda d: torch.ones(3, device=d).scatter_(0, torch.ones(1, device=d), 1.0),
    "cross_entropy shapes": lambda d: torch.nn.functional.cross_entropy(
        torch.ones(2, 3, device=d), torch.ones(4, dtype=torch.int64, device=d)
    ),
    "max of nothing": lambda d: torch.empty(0, device=d).max(),
    "bitwise of many floats": lambda d: torch.ones(300, 300, device=d) & 1,
    "many floats by many doubles": lambda d: (
        torch.ones(300, 300, device=d) @ torch.ones(300, 300, dtype=torch.float64, device=d)
    ),
    "conv dtypes": lambda d: torch.conv2d(
        torch.ones(8, 3, 64, 64, device=d), torch.ones(2, 3, 3, 3, dtype=torch.float64, device=d)
    ),
    "scatter dtypes": lambda d: torch.ones(3, device=d).scatter_(
        0, torch.zeros(1, dtype=torch.int64, device=d), torch.ones(1, dtype=torch.float64, device=d)
    ),
    "cholesky of integers": lambda d: torch.linalg.cholesky(torch.ones(3, 3, dtype=torch.int64, device=d)),
    "solve shapes": lambda d: torch.linalg.solve(torch.ones(3, 3, device=d), torch.ones(2, 2, device=d)),
    "argmax of nothing": lambda d: torch.ones(3, 0, device=d).argmax(1),
    "median of complex": lambda d: torch.ones(3, dtype=torch.complex64, device=d).median(),
    "index of nothing": lambda d: torch.ones(0, 3, device=d).index_select(0, torch.tensor([0], device=d)),
    "histogram of bins": lambda d: torch.histc(torch.ones(3, device=d), 0),
    "group norm channels": lambda d: torch.nn.functional.group_norm(torch.ones(2, 3, 4, device=d), 2),
    "nll target dtype": lambda d: torch.nn.functional.nll_loss(torch.ones(2, 3, device=d), torch.ones(2, device=d)),
    "lerp dtypes": lambda d: torch.ones(3, device=d).lerp(torch.ones(3, dtype=torch.float64, device=d), 0.5),
    "index of a number": lambda d: torch.tensor(1.5, device=d).index_select(1, torch.tensor([0], device=d)),
    "complex fill": lambda d: torch.ones(3, device=d).fill_(1j),
    "complex fill of indices": lambda d: torch.ones(3, device=d).index_fill_(0, torch.tensor([0], device=d), 1j),
    "complex fill of masks": lambda d: torch.ones(3, device=d).masked_fill_(torch.ones(3, device=d) > 0, 1j),
    "complex scatter": lambda d: torch.ones(3, device=d).scatter(0, torch.tensor([0], device=d), 1j),
    "complex bound": lambda d: torch.ones(3, device=d).clamp(1j),
    "steps of flags": lambda d: torch.linspace(0, 1, 5, dtype=torch.bool, device=d),
    "indices of flags": lambda d: torch.tril_indices(3, 3, dtype=torch.bool, device=d),
    "loss of an integer": lambda d: torch.nn.functional.multilabel_margin_loss(
        torch.tensor(1, device=d), torch.tensor(0, device=d)
    ),
    "no such overload": lambda d: torch.add(torch.ones(2, device=d), "one"),
}


NO_KERNEL = {
    "range of flags": lambda d: torch.arange(3, dtype=torch.bool, device=d),
    "product of expanded flags": lambda d: torch.ones(5, 4, dtype=torch.bool, device=d).matmul(
        torch.ones(3, 4, 5, dtype=torch.bool, device=d)
    ),
}


def check_error(function):
    expected, found = error_of(function, "cpu"), error_of(function, "tpu")
    assert type(found) is type(expected), f"{expected!r} on cpu, {found!r} on tpu"
    assert str(found)


@pytest.mark.parametrize("name", CASES)
def test_same_error_at_the_call(name):
    check_error(CASES[name])


@pytest.mark.embedded_only(reason="programs of other devices do what the CPU has no kernel for")
@pytest.mark.parametrize("name", NO_KERNEL)
def test_types_without_a_kernel_are_an_error_at_the_call(name):
    check_error(NO_KERNEL[name])


NUMBERS = {  # a good one, then a bad one
    "fill": (lambda x, n: x.fill_(n), 1.0, 1e300),
    "fill of 16 bits": (lambda x, n: x.half().fill_(n), 1.0, 1e5),
    "fill of bytes": (lambda x, n: x.to(torch.uint8).fill_(n), 200, 300),
    "masked fill": (lambda x, n: x.masked_fill(x > 1, n), 1.0, -1e300),
    "clamp of bytes": (lambda x, n: x.to(torch.uint8).clamp(n), 1, 1000),
    "dropout": (lambda x, n: torch.native_dropout(x, n, True), 0.5, 1.5),
    "dropout below 0": (lambda x, n: torch.native_dropout(x, n, True), 0.0, -0.5),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_raise_at_the_call_also_where_others_were_right(name):
    function, good, bad = NUMBERS[name]
    found = {}
    for device in ("cpu", "tpu"):
        x = torch.ones(3, device=device)
        function(x, good)
        found[device] = error_of(lambda d, x=x: function(x, bad), device)
        function(x, good)
    assert type(found["tpu"]) is type(found["cpu"]) and str(found["tpu"]) == str(found["cpu"])


def test_checking_a_call_draws_nothing_from_the_cpus_generator():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    torch.native_dropout(torch.ones(7, device="tpu"), 0.3, True)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("function", [torch.cholesky, torch.linalg.eigh, torch.linalg.svd, torch.linalg.cholesky])
@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_there_being_no_factorization_is_an_error_of_linear_algebra(function):
    def read(d):
        result = function(torch.full((3, 3), float("nan"), device=d))
        return (result if isinstance(result, torch.Tensor) else result[0]).cpu()

    assert type(error_of(read, "tpu")) is type(error_of(read, "cpu")) is torch.linalg.LinAlgError


@pytest.mark.parametrize("name", ["cholesky_ex", "inv_ex", "lu_factor_ex", "solve_ex"])
def test_errors_of_linear_algebra_that_are_asked_for_come_at_the_call(name):
    def call(d, check_errors=True):
        operands = [torch.zeros(2, 2, device=d)] * (2 if name == "solve_ex" else 1)
        return getattr(torch.linalg, name)(*operands, check_errors=check_errors)

    assert type(error_of(call, "tpu")) is type(error_of(call, "cpu"))
    assert call("tpu", check_errors=False).info.item() == 1
    with pytest.raises(type(error_of(call, "cpu"))):
        compiled(lambda: call("tpu"))()


@pytest.mark.parametrize("make", [torch.empty, torch.ones, torch.rand, torch.full_like, torch.empty_strided])
def test_memory_of_the_device_is_not_pinned(make):
    arguments = {torch.full_like: (torch.ones(3), 2.0), torch.empty_strided: ((3,), (1,))}.get(make, (3,))
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        make(*arguments, device="tpu", pin_memory=True)
    assert make(*arguments, device="tpu", pin_memory=False).shape == (3,)


def test_an_error_leaves_the_device_usable():
    x = torch.ones(2, 3, device="tpu")
    y = x * 2
    with pytest.raises(RuntimeError):
        x + torch.ones(4, device="tpu")
    assert y.sum().item() == 12


def test_errors_of_values_surface_at_the_read():
    table = torch.ones(3, 2, device="tpu")
    rows = torch.nn.functional.embedding(torch.tensor([7], device="tpu"), table)
    with pytest.raises((IndexError, RuntimeError), match=r"embedding|index"):
        rows.cpu()
    assert table.sum().item() == 6


@pytest.mark.parametrize("function", ["embedding", "gather"])
def test_indices_into_a_constant_are_checked_when_compiled_too(function):
    def read(index):
        table = torch.full((3, 2), 1.5, device="tpu")
        if function == "embedding":
            return torch.nn.functional.embedding(torch.tensor([index], device="tpu"), table).cpu()
        return table.gather(0, torch.tensor([[index]], device="tpu")).cpu()

    for _ in range(2):
        assert read(1)[0, 0] == 1.5
        torch.tpu.wait_for_compiles()
    with pytest.raises((IndexError, RuntimeError)):
        read(7)


NOTHING_READ = {
    "index_select": lambda d, i: torch.zeros(4, 0, device=d).index_select(0, i),
    "embedding": lambda d, i: torch.nn.functional.embedding(i, torch.zeros(4, 0, device=d)),
    "embedding_bag": lambda d, i: torch.nn.functional.embedding_bag(i[None], torch.zeros(4, 0, device=d)),
    "index_reduce": lambda d, i: torch.zeros(4, 0, device=d).index_reduce(0, i, torch.zeros(1, 0, device=d), "amax"),
    "scatter": lambda d, i: torch.zeros(0, 1, device=d).scatter(0, i[None], torch.zeros(1, 1, device=d)),
    "scatter_add": lambda d, i: torch.zeros(0, 1, device=d).scatter_add(0, i[None], torch.zeros(1, 1, device=d)),
    "gather": lambda d, i: torch.zeros(4, 0, device=d).gather(0, i[None, :0]),
    "index": lambda d, i: torch.zeros(4, 0, device=d)[i],
    "index_add": lambda d, i: torch.zeros(4, 0, device=d).index_add(0, i, torch.zeros(1, 0, device=d)),
}


@pytest.mark.parametrize("name", NOTHING_READ)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_indices_of_nothing_are_checked_as_on_the_cpu(name):
    def read(d):
        try:
            return NOTHING_READ[name](d, torch.tensor([9], device=d)).cpu()
        except (IndexError, RuntimeError) as error:
            return type(error)

    expected = read("cpu")
    for _ in range(3):
        found = read("tpu")
        assert torch.equal(found, expected) if isinstance(expected, torch.Tensor) else found is expected
        torch.tpu.wait_for_compiles()


@pytest.mark.parametrize(("row", "column"), [(0, 2), (1, -3), (3, 0), (-4, 1), (1 << 62, 0)])
def test_each_of_several_indices_is_in_its_range(row, column):
    def read(x, i, j):
        return x[i, j]

    def write(x, i, j):
        x[i, j] = 99.0
        return x

    def add(x, i, j):
        return x.index_put((i, j), x[0, :1], accumulate=True)

    for function in (read, write, add):
        for _ in range(3):  # the last by compiled code
            x = torch.arange(6.0, device="tpu").view(3, 2)
            function(x, torch.tensor([2], device="tpu"), torch.tensor([-1], device="tpu")).cpu()
            torch.tpu.wait_for_compiles()
        with pytest.raises(IndexError):
            function(x, torch.tensor([row], device="tpu"), torch.tensor([column], device="tpu")).cpu()


@pytest.mark.embedded_only(reason="plugins compute it of any numbers")
def test_binary_cross_entropy_is_of_probabilities():
    for probability in (0.5, 1.5, float("nan")):
        for _ in range(3):  # the last by compiled code
            x = torch.tensor([probability, 0.5], device="tpu")
            loss = torch.nn.functional.binary_cross_entropy(x, torch.tensor([1.0, 0.0], device="tpu"))
            if probability == 0.5:
                assert loss.item() == pytest.approx(0.693147, rel=1e-5)
            else:
                with pytest.raises(RuntimeError, match="between 0 and 1"):
                    loss.item()
            torch.tpu.wait_for_compiles()


@pytest.mark.parametrize("wrap", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_what_is_asserted_is_looked_at(wrap):
    def f(x):
        torch._assert_async((x > 0).all(), "all are positive")
        return x + 1

    there = wrap(f)
    assert there(torch.ones(2, device="tpu")).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="all are positive"):
        there(torch.zeros(2, device="tpu"))
    assert there(torch.ones(2, device="tpu")).tolist() == [2, 2]


def test_aot_inductor_refuses_the_device():
    program = torch.export.export(torch.nn.Linear(3, 2).to("tpu"), (torch.ones(1, 3, device="tpu"),))
    with pytest.raises(NotImplementedError, match=r"tpu: AOTInductor"):
        torch._inductor.aoti_compile_and_package(program)


def test_error_of_a_value_names_operator_and_line():
    table = torch.ones(3, 2, device="tpu")
    rows = torch.nn.functional.embedding(torch.tensor([7], device="tpu"), table)
    with pytest.raises((IndexError, RuntimeError)) as caught:
        rows.cpu()
    assert "embedding" in str(caught.value) or "index_select" in str(caught.value)


def test_debug_mode_raises_at_the_line():
    table = torch.ones(3, 2, device="tpu")
    with torch.tpu.eager_mode("debug"), pytest.raises((IndexError, RuntimeError)):
        torch.nn.functional.embedding(torch.tensor([7], device="tpu"), table)


def test_tensors_of_two_devices_are_not_compared():
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.equal(torch.ones(2, device="tpu"), torch.ones(2))


def test_a_number_on_the_device_fills_tensors_of_the_cpu():
    x, number = torch.ones(3), torch.tensor(2.5, device="tpu")
    assert x.fill_(number) is x and x.tolist() == [2.5] * 3
    with pytest.raises(RuntimeError, match="only supports 0-dimension value tensor"):
        x.fill_(number.reshape(1))


def test_a_number_on_the_device_is_put_among_elements_of_the_cpu():
    x, number = torch.zeros(4), torch.tensor(2.5, device="tpu", requires_grad=True)
    x[torch.tensor([0, 2])] = number
    x[torch.tensor([False, True, False, False])] = number * 2
    assert x.is_cpu and x.tolist() == [2.5, 5.0, 2.5, 0.0]
    x.sum().backward()
    assert number.grad.item() == 4
    with pytest.raises(RuntimeError, match="on the same device"):
        x.index_put_((torch.tensor([0, 2], device="tpu"),), number)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: x.add_(y),
        lambda x, y: x.addcmul_(y, y),
        lambda x, y: x.lerp_(y, 0.5),
        lambda x, y: x.random_(generator=torch.Generator(device="tpu")),
        lambda x, y: x.normal_(generator=torch.Generator(device="tpu")),
    ],
    ids=["add", "addcmul", "lerp", "random", "normal"],
)
def test_a_number_of_the_cpu_is_not_written_on_the_device(write):
    x, y = torch.tensor(1.0), torch.tensor(2.0, device="tpu")
    with pytest.raises(RuntimeError, match=r"on the same device.* tpu:0 and cpu"):
        write(x, y)
    assert x.item() == 1 and y.item() == 2


def test_invalid_device():
    with pytest.raises(RuntimeError, match=r"ordinal"):
        torch.ones(1, device="tpu:99")
    with pytest.raises(RuntimeError, match=r"ordinal"):
        torch.tpu.set_device(99)


def test_values_are_no_reason_to_refuse_a_call():
    """What only some values are wrong for is recorded: the check of a call knows kinds, not values."""
    x = torch.eye(3, device="tpu") * 2
    assert torch.linalg.cholesky(x).shape == (3, 3)
    assert torch.linalg.inv(x)[0, 0].item() == 0.5
    offsets = torch.tensor([0, 2], device="tpu")
    bags = torch.nn.functional.embedding_bag(torch.tensor([0, 1, 2], device="tpu"), x, offsets)
    assert bags.cpu().tolist() == [[1, 1, 0], [0, 0, 2]]
    assert torch.nn.functional.binary_cross_entropy(x / 4, x / 2).item() > 0


def test_values_of_expanded_tensors_decide_too():
    lengths = torch.tensor([2], device="tpu").expand(2)
    assert torch.segment_reduce(torch.ones(4, device="tpu"), "sum", lengths=lengths).tolist() == [2, 2]


def test_an_operator_without_a_kernel_is_refused_at_the_call():
    library = torch.library.Library("test_errors", "FRAGMENT")
    library.define("shapes_alone(Tensor x) -> Tensor")
    library.define("shapes_alone_(Tensor(a!) x) -> ()")
    library.impl("shapes_alone", torch.empty_like, "Meta")
    library.impl("shapes_alone_", lambda x: None, "Meta")
    for operator in (torch.ops.test_errors.shapes_alone, torch.ops.test_errors.shapes_alone_):
        for device in ("cpu", "tpu"):
            with pytest.raises(NotImplementedError, match="Could not run 'test_errors::shapes_alone"):
                operator(torch.ones(3, device=device))


@pytest.mark.parametrize("cell", [torch.gru, torch.lstm], ids=lambda cell: cell.__name__)
def test_weights_that_are_not_those_of_whole_gates_are_refused(cell):
    x, state, weight = (
        torch.ones(2, 4, 4, device="tpu"),
        torch.ones(1, 4, 4, device="tpu"),
        torch.ones(5, 4, device="tpu"),
    )
    with pytest.raises(RuntimeError, match="gates of one size"):
        cell(x, state if cell is torch.gru else (state, state), [weight, weight], False, 1, 0.0, False, False, False)


def test_a_bias_of_a_large_cell_that_does_not_fit_is_refused_at_the_call():
    def ones(*sizes):
        return torch.ones(*sizes, device="tpu")

    with pytest.raises(RuntimeError, match="511"):
        torch.lstm_cell(ones(300, 128), (ones(300, 128),) * 2, ones(512, 128), ones(512, 128), ones(511), ones(512))


def test_a_large_tensor_survives_values_that_do_not_fit():
    x = torch.zeros(400, 400, device="tpu")
    with pytest.raises(RuntimeError, match="cannot be broadcast"):
        x[torch.arange(50, device="tpu")] = torch.ones(60, 400, device="tpu")
    assert x.sum().item() == 0


def test_tensors_of_onednn_are_refused():
    x = torch.ones(10, device="tpu")
    with pytest.raises(NotImplementedError, match="mkldnn"):
        x.to_mkldnn()
    assert x.sum().item() == 10


def test_values_that_hardly_any_stand_in_has_decide_at_the_call():
    x = torch.arange(5.0, device="tpu")

    def reduce(lengths):
        return torch.segment_reduce(x, "max", lengths=torch.tensor(lengths, device="tpu"), axis=0, initial=1)

    assert reduce([0, 1, 2, 2]).cpu().tolist() == [1, 1, 2, 4]
    with pytest.raises(RuntimeError, match="Expected all rows of lengths"):
        reduce([1, 1, 1, 1])


def test_attributes_that_hold_sizes_are_no_reason_either():
    x = torch.randn(64, 384, device="tpu", requires_grad=True)
    y = torch.nn.functional.layer_norm(x, (384,), torch.ones(384, device="tpu"), torch.zeros(384, device="tpu"))
    (y[5].sum() + y[:, 3:200:2].sum() + y.unfold(0, 9, 5).sum()).backward()
    image = torch.randn(2, 3, 64, 64, device="tpu", requires_grad=True)
    weight = torch.randn(5, 3, 3, 3, device="tpu", requires_grad=True)
    pooled = torch.nn.functional.max_pool2d(torch.conv2d(image, weight, torch.zeros(5, device="tpu")), 2)
    torch.nn.functional.interpolate(pooled, size=(50, 50), mode="bilinear").sum().backward()
    assert x.grad.isfinite().all() and image.grad.isfinite().all() and weight.grad.isfinite().all()


def test_the_check_of_a_call_warns_of_nothing_of_its_own():
    parts = [torch.ones(64, 384, device="tpu"), torch.ones(384, device="tpu")]
    out = torch.empty(4, 16 * 384 + 96, device="tpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch._chunk_cat(parts, 0, 4, out=out)
    assert out.eq(1).all()
    with warnings.catch_warnings(record=True) as caught:  # what inference in Python warns of, whatever becomes of that
        warnings.simplefilter("always")
        assert torch.randperm(12345, device="tpu").sum() == 12345 * 12344 // 2
    assert not caught


def test_an_out_tensor_that_is_resized_is_warned_of_as_on_the_cpu():
    heard = {}
    for device in ("cpu", "tpu"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.addmm(*[torch.ones(3, 3, device=device)] * 3, out=torch.ones(3, 4, device=device))
            torch.add(torch.ones(3, 5, device=device), 1, out=torch.ones(3, 4, device=device))
        heard[device] = [str(w.message) for w in caught]
    assert heard["tpu"] == heard["cpu"]


def test_what_kernels_warn_of_is_said_at_the_call():
    process = run_python(
        """
        import warnings, torch
        for calls in (
            lambda d: torch.ones(1, device=d).std(),
            lambda d: torch.tensor([1 + 2j], device=d).float(),
        ):
            heard = {}
            for device in ("cpu", "tpu"):
                torch.set_warn_always(True)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    x = calls(device)
                x.cpu()
                heard[device] = [str(w.message).split(" (Triggered")[0] for w in caught]
            assert heard["tpu"] == heard["cpu"] and len(heard["tpu"]) == 1, heard
        """,
        {"TORCH_TPU_COMPILE_AFTER": "1000000"},
    )
    assert "Warning" not in process.stderr


@pytest.mark.parametrize("fill", [torch.arange, torch.linspace], ids=["arange", "linspace"])
def test_an_out_tensor_of_as_many_elements_keeps_its_sizes(fill):
    arguments = (0, 4) if fill is torch.arange else (0, 3, 4)
    for make in (lambda x: x[:, 1:], lambda x: x[:, :2].clone().t(), lambda x: x[0]):
        outs = {d: make(torch.zeros(2, 3, device=d)) for d in ("cpu", "tpu")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for out in outs.values():
                fill(*arguments, out=out)
        assert outs["tpu"].stride() == outs["cpu"].stride()
        torch.testing.assert_close(outs["tpu"].cpu(), outs["cpu"])


def test_sizes_that_no_storage_has_are_refused():
    line = torch.zeros(3, device="tpu")
    for make in (
        lambda: torch.empty(2**62, device="tpu"),
        lambda: torch.empty(2**33, 2**30, device="tpu"),
        lambda: line.new_empty(2**61),
        lambda: line[:, None].expand(3, 2**61).contiguous(),
    ):
        with pytest.raises(RuntimeError, match="overflow"):
            make()


def test_storages_are_not_resized_beyond_the_device():
    x = torch.ones(3, device="tpu")
    for resize in (lambda: x.resize_(2**60), lambda: x.untyped_storage().resize_(2**62)):
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            resize()
    with pytest.raises(RuntimeError, match="no storage has"):
        x.untyped_storage().resize_(-1)
    assert x.tolist() == [1, 1, 1]


def test_strides_that_no_storage_has_are_refused():
    x = torch.zeros(2, device="tpu")
    for sizes, strides in (((2,), ()), ((1, 2), (1,)), ((2,), (-1,))):
        with pytest.raises(RuntimeError, match="strides"):
            x.new_empty_strided(sizes, strides)


def test_a_slice_of_a_storage_is_refused():
    storage = torch.ones(4, device="tpu").untyped_storage()
    assert storage[3] == 63
    with pytest.raises(RuntimeError, match="share its memory"):
        storage[:4]


def test_what_is_read_and_written_keeps_its_sizes():
    x, y = torch.randn(3, 1, 2, device="tpu"), torch.randn(3, 2, device="tpu")
    calls = [
        lambda: torch.mul(x, y, out=x),
        lambda: torch.where(y > 0, x, y, out=x),
        lambda: torch.addcmul(y, y, x, out=x),
        lambda: x.ldexp_(y),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"output with shape \[3, 1, 2\] doesn't match the broadcast shape"):
            call()
    assert x.shape == (3, 1, 2)
    torch.mul(x, 2, out=x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.ops.aten._fused_rms_norm_backward(x, x, [8, 8, 8], x, None, [True, False]),
        lambda x: torch.ops.aten.batch_norm_elemt(x[0, 0], None, None, x[0, 0], x[0, 0], 1e-5),
        lambda x: torch.ops.aten._native_batch_norm_legit.no_stats(x[0, 0], None, None, True, 0.1, 1e-5)[0].cpu(),
    ],
)
def test_norms_of_more_dimensions_than_there_are(call):
    """Asked of operators that PyTorch asks only of what fits."""
    with pytest.raises(RuntimeError):
        call(torch.ones(8, 8, device="tpu"))


@pytest.mark.parametrize("given", [(True, False), (False, True)])
def test_one_statistic_of_two(given):
    def call(device):
        mean, variance = (torch.ones(2, device=device) if g else None for g in given)
        torch.ops.aten.native_batch_norm(torch.ones(3, 2, device=device), None, None, mean, variance, True, 0.1, 1e-5)

    for device in ("cpu", "tpu"):
        with pytest.raises(ValueError, match="running_mean and running_var must either both be None or neither"):
            call(device)


def test_nothing_is_written_to():
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="undefined"):
            torch.ops.aten.bitwise_and_.Tensor(None, torch.ones(3, dtype=torch.bool, device=device))
