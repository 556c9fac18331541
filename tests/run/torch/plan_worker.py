"""A rank whose world runs the plan in a file: its collective, and by forests the others."""

from __future__ import annotations

import torch
import torch.distributed as dist
from worker import FOLDER, RANK, RANKS, tell, world

from coppice.run.torch.backend_path import Options

# The line for users: COPPICE_ALGORITHM=plan.json, or these options.
with world("plan", options=Options(engine="torch", algorithm=str(FOLDER / "plan.json"), threshold_bytes=0)):
    blocks = torch.zeros(4 * RANKS)
    dist.all_gather_into_tensor(blocks, torch.full((4,), float(RANK)))
    total = torch.full((8,), float(RANK))
    dist.all_reduce(total)
tell({"gathered": blocks.tolist(), "sum": total.tolist()})
