"""One worker of a training with parameter servers; arguments as in overlap_ranks.py. ``server FILE``: a server."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from overlap_ranks import NETWORK, OPTIMIZERS, ROWS, STEPS, Tied, batch, chain, distance, main, tied, words
from torch import nn

from coppice.errors import CheckError, InputError
from coppice.training.torch import schedule, serve_parameters

CASES: list[tuple[str, str, int, dict[str, Any]]] = [
    ("p3", "sgd", 2, {"slice_elements": 1000}),
    ("p3", "adam", 1, {"slice_elements": 301}),
    ("tictac", "sgd", 2, {}),
    ("tictac", "adam", 2, {"order": "backward"}),
]


def server(file: Path) -> None:
    """Serve one training after the other at the same address."""
    address = "127.0.0.1:0"

    def ready(found: str) -> None:
        nonlocal address
        address = found
        if not file.exists():
            file.with_suffix(".tmp").write_text(found)
            file.with_suffix(".tmp").rename(file)

    while True:
        try:
            serve_parameters(address, ready=ready, timeout_s=60)
        except (CheckError, InputError) as error:
            with file.with_suffix(".said").open("a") as said:
                said.write(f"{error}\n")


def loss(model: nn.Module, step: int, size: int, rank: int) -> torch.Tensor:
    """Of the rows of a rank."""
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    if isinstance(model, Tied):
        x, y = words(step, size)
        return nn.functional.cross_entropy(model(x[mine]), y[mine])
    x, y = batch(step, size)
    return nn.functional.mse_loss(model(x[mine]), y[mine])


def emulated(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, size: int) -> None:
    """A step of all workers in one process, with sums in their order."""
    trained = [p for p in model.parameters() if p.requires_grad]
    parts = [torch.autograd.grad(loss(model, step, size, rank), trained) for rank in range(size)]
    for parameter, own in zip(trained, zip(*parts, strict=True), strict=True):
        total = own[0] * (1 / size)
        for other in own[1:]:
            total += other * (1 / size)
        parameter.grad = total
    optimizer.step()


def served(rank: int, size: int, addresses: list[str]) -> dict[str, Any]:
    """Trainings with servers beside their emulation in one process."""
    found: dict[str, Any] = {}
    for number, (name, kind, count, settings) in enumerate(CASES):
        make = tied if number % 2 else chain
        model, plain = make(rank), make()
        optimizer, reference = (
            OPTIMIZERS[kind](p for p in each.parameters() if p.requires_grad) for each in (model, plain)
        )
        options: dict[str, Any] = {
            "network": NETWORK,
            "servers": addresses[:count],
            "timeout_s": 60,
            **settings,
        }
        schedule(model, optimizer, name, **options)
        rates = [torch.optim.lr_scheduler.StepLR(each, 5, 0.5) for each in (optimizer, reference)]
        saved: dict[str, Any] = {}
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, step, size, rank).backward()
            optimizer.step()
            emulated(plain, reference, step, size)
            for each in rates:
                each.step()
            if step == 9:
                for each in (model, plain):  # servers are told
                    with torch.no_grad():
                        for parameter in each.parameters():
                            parameter.mul_(0.9)
            if step == 13:
                saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        made = optimizer.schedule
        planned = {
            stream: [made.plan.messages[each].name for each in order]
            for stream, order in made.plan.order.items()
        }
        optimizer.flush()
        found[f"{name} {number}"] = {
            "distance": distance(model, plain),
            "ordered": made.launched == planned and set(planned) == {"up", "down"},
            "executor": type(made._executor).__name__,
            "messages": len(made.plan.messages),
        }
        optimizer.close()
        states = [
            [each.state[p] for p in source.parameters() if p.requires_grad]
            for each, source in ((optimizer, model), (reference, plain))
        ]
        found[f"{name} {number}"]["states"] = max(
            float((own[key] - other[key]).abs().max())
            for own, other in zip(*states, strict=True)
            for key in other
            if isinstance(other[key], torch.Tensor)
        )
        other = make(7)
        again = OPTIMIZERS[kind](p for p in other.parameters() if p.requires_grad)
        other.load_state_dict(saved["model"])
        again.load_state_dict(saved["optimizer"])
        schedule(other, again, name, **{**options, "recorded": 2})
        rates = [torch.optim.lr_scheduler.StepLR(again, 5, 0.5, last_epoch=13)]
        for step in range(14, STEPS):
            again.zero_grad()
            loss(other, step, size, rank).backward()
            again.step()
            rates[0].step()
        again.flush()
        found[f"{name} {number}"]["resumed"] = distance(other, model)
        again.close()
    return found


def refused(rank: int, size: int, addresses: list[str]) -> list[str]:
    """What servers cannot do."""
    said = []
    for name, servers, options in (
        ("priority", addresses, {}),
        ("p3", addresses, {"transport": "all_reduce"}),
        ("p3", addresses, {"tune": True}),
        ("p3", addresses, {"unused": True}),
        ("p3", ["nowhere"], {}),
        ("p3", [], {}),
    ):
        model = chain()
        try:
            schedule(
                model,
                OPTIMIZERS["sgd"](model.parameters()),
                name,
                servers=servers,
                network=NETWORK,
                **options,
            )
        except InputError as error:
            said.append(str(error))
    model = chain()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    schedule(model, optimizer, "p3", servers=addresses, network=NETWORK, recorded=2)
    for step in range(4):
        optimizer.zero_grad()
        loss(model, step, size, rank).backward()
        if step == 3:
            for attempt in (lambda: optimizer.clip_grad_norm_(1.0), optimizer.step):
                try:
                    attempt()
                except InputError as error:
                    said.append(str(error))
                optimizer.param_groups[0]["lr"] = 0.5
            optimizer.param_groups[0]["lr"] = 0.05
        optimizer.step()
    optimizer.close()
    return said


def until_lost(rank: int, size: int, addresses: list[str], lose: Any) -> str:
    """The error of a training in which something is killed in step 8."""
    model = chain()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    try:
        schedule(model, optimizer, "p3", servers=addresses, network=NETWORK, timeout_s=120)
        for step in range(200):
            optimizer.zero_grad()
            if step == 8:
                lose()
            loss(model, step, size, rank).backward()
            optimizer.step()
    except CheckError as error:
        return str(error)
    return ""


def killed(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Everything; at the end a server and then rank 1 are killed."""
    files = [folder / f"server-{number}" for number in range(2)]
    processes = []
    if rank == 0:
        command = [sys.executable, __file__, "server"]
        processes = [subprocess.Popen([*command, str(file)]) for file in files]
    try:
        while not all(file.exists() for file in files):
            time.sleep(0.05)
        addresses = [file.read_text() for file in files]
        found: dict[str, Any] = {
            "served": served(rank, size, addresses),
            "refused": refused(rank, size, addresses),
            "server": until_lost(rank, size, addresses, lambda: processes[1].kill() if processes else None),
        }
        dist.barrier()
        found["worker"] = until_lost(
            rank, size, addresses[:1], lambda: os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else None
        )
        deadline = time.monotonic() + 120
        said = files[0].with_suffix(".said")
        while time.monotonic() < deadline and (not said.exists() or "worker 1" not in said.read_text()):
            time.sleep(0.05)
        found["said"] = said.read_text().splitlines()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


if __name__ == "__main__":
    if sys.argv[1] == "server":
        torch.set_num_threads(1)
        server(Path(sys.argv[2]))
    main({"killed": killed})
