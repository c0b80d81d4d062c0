"""Storage is honest: views, in-place operations and aliasing agree with the CPU in values, strides and offsets."""

import random

import pytest
import torch
from helpers import assert_same, check, on_both
from torch.nn import functional as F


def random_view(rng, x):
    """One view operation that is valid for x, as (name, function)."""
    choices = [("unsqueeze", lambda t, d=rng.randint(0, x.dim()): t.unsqueeze(d)), ("alias", lambda t: t.detach())]
    if x.dim() >= 1:
        dim = rng.randrange(x.dim())
        size = x.shape[dim]
        choices.append(("squeeze", lambda t: t.squeeze()))
        choices.append(("flip_dims", lambda t, p=rng.sample(range(x.dim()), x.dim()): t.permute(p)))
        if size >= 1:
            choices.append(("select", lambda t, d=dim, i=rng.randrange(size): t.select(d, i)))
            start, length = sorted((rng.randrange(size), rng.randrange(size)))
            choices.append(("narrow", lambda t, d=dim, s=start, n=length - start + 1: t.narrow(d, s, n)))
            step = rng.randint(1, 3)
            index = tuple([slice(None)] * dim + [slice(rng.randrange(size), None, step)])
            choices.append(("slice", lambda t, i=index: t[i]))
            choices.append(("unfold", lambda t, d=dim, n=rng.randint(1, size), s=step: t.unfold(d, n, s)))
        if x.is_contiguous():
            choices.append(("flat", lambda t: t.view(-1)))
            choices.append(("view_dtype", lambda t: t.view(torch.int32).view(torch.float32)))
        extent = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
        if extent >= 4:
            sizes = (rng.randint(1, 2), rng.randint(1, 2))
            choices.append(
                (
                    "as_strided",
                    lambda t, n=sizes, o=rng.randrange(extent - 3): t.as_strided(n, (2, 1), t.storage_offset() + o),
                )
            )
    if x.dim() >= 2:
        a, b = rng.sample(range(x.dim()), 2)
        choices.append(("transpose", lambda t: t.transpose(a, b)))
        if x.shape[a] == x.shape[b]:
            choices.append(("diagonal", lambda t: t.diagonal(dim1=a, dim2=b)))
    if 1 in x.shape:
        choices.append(("expand", lambda t, n=[rng.randint(1, 3) if s == 1 else s for s in x.shape]: t.expand(n)))
    return rng.choice(choices)


def overlaps(x):
    """Whether two elements are one place in memory: writing there has no defined result."""
    places = [0]
    for n, s in zip(x.shape, x.stride(), strict=True):
        places = [p + i * s for p in places for i in range(n)]
    return len(set(places)) < len(places)


def random_write(rng, x, others):
    """One in-place operation that is valid for x."""
    number = rng.uniform(-2, 2)
    choices = [
        ("add_", lambda t, _: t.add_(number)),
        ("mul_", lambda t, _: t.mul_(number)),
        ("zero_", lambda t, _: t.zero_()),
        ("fill_", lambda t, _: t.fill_(number)),
        ("neg_", lambda t, _: t.neg_()),
        ("clamp_", lambda t, _: t.clamp_(-1, 1)),
        ("out=", lambda t, _: torch.add(t.clone(), number, out=t)),
        ("data", lambda t, _: t.data.add_(number)),
        ("setitem", lambda t, _: t.__setitem__(Ellipsis, number)),
        ("masked_fill_", lambda t, _: t.masked_fill_(t > 0, number)),
    ]
    fitting = [i for i, o in enumerate(others) if o.shape == x.shape and not overlaps(o)]
    if fitting:
        other = rng.choice(fitting)
        choices.append(("copy_", lambda t, pool: t.copy_(pool[other].clone())))
        choices.append(("add_tensor", lambda t, pool: t.add_(pool[other].clone(), alpha=number)))
    return rng.choice(choices)


def run_program(seed):
    """A random program on cpu and tpu. Strides are the CPU's, at dimensions of one element too."""
    rng = random.Random(seed)
    shape = [rng.randint(1, 4) for _ in range(rng.randint(1, 4))]
    base = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    cpu, tpu = [base.clone()], [base.to("tpu")]
    trace = []
    for _ in range(rng.randint(4, 14)):
        at = rng.randrange(len(cpu))
        kind = rng.random()
        if kind < 0.5:
            name, operation = random_view(rng, cpu[at])
            try:
                expected = operation(cpu[at])
            except RuntimeError as error:
                with pytest.raises(type(error)):
                    operation(tpu[at])
                continue
            cpu.append(expected)
            tpu.append(operation(tpu[at]))
        elif kind < 0.9:
            if overlaps(cpu[at]) or not cpu[at].numel():
                continue
            name, operation = random_write(rng, cpu[at], cpu)
            try:
                operation(cpu[at], cpu)
            except RuntimeError as error:  # memory that overlaps itself (unfold, as_strided)
                with pytest.raises(type(error)):
                    operation(tpu[at], tpu)
                continue
            operation(tpu[at], tpu)
        else:
            name = "new"
            cpu.append(cpu[at] * 2 + 1)
            tpu.append(tpu[at] * 2 + 1)
        trace.append((name, at))
    for i, (expected, found) in enumerate(zip(cpu, tpu, strict=True)):
        try:
            assert_same(expected, found)
            assert found.stride() == expected.stride(), (found.stride(), expected.stride())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, tensor {i}, program {trace}: {error}") from None


@pytest.mark.parametrize("chunk", range(20))
def test_random_programs(chunk):
    for seed in range(chunk * 25, chunk * 25 + 25):
        run_program(seed)


@pytest.mark.parametrize("mode", ["fused", "strict", "debug"])
def test_a_tensor_and_a_view_of_it_in_one_call(mode):
    torch.tpu.set_eager_mode(mode)
    for _ in range(4):  # the storage of `y` lies transposed: reading the view gives it another value
        x = torch.randn(2, 8)
        y = torch.tanh(x.to("tpu").t())
        torch.tpu.synchronize()
        torch.testing.assert_close((y @ y.t()).cpu(), torch.tanh(x.t()) @ torch.tanh(x))
        torch.tpu.wait_for_compiles()


def test_view_and_base_see_each_other():
    def program(x):
        view = x.view(-1)[2:6]
        view.mul_(10)
        x[0].add_(1)
        return x, view

    check(program, torch.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize("shape", [(3, 1), (3, 2), (64, 64)])
def test_a_write_through_a_view_then_to_its_base(shape):
    def program(x):
        x.view(-1).fill_(-0.25)
        x.mul_(2)
        return x

    check(program, torch.ones(shape))


def test_same_storage():
    x = torch.zeros(4, 4, device="tpu")
    assert x.t().untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x.clone().untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert x[1:]._base is x


def test_data_assignment_shares():
    def program(x, y):
        x.data = y
        y.add_(1)
        return x, y

    check(program, torch.zeros(3), torch.ones(3))


def test_set_and_resize():
    def program(x):
        y = torch.empty(0, dtype=x.dtype, device=x.device)
        y.set_(x.untyped_storage(), 2, (2, 3), (1, 2))
        y.add_(100)
        z = x.clone()
        z.resize_(2, 3)
        return x, y, z

    check(program, torch.arange(12.0))


def test_set_without_strides_grows_the_storage():
    def program(x):
        y = torch.empty(0, dtype=x.dtype, device=x.device)
        y.set_(x, 2, (4, 3)).fill_(5)
        z = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.clone().untyped_storage(), 20, ()).fill_(6)
        return x, y, z

    check(program, torch.arange(4.0))


def test_storage_resize_to_zero_and_back():
    def program(x):
        storage = x.untyped_storage()
        bytes_before = storage.nbytes()
        storage.resize_(0)
        empty = storage.nbytes()
        storage.resize_(bytes_before)
        x.copy_(torch.ones_like(x))
        return x, empty, storage.nbytes()

    check(program, torch.arange(6.0))


def test_view_dtype_writes_through():
    def program(x):
        x.view(torch.int32)[0] = 0x3F800000  # 1.0
        x.view(torch.uint8)[7] ^= 0x80
        return x

    check(program, torch.full((4,), 2.0))


@pytest.mark.parametrize("base", [torch.uint8, torch.int32])
@pytest.mark.parametrize("written", [torch.bool, torch.float16])
def test_what_lies_beside_elements_written_as_another_type_stays(base, written):
    """Values of several types in one buffer: as bools, or as NaN, other bytes would be others."""

    def write(x):
        packed = x.view(written)
        packed[8:16] = torch.ones(8, dtype=written, device=x.device)
        packed[40:44] = torch.zeros(4, dtype=written, device=x.device)
        packed[7].fill_(1)
        return x

    check(write, torch.arange(256).repeat_interleave(4).to(torch.uint8).view(base))


@pytest.mark.embedded_only(reason="bools of XLA's devices are 0 or 1")
def test_bools_that_are_written_as_bytes():
    def count(x):
        number, sums = x.view(torch.uint8), []
        for _ in range(3):
            number[1:] += 1
            sums.append(number.sum().item())
        return sums, x.to(torch.int32)

    check(count, torch.tensor([True, False, True]))


def test_bytes_of_many_elements_are_read_beside_other_work(metrics):
    def doubled_and_bytes(x):
        y = x * 2
        return y, (y + 1).view(torch.uint8).clone(), y.sum(0)

    check(doubled_and_bytes, torch.randn(100, 50))
    assert metrics()["compile_failures"] == 0


def test_out_into_a_view():
    def program(x):
        torch.mul(x[:, 0].clone(), 3, out=x[:, 1])
        return x

    check(program, torch.randn(4, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool])
def test_a_part_of_a_bucket_beside_a_large_result(dtype):
    """The result is stored around the cache; the part, of smaller elements, begins anywhere."""

    def write(bucket, x, y):
        result = x[:, None] + y
        bucket[3 : 3 + result.numel()] = (result > 0 if dtype == torch.bool else result).flatten()
        return result, bucket

    x, y = torch.randn(1600), torch.randn(4096)
    check(write, torch.zeros(2 * len(x) * len(y) + 3, dtype=dtype), x, y)


def test_parts_of_a_bucket():
    """A large tensor written part by part, as DDP writes gradients: where they begin, turned, over one another."""

    def write(bucket, x, y):
        gradients = bucket[1000 : 1000 + 24 * 16].view(24, 16), bucket[2000 : 2000 + 24 * 16].view(16, 24)
        for _ in range(4):
            torch.mul(x.t() @ y, 0.5, out=gradients[0])
            gradients[1].copy_((x.t() @ y).t())
            bucket[7:107].add_(y.sum())
            bucket[7:57].mul_(2)
            bucket[30000:60000].fill_(3)
            kept = bucket[1000:2000].clone()
            bucket[100:200] = bucket[50:150].clone()
            bucket[200:300].copy_(bucket[1000:1100])
            x = x + kept[:24] * 1e-3
            bucket = bucket + 0  # another's memory from now on
        return bucket, kept, *gradients

    check(write, torch.arange(70000.0) / 70000, torch.randn(8, 24), torch.randn(8, 16))


def test_complex_views():
    def program(x):
        real = torch.view_as_real(x)
        real[..., 1].zero_()
        return x, x.real, x.conj().resolve_conj()

    check(program, torch.randn(3, dtype=torch.complex64))


@pytest.mark.parametrize(
    "dtype", [torch.complex64, torch.complex128, torch.complex32, torch.float8_e5m2, torch.bfloat16, torch.bool]
)
def test_a_diagonal_is_written(dtype):
    def program(x, new):
        x.diagonal(1, 1, 2).copy_(new)
        return x, x.diagonal(-1, 0, 2)

    check(program, torch.ones(3, 5, 5).to(dtype), torch.zeros(3, 4).to(dtype))


def test_indexing():
    def program(x, i):
        x[i] = -1.0
        x[x > 1] = 0.0
        x.index_add_(0, i, torch.ones(len(i), x.shape[1], device=x.device))
        return x, x[i], x[:, [0, 2]], x[i, 1], x[None, ..., ::2]

    check(program, torch.randn(5, 4), torch.tensor([0, 3]))


CONTIGUOUS = {
    "group_norm": (lambda x: F.group_norm(x, 2), torch.randn(2, 3, 6).transpose(1, 2)),
    "pdist of columns": (F.pdist, torch.randn(5, 10)[:, ::2]),
    "pdist, transposed": (F.pdist, torch.randn(5, 7).t()),
    "matrix_exp": (lambda x: torch.linalg.matrix_exp(x.contiguous()), torch.randn(3, 3, 2, 4).permute(3, 2, 0, 1)),
}


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_kernels_that_ask_for_contiguous_memory_get_it(name):
    """ATen makes their operands contiguous; the copy has the value of the view, which is read where it lies."""
    function, x = CONTIGUOUS[name]
    for _ in range(2):
        there = torch.empty_strided(x.shape, x.stride(), device="tpu").copy_(x)
        assert_same(function(x), function(there))
        torch.tpu.wait_for_compiles()


def test_results_with_gaps_are_strided():
    def f(x, part):
        real = torch.view_as_real(x.diagonal())
        changed = torch.select_scatter(real, part, 1, 0)
        return changed, changed.t() * 2, torch.view_as_complex(changed), changed[1:, 0]

    check(f, torch.randn(4, 4, dtype=torch.complex64), torch.randn(4))


def test_preserves_memory_format():
    def program(x):
        y = x.to(memory_format=torch.channels_last)
        return y, y + 1, torch.empty_like(y).fill_(1), y.contiguous()

    check(program, torch.randn(2, 3, 4, 5))


def test_deferred_reads_see_the_value_of_their_moment():
    x = torch.zeros(3, device="tpu")
    history = []
    for i in range(5):
        x += i
        history.append(x.clone())
    assert [h[0].item() for h in history] == [0, 1, 3, 6, 10]


def test_on_both_is_fair():
    expected, found = on_both(lambda x: x + 1, torch.ones(2))
    assert expected.device.type == "cpu" and found.device.type == "tpu"


def test_resize_grows_and_shrinks():
    def program(x):
        x.resize_(10)
        kept = x[:3].clone()
        x.fill_(2.0)
        x.resize_(2, 2)
        y = torch.empty(3, device=x.device)
        y.resize_(4, 5).zero_()
        w = x.new_ones(2).set_(torch.empty(0, device=x.device).untyped_storage(), 1, (2, 3), (3, 1)).fill_(4.0)
        return kept, x, y, w

    check(program, torch.arange(3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16, torch.int64])
def test_elements_before_a_piece_of_one_are_written(dtype):
    def program(x):
        x.untyped_storage().resize_(4 * x.element_size() + 1)
        x[1:3].fill_(3)
        every = torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())
        every[-1].fill_(7)
        x[2:].fill_(5)
        return x.clone(), every[-1:].clone(), x[:2] + 1

    check(program, torch.arange(4).to(dtype))


def test_reversed_elements_are_read_in_other_dims():
    def program(x):
        runs = x.flip(0, 1).reshape(-1)
        return (
            (x.flip(0, 1).flip(0) != 0).expand(2, 4, 5),
            runs.reshape(5, 4).flip(1).reshape(2, 10) * 2,
            runs[1:19].reshape(3, 6).flip(0) * 2,
            torch.cat([runs[3:], x.reshape(-1)]).flip(0)[:36].reshape(4, 9).flip(1).reshape(6, 6).t() * 3,
        )

    check(program, torch.randn(4, 5, generator=torch.Generator().manual_seed(0)))


def test_whether_two_tensors_are_one_view():
    x = torch.arange(6.0, device="tpu")
    assert x.is_set_to(x.view(6)) and x.detach().is_set_to(x)
    assert not x.is_set_to(x.view(2, 3)) and not x.is_set_to(x.clone()) and not x[1:4].is_set_to(x[:3])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int16, torch.uint8, torch.bool]
)
def test_what_nobody_wrote_is_filled_while_algorithms_are_deterministic(dtype):
    def fresh(ones):
        grown = ones.clone().resize_(3, 4)
        in_a_storage = torch.empty(0, dtype=dtype, device=ones.device).set_(ones.clone().untyped_storage()).resize_(7)
        shaped = torch.empty_strided((2, 3), (1, 2), dtype=dtype, device=ones.device)
        last = torch.empty(1, 2, 3, 2, dtype=dtype, device=ones.device, memory_format=torch.channels_last)
        return (
            torch.empty(5, dtype=dtype, device=ones.device),
            torch.empty_like(ones),
            grown,
            in_a_storage,
            shaped,
            last,
        )

    torch.use_deterministic_algorithms(True)
    try:
        check(fresh, torch.ones(3, dtype=dtype))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradients_of_a_loops_slices_are_added_to_their_parts(dtype):
    """Each is zeros but for its slice; a step of the loop must not cost the whole."""

    def program(x, w):
        x = x.clone().requires_grad_()
        state, states = torch.zeros_like(x[:, :, 0]), []
        for i in range(x.size(2)):
            state = state * 0.5 + x[:, :, i]
            states.append((state @ w)[..., 0])
            if i % 5 == 0:
                state = state + x[:, :, i // 2] * x[:, :, 3]  # one slice several times
        torch.stack(states, -1).square().sum().backward()
        return states[-1].detach(), x.grad

    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(4, 64, 24, 16, generator=generator), torch.randn(16, 1, generator=generator)
    tolerances = {"rtol": 5e-2, "atol": 5e-1} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    check(program, x.to(dtype), w.to(dtype), **tolerances)


def test_a_cache_is_written_at_one_position_after_the_other():
    """By slices, as hand-written decoding does; old caches stay what they were."""

    def program(cache, x):
        kept = []
        for i in range(40):
            cache[:, :, i : i + 1] = x[:, :, i : i + 1] * 2
            if i in (7, 30):
                kept.append(cache.clone())
            kept.append((cache[:, :, : i + 1].sum(2) @ x[0, 0, 0]).sum().item())
        return cache, *(torch.as_tensor(k, device=cache.device) for k in kept)

    generator = torch.Generator().manual_seed(0)
    cache, x = torch.zeros(1, 8, 256, 32), torch.randn(1, 8, 40, 32, generator=generator)
    expected = program(cache.clone(), x)
    for _ in range(3):
        assert_same(expected, program(cache.clone().to("tpu"), x.to("tpu")), rtol=1e-4, atol=1e-4)
        torch.tpu.wait_for_compiles()


def test_a_subclass_is_not_asked_whether_it_may_take_a_parameters_place():
    asked = []

    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), named=None):
            asked.append(function)
            inner = [a.inner if isinstance(a, Wrapped) else a for a in arguments]
            return cls(function(*inner, **(named or {})))

    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(Wrapped(torch.ones(2)), requires_grad=False)
    module.to("tpu")
    assert module.weight.device.type == "tpu" and torch.equal(module.weight.inner.cpu(), torch.ones(2))
    assert torch.ops.aten._has_compatible_shallow_copy_type.default not in asked
