"""One rank of pipelines: ``policies_pipeline_rank.py pipeline POLICY SETTINGS STEPS``; rank 0 prints a JSON line.

Four stages on two devices, in two replicas. ``stock`` is torch's ScheduleInterleaved1F1B, with all-reduces over
the replicas when it has ended. Stages take the time of an accelerator (paced.py), gradients of weights a part of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from coppice.training.torch import pipeline
from lab_rank import run_model
from paced import waited

STAGES, DEVICES, MICRO_BATCHES, ROWS, WIDTH = 4, 2, 4, 8, 384
FORWARD_S, INPUT_S, WEIGHTS_S = 0.008, 0.008, 0.008
WARM = 5


class Stage(nn.Module):
    """Two products, whose gradients of inputs and of weights take times of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, WIDTH)
        self.back = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = waited(self.wide.weight, 0.0, WEIGHTS_S)
        inner = torch.relu(nn.functional.linear(x, weight, self.wide.bias))
        return x + waited(self.back(inner), FORWARD_S, INPUT_S)


def stages() -> list[nn.Module]:
    """The model."""
    torch.manual_seed(0)
    return [Stage() for _ in range(STAGES)]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """The optimizer of a stage."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def stock(replica: int, device: int) -> Callable[[torch.Tensor, torch.Tensor], float]:
    """A step of torch's own schedule."""
    rows = [[0, 1], [2, 3]]
    pipes = [dist.new_group(row) for row in rows]
    sums = [dist.new_group(row) for row in zip(*rows, strict=True)]
    made = stages()
    own = [made[number] for number in range(device, STAGES, DEVICES)]
    optimizer = sgd([each for stage in own for each in stage.parameters()])
    parts: list[Any] = [
        PipelineStage(stage, number, STAGES, torch.device("cpu"), group=pipes[replica])
        for stage, number in zip(own, range(device, STAGES, DEVICES), strict=True)
    ]
    schedule = ScheduleInterleaved1F1B(parts, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> float:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        first = (inputs,) if device == 0 else ()
        schedule.step(*first, target=targets if device == DEVICES - 1 else None, losses=losses)
        gradients = [each.grad for stage in own for each in stage.parameters() if each.grad is not None]
        flat = torch.cat([each.flatten() for each in gradients]) / 2
        dist.all_reduce(flat, group=sums[device])
        for gradient, part in zip(
            gradients, torch.split(flat, [each.numel() for each in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))
        optimizer.step()
        return float(torch.stack(losses).mean()) if losses else 0.0

    return step


def train(policy: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Seconds of a step, losses, and what was predicted."""
    replica, device = divmod(dist.get_rank(), DEVICES)
    torch.manual_seed(1 + replica)
    inputs, targets = torch.randn(2, MICRO_BATCHES * ROWS, WIDTH)
    found: dict[str, Any] = {}
    training = None
    if policy == "stock":
        step = stock(replica, device)
    else:
        training = pipeline(
            stages(),
            sgd,
            nn.functional.mse_loss,
            policy,
            micro_batches=MICRO_BATCHES,
            replicas=2,
            timeout_s=60,
            **settings,
        )

        def step(inputs: torch.Tensor, targets: torch.Tensor) -> float:
            assert training is not None
            loss = training.step(inputs, targets)
            return 0.0 if loss is None else float(loss)

    losses = [step(inputs, targets) for _ in range(WARM)]
    dist.barrier()
    begin = time.perf_counter()
    losses += [step(inputs, targets) for _ in range(steps)]
    if training is not None:
        training.flush()
    slowest = torch.tensor([(time.perf_counter() - begin) / steps])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    shared = torch.tensor(losses) / 2
    dist.all_reduce(shared)
    found |= {"seconds": float(slowest), "losses": shared.tolist()}
    if training is not None:
        found["predicted"] = training.predicted_seconds
        training.close()
    return found


if __name__ == "__main__":
    run_model({"pipeline": train})
