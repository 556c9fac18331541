"""Ranks of a training with experts: ``mixture_ranks.py MODE SIZE FOLDER BACKEND``; each writes what it found.

One process imports torch and becomes all ranks, which saves the time of importing it in each.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from refusals import refusals
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from coppice.errors import CheckError
from coppice.topology.presets import preset
from coppice.training.torch import (
    ExpertPaths,
    MixtureOfExperts,
    PlannedExchange,
    ReplicatedExperts,
    expert_parameter_names,
    schedule,
)
from coppice.training.torch.whole.mixture import packing
from coppice.training.torch.whole.mixture.exchanges import DirectExchanges
from coppice.training.torch.whole.mixture.network_queue import EXCHANGE

STEPS, ROWS, WIDTH = 20, 6, 8
NETWORK = (1e6, 1e-5)
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda ps: torch.optim.AdamW(ps, lr=0.01, eps=1e-4),  # far above the noise of small gradients
}


def expert() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))


class Block(nn.Module):
    """A dense layer and one of experts."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mixture = MixtureOfExperts(WIDTH, expert, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.relu(self.dense(x))
        return x + self.mixture(self.norm(x))


class Stack(nn.Module):
    """Blocks between an embedding that is read again at the end, with a frozen layer and a tensor of another type."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.blocks = nn.ModuleList([Block(**options) for _ in range(2)])
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.frozen(self.first(x))
        for block in self.blocks:
            y = block(y)
        return nn.functional.linear(y * self.scale.float(), self.first.weight)


def batch(step: int, size: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Inputs and targets of each rank."""
    generator = torch.Generator().manual_seed(step)
    shape = (size, ROWS, WIDTH)
    return tuple(list(torch.randn(shape, generator=generator)) for _ in range(2))  # type: ignore[return-value]


def loss_of(model: nn.Module, xs: list[torch.Tensor], ys: list[torch.Tensor]) -> torch.Tensor:
    """Mean over the ranks, each with its own tokens."""
    losses = [nn.functional.mse_loss(model(x), y) for x, y in zip(xs, ys, strict=True)]
    return torch.stack(losses).mean()


def distance(model: nn.Module, plain: nn.Module) -> float:
    """The largest difference to a model with all experts."""
    theirs = dict(plain.named_parameters())
    return max(
        float((p.detach() - theirs[name].detach()).abs().max()) for name, p in model.named_parameters()
    )


def planned_names(schedule_: Any, started: list[str]) -> list[str]:
    """What should have been started: names of sums at their places, exchanges as they were."""
    sums = [each.name for each in schedule_.plan.messages]
    exchanges = iter([each for each in started if not each.startswith("sum")])
    return [next(exchanges) if each == EXCHANGE else sums[each] for each in schedule_.plan.order]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "top 1": ({"top": 1}, {"token_pieces": 1}, "sgd"),
    "top 2, pieces": ({"top": 2}, {"token_pieces": 3, "micro_bytes": 200}, "sgd"),
    "searched": ({"top": 1}, {"micro_bytes": 100}, "adam"),
    "capacity": ({"top": 2, "capacity_factor": 0.8}, {"token_pieces": 2}, "sgd"),
}


def lone(cases: dict[str, Any], size: int) -> dict[str, nn.Module]:
    """The models with all experts, made before there is a group."""
    return {name: Stack(experts=4, **options) for name, (options, _, _) in cases.items()} | {
        "few": Stack(experts=max(1, size // 2), top=1),
        "plain": Stack(experts=4, top=2),
    }


def train(rank: int, size: int, folder: Path, alone: dict[str, nn.Module]) -> dict[str, Any]:
    """Every case beside one process that has all experts."""
    del folder
    found: dict[str, Any] = {}
    cases = {name: (4, *rest) for name, rest in CASES.items()}
    cases["few"] = (max(1, size // 2), {"top": 1}, {"token_pieces": 2}, "sgd")
    for name, (experts, options, settings, kind) in cases.items():
        plain, model = alone[name], Stack(experts=experts, **options)
        keys = set(plain.state_dict())
        reference, optimizer = (OPTIMIZERS[kind](each.parameters()) for each in (plain, model))
        model, optimizer = schedule(model, optimizer, "lina", network=NETWORK, **settings)
        for step in range(STEPS):
            xs, ys = batch(step, size)
            for each, own, mine in (
                (reference, plain, slice(None)),
                (optimizer, model, slice(rank, rank + 1)),
            ):
                each.zero_grad()
                loss_of(own, xs[mine], ys[mine]).backward()
                each.step()
        made = optimizer.schedule
        found[name] = {
            "distance": distance(model, plain),
            "keys": set(model.state_dict()) <= keys,
            "started": made.queue.started,
            "planned": planned_names(made, made.queue.started),
            "told": made.queue.told,
            "pieces": made.plan.token_pieces,
            "sums": len({each.layers for each in made.plan.messages}),
            "predicted": made.predicted_seconds,
            "plain": made.plain_seconds,
        }
        optimizer.close()
        found[name]["closed"] = type(optimizer).__name__
    found["stock"] = stock(rank, size)
    return found


def stock(rank: int, size: int) -> float:
    """Distance to whole exchanges with DistributedDataParallel for the rest."""
    ours, theirs = Stack(experts=4, top=2), Stack(experts=4, top=2)
    optimizers = [OPTIMIZERS["sgd"](each.parameters()) for each in (ours, theirs)]
    schedule(ours, optimizers[0], "lina", network=NETWORK, token_pieces=2)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        theirs, expert_parameter_names(theirs)
    )
    wrapped = DistributedDataParallel(theirs)
    for step in range(STEPS):
        xs, ys = batch(step, size)
        for model, optimizer in zip((ours, wrapped), optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(xs[rank]), ys[rank]).backward()
            optimizer.step()
    optimizers[0].close()
    return distance(ours, theirs)


def features(rank: int, size: int, folder: Path, alone: dict[str, nn.Module]) -> dict[str, Any]:
    """Accumulation, clipping, evaluation, checkpoints, packing, inference, and what is refused."""
    found: dict[str, Any] = {"accumulated": accumulated(rank, size, folder, alone["plain"])}
    found["packed"] = {
        str(memory): packed(rank, size, memory) for memory in (None, 2 * 4 * 4 * 2 * WIDTH * (2 * WIDTH + 2))
    }
    found["inference"] = inference(rank, alone)
    found["exchanges"] = exchanges(rank, size)
    found["refused"] = refused()
    return found


def exchanges(rank: int, size: int) -> dict[str, Any]:
    """Exchanges by plans for their traffic beside direct ones, and a training with them."""
    found: dict[str, Any] = {"alike": True, "planned": [], "relayed": []}
    network = preset("ring", gpus=size, gb_per_s=1)
    by_plan = PlannedExchange(network, least_bytes=0)
    ways = (DirectExchanges(by_plan), DirectExchanges())
    matrices = [
        torch.randint(0, 40, (size, size), generator=torch.Generator().manual_seed(1)) for _ in range(3)
    ]
    matrices[1][0, size // 2] = 400  # goes both ways round
    matrices[2][0] = 0
    for matrix in [*matrices, torch.zeros_like(matrices[0]), matrices[1]]:
        sent, received = matrix[rank].tolist(), matrix[:, rank].tolist()
        rows = torch.randn(sum(sent), 2, 3)
        outputs = [way.post("rows", rows, sent, received, dist.group.WORLD).wait() for way in ways]
        found["alike"] &= torch.equal(*outputs)
        found["planned"].append(by_plan.planned)
        found["relayed"].append(max(len(part.ranks) for part in by_plan.routes))
    models = [Stack(experts=4, top=2) for _ in range(2)]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    for model, optimizer, own in zip(models, optimizers, ({}, {"topology": network}), strict=True):
        schedule(model, optimizer, "lina", network=NETWORK, recorded=2, token_pieces=2, **own)
    # Blocks of a few tokens are too small to be planned, unless one asks for it.
    optimizers[1].schedule.queue._exchange._least_bytes = 0
    for step in range(STEPS // 2):
        xs, ys = batch(step, size)
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(xs[rank]), ys[rank]).backward()
            optimizer.step()
    found["trained"] = distance(*models)
    found["plans"] = optimizers[1].schedule.queue._exchange.planned
    for optimizer in optimizers:
        optimizer.close()
    return found


def accumulated(rank: int, size: int, folder: Path, plain: nn.Module) -> dict[str, Any]:
    model = Stack(rank, experts=4, top=2)
    whole = copy.deepcopy(plain.state_dict())
    model.load_state_dict(whole)  # a rank takes its experts out of all
    reference, optimizer = (OPTIMIZERS["sgd"](each.parameters()) for each in (plain, model))
    model, optimizer = schedule(model, optimizer, "lina", network=NETWORK, token_pieces=1)
    apart = []
    state: dict[str, Any] = {}
    for step in range(STEPS):
        one, two = batch(step, size), batch(1000 + step, size)
        optimizer.zero_grad()
        reference.zero_grad()
        if step % 4 == 3:
            with optimizer.no_sync():
                loss_of(model, one[0][rank : rank + 1], one[1][rank : rank + 1]).backward()
            loss_of(plain, *one).backward()
        loss_of(model, two[0][rank : rank + 1], two[1][rank : rank + 1]).backward()
        loss_of(plain, *two).backward()
        if step % 5 == 4:
            norm = float("inf") if step == 9 else 2.0
            norms = [
                float(optimizer.clip_grad_norm_(0.1, norm)),
                float(nn.utils.clip_grad_norm_(plain.parameters(), 0.1, norm)),
            ]
            apart.append(abs(norms[0] - norms[1]))
        optimizer.step()
        reference.step()
        if step == 11:
            model.eval()
            with torch.no_grad():
                apart.append(float((model(one[0][rank]) - plain(one[0][rank])).abs().max()))
            model.train()
        if step == 13:
            state = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    optimizer.close()
    torch.save(state, folder / f"state-{rank}.pt")
    state = torch.load(folder / f"state-{rank}.pt")
    other = Stack(7 + rank, experts=4, top=2)
    again = OPTIMIZERS["sgd"](other.parameters())
    other, again = schedule(other, again, "lina", network=NETWORK, token_pieces=1)
    other.load_state_dict(state["model"])
    again.load_state_dict(state["optimizer"])
    for step in range(14, STEPS):
        one, two = batch(step, size), batch(1000 + step, size)
        again.zero_grad()
        for number, (xs, ys) in enumerate((one, two)):
            if number:
                loss_of(other, xs[rank : rank + 1], ys[rank : rank + 1]).backward()
            elif step % 4 == 3:
                with again.no_sync():
                    loss_of(other, xs[rank : rank + 1], ys[rank : rank + 1]).backward()
        if step % 5 == 4:
            again.clip_grad_norm_(0.1)
        again.step()
    again.close()
    return {"distance": distance(model, plain), "worst": max(apart), "resumed": distance(other, model)}


def packed(rank: int, size: int, memory: float | None) -> dict[str, Any]:
    """Experts packed while exchanges are said to take longer, beside a run without."""
    before = packing.piece_seconds
    packing.piece_seconds = lambda items, label: (1.0, 4.0) if before(items, label) else None
    models = [Stack(experts=4, top=2) for _ in range(2)]
    optimizers = [OPTIMIZERS["adam"](each.parameters()) for each in models]
    settings = [{}, {"pack_every": 2, "memory_bytes": memory}]
    for model, optimizer, own in zip(models, optimizers, settings, strict=True):
        schedule(model, optimizer, "lina", network=NETWORK, recorded=2, token_pieces=2, **own)
    after, apart, counts = [], [], []
    try:
        for step in range(STEPS):
            xs, ys = batch(step, size)
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(xs[rank]), ys[rank]).backward()
                optimizer.step()
            plain = dict(models[0].named_parameters())
            mine = [
                float((p.detach() - plain[name].detach()).abs().max())
                for name, p in models[1].named_parameters()
                if name in plain
            ]
            apart.append(max(mine))
            counts.append(models[1].blocks[0].mixture.layout.of_rank)
    finally:
        packing.piece_seconds = before
    # What a rank has taken over is what the partner has.
    flat = {name: p.detach() for name, p in models[1].named_parameters() if "experts" in name}
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, flat)
    for name, mine in flat.items():
        after += [float((mine - other[name]).abs().max()) for other in everyone if name in other]
    names = [name for name, _ in models[1].named_parameters()]
    order = {id(p): place for place, (_, p) in enumerate(models[1].named_parameters())}
    numbers = [order[id(p)] for p in optimizers[1].param_groups[0]["params"]]
    states = {len(optimizers[1].state[p]) for p in models[1].parameters() if p.requires_grad}
    for optimizer in optimizers:
        optimizer.close()
    return {
        "distance": max(apart),
        "counts": counts,
        "replicas": max(after),
        "ordered": numbers == sorted(numbers),
        "experts": len([name for name in names if "0.mixture.experts" in name]) // 4,
        "states": len(states),
    }


class Skewed(nn.Module):
    """Layers whose experts follow from the one that tokens took before, which Zipf's law gives."""

    def __init__(self, experts: int, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList()
        for _ in range(3):
            made = lambda: nn.Sequential(nn.Linear(experts, experts), nn.Tanh())  # noqa: E731
            layer = MixtureOfExperts(experts, made, experts=experts, **options)
            layer.gate.weight.data.copy_(20 * torch.eye(experts).roll(len(self.layers), 0))
            self.layers.append(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + 0.1 * layer(x)
        return x


def zipf(tokens: int, experts: int, seed: int) -> torch.Tensor:
    """Tokens of which each takes one expert, the k-th with probability in proportion to 1 / k^1.2."""
    generator = torch.Generator().manual_seed(seed)
    chance = 1 / torch.arange(1, experts + 1) ** 1.2
    chosen = torch.multinomial(chance, tokens, replacement=True, generator=generator)
    noise = torch.randn(tokens, experts, generator=generator)
    return nn.functional.one_hot(chosen, experts) + 0.05 * noise


def inference(rank: int, alone: dict[str, nn.Module], experts: int = 16, tokens: int = 256) -> dict[str, Any]:
    """Replicas of popular experts beside one process."""
    found: dict[str, Any] = {}
    for top in (1, 2):
        plain, model = alone[f"skewed {top}"], Skewed(experts, top=top).eval()
        with torch.no_grad():
            with ExpertPaths(model) as paths:
                for number in range(4):
                    model(zipf(64, experts, 100 * number + rank))
            running = ReplicatedExperts(paths)
            apart, loads = [], []
            for number in range(3):
                x = zipf(tokens, experts, 1000 + 10 * number + rank)
                apart.append(float((model(x) - plain(x)).abs().max()))
                loads += [max(own) * len(own) / sum(own) for own in running.loads.values()]
            as_estimated = list(running.replanned)
            for each in (model, plain):  # other experts than were recorded
                gate = each.layers[1].gate.weight
                gate.data.copy_(gate.data.flip(0))
            apart.append(float((model(x) - plain(x)).abs().max()))
            running.close()
            after = float((model(x) - plain(x)).abs().max())
        found[str(top)] = {
            "distance": max(*apart, after),
            "loads": loads,
            "replanned": [as_estimated, list(running.replanned)],
            "replicas": running.placed["layers.1"].placement.replicas,
        }
    return found


def refused() -> list[str]:
    said = []
    dense = nn.Linear(2, 2)
    mixed = Stack(experts=4, top=1)
    said += refusals(
        lambda: schedule(dense, OPTIMIZERS["sgd"](dense.parameters()), "lina", network=NETWORK),
        lambda: schedule(mixed, OPTIMIZERS["sgd"](mixed.parameters()), "lina", network=NETWORK, pack_every=0),
        lambda: schedule(mixed, OPTIMIZERS["sgd"](mixed.parameters()), "lina", topology="ring", pack_every=1),
        lambda: MixtureOfExperts(WIDTH, expert, experts=3),
        lambda: MixtureOfExperts(WIDTH, expert, experts=1, top=2),
        lambda: ReplicatedExperts(ExpertPaths(mixed)),
    )
    return said


def killed(rank: int, size: int, folder: Path, alone: dict[str, nn.Module]) -> dict[str, Any]:
    """Rank 1 dies in the middle of a forward pass."""
    del folder, alone
    model = Stack(experts=4, top=2)
    _, optimizer = schedule(
        model, OPTIMIZERS["sgd"](model.parameters()), "lina", network=NETWORK, token_pieces=2, timeout_s=120
    )
    step = 0
    try:
        for step in range(STEPS):
            xs, ys = batch(step, size)
            if step == 8 and rank == 1:
                model.blocks[1].norm.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            optimizer.zero_grad()
            nn.functional.mse_loss(model(xs[rank]), ys[rank]).backward()
            optimizer.step()
    except CheckError as error:
        return {"said": str(error), "step": step}
    return {"said": "", "step": STEPS}


def many(rank: int, size: int, folder: Path, alone: dict[str, nn.Module]) -> dict[str, Any]:
    """Inference on as many ranks as experts."""
    del size, folder
    return inference(rank, alone)


MODES = {"train": train, "features": features, "killed": killed, "many": many}


def member(rank: int, mode: str, size: int, folder: Path, backend: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    alone = lone(CASES, size) if mode in ("train", "features") else {}
    if mode in ("features", "many"):
        alone |= {f"skewed {top}": Skewed(16, top=top) for top in (1, 2)}
    if backend == "coppice":
        import coppice.torch  # noqa: F401 (registers the backend)
    dist.init_process_group(
        backend, store=dist.FileStore(str(folder / "store"), size), rank=rank, world_size=size
    )
    outcome = MODES[mode](rank, size, folder, alone)
    (folder / f"outcome-{rank}.json").write_text(json.dumps(outcome))
    if mode == "killed":
        os._exit(0)  # the group cannot be taken down in order any more
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    given = (sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    context = torch.multiprocessing.start_processes(
        member, args=given, nprocs=given[1], start_method="fork", join=False
    )
    for process in context.processes:
        process.join()
    wanted = [-signal.SIGKILL if given[0] == "killed" and rank == 1 else 0 for rank in range(given[1])]
    sys.exit([process.exitcode for process in context.processes] != wanted)
