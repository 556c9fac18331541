"""One rank: every collective over the MPI engine against MPI's own, for types, operations and odd sizes."""

from __future__ import annotations

import random
import sys
import tempfile
import weakref

import numpy as np
from mpi4py import MPI

from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.mpi import MpiEngine
from coppice.topology.presets import preset

COUNTS = (0, 1, 7, 1009, 70_001)
OPERATIONS = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}
TYPES = ("float64", "float32", "int64", "uint8")


def main() -> None:
    world = MPI.COMM_WORLD
    rank, ranks = world.Get_rank(), world.Get_size()
    where = world.bcast(tempfile.mkdtemp() if rank == 0 else None)
    topology = preset("ring", gpus=ranks) if ranks > 1 else preset("star", gpus=1)
    checked = 0
    with Communicator(MpiEngine(), topology, cache_dir=where, pieces=3, timeout_s=300) as group:
        choose = random.Random(5)
        for number, count in enumerate(COUNTS):
            for kind in TYPES:
                op = choose.choice(sorted(OPERATIONS))
                given = np.random.default_rng(7 * rank + number).integers(1, 3, count).astype(kind)
                whole = np.random.default_rng(9 * rank + number).integers(1, 3, count * ranks).astype(kind)
                root = choose.randrange(ranks)

                wanted = np.empty_like(given)
                world.Allreduce(given, wanted, op=OPERATIONS[op])
                same(
                    group.all_reduce(given, np.empty_like(given), op=op),
                    wanted,
                    "all_reduce",
                    count,
                    kind,
                    op,
                )
                same(group.all_reduce(given.copy(), op=op), wanted, "all_reduce in place", count, kind, op)

                wanted = np.empty(count * ranks, dtype=kind)
                world.Allgather(given, wanted)
                same(group.all_gather(given), wanted, "all_gather", count, kind, "")

                wanted = np.empty(count, dtype=kind)
                world.Reduce_scatter_block(whole, wanted, op=OPERATIONS[op])
                same(
                    group.reduce_scatter(whole), wanted, "reduce_scatter", count, kind, ""
                ) if op == "sum" else None

                wanted = given.copy()
                world.Bcast(wanted, root=root)
                same(group.broadcast(given.copy(), root=root), wanted, "broadcast", count, kind, str(root))

                wanted = np.empty_like(given)
                world.Reduce(given, wanted, op=OPERATIONS[op], root=root)
                found = group.reduce(given.copy(), root=root, op=op)
                if rank == root:
                    same(found, wanted, "reduce", count, kind, op)

                wanted = np.empty_like(whole)
                world.Alltoall(whole, wanted)
                same(group.all_to_all(whole), wanted, "all_to_all", count, kind, "")
                checked += 7
        buffers_come_and_go(group)
        group.barrier()
    if rank == 0:
        print(f"{checked} collectives equal on {ranks} ranks")


def buffers_come_and_go(group: Communicator) -> None:
    """Requests outlive the buffers they were made for, and must neither keep them nor mix them up."""
    ranks = group.ranks
    for turn in range(60):
        given = np.full((5000, 70_000)[turn % 2], turn + group.rank, dtype=np.int64)
        found = group.all_reduce(given, np.empty_like(given))
        same(found, np.full_like(given, turn * ranks + ranks * (ranks - 1) // 2), "a new buffer", turn)
        gone = [weakref.ref(given), weakref.ref(found)]
        del given, found
        same(np.array([each() is None for each in gone]), np.array([True, True]), "a freed buffer", turn)


def same(found: np.ndarray, wanted: np.ndarray, *what: object) -> None:
    if not np.array_equal(found, wanted):
        print(f"rank {MPI.COMM_WORLD.Get_rank()} {what}: {found[:9]} is not {wanted[:9]}", flush=True)
        MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    sys.exit(main())
