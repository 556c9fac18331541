"""One rank of blocks that compute again: ``policies_recompute_rank.py transformer-recompute POLICY SETTINGS STEPS``.

``stock`` computes a block again before its backward pass (``torch.utils.checkpoint``), ``lynx`` beside the sums of the
blocks above; neither keeps what memory is short of. Products take the time of an accelerator. A prediction is the time
with nothing computed again, measured in the same run, and what simulation says that computing again adds. Prints JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from coppice.iteration.policies.tensor.recompute_windows import KEPT, stage_graph
from coppice.iteration.tasks import run_tasks
from coppice.training.torch import SummedPart, tensor_parallel
from lab_rank import run_model
from paced import paced

WIDTH, TOKENS, ROWS, PARTS = 192, 64, 4, 6
FORWARD_S, BACKWARD_S = 0.006, 0.012
"""Of each of the two products of a block."""
WARM = 4
AMPLE_BYTES = 10**9


class CheckpointedBlocks(nn.Sequential):
    """Blocks of which each is computed again before its backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def block(ranks: int) -> SummedPart:
    """A rank's share of an MLP."""
    products = nn.Sequential(
        paced(nn.Linear(WIDTH, WIDTH // ranks), FORWARD_S, BACKWARD_S),
        nn.ReLU(),
        paced(nn.Linear(WIDTH // ranks, WIDTH, bias=False), FORWARD_S, BACKWARD_S),
    )
    return SummedPart(products, prepare=nn.LayerNorm(WIDTH))


def timed(run: Callable[[torch.Tensor], torch.Tensor], blocks: nn.Module, steps: int) -> dict[str, Any]:
    """Seconds of a step of the slowest rank, and losses."""
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.01)
    inputs, targets = torch.randn(2, ROWS, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)).unbind()
    losses, begin = [], 0.0
    for step in range(WARM + steps):
        if step == WARM:
            dist.barrier()
            begin = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(run(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    slowest = torch.tensor([(time.perf_counter() - begin) / steps])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return {"seconds": float(slowest), "losses": losses}


def train(policy: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Seconds of a step, and what was predicted."""
    ranks = dist.get_world_size()
    torch.manual_seed(0)
    blocks = nn.Sequential(*(block(ranks) for _ in range(PARTS)))
    begun = {name: value.clone() for name, value in blocks.state_dict().items()}
    keeping: Any = tensor_parallel(blocks, "lynx", limit_bytes=AMPLE_BYTES)
    kept = timed(keeping, blocks, steps)
    blocks.load_state_dict(begun)
    recorded = keeping.recorded
    if policy == "stock":
        run: Any = CheckpointedBlocks(*blocks)
        places = (tuple(2 * PARTS + 1 for _ in recorded.windows.ops),) * PARTS
    else:
        run = tensor_parallel(blocks, policy, **{"block": recorded, **settings})
        places = run.schedule.places
    windows = replace(recorded.windows, compute=2 * (FORWARD_S + BACKWARD_S))
    nothing = ((KEPT,) * len(windows.ops),) * PARTS
    added = run_tasks(stage_graph(windows, places)).seconds - run_tasks(stage_graph(windows, nothing)).seconds
    return {**timed(run, blocks, steps), "predicted": kept["seconds"] + added, "messages": 2 * PARTS}


if __name__ == "__main__":
    run_model({"transformer-recompute": train})
