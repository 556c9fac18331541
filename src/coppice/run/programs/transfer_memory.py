"""Which memory the sender of every transfer reads and the receiver writes, as all ranks work it out alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.errors import InputError
from coppice.rows import first_rows
from coppice.run.programs.placement import Placement
from coppice.run.programs.rank_program import RankBuffer
from coppice.run.programs.steps import transfer_steps
from coppice.schedule.schedule import Op, Schedule

__all__ = ["TransferEnds", "TransferMemory"]


@dataclass(frozen=True, eq=False, repr=False)
class TransferEnds(Brief):
    """Memory at one end of some transfers.

    Attributes:
        value: Value in scratch memory, or -1 where the address is known without allocation (int64).
        buffer: :class:`~coppice.run.programs.rank_program.RankBuffer` (int64).
        offset: First element; for a value in scratch memory its offset in its allocation (int64).
    """

    value: NDArray[np.int64]
    buffer: NDArray[np.int64]
    offset: NDArray[np.int64]


class TransferMemory:
    """What all ranks know of the memory of a schedule at a count.

    Values in scratch memory share a contiguous *allocation* where chunks follow each other and one rank receives them
    from another in one step. Where chunks are cut into pieces, every value has an allocation of its own.

    A copy that would overwrite what its rank sends in the same step (a write-after-read hazard) lands in a *bounce
    buffer*, a value of its own in scratch memory, and is copied to its final address when the step's messages are done.
    The second copy of the same value in one step is redundant: it lands in such a buffer and stays there.

    Attributes:
        schedule: The schedule.
        steps: Its steps and values.
        placement: Where values lie.
        pieces: Number of pieces of every chunk.
        piece_elements: Longest message, or None.
        bounce: Bounce buffer in which each transfer lands, or -1 (int64).
        redundant: It stays there (bool).
        allocation: Allocation of each value that lies in scratch memory, otherwise -1 (int64). Bounce buffers come
            after the schedule's own values.
        value_offset: Offset of each such value in its allocation (int64).
        value_chunk: Chunk of each value (int64).
        value_rank: Rank of each value (int64).
        live_from: First step of each value (int64).
        live_until: Last step of each value (int64).
    """

    def __init__(self, schedule: Schedule, count: int, *, in_place: bool, piece_elements: int | None) -> None:
        self.schedule, self.steps = schedule, transfer_steps(schedule)
        self.placement = placement = Placement(schedule, count, in_place=in_place)
        longest = int(placement.chunk_length.max()) if schedule.num_chunks else 0
        self.pieces = max(1, -(-longest // piece_elements)) if piece_elements else 1
        self.piece_elements = piece_elements
        self._check_initial_values()
        self.bounce, self.redundant = self._bounce_buffers()
        bounced = np.flatnonzero(self.bounce >= 0)
        steps = self.steps
        written = steps.writes[bounced]
        self.value_chunk = np.concatenate([steps.value_chunk, steps.value_chunk[written]])
        self.value_rank = np.concatenate([steps.value_rank, steps.value_rank[written]])
        self.live_from = np.concatenate([steps.live_from, steps.step[bounced]])
        self.live_until = np.concatenate([steps.live_until, steps.step[bounced]])
        self.allocation, self.value_offset = self._allocations(len(bounced))

    def sent(self, rows: NDArray[np.int64]) -> TransferEnds:
        """What the senders of ``rows`` read."""
        value = self.steps.reads[rows]
        return self._held(value, self.steps.live_from[value] < self.steps.step[rows])

    def operand(self, rows: NDArray[np.int64]) -> TransferEnds:
        """What the receivers of ``rows`` hold before: the own operand of a reduction."""
        return self._held(self.steps.writes[rows], ~self.steps.first_write[rows])

    def landing(self, rows: NDArray[np.int64]) -> TransferEnds:
        """Where what the receivers of ``rows`` receive, or its sum, is written."""
        final = self.final(rows)
        bounce = self.bounce[rows]
        bounced = bounce >= 0
        return TransferEnds(
            value=np.where(bounced, bounce, final.value),
            buffer=np.where(bounced, RankBuffer.SCRATCH, final.buffer),
            offset=np.where(bounced, 0, final.offset),
        )

    def final(self, rows: NDArray[np.int64]) -> TransferEnds:
        """Where what the receivers of ``rows`` receive belongs."""
        return self._held(self.steps.writes[rows], np.ones(len(rows), dtype=np.bool_))

    def _held(self, value: NDArray[np.int64], arrived: NDArray[np.bool_]) -> TransferEnds:
        chunk, rank = self.steps.value_chunk[value], self.steps.value_rank[value]
        initial_buffer, initial = self.placement.initial(chunk, rank)
        final_buffer, final = self.placement.final(chunk, rank)
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
            missing = ~self.placement.has_initially(steps.value_chunk[needed], steps.value_rank[needed])
            if missing.any():
                row = int(asked[np.flatnonzero(missing)[0]])
                msg = (
                    f"expected values before they are used, but transfer {row} {verb} chunk {schedule.chunk[row]} "
                    f"at rank {steps.value_rank[value[row]]}, which does not hold it by then: verify the schedule."
                )
                raise InputError(msg)

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
        buffer, offset = self.placement.initial(chunk, rank)
        final_buffer, final = self.placement.final(chunk, rank)
        same = (buffer == final_buffer) & (offset == final) & (final_buffer != RankBuffer.SCRATCH)
        return np.asarray(same | (steps.live_from[value] < steps.step[rows]))

    def _allocations(self, bounced: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Allocation of each value in scratch memory, and its offset in it."""
        steps, own = self.steps, len(self.steps.value_chunk)
        values = own + bounced
        allocation, offset = np.full(values, -1, dtype=np.int64), np.zeros(values, dtype=np.int64)
        buffer, _ = self.placement.final(steps.value_chunk, steps.value_rank)
        scratch = np.flatnonzero((buffer == RankBuffer.SCRATCH) & (steps.first_writer >= 0))
        length = self.placement.chunk_length
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
        begins = np.diff(chunk[order], prepend=-2) != 1
        for column in (source, first, rank):
            begins |= np.diff(column[order], prepend=-1) != 0
        before = first_rows(length[chunk[order]])
        number = np.cumsum(begins) - 1
        allocation[scratch[order]] = number
        offset[scratch[order]] = before - before[begins][number]
        allocation[extra] = (int(number[-1]) + 1 if len(number) else 0) + np.arange(bounced)
        return allocation, offset
