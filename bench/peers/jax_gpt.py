"""The step of examples/char_gpt.py in JAX, jit-compiled as a whole: what the CPU plugin is held to.

In a Python environment of its own (`pip install jax==0.8.1`), named by BENCH_JAX_PYTHON to bench/topics/gpt.py. Alone
it prints the median and least time of a step.

    python bench/peers/jax_gpt.py [--steps 20]
"""

import argparse
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, WIDTH, HEADS, CONTEXT, BATCH, VOCABULARY = 6, 384, 6, 256, 8, 96


def make_parameters(key):
    def matrix(key, rows, columns):
        return 0.02 * jax.random.normal(key, (rows, columns))

    keys = iter(jax.random.split(key, 6 * LAYERS + 2))
    blocks = []
    for _ in range(LAYERS):
        block = {"qkv": matrix(next(keys), WIDTH, 3 * WIDTH), "out": matrix(next(keys), WIDTH, WIDTH)}
        block |= {"up": matrix(next(keys), WIDTH, 4 * WIDTH), "down": matrix(next(keys), 4 * WIDTH, WIDTH)}
        for name, size in (("qkv", 3 * WIDTH), ("out", WIDTH), ("up", 4 * WIDTH), ("down", WIDTH)):
            block[name + "_bias"] = jnp.zeros(size)
        for name in ("norm1", "norm2"):
            block[name] = (jnp.ones(WIDTH), jnp.zeros(WIDTH))
        blocks.append(block)
    tokens = 0.02 * jax.random.normal(next(keys), (VOCABULARY, WIDTH))
    head = matrix(next(keys), WIDTH, VOCABULARY)
    return {"tokens": tokens, "head": head, "norm": (jnp.ones(WIDTH), jnp.zeros(WIDTH)), "blocks": blocks}


def norm(x, weights):
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weights[0] + weights[1]


def rotate(x, cos, sin):
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(q, k, v):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((CONTEXT, CONTEXT), bool)), scores, -jnp.inf)
    return jax.nn.softmax(scores, -1) @ v


def forward(p, tokens, cos, sin):
    x = p["tokens"][tokens]
    for block in p["blocks"]:
        qkv = norm(x, block["norm1"]) @ block["qkv"] + block["qkv_bias"]
        q, k, v = qkv.reshape(BATCH, CONTEXT, 3, HEADS, WIDTH // HEADS).transpose(2, 0, 3, 1, 4)
        y = attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + y.transpose(0, 2, 1, 3).reshape(BATCH, CONTEXT, WIDTH) @ block["out"] + block["out_bias"]
        up = norm(x, block["norm2"]) @ block["up"] + block["up_bias"]
        x = x + jax.nn.gelu(up, approximate=False) @ block["down"] + block["down_bias"]
    return norm(x, p["norm"]) @ p["head"]


def loss_of(p, tokens, targets, cos, sin):
    logits = jax.nn.log_softmax(forward(p, tokens, cos, sin))
    return -jnp.take_along_axis(logits, targets[..., None], -1).mean()


def step(p, m, v, count, tokens, targets, cos, sin, lr):
    """AdamW with gradients clipped to norm 1, as the example has it."""
    loss, g = jax.value_and_grad(loss_of)(p, tokens, targets, cos, sin)
    norm2 = sum(jnp.sum(x * x) for x in jax.tree.leaves(g))
    g = jax.tree.map(lambda x: x * jnp.minimum(1.0, 1.0 / (jnp.sqrt(norm2) + 1e-6)), g)
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
    v = jax.tree.map(lambda a, b: 0.98 * a + 0.02 * b * b, v, g)
    unbias1, unbias2 = 1 - 0.9**count, 1 - 0.98**count

    def update(x, a, b):
        decay = 0.1 if x.ndim >= 2 else 0.0
        return x * (1 - lr * decay) - lr * (a / unbias1) / (jnp.sqrt(b / unbias2) + 1e-8)

    return jax.tree.map(update, p, m, v), m, v, loss


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--serve", action="store_true", help="as a worker of bench/harness.py")
    args = parser.parse_args()
    p = make_parameters(jax.random.key(0))
    m, v = jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)
    half = WIDTH // HEADS // 2
    angles = np.outer(np.arange(CONTEXT), 10000.0 ** (-np.arange(half) / half))
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    compiled = jax.jit(step, donate_argnums=(0, 1, 2))
    random = np.random.default_rng(0)
    count, loss = 0, None

    def run():
        """Milliseconds of one step."""
        nonlocal p, m, v, count, loss
        count += 1
        tokens = random.integers(0, VOCABULARY, (BATCH, CONTEXT + 1))
        start = time.perf_counter()
        p, m, v, loss = compiled(p, m, v, float(count), tokens[:, :-1], tokens[:, 1:], cos, sin, 1e-3)
        jax.block_until_ready((p, loss))
        return 1e3 * (time.perf_counter() - start)

    if args.serve:
        for line in sys.stdin:
            print(statistics.mean(run() for _ in range(int(line))), flush=True)
        return
    times = [run() for _ in range(args.steps + 3)][3:]
    print(
        f"jax {jax.__version__}: median {statistics.median(times):.1f} ms, least {min(times):.1f} ms, loss {loss:.3f}"
    )


if __name__ == "__main__":
    main()
