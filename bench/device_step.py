"""Training steps of a GPT on a GPU: by torch_tpu through a PJRT plugin, or by PyTorch built for CUDA.

    python bench/device_step.py cuda [bf16] [compile]                          a PyTorch with CUDA
    TORCH_TPU_PLUGIN=cuda python bench/device_step.py tpu [bf16] [compile]     here

Prints the first steps, each until the device is done, the median of the last quarter of those of 25 seconds, and ten
steps that nobody waits for.
"""

import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
import char_gpt

SECONDS = 25
BATCH, CONTEXT, VOCABULARY = 16, 512, 32768


def main(device, bf16, compiled):
    torch.manual_seed(0)
    config = char_gpt.Config(layers=12, width=768, heads=12, context=CONTEXT, vocabulary=VOCABULARY)
    model = char_gpt.CharGPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1)).to(device)
    forward = torch.compile(model, **({"backend": "tpu"} if device == "tpu" else {})) if compiled else model
    synchronize = getattr(torch, device).synchronize

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            logits = forward(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    synchronize()
    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        loss = step()
        synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    print("first steps, ms:", *(f"{t:.0f}" for t in times[:8]))
    last = statistics.median(times[-(len(times) // 4) :])
    print(f"{len(times)} steps, loss {loss.item():.4f}; of the last quarter {last:.1f} ms")
    start = time.perf_counter()
    for _ in range(10):
        step()
    host = time.perf_counter() - start
    synchronize()
    print(f"ten steps, ms each: {1e2 * (time.perf_counter() - start):.1f}, of the host {1e2 * host:.1f}")
    if device == "tpu":
        counted = torch.tpu.metrics()
        print({name: counted[name] for name in ("launches_tier0", "launches_tier1", "compiles", "compile_wait_ms")})


if __name__ == "__main__":
    main(sys.argv[1], "bf16" in sys.argv, "compile" in sys.argv)
