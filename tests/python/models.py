"""Small models of the kinds that people train, with random weights and data; nothing is downloaded.

Each maker in MODELS returns a module on the CPU and a function that draws a batch (a tuple of CPU tensors) from a
generator; the module maps a batch to its loss.
"""

import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

VOCABULARY = 50


class TokenLoss(nn.Module):
    """Cross-entropy of a model's logits for tokens against other tokens."""

    def __init__(self, model, logits=lambda output: output):
        super().__init__()
        self.model = model
        self.logits = logits

    def forward(self, tokens, targets):
        return F.cross_entropy(self.logits(self.model(tokens)).flatten(0, 1), targets.flatten())


def tokens(generator, batch=2, length=12):
    drawn = torch.randint(VOCABULARY, (batch, length + 1), generator=generator)
    return drawn[:, :-1], drawn[:, 1:]


def gpt():
    import char_gpt

    return TokenLoss(
        char_gpt.CharGPT(char_gpt.Config(layers=2, width=32, heads=2, context=16, vocabulary=VOCABULARY))
    ), tokens


def bert():
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return TokenLoss(BertForMaskedLM(config), lambda output: output.logits), tokens


# Of the decoders below.
DECODER = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=None,
    pad_token_id=0,
)


def llama_config():
    from transformers import LlamaConfig

    return LlamaConfig(intermediate_size=64, **DECODER)


def llama():
    from transformers import LlamaForCausalLM

    return TokenLoss(LlamaForCausalLM(llama_config()), lambda output: output.logits), tokens


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(intermediate_size=48, num_local_experts=4, num_experts_per_tok=2, **DECODER)
    return TokenLoss(MixtralForCausalLM(config), lambda output: output.logits), tokens


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, width=64, classes=10):
        super().__init__()
        blocks, inputs = [], width
        for stage in range(4):
            for number in range(2):
                outputs = width << stage
                blocks.append(Residual(inputs, outputs, 2 if stage and not number else 1))
                inputs = outputs
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images, labels):
        features = self.blocks(self.stem(images))
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(features, 1).flatten(1)), labels)


def resnet18():
    def batch(generator):
        return torch.randn(8, 3, 64, 64, generator=generator), torch.randint(10, (8,), generator=generator)

    return ResNet18(width=8), batch


class UNet(nn.Module):
    """Predicts the noise in an image, with group norm, skips and nearest upsampling."""

    def __init__(self, width=8):
        super().__init__()

        def block(inputs, outputs):
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.GroupNorm(4, outputs),
                nn.SiLU(),
                nn.Conv2d(outputs, outputs, 3, padding=1),
                nn.GroupNorm(4, outputs),
                nn.SiLU(),
            )

        self.down = nn.ModuleList([block(3, width), block(width, 2 * width)])
        self.middle = block(2 * width, 2 * width)
        self.up = nn.ModuleList([block(4 * width, width), block(2 * width, width)])
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, images, noise):
        x, skips = images + noise, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], 1))
        return F.mse_loss(self.last(x), noise)


def unet():
    def batch(generator):
        return torch.randn(2, 3, 16, 16, generator=generator), torch.randn(2, 3, 16, 16, generator=generator)

    return UNet(), batch


class Lstm(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


def lstm():
    return TokenLoss(Lstm()), tokens


MODELS = {f.__name__: f for f in (gpt, bert, llama, mixtral, resnet18, unet, lstm)}
