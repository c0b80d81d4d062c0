"""What fails, and what does not, when an operation of a compiled fragment fails of what it read."""

import pytest
import torch
from helpers import EMBEDDED, assert_same


def test_what_does_not_depend_on_an_error_is_computed_when_compiled_too():
    def f(index):
        table, x = torch.ones(3, 2, device="tpu"), torch.full((4,), 2.0, device="tpu")
        torch.tpu.synchronize()
        rows = torch.nn.functional.embedding(torch.tensor([index], device="tpu"), table) * 2
        y = x * 3 + 1
        return y, x, rows, y.sum() + rows.sum()

    for _ in range(2):
        assert [t.tolist() for t in f(1)] == [[7] * 4, [2] * 4, [[2, 2]], 32]
        torch.tpu.wait_for_compiles()
    y, x, *of_rows = f(7)
    for found in of_rows:
        with pytest.raises((IndexError, RuntimeError)) as caught:
            found.cpu()
        assert "aten::embedding" in str(caught.value) and "test_failures.py" in str(caught.value)
    if EMBEDDED:  # what a plugin tells of once the program has returned fails all of its values
        assert "in aten::embedding" in str(caught.value)
        assert y.tolist() == [7] * 4 and x.tolist() == [2] * 4


ALL_FAIL = "what a plugin tells of once the program has returned fails all of its values"


def product_by_tiles(p, x, i):
    q = torch.softmax((p @ p.mT) * 0.1, -1)
    return p.add_(x), q @ p, x[i]


def chain(p, x, i):
    for _ in range(3):
        p.add_(x)
        x.mul_(0.5)
    return p, x, torch.cat([x, p[i].cumsum(0)]), p[i] @ x.mT


def bucket(p, x, i):
    grads = torch.zeros(40000, device=p.device)
    grads[:16384] = (p[:4].reshape(-1)[:1] * x.reshape(-1)[:1]).expand(16384)
    return p.add_(x), grads * 2, torch.cat([grads, x[i].flatten().repeat(4000)])


# What is in place, or read by others, beside an index `i` into the first dim: results that don't depend on `i` first.
BESIDE_AN_INDEX = {
    "a kernel of its own": (2, (5, 6), lambda p, x, i: (p.add_(x), p * 2, x[i])),
    "the same kernel": (2, (2, 6), lambda p, x, i: (p.add_(x), x.mul_(2), x[i] + p)),
    "the same kernel, reduced": (2, (2, 6), lambda p, x, i: (p.add_(x), x.sum(1), x[i].sum(1) * p[:, 0])),
    "before and after": (3, (5, 6), lambda p, x, i: (p.add_(x), x.mul_(3), p.mean(), x[i], x[i].sum() + p)),
    "a reader of both": (1, (2, 6), lambda p, x, i: (p.add_(x), torch.cat([p * 2, x[i]]), x[i].exp() * p)),
    "a product": (2, (48, 48), lambda p, x, i: (p.add_(x), p @ p.t(), x[i] @ p)),
    "a product by tiles": (2, (16, 128, 128), product_by_tiles),
    "a long chain": (2, (4096, 6), chain),
    "a bucket": (2, (5, 6), bucket),
    "a scatter": (1, (5, 6), lambda p, x, i: (x.mul_(2), p.index_add_(0, i, x[:2]), p.sum())),
    "a host kernel": (2, (6, 6), lambda p, x, i: (p.add_(x), torch.linalg.inv(x + 9 * x.new_ones(6).diag()), x[i])),
    "a host kernel that reads it": (1, (6, 6), lambda p, x, i: (p.add_(x), torch.linalg.svdvals(x[i]), x[i])),
}


@pytest.mark.embedded_only(reason=ALL_FAIL)
@pytest.mark.parametrize("name", BESIDE_AN_INDEX)
def test_what_does_not_depend_on_an_error_is_written_in_place_too(name):
    independent, shape, f = BESIDE_AN_INDEX[name]
    for step, second in enumerate([1, 0, 1, 10**6, 1, -(10**6), 10**6]):
        tensors = [torch.randn(shape), torch.randn(shape)]
        there = [t.to("tpu") for t in tensors]
        torch.tpu.synchronize()
        found = f(*there, torch.tensor([0, second], device="tpu"))
        wrong = abs(second) > 1
        expected = f(*tensors, torch.tensor([0, 0 if wrong else second]))
        for number, (result, value) in enumerate(zip(found, expected, strict=True)):
            if wrong and number >= independent:
                with pytest.raises(IndexError, match="aten::"):
                    result.cpu()
            else:
                torch.testing.assert_close(result.cpu(), value, msg=lambda m, s=step, n=number: f"{s}, result {n}: {m}")
        torch.tpu.wait_for_compiles()


@pytest.mark.embedded_only(reason=ALL_FAIL)
def test_every_error_of_a_fragment_is_told_of_what_depends_on_it():
    def f(p, table, index, matrix, divisor):
        rows, values = table[index], torch.linalg.svdvals(matrix)
        p.add_(1)
        return p, rows * 2, values + 1, torch.tensor([8, 9], device="tpu") // divisor, rows.sum() + values

    kinds = (IndexError, torch.linalg.LinAlgError, RuntimeError)
    expected = [[[1, 1]] * 3, [[0, 0]], [2, 2], [8, 3], [1, 1]]
    for wrong in [(), (), (), (0, 1, 2), (1,), (), (0,), (2,), (1, 2)]:
        p, table, matrix = (make(3, 2, device="tpu") for make in (torch.zeros, torch.zeros, torch.eye))
        index, divisor = torch.tensor([9 if 0 in wrong else 1]), torch.tensor([0 if 2 in wrong else 1, 3])
        found = f(p, table, index.to("tpu"), matrix * torch.nan if 1 in wrong else matrix * 1, divisor.to("tpu"))
        reasons = [(), (0,), (1,), (2,), (0, 1)]  # of each result
        for result, value, reason in zip(found, expected, reasons, strict=True):
            errors = tuple(kinds[k] for k in reason if k in wrong)
            if errors:
                with pytest.raises(errors):
                    result.cpu()
            else:
                assert result.tolist() == value
        torch.tpu.wait_for_compiles()


@pytest.mark.embedded_only(reason=ALL_FAIL)
def test_an_update_that_is_left_out_leaves_what_it_reads():
    for wrong in (False, False, False, True, True):
        x, z, order = torch.randn(8, 8), torch.randn(8, 8), torch.randperm(8)
        rows = order.clone()
        rows[3] = 99 if wrong else rows[3]
        a, b, i, j = (t.to("tpu") for t in (x, z, order, rows))
        b.index_fill_(0, j, 0.5)
        found = (a * 2).mean() + a
        product = found * b  # in a kernel with it
        a.index_put_((i,), b * 0.1, accumulate=True)
        assert_same((x * 2).mean() + x, found)
        for lost in (a, product) if wrong else ():
            with pytest.raises(IndexError):
                lost.cpu()
        torch.tpu.wait_for_compiles()


@pytest.mark.embedded_only(reason=ALL_FAIL)
def test_parameters_outlive_a_step_with_an_index_out_of_range():
    models = {}
    for device in ("cpu", "tpu"):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(device)
        models[device] = model, torch.optim.AdamW(model.parameters(), lr=0.01)
    table = torch.randn(5, 4)
    for step in range(6):
        x, index = torch.randn(3, 8), torch.tensor([0, 4, 99 if step > 3 else 1])
        for device, (model, optimizer) in models.items():
            loss = model(x.to(device)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if device == "cpu":
                continue
            rows = table.to(device)[index.to(device)] * loss.detach()
            if step > 3:
                with pytest.raises(IndexError):
                    rows.cpu()
        torch.tpu.wait_for_compiles()
        for expected, found in zip(models["cpu"][0].parameters(), models["tpu"][0].parameters(), strict=True):
            torch.testing.assert_close(found.detach().cpu(), expected.detach())


def test_what_a_program_that_failed_has_written_over_is_not_taken_for_what_was_there():
    def f(index):
        table, x = torch.ones(3, 2, device="tpu"), torch.full((4096,), 2.0, device="tpu")
        given_up, beside = torch.ones(4096, device="tpu"), torch.ones(5000, device="tpu")
        torch.tpu.synchronize()
        doubled = given_up * 2
        x.mul_(3)
        rows = torch.nn.functional.embedding(torch.tensor([index], device="tpu"), table)
        total = (x * 5).sum() + rows.sum()
        return doubled, x.add_(5), beside + 1, total

    expected = [[2] * 4096, [11] * 4096, [2] * 5000, 122882]
    for _ in range(2):
        assert [t.tolist() for t in f(1)] == expected
        torch.tpu.wait_for_compiles()
    *others, total = f(7)
    with pytest.raises(IndexError):
        total.item()
    for found, values in zip(others, expected, strict=False):
        try:
            assert found.tolist() == values
        except IndexError:
            assert not EMBEDDED
