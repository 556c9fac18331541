"""A rank of :mod:`test_traffic`: runs the calls of a file; rank 0 writes what left through each interface."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from mpi_counters import prepared
from mpi_traffic import Call
from mpich_traffic import force

given, found = (Path(each) for each in sys.argv[1:])
communicator = MPI.COMM_WORLD
rank, ranks = communicator.Get_rank(), communicator.Get_size()
interfaces = [Path(f"/sys/class/net/to{other}/statistics/tx_bytes") for other in range(ranks)]


def sent() -> np.ndarray:
    """Bytes that left towards each rank, headers included, when nothing is on its way any more."""
    communicator.Barrier()
    time.sleep(0.01)
    return np.array([0 if other == rank else int(interfaces[other].read_text()) for other in range(ranks)])


rows = []
for function, algorithm, elements, root in json.loads(given.read_text()):
    force(MPI, function, algorithm)
    own = communicator.Dup()
    run = prepared(own, Call(function=function, number=0, elements=elements, root=root))
    # What TCP sends again on a busy machine is counted again: the least of three runs is the call's own.
    counts = [sent()]
    for _ in range(3):
        run()
        counts.append(sent())
    own_row = np.diff(counts, axis=0).min(axis=0)
    force(MPI, function, None)
    own.Free()
    rows.append(communicator.gather(own_row.tolist()))
if rank == 0:
    found.write_text(json.dumps(rows))
