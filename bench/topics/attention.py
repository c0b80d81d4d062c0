"""Causal attention, forward and backward; flex_attention, forward (Inductor has no backward of it on CPUs); and greedy
decoding with a cache that grows by one at every token.

Decoding's compiles: all that a process from an empty cache compiles until a decoding needs none, for each of its
fragments (those that differ in nothing but sizes are one).
"""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

TOKENS, WIDTH, HEADS, LAYERS = 64, 384, 6, 6


def attention(batch, length):
    def build(peer):
        import torch

        torch.manual_seed(0)
        shape = (batch, 8, length, 64)
        q, k, v = (torch.randn(shape).to(harness.device_of(peer)).requires_grad_() for _ in range(3))

        def iteration():
            for x in (q, k, v):
                x.grad = None
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
            harness.finish(peer)

        return iteration

    return build


def flex(sees):
    def build(peer):
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch.manual_seed(0)
        device = harness.device_of(peer)
        q, k, v = torch.randn(3, 1, 8, 2048, 64).to(device)
        mask = create_block_mask(sees, None, None, 2048, 2048, device=device)
        attend = torch.compile(flex_attention)

        @torch.no_grad()
        def iteration():
            output = attend(q, k, v, block_mask=mask)
            harness.finish(peer)
            return output

        return iteration

    return build


def decode(peer):
    """Batch 1: each token is chosen from the last one's logits, which is a read."""
    import torch
    import torch.nn.functional as F

    device = harness.device_of(peer)
    torch.manual_seed(0)
    embedding = torch.randn(256, WIDTH).to(device)
    layers = [[(torch.randn(out, into) * into**-0.5).to(device) for out, into in WEIGHTS] for _ in range(LAYERS)]

    @torch.inference_mode()
    def iteration():
        keys, values = [None] * LAYERS, [None] * LAYERS
        token = 0
        for _ in range(TOKENS):
            x = embedding[token].view(1, WIDTH)
            for i, (qkv, out, up, down) in enumerate(layers):
                q, k, v = F.linear(F.layer_norm(x, (WIDTH,)), qkv).view(3, HEADS, 1, WIDTH // HEADS)
                keys[i] = k if keys[i] is None else torch.cat((keys[i], k), 1)
                values[i] = v if values[i] is None else torch.cat((values[i], v), 1)
                y = F.scaled_dot_product_attention(q[None], keys[i][None], values[i][None])
                x = x + F.linear(y.reshape(1, WIDTH), out)
                x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (WIDTH,)), up)), down)
            token = (x @ embedding.t()).argmax().item()

    return iteration


WEIGHTS = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
FLEX = {
    "flex_attention, causal, B1 H8 T2048 D64": flex(lambda batch, head, i, j: i >= j),
    "flex_attention, the last 256 positions": flex(lambda batch, head, i, j: (i >= j) & (i - j < 256)),
}
CASES = {
    "causal attention, B4 H8 T512 D64": attention(4, 512),
    "causal attention, B1 H8 T4096 D64": attention(1, 4096),
    "greedy decoding, 64 tokens": decode,
    **FLEX,
}


def compiles():
    """Programs compiled until all of a decoding is, and how many fragments it is cut into, sizes aside."""
    import torch

    torch.set_num_threads(harness.THREADS)
    run = decode("tpu")
    while True:
        before = torch.tpu.metrics()["launches_tier0"]
        run()
        torch.tpu.wait_for_compiles()
        found = torch.tpu.metrics()
        if found["launches_tier0"] == before:
            return found["compiles"], found["fragment_families"]


def compiles_row():
    with harness.scratch_directory() as cache:
        command = [sys.executable, __file__, "--compiles"]
        child = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=harness.environment("tpu", cache), check=True
        )
    made, fragments = json.loads(child.stdout.splitlines()[-1])
    name = f"greedy decoding, {TOKENS} tokens of growing length"
    return harness.Row(name, made, "fragments", fragments, 3.0, unit="compiles")


def measure():
    for name, bound, warm_up in zip(CASES, (0.7, None, 0.6, 1.0, 1.0), (10, 6, 12, 20, 20), strict=True):
        peer = "inductor" if name in FLEX else "eager"
        times = harness.interleave("attention", name, ("tpu", peer), rounds=7, iterations=3, warm_up=warm_up)
        yield from harness.rows_against(name, times, {peer: bound})
    yield compiles_row()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compiles"]:
        print(json.dumps(compiles()))
    else:
        harness.main(measure)
