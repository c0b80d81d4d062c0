"""A training step of ResNet-18 (64 x 64, batch 16), BERT-small, a UNet with group norm and an LSTM of two layers of 128
(32 x 64 tokens), fp32 and bf16 autocast.

Step: forward with loss, backward, AdamW, a read every step, ten at a time once tier 2 is through; the models are those
of tests/python/models.py at sizes that people train, random weights and data. `untuned` is tier 1. Inductor compiles
forward with loss (and so backward); its optimizer is eager, as most programs have it.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

TESTS = harness.HERE.parent / "tests" / "python"


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


def measure():
    for make, (promised, tuned_after) in MODELS.items():
        for kind in ("fp32", "bf16"):
            case = f"{make.__name__} {kind}"
            peers = ("tpu", "untuned", "eager", "inductor")
            times = harness.interleave("training", case, peers, 7, iterations=10, warm_up=50, tuned_after=tuned_after)
            bounds = {"eager": promised, "inductor": 0.85, "untuned": 0.95}
            yield from harness.rows_against(f"{case}, training step", times, bounds)


if __name__ == "__main__":
    harness.main(measure)
