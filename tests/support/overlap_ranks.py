"""One rank of a training: ``overlap_ranks.py MODE RANK SIZE FOLDER BACKEND``; it writes what it found."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from refusals import refusals
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from coppice.errors import CheckError, InputError
from coppice.training.torch import pipeline, schedule

Settings = dict[str, Any]

POLICIES: list[tuple[str, Settings]] = [
    ("ddp", {}),
    ("ddp", {"bucket_bytes": 20000, "first_bytes": 1000}),
    ("serial", {}),
    ("wfbp", {}),
    ("priority", {"partition_bytes": 4000}),
    ("bytescheduler", {"partition_bytes": 4002, "credit_bytes": 8000}),
    ("dear", {"threshold_bytes": 20000}),
    ("dear", {"threshold_bytes": 0, "ahead": 1}),
    ("p3", {"slice_elements": 1000}),
    ("p3", {"slice_elements": 700, "transport": "all_reduce"}),
    ("pace", {}),
    ("gradientflow", {"theta_bytes": 9000}),
    ("tictac", {}),
    ("jia", {}),
    ("mg-wfbp", {}),
]
NETWORK = (1e8, 1e-4)
STEPS = 20
ROWS = 4


class Tied(nn.Module):
    """An embedding that is read again at the end, a frozen layer, and a tensor of another type."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.mix = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.mix(self.frozen(self.embed(x)))) * self.scale.float()
        return nn.functional.linear(y, self.embed.weight)


def chain(seed: int = 0) -> nn.Module:
    """Layers of different sizes."""
    torch.manual_seed(seed)
    sizes = (16, 64, 64, 256, 4)
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise(sizes):
        layers += [nn.Linear(width, following), nn.ReLU()]
    layers.insert(4, nn.LayerNorm(64))
    return nn.Sequential(*layers[:-1])


def tied(seed: int = 0) -> nn.Module:
    """See :class:`Tied`."""
    torch.manual_seed(seed)
    return Tied()


OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda ps: torch.optim.AdamW(ps, lr=0.01, amsgrad=True),
}


def batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all ranks."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size * ROWS, 16, generator=generator), torch.randn(size * ROWS, 4, generator=generator)


def words(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and what follows them."""
    generator = torch.Generator().manual_seed(step)
    shape = (size * ROWS,)
    return torch.randint(11, shape, generator=generator), torch.randint(11, shape, generator=generator)


def distance(a: nn.Module, b: nn.Module) -> float:
    """The largest difference of their parameters."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float((one.detach() - other.detach()).abs().max()) for one, other in pairs)


def policies(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Every policy beside a single process that sees all rows."""
    del folder
    found = {}
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    for number, (name, settings) in enumerate(POLICIES):
        for kind in ("sgd", "adam") if number % 3 == 0 else ("sgd",):
            plain, model = chain(), chain(rank)
            reference, optimizer = (OPTIMIZERS[kind](each.parameters()) for each in (plain, model))
            rates = torch.optim.lr_scheduler.StepLR(reference, 5, 0.5)
            own_rates = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
            model, optimizer = schedule(model, optimizer, name, network=NETWORK, **settings)
            for step in range(STEPS // 2):
                x, y = batch(step, size)
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
                optimizer.step()
                own_rates.step()
                reference.zero_grad()
                nn.functional.mse_loss(plain(x), y).backward()
                reference.step()
                rates.step()
            optimizer.flush()
            plan = optimizer.schedule.plan
            found[f"{name} {number} {kind}"] = {
                "distance": distance(model, plain),
                "messages": len(plan.messages),
                "launched": optimizer.schedule.launched,
                "planned": {
                    stream: [plan.messages[each].name for each in order]
                    for stream, order in plan.order.items()
                },
                "predicted": optimizer.schedule.predicted_seconds,
                "step": type(optimizer).__name__,
            }
            optimizer.close()
            found[f"{name} {number} {kind}"]["closed"] = type(optimizer).__name__
    return found


def same_as_ddp(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Bit for bit the weights of DistributedDataParallel."""
    del folder
    found = {}
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    for cap in (25.0, 0.03):
        ours, theirs = chain(), chain()
        wrapped = DistributedDataParallel(theirs, bucket_cap_mb=cap)
        optimizers = [OPTIMIZERS["sgd"](each.parameters()) for each in (ours, theirs)]
        first = {"first_bytes": min(2**20, cap * 2**20), "bucket_bytes": cap * 2**20}
        _, scheduled = schedule(ours, optimizers[0], "ddp", network=NETWORK, **first)
        for step in range(STEPS):
            x, y = batch(step, size)
            for model, optimizer in ((ours, scheduled), (wrapped, optimizers[1])):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
                optimizer.step()
        found[f"{cap}"] = {
            "distance": distance(ours, theirs),
            "messages": len(scheduled.schedule.plan.messages),
        }
        scheduled.close()
    return found


def features(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Tied, frozen and mixed parameters, accumulation, clipping, checkpoints, evaluation, and what is refused."""
    found: dict[str, Any] = {}
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    for name in ("bytescheduler", "dear", "ddp"):
        plain, model = tied(), tied(rank)
        reference, optimizer = (OPTIMIZERS["adam"](each.parameters()) for each in (plain, model))
        model, optimizer = schedule(model, optimizer, name, network=NETWORK)
        losses = []
        for step in range(STEPS):
            x, y = words(step, size)
            a, b = words(1000 + step, size)
            optimizer.zero_grad()
            reference.zero_grad()
            if step % 4 == 3:
                with optimizer.no_sync():
                    nn.functional.cross_entropy(model(a[mine]), b[mine]).backward()
                nn.functional.cross_entropy(plain(a), b).backward()
            nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
            nn.functional.cross_entropy(plain(x), y).backward()
            if step % 5 == 4:
                norms = [
                    float(optimizer.clip_grad_norm_(0.1)),
                    float(nn.utils.clip_grad_norm_(plain.parameters(), 0.1)),
                ]
                losses.append(abs(norms[0] - norms[1]))
            optimizer.step()
            reference.step()
            if step == 11:  # without flush: the forward pass itself completes what it needs
                model.eval()
                with torch.no_grad():
                    losses.append(float((model(x) - plain(x)).abs().max()))
                model.train()
            if step == 13:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                if rank == 0:
                    torch.save(state, folder / f"{name}.pt")
        optimizer.flush()
        found[name] = {
            "distance": distance(model, plain),
            "worst": max(losses),
            "keys": list(model.state_dict()),
        }
        optimizer.close()
        dist.barrier()
        other = tied(7)
        again = OPTIMIZERS["adam"](other.parameters())
        state = torch.load(folder / f"{name}.pt")
        other.load_state_dict(state["model"])
        again.load_state_dict(state["optimizer"])
        other, again = schedule(other, again, name, network=NETWORK)
        for step in range(14, STEPS):
            x, y = words(step, size)
            a, b = words(1000 + step, size)
            again.zero_grad()
            if step % 4 == 3:
                with again.no_sync():
                    nn.functional.cross_entropy(other(a[mine]), b[mine]).backward()
            nn.functional.cross_entropy(other(x[mine]), y[mine]).backward()
            if step % 5 == 4:
                again.clip_grad_norm_(0.1)
            again.step()
        again.flush()
        found[name]["resumed"] = distance(other, model)
        again.close()
    found["refused"] = refused(rank, size)
    return found


def refused(rank: int, size: int) -> list[str]:
    """Messages of what cannot be done."""
    said = []
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    model = chain()
    _, optimizer = schedule(
        model, OPTIMIZERS["sgd"](model.parameters()), "priority", network=NETWORK, recorded=2
    )

    def train(step: int) -> None:
        x, y = batch(step, size)
        nn.functional.mse_loss(model(x[mine]), y[mine]).backward()

    for step in range(4):
        optimizer.zero_grad()
        train(step)
        optimizer.step()
    train(4)

    def accumulate() -> None:
        with optimizer.no_sync():
            train(4)

    said += refusals(
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        lambda: optimizer.step(lambda: 0.0),
        lambda: train(5),
        accumulate,
    )
    optimizer.step()
    optimizer.close()
    wide = nn.ModuleList([nn.Linear(16, 4), nn.Linear(16, 4)])
    _, optimizer = schedule(wide, OPTIMIZERS["sgd"](wide.parameters()), "ddp", network=NETWORK)
    try:
        x, y = batch(0, size)
        nn.functional.mse_loss(wide[0](x[mine]), y[mine]).backward()
    except InputError as error:
        said.append(str(error))
    apart = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, device="meta")])
    try:
        schedule(apart, OPTIMIZERS["sgd"](apart.parameters()), "ddp", network=NETWORK)
    except InputError as error:
        said.append(str(error))
    return said


class Emptied(nn.Module):
    """A perceptron and a parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = chain()
        self.empty = nn.Parameter(torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x) + self.empty.sum()
        return made


def odd(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """A parameter without elements, and what ranks must not be told."""
    del folder
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    found: dict[str, Any] = {}
    for name in ("bytescheduler", "serial"):
        plain, model = Emptied(), Emptied()
        reference, optimizer = (OPTIMIZERS["sgd"](each.parameters()) for each in (plain, model))
        model, optimizer = schedule(model, optimizer, name, network=NETWORK)
        for step in range(8):
            x, y = batch(step, size)
            for each, rows, stepping in ((model, mine, optimizer), (plain, slice(None), reference)):
                stepping.zero_grad()
                nn.functional.mse_loss(each(x[rows]), y[rows]).backward()
                stepping.step()
        optimizer.close()
        found[name] = distance(plain.inner, model.inner)
    said = []
    frozen, sharded = chain().requires_grad_(False), chain()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (size,)))
    here = {"network": NETWORK}
    for model, policy, settings in (
        (chain(), ("ddp", "dear")[rank % 2], here),
        (chain(), "ddp", {**here, "bucket_bytes": 100 + rank}),
        (chain(), "dear", {**here, "tune": rank == 1}),
        (chain(), "ddp", {"network": (0, 0)}),
        (chain(), "ddp", {"network": "fast"}),
        (frozen, "ddp", here),
        (nn.parallel.DistributedDataParallel(chain()), "ddp", here),
        (sharded, "ddp", here),
        (chain(), ("lina", "ddp")[rank % 2], here),
        (chain(), ("centauri", "syndicate")[rank % 2], {}),
        (chain(), "lina", {**here, "token_pieces": 1 + rank}),
    ):
        try:
            schedule(model, OPTIMIZERS["sgd"](model.parameters()), policy, **settings)
        except InputError as error:
            said.append(str(error))
    try:
        pipeline([chain(), chain()], OPTIMIZERS["sgd"], nn.functional.mse_loss, micro_batches=2 + rank)
    except InputError as error:
        said.append(str(error))
    return {"distances": found, "refused": said}


def killed(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Rank 1 dies while gradients are under way."""
    del folder
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    model = chain()
    _, optimizer = schedule(
        model, OPTIMIZERS["sgd"](model.parameters()), "bytescheduler", network=NETWORK, timeout_s=120
    )
    try:
        for step in range(STEPS):
            x, y = batch(step, size)
            if step == 8 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
            optimizer.step()
        optimizer.flush()
    except CheckError as error:
        return {"said": str(error), "step": step}
    return {"said": "", "step": STEPS}


MODES = {"policies": policies, "same_as_ddp": same_as_ddp, "features": features, "odd": odd, "killed": killed}


def main(modes: Mapping[str, Callable[[int, int, Path], dict[str, Any]]]) -> None:
    """Join the others, and run a mode."""
    mode, rank, size, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    backend = sys.argv[5]
    if backend == "coppice":
        import coppice.torch  # noqa: F401 (registers the backend)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    outcome = modes[mode](rank, size, folder)
    (folder / f"outcome-{rank}.json").write_text(json.dumps(outcome))
    if mode.startswith("killed"):
        os._exit(0)  # the group cannot be taken down in order any more
    dist.destroy_process_group()


if __name__ == "__main__":
    main(MODES)
