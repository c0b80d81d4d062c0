"""Single operators on a million elements or so, against CPU eager: none should be much slower than there.

Both run in this process in turns, since a pair of workers for each of so many would take minutes to start; OpenMP's
threads sleep between their calls, so that they don't take cores from ours.
"""

import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

ROUNDS = 5
ROUND_MS = 8.0  # of eager's time in a round
BOUND = 1.25


def cases():
    """name -> (function, tensors)"""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    x, y = torch.randn(1024, 1024), torch.randn(1024, 1024)
    v, mask = torch.randn(1 << 20), x > 0
    whole = torch.randint(0, 1000, (1024, 1024))
    rows, classes = torch.randint(0, 1024, (4096,)), torch.randint(0, 1024, (1024,))
    image, table, tokens = torch.randn(8, 32, 64, 64), torch.randn(10000, 256), torch.randint(0, 10000, (32, 256))
    blocks, square = torch.randn(64, 64, 64), torch.randn(128, 128) + 200 * torch.eye(128)
    unary = "exp exp2 log1p log10 sin tan tanh erf sigmoid rsqrt atan asinh lgamma digamma erfinv round frac".split()
    named = {name: (getattr(torch, name), [x]) for name in unary}
    named |= {
        f"{name}, two": (getattr(torch, name), [x, y])
        for name in "add atan2 fmod remainder floor_divide hypot maximum logaddexp".split()
    }
    named |= {name: (getattr(F, name), [x]) for name in "gelu silu mish softplus elu hardswish glu leaky_relu".split()}
    return named | {
        "pow": (lambda x: x.abs() ** 1.7, [x]),
        "exp of float64": (lambda x: x.double().exp().float(), [x]),
        "to bfloat16 and back": (lambda x: x.bfloat16().float(), [x]),
        "integers, //": (lambda i: i // 7, [whole]),
        "integers, %": (lambda i: i % 7, [whole]),
        "integers, @": (lambda i: i[:256, :256] @ i[256:512, :256], [whole]),
        "where": (torch.where, [mask, x, y]),
        "masked_fill": (lambda x, m: x.masked_fill(m, 0), [x, mask]),
        "clamp": (lambda x: x.clamp(-1, 1), [x]),
        "sum of all": (torch.sum, [x]),
        "sum of columns": (lambda x: x.sum(0), [x]),
        "std_mean of rows": (lambda x: torch.std_mean(x, 1), [x]),
        "argmax of rows": (lambda x: x.argmax(1), [x]),
        "logsumexp": (lambda x: x.logsumexp(1), [x]),
        "norm": (torch.norm, [x]),
        "softmax of columns": (lambda x: x.softmax(0), [x]),
        "cumsum of rows": (lambda x: x.cumsum(1), [x]),
        "cumsum of columns": (lambda x: x.cumsum(0), [x]),
        "sort": (lambda x: x.sort(1), [x]),
        "topk": (lambda x: x.topk(10, 1), [x]),
        "median": (lambda x: x.median(1), [x]),
        "unique": (torch.unique, [whole]),
        "bincount": (lambda i: torch.bincount(i.flatten(), minlength=1000), [whole]),
        "nonzero": (torch.nonzero, [mask]),
        "x[mask]": (lambda x, m: x[m], [x, mask]),
        "x[rows]": (lambda x, i: x[i], [x, rows]),
        "x[:, rows]": (lambda x, i: x[:, i], [x, rows]),
        "embedding": (F.embedding, [tokens, table]),
        "scatter_add": (lambda x, i: torch.zeros_like(x).scatter_add(0, i, x), [x, whole]),
        "index_add": (lambda x, i: torch.zeros_like(x).index_add(0, i, x), [x, classes]),
        "transpose": (lambda x: x.t().contiguous(), [x]),
        "permute": (lambda a: a.permute(0, 2, 3, 1).contiguous(), [image]),
        "cat": (lambda x, y: torch.cat([x, y], 1), [x, y]),
        "cat of 64": (lambda *parts: torch.cat(parts), list(torch.randn(64, 16, 1024))),
        "cat of 64, summed": (lambda *parts: torch.cat(parts).sum(0), list(torch.randn(64, 16, 1024))),
        "stack": (lambda x, y: torch.stack([x, y], -1), [x, y]),
        "dot": (torch.dot, [v, v]),
        "resampled to 16000": (lambda x: F.interpolate(x, 16000, mode="linear"), [torch.randn(1, 64, 11025)]),
        "resampled images": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [image]),
        "roll": (lambda x: x.roll(3, 1), [x]),
        "flip": (lambda x: x.flip(1), [x]),
        "pad": (lambda a: F.pad(a, (1, 1, 1, 1)), [image]),
        "reflection pad": (lambda a: F.pad(a, (1, 1, 1, 1), mode="reflect"), [image]),
        "repeat": (lambda v: v.repeat(4), [v]),
        "tril": (torch.tril, [x]),
        "unfold": (lambda a: F.unfold(a, 3), [image[:2]]),
        "conv2d": (lambda a, w: F.conv2d(a, w, padding=1), [image, torch.randn(64, 32, 3, 3)]),
        "conv2d, depthwise": (lambda a, w: F.conv2d(a, w, padding=1, groups=32), [image, torch.randn(32, 1, 3, 3)]),
        "conv_transpose2d": (lambda a, w: F.conv_transpose2d(a, w, stride=2), [image, torch.randn(32, 16, 2, 2)]),
        "max_pool2d": (lambda a: F.max_pool2d(a, 2), [image]),
        "avg_pool2d": (lambda a: F.avg_pool2d(a, 2), [image]),
        "bilinear": (lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), [image]),
        "grid_sample": (lambda a, g: F.grid_sample(a, g, align_corners=False), [image, torch.randn(8, 64, 64, 2)]),
        "batch_norm": (lambda a: F.batch_norm(a, None, None, training=True), [image]),
        "group_norm": (lambda a: F.group_norm(a, 8), [image]),
        "mm": (torch.mm, [x, y]),
        "bmm": (torch.bmm, [blocks, blocks]),
        "mv": (torch.mv, [x, v[:1024]]),
        "cdist": (torch.cdist, [x[:, :64], y[:, :64]]),
        "outer": (torch.outer, [v[:1024], v[:1024]]),
        "solve": (torch.linalg.solve, [square, square[:, :8]]),
        "rfft": (lambda v: torch.fft.rfft(v).abs(), [v]),
        "stft": (lambda v: torch.stft(v[:160000], 512, return_complex=True, window=v[:512]).abs(), [v]),
        "randn": (torch.randn_like, [x]),
        "dropout": (F.dropout, [x]),
        "randperm": (lambda x: torch.randperm(1 << 18, device=x.device), [x]),
        "multinomial": (lambda x: torch.multinomial(x.abs(), 4), [x]),
        "cross_entropy": (F.cross_entropy, [x, classes]),
        "cosine_similarity": (F.cosine_similarity, [x, y]),
    }


def times_of(function, tensors):
    """Median milliseconds of a call, by peer."""
    import torch

    arguments = {"tpu": [t.to("tpu") for t in tensors], "eager": tensors}

    def took(peer, calls):
        start = time.perf_counter()
        for _ in range(calls):
            function(*arguments[peer])
            harness.finish(peer)
        return (time.perf_counter() - start) / calls * 1e3

    for _ in range(4):
        took("tpu", 2), took("eager", 1)
    torch.tpu.wait_for_compiles()
    took("tpu", 6)
    calls = max(1, min(40, int(ROUND_MS / max(took("eager", 1), 1e-3))))
    rounds = [{peer: took(peer, calls) for peer in arguments} for _ in range(ROUNDS)]
    return {peer: statistics.median(r[peer] for r in rounds) for peer in arguments}


def measure():
    with harness.scratch_directory() as cache:
        os.environ |= {"KMP_BLOCKTIME": "0", "OMP_WAIT_POLICY": "passive"}
        os.environ |= {"TORCH_TPU_THREADS": str(harness.THREADS), "TORCH_TPU_CACHE": cache}
        import torch

        torch.set_num_threads(harness.THREADS)
        with torch.no_grad():
            for name, (function, tensors) in cases().items():
                yield from harness.rows_against(name, times_of(function, tensors), {"eager": BOUND})


if __name__ == "__main__":
    harness.main(measure)
