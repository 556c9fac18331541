"""What ranks of a pipeline train in tests, beside plain trainings of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work
from coppice.iteration.step.passes import StepGraph
from coppice.iteration.tasks import run_tasks

WIDTH = 6
ROWS = 2  # of a micro-batch
WORDS = 11


class Mixed(nn.Module):
    """A frozen layer, a tensor of another type, and one more tensor that is handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(self.mix(self.frozen(x))) * self.scale.float(), (x > 0).sum(1)


class Joined(nn.Module):
    """Takes both."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return (self.out(x) * count[:, None]).view(-1, 2, WIDTH // 2).transpose(1, 2).reshape(-1, WIDTH)


class Head(nn.Module):
    """Reads the weights of an embedding."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(torch.relu(self.mix(x)), self.weight)


class Chain(nn.Module):
    """Stages one after the other."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, *values: Any) -> Any:
        for stage in self.stages:
            values = stage(*values)
            values = values if isinstance(values, tuple) else (values,)
        return values[0]


def layers(count: int, seed: int = 0) -> list[nn.Module]:
    """Stages alike."""
    torch.manual_seed(seed)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]


def mixed(count: int, seed: int = 0) -> list[nn.Module]:
    """Stages that hand several tensors on."""
    made = layers(count - 2, seed)
    return [*made, Mixed(), Joined()]


def words(count: int, seed: int = 0, *, sparse: bool = False, tied: bool = False) -> list[nn.Module]:
    """An embedding first; at the end scores of words."""
    torch.manual_seed(seed)
    table = nn.Embedding(WORDS, WIDTH, sparse=sparse)
    middle = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count - 2)]
    first = nn.Sequential(table, nn.Linear(WIDTH, WIDTH))
    return [first, *middle, Head(table.weight) if tied else nn.Linear(WIDTH, WORDS)]


def batch(step: int, rows: int, *, of_words: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all replicas."""
    made = torch.Generator().manual_seed(step)
    if of_words:
        return torch.randint(WORDS, (rows,), generator=made), torch.randint(WORDS, (rows,), generator=made)
    return torch.randn(rows, WIDTH, generator=made), torch.randn(rows, WIDTH, generator=made)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """With momentum."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def plain_sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """What takes sparse gradients."""
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """With states."""
    return torch.optim.AdamW(parameters, lr=0.01)


def alone(
    stages: Sequence[nn.Module],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    loss: Callable[[Any, Any], torch.Tensor],
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    *,
    late: int,
    max_norm: float | None = None,
) -> tuple[Chain, list[float]]:
    """A plain training; with gradients that are ``late`` by so many batches one of 2BW."""
    model = copy.deepcopy(Chain(stages))
    own = optimizer(model.parameters())
    rates = torch.optim.lr_scheduler.StepLR(own, 5, 0.5)
    own._opt_called = True  # type: ignore[attr-defined]
    waiting: list[tuple[list[Any], float]] = []
    losses = []

    def update() -> None:
        gradients, rate = waiting.pop(0)
        now = own.param_groups[0]["lr"]
        own.param_groups[0]["lr"] = rate
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        own.step()
        own.param_groups[0]["lr"] = now

    for x, y in batches:
        while len(waiting) > late:
            update()
        own.zero_grad()
        value = loss(model(x), y)
        value.backward()
        losses.append(float(value.detach()))
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        waiting.append(([each.grad for each in model.parameters()], own.param_groups[0]["lr"]))
        if not late:
            update()
        rates.step()
    while waiting:
        update()
    return model, losses


def simulated(graph: StepGraph, stream: str, kinds: Sequence[str]) -> list[str]:
    """Names of tasks of a stream in the order in which simulation starts them."""
    tasks = graph.graph
    number = tasks.streams.index(stream) if stream in tasks.streams else -2
    times = run_tasks(tasks)
    own = [
        task
        for task in range(len(tasks))
        if tasks.stream[task] == number and tasks.kind_names[tasks.kinds[task]] in kinds
    ]
    return [tasks.names[task] for task in sorted(own, key=lambda task: (times.start[task], task))]


def crossed(micro_batches: int) -> PipelineOrder:
    """An order that no name has: stage 0 and 3 on device 1, backward passes in parts, micro-batches the other way."""
    own = ((1, 2), (0, 3))
    programs = []
    turn = list(reversed(range(micro_batches)))
    for stages in own:
        forward = [StagePass(stage, Work.FORWARD, k) for stage in stages for k in turn]
        inputs = [StagePass(stage, Work.INPUT, k) for stage in reversed(stages) for k in range(micro_batches)]
        weights = [StagePass(stage, Work.WEIGHT, k) for stage in stages for k in turn]
        programs.append((*forward, *inputs, *weights))
    return PipelineOrder(devices=tuple(programs), stages=4, micro_batches=micro_batches)
