"""Chains of memory-bound operations on 4M fp32 elements (gelu, softmax, layer norm, RMSNorm with rope), cross-entropy
over 50k classes, AdamW over 10M parameters, bags of embeddings (2048 of 1, 10 and 100 rows of a table of 100k x 64).

Peers: CPU eager, the same with a tuned malloc (page faults of fresh blocks cost more than the arithmetic), Inductor.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

PEERS = ("tpu", "eager", "eager, tuned malloc", "inductor")


def case(function, *shapes):
    """A case that runs function(*tensors of shapes), keeps the result and waits for it."""

    def build(peer):
        import torch

        torch.manual_seed(0)
        arguments = [torch.randn(shape).to(harness.device_of(peer)) for shape in shapes]
        run = harness.compiled(peer, function)
        kept = []

        def iteration():
            kept[:] = [run(*arguments)]
            harness.finish(peer)

        return iteration

    return build


def gelu_chain(x, b, s, r):
    import torch.nn.functional as F

    return F.gelu(x + b) * s + r


def softmax(x):
    return x.softmax(-1)


def layer_norm(x, weight, bias):
    import torch.nn.functional as F

    return F.layer_norm(x, weight.shape, weight, bias)


def rms_norm_rope(x, weight, cos, sin):
    import torch

    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


ROWS, WIDTH = 4096, 1024


def cross_entropy(peer):
    import torch

    device = harness.device_of(peer)
    torch.manual_seed(0)
    logits = torch.randn(512, 50257).to(device).requires_grad_()
    targets = torch.randint(50257, (512,)).to(device)
    loss_of = harness.compiled(peer, torch.nn.functional.cross_entropy)

    def iteration():
        logits.grad = None
        loss_of(logits, targets).backward()
        harness.finish(peer)

    return iteration


def adamw(peer):
    import torch

    device = harness.device_of(peer)
    torch.manual_seed(0)
    parameters = [torch.randn(1 << 20).to(device).requires_grad_() for _ in range(10)]
    for p in parameters:
        p.grad = torch.randn(1 << 20).to(device)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=peer != "inductor")
    step = harness.compiled(peer, optimizer.step)

    def iteration():
        step()
        harness.finish(peer)

    return iteration


def bags(rows, backward):
    def build(peer):
        import torch

        device = harness.device_of(peer)
        torch.manual_seed(0)
        table = torch.randn(100_000, 64).to(device).requires_grad_(backward)
        indices = torch.randint(100_000, (2048 * rows,)).to(device)
        offsets, grad = torch.arange(0, 2048 * rows, rows).to(device), torch.randn(2048, 64).to(device)
        run = harness.compiled(peer, lambda t, i, o: torch.nn.functional.embedding_bag(i, t, o, mode="sum"))
        kept = []

        def iteration():
            table.grad = None
            kept[:] = [run(table, indices, offsets)]
            if backward:
                kept[0].backward(grad)
            harness.finish(peer)

        return iteration

    return build


FORWARD_BAGS = {f"bags of {rows}": bags(rows, backward=False) for rows in (1, 10, 100)}
CASES = {
    "gelu(x+b)*s+r, 4M": case(gelu_chain, (ROWS, WIDTH), (WIDTH,), (WIDTH,), (ROWS, WIDTH)),
    "softmax, 4M": case(softmax, (ROWS, WIDTH)),
    "layer norm, 4M": case(layer_norm, (ROWS, WIDTH), (WIDTH,), (WIDTH,)),
    "RMSNorm + rope, 4M": case(rms_norm_rope, (8, 8, 1024, 64), (64,), (1024, 32), (1024, 32)),
    "cross-entropy, 50k classes, forward and backward": cross_entropy,
    "AdamW, 10M parameters": adamw,
    **FORWARD_BAGS,
    **{f"bags of {rows}, forward and backward": bags(rows, backward=True) for rows in (1, 10, 100)},
}


def measure():
    for name in CASES:
        times = harness.interleave("kernels", name, PEERS)
        # A launch is most of what a small forward takes.
        bound = None if name in FORWARD_BAGS else 1.1
        yield harness.best_peer_row(name, times, bound=bound)


if __name__ == "__main__":
    harness.main(measure)
