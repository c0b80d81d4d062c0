"""A training step of ResNet-18 (64 x 64, batch 16), BERT-small, a UNet with group norm and an LSTM of two layers of 128
(32 x 64 tokens), fp32 and bf16 autocast; twenty sequence lengths in turn against one; twenty pairs of batch and length
against eager.

Step: forward with loss, backward, AdamW, a read every step, ten at a time once tier 2 is through; the models are those
of tests/python/models.py at sizes that people train, random weights and data. `untuned` is tier 1. Inductor compiles
forward with loss (and so backward); its optimizer is eager, as most programs have it.

Lengths: a small GPT in a process of its own. One length until its fragments are compiled, and then as many timed steps
as there are lengths; every length once (the first pass: none was seen before); nine passes more (the first ten: a
training that meets its lengths as it goes, nothing is waited for); and once all are compiled, passes in turn with as
many steps of one length, which all are compared with. Medians, and those of three processes. Pairs: the same, each
drawn once, and compared with eager.
"""

import json
import pathlib
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

TESTS = harness.HERE.parent / "tests" / "python"
DRAWN = random.Random(0)
# (batch, length) of each step.
SIZES = {
    "lengths": [(8, length) for length in range(23, 143, 6)],
    "pairs": [(DRAWN.randint(3, 16), DRAWN.randint(23, 142)) for _ in range(20)],
}
PASSES = 10


def resnet18(models, torch):
    def batch(generator):
        return torch.randn(16, 3, 64, 64, generator=generator), torch.randint(10, (16,), generator=generator)

    return models.ResNet18(), batch


def bert(models, torch):
    """BERT-small's four layers of 512 with a vocabulary of 8192, 4 x 128 tokens, the configuration's dropout."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=8192, hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048
    )

    def batch(generator):
        drawn = torch.randint(8192, (4, 129), generator=generator)
        return drawn[:, :-1], drawn[:, 1:]

    return models.TokenLoss(BertForMaskedLM(config), lambda output: output.logits), batch


def unet(models, torch):
    def batch(generator):
        return torch.randn(8, 3, 64, 64, generator=generator), torch.randn(8, 3, 64, 64, generator=generator)

    return models.UNet(width=32), batch


def lstm(models, torch):
    def batch(generator):
        return models.tokens(generator, 32, 64)

    return models.TokenLoss(models.Lstm(width=128)), batch


# Model -> the greatest ratio to CPU eager that was promised (to Inductor it is 0.85 for all), and after how many steps
# tier 2 is through: the shorter the step, the more of them its budget takes.
MODELS = {resnet18: (0.95, 500), bert: (0.8, 250), unet: (0.8, 1000), lstm: (None, 1000)}


def training(make, bf16):
    """The case: a step of the model that `make` makes, under autocast where `bf16`."""

    def build(peer):
        sys.path.insert(0, str(TESTS))
        import models
        import torch

        device = harness.device_of(peer)
        torch.manual_seed(0)
        model, batch = make(models, torch)
        model.to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        loss_of = harness.compiled(peer, model)
        generator = torch.Generator().manual_seed(0)

        def step():
            inputs = [t.to(device) for t in batch(generator)]
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                loss = loss_of(*inputs)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    return build


CASES = {f"{make.__name__} {kind}": training(make, kind == "bf16") for make in MODELS for kind in ("fp32", "bf16")}


def changing(peer, steps):
    """Seconds of as many steps of one length, of the first pass over `steps`, and of one when all are warm."""
    sys.path.insert(0, str(TESTS))
    sys.path.insert(0, str(harness.HERE.parent / "examples"))
    import char_gpt
    import models
    import torch

    torch.set_num_threads(harness.THREADS)
    device = harness.device_of(peer)
    torch.manual_seed(0)
    config = char_gpt.Config(
        layers=4, width=192, heads=3, context=max(length for _, length in steps), vocabulary=models.VOCABULARY
    )
    model = models.TokenLoss(char_gpt.CharGPT(config)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def run(sizes):
        start = time.perf_counter()
        for batch, length in sizes:
            tokens = torch.randint(models.VOCABULARY, (batch, length + 1)).to(device)
            loss = model(tokens[:, :-1], tokens[:, 1:])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            loss.item()
        return time.perf_counter() - start

    def compiles():
        return torch.tpu.metrics()["compiles"] if peer == "tpu" else 0

    def settle():
        if peer == "tpu":
            torch.tpu.wait_for_compiles()

    one = [(8, int(statistics.mean(length for _, length in steps)))] * len(steps)
    for _ in range(3):
        run(one)
        settle()
    alone, before = [run(one)], compiles()
    passes = [run(steps) for _ in range(PASSES)]
    for _ in range(3):
        run(steps)
        settle()
    warm = []
    for _ in range(5):
        warm.append(run(steps))
        alone.append(run(one))
    median = statistics.median
    return {
        "one length": median(alone),
        "first pass": passes[0],
        f"first {PASSES} passes": sum(passes) / PASSES,
        "once warm": median(warm),
        "compiles": compiles() - before,
    }


def twenty(kind, rounds):
    """Medians of `changing`, by peer."""
    found = {"tpu": [], "eager": []}
    for _ in range(rounds):
        for peer, seen in found.items():
            with harness.scratch_directory() as cache:
                command = [sys.executable, __file__, f"--{kind}", peer]
                child = subprocess.run(
                    command, stdout=subprocess.PIPE, text=True, env=harness.environment(peer, cache), check=True
                )
            seen.append(json.loads(child.stdout.splitlines()[-1]))
    return [{case: statistics.median(s[case] for s in seen) for case in seen[0]} for seen in found.values()]


CHANGING = ("first pass", f"first {PASSES} passes", "once warm")


def twenty_lengths(rounds):
    ours, theirs = twenty("lengths", rounds)
    rows = []
    for case in CHANGING:
        note = f"{ours['compiles']} compiles; eager {theirs[case]:.3g} s to {theirs['one length']:.3g} s"
        rows.append(
            harness.Row(f"twenty lengths, {case}", ours[case], "one length", ours["one length"], 1.2, "s", note)
        )
    return rows


def twenty_pairs(rounds):
    ours, theirs = twenty("pairs", rounds)
    note = f"{ours['compiles']} compiles"
    return [
        harness.Row(f"twenty batches and lengths, {case}", ours[case], "eager", theirs[case], None, "s", note)
        for case in CHANGING
    ]


def measure():
    rows = []
    for make, (promised, tuned_after) in MODELS.items():
        for kind in ("fp32", "bf16"):
            case = f"{make.__name__} {kind}"
            peers = ("tpu", "untuned", "eager", "inductor")
            times = harness.interleave("training", case, peers, 7, iterations=10, warm_up=50, tuned_after=tuned_after)
            bounds = {"eager": promised, "inductor": 0.85, "untuned": 0.95}
            rows += harness.rows_against(f"{case}, training step", times, bounds)
    return rows + twenty_lengths(rounds=3) + twenty_pairs(rounds=3)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].removeprefix("--") in SIZES:
        print(json.dumps(changing(sys.argv[2], SIZES[sys.argv[1].removeprefix("--")])))
    else:
        harness.main(measure)
