"""One rank of a training with AutoLRS: `python rank_program.py MODE RANK SIZE DIRECTORY`; its outcome is a file.

MODE is ddp, fsdp or poisoned (the last rank's loss is NaN at large rates). The training is saved after some steps; then
a fresh one goes on from each of these checkpoints, and the outcome tells how all of them ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from coppice.training.torch import AutoLRS


class Data:
    """Batches by number and rank; it can be turned back."""

    def __init__(self, rank: int) -> None:
        self.rank, self.position = rank, 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 * self.rank + self.position)
        self.position += 1
        x = torch.randn(8, 6, generator=generator)
        return x, (x[:, :1] * x[:, 1:2]).tanh()

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def digest(values: list[torch.Tensor]) -> str:
    whole = hashlib.sha256()
    for value in values:
        local = value.to_local() if hasattr(value, "to_local") else value
        whole.update(local.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()


class Training:
    """A model, its optimizer, its data and AutoLRS."""

    def __init__(self, mode: str, rank: int, size: int, log: Path) -> None:
        torch.manual_seed(0)
        # 7 and 5 rows do not divide among ranks: some shards are smaller, or empty.
        model: nn.Module = nn.Sequential(nn.Linear(6, 7), nn.Dropout(0.1), nn.Linear(7, 5), nn.Linear(5, 1))
        if mode == "fsdp":
            mesh = init_device_mesh("cpu", (size,))
            fully_shard(model[2], mesh=mesh)
            fully_shard(model, mesh=mesh)
        else:
            model = DistributedDataParallel(model)
            # DDP lays out its buckets anew after the first backward pass, and sums of more than two ranks are rounded
            # as the layout has it: a training and its continuation get the final layout before their first step.
            for _ in range(2):
                model(torch.ones(2, 6)).sum().backward()
            model.zero_grad()
        self.model, self.data, self.rates = model, Data(rank), []
        self.poisoned = mode == "poisoned" and rank == size - 1
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        torch.manual_seed(rank)
        self.tuner = AutoLRS(
            model,
            self.optimizer,
            val_fn=lambda: 0.5 + 0.1 * rank + 0.01 * self.data.position,
            lr_range=(1e-4, 0.3),
            tau=50,
            tau_max=50,
            candidates=4,
            warmup_steps=5,
            kept_steps=105,
            data=self.data,
            log=log,
            progress=False,
        )

    def step(self) -> None:
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        x, y = self.data.next()
        loss: Any = (self.model(x) - y).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        bad = self.poisoned and self.tuner.phase == "search" and self.rates[-1] > 0.003
        self.tuner.step(loss * float("nan") if bad else loss)

    def end(self) -> dict[str, Any]:
        states = self.optimizer.state.values()
        return {
            "phase": str(self.tuner.phase),
            "total": self.tuner.total_steps,
            "weights": digest(list(self.model.parameters())),
            "moments": digest([value for state in states for _, value in sorted(state.items())]),
            "random": digest([torch.get_rng_state()]),
            "position": self.data.position,
        }


def main() -> None:
    mode, rank, size, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    stops = [] if mode == "poisoned" else [3, 12, 60]
    training = Training(mode, rank, size, folder / f"log-{rank}.jsonl")
    phases = []
    while not training.tuner.finished:
        training.step()
        if training.tuner.total_steps in stops:
            phases.append(str(training.tuner.phase))
            training.tuner.save(folder / f"checkpoint-{training.tuner.total_steps}")
    outcome = {"rates": training.rates, "phases": phases, "whole": training.end(), "resumed": []}
    for stop in stops:
        again = Training(mode, rank, size, folder / f"again-{stop}-{rank}.jsonl")
        if rank == 0:
            (folder / f"again-{stop}-0.jsonl").write_bytes((folder / "log-0.jsonl").read_bytes())
        torch.manual_seed(77)
        found = again.tuner.load(folder / f"checkpoint-{stop}")
        while not again.tuner.finished:
            again.step()
        outcome["resumed"].append({"found": found, "rates": again.rates, "end": again.end()})
    (folder / f"outcome-{rank}.json").write_text(json.dumps(outcome))
    dist.barrier()
    dist.destroy_process_group()
    # Threads of gloo that outlive the interpreter may abort the process when it ends.
    os._exit(0)


if __name__ == "__main__":
    main()
