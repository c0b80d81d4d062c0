"""What is recorded, cut, compiled and told: fragment counts, modes, metrics, explain."""

import pathlib
import threading

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from helpers import EMBEDDED, has_panels, nobody_waited, run_python


def test_the_example_of_the_rfc_is_one_fragment(metrics):
    a, b = torch.randn(4, 4, device="tpu"), torch.randn(4, 4, device="tpu")
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    c = a + b
    d = c.view(-1)
    print(d**2)
    assert metrics()["fragments"] == 1


def test_with_a_print_in_the_middle_two(metrics):
    a, b = torch.randn(4, 4, device="tpu"), torch.randn(4, 4, device="tpu")
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    c = a + b
    print(c)
    d = c.view(-1)
    print(d**2)
    assert metrics()["fragments"] == 2


def test_nothing_runs_before_it_is_needed(metrics):
    x = torch.ones(3, device="tpu")
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    y = x + 1
    assert metrics()["fragments"] == 0 and metrics()["recorded_ops"] >= 1
    y.cpu()
    assert metrics()["fragments"] == 1


def test_the_first_read_of_what_is_launched_ends_what_is_pending(metrics):
    # Or a step's end and the next one's beginning were one fragment, of both their sizes.
    x = torch.ones(3, device="tpu")
    loss = x.sum()
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    after = x * 2
    assert metrics()["fragments"] == 0
    assert loss.item() == 3
    assert metrics()["fragments"] == 1
    later = x * 3
    assert loss.item() == 3  # known by now: nothing is cut in the middle of something
    assert metrics()["fragments"] == 1
    torch.testing.assert_close((after + later).cpu(), torch.full((3,), 5.0))


def test_reads_of_other_threads_cut_nothing_that_is_pending(metrics):
    x = torch.ones(3, device="tpu")
    values = [x.sum() + i for i in range(4)]
    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    after = x * 2
    reader = threading.Thread(target=lambda: [value.item() for value in values])
    reader.start()
    reader.join()
    assert metrics()["fragments"] == 0
    torch.testing.assert_close(after.cpu(), torch.full((3,), 2.0))


def test_equal_values_never_change_a_key(metrics):
    x = torch.randn(8, device="tpu")
    torch.tpu.synchronize()  # or the first program's fragment holds randn too

    def program(number):
        return (x * number + number).sum().item()

    program(0.5)
    before = metrics()["fragments_distinct"]
    for number in (1.0, 0.0, 2.5, -3.0, 0.5):
        program(number)
    assert metrics()["fragments_distinct"] == before


@pytest.mark.skipif(not EMBEDDED, reason="behind PJRT plugins the precision counts")
@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_products_of_the_embedded_device_are_at_full_f32(mode):
    def products(a, b, v):
        batch = a.expand(2, -1, -1), b.expand(2, -1, -1)
        sums = torch.addmm(v, a, b), torch.addmm(v, a, b, beta=0.5, alpha=2), torch.baddbmm(v, *batch)
        attention = torch.nn.functional.scaled_dot_product_attention(a[None, None], a[None, None], a[None, None])
        return (
            a @ b,
            torch.bmm(*batch),
            *sums,
            a @ b[:, 0],
            torch.addmv(v[0], a, b[:, 1]),
            v.clone().addmm_(a, b),
            attention,
        )

    torch.manual_seed(0)
    given = torch.randn(256, 512), torch.randn(512, 256), torch.randn(256)
    given = given[0], given[1], given[2].expand(256, 256).contiguous()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.tpu.eager_mode(mode):
            for _ in range(3):
                found = products(*[t.to("tpu") for t in given])
                for f, e in zip(found, products(*[t.double() for t in given]), strict=True):
                    torch.testing.assert_close(f.cpu(), e.float(), rtol=1e-4, atol=1e-4)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_precision_of_products_is_part_of_what_is_recorded():
    run_python("""
        import torch
        from torch_tpu import _C

        def texts(precision):
            torch.set_float32_matmul_precision(precision)
            known = {f["key"] for f in _C.fragments_as_stablehlo()}
            x = torch.ones(5, 7, device="tpu")
            torch.testing.assert_close((x @ x.t()).exp().cpu(), torch.full((5, 5), 7.0).exp())
            torch.add(x, 1).cpu()
            return [f["text"] for f in _C.fragments_as_stablehlo() if f["key"] not in known]

        assert any("precision HIGHEST" in text for text in texts("highest"))
        texts("highest")  # what is met for the first time may be cut otherwise
        (text,) = texts("high")  # the sum is what it was
        assert "precision HIGH>" in text
        (text,) = texts("medium")
        assert "precision DEFAULT" in text
        assert texts("highest") == []
    """)


def test_a_repeated_fragment_is_compiled_once(metrics):
    x = torch.randn(64, device="tpu")
    torch.tpu.synchronize()  # or the first fragment holds randn too
    torch.tpu.reset_metrics()
    for _ in range(6):
        (F.gelu(x + 1) * 2).cpu()
        torch.tpu.wait_for_compiles()
    found = metrics()
    assert found["launches_tier1"] >= 1 and nobody_waited(found["compile_wait_ms"]), found
    # Single operations (two adds and a product, gelu) are programs too where there are no ready kernels.
    assert found["compiles"] <= (2 if EMBEDDED else 5), found


def test_tiers_agree():
    x = torch.randn(33, 17, device="tpu")

    def program():
        y = F.layer_norm(F.gelu(x @ x.t()), (33,))
        return (y.softmax(-1) * y.sin()).sum(0).cpu()

    first = program()
    for _ in range(5):
        program()
    torch.tpu.wait_for_compiles()
    torch.testing.assert_close(program(), first)


@pytest.mark.skipif(
    not EMBEDDED or not has_panels() or "GenuineIntel" in pathlib.Path("/proc/cpuinfo").read_text(),
    reason="where the library multiplies better than panels, op by op it is ATen's, which sums in another order",
)
def test_products_have_the_numbers_of_compiled_code_at_once(metrics):
    x, w, b = (
        torch.randn(4, 128, 256, device="tpu"),
        torch.randn(512, 256, device="tpu"),
        torch.randn(512, device="tpu"),
    )

    def program():
        part, square = x[:, ::2, ::3], torch.bmm(x, x.mT)
        products = [F.linear(x, w, b), torch.baddbmm(square, x, x.mT), part.mT @ part]
        products += [x[0, :, 5:200] @ w.t()[5:200], x[:1].expand(4, 128, 256) @ x.mT]
        return [product.cpu() for product in products]

    torch.tpu.synchronize()
    torch.tpu.reset_metrics()
    at_once = program()
    assert metrics()["launches_tier0"] > 0
    for _ in range(3):
        program()
        torch.tpu.wait_for_compiles()
    torch.tpu.reset_metrics()
    compiled = program()
    assert metrics()["launches_tier1"] > 0
    for one, other in zip(at_once, compiled, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["strict", "debug"])
def test_modes_give_the_same_values(mode):
    def program():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 1)).to("tpu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        x = torch.randn(4, 8, device="tpu")
        for _ in range(3):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    expected = program()
    with torch.tpu.eager_mode(mode):
        assert torch.tpu.get_eager_mode() == mode
        found = program()
    assert torch.tpu.get_eager_mode() == "fused"
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.embedded_only(reason="XLA contracts products and sums where it fuses them")
@pytest.mark.parametrize("mode", ["strict", "debug"])
def test_elementwise_is_bit_for_bit_the_same(mode):
    x = torch.randn(1000, device="tpu")

    def program():
        return ((x * 3 + 1).tanh() * x.exp() - F.gelu(x)).cpu()

    def compiled():
        program(), program()
        torch.tpu.wait_for_compiles()
        return program()

    expected = compiled()
    with torch.tpu.eager_mode(mode):
        assert torch.equal(compiled(), expected)


def test_strict_mode_runs_each_operation_alone(metrics):
    x = torch.ones(3, device="tpu")
    torch.tpu.synchronize()
    with torch.tpu.eager_mode("strict"):
        torch.tpu.reset_metrics()
        y = (x + 1) * 2
        assert metrics()["fragments"] == 2
        assert y[0].item() == 4


def test_unknown_mode():
    with pytest.raises(ValueError, match="fused"):
        torch.tpu.set_eager_mode("fast")


def test_explain_names_the_line(metrics):
    x = torch.ones(3, device="tpu") * 2
    x.sum().item()  # this line
    report = torch.tpu.explain()
    reads = [cut for cut in report.cuts if cut["reason"] == "read"]
    assert any("test_fragments.py:" in cut["where"] for cut in reads), reads
    text = str(report)
    assert "test_fragments.py:" in text and "Host kernels" in text
    assert "<table>" in report._repr_html_()


def test_explain_tells_where_the_time_went(metrics):
    x = torch.randn(64, 64).to("tpu")
    for _ in range(3):
        y = (x * 3).tanh()
        y.sum().item()
        torch.tpu.wait_for_compiles()
    mine = [f for f in torch.tpu.explain().fragments if "test_fragments.py:" in f["where"] and f["ops"] == 3]
    assert any(sum(f["runs"]) == 3 and f["runs"][1] > 0 and min(f["milliseconds"]) > 0 for f in mine), mine


@pytest.mark.embedded_only(reason="plugins don't tell what a program's parts take")
def test_explain_tells_the_time_of_kernels(metrics):
    x, w = torch.randn(512, 256).to("tpu"), torch.randn(256, 128).to("tpu")
    for _ in range(20):
        (x @ w).tanh().sum().item()
        torch.tpu.wait_for_compiles()
    report = torch.tpu.explain()
    mine = [f for f in report.fragments if "test_fragments.py:" in f["where"] and "aten::mm" in f["summary"]]
    kernels = max(mine, key=lambda f: f["runs"][1])["kernels"]
    assert any("dot" in k["kernel"] for k in kernels) and any("tanh" in k["kernel"] for k in kernels), kernels
    assert all(k["launches"] > 0 and k["milliseconds"] > 0 for k in kernels), kernels
    assert sum(k["bytes"] for k in kernels) >= x.nbytes + w.nbytes
    assert kernels[0]["kernel"] in str(report)


def test_explain_names_host_kernels(metrics):
    torch.linalg.svd(torch.randn(4, 4, device="tpu"))[1].cpu()
    torch.unique(torch.ones(3, device="tpu"))
    torch.kaiser_window(5, device="tpu")
    report = torch.tpu.explain()
    assert sum(report.host_kernels.values()) == metrics()["host_kernel_calls"]
    for name in ("svd", "kaiser_window", *(["unique"] if EMBEDDED else [])):  # a plugin's programs have its lowering
        (line,) = {line for _, operator, line in report.host_kernel_lines if name in operator}
        assert "test_fragments.py:" in line and line in str(report)


def test_a_shape_that_depends_on_data_is_a_cut_of_its_own(metrics):
    x = torch.arange(6, device="tpu") % 2
    assert (x + 1).nonzero().shape == (6, 1)
    assert metrics()["cuts_data_dependent"] == 1 and metrics()["cuts_read"] == 0
    assert [c["what"] for c in torch.tpu.explain().cuts if c["reason"] == "data_dependent"] == ["aten::nonzero"]


def test_fallback_can_be_an_error():
    run_python(
        """
        import torch
        try:
            torch.linalg.svd(torch.ones(4, 4, device="tpu"))[1].cpu()
        except (RuntimeError, NotImplementedError) as error:
            assert "svd" in str(error), error
        else:
            raise SystemExit("no error")
        assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]
        """,
        {"TORCH_TPU_FALLBACK": "error"},
    )


def test_steady_training_uses_no_host_kernel(metrics):
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 16)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.arange(12, device="tpu").reshape(2, 6) % 16
    for _ in range(8):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    torch.tpu.synchronize()
    assert torch.tpu.explain().host_kernels == {}, torch.tpu.explain().host_kernels


def test_changing_lengths(metrics):
    weight = torch.randn(8, 8, device="tpu")
    for length in range(3, 20):
        x = torch.randn(length, 8)
        torch.testing.assert_close(F.gelu(x.to("tpu") @ weight).cpu(), F.gelu(x @ weight.cpu()), rtol=1e-4, atol=1e-5)
    assert nobody_waited(metrics()["compile_wait_ms"])


def steps(x, w, leave_at=None, how=None):
    """Ten operations with views, in-place writes and two results; at `leave_at`, another one than usual."""
    kept, y = [], x
    for i in range(10):
        if i == leave_at and how == "operation":
            y = y.neg()
        elif i == leave_at and how == "operand":
            y = y + x
        elif i == leave_at and how == "number":
            y = y * 3
        elif i == leave_at and how == "type":
            y = y.double().float()
        elif i == leave_at and how == "read":
            kept.append(y.sum().item())
        elif i == leave_at and how == "result":
            kept.append(y)
        elif i == leave_at and how == "interrupt":
            with pytest.raises(RuntimeError):
                y @ y[:1]
        if i % 4 == 3:
            y = y + w
            y[0].mul_(0.5)
        elif i % 4 == 1:
            y = y.t() * 2.0
        else:
            y = y + i
    return y, kept


@pytest.mark.parametrize("how", ["operation", "operand", "number", "type", "read", "result", "interrupt"])
def test_leaving_a_known_loop_at_every_point(how):
    x, w = torch.randn(3, 3), torch.randn(3, 3)
    on_tpu = x.to("tpu"), w.to("tpu")
    usual = steps(x, w)[0]
    for leave_at in range(10):
        for _ in range(3):
            torch.testing.assert_close(steps(*on_tpu)[0].cpu(), usual)
        expected, kept = steps(x, w, leave_at, how)
        found, kept_found = steps(*on_tpu, leave_at, how)
        torch.testing.assert_close(found.cpu(), expected)
        for one, other in zip(kept, kept_found, strict=True):
            torch.testing.assert_close(torch.as_tensor(other).cpu(), torch.as_tensor(one))


def test_loops_that_alternate_are_known(metrics):
    x = torch.zeros(4, device="tpu")

    def one():
        return ((x + 1) * 2).tolist()

    def other():
        return ((x + 1) / 2).tolist()

    for _ in range(3):
        one(), one(), other()
    distinct = metrics()["fragments_distinct"]
    for _ in range(5):
        assert (one(), one(), other()) == ([2] * 4, [2] * 4, [0.5] * 4)
    assert metrics()["fragments_distinct"] == distinct


@pytest.mark.embedded_only(reason="XLA fuses with products: nothing is cut in front of them")
def test_a_view_stays_with_the_product_that_reads_it(metrics):
    x, w = torch.randn(8, 8).to("tpu"), torch.randn(8, 8).to("tpu")
    y = x
    for _ in range(20):
        y = y.sin()
    torch.testing.assert_close((y @ w.t()).cpu(), y.cpu() @ w.cpu().t())
    assert [c["ops"] for c in torch.tpu.explain().cuts if c["reason"] == "content"] == [20]


@pytest.mark.embedded_only(reason="XLA fuses with products: nothing is cut in front of them")
def test_widened_bytes_stay_with_the_product_that_reads_them(metrics):
    x, w = torch.randn(8, 8).to("tpu"), torch.randint(-9, 9, (8, 8), dtype=torch.int8).to("tpu")
    y = x
    for _ in range(20):
        y = y.sin()
    torch.testing.assert_close((y @ w.t().float()).cpu(), y.cpu() @ w.cpu().t().float())
    assert [c["ops"] for c in torch.tpu.explain().cuts if c["reason"] == "content"] == [20]


@pytest.mark.embedded_only(reason="XLA compiles a program of 2048 results for minutes; windows are cut alike")
def test_views_without_a_reader_do_not_pile_up(metrics):
    x = torch.arange(24000.0, device="tpu").reshape(8000, 3)
    torch.tpu.synchronize()
    before = metrics()["fragments"]
    rows = [x[i].clone() for i in range(8000)]
    assert metrics()["fragments"] - before > 2
    for i in (0, 2047, 2048, 7999):
        assert rows[i].tolist() == [3 * i, 3 * i + 1, 3 * i + 2]
