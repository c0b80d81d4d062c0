"""Recording one small operation, against the whole operation on CPU eager: from Python, and from C++ to C++.

An iteration records 200 operations and then cuts the window without waiting for the device, as a program's reads do:
the time of an operation includes its share of the cut. Between two rounds the device is left to finish.

Host time of a training step of the GPT of gpt.py (its layers at a small width, which is the same work for the host;
forward, loss, backward, gradient clipping, AdamW, no read): the processor time of the thread that calls, while the
device has nothing else to do and nothing is compiled. *Followed*: the loop is known. *Recorded
fresh*: operations and kinds of tensors are known, the step's fragments are new (a layer's once, not for each layer).
*Never seen*: of another width and context, so that each operation is on new kinds of tensors. PyTorch's own work is in
all of them. *One program*: the same step as one function that takes and returns parameters and moments, compiled by
torch.compile. *A graph*: the step captured as a torch.accelerator.Graph and replayed.
"""

import ctypes
import itertools
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import harness

OPERATIONS = 200
LIBRARY = harness.HERE.parent / "build" / "bench" / "librecord_bench.so"


def from_python(operation):
    """A case that runs operation(x, y) 200 times; the time is that of one operation, in microseconds."""

    def build(peer):
        import torch

        device = harness.device_of(peer)
        x, y = torch.ones(4, device=device), torch.full((4,), 0.5, device=device)

        def iteration():
            harness.finish(peer)
            start = time.perf_counter()
            for _ in range(OPERATIONS):
                operation(x, y)
            if peer == "tpu":
                torch.tpu.current_stream().record_event()
            return harness.Timed((time.perf_counter() - start) * 1e6 / OPERATIONS)

        return iteration

    return build


def new_sizes(operation):
    """A case that runs operation(x), of 4 operations, 50 times, each on a size not seen before."""

    def build(peer):
        import torch

        x = torch.ones(1 << 18, device=harness.device_of(peer))
        sizes = itertools.count(20_000)

        def iteration():
            harness.finish(peer)
            start = time.perf_counter()
            for _ in range(50):
                operation(x[: next(sizes)])
            if peer == "tpu":
                torch.tpu.current_stream().record_event()
            return harness.Timed((time.perf_counter() - start) * 1e6 / 200)

        return iteration

    return build


def from_cpp(function):
    def build(peer):
        import torch  # loads the libraries that the bench is linked against, and the device

        if peer == "tpu":
            torch.tpu.init()
        call = getattr(ctypes.CDLL(str(LIBRARY)), function)
        call.restype = ctypes.c_double
        return lambda: harness.Timed(call(int(peer == "tpu"), OPERATIONS) / 1e3)

    return build


def host_time(step):
    start = time.thread_time()
    step()
    return harness.Timed((time.thread_time() - start) * 1e3)


def gpt(peer, number=0):
    """A GPT whose sizes are those of `number` alone, and what draws its tokens."""
    sys.path.insert(0, str(harness.HERE.parent / "examples"))
    import char_gpt
    import torch

    device = harness.device_of(peer)
    config = char_gpt.Config(width=12 * (4 + number), context=8 + number)
    shape = (2, config.context + 1)
    return char_gpt, char_gpt.CharGPT(config).to(device), lambda: torch.randint(config.vocabulary, shape).to(device)


def gpt_step(peer, number=0, **options):
    """A training step of that GPT."""
    import torch

    char_gpt, model, draw = gpt(peer, number)
    optimizer = char_gpt.make_optimizer(model, 1e-3, 0.1, **options)

    def step(tokens=None):
        tokens = draw() if tokens is None else tokens
        loss = char_gpt.loss_of(model, tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def gpt_program(peer):
    """The same training step as one compiled function."""
    import torch

    char_gpt, model, draw = gpt(peer)

    def loss_of(parameters, tokens):
        def run(inputs):
            return torch.func.functional_call(model, parameters, (inputs,))

        return char_gpt.loss_of(run, tokens[:, :-1], tokens[:, 1:])

    @torch.compile
    def program(parameters, means, squares, count, tokens):
        gradients, loss = torch.func.grad_and_value(loss_of)(parameters, tokens)
        norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
        scale = (1 / (norm + 1e-6)).clamp(max=1)
        count = count + 1
        for name, p in parameters.items():
            gradient = gradients[name] * scale
            means[name] = torch.lerp(means[name], gradient, 0.1)
            squares[name] = torch.lerp(squares[name], gradient.square(), 0.02)
            step = means[name] / (1 - 0.9**count) / ((squares[name] / (1 - 0.98**count)).sqrt() + 1e-8)
            decayed = p * (1 - 1e-4) if p.dim() >= 2 else p
            parameters[name] = decayed - 1e-3 * step
        return parameters, means, squares, count, loss

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    means, squares = ({name: torch.zeros_like(p) for name, p in parameters.items()} for _ in range(2))
    state = [parameters, means, squares, torch.zeros((), device=harness.device_of(peer))]

    def step():
        *state[:], _ = program(*state, draw())

    return step


def gpt_graph(peer):
    """The same training step as a graph that is replayed."""
    import torch

    draw = gpt(peer)[2]
    step, tokens = gpt_step(peer, capturable=True), draw()
    for _ in range(3):
        step(tokens)
    graph = torch.accelerator.Graph()
    with graph:
        step(tokens)

    def replay():
        tokens.copy_(draw())
        graph.replay()

    return replay


def settle(peer):
    """Everything that was asked for is done, compiling too."""
    if peer in harness.OURS:
        import torch

        torch.tpu.synchronize()
        torch.tpu.wait_for_compiles()


def known_step(peer, make=gpt_step):
    import torch

    step = make(peer)
    sizes = itertools.count(1)

    def iteration():
        settle(peer)
        if peer == "forgetful":  # a new fragment has those that nobody holds given up
            torch.ones(next(sizes), device="tpu").neg_()
            settle(peer)
        return host_time(step)

    return iteration


def program_step(peer):
    return known_step(peer, gpt_program if peer == "tpu" else gpt_step)


def graph_step(peer):
    return known_step(peer, gpt_graph if peer == "tpu" else gpt_step)


def new_step(peer):
    numbers = itertools.count(1)

    def iteration():
        step = gpt_step(peer, next(numbers))
        settle(peer)
        return host_time(step)

    return iteration


NEW_SIZES = "an operation at ever new sizes, Python"
CASES = {
    "x + y of 4 elements, Python": from_python(lambda x, y: x + y),
    "x.add_(y) of 4 elements, Python": from_python(lambda x, y: x.add_(y)),
    "x.view(2, 2), Python": from_python(lambda x, y: x.view(2, 2)),
    NEW_SIZES: new_sizes(lambda x: ((x * 2) + x).tanh().sum()),
    "at::add of 4 elements, C++": from_cpp("record_add"),
    "Tensor::add_ of 4 elements, C++": from_cpp("record_add_in_place"),
}
SMALL = tuple(CASES)
CASES |= {"known step": known_step, "program step": program_step, "graph step": graph_step, "new step": new_step}


def steps():
    peers = ("tpu", "forgetful", "eager")
    known = harness.interleave("recording", "known step", peers, rounds=31, iterations=3, warm_up=15)
    program = harness.interleave("recording", "program step", ("tpu", "forgetful"), 31, iterations=3, warm_up=15)
    graph = harness.interleave("recording", "graph step", ("tpu", "forgetful"), 31, iterations=3, warm_up=15)
    new = harness.interleave("recording", "new step", ("tpu",), rounds=9, iterations=1, warm_up=2)
    name, followed = "GPT step followed, host time", known["tpu"]
    yield harness.Row(name, followed, "recorded fresh", known["forgetful"], 0.2)
    yield harness.Row("GPT step as one program, host time", program["tpu"], "recorded fresh", program["forgetful"], 0.2)
    yield harness.Row("GPT step as a graph, host time", graph["tpu"], "recorded fresh", graph["forgetful"], 0.2)
    yield harness.Row(name, followed, "never seen", new["tpu"], 0.2)
    yield harness.Row(name, followed, "eager, kernels included", known["eager"])


def measure():
    for name in SMALL:
        times = harness.interleave("recording", name, ("tpu", "eager"), rounds=15, iterations=20, warm_up=50)
        bound = None if name == NEW_SIZES else 0.5 if "C++" in name else 0.8
        yield harness.Row(name, times["tpu"], "eager", times["eager"], bound, unit="us")
    yield from steps()


if __name__ == "__main__":
    harness.main(measure)
