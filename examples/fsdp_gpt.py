"""Trains the character GPT of char_gpt.py sharded over several ranks: an ordinary FSDP2 program.

    torchrun --nproc-per-node 2 examples/fsdp_gpt.py --checkpoint DIR             trains, compares, saves
    torchrun --nproc-per-node 4 examples/fsdp_gpt.py --checkpoint DIR --resume    loads it at another world size
    ... --smoke                                                                   a few steps, a smaller model

Parameters, gradients and optimizer state are sharded by fully_shard, layer by layer. The program asserts its own
result: the loss curve is that of one rank, a resumed model's validation loss that of the saved one.
"""

import argparse
import time

import char_gpt
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

# Greatest difference of the losses, sharded and of one rank. Gradients are summed in another order, which is a matter
# of rounding as long as training is stable: hence the warm-up of the learning rate.
TOLERANCE = 5e-4


def make_model(args, device):
    torch.manual_seed(args.seed)
    config = char_gpt.Config(context=args.context, layers=args.layers, width=args.width, heads=args.heads)
    return char_gpt.CharGPT(config).to(device)


def shard(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def train(model, optimizer, args, text, device, rank, world):
    """The losses, one a step: of the whole batch, of which this rank takes its share."""
    generator = torch.Generator().manual_seed(args.seed)
    losses = []
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = char_gpt.learning_rate(step, args)
        tokens, targets = char_gpt.draw_batch(text, args.batch, args.context, generator)
        mine = slice(rank * args.batch // world, (rank + 1) * args.batch // world)
        loss = char_gpt.loss_of(model, tokens[mine].to(device), targets[mine].to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    if world > 1:
        dist.all_reduce(losses, dist.ReduceOp.AVG)
    return losses.tolist()


def state_of(model, optimizer):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="directory to save to, or to resume from")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    for name, default in (("steps", 40), ("batch", 12), ("context", 128), ("layers", 6), ("width", 384), ("heads", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.context, args.layers, args.width, args.warmup = 6, 64, 2, 96, 4
    return args


def main():
    args = parse_arguments()
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("tpu", torch.accelerator.current_device_index())
    assert args.batch % world == 0, f"a batch of {args.batch} can't be divided among {world} ranks"
    train_text, val_text = char_gpt.load_text()

    model = shard(make_model(args, device))
    optimizer = char_gpt.make_optimizer(model, args.lr, 0.1)
    if args.resume:
        saved = {**state_of(model, optimizer), "validation": torch.zeros(())}
        dcp.load(saved, checkpoint_id=args.checkpoint)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        found, expected = char_gpt.validate(model, val_text, args, device, batches=2), saved["validation"].item()
        print(f"rank {rank} of {world}: validation loss {found:.4f} (saved: {expected:.4f})", flush=True)
        assert abs(found - expected) < 1e-3
    else:
        start = time.perf_counter()
        losses = train(model, optimizer, args, train_text, device, rank, world)
        seconds = time.perf_counter() - start
        if rank == 0:
            print(f"{world} ranks: loss {losses[0]:.4f} -> {losses[-1]:.4f} in {seconds:.1f} s", flush=True)
            alone = make_model(args, device)
            expected = train(alone, char_gpt.make_optimizer(alone, args.lr, 0.1), args, train_text, device, 0, 1)
            worst = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
            print(f"greatest difference to the losses of one rank over {args.steps} steps: {worst:.1e}", flush=True)
            assert worst < TOLERANCE
            assert losses[-1] < losses[0]
        validation = char_gpt.validate(model, val_text, args, device, batches=2)
        if args.checkpoint:
            dcp.save(
                {**state_of(model, optimizer), "validation": torch.tensor(validation)}, checkpoint_id=args.checkpoint
            )
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("fsdp_gpt: ok")


if __name__ == "__main__":
    main()
