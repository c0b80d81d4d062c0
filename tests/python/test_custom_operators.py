"""Operators of users and libraries with a kernel for the CPU alone: it runs, in its place in the stream."""

import pytest
import torch
from helpers import compiled

LIBRARY = torch.library.Library("test_custom_operators", "DEF")


def dynamic(x):
    return torch.empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64, device=x.device)


def positive(x):
    return (x > 0).nonzero().flatten()


def refuses(x):
    raise ValueError("a complaint of the inference's")


def accumulate_(x, y):
    x.add_(y)


told = []
complaints = []


def write(x):
    told.append("written")
    if complaints:
        raise RuntimeError(complaints.pop())
    return x + 1


for schema, kernel, fake in [
    ("positive(Tensor x) -> Tensor", positive, dynamic),
    ("positive_without_sizes(Tensor x) -> Tensor", positive, None),
    ("twice(Tensor x) -> Tensor", lambda x: x * 2, torch.empty_like),
    ("twice_though_inference_refuses(Tensor x) -> Tensor", lambda x: x * 2, refuses),
    ("write(Tensor x) -> Tensor", write, torch.empty_like),
    ("same(Tensor x) -> Tensor", lambda x: x, torch.empty_like),
    ("parts(Tensor x) -> Tensor[]", lambda x: [x * 2, x + 1], None),
    ("count(Tensor x) -> int", lambda x: int((x > 0).sum()), None),
    ("tell(Tensor x) -> ()", lambda x: told.append(x.tolist()), lambda x: None),
    ("accumulate_(Tensor(a!) x, Tensor y) -> ()", accumulate_, None),
    ("accumulate_though_inference_refuses_(Tensor(a!) x, Tensor y) -> ()", accumulate_, lambda x, y: refuses(x)),
]:
    LIBRARY.define(schema)
    name = schema.split("(")[0]
    LIBRARY.impl(name, kernel, "CPU")
    if fake:
        torch.library.register_fake(f"test_custom_operators::{name}", fake, lib=LIBRARY)

operators = torch.ops.test_custom_operators
torch.fx.node.has_side_effect(operators.tell.default)  # else graphs lose it before a backend sees it


@pytest.mark.parametrize(
    "operator",
    [
        operators.positive,
        operators.positive_without_sizes,
        operators.twice,
        operators.twice_though_inference_refuses,
        operators.parts,
        operators.count,
    ],
    ids=str,
)
def test_the_cpu_s_kernel_runs(operator):
    for values in ([1.0, -2.0, 3.0, 4.0], [-1.0, -2.0, 3.0, 4.0], []):
        x = torch.tensor(values)
        there = (x.to("tpu") + 1) - 1  # recorded, not yet run
        found = operator(there)
        tensors = [t for t in (found if isinstance(found, list) else [found]) if isinstance(t, torch.Tensor)]
        assert all(t.device.type == "tpu" for t in tensors)
        torch.testing.assert_close(found, operator(x), check_device=False)


@pytest.mark.parametrize("operator", [operators.accumulate_, operators.accumulate_though_inference_refuses_], ids=str)
def test_what_it_writes_is_written(operator):
    x, y = torch.zeros(2, 3, device="tpu"), torch.ones(3, device="tpu")
    operator(x[1], y * 2)
    assert (x + 1).tolist() == [[1, 1, 1], [3, 3, 3]]


@pytest.mark.parametrize("wrap", [lambda f: f, compiled], ids=["eager", "compiled"])
def test_what_returns_nothing_is_done(wrap):
    def f(x):
        operators.tell(x * 2)
        return x + 1

    told.clear()
    there = wrap(f)
    found = [there(torch.full((2,), float(n), device="tpu")).tolist() for n in range(3)]
    assert told == [[0, 0], [2, 2], [4, 4]]
    assert found == [[1, 1], [2, 2], [3, 3]]


def test_opcheck_knows_the_device():
    @torch.library.custom_op("test_custom_operators::thrice", mutates_args=(), device_types="cpu")
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    thrice.register_fake(torch.empty_like)
    thrice.register_autograd(lambda _, gradient: gradient * 3)
    x = torch.ones(3, device="tpu", requires_grad=True)
    assert set(torch.library.opcheck(thrice, (x,)).values()) == {"SUCCESS"}


def test_its_kernel_s_complaint_is_raised_at_the_call():
    @torch.library.custom_op("test_custom_operators::checked", mutates_args=(), device_types="cpu")
    def checked(x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 1:
            raise IndexError("one dimension is expected")
        return positive(x)

    checked.register_fake(dynamic)
    x = torch.tensor([-1.0, 2.0], device="tpu")
    assert checked(x).tolist() == [1]
    with pytest.raises(IndexError, match="one dimension is expected"):
        checked(x.view(1, 2))


def test_sizes_that_depend_on_data_are_compiled_around():
    def keep(x):
        return x[operators.positive(x.sin())].cos()

    x = torch.randn(20)
    assert_same = torch.testing.assert_close
    assert_same(torch.compile(keep, backend="tpu")(x.to("tpu")).cpu(), keep(x))


def test_an_operator_that_fails_in_a_compiled_fragment_is_heard_and_not_done_again():
    def f():
        x = torch.ones(4, device="tpu")
        torch.tpu.synchronize()
        return torch.ops.test_custom_operators.write(x * 2) * 3

    for _ in range(3):
        assert f().tolist() == [9] * 4
        torch.tpu.wait_for_compiles()
    told.clear()
    complaints.append("disk full")
    with pytest.raises(RuntimeError, match="disk full"):
        f().cpu()
    assert told == ["written"]
    assert f().tolist() == [9] * 4


@pytest.mark.embedded_only(reason="elsewhere no two values share memory")
def test_what_it_gives_back_is_no_part_of_another_result():
    def f():
        x = torch.ones(1 << 15, device="tpu")
        torch.tpu.synchronize()
        part = x * 2
        whole = torch.cat([part, x * 3])  # `part` is computed there
        same = operators.same(part)
        del part
        torch.tpu.synchronize()
        same.add_(1)  # over the value that nobody else has
        return same, whole

    for _ in range(3):
        same, whole = f()
        assert same[0].item() == 3
        assert whole[0].item() == 2
        torch.tpu.wait_for_compiles()


def test_a_kernel_that_reads_what_its_own_stream_computes_later_fails():
    table = torch.arange(3.0, device="tpu")

    @torch.library.custom_op("test_custom_operators::looks_up", mutates_args=(), device_types="cpu")
    def looks_up(x: torch.Tensor, later: bool) -> torch.Tensor:
        return x + (table * 2 if later else table).cpu()

    looks_up.register_fake(lambda x, later: torch.empty_like(x))
    x = torch.ones(3, device="tpu")
    assert table.tolist() == [0, 1, 2]
    assert looks_up(x * 2, False).tolist() == [2, 3, 4]
    with pytest.raises(RuntimeError, match="its own stream"):
        looks_up(x * 2, True).tolist()
    assert looks_up(x * 2, False).tolist() == [2, 3, 4]


def add_operator(schema, kernel, fake=None):
    library = torch.library.Library("test_custom_operators_anew", "FRAGMENT")
    library.define("operator" + schema)
    library.impl("operator", kernel, "CPU")
    if fake is not None:
        torch.library.register_fake("test_custom_operators_anew::operator", fake, lib=library)
    operator = torch._C._dispatch_find_schema_or_throw("test_custom_operators_anew::operator", "")
    return library, lambda *args: torch._C._dispatch_call_boxed(operator, *args)


def test_an_operator_is_defined_anew():
    """With another schema, and with another result."""
    x = torch.arange(3.0, device="tpu")
    for schema, kernel, arguments in [
        ("(Tensor x) -> Tensor", lambda x: x + 1, (x,)),
        ("(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y, (x, x)),
        ("(Tensor[] x) -> Tensor", lambda x: x[0] + x[1], ([x, x],)),
    ]:
        library, operator = add_operator(schema, kernel)
        operator(*arguments)
        library._destroy()
    for n in (1, 2, 3):
        library, operator = add_operator(
            "(Tensor x) -> Tensor", lambda x, n=n: x.repeat(n), lambda x, n=n: x.new_empty(3 * n)
        )
        assert operator(x).tolist() == [0.0, 1.0, 2.0] * n
        library._destroy()


def test_what_is_queued_fails_when_its_library_ends():
    library, operator = add_operator("(Tensor x) -> Tensor", lambda x: x + 7, torch.empty_like)
    x = torch.arange(3.0, device="tpu")
    read = operator(x)
    assert read.tolist() == [7.0, 8.0, 9.0]
    busy = torch.eye(700, device="tpu")
    for _ in range(20):  # for longer than it takes to end the library
        busy = busy @ busy
    queued = operator(busy[0])
    library._destroy()
    with pytest.raises(RuntimeError, match="the library of test_custom_operators_anew::operator ended"):
        queued.tolist()
    assert (x + 1).tolist() == [1.0, 2.0, 3.0]
