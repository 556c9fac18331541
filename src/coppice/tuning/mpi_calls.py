"""A collective of MPI with its memory: ready to be called, and checked against what each rank works out alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective

__all__ = ["MpiCall"]

_PERIOD = 61  # prime, so that a block in the wrong place shows
Floats = NDArray[np.float32]


class MpiCall:
    """One collective at one size: float32, sums, root 0.

    Args:
        mpi: The module ``mpi4py.MPI``.
        collective: One of the six that can be tuned.
        size_bytes: M; cut to whole elements, and to equal blocks where the collective has blocks.
    """

    def __init__(self, mpi: Any, collective: Collective, size_bytes: int) -> None:
        self._mpi = mpi
        self._rank, self._ranks = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
        self._collective = collective
        count = size_bytes // 4
        if collective.sharded:
            count = max(1, count // self._ranks) * self._ranks
        self.size_bytes = 4 * max(1, count)
        self._count = self.size_bytes // 4
        self._block = self._count // self._ranks
        given = self._block if collective is Collective.ALL_GATHER else self._count
        result = self._block if collective is Collective.REDUCE_SCATTER else self._count
        self._given = _pattern(self._rank, given)
        self._result = np.zeros(result, dtype=np.float32)

    def start(self, communicator: Any) -> None:
        """Carry it out."""
        given, result = self._given, self._result
        match self._collective:
            case Collective.ALL_REDUCE:
                communicator.Allreduce(given, result)
            case Collective.ALL_GATHER:
                communicator.Allgather(given, result)
            case Collective.REDUCE_SCATTER:
                communicator.Reduce_scatter_block(given, result)
            case Collective.BROADCAST:
                communicator.Bcast(given if self._rank == 0 else result)
            case Collective.REDUCE:
                communicator.Reduce(given, result if self._rank == 0 else None)
            case _:
                communicator.Alltoall(given, result)

    def wrong(self, communicator: Any) -> int:
        """Carry it out once more, and count this rank's wrong elements."""
        self._result[:] = -1
        self.start(communicator)
        return int(np.count_nonzero(self._result != self._expected()))

    def _expected(self) -> Floats:
        blocks = range(self._ranks)
        match self._collective:
            case Collective.ALL_GATHER:
                return np.concatenate([_pattern(rank, self._block) for rank in blocks])
            case Collective.ALL_TO_ALL:
                start = self._rank * self._block
                return np.concatenate(
                    [_pattern(rank, self._count)[start : start + self._block] for rank in blocks]
                )
            case Collective.BROADCAST if self._rank:
                return _pattern(0, self._count)
            case Collective.BROADCAST:
                return np.full(self._count, -1, dtype=np.float32)
            case Collective.REDUCE if self._rank:
                return np.full(self._count, -1, dtype=np.float32)
        total = np.zeros(self._count, dtype=np.float32)
        for rank in blocks:
            total += _pattern(rank, self._count)
        if self._collective is Collective.REDUCE_SCATTER:
            total = total[self._rank * self._block :][: self._block]
        return total


def _pattern(rank: int, count: int) -> Floats:
    """Small whole numbers: their sums are exact in any order."""
    return ((np.arange(count) + 17 * rank) % _PERIOD).astype(np.float32)
