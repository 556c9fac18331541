"""One rank of a training in which what is needed first goes first; arguments as in overlap_ranks.py."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from overlap_ranks import NETWORK, OPTIMIZERS, ROWS, STEPS, distance, main
from refusals import refusals
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from coppice.errors import InputError
from coppice.iteration.pipeline.order import Work
from coppice.training.torch import prefetch_order, schedule


class Scaled(nn.Module):
    """A module of one's own, whose backward pass is left whole."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Pictures(nn.Module):
    """Convolutions, a layer that runs twice, one of one's own, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(2, 4, 3, padding=1)
        self.two = nn.Conv2d(4, 3, 3, bias=False)
        self.norm = nn.LayerNorm(12)
        self.own = Scaled()
        self.twice = nn.Linear(12, 12)
        self.frozen = nn.Linear(12, 12).requires_grad_(False)
        self.out = nn.Linear(12, 4)
        self.again = False

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh_(self.twice(torch.tanh_(self.twice(self.own(self.norm(x))))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh_(self.two(torch.tanh_(self.one(x)))).flatten(1)
        y = checkpoint(self.middle, y, use_reentrant=False) if self.again else self.middle(y)
        return self.out(self.frozen(y))


def pictures(seed: int = 0) -> Pictures:
    """See :class:`Pictures`."""
    torch.manual_seed(seed)
    return Pictures()


def batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all ranks."""
    generator = torch.Generator().manual_seed(step)
    count = size * ROWS
    return torch.randn(count, 2, 4, 4, generator=generator), torch.randn(count, 4, generator=generator)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int | None,
    size: int,
    *,
    low: bool = False,
    steps: range = range(STEPS),
) -> None:
    """Steps of a rank, or of one process with all rows; every fifth adds two batches up."""
    mine = slice(None) if rank is None else slice(rank * ROWS, (rank + 1) * ROWS)

    def backward(step: int) -> None:
        x, y = batch(step, size)
        with torch.autocast("cpu", enabled=low, dtype=torch.bfloat16):
            made = model(x[mine])
        nn.functional.mse_loss(made.float(), y[mine]).backward()

    for step in steps:
        optimizer.zero_grad()
        if step % 5 == 4:
            if rank is None:
                backward(1000 + step)
            else:
                with optimizer.no_sync():
                    backward(1000 + step)
        backward(step)
        optimizer.step()


def simulated(found: Any, names: list[str]) -> list[str]:
    """Tensors in the order in which simulation makes their gradients."""
    passes = found.policy.backward(found.workload)
    return [names[found.plan.tensors[each.layer]] for each in passes if each.work is not Work.INPUT]


def out_of_order(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Gradients of the first k weights last, beside a single process that sees all rows."""
    del folder
    cases: dict[str, Any] = {}
    settings: list[dict[str, Any]] = [{"k": 0}, {"k": 4}, {"k": 10, "partition_bytes": 200}, {"tune": True}]
    for number, (given, kind) in enumerate(itertools.product(settings, ("sgd", "adam"))):
        if kind == "adam" and number % 3 == 0:
            continue
        plain, model = pictures(), pictures(rank)
        reference = OPTIMIZERS[kind](p for p in plain.parameters() if p.requires_grad)
        optimizer = OPTIMIZERS[kind](p for p in model.parameters() if p.requires_grad)
        keys = list(model.state_dict())
        model, optimizer = schedule(model, optimizer, "ooo", network=NETWORK, **given)
        train(model, optimizer, rank, size)
        train(plain, reference, None, size)
        optimizer.flush()
        found = optimizer.schedule
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        cases[f"{given} {kind}"] = {
            "distance": distance(model, plain),
            "made": found.gradient_order,
            "simulated": simulated(found, names),
            "launched": found.launched["network"],
            "planned": [found.plan.messages[each].name for each in found.plan.order["network"]],
            "whole": [
                names[place]
                for place, apart in zip(found.plan.tensors, found.workload.separable, strict=True)
                if not apart
            ],
            "keys": list(model.state_dict()) == keys,
            "k": found.policy.settings.k,
        }
        optimizer.close()
    return cases


def features(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Deferred gradients under checkpointing and autocast beside `priority`, which defers none; and resumed."""
    cases: dict[str, Any] = {}
    for again, low in itertools.product((False, True), repeat=2):
        weights = []
        for policy, given in (("priority", {}), ("ooo", {"k": 10})):
            model = pictures()
            model.again = again
            optimizer = OPTIMIZERS["sgd"](p for p in model.parameters() if p.requires_grad)
            model, optimizer = schedule(model, optimizer, policy, network=NETWORK, **given)
            train(model, optimizer, rank, size, low=low, steps=range(8))
            if policy == "ooo" and again and not low:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, folder / f"state-{rank}.pt")
            train(model, optimizer, rank, size, low=low, steps=range(8, STEPS))
            optimizer.flush()
            weights.append(model)
            optimizer.close()
        cases[f"checkpointed {again} autocast {low}"] = distance(*weights)
        if again and not low:
            other = pictures(7)
            other.again = True
            following = OPTIMIZERS["sgd"](p for p in other.parameters() if p.requires_grad)
            state = torch.load(folder / f"state-{rank}.pt")
            other.load_state_dict(state["model"])
            following.load_state_dict(state["optimizer"])
            other, following = schedule(other, following, "ooo", network=NETWORK, k=10)
            train(other, following, rank, size, steps=range(8, STEPS))
            following.flush()
            cases["resumed"] = distance(other, weights[1])
            following.close()
    model = pictures()
    model, optimizer = schedule(
        model,
        OPTIMIZERS["sgd"](p for p in model.parameters() if p.requires_grad),
        "ooo",
        network=NETWORK,
        recorded=2,
        k=99,
    )
    try:
        train(model, optimizer, rank, size, steps=range(3))
    except InputError as error:
        cases["refused"] = str(error)
    return cases


class NotedGather:
    """An all-gather that says whose it is when it starts."""

    def __init__(self, name: str, started: list[str]) -> None:
        self._name, self._started = name, started

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        self._started.append(self._name)
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return gather(output_tensor, input_tensor, group=group, async_op=async_op)


class Tower(nn.Module):
    """Blocks that are gathered apart, one within another, and what is gathered with the root."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 24)
        self.blocks = nn.ModuleList(nn.Linear(width, after) for width, after in ((24, 8), (8, 40), (40, 8)))
        self.outer = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8), nn.Tanh())
        self.last = nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(x))
        for block in self.blocks:
            y = torch.tanh(block(y))
        return self.last(self.outer(y))


def sharded() -> tuple[nn.Module, list[str]]:
    """A tower on all ranks, and the names of modules that are gathered, as they are."""
    torch.manual_seed(0)
    model, started = Tower(), []
    for name in ("blocks.0", "blocks.1", "blocks.2", "outer.1", "outer", ""):
        module = fully_shard(model.get_submodule(name))
        module.set_custom_all_gather(NotedGather(name or "(root)", started))
        module.register_forward_pre_hook(lambda *_, name=name or "(root)": started.append(f"{name} runs"))
    return model, started


def gathers(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Gathers in TicTac's orders beside FSDP2 alone."""
    del size, folder

    def steps(model: nn.Module, started: list[str]) -> tuple[list[str], list[str], list[float]]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        passes: tuple[list[str], list[str]] = ([], [])
        losses = []
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(100 * rank + step)
            started.clear()
            loss = model(torch.randn(ROWS, 4, generator=generator)).square().sum()
            there = list(started)
            loss.backward()
            passes = there, started[len(there) :]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return *passes, losses

    plain, noted = sharded()
    there, back, losses = steps(plain, noted)
    found: dict[str, Any] = {"alone": {"forward": there, "backward": back}}
    for order, ahead in (("tac", 1), ("tac", 2), ("tac", None), ("tic", 2), ("backward", None)):
        model, started = sharded()
        made = prefetch_order(model, order=order, ahead=ahead, network=NETWORK)
        there, back, own = steps(model, started)
        found[f"{order} {ahead}"] = {
            "same": own == losses
            and all(
                torch.equal(p.to_local(), q.to_local())
                for p, q in zip(model.parameters(), plain.parameters(), strict=True)
            ),
            "forward": there,
            "backward": back,
            "said": [made.forward, made.backward],
            "bytes": made.workload.bytes,
        }
        made.close()
    started.clear()
    model(torch.randn(ROWS, 4))
    found["closed"] = list(started)
    found["refused"] = refusals(lambda: prefetch_order(Tower()), lambda: prefetch_order(model, ahead=0))
    return found


def every(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """All quick cases, one after the other."""
    return {mode: MODES[mode](rank, size, folder) for mode in ("out_of_order", "features", "gathers")}


MODES = {"out_of_order": out_of_order, "features": features, "gathers": gathers, "every": every}


if __name__ == "__main__":
    main(MODES)
