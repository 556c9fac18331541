"""A trainer of nanotron's kind: hand-written tensor parallelism with reduce-scatters, gradients added up, ZeRO-1.

torchrun --nproc-per-node 4 nanotron_like.py --tp 2
coppice train capture nanotron_like.py --ranks 4 -- --tp 2
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Groups:
    """Process groups: ranks of tensor parallelism beside each other, then replicas."""

    def __init__(self, tp: int) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        for first in range(0, world, tp):
            group = dist.new_group(list(range(first, first + tp)))
            if first <= rank < first + tp:
                self.tp = group
        for first in range(tp):
            group = dist.new_group(list(range(first, world, tp)))
            if rank % tp == first:
                self.dp = group
        self.tp_size, self.dp_size = tp, world // tp


class GatherSequence(torch.autograd.Function):
    """Gather tokens; scatter the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        """Gather."""
        ctx.group = group
        out = torch.empty(
            (x.shape[0] * dist.get_world_size(group), *x.shape[1:]), dtype=x.dtype, device=x.device
        )
        dist.all_gather_into_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Scatter sums."""
        size = dist.get_world_size(ctx.group)
        out = torch.empty((grad.shape[0] // size, *grad.shape[1:]), dtype=grad.dtype, device=grad.device)
        dist.reduce_scatter_tensor(out, grad.contiguous(), group=ctx.group)
        return out, None


class ScatterSequence(torch.autograd.Function):
    """Scatter the sum of tokens; gather their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        """Scatter sums."""
        ctx.group = group
        size = dist.get_world_size(group)
        out = torch.empty((x.shape[0] // size, *x.shape[1:]), dtype=x.dtype, device=x.device)
        dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Gather."""
        size = dist.get_world_size(ctx.group)
        out = torch.empty((grad.shape[0] * size, *grad.shape[1:]), dtype=grad.dtype, device=grad.device)
        dist.all_gather_into_tensor(out, grad.contiguous(), group=ctx.group)
        return out, None


class DecoderLayer(nn.Module):
    """A layer whose tokens are sharded outside of its matrices; the shape is tokens, samples, width."""

    def __init__(self, hidden: int, heads: int, ffn: int, groups: Groups) -> None:
        super().__init__()
        self.groups, self.head_dim = groups, hidden // heads
        tp = groups.tp_size
        self.input_layernorm = nn.RMSNorm(hidden)
        self.qkv_proj = nn.Linear(hidden, 3 * hidden // tp, bias=False)
        self.o_proj = nn.Linear(hidden // tp, hidden, bias=False)
        self.post_attention_layernorm = nn.RMSNorm(hidden)
        self.gate_up_proj = nn.Linear(hidden, 2 * ffn // tp, bias=False)
        self.down_proj = nn.Linear(ffn // tp, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        whole = GatherSequence.apply(self.input_layernorm(x), self.groups.tp)
        seq, batch, _ = whole.shape
        q, k, v = (
            each.view(seq, batch, -1, self.head_dim).permute(1, 2, 0, 3)
            for each in self.qkv_proj(whole).chunk(3, -1)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + ScatterSequence.apply(
            self.o_proj(out.permute(2, 0, 1, 3).reshape(seq, batch, -1)), self.groups.tp
        )
        whole = GatherSequence.apply(self.post_attention_layernorm(x), self.groups.tp)
        gate, up = self.gate_up_proj(whole).chunk(2, -1)
        return x + ScatterSequence.apply(self.down_proj(F.silu(gate) * up), self.groups.tp)


class LlamaModel(nn.Module):
    """The model; words are not sharded."""

    def __init__(self, vocab: int, hidden: int, heads: int, ffn: int, layers: int, groups: Groups) -> None:
        super().__init__()
        self.groups = groups
        self.token_embedding = nn.Embedding(vocab, hidden)
        self.decoder = nn.ModuleList(DecoderLayer(hidden, heads, ffn, groups) for _ in range(layers))
        self.final_layer_norm = nn.RMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next words."""
        x = self.token_embedding(tokens).transpose(0, 1)
        size, rank = self.groups.tp_size, dist.get_rank(self.groups.tp)
        x = x.chunk(size, dim=0)[rank]
        for layer in self.decoder:
            x = layer(x)
        x = GatherSequence.apply(self.final_layer_norm(x), self.groups.tp)
        return self.lm_head(x.transpose(0, 1))


class ZeroOptimizer:
    """ZeRO-1: gradients are scattered, a replica updates its shard in 32 bits, weights are gathered."""

    def __init__(self, parameters: list[nn.Parameter], groups: Groups) -> None:
        self.parameters, self.group, self.size = parameters, groups.dp, groups.dp_size
        count = sum(each.numel() for each in parameters)
        self.padded = -(-count // self.size) * self.size
        self.count, dtype, device = count, parameters[0].dtype, parameters[0].device
        self.gradients = torch.zeros(self.padded, dtype=torch.float32, device=device)
        self.flat = torch.zeros(self.padded, dtype=dtype, device=device)
        self.shard = nn.Parameter(torch.zeros(self.padded // self.size, dtype=torch.float32, device=device))
        self.inner = torch.optim.AdamW([self.shard], lr=3e-4)

    def add(self) -> None:
        """Add the gradients of a micro-batch."""
        at = 0
        for each in self.parameters:
            self.gradients[at : at + each.numel()].add_(each.grad.flatten())
            each.grad = None
            at += each.numel()

    def step(self) -> None:
        """Update."""
        mine = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mine, self.gradients, group=self.group)
        self.shard.grad = mine
        self.inner.step()
        self.gradients.zero_()
        dist.all_gather_into_tensor(self.flat, self.shard.detach().to(self.flat.dtype), group=self.group)
        at = 0
        for each in self.parameters:
            each.data.copy_(self.flat[at : at + each.numel()].view_as(each))
            at += each.numel()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--micro-batches", type=int, default=2)
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group(backend="nccl" if on_gpu else "gloo")
    if on_gpu:
        torch.cuda.set_device(device)
    groups = Groups(args.tp)
    torch.manual_seed(1)
    model = LlamaModel(vocab=512, hidden=64, heads=4, ffn=192, layers=3, groups=groups).to(
        device, torch.bfloat16
    )
    optimizer = ZeroOptimizer(list(model.parameters()), groups)
    for step in range(args.steps):
        for _ in range(args.micro_batches):
            tokens = torch.randint(0, 512, (2, 65), device=device)
            scores = model(tokens[:, :-1]).float()
            loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()) / args.micro_batches
            loss.backward()
            optimizer.add()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: {loss.item() * args.micro_batches:.4f}")  # noqa: T201
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
