"""One rank of `shared_memory.py`: `python shared_memory_rank.py KIND DIRECTORY RANK RANKS`, or `... mpi` under mpirun.

Prints, as JSON, the seconds per call of each size on this rank.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

SIZES_AND_REPEATS = ((64 << 10, 300), (1 << 20, 100), (16 << 20, 15), (256 << 20, 3))


def measured(make: Callable[[int], Callable[[], None]], barrier: Callable[[], None]) -> dict[int, float]:
    """Seconds per call by bytes; ``make`` gives the call for that size."""
    found = {}
    for size, repeats in SIZES_AND_REPEATS:
        call = make(size)
        for _ in range(1 + repeats // 10):
            call()
        barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        found[size] = (time.perf_counter() - start) / repeats
        barrier()
    return found


def by_shm(directory: str, rank: int, ranks: int, *, only_copy: bool) -> dict[int, float]:
    """The engine of shared memory, or copies from one private buffer to another."""
    from coppice.collectives import Collective
    from coppice.run.engines.datatype import DataType
    from coppice.run.engines.shared_memory import ShmEngine, directory_exchange

    engine = ShmEngine.connect(rank, ranks, directory_exchange(directory, rank, ranks))

    def make(size: int) -> Callable[[], None]:
        data = np.ones(size // 4, dtype=np.float32)
        out = np.zeros_like(data)
        if only_copy:
            return lambda: np.copyto(out, data)
        return lambda: engine.run_direct(
            Collective.ALL_REDUCE, data, out, count=data.size, dtype=DataType.FLOAT32, timeout_s=120
        )

    def barrier() -> None:
        engine.exchange(b"")

    found = measured(make, barrier)
    engine.close()
    return found


def by_gloo(directory: str, rank: int, ranks: int) -> dict[int, float]:
    """The gloo backend of torch; in place, as torch has it."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}.store", rank=rank, world_size=ranks)

    def make(size: int) -> Callable[[], None]:
        data = torch.zeros(size // 4)
        return lambda: dist.all_reduce(data) and None

    found = measured(make, lambda: dist.barrier() and None)
    dist.destroy_process_group()
    return found


def by_mpi() -> dict[int, float]:
    """MPI_Allreduce by whatever mpi4py finds."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def make(size: int) -> Callable[[], None]:
        data = np.ones(size // 4, dtype=np.float32)
        out = np.zeros_like(data)
        return lambda: world.Allreduce(data, out)

    return measured(make, world.Barrier)


def main() -> None:
    """Measure what the command line names."""
    kind = sys.argv[1]
    if kind == "mpi":
        found = by_mpi()
    else:
        directory, rank, ranks = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
        if kind == "gloo":
            found = by_gloo(directory, rank, ranks)
        else:
            found = by_shm(directory, rank, ranks, only_copy=kind == "memcpy")
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
