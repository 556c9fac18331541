"""Every rank: sums of numbers whose last bits tell in which order they were added, by choice; rank 0 prints them."""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
from mpi4py import MPI

from coppice.collectives import Collective
from coppice.tuning.mpi_switch import DEPLOYED, open_switch
from coppice.tuning.records import LibraryChoice

library, deployed, names = sys.argv[1], sys.argv[2] == "deployed", sys.argv[3:]
switch = open_switch(MPI, library)
rank = MPI.COMM_WORLD.Get_rank()
given = np.random.default_rng(rank).normal(size=65536).astype(np.float32)
result = np.empty_like(given)
found = []
for name in (*names, "default"):
    choice = (
        LibraryChoice(DEPLOYED) if name == DEPLOYED else None if name == "default" else LibraryChoice(name)
    )
    switch.use(Collective.ALL_REDUCE, choice).Allreduce(given, result)
    found.append(hashlib.sha256(result.tobytes()).hexdigest()[:16])
switch.close()
if rank == 0:
    print(json.dumps(found))
