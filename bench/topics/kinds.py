"""Kinds of models as transformers and torch.nn write them, at sizes that take milliseconds: inference of one input, and
a training step of eight (forward, backward, AdamW, a read), against eager. Random weights and data.

`untuned` is tier 1: what a program has after its first compiles. What one kind of layer costs too much stands out here.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

VOCABULARY, LENGTH, IMAGE = 1000, 64, 64
TEXT = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": VOCABULARY,
}
# transformers' names, and their configurations: torchvision's and timm's layouts of the first six.
IMAGE_MODELS = {
    "ResNet-18": ("ResNet", {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"}),
    "ResNet-50": ("ResNet", {}),
    "ConvNeXt": ("ConvNext", {"hidden_sizes": [40, 80, 160, 320], "depths": [2, 2, 6, 2]}),
    "EfficientNet-B0": ("EfficientNet", {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}),
    "MobileNetV2": ("MobileNetV2", {}),
    "RegNet": ("RegNet", {"hidden_sizes": [32, 64, 160, 384], "depths": [1, 3, 6, 6], "groups_width": 16}),
    "ViT": (
        "ViT",
        {
            "image_size": IMAGE,
            "patch_size": 8,
            "hidden_size": 192,
            "intermediate_size": 768,
            "num_attention_heads": 3,
            "num_hidden_layers": 6,
        },
    ),
}
TEXT_MODELS = {
    "BERT": ("Bert", TEXT),
    "Llama": ("Llama", TEXT | {"num_key_value_heads": 2}),
    "GPT-2": ("GPT2", {"n_embd": 128, "n_layer": 4, "n_head": 4, "vocab_size": VOCABULARY}),
    "Mixtral": ("Mixtral", TEXT | {"num_key_value_heads": 2, "num_local_experts": 4}),
    "Mamba": ("Mamba", {"hidden_size": 128, "num_hidden_layers": 2, "vocab_size": VOCABULARY}),
}


def of_transformers(name):
    import transformers

    kind, options = (IMAGE_MODELS | TEXT_MODELS)[name]
    return getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**options))


def dcgan(_):
    """The generator of Radford et al., 2015, for images of 32 x 32."""
    from torch import nn

    layers = [nn.ConvTranspose2d(64, 128, 4)]
    for channels in (64, 32):
        layers += [nn.BatchNorm2d(2 * channels), nn.ReLU(), nn.ConvTranspose2d(2 * channels, channels, 4, 2, 1)]
    return nn.Sequential(*layers, nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh())


def encoder(_):
    from torch import nn

    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return nn.Sequential(nn.Embedding(VOCABULARY, 128), nn.TransformerEncoder(layer, 4))


def lstm(_):
    from torch import nn

    return nn.Sequential(nn.Embedding(VOCABULARY, 128), nn.LSTM(128, 128, batch_first=True))


def mlp(_):
    from torch import nn

    layers = [nn.Linear(64, 256)]
    for _ in range(3):
        layers += [nn.ReLU(), nn.Linear(256, 256)]
    return nn.Sequential(*layers)


def images(torch, batch):
    return torch.randn(batch, 3, IMAGE, IMAGE)


def text(torch, batch):
    return torch.randint(VOCABULARY, (batch, LENGTH))


MODELS = {
    **{name: (of_transformers, images) for name in IMAGE_MODELS},
    "DCGAN": (dcgan, lambda torch, batch: torch.randn(batch, 64, 1, 1)),
    **{name: (of_transformers, text) for name in TEXT_MODELS},
    "nn.TransformerEncoder": (encoder, text),
    "LSTM": (lstm, text),
    "MLP": (mlp, lambda torch, batch: torch.randn(8 * batch, 64)),
}


def set_up(name, batch, peer):
    """The model on the device, and what runs it on its input: returns the first tensor of what the model returns."""
    import torch

    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, x = make(name).to(harness.device_of(peer)), inputs(torch, batch).to(harness.device_of(peer))

    def output():
        found = model(x)
        while not isinstance(found, torch.Tensor):
            found = found[0]
        return found

    return model, output


def inference(name):
    def build(peer):
        import torch

        model, output = set_up(name, 1, peer)
        model.eval()

        @torch.no_grad()
        def step():
            return output().mean().item()

        return step

    return build


def training(name):
    def build(peer):
        import torch

        model, output = set_up(name, 8, peer)
        optimizer = torch.optim.AdamW(model.train().parameters(), 1e-4)

        def step():
            loss = output().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    return build


WAYS = {"inference of one": inference, "training step of eight": training}
CASES = {f"{name}, {way}": build(name) for name in MODELS for way, build in WAYS.items()}


def measure():
    for case in CASES:
        times = harness.interleave("kinds", case, ("tpu", "untuned", "eager"), warm_up=100, tuned_after=300)
        yield from harness.rows_against(case, times, {"eager": 1.0, "untuned": None})


if __name__ == "__main__":
    harness.main(measure)
