"""Trains a character GPT on the Python standard library's own sources: an ordinary PyTorch program.

    python examples/char_gpt.py --device tpu             the whole job: trains, validates, saves, loads, samples
    python examples/char_gpt.py --device tpu --smoke     a few steps, the same path
    python examples/char_gpt.py --compare --steps 100    trains on cpu and on tpu, checks that the curves agree

Only the device string is special. The program asserts its own result (validation loss, agreement, checkpoint).
"""

import argparse
import dataclasses
import math
import os
import pathlib
import sysconfig
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

# Characters of the text; everything else becomes "?". Fixed, so that a checkpoint means the same on every machine.
VOCABULARY = "\n" + "".join(chr(c) for c in range(32, 127))
UNKNOWN = VOCABULARY.index("?")
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
ROTARY_BASE = 1000.0  # the slowest of the rotary positions turns once in about this many characters times 6
TARGET_LOSS = 1.6  # nats a character on held-out text
COMPARE_TOLERANCE = 2e-2  # greatest difference of the two devices' losses over the compared steps


@dataclasses.dataclass
class Config:
    layers: int = 6
    width: int = 384
    heads: int = 6
    context: int = 128
    vocabulary: int = len(VOCABULARY)


def load_text(limit=4_000_000):
    """The standard library's sources, in the order of their names, encoded; and the text held out for validation."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    table = torch.full((256,), UNKNOWN, dtype=torch.uint8)
    for code, character in enumerate(VOCABULARY):
        table[ord(character)] = code
    train, held_out, total = [], [], 0
    for number, path in enumerate(sorted(root.rglob("*.py"))):
        if SKIPPED & set(path.relative_to(root).parts):
            continue
        source = path.read_bytes().replace(b"\r", b"")
        (held_out if number % 20 == 7 else train).append(source)
        total += len(source)
        if total > limit:
            break

    def encode(sources):
        return table[torch.frombuffer(bytearray(b"".join(sources)), dtype=torch.uint8).long()]

    return encode(train), encode(held_out)


def rotate(x, cos, sin):
    """Rotary positions: the two halves of the last dimension, turned by the position's angles."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.norm1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CharGPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        head_width = config.width // config.heads
        frequencies = ROTARY_BASE ** (-torch.arange(0, head_width, 2) / head_width)
        angles = torch.outer(torch.arange(config.context), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(self._init)
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def _init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens):
        x = self.tokens(tokens)
        length = tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        return self.head(self.norm(x))


def draw_batch(text, batch, context, generator):
    starts = torch.randint(len(text) - context - 1, (batch,), generator=generator)
    rows = torch.stack([text[s : s + context + 1] for s in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, tokens, targets):
    logits = model(tokens)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def make_optimizer(model, lr, weight_decay, **options):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), **options)


def learning_rate(step, args):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


@torch.no_grad()
def validate(model, text, args, device, batches=20):
    generator = torch.Generator().manual_seed(1234)
    total = torch.zeros((), device=device)
    for _ in range(batches):
        tokens, targets = draw_batch(text, args.batch, model.config.context, generator)
        total += loss_of(model, tokens.to(device), targets.to(device))
    return total.item() / batches


def device_report(device):
    """What the device says of itself, for the progress line."""
    if torch.device(device).type != "tpu":
        return ""
    m = torch.tpu.metrics()
    tier1, launches = m["launches_tier1"], max(1, m["fragments"])
    memory = torch.tpu.memory_allocated() / 2**20
    hits = m["cache_hits"] + m["disk_cache_hits"]
    return (
        f" | tier 1 {100 * tier1 / launches:3.0f}%"
        f" fragments {m['fragments']} ({m['fragments_distinct']} distinct)"
        f" cache hits {hits} compiled {m['compiles']} host kernels {m['host_kernel_calls']} memory {memory:.0f} MiB"
    )


def train(device, args, train_text, val_text, quiet=False):
    """Trains from args.seed on `device`; returns the model, its losses (one a step) and its validation loss."""
    torch.manual_seed(args.seed)
    model = CharGPT(Config(context=args.context, layers=args.layers, width=args.width, heads=args.heads)).to(device)
    optimizer = make_optimizer(model, args.lr, args.weight_decay)
    generator = torch.Generator().manual_seed(args.seed)
    losses, pending = [], []
    start = last = time.perf_counter()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        tokens, targets = draw_batch(train_text, args.batch, args.context, generator)
        loss = loss_of(model, tokens.to(device), targets.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        pending.append(loss.detach())
        if step % args.report == args.report - 1 or step == args.steps - 1 or step == 0:
            losses += torch.stack(pending).tolist()  # the one read of these steps
            now = time.perf_counter()
            speed = len(pending) * args.batch * args.context / (now - last)
            pending, last = [], now
            if not quiet:
                line = f"{device} step {step + 1:4d} loss {losses[-1]:.4f} {speed:6.0f} tokens/s"
                print(line + device_report(device), flush=True)
    validation = validate(model, val_text, args, device)
    if not quiet:
        seconds = time.perf_counter() - start
        print(f"{device} validation loss {validation:.4f} nats/char after {args.steps} steps, {seconds:.0f} s")
    return model, losses, validation


@torch.no_grad()
def sample(model, device, length, prompt="def ", temperature=0.8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    codes = [VOCABULARY.index(c) for c in prompt]
    for _ in range(length):
        window = torch.tensor([codes[-model.config.context :]], device=device)
        logits = model(window)[0, -1].float().cpu() / temperature
        codes.append(torch.multinomial(logits.softmax(-1), 1, generator=generator).item())
    return "".join(VOCABULARY[c] for c in codes)


def check_checkpoint(model, device, args, val_text):
    """Saves the model, loads it on cpu and on the device it was trained on: the same validation loss on each."""
    path = args.checkpoint or os.path.join(tempfile.mkdtemp(prefix="char_gpt_"), "char_gpt.pt")
    torch.save({"config": dataclasses.asdict(model.config), "model": model.state_dict()}, path)
    for target in dict.fromkeys(["cpu", device]):
        saved = torch.load(path, map_location=target)
        restored = CharGPT(Config(**saved["config"])).to(target)
        restored.load_state_dict(saved["model"])
        expected = validate(model, val_text, args, device, batches=1)
        found = validate(restored, val_text, args, target, batches=1)
        print(f"checkpoint loaded on {target}: loss {found:.4f} (saved: {expected:.4f})")
        assert abs(found - expected) < 1e-3, (target, found, expected)
        print(f"--- sampled on {target} ---\n{sample(restored, target, args.sample)}\n---")
    return path


def compare(args, train_text, val_text):
    _, on_cpu, val_cpu = train("cpu", args, train_text, val_text)
    _, on_tpu, val_tpu = train("tpu", args, train_text, val_text)
    worst = max(abs(a - b) for a, b in zip(on_cpu, on_tpu, strict=True))
    print(f"greatest difference of the losses over {args.steps} steps: {worst:.2e}")
    print(f"validation loss {val_cpu:.4f} on cpu, {val_tpu:.4f} on tpu")
    assert worst < COMPARE_TOLERANCE, worst


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=int, default=10, help="steps between progress lines")
    parser.add_argument("--sample", type=int, default=200, help="characters to sample")
    parser.add_argument("--checkpoint", help="where to save (default: a temporary directory)")
    parser.add_argument("--smoke", action="store_true", help="a few steps; asserts only that the loss falls")
    parser.add_argument("--compare", action="store_true", help="train on cpu and tpu and compare the curves")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.report, args.sample = min(args.steps, 12), 4, min(args.sample, 20)
        args.warmup = 4
    return args


def main():
    args = parse_arguments()
    train_text, val_text = load_text()
    print(f"{len(train_text)} characters to train on, {len(val_text)} held out")
    if args.compare:
        compare(args, train_text, val_text)
        return
    model, losses, validation = train(args.device, args, train_text, val_text)
    check_checkpoint(model, args.device, args, val_text)
    if args.smoke:
        assert losses[-1] < losses[0] - 0.3, losses
    else:
        assert validation < TARGET_LOSS, f"validation loss {validation} did not fall below {TARGET_LOSS}"
    print("char_gpt: ok")


if __name__ == "__main__":
    main()
