"""One rank of training loops as they are written in practice; arguments as in overlap_ranks.py."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from overlap_ranks import NETWORK, OPTIMIZERS, ROWS, STEPS, batch, chain, distance, main
from refusals import refusals
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel

from coppice.errors import CoppiceError, InputError
from coppice.training.torch import schedule
from coppice.training.torch.tensor.passes_hops import measured_costs

POLICIES: list[tuple[str, dict[str, Any]]] = [
    ("ddp", {}),
    ("bytescheduler", {"partition_bytes": 1000}),
    ("dear", {"threshold_bytes": 2000}),
    ("p3", {"slice_elements": 200}),
    ("ooo", {}),
    ("tictac", {}),
    ("poseidon", {}),
    ("gradientflow", {"theta_bytes": 2000}),
]


class Branches(nn.Module):
    """Layers of which an iteration uses some, others on each rank; one is used by its parent alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 24)
        self.branches = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])
        self.never = nn.Linear(3, 3)
        self.last = nn.Linear(24, 4)

    def forward(self, x: torch.Tensor, taken: list[int], unseen: bool) -> torch.Tensor:
        y = torch.relu(self.first(x))
        for branch in taken:
            own = self.branches[branch]
            y = y + torch.relu(nn.functional.linear(y, own.weight, own.bias) if unseen else own(y))
        return self.last(y)


def branches(seed: int = 0) -> nn.Module:
    """See :class:`Branches`."""
    torch.manual_seed(seed)
    return Branches()


def taken(step: int, rank: int) -> list[int]:
    """Branches of an iteration of a rank: often none on any rank."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [branch for branch in range(3) if torch.rand((), generator=generator) < 0.4]


def unused(rank: int, size: int) -> dict[str, Any]:
    """Beside DistributedDataParallel with ``find_unused_parameters``."""
    found: dict[str, Any] = {}
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    for number, (name, settings) in enumerate(POLICIES):
        kind = ("sgd", "adam")[number % 2]
        model, theirs = branches(rank), branches()
        wrapped = DistributedDataParallel(theirs, find_unused_parameters=True)
        optimizer, plain = (OPTIMIZERS[kind](each.parameters()) for each in (model, theirs))
        schedule(model, optimizer, name, network=NETWORK, unused=True, **settings)
        evaluated = 0.0
        for step in range(STEPS):
            x, y = batch(step, size)
            for each, own in ((model, optimizer), (wrapped, plain)):
                own.zero_grad()
                # the recorded iterations never see a parent that reads weights of a child
                out = each(x[mine], taken(step, rank), step % 3 == 2 and step > 5)
                nn.functional.mse_loss(out, y[mine]).backward()
                own.step()
            if step in (7, 12):  # without flush, of weights that no module was seen to read in this way
                whole = torch.cat([p.flatten() for p in model.parameters()])
                same = torch.cat([p.detach().flatten() for p in theirs.parameters()])
                evaluated = max(evaluated, float((whole - same).detach().abs().max()))
        optimizer.flush()
        found[name] = {
            "distance": distance(model, theirs),
            "read": evaluated,
            "classes": sorted({type(p).__name__ for p in model.parameters()}),
            "states": len(optimizer.state),
            "their states": len(plain.state),
        }
        optimizer.close()
    return found


def scaled(rank: int, size: int) -> dict[str, Any]:
    """Half precision with a GradScaler whose steps are skipped by what one rank's gradients are."""
    found: dict[str, Any] = {}
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    for name in ("ddp", "bytescheduler", "dear"):
        for clip in (False, True):
            model, theirs = chain(rank), chain()
            wrapped = DistributedDataParallel(theirs)
            optimizer, plain = (OPTIMIZERS["adam"](each.parameters()) for each in (model, theirs))
            schedule(model, optimizer, name, network=NETWORK)
            scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4) for _ in range(2)]
            scales = []
            for step in range(STEPS):
                x, y = batch(step, size)
                if step in (3, 9, 14) and rank == size - 1:
                    y = y * 1e35  # its gradients overflow
                for each, own, scaler in ((model, optimizer, scalers[0]), (wrapped, plain, scalers[1])):
                    own.zero_grad()
                    with torch.autocast("cpu", dtype=torch.float16 if step % 2 else torch.bfloat16):
                        loss = nn.functional.mse_loss(each(x[mine]).float(), y[mine])
                    scaler.scale(loss).backward()
                    if own is optimizer:
                        optimizer.synchronize()
                    if clip:
                        scaler.unscale_(own)
                        nn.utils.clip_grad_norm_(each.parameters(), 0.1)
                    scaler.step(own)
                    scaler.update()
                scales.append(scalers[0].get_scale())
            optimizer.flush()
            assert [s.get_scale() for s in scalers] == [scales[-1]] * 2
            found[f"{name} {clip}"] = {"distance": distance(model, theirs), "scales": scales}
            optimizer.close()
    return found


class Rotated(torch.optim.SGD):
    """SGD along a product of matrices, which autocast would make in half precision."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None and p.dim() == 2:
                        unit = p.grad / (p.grad.norm() + 1e-3)
                        p.grad.copy_(unit @ (unit.T @ unit))
        return super().step(closure)


def within_autocast(rank: int, size: int) -> float:
    """Steps that a forward pass under autocast and in inference mode asks for; distance to plain ones."""
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    model, theirs = chain(rank), chain()
    wrapped = DistributedDataParallel(theirs)
    optimizer, plain = (Rotated(each.parameters(), lr=0.05, momentum=0.9) for each in (model, theirs))
    schedule(model, optimizer, "bytescheduler", network=NETWORK)
    for step in range(STEPS):
        x, y = batch(step, size)
        for each, own in ((model, optimizer), (wrapped, plain)):
            own.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = each(x[mine])
            nn.functional.mse_loss(out.float(), y[mine]).backward()
            own.step()
        if step == 10:
            with torch.inference_mode():
                model(x)
    optimizer.flush()
    copy.deepcopy(optimizer.state_dict())
    return distance(model, theirs)


def refused() -> list[str]:
    """What cannot be done, said in one sentence on every rank."""
    said = []
    model = chain()
    _, optimizer = schedule(
        model, OPTIMIZERS["sgd"](model.parameters()), "priority", network=NETWORK, recorded=2
    )
    scaler = torch.amp.GradScaler("cpu")

    def train() -> None:
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 16)).sum()).backward()

    for _ in range(3):
        train()
        optimizer.step()
    train()
    flow, other = chain(), chain()
    sparse = OPTIMIZERS["sgd"](flow.parameters())
    schedule(flow, sparse, "gradientflow", network=NETWORK, ratio=0.5)
    said += refusals(
        lambda: scaler.step(optimizer),
        lambda: (flow(torch.ones(2, 16)).sum() * float("inf")).backward(),
        lambda: schedule(
            other,
            OPTIMIZERS["sgd"](other.parameters()),
            "gradientflow",
            network=NETWORK,
            ratio=0.5,
            unused=True,
        ),
    )
    optimizer.step()
    optimizer.close()
    sparse.close()
    return [*said, *failing()]


def failing() -> list[str]:
    """Rank 0 fails while it simulates; the others say the same."""
    from coppice.iteration.policies.data_parallel.dear import DecoupledAllReduce

    said = []
    for raised in (InputError("expected better luck, found none."), ZeroDivisionError("by zero")):
        before = DecoupledAllReduce.tune

        def fails(*_: Any, raised: Exception = raised, **__: Any) -> Any:
            raise raised

        DecoupledAllReduce.tune = fails  # type: ignore[assignment,method-assign]
        model = chain()
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        try:
            schedule(model, optimizer, "dear", network=NETWORK, recorded=2, tune="simulation")
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 16)).sum().backward()
                optimizer.step()
        except (CoppiceError, ZeroDivisionError) as error:
            said.append(f"{type(error).__name__}: {error}")
        DecoupledAllReduce.tune = before  # type: ignore[method-assign]
    return said


def loops(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """All quick cases."""
    del folder
    found = {
        "unused": unused(rank, size),
        "scaled": scaled(rank, size) if size == 2 else {},
        "within_autocast": within_autocast(rank, size),
        "refused": refused(),
    }
    with FakeTensorMode():  # as torch.compile asks
        costs = measured_costs(dist.group.WORLD, torch.device("cpu"))
    found["measured"] = min(costs.flops_per_s, *(rate for rate, _ in costs.network.values()))
    return found


if __name__ == "__main__":
    main({"loops": loops})
