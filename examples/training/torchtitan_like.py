"""A trainer of torchtitan's kind: DTensor tensor parallelism with sequence shards, checkpointed blocks, FSDP2.

torchrun --nproc-per-node 4 torchtitan_like.py --tp 2
coppice train capture torchtitan_like.py --ranks 4 -- --tp 2
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from llama import ModelArgs, Transformer
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, Dataset


class RandomTokens(Dataset):
    """Samples of random words."""

    def __init__(self, vocab: int, seq: int) -> None:
        self.vocab, self.seq = vocab, seq

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, self.vocab, (self.seq + 1,), generator=generator)


def apply_tp(model: Transformer, mesh: DeviceMesh) -> None:
    """Shard matrices over heads and columns, and norms along the sequence."""
    parallelize_module(
        model,
        mesh,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in model.layers.values():
        parallelize_module(
            layer,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                "attention.wq": ColwiseParallel(),
                "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(
                    input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                ),
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
                "feed_forward.w3": ColwiseParallel(),
            },
        )


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--checkpoint", action="store_true", help="compute the activations of layers again")
    args = parser.parse_args()

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    shards = dist.get_world_size() // args.tp
    mesh = init_device_mesh(kind, (shards, args.tp), mesh_dim_names=("dp_shard", "tp"))

    torch.manual_seed(0)
    numbers = ModelArgs(dim=args.dim, n_layers=args.layers, ffn_dim=args.dim * 11 // 4, max_seq_len=args.seq)
    with torch.device("meta"):
        model = Transformer(numbers)
    if args.tp > 1:
        apply_tp(model, mesh["tp"])
    if args.checkpoint:
        for name, layer in model.layers.items():
            model.layers[name] = checkpoint_wrapper(layer, preserve_rng_state=False)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh["dp_shard"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp_shard"], mp_policy=policy)
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_weights(device)
    model.train()

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    loader = DataLoader(RandomTokens(numbers.vocab_size, args.seq), batch_size=args.batch, num_workers=0)
    started = time.perf_counter()
    for step, batch in zip(range(args.steps), loader, strict=False):
        tokens = batch.to(device, non_blocking=True)
        optimizer.zero_grad()
        scores = model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        scheduler.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=mesh["dp_shard"].get_group())
        if dist.get_rank() == 0:
            seconds = time.perf_counter() - started
            print(f"step {step}: loss {mean.item() / shards:.4f}, norm {float(norm):.3f}, {seconds:.1f} s")  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
