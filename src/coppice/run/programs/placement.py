"""Placement of chunks in the input, output and scratch buffers of every rank.

The table at the top of :mod:`coppice.run.programs.rank_program` says what INPUT and OUTPUT are; here it is arithmetic.
What a rank holds at the beginning is at its *initial* address. Whatever arrives goes to its *final* address: in OUTPUT
where the collective wants it there, in SCRATCH where a rank only passes it on or adds it up for others.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.run.programs.rank_program import RankBuffer, buffer_elements
from coppice.schedule.layout import chunk_bounds
from coppice.schedule.schedule import Schedule

__all__ = ["LocalCopy", "Placement"]

Addresses = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Buffer and first element there, of some chunks at some ranks."""


class LocalCopy(NamedTuple):
    """A copy from one memory of a rank to another.

    Attributes:
        source: Buffer that is read.
        source_offset: First element there.
        buffer: Buffer that is written.
        offset: First element there.
        length: Elements.
    """

    source: RankBuffer
    source_offset: int
    buffer: RankBuffer
    offset: int
    length: int


class Placement:
    """Addresses of all chunks at all ranks for a buffer of M = ``count`` elements.

    Args:
        schedule: A schedule with well-formed columns.
        count: M in elements, 0 or more.
        in_place: There is one memory, OUTPUT.

    Attributes:
        chunk_offset: First element of each chunk in M, in an all-to-all in the buffers of all senders (int64).
        chunk_length: Elements of each chunk (int64).

    Raises:
        InputError: If the count is negative or too large.
    """

    def __init__(self, schedule: Schedule, count: int, *, in_place: bool) -> None:
        if count < 0:
            msg = f"expected a count of 0 elements or more, found {count}."
            raise InputError(msg)
        self.schedule, self.count, self.in_place = schedule, count, in_place
        self.collective, self.root = schedule.collective, schedule.root
        self.ranks = ranks = schedule.topology.num_ranks
        self.chunk_offset, self.chunk_length = chunk_bounds(schedule, count)
        self._slot = slot_starts(schedule, count)
        self._all_to_all = self.collective is Collective.ALL_TO_ALL
        if self._all_to_all:
            block = np.diff(self._slot).reshape(ranks, ranks)
            self._received_offset = np.cumsum(block, axis=0) - block
            self._received_elements = block.sum(axis=0)

    def block(self, rank: int) -> tuple[int, int]:
        """First element and length of a rank's own block of M: all of it where M is not divided."""
        if len(self._slot) == 2:
            return 0, self.count
        return int(self._slot[rank]), int(self._slot[rank + 1] - self._slot[rank])

    def has_initially(self, chunk: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The rank holds something of the chunk at the beginning."""
        if self.collective.reduces:
            return np.ones(len(chunk), dtype=np.bool_)
        if self.collective in (Collective.BROADCAST, Collective.SCATTER):
            return np.asarray(rank == self.root)
        slot = self.schedule.chunk_slot[chunk]
        return np.asarray((slot // self.ranks if self._all_to_all else slot) == rank)

    def initial(self, chunk: NDArray[np.int64], rank: NDArray[np.int64]) -> Addresses:
        """Where a rank has what it holds of a chunk at the beginning."""
        offset = self.chunk_offset[chunk]
        buffer = np.full(len(chunk), RankBuffer.OUTPUT if self.in_place else RankBuffer.INPUT, dtype=np.int64)
        match self.collective:
            case Collective.ALL_TO_ALL:
                if self.in_place:
                    buffer[:] = RankBuffer.SCRATCH
                return buffer, offset - self._slot[rank * self.ranks]
            case Collective.GATHER if self.in_place:
                return buffer, offset - np.where(rank == self.root, 0, self._slot[rank])
            case Collective.ALL_GATHER | Collective.GATHER if not self.in_place:
                return buffer, offset - self._slot[rank]
            case _:
                return buffer, offset

    def final(self, chunk: NDArray[np.int64], rank: NDArray[np.int64]) -> Addresses:
        """Where a rank puts what arrives of a chunk; addresses in SCRATCH are still to be allocated, and are 0."""
        offset, slot = self.chunk_offset[chunk], self.schedule.chunk_slot[chunk].astype(np.int64)
        match self.collective:
            case Collective.ALL_TO_ALL:
                sender, wanted = slot // self.ranks, slot % self.ranks == rank
                offset = self._received_offset[sender, rank] + offset - self._slot[slot]
            case Collective.REDUCE_SCATTER if not self.in_place:
                wanted, offset = slot == rank, offset - self._slot[slot]
            case Collective.SCATTER:
                wanted = slot == rank
                kept = self.in_place & (rank == self.root)
                offset = offset - np.where(kept, 0, self._slot[slot])
            case Collective.REDUCE | Collective.GATHER:
                wanted = rank == self.root
            case _:
                wanted = np.ones(len(chunk), dtype=np.bool_)
        return np.where(wanted, RankBuffer.OUTPUT, RankBuffer.SCRATCH).astype(np.int64), np.where(
            wanted, offset, 0
        )

    def sizes(self, rank: int) -> tuple[int, int, int]:
        """Elements of a rank's INPUT and OUTPUT, and of SCRATCH that is taken from the beginning."""
        if self._all_to_all:
            sent = int(self._slot[(rank + 1) * self.ranks] - self._slot[rank * self.ranks])
            received = int(self._received_elements[rank])
            return (0, max(sent, received), sent) if self._staged else (sent, received, 0)
        sizes = buffer_elements(self.collective, self.count, self.block(rank)[1], at_root=rank == self.root)
        return (0, max(sizes), 0) if self.in_place else (*sizes, 0)

    def result(self, rank: int) -> tuple[int, int]:
        """First element and length of a rank's result in OUTPUT."""
        match self.collective:
            case Collective.BARRIER:
                return 0, 0
            case Collective.ALL_TO_ALL:
                return 0, int(self._received_elements[rank])
            case Collective.REDUCE_SCATTER:
                first, own = self.block(rank)
                return (first if self.in_place else 0), own
            case Collective.SCATTER:
                first, own = self.block(rank)
                return (first if self.in_place and rank == self.root else 0), own
            case Collective.REDUCE | Collective.GATHER:
                return 0, self.count if rank == self.root else 0
            case _:
                return 0, self.count

    @property
    def _staged(self) -> bool:
        """What is sent is first copied away, because what arrives takes its place."""
        return self._all_to_all and self.in_place

    def staging_copies(self, rank: int) -> list[LocalCopy]:
        """Copies that must be done before anything else."""
        size = self.sizes(rank)[2]
        return [LocalCopy(RankBuffer.OUTPUT, 0, RankBuffer.SCRATCH, 0, size)] if size else []

    def own_copies(self, rank: int) -> list[LocalCopy]:
        """Copies of what stays at its rank: from where it is at the beginning to where it is wanted."""
        source = RankBuffer.OUTPUT if self.in_place else RankBuffer.INPUT
        begin, target = 0, 0
        first, length = self.block(rank)
        match self.collective:
            case Collective.ALL_TO_ALL:
                slot = rank * self.ranks + rank
                begin = int(self._slot[slot] - self._slot[rank * self.ranks])
                length = int(self._slot[slot + 1] - self._slot[slot])
                target = int(self._received_offset[rank, rank])
                if self._staged and begin == target:
                    return []
                source = RankBuffer.SCRATCH if self._staged else source
            case _ if self.in_place:
                return []
            case Collective.ALL_GATHER:
                target = first
            case Collective.GATHER:
                target, length = first, length if rank == self.root else 0
            case Collective.SCATTER:
                begin, length = first, length if rank == self.root else 0
            case Collective.BROADCAST:
                length = self.count if rank == self.root else 0
            case _:
                length = self.count if self.ranks == 1 else 0
        return [LocalCopy(source, begin, RankBuffer.OUTPUT, target, length)] if length else []


def slot_starts(schedule: Schedule, count: int) -> NDArray[np.int64]:
    """First element of every slot, and the end of the last one, as :func:`~coppice.schedule.layout.chunk_bounds` cuts.

    Examples:
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, blocks
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)
        >>> slot_starts(Moves(case, blocks(case)).schedule(), 10).tolist()
        [0, 2, 5, 7, 10]
    """
    buffers = schedule.topology.num_ranks if schedule.collective is Collective.ALL_TO_ALL else 1
    total = count * buffers
    weight: list[int] = schedule.slot_weight.tolist()
    whole = sum(weight)
    if not whole:
        return np.zeros(len(weight) + 1, dtype=np.int64)
    common = gcd(*weight)
    whole //= common
    kind = np.dtype(np.int64) if whole < 2**31 else np.dtype(object)
    before = np.cumsum(np.array([0, *(each // common for each in weight)], dtype=kind))
    begin = total // whole * before + total % whole * before // whole
    return np.asarray(begin, dtype=np.int64)
