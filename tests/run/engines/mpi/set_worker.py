"""A rank under MPI whose all-reduces run by a set of plans: right sums on either side of every change."""

from __future__ import annotations

import sys

import numpy as np

from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.mpi import MpiEngine
from coppice.topology.presets import preset

FOLDER, CACHE = sys.argv[1:3]

engine = MpiEngine()
with Communicator(engine, preset("star", gpus=engine.ranks), algorithm=FOLDER, cache_dir=CACHE) as group:
    right = 0
    for elements in (1, 255, 256, 257, 511, 512, 100_000):
        own = np.arange(elements, dtype=np.int64) * (group.rank + 1)
        total = np.arange(elements, dtype=np.int64) * sum(range(1, group.ranks + 1))
        right += np.array_equal(group.all_reduce(own), total)
    if group.rank == 0:
        print(f"{right} of 7 sums are right on {group.ranks} ranks")
