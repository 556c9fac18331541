"""A rank of `adapt_lab.py`: ``PROGRAM FOLDER STEPS HALT``; steps of a small network under DDP, rank 0 says its times.

Before step HALT rank 0 leaves the file `halted`, and all wait for the file `go`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import coppice.torch  # noqa: F401 (registers the backend)

WIDTH, LAYERS, BATCH = 1024, 2, 16
POLL_S = 0.02


def main(folder: Path, steps: int, halt: int) -> None:
    """Train, and print one JSON line on rank 0."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("coppice")
    rank = dist.get_rank()
    layers = [each for _ in range(LAYERS) for each in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())]
    # A bucket of gradients is a layer: all calls are of one size
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=WIDTH * WIDTH * 4 / 2**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    choose = torch.Generator().manual_seed(rank)
    wanted = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(7)) / WIDTH**0.5
    times, losses = [], []
    for step in range(steps):
        if step == halt:
            if rank == 0:
                (folder / "halted").touch()
            while not (folder / "go").exists():
                time.sleep(POLL_S)
        given = torch.randn(BATCH, WIDTH, generator=choose)
        begin = time.perf_counter()
        loss = nn.functional.mse_loss(model(given), torch.tanh(given @ wanted))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        times.append(time.perf_counter() - begin)
        losses.append(float(mean) / dist.get_world_size())
        if rank == 0:
            (folder / "step").write_text(str(step))
    if rank == 0:
        print(json.dumps({"seconds": times, "losses": losses}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
