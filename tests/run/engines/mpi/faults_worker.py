"""One rank of a group in which rank 1 closes, raises, hangs or asks for something else: what the others raise."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.mpi import MpiEngine
from coppice.run.errors import RunError
from coppice.topology.presets import preset


def main(fault: str) -> None:
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    where = Path(world.bcast(tempfile.mkdtemp() if rank == 0 else None))
    group = Communicator(
        MpiEngine(exchange_timeout_s=300),
        preset("ring", gpus=world.Get_size()),
        cache_dir=where,
        timeout_s=5.0 if fault == "hang" else 300.0,
        check_every_call=fault in ("size", "type"),
    )
    data = np.ones(50_000, dtype=np.float32)
    group.all_reduce(data)
    try:
        if rank == 1:
            if fault == "close":
                group.close()
                return
            if fault == "hang":
                wait_for([where / f"gave-up-{other}" for other in range(world.Get_size()) if other != rank])
            if fault == "size":
                data = data[:-1]
            if fault == "type":
                data = data.astype(np.float64)
            if fault == "slow":
                time.sleep(0.7)
        group.all_reduce(data)
        if rank == 1 and fault == "late":
            time.sleep(2.5)
        print(f"rank {rank}: done", flush=True)
    except RunError as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", flush=True)
        (where / f"gave-up-{rank}").touch()
    group.close()


def wait_for(files: list[Path]) -> None:
    """Until there are these files; half a minute at most, after which the others go on without them."""
    end = time.monotonic() + 30
    while not all(each.exists() for each in files) and time.monotonic() < end:
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1])
