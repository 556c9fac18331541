"""A rank whose world goes on with another network, in the middle of its calls."""

from __future__ import annotations

import torch
import torch.distributed as dist
from worker import RANK, RANKS, tell, world

from coppice.run.adapting.adapting import slowed
from coppice.topology.presets import preset

SLOW = slowed(preset("ring", gpus=RANKS), {"gpu1 -> gpu2": 0.3})


def summed() -> bool:
    """Whether a sum is right."""
    total = torch.arange(100, dtype=torch.int32) * (RANK + 1)
    dist.all_reduce(total)
    return torch.equal(total, torch.arange(100, dtype=torch.int32) * sum(range(1, RANKS + 1)))


right, errors = [], []
with world("messages") as group:
    right.append(summed())
    before = torch.full((64,), float(RANK))
    issued = dist.all_reduce(before, async_op=True)
    group.replan(SLOW if RANK == 0 else None)  # rank 0 proposes
    issued.wait()
    right += [before.tolist() == [float(sum(range(RANKS)))] * 64, summed()]
    try:
        group.replan(SLOW if RANK == 2 else preset("ring", gpus=RANKS))
    except dist.DistBackendError as error:
        errors.append(str(error))
    right.append(summed())
with world("shm") as group:
    right.append(summed())
    try:
        group.replan(SLOW)
    except dist.DistBackendError as error:
        errors.append(str(error))
    right.append(summed())
tell({"right": right, "errors": errors})
