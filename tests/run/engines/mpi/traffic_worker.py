"""A rank of :mod:`test_traffic`: runs the calls of a file under Open MPI's counters; rank 0 writes the matrices."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mpi4py import MPI

from mpi_counters import Tool, measure
from mpi_traffic import Call

given, found = (Path(each) for each in sys.argv[1:])
communicator = MPI.COMM_WORLD
rows = []
with Tool(MPI, communicator) as tool:
    for call in json.loads(given.read_text()):
        traffic = measure(MPI, communicator, tool, Call(**call))
        rows.append([traffic.size_bytes.tolist(), traffic.messages.tolist()])
if communicator.Get_rank() == 0:
    found.write_text(json.dumps(rows))
