"""Train a small network on several processes with collectives that Coppice plans.

    torchrun --nproc-per-node 4 examples/train_ddp.py
    COPPICE_TOPOLOGY=cluster.json torchrun --nproc-per-node 8 examples/train_ddp.py
    torchrun --nproc-per-node 4 examples/train_ddp.py --backend gloo
    torchrun --nproc-per-node 2 examples/train_ddp.py --backend gloo --policy bytescheduler

The network learns to guess the next character of the English text in Python's own documentation, which is part of
every installation; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import time
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import coppice.torch  # noqa: F401  (makes the backend known)
from coppice.training.torch import schedule

CONTEXT = 16
BATCH = 64


def text_samples(limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Characters before, as numbers below 128, and the character that follows."""
    text = "".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    numbers = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    starts = torch.arange(0, len(numbers) - CONTEXT - 1, max(1, (len(numbers) - CONTEXT - 1) // limit))[
        :limit
    ]
    return numbers[starts[:, None] + torch.arange(CONTEXT)], numbers[starts + CONTEXT]


def main() -> None:
    """Train, and let rank 0 print the mean loss of every epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="coppice", help="coppice, or gloo to compare")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--policy", help="overlap by this policy, instead of DistributedDataParallel")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network: nn.Module = nn.Sequential(
        nn.Embedding(128, 32),
        nn.Flatten(),
        nn.Linear(32 * CONTEXT, options.width),
        nn.ReLU(),
        nn.Linear(options.width, 128),
    )
    optimizer: torch.optim.Optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    if options.policy:
        network, optimizer = schedule(network, optimizer, policy=options.policy)
    else:
        network = DistributedDataParallel(network)
    given, wanted = text_samples(options.samples)
    for epoch in range(options.epochs):
        order = torch.randperm(len(given), generator=torch.Generator().manual_seed(epoch))[rank::ranks]
        order = order[: len(given) // ranks]  # the same number of steps on every rank
        total, steps, begin = torch.zeros(1), 0, time.perf_counter()
        for rows in order.split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(given[rows]), wanted[rows])
            loss.backward()
            optimizer.step()
            total += loss.detach()
            steps += 1
        dist.all_reduce(total, dist.ReduceOp.AVG)
        if rank == 0:
            seconds = time.perf_counter() - begin
            mean, step_ms = float(total) / steps, 1e3 * seconds / steps
            print(f"epoch {epoch + 1}: {step_ms:.1f} ms a step, loss {mean:.5f}")  # noqa: T201 (a script's output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
