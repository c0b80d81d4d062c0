"""What ranks hear of one that dies, stalls, diverges or is called wrongly: an error that names it, never a hang."""

import datetime
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist


def raises(words, function):
    with pytest.raises(Exception) as caught:
        function()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def all_reduce_and_read():
    x = torch.ones(1000, device="tpu")
    dist.all_reduce(x)
    x.cpu()


def survivor_of_a_death(rank, world):
    all_reduce_and_read()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    raises(["rank 1", "all_reduce(f32[1000], sum"], all_reduce_and_read)
    assert time.monotonic() - start < 30  # half the timeout
    raises(["rank 1"], all_reduce_and_read)  # and from then on
    assert torch.ones(3, device="tpu").sum().item() == 3  # the process goes on


def test_dead_rank(ranks):
    ranks(3, survivor_of_a_death, timeout=60, dies=[1])


def beside_a_stalled_rank(rank, world):
    all_reduce_and_read()
    if rank == 1:
        time.sleep(6)
    else:
        raises(["timeout", "rank 1", "all_reduce"], all_reduce_and_read)


def test_stalled_rank(ranks):
    ranks(2, beside_a_stalled_rank, timeout=3)


def beside_an_absent_rank(rank, world):
    if rank == 2:
        return
    start = time.monotonic()
    absent = ["rank 2" if rank == 0 else "rank 0", "3000 ms"]
    raises(absent, lambda: dist.new_group(list(range(world)), timeout=datetime.timedelta(seconds=3), backend="tpu"))
    assert time.monotonic() - start < 30  # half the timeout of the group of all


def test_absent_rank(ranks):
    ranks(3, beside_an_absent_rank, timeout=60)


def diverging_verb(rank, world):
    x = torch.ones(16, device="tpu")
    work = dist.broadcast(x, 0, async_op=True) if rank == 1 else dist.all_reduce(x, async_op=True)
    raises(["rank 1", "broadcast(f32[16]", "all_reduce(f32[16]"], x.cpu)
    raises(["broadcast"], work.wait)
    assert not work.is_success()


def diverging_shape(rank, world):
    x = torch.ones(16 + rank, device="tpu")
    raises(["diverge", "f32[16]", "f32[17]"], lambda: (dist.all_reduce(x), x.cpu()))


def diverging_dtype(rank, world):
    x = torch.ones(16, device="tpu", dtype=[torch.float32, torch.float64][rank])
    raises(["diverge", "f32[16]", "f64[16]"], lambda: (dist.all_reduce(x), x.cpu()))


def diverging_message(rank, world):
    x = torch.ones(4 + rank, device="tpu")
    if rank == 0:
        dist.send(x, 1)
    else:
        raises(["rank 0 sends f32[4]", "recv(f32[5], from 0"], lambda: (dist.recv(x, 0), x.cpu()))


def diverging_split(rank, world):
    x = torch.ones(4, device="tpu")
    out = torch.empty(4 + rank, device="tpu")
    sizes = [2 + rank, 2]
    raises(["diverge", "all_to_all"], lambda: (dist.all_to_all_single(out, x, sizes, [2, 2]), out.cpu()))


def diverging_sparse(rank, world):
    size = 3 + rank
    x = torch.sparse_coo_tensor([[0, size - 1]], [1.0, 2.0], (size,)).to("tpu")
    raises(["diverge", "rank 0 has sizes [3]" if rank else "rank 1 has sizes [4]"], lambda: dist.all_reduce(x))


DIVERGENCES = [
    diverging_verb,
    diverging_shape,
    diverging_dtype,
    diverging_message,
    diverging_split,
    diverging_sparse,
]


@pytest.mark.parametrize("check", DIVERGENCES, ids=lambda f: f.__name__)
def test_divergence(ranks, check):
    ranks(2, check)


def failing_operand(rank, world):
    """An error of one rank's computation is every rank's."""
    index = torch.tensor([rank * 100], device="tpu")
    x = torch.ones(4, device="tpu").index_select(0, index + 0)
    raises(["rank 1", "index"] if rank == 0 else ["index"], lambda: (dist.all_reduce(x), x.cpu()))


def test_failing_operand(ranks):
    ranks(2, failing_operand)


def wrong_arguments(rank, world):
    x = torch.ones(4, device="tpu")
    raises(["band", "f32"], lambda: dist.all_reduce(x, dist.ReduceOp.BAND))
    raises(["divided"], lambda: dist.reduce_scatter_tensor(torch.empty(2, device="tpu"), torch.ones(5, device="tpu")))
    raises(["elements"], lambda: dist.all_gather_into_tensor(torch.empty(6, device="tpu"), x))
    raises(["plit size"], lambda: dist.all_to_all_single(x, x.clone(), [1, 1], [2, 2]))
    sizes = [[-1, 5], [5, -1]][rank]
    raises(["negative"], lambda: dist.all_to_all_single(x, x.clone(), sizes, sizes))
    raises([], lambda: dist.broadcast(x, 7))
    raises([], lambda: dist.send(x, rank))
    raises(["float"], lambda: dist.all_gather([x.double(), x.double()], x))
    raises(["sparse", "Int"], lambda: dist.all_reduce(x.int().to_sparse(), dist.ReduceOp.AVG))
    all_reduce_and_read()  # none of it was queued


def test_wrong_arguments(ranks):
    ranks(2, wrong_arguments)
