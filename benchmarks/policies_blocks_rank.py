"""One rank of tensor-parallel blocks: ``policies_blocks_rank.py transformer-tp POLICY SETTINGS STEPS`` prints JSON.

``stock`` is plain synchronous tensor parallelism, as Megatron-LM's. Products take the time of an accelerator. With half
the micro-batch they take half of it; nothing is computed again, so that both do the same work. A prediction has the
times of the slowest rank for each product, and beside the blocks the loss and the optimizer.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.iteration.tasks import run_tasks
from coppice.training.torch import SummedPart, tensor_parallel
from coppice.training.torch.core.measure import StepEvent, StepRecord, measure_network
from lab_rank import run_model
from paced import waited

WIDTH, TOKENS, ROWS, PARTS = 192, 64, 4, 6
FORWARD_S, BACKWARD_S = 0.012, 0.024
WARM = 3


class PacedProduct(nn.Module):
    """A rank's share of an MLP, in a time that grows with the rows."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, WIDTH // ranks)
        self.back = nn.Linear(WIDTH // ranks, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = len(x) / ROWS
        return waited(self.back(torch.relu(self.wide(x))), FORWARD_S * share, BACKWARD_S * share)


def train(policy: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Seconds of a step, and what was predicted."""
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    blocks = nn.Sequential(
        *(SummedPart(PacedProduct(ranks), prepare=nn.LayerNorm(WIDTH)) for _ in range(PARTS))
    )
    run: Any = (
        blocks if policy == "stock" else tensor_parallel(blocks, policy, **{"recompute": False, **settings})
    )
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.01)
    inputs, targets = torch.randn(2, ROWS, TOKENS, WIDTH).unbind()
    network = measure_network(dist.new_group(), torch.device("cpu"))
    losses, outside, begin = [], [], 0.0
    for step in range(WARM + steps):
        if step == WARM:
            dist.barrier()
            begin = time.perf_counter()
        marks = [time.perf_counter()]
        optimizer.zero_grad()
        marks.append(time.perf_counter())
        output = run(inputs)
        marks.append(time.perf_counter())
        loss = nn.functional.mse_loss(output, targets)
        marks.append(time.perf_counter())
        torch.autograd.backward(loss)
        marks.append(time.perf_counter())
        optimizer.step()
        losses.append(float(loss.detach()))
        marks.append(time.perf_counter())
        outside.append(sum(marks[at + 1] - marks[at] for at in (0, 2, 4)))
    slowest = torch.tensor([(time.perf_counter() - begin) / steps])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    found: dict[str, Any] = {"seconds": float(slowest), "losses": losses, "messages": 2 * PARTS}
    if policy != "stock":
        run.record.steps.extend(_of_slowest(run.record))
        found["predicted"] = run_tasks(run.workload(network).graph()).seconds + statistics.median(outside)
        found["messages"] = 4 * PARTS
    return found


def _of_slowest(record: StepRecord) -> list[list[StepEvent]]:
    """Take the steps out, with the times of the rank for which it took longest, as the other ranks wait for it."""
    own = [[*step] for step in (*record.steps, record.current)]
    record.steps.clear()
    record.current.clear()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return [
        [max(row, key=lambda each: each.seconds) for row in zip(*steps, strict=True)]
        for steps in zip(*everyone, strict=True)
    ]


if __name__ == "__main__":
    run_model({"transformer-tp": train})
