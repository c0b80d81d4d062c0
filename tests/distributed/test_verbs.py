"""Every verb, operator and element type against the same on the CPU by Gloo, or against what it must give."""

import datetime
import functools
import itertools
import time

import pytest
import torch
import torch.distributed as dist

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
OPERATORS = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
BITWISE = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
MEANING = dict(
    zip(
        [*OPERATORS, *BITWISE],
        [torch.add, torch.mul, torch.minimum, torch.maximum, torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor],
        strict=True,
    )
)


def values(rank, shape, dtype):
    """The same on the CPU and on tpu: small whole numbers, so that sums of every type are exact."""
    count = torch.Size(shape).numel()
    x = (torch.arange(count) * 7 + rank * 3) % 4
    return x.reshape(shape).to(dtype)


def both(rank, shape, dtype):
    x = values(rank, shape, dtype)
    return x.clone(), x.to("tpu")


def same(actual, expected):
    torch.testing.assert_close(actual.cpu(), expected)


def all_dtypes(rank, world):
    for dtype in [*FLOATS, *INTEGERS]:
        operators = OPERATORS + (BITWISE if dtype in INTEGERS else [])
        for op, shape in itertools.product(operators, [(0,), (1,), (7, 5), (20001,)]):
            tpu = values(rank, shape, dtype).to("tpu")
            dist.all_reduce(tpu, op)
            inputs = [values(r, shape, dtype) for r in range(world)]
            same(tpu, functools.reduce(MEANING[op], inputs))


def copies(rank, world):
    """What is reduced in place shares no memory with what it was copied from."""
    for shape in (4096,), (64, 64):
        x = torch.full((4096,), rank + 1.0).to("tpu") * 1
        for _ in range(3):
            z = x.reshape(64, 64).reshape(shape).clone()
            dist.all_reduce(z)
            same(x, torch.full((4096,), rank + 1.0))
            same(z, torch.full(shape, world * (world + 1) / 2))


def averages(rank, world):
    for dtype in FLOATS:
        x = values(rank, (33,), dtype).to("tpu")
        dist.all_reduce(x, dist.ReduceOp.AVG)
        same(x, torch.stack([values(r, (33,), torch.float64) for r in range(world)]).mean(0).to(dtype))
        x = values(rank, (33,), dtype).to("tpu")
        dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
        same(x, torch.stack([values(r, (33,), torch.float64) / 2 for r in range(world)]).sum(0).to(dtype))


def reductions_to_parts(rank, world):
    """reduce and reduce_scatter know the operators that all_reduce knows."""
    operators = [*OPERATORS, dist.ReduceOp.AVG, dist._make_nccl_premul_sum(torch.tensor([0.5], device="tpu"))]
    for op in operators:
        inputs = [values(r, (world * 3,), torch.float32) for r in range(world)]
        stacked = torch.stack(inputs)
        meanings = {dist.ReduceOp.SUM: stacked.sum(0), dist.ReduceOp.PRODUCT: stacked.prod(0)}
        meanings |= {dist.ReduceOp.MIN: stacked.amin(0), dist.ReduceOp.MAX: stacked.amax(0)}
        meanings |= {dist.ReduceOp.AVG: stacked.mean(0)}
        expected = next((x for known, x in meanings.items() if op == known), stacked.sum(0) / 2)
        part = torch.empty(3, device="tpu")
        dist.reduce_scatter_tensor(part, inputs[rank].to("tpu"), op)
        same(part, expected[rank * 3 : rank * 3 + 3])
        whole = inputs[rank].to("tpu")
        dist.reduce(whole, world - 1, op)
        if rank == world - 1:
            same(whole, expected)


def every_dtype_moves(rank, world):
    unsigned = [torch.uint16, torch.uint32, torch.uint64]
    others = [torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]
    for dtype in [*FLOATS, *INTEGERS, *unsigned, *others]:
        cpu = [torch.tensor([0, 1, r % 2, 1]).to(dtype) for r in range(world)]
        x = cpu[rank].to("tpu")
        gathered = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(gathered, x)
        for out, expected in zip(gathered, cpu, strict=True):
            assert torch.equal(out.cpu().view(torch.uint8), expected.view(torch.uint8)), dtype
        dist.broadcast(x, world - 1)
        assert torch.equal(x.cpu().view(torch.uint8), cpu[-1].view(torch.uint8)), dtype
        if dtype in unsigned:
            dist.all_reduce(x)
            assert torch.equal(x.cpu().long(), cpu[-1].long() * world), dtype


def bools_and_complex(rank, world):
    x = torch.tensor([True, rank == 0, False], device="tpu")
    dist.all_reduce(x)
    same(x, torch.tensor([True, True, False]))
    x = torch.tensor([True, rank == 0, False], device="tpu")
    dist.all_reduce(x, dist.ReduceOp.MIN)
    same(x, torch.tensor([True, world == 1, False]))
    x = torch.full((5,), complex(rank, 1), device="tpu")
    dist.all_reduce(x)
    same(x, torch.full((5,), complex(sum(range(world)), world)))


def against_gloo(rank, world):
    """The same calls on CPU and tpu tensors."""
    for dtype, shape in itertools.product([torch.float32, torch.bfloat16, torch.int64], [(3, 5), (70000,)]):
        cpu, tpu = both(rank, shape, dtype)
        for root in range(world):
            for t in (cpu, tpu):
                t.add_(rank)
                dist.broadcast(t, root)
            same(tpu, cpu)
            for t in (cpu, tpu):
                t.add_(rank)
                dist.reduce(t, root)
            if rank == root:
                same(tpu, cpu)
            cpu, tpu = both(rank, shape, dtype)
            results = []
            for t in (cpu, tpu):
                gathered = [torch.zeros_like(t) for _ in range(world)]
                dist.gather(t, gathered if rank == root else None, root)
                scattered = torch.zeros_like(t)
                dist.scatter(scattered, [t * (r + 1) for r in range(world)] if rank == root else None, root)
                results.append([*gathered, scattered])
            for a, b in zip(*results, strict=True):
                same(b, a)
        results = []
        for t in (cpu, tpu):
            gathered = [torch.zeros_like(t) for _ in range(world)]
            dist.all_gather(gathered, t)
            whole = t.new_zeros(world * t.numel())
            dist.all_gather_into_tensor(whole, t.flatten())
            exchanged = torch.zeros_like(whole)
            dist.all_to_all_single(exchanged, whole * (rank + 1))
            part = t.new_zeros(t.numel())
            dist.reduce_scatter_tensor(part, exchanged)
            results.append([*gathered, whole, exchanged, part])
        for a, b in zip(*results, strict=True):
            same(b, a)


def list_forms(rank, world):
    inputs = [torch.full((r + 2,), float(rank * 10 + r), device="tpu") for r in range(world)]
    outputs = [torch.empty(rank + 2, device="tpu") for _ in range(world)]
    dist.all_to_all(outputs, inputs)
    for r, out in enumerate(outputs):
        same(out, torch.full((rank + 2,), float(r * 10 + rank)))
    part = torch.empty(rank + 2, device="tpu")
    dist.reduce_scatter(part, inputs)
    same(part, torch.full((rank + 2,), float(sum(r * 10 + rank for r in range(world)))))
    gathered = [torch.empty(r + 2, device="tpu") for r in range(world)]
    dist.all_gather(gathered, torch.full((rank + 2,), float(rank), device="tpu"))
    for r, out in enumerate(gathered):
        same(out, torch.full((r + 2,), float(r)))


def sparse(rank, world):
    def mine(r):  # none, one row, two, ...
        rows = torch.arange(r)[None] % 3
        return torch.sparse_coo_tensor(rows, torch.full((r, 2), r + 1.0), (3, 2))

    expected = sum(mine(r).to_dense() for r in range(world))
    for op, factor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, 1 / world)):
        x = mine(rank).to("tpu")
        work = dist.all_reduce(x, op, async_op=True)
        work.wait()
        same(x.to_dense(), expected * factor)
        same(work.result()[0].to_dense(), expected * factor)
    with pytest.raises(ValueError, match="sparse tensors takes their sum or average"):
        dist.all_reduce(x, dist.ReduceOp.MAX)
    with pytest.raises(NotImplementedError, match="c10d::broadcast_"):
        dist.broadcast(x, 0)


def uneven_all_to_all(rank, world):
    sizes_in = [r + 1 for r in range(world)]
    sizes_out = [rank + 1] * world
    x = torch.full((sum(sizes_in), 3), float(rank), device="tpu")
    out = torch.empty(sum(sizes_out), 3, device="tpu")
    dist.all_to_all_single(out, x, sizes_out, sizes_in)
    same(out, torch.arange(world).repeat_interleave(rank + 1)[:, None].expand(-1, 3).float())


def coalesced(rank, world):
    a, b = (torch.full((n,), float(rank + 1), device="tpu") for n in (4, 9))
    total = sum(range(1, world + 1))
    with dist._coalescing_manager(device=a.device):
        dist.all_reduce(a)
        dist.all_reduce(b)
    same(a, torch.full((4,), float(total)))
    same(b, torch.full((9,), float(total)))
    with dist._coalescing_manager(device=a.device, async_ops=True) as manager:
        outs = [torch.empty(world * 2, device="tpu") for _ in range(2)]
        for out in outs:
            dist.all_gather_into_tensor(out, torch.full((2,), float(rank), device="tpu"))
    manager.wait()
    for out in outs:
        same(out, torch.arange(world).repeat_interleave(2).float())
    dist.all_reduce_coalesced([a, b])
    same(b, torch.full((9,), float(total * world)))
    with dist._coalescing_manager(device=a.device):
        parts = [torch.empty(2, device="tpu") for _ in range(2)]
        for n, part in enumerate(parts):
            dist.reduce_scatter_tensor(part, torch.full((world * 2,), float(rank + n), device="tpu"))
    for n, part in enumerate(parts):
        same(part, torch.full((2,), float(sum(r + n for r in range(world)))))
    lists = [[torch.empty(n, device="tpu") for _ in range(world)] for n in (1, 3)]
    dist.all_gather_coalesced(
        [[row[r] for row in lists] for r in range(world)], [torch.full((n,), float(rank), device="tpu") for n in (1, 3)]
    )
    for row in lists:
        for r, out in enumerate(row):
            same(out, torch.full_like(out, r, device="cpu"))


def messages(rank, world):
    right, left = (rank + 1) % world, (rank - 1) % world
    for count in (0, 5, 100_000):
        out, into = torch.full((count,), float(rank), device="tpu"), torch.empty(count, device="tpu")
        works = [dist.isend(out, right), dist.irecv(into, left)]
        for work in works:
            work.wait()
        same(into, torch.full((count,), float(left)))
        into = torch.empty(count, device="tpu")
        operations = [dist.P2POp(dist.isend, out, left), dist.P2POp(dist.irecv, into, right)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        same(into, torch.full((count,), float(right)))
    if rank == 0:
        dist.send(torch.ones(3, device="tpu"), 1, tag=4)
    elif rank == 1:
        into = torch.zeros(3, device="tpu")
        assert dist.recv(into, 0, tag=4) == 0
        same(into, torch.ones(3))


def copies_beside_a_message_that_is_awaited(rank, world):
    total = torch.tpu.get_device_properties().total_memory
    torch.tpu.set_per_process_memory_fraction((torch.tpu.memory_allocated() + (96 << 20)) / total)
    batch, into = torch.ones(2 << 20), torch.zeros(4, device="tpu")  # 8 MiB
    try:
        if rank == 0:
            work = dist.irecv(into, 1)
            for _ in range(24):
                there = batch.to("tpu")
            dist.send(there[:4].clone(), 1)
            work.wait()
        elif rank == 1:
            dist.recv(into, 0)
            dist.send(into, 0)
        same(into, torch.full((4,), float(rank < 2)))
    finally:
        torch.tpu.set_per_process_memory_fraction(1.0)


def from_any_rank(rank, world):
    """The source is told; receives that were posted earlier for a rank get that rank's messages."""
    if rank != 0:
        for value in (rank, 10 * rank):
            dist.send(torch.full((5,), float(value), device="tpu"), 0)
        return
    first = torch.empty(5, device="tpu")
    work = dist.irecv(first, 1)
    found = []
    for _ in range(2 * world - 3):
        into = torch.empty(5, device="tpu")
        found.append((dist.recv(into), into[0].item()))
    work.wait()
    same(first, torch.full((5,), 1.0))
    expected = [(r, float(v)) for r in range(1, world) for v in (r, 10 * r)]
    assert sorted(found) == expected[1:]
    for r in range(1, world):  # of each rank in the order in which they were sent
        values = [v for source, v in found if source == r]
        assert values == sorted(values)


def views(rank, world):
    """Slices, transposes and parts of a storage are read and written as they lie."""
    base = torch.zeros(6, 4, device="tpu")
    base[2:4] += rank + 1
    dist.all_reduce(base[2:4])
    dist.all_reduce(base.t()[1])
    total = sum(range(1, world + 1))
    expected = torch.zeros(6, 4)
    expected[2:4] += total
    expected[:, 1] *= world
    same(base, expected)
    whole = torch.zeros(world * 3, device="tpu")
    mine = whole.narrow(0, rank * 3, 3)
    mine += rank
    dist.all_gather_into_tensor(whole, mine)
    same(whole, torch.arange(world).repeat_interleave(3).float())
    same(mine, torch.full((3,), float(rank)))
    parts = torch.full((world * 3,), float(rank + 1), device="tpu")
    dist.reduce_scatter_tensor(parts.narrow(0, rank * 3, 3), parts)
    expected = torch.full((world * 3,), float(rank + 1))
    expected[rank * 3 : rank * 3 + 3] = total
    same(parts, expected)


def asynchronous(rank, world):
    x = torch.ones(1000, device="tpu")
    works = [dist.all_reduce(x, async_op=True) for _ in range(5)]
    x += 1
    for work in works:
        assert work.wait()
    same(x, torch.full((1000,), float(world**5 + 1)))
    assert all(work.is_completed() and work.is_success() for work in works)
    work = dist.all_reduce(x, async_op=True)
    doubled = work.get_future().then(lambda f: f.value()[0] * 2).wait()
    same(doubled, torch.full((1000,), 2.0 * world * (world**5 + 1)))
    work.wait(timeout=datetime.timedelta(seconds=30))
    work.block_current_stream()
    dist.barrier()


def overlapping(rank, world):
    """What doesn't read a collective's result runs, and is read, while the collective waits for another rank."""
    x, y = torch.ones(4, device="tpu"), torch.ones(64, 64, device="tpu")
    if rank == world - 1:
        message = torch.empty(1, device="tpu")
        dist.recv(message, 0)
        same(message, torch.full((1,), 64.0))
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        for _ in range(20):  # some of these while the collective is under way, however late its thread begins
            same(y @ y, torch.full((64, 64), 64.0))
            time.sleep(0.01)
        assert not work.is_completed()
        dist.send((y @ y)[0, :1], world - 1)
    work.wait()
    same(x, torch.full((4,), float(world)))


def objects(rank, world):
    gathered = [None] * world
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert [g["rank"] for g in gathered] == list(range(world))
    passed = [("from", rank)]
    dist.broadcast_object_list(passed, src=world - 1, device=torch.device("tpu"))
    assert passed == [("from", world - 1)]
    gathered = [None] * world if rank == 0 else None
    dist.gather_object({"rank": rank}, gathered)
    assert gathered is None or [g["rank"] for g in gathered] == list(range(world))
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(world)] if rank == 0 else None)
    assert mine == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["letter", 3], 1, device=torch.device("tpu"))
    elif rank == 1:
        letter = [None, None]
        dist.recv_object_list(letter, 0, device=torch.device("tpu"))
        assert letter == ["letter", 3]


def subgroups(rank, world):
    halves = [dist.new_group(list(range(world // 2))), dist.new_group(list(range(world // 2, world)))]
    mine = halves[rank >= world // 2]
    x = torch.full((3,), float(rank), device="tpu")
    dist.all_reduce(x, group=mine)
    members = range(world // 2) if rank < world // 2 else range(world // 2, world)
    same(x, torch.full((3,), float(sum(members))))
    x = torch.full((2,), float(rank), device="tpu")
    dist.broadcast(x, members[-1], group=mine)
    same(x, torch.full((2,), float(members[-1])))
    # Many groups, more than streams that a device lends to users.
    for _ in range(20):
        group = dist.new_group(list(range(world)))
        x = torch.ones(1, device="tpu")
        dist.all_reduce(x, group=group)
        same(x, torch.full((1,), float(world)))
        dist.destroy_process_group(group)


CHECKS = [
    all_dtypes,
    averages,
    copies,
    reductions_to_parts,
    every_dtype_moves,
    bools_and_complex,
    against_gloo,
    list_forms,
    uneven_all_to_all,
    sparse,
    coalesced,
    messages,
    copies_beside_a_message_that_is_awaited,
    from_any_rank,
    views,
    asynchronous,
    overlapping,
    objects,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("world", [2, 3])
def test_verb(ranks, world, check):
    ranks(world, check)


def test_subgroups(ranks):
    ranks(4, subgroups)


def one_rank(rank, world):
    x = torch.ones(3, device="tpu")
    dist.all_reduce(x, dist.ReduceOp.AVG)
    dist.broadcast(x, 0)
    out = torch.empty(3, device="tpu")
    dist.all_gather_into_tensor(out, x)
    dist.reduce_scatter_tensor(x, out)
    dist.barrier()
    same(x, torch.ones(3))


def test_one_rank(ranks):
    ranks(1, one_rank)
