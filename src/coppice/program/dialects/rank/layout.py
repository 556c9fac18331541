"""Buffer layout: addresses of chunks in input, output and scratch memory, and both ends of each transfer.

The table at the top of ``program`` says what INPUT and OUTPUT are; here it is arithmetic.
What a rank holds at the beginning is at its *initial* address. Whatever arrives goes to its *final* address: in OUTPUT
where the collective wants it there, in SCRATCH where a rank only passes it on or adds it up for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError
from coppice.program.dialects.rank.program import RankBuffer, buffer_elements
from coppice.program.dialects.rank.steps import transfer_steps
from coppice.rows import begins_run, first_rows
from coppice.schedule.lower import chunk_bounds, size_and_weight
from coppice.schedule.schedule import Op, Schedule

Addresses = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Buffer and first element there, of some chunks at some ranks."""


class LocalCopy(NamedTuple):
    """A copy within a rank."""

    source: RankBuffer  # Buffer that is read
    source_offset: int  # First element there
    buffer: RankBuffer  # Buffer that is written
    offset: int  # First element there
    length: int  # Elements


class ValueLayout:
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
            raise InputError(f"expected a count of 0 elements or more, found {count}.")
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
        """First element and length of a rank's block of M: all of it where M is not divided."""
        if len(self._slot) == 2:
            return 0, self.count
        return int(self._slot[rank]), int(self._slot[rank + 1] - self._slot[rank])

    def has_initially(self, chunk: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the rank initially holds part of the chunk."""
        if self.collective.reduces:
            return np.ones(len(chunk), dtype=np.bool_)
        if self.collective in (Collective.BROADCAST, Collective.SCATTER):
            return np.asarray(rank == self.root)
        slot = self.schedule.chunk_slot[chunk]
        return np.asarray((slot // self.ranks if self._all_to_all else slot) == rank)

    def initial(self, chunk: NDArray[np.int64], rank: NDArray[np.int64]) -> Addresses:
        """Initial address of a chunk at a rank."""
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
        """Final address of a chunk at a rank; scratch addresses are allocated later, and 0 here."""
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
        """Elements of a rank's input and output, and of the scratch memory used from the start."""
        if self._all_to_all:
            sent = int(self._slot[(rank + 1) * self.ranks] - self._slot[rank * self.ranks])
            received = int(self._received_elements[rank])
            return (0, max(sent, received), sent) if self._staged else (sent, received, 0)
        sizes = buffer_elements(self.collective, self.count, self.block(rank)[1], at_root=rank == self.root)
        return (0, max(sizes), 0) if self.in_place else (*sizes, 0)

    def result(self, rank: int) -> tuple[int, int]:
        """First element and length of a rank's result in the output."""
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
        """Copies that precede everything else."""
        size = self.sizes(rank)[2]
        return [LocalCopy(RankBuffer.OUTPUT, 0, RankBuffer.SCRATCH, 0, size)] if size else []

    def own_copies(self, rank: int) -> list[LocalCopy]:
        """Copies of chunks that stay at their rank."""
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
    """First element of every slot, and the end of the last one, as :func:`~coppice.schedule.lower.chunk_bounds` cuts.

    Examples:
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, blocks
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)
        >>> slot_starts(Moves(case, blocks(case)).schedule(), 10).tolist()
        [0, 2, 5, 7, 10]
    """
    total, whole = size_and_weight(schedule, count)
    weight: list[int] = schedule.slot_weight.tolist()
    if not whole:
        return np.zeros(len(weight) + 1, dtype=np.int64)
    common = gcd(whole, *weight)
    whole //= common
    kind = np.dtype(np.int64) if sum(weight) // common < 2**31 else np.dtype(object)
    before = np.cumsum(np.array([0, *(each // common for each in weight)], dtype=kind))
    begin = total // whole * before + total % whole * before // whole
    return np.asarray(begin, dtype=np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class TransferEnds(Brief):
    """Memory at one end of some transfers."""

    # Value in scratch memory, or -1 where the address is known without allocation (int64)
    value: NDArray[np.int64]
    buffer: NDArray[np.int64]  # :class:`~coppice.program.dialects.rank.program.RankBuffer` (int64)
    # First element; for a value in scratch memory its offset in its allocation (int64)
    offset: NDArray[np.int64]


class TransferMemory:
    """Buffer layout of a schedule at a count, the same on all ranks.

    Values in scratch memory share a contiguous *allocation* where chunks follow each other and one rank receives them
    from another in one step. Where chunks are cut into pieces, every value has an allocation of its own.

    A copy that would overwrite what its rank sends in the same step (a write-after-read hazard) lands in a *bounce
    buffer*, a value of its own in scratch memory, and is copied to its final address when the step's messages are done.
    The second copy of the same value in one step is redundant: it lands in such a buffer and stays there.

    Attributes:
        schedule: The schedule.
        steps: Its steps and values.
        layout: Where values lie.
        bounce: Bounce buffer in which each transfer lands, or -1 (int64).
        redundant: It stays there (bool).
        allocation: Allocation of each value that lies in scratch memory, otherwise -1 (int64). Bounce buffers
            come after the schedule's own values.
        value_offset: Offset of each such value in its allocation (int64).
    """

    def __init__(self, schedule: Schedule, count: int, *, in_place: bool, piece_elements: int | None) -> None:
        self.schedule, self.steps = schedule, transfer_steps(schedule)
        self.layout = layout = ValueLayout(schedule, count, in_place=in_place)
        longest = int(layout.chunk_length.max()) if schedule.num_chunks else 0
        # Number of pieces of every chunk
        self.pieces = max(1, -(-longest // piece_elements)) if piece_elements else 1
        self.piece_elements = piece_elements  # Longest message, or None
        self._check_initial_values()
        self.bounce, self.redundant = self._bounce_buffers()
        bounced = np.flatnonzero(self.bounce >= 0)
        steps = self.steps
        written = steps.writes[bounced]
        # Chunk of each value (int64)
        self.value_chunk = np.concatenate([steps.value_chunk, steps.value_chunk[written]])
        # Rank of each value (int64)
        self.value_rank = np.concatenate([steps.value_rank, steps.value_rank[written]])
        # First step of each value (int64)
        self.live_from = np.concatenate([steps.live_from, steps.step[bounced]])
        # Last step of each value (int64)
        self.live_until = np.concatenate([steps.live_until, steps.step[bounced]])
        self.allocation, self.value_offset = self._allocations(len(bounced))

    def sent(self, rows: NDArray[np.int64]) -> TransferEnds:
        """Memory that the senders of ``rows`` read."""
        value = self.steps.reads[rows]
        return self._held(value, self.steps.live_from[value] < self.steps.step[rows])

    def operand(self, rows: NDArray[np.int64]) -> TransferEnds:
        """Memory of the local operand of reductions in ``rows``."""
        return self._held(self.steps.writes[rows], ~self.steps.first_write[rows])

    def receive_buffer(self, rows: NDArray[np.int64]) -> TransferEnds:
        """Receive buffer of ``rows``, or of their sum."""
        final = self.final(rows)
        bounce = self.bounce[rows]
        bounced = bounce >= 0
        return TransferEnds(
            value=np.where(bounced, bounce, final.value),
            buffer=np.where(bounced, RankBuffer.SCRATCH, final.buffer),
            offset=np.where(bounced, 0, final.offset),
        )

    def final(self, rows: NDArray[np.int64]) -> TransferEnds:
        """Final memory of the data of ``rows``."""
        return self._held(self.steps.writes[rows], np.ones(len(rows), dtype=np.bool_))

    def _held(self, value: NDArray[np.int64], arrived: NDArray[np.bool_]) -> TransferEnds:
        chunk, rank = self.steps.value_chunk[value], self.steps.value_rank[value]
        initial_buffer, initial = self.layout.initial(chunk, rank)
        final_buffer, final = self.layout.final(chunk, rank)
        scratch = arrived & (final_buffer == RankBuffer.SCRATCH)
        return TransferEnds(
            value=np.where(scratch, value, -1),
            buffer=np.where(arrived, final_buffer, initial_buffer),
            offset=np.where(scratch, self.value_offset[value], np.where(arrived, final, initial)),
        )

    def _check_initial_values(self) -> None:
        """Refuse transfers of what their rank does not have, and additions to nothing."""
        steps, schedule = self.steps, self.schedule
        rows = np.arange(schedule.num_transfers)
        for value, initial, verb in (
            (steps.reads, steps.live_from[steps.reads] >= steps.step, "sends"),
            (steps.writes, steps.first_write & (schedule.op == Op.REDUCE), "adds to"),
        ):
            asked = rows[initial]
            needed = value[asked]
            missing = ~self.layout.has_initially(steps.value_chunk[needed], steps.value_rank[needed])
            if missing.any():
                row = int(asked[np.flatnonzero(missing)[0]])
                raise InputError(
                    f"expected values before they are used, but transfer {row} {verb} chunk {schedule.chunk[row]} "
                    f"at rank {steps.value_rank[value[row]]}, which does not hold it by then: verify the schedule."
                )

    def _bounce_buffers(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Values beyond the schedule's own for copies with a hazard, and which of them stay there."""
        steps, rows = self.steps, self.schedule.num_transfers
        bounce = np.full(rows, -1, dtype=np.int64)
        copies = self.schedule.op == Op.COPY
        redundant = copies & (steps.write_order > 0)
        hazards = np.flatnonzero(copies & steps.write_after_read)
        if len(hazards):
            hazards = hazards[self._final_address_is_sent(hazards)]
        bounced = np.union1d(np.flatnonzero(redundant), hazards)
        bounce[bounced] = len(steps.value_chunk) + np.arange(len(bounced))
        return bounce, redundant

    def _final_address_is_sent(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """What is sent in the step of ``rows`` lies at their final address, rather than where it was initially."""
        steps = self.steps
        value = steps.writes[rows]
        chunk, rank = steps.value_chunk[value], steps.value_rank[value]
        buffer, offset = self.layout.initial(chunk, rank)
        final_buffer, final = self.layout.final(chunk, rank)
        same = (buffer == final_buffer) & (offset == final) & (final_buffer != RankBuffer.SCRATCH)
        return np.asarray(same | (steps.live_from[value] < steps.step[rows]))

    def _allocations(self, bounced: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Allocation of each value in scratch memory, and its offset in it."""
        steps, own = self.steps, len(self.steps.value_chunk)
        values = own + bounced
        allocation, offset = np.full(values, -1, dtype=np.int64), np.zeros(values, dtype=np.int64)
        buffer, _ = self.layout.final(steps.value_chunk, steps.value_rank)
        scratch = np.flatnonzero((buffer == RankBuffer.SCRATCH) & (steps.first_writer >= 0))
        length = self.layout.chunk_length
        scratch = scratch[length[steps.value_chunk[scratch]] > 0]
        extra = own + np.arange(bounced)
        if self.pieces > 1:
            every = np.concatenate([scratch, extra])
            allocation[every] = np.arange(len(every))
            return allocation, offset
        source = self.schedule.src[steps.first_writer[scratch]]
        chunk, rank = steps.value_chunk[scratch], steps.value_rank[scratch]
        first = steps.live_from[scratch]
        order = np.lexsort((chunk, source, first, rank))
        begins = begins_run(source[order], first[order], rank[order]) | (
            np.diff(chunk[order], prepend=-2) != 1
        )
        before = first_rows(length[chunk[order]])
        number = np.cumsum(begins) - 1
        allocation[scratch[order]] = number
        offset[scratch[order]] = before - before[begins][number]
        allocation[extra] = (int(number[-1]) + 1 if len(number) else 0) + np.arange(bounced)
        return allocation, offset
