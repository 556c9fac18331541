"""A rank whose world runs a set of plans: each message by the plan for its size."""

from __future__ import annotations

import torch
import torch.distributed as dist
from worker import RANK, RANKS, tell, world

from coppice.run.torch.backend_path import Options

# COPPICE_ALGORITHM names the folder of the set.
right = {}
with world("set", options=Options(engine="torch", threshold_bytes=0)):
    for elements in (1, 255, 256, 257, 511, 512, 100_000):
        total = torch.arange(elements, dtype=torch.int32) * (RANK + 1)
        dist.all_reduce(total)
        expected = torch.arange(elements, dtype=torch.int32) * sum(range(1, RANKS + 1))
        right[4 * elements] = bool(torch.equal(total, expected))
    blocks = torch.zeros(RANKS)
    dist.all_gather_into_tensor(blocks, torch.full((1,), float(RANK)))
tell({"right": right, "gathered": blocks.tolist()})
