"""One rank of blocks of several degrees of tensor parallelism; arguments as in overlap_ranks.py."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from blocks_ranks import HEADS, TOKENS, WIDTH, batch, blocks, distance
from coconet_cases import optimizer_of
from overlap_ranks import STEPS, main
from refusals import refusals
from torch import nn

from coppice.errors import CheckError
from coppice.iteration.policies.tensor.degrees import DegreeProblem
from coppice.iteration.policies.tensor.half_batches import RegroupedHalves
from coppice.training.torch import DegreeGroups, MegatronBlock, SummedPart, tensor_parallel

PROBLEM = DegreeProblem(
    degrees=(1, 2),
    forward=[[1.0, 1.0]] * 4,
    backward=[[2.0, 2.0]] * 4,
    recompute=[[1.0, 1.0]] * 4,
    sums=[[0.0, 3.0]] * 4,
    memory=[[2, 1]] * 4,
    device_bytes=6,
    share=1.0,
)
"""Sums are slow, and memory is short: some blocks are shared."""


def degree_blocks(groups: DegreeGroups, degrees: list[int]) -> nn.Sequential:
    """Megatron's blocks, attention and MLP of a degree each; the same on all ranks but for what is split."""
    torch.manual_seed(3)
    pairs = zip(degrees[::2], degrees[1::2], strict=True)
    return nn.Sequential(
        *(MegatronBlock(WIDTH, HEADS, group=tuple(groups.of(each) for each in pair)) for pair in pairs)
    )


def whole_batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all ranks."""
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(2, 2 * size, TOKENS, WIDTH, generator=generator).unbind()
    return x, y


def whole_training(single: Any, degrees: list[int], size: int) -> tuple[nn.Sequential, list[float]]:
    """One process with all sequences."""
    torch.manual_seed(3)
    model = nn.Sequential(*(MegatronBlock(WIDTH, HEADS, group=single) for _ in degrees[::2]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = whole_batch(step, size)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return model, losses


def several_degrees(rank: int, size: int) -> dict[str, Any]:
    """Plans of several degrees beside one process with all sequences, and resumed after 10 steps."""
    del rank
    some = [1, 2] if size < 4 else [1, 2, 4]
    groups = DegreeGroups(some)
    single = groups.of(1)
    plans = {"down and up": [size, 1, 1, size], "up": [1, size], "planned": list(PROBLEM.solve().degrees)}
    if size == 4:
        plans["all"] = [*some, 2]
    found: dict[str, Any] = {}
    for name, degrees in plans.items():
        plain, expected = whole_training(single, degrees, size)
        ours = tensor_parallel(degree_blocks(groups, degrees), "oases", groups=groups, recompute=name != "up")
        again = tensor_parallel(
            degree_blocks(groups, degrees), "oases", groups=groups, recompute=name != "up"
        )
        losses: list[float] = []
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (ours, again)]

        def step(model: Any, optimizer: Any, number: int, degrees: list[int] = degrees) -> float:
            x, y = whole_batch(number, size)
            optimizer.zero_grad()
            given = groups.rows(x, degrees[0]).requires_grad_()
            loss = nn.functional.mse_loss(model(given), groups.rows(y, degrees[-1]))
            loss.backward()
            model.average_gradients()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            return float(total) / size

        for number in range(STEPS):
            losses.append(step(ours, optimizers[0], number))
            if number == 9:
                state = copy.deepcopy((ours.state_dict(), optimizers[0].state_dict()))
        again.load_state_dict(state[0])
        optimizers[1].load_state_dict(state[1])
        for number in range(10, STEPS):
            step(again, optimizers[1], number)
        same = [
            (one, other)
            for one, other in zip(plain.parameters(), ours.parameters(), strict=True)
            if one.shape == other.shape
        ]
        launched, resumed = ours.launched, distance(again, ours)
        x, _ = whole_batch(99, size)
        with torch.no_grad():
            output = ours.eval()(groups.rows(x, degrees[0]))
            evaluated = float((output - groups.rows(plain(x), degrees[-1])).abs().max())
        found[name] = {
            "distance": max(float((one - other).detach().abs().max()) for one, other in same),
            "compared": len(same) / len(list(plain.parameters())),
            "losses": max(abs(a - b) for a, b in zip(losses, expected, strict=True)),
            "evaluated": evaluated,
            "resumed": resumed,
            "launched": launched,
            "simulated": list(
                (RegroupedHalves.planned(PROBLEM, degrees) if name == "planned" else ours.order).graph().names
            ),
            "degrees": degrees,
            "keys": list(ours.state_dict()) == list(plain.state_dict()),
            "predicted": ours.workload((1e8, 1e-4)).seconds,
        }
    found["refused"] = refusals(
        lambda: DegreeGroups([2, 3]),
        lambda: groups.of(7),
        lambda: groups.rows(torch.ones(2 * size + 1, 2), 1),
        lambda: tensor_parallel(degree_blocks(groups, [1, size]), "oases"),
        lambda: tensor_parallel(blocks(), "oases", groups=groups),
        lambda: tensor_parallel(shared_norm(groups, size), "oases", groups=groups),
        lambda: tensor_parallel(degree_blocks(groups, [size, 1]), "oases", groups=groups)(
            torch.ones(size + 1, TOKENS, WIDTH)
        ),
    )
    return found


def shared_norm(groups: DegreeGroups, size: int) -> nn.Sequential:
    """Parts of two degrees that share a norm."""
    norm = nn.LayerNorm(WIDTH)
    return nn.Sequential(
        *(SummedPart(nn.Linear(WIDTH, WIDTH), prepare=norm, group=groups.of(each)) for each in (1, size))
    )


def quick(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """All cases."""
    del folder
    return several_degrees(rank, size)


def killed(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Rank 1 dies before its first sum of the backward pass; what comes next does not wait for it either."""
    del folder
    backward, fused = optimizer_of(rank, size)
    backward(0)
    groups = DegreeGroups([1, size])
    parts = [SummedPart(nn.Linear(WIDTH, WIDTH), group=groups.of(each)) for each in (1, size)]
    regrouped = tensor_parallel(nn.Sequential(*parts), "oases", groups=groups)
    x, _ = batch(0)

    def die(_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def train() -> None:
        output = regrouped(x)
        if rank == 1:
            output.register_hook(die)
        output.square().mean().backward()

    said: list[str] = []
    for attempt in (train, fused.step, lambda: regrouped(x)):
        try:
            attempt()
        except CheckError as error:
            said.append(str(error))
    return {"said": said, "launched": regrouped.launched}


if __name__ == "__main__":
    main({"quick": quick, "killed": killed})
