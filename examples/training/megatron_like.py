"""A trainer of Megatron's kind: tensor and pipeline parallelism with an own 1F1B, words sharded, gradients in a buffer.

torchrun --nproc-per-node 4 megatron_like.py --tp 2 --pp 2
coppice train capture megatron_like.py --ranks 4 -- --tp 2 --pp 2
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn


class State:
    """Process groups: tensor parallelism innermost, then replicas, then stages."""

    def __init__(self, tp: int, pp: int) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        dp = world // tp // pp
        self.sizes = {"tp": tp, "dp": dp, "pp": pp}
        groups = {
            "tp": [[tp * each + at for at in range(tp)] for each in range(dp * pp)],
            "dp": [
                [stage * tp * dp + at * tp + lane for at in range(dp)]
                for stage in range(pp)
                for lane in range(tp)
            ],
            "pp": [[stage * tp * dp + at for stage in range(pp)] for at in range(tp * dp)],
        }
        self.groups: dict[str, Any] = {}
        self.ranks: dict[str, list[int]] = {}
        for name, every in groups.items():
            for ranks in every:
                group = dist.new_group(ranks)
                if rank in ranks:
                    self.groups[name], self.ranks[name] = group, ranks
        self.stage = self.ranks["pp"].index(rank)
        self.first, self.last = self.stage == 0, self.stage == pp - 1
        self.before = None if self.first else self.ranks["pp"][self.stage - 1]
        self.behind = None if self.last else self.ranks["pp"][self.stage + 1]


class CopyToModel(torch.autograd.Function):
    """The same forward, an all-reduce of gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        """Do nothing."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """All-reduce."""
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class ReduceFromModel(torch.autograd.Function):
    """An all-reduce forward, the same backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        """All-reduce."""
        del ctx
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Do nothing."""
        del ctx
        return grad, None


class ColumnParallelLinear(nn.Module):
    """A matrix whose columns are sharded."""

    def __init__(self, inputs: int, outputs: int, state: State, device: torch.device) -> None:
        super().__init__()
        self.group = state.groups["tp"]
        self.weight = nn.Parameter(torch.empty(outputs // state.sizes["tp"], inputs, device=device))
        self.bias = nn.Parameter(torch.zeros(outputs // state.sizes["tp"], device=device))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return F.linear(CopyToModel.apply(x, self.group), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A matrix whose rows are sharded."""

    def __init__(self, inputs: int, outputs: int, state: State, device: torch.device) -> None:
        super().__init__()
        self.group = state.groups["tp"]
        self.weight = nn.Parameter(torch.empty(outputs, inputs // state.sizes["tp"], device=device))
        self.bias = nn.Parameter(torch.zeros(outputs, device=device))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply, and sum over ranks."""
        return ReduceFromModel.apply(F.linear(x, self.weight), self.group) + self.bias


class VocabParallelEmbedding(nn.Module):
    """A table whose words are sharded."""

    def __init__(self, words: int, hidden: int, state: State, device: torch.device) -> None:
        super().__init__()
        self.group = state.groups["tp"]
        self.count = words // state.sizes["tp"]
        self.start = dist.get_rank(self.group) * self.count
        self.weight = nn.Parameter(torch.empty(self.count, hidden, device=device))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up."""
        outside = (tokens < self.start) | (tokens >= self.start + self.count)
        local = (tokens - self.start).masked_fill(outside, 0)
        found = F.embedding(local, self.weight).masked_fill(outside.unsqueeze(-1), 0.0)
        return ReduceFromModel.apply(found, self.group)


class ParallelTransformerLayer(nn.Module):
    """A layer."""

    def __init__(self, hidden: int, heads: int, state: State, device: torch.device) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        self.input_layernorm = nn.LayerNorm(hidden, device=device)
        self.query_key_value = ColumnParallelLinear(hidden, 3 * hidden, state, device)
        self.dense = RowParallelLinear(hidden, hidden, state, device)
        self.post_attention_layernorm = nn.LayerNorm(hidden, device=device)
        self.dense_h_to_4h = ColumnParallelLinear(hidden, 4 * hidden, state, device)
        self.dense_4h_to_h = RowParallelLinear(4 * hidden, hidden, state, device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it; the shape is samples, tokens, width."""
        batch, seq, _ = x.shape
        mixed = self.query_key_value(self.input_layernorm(x)).view(batch, seq, -1, 3 * self.head_dim)
        q, k, v = (each.transpose(1, 2) for each in mixed.chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dense(out.transpose(1, 2).reshape(batch, seq, -1))
        return x + self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(self.post_attention_layernorm(x))))


class ParallelStage(nn.Module):
    """Layers of a stage; the first one has the table of words, the last one the output layer."""

    def __init__(self, args: argparse.Namespace, state: State, device: torch.device) -> None:
        super().__init__()
        self.state = state
        if state.first:
            self.word_embeddings = VocabParallelEmbedding(args.vocab, args.hidden, state, device)
        self.layers = nn.ModuleList(
            ParallelTransformerLayer(args.hidden, args.heads, state, device)
            for _ in range(args.layers // state.sizes["pp"])
        )
        if state.last:
            self.final_layernorm = nn.LayerNorm(args.hidden, device=device)
            self.output_layer = ColumnParallelLinear(args.hidden, args.vocab, state, device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it on tokens, or on what the stage before made."""
        if self.state.first:
            x = self.word_embeddings(x)
        for layer in self.layers:
            x = layer(x)
        return self.output_layer(self.final_layernorm(x)) if self.state.last else x


def vocab_parallel_cross_entropy(scores: torch.Tensor, labels: torch.Tensor, state: State) -> torch.Tensor:
    """Cross entropy of scores whose words are sharded."""
    group = state.groups["tp"]
    most = scores.detach().max(dim=-1).values
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    scores = scores - most.unsqueeze(-1)
    count = scores.shape[-1]
    start = dist.get_rank(group) * count
    outside = (labels < start) | (labels >= start + count)
    mine = scores.gather(-1, (labels - start).masked_fill(outside, 0).unsqueeze(-1)).squeeze(-1)
    mine = ReduceFromModel.apply(mine.masked_fill(outside, 0.0), group)
    return (ReduceFromModel.apply(scores.exp().sum(-1), group).log() - mine).mean()


class Pipeline:
    """1F1B over micro-batches."""

    def __init__(
        self, stage: ParallelStage, state: State, args: argparse.Namespace, device: torch.device
    ) -> None:
        self.stage, self.state, self.args, self.device = stage, state, args, device
        self.shape = (args.micro_batch, args.seq, args.hidden)

    def exchange(self, send: torch.Tensor | None, to: int | None, source: int | None) -> torch.Tensor | None:
        """Send to a stage and receive from one, both at once."""
        wanted = None if source is None else torch.empty(self.shape, device=self.device, requires_grad=True)
        ops = []
        if send is not None and to is not None:
            ops.append(dist.P2POp(dist.isend, send.detach(), to, self.state.groups["pp"]))
        if wanted is not None:
            ops.append(dist.P2POp(dist.irecv, wanted.detach(), source, self.state.groups["pp"]))
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
        return wanted

    def forward(self, received: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor]:
        """A forward pass."""
        tokens = torch.randint(0, self.args.vocab, (self.args.micro_batch, self.args.seq), device=self.device)
        out = self.stage(tokens if received is None else received)
        if self.state.last:
            out = vocab_parallel_cross_entropy(out, tokens, self.state) / self.args.micro_batches
        return received, out

    def backward(self, received: torch.Tensor | None, out: torch.Tensor, grad: torch.Tensor | None) -> Any:
        """A backward pass."""
        torch.autograd.backward(out, grad)
        return None if received is None else received.grad

    def run(self) -> torch.Tensor | None:
        """Run an iteration; the losses of the last stage are returned."""
        state, count = self.state, self.args.micro_batches
        warmup = min(count, state.sizes["pp"] - state.stage - 1)
        kept, losses = [], []
        for _ in range(warmup):
            passed = self.forward(self.exchange(None, None, state.before))
            self.exchange(passed[1], state.behind, None)
            kept.append(passed)
        for _ in range(count - warmup):
            passed = self.forward(self.exchange(None, None, state.before))
            kept.append(passed)
            losses.append(passed[1])
            grad = self.exchange(passed[1], state.behind, state.behind)
            self.exchange(self.backward(*kept.pop(0), grad), state.before, None)
        for _ in range(warmup):
            grad = self.exchange(None, None, state.behind)
            self.exchange(self.backward(*kept.pop(0), grad), state.before, None)
        return torch.stack([each.detach() for each in losses]).sum() if state.last else None


def main() -> int:
    """Train."""
    parser = argparse.ArgumentParser()
    for name, value in (
        ("tp", 1),
        ("pp", 1),
        ("steps", 3),
        ("micro-batch", 2),
        ("micro-batches", 4),
        ("seq", 64),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in (("layers", 4), ("hidden", 64), ("heads", 4), ("vocab", 512)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    dist.init_process_group(backend="nccl" if on_gpu else "gloo")
    state = State(args.tp, args.pp)
    torch.manual_seed(1234 + state.stage)
    stage = ParallelStage(args, state, device)
    count = sum(each.numel() for each in stage.parameters())
    buffer = torch.zeros(count, device=device)
    at = 0
    for each in stage.parameters():
        each.grad = buffer[at : at + each.numel()].view_as(each)
        at += each.numel()
    optimizer = torch.optim.Adam(stage.parameters(), lr=1e-4)
    pipeline = Pipeline(stage, state, args, device)
    for step in range(args.steps):
        buffer.zero_()
        loss = pipeline.run()
        if state.sizes["dp"] > 1:
            dist.all_reduce(buffer, group=state.groups["dp"])
        optimizer.step()
        if loss is not None and dist.get_rank(state.groups["tp"]) == 0:
            print(f"step {step}: {loss.item():.4f}")  # noqa: T201
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
