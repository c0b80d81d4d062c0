"""Models train and decode on tpu, eager and compiled, as on the CPU, and every operator they reach is lowered."""

import copy

import pytest
import torch
from helpers import assert_same
from models import MODELS, llama_config

STEPS = 5
# Lowered too; the CPU's kernels are faster.
LIBRARY_CALLS = {
    "aten::convolution",
    "aten::convolution_backward",
    "aten::_grouped_mm",
    "aten::sort",
    "aten::topk",
}


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def train(model, batch, device, wrap=lambda step: step, by_graph=False):
    """The losses of five steps; the same batches on every device. `by_graph`: the last four are replays."""
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = wrap(model)
    generator = torch.Generator().manual_seed(5)

    def step(*given):
        loss = loss_of(*given)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = [t.to(device) for t in batch(generator)]
    losses = [step(*inputs)]
    if by_graph:
        graph = torch.accelerator.Graph()
        with graph:
            loss = step(*inputs)
    for _ in range(STEPS - 1):
        if by_graph:
            for mine, t in zip(inputs, batch(generator), strict=True):
                mine.copy_(t)
            graph.replay()
            losses.append(loss.clone())
        else:
            losses.append(step(*[t.to(device) for t in batch(generator)]))
    return losses


@pytest.fixture(scope="module")
def on_the_cpu():
    """By model: the module before training, its batches, losses on the CPU and the state after."""
    found = {}

    def of(name):
        if name not in found:
            torch.manual_seed(0)
            model, batch = MODELS[name]()
            reference = copy.deepcopy(model)
            found[name] = model, batch, train(reference, batch, "cpu"), reference.state_dict()
        return found[name]

    return of


@pytest.mark.parametrize("kind", ["eager", "compiled", "graph"])
@pytest.mark.parametrize("name", MODELS)
def test_five_training_steps(name, kind, on_the_cpu, metrics):
    model, batch, losses, state = on_the_cpu(name)
    model = copy.deepcopy(model)
    wrap = (lambda step: torch.compile(step, backend="tpu")) if kind == "compiled" else lambda step: step
    assert_same(losses, train(model, batch, "tpu", wrap, by_graph=kind == "graph"))
    torch.tpu.wait_for_compiles()
    for key, value in model.state_dict().items():
        assert_same(state[key], value)
    found = metrics()
    assert set(torch.tpu.explain().host_kernels) <= LIBRARY_CALLS
    assert (found["graph_calls"] > 0) == (kind == "compiled")
    assert torch.tpu.explain().uncaptured_graphs == {}


@pytest.mark.parametrize("kind", ["eager", "compiled", "static"])
def test_greedy_decoding_with_a_cache(kind, metrics):
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(llama_config()).eval()
    prompt = torch.randint(50, (1, 5))
    options = dict(do_sample=False, max_new_tokens=16)
    if kind == "static":  # which transformers compiles by itself on a tpu
        options["cache_implementation"] = "static"
    expected = model.generate(prompt, **options)
    there = copy.deepcopy(model).to("tpu")
    if kind == "compiled":
        there.forward = torch.compile(there.forward, backend="tpu")
    assert there.generate(prompt.to("tpu"), **options).tolist() == expected.tolist()
    assert (metrics()["graph_calls"] > 0) == (kind != "eager")
    assert torch.tpu.explain().uncaptured_graphs == {}


def test_a_captured_training_step_with_checkpoints():
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(llama_config()).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    batches = torch.randint(50, (4, 2, 9))

    def losses(model, device):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        tokens = torch.empty_like(batches[0], device=device)

        def train():
            optimizer.zero_grad()
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            optimizer.step()
            return loss.detach()

        graph = None
        for batch in batches:
            tokens.copy_(batch)
            if graph is None:
                loss = train()
            else:
                graph.replay()
            yield loss.item()
            if graph is None and device == "tpu":
                graph = torch.accelerator.Graph()
                with graph:
                    loss = train()

    expected = list(losses(copy.deepcopy(model), "cpu"))
    torch.testing.assert_close(list(losses(model.to("tpu"), "tpu")), expected)


def test_an_encoder_in_evaluation_with_padding():
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(3, 6, 16), torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True
    with torch.inference_mode():
        expected = model(x, src_key_padding_mask=padding)
        found = model.to("tpu")(x.to("tpu"), src_key_padding_mask=padding.to("tpu"))
    torch.testing.assert_close(found.cpu()[~padding], expected[~padding])
