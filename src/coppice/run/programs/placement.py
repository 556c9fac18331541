"""Where the value of a chunk lies at a rank: before anything reaches it there, and after.

The table at the top of :mod:`coppice.run.programs.rank_program` says what INPUT and OUTPUT are; here it is
arithmetic. What a rank holds at the beginning is at its *start*; whatever arrives lies at its *home*, which is
OUTPUT where the collective wants it there, and scratch memory where a rank only passes it on or adds it up for others.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.run.programs.rank_program import Place
from coppice.schedule.layout import chunk_bounds
from coppice.schedule.schedule import Schedule

__all__ = ["Homes", "Span"]

Places = tuple[NDArray[np.int64], NDArray[np.int64]]
Span = tuple[Place, int, Place, int, int]
"""A copy: (source, first element there, target, first element there, elements)."""


class Homes:
    """Memory of all ranks for a buffer of M = ``count`` elements.

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
        self._swap = self.collective is Collective.ALL_TO_ALL
        if self._swap:
            block = np.diff(self._slot).reshape(ranks, ranks)
            self._arrives = np.cumsum(block, axis=0) - block
            self._received = block.sum(axis=0)

    def block(self, rank: int) -> tuple[int, int]:
        """First element and length of a rank's own block of M: all of it where M is not divided."""
        if len(self._slot) == 2:
            return 0, self.count
        return int(self._slot[rank]), int(self._slot[rank + 1] - self._slot[rank])

    def has_start(self, chunk: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The rank holds something of the chunk at the beginning."""
        if self.collective.reduces:
            return np.ones(len(chunk), dtype=np.bool_)
        if self.collective in (Collective.BROADCAST, Collective.SCATTER):
            return np.asarray(rank == self.root)
        slot = self.schedule.chunk_slot[chunk]
        return np.asarray((slot // self.ranks if self._swap else slot) == rank)

    def start(self, chunk: NDArray[np.int64], rank: NDArray[np.int64]) -> Places:
        """Place and first element of what a rank holds of a chunk at the beginning."""
        offset = self.chunk_offset[chunk]
        place = np.full(len(chunk), Place.OUTPUT if self.in_place else Place.INPUT, dtype=np.int64)
        match self.collective:
            case Collective.ALL_TO_ALL:
                if self.in_place:
                    place[:] = Place.SCRATCH
                return place, offset - self._slot[rank * self.ranks]
            case Collective.GATHER if self.in_place:
                return place, offset - np.where(rank == self.root, 0, self._slot[rank])
            case Collective.ALL_GATHER | Collective.GATHER if not self.in_place:
                return place, offset - self._slot[rank]
            case _:
                return place, offset

    def home(self, chunk: NDArray[np.int64], rank: NDArray[np.int64]) -> Places:
        """Place and first element of what arrives of a chunk at a rank; SCRATCH is still to be placed, at 0."""
        offset, slot = self.chunk_offset[chunk], self.schedule.chunk_slot[chunk].astype(np.int64)
        match self.collective:
            case Collective.ALL_TO_ALL:
                sender, wanted = slot // self.ranks, slot % self.ranks == rank
                offset = self._arrives[sender, rank] + offset - self._slot[slot]
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
        return np.where(wanted, Place.OUTPUT, Place.SCRATCH).astype(np.int64), np.where(wanted, offset, 0)

    def sizes(self, rank: int) -> tuple[int, int, int]:
        """Elements of a rank's INPUT and OUTPUT, and of SCRATCH that is taken from the beginning."""
        whole, (_, own), at_root = self.count, self.block(rank), rank == self.root
        match self.collective:
            case Collective.BARRIER:
                return 0, 0, 0
            case Collective.ALL_TO_ALL:
                sent = int(self._slot[(rank + 1) * self.ranks] - self._slot[rank * self.ranks])
                received = int(self._received[rank])
                return (0, max(sent, received), sent) if self._staged else (sent, received, 0)
            case Collective.ALL_GATHER:
                sizes = own, whole
            case Collective.REDUCE_SCATTER:
                sizes = whole, own
            case Collective.GATHER:
                sizes = own, whole if at_root else 0
            case Collective.SCATTER:
                sizes = whole if at_root else 0, own
            case Collective.BROADCAST:
                sizes = whole if at_root else 0, whole
            case Collective.REDUCE:
                sizes = whole, whole if at_root else 0
            case _:
                sizes = whole, whole
        return (0, max(sizes), 0) if self.in_place else (*sizes, 0)

    def result(self, rank: int) -> tuple[int, int]:
        """First element and length of a rank's result in OUTPUT."""
        match self.collective:
            case Collective.BARRIER:
                return 0, 0
            case Collective.ALL_TO_ALL:
                return 0, int(self._received[rank])
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
        return self._swap and self.in_place

    def staging(self, rank: int) -> list[Span]:
        """Copies that must be done before anything else."""
        size = self.sizes(rank)[2]
        return [(Place.OUTPUT, 0, Place.SCRATCH, 0, size)] if size else []

    def own(self, rank: int) -> list[Span]:
        """Copies of what stays at its rank: from where it is at the beginning to where it is wanted."""
        source = Place.OUTPUT if self.in_place else Place.INPUT
        first, length = self.block(rank)
        at_root = rank == self.root
        match self.collective:
            case Collective.BARRIER:
                return []
            case Collective.ALL_TO_ALL:
                slot = rank * self.ranks + rank
                begin = int(self._slot[slot] - self._slot[rank * self.ranks])
                length = int(self._slot[slot + 1] - self._slot[slot])
                target = int(self._arrives[rank, rank])
                if self._staged and begin == target:
                    return []
                source = Place.SCRATCH if self._staged else source
                spans: list[Span] = [(source, begin, Place.OUTPUT, target, length)]
            case _ if self.in_place:
                return []
            case Collective.ALL_GATHER:
                spans = [(source, 0, Place.OUTPUT, first, length)]
            case Collective.GATHER:
                spans = [(source, 0, Place.OUTPUT, first, length)] if at_root else []
            case Collective.SCATTER:
                spans = [(source, first, Place.OUTPUT, 0, length)] if at_root else []
            case Collective.BROADCAST:
                spans = [(source, 0, Place.OUTPUT, 0, self.count)] if at_root else []
            case _:
                spans = [(source, 0, Place.OUTPUT, 0, self.count)] if self.ranks == 1 else []
        return [span for span in spans if span[4]]


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
