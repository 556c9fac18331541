"""Emit the steps of thread blocks for messages, with a minimal set of dependencies.

Sends and receives, in the order in which they take place, are *events*. Every event accesses *values*, each of them
what one rank has of one run of chunks: a send reads them, a receive writes them. An event becomes a *line* of its
thread block; two, where what is received is added in a step of its own; none, where a send joins the receive before it.
Lines wait for the last write before what they access (read after write, write after write), and for the reads of what
they overwrite (write after read).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.program.buffer_layout import BufferLayout
from coppice.program.dialects.thread_blocks.assignment import Blocks
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.lower import MessageTable
from coppice.program.memory import Buffer, buffer_sizes
from coppice.rows import (
    begins_run,
    first_rows,
    grouped,
    inverse,
    last_before,
    next_after,
    nth_in_group,
    nth_in_run,
    offsets,
    ranges,
    sorted_rows,
)
from coppice.schedule.schedule import Op

_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]
_COLUMNS = ("op", "src_buffer", "src_offset", "dst_buffer", "dst_offset", "count")


@dataclass(frozen=True, eq=False)
class _Accesses:
    """Accesses of events to values, sorted by value and then by time."""

    value: _Ints  # Run * ranks + rank
    event: _Ints  # Its event
    write: _Bools  # It is a receive
    last_write: _Ints  # The access that last wrote the value before, or -1
    next_write: _Ints  # The access that next writes the value, or -1


class Emitter:
    """Convert messages to a program.

    Args:
        placement: Where values lie.
        table: Messages and their order.
        blocks: Thread blocks.
        fused: Receiving and reducing may be one step.
        apart: Events of sends that are not to be one step with the receive before them, as others may be if ``fused``.
    """

    def __init__(
        self,
        placement: BufferLayout,
        table: MessageTable,
        blocks: Blocks,
        *,
        fused: bool,
        apart: _Ints | slice | None = None,
    ) -> None:
        self._placement, self._table, self._fused = placement, table, fused
        self._blocks, self._rows = blocks, blocks.rows
        self._message = table.events // 2
        self._receives = table.events % 2 == 1
        self._block = self._blocks_of_events()
        self._accesses = self._accesses_of_values()
        self._joined_to = np.full(len(self._block), -1, dtype=np.int64)
        self._at = self._block[:0]
        self._merged = self._joins(apart) if fused else np.zeros(len(self._block), dtype=np.bool_)

    def joined_at(self, steps: Sequence[int]) -> _Ints:
        """Events of sends fused with the preceding receive, for ``steps`` of this kind.

        Args:
            steps: Steps of the program that was made last.
        """
        merged = np.flatnonzero(self._merged)
        return merged[np.isin(self._at[self._last_line[merged]], np.asarray(steps, dtype=np.int64))]

    @property
    def joins(self) -> bool:
        """Whether a step receives and sends."""
        return bool(self._merged.any())

    def program(self, **attributes: Any) -> Program:
        """Build the program, in place or not by the buffer layout."""
        placement = self._placement
        lines, staging = self._lines()
        rows, own, copies = self._own_copies()
        rank = rows[:, 0]
        by_rank, rank_start = grouped(rank, placement.ranks)
        place = inverse(by_rank)
        # Each thread block: the lines of its events, then its copies.
        copier, *copied = copies.T
        step_start = offsets((own + np.bincount(copier, minlength=len(rows)))[by_rank])
        first = step_start[place]
        at = self._at = first[self._line_block] + self._line_position
        at_copies = first[copier] + own[copier] + nth_in_run(copier)
        copying: tuple[int | _Ints, ...] = (
            int(StepOp.COPY),
            int(Buffer.INPUT),
            copied[0],
            int(Buffer.OUTPUT),
            copied[1],
            copied[2],
        )
        columns: dict[str, _Ints] = {}
        for name, values in zip(_COLUMNS, copying, strict=True):
            column = np.empty(int(step_start[-1]), dtype=np.int64)
            column[at] = lines[name]
            column[at_copies] = values
            columns[name] = column
        waiting, other, position = self._dependencies()
        deps = sorted_rows(at[waiting], place[other])
        sizes = buffer_sizes(
            placement.collective, placement.ranks, placement.units.num_chunks, int(placement.root)
        )
        program = Program(
            collective=placement.collective,
            num_ranks=placement.ranks,
            num_chunks=placement.units.num_chunks,
            root=placement.root,
            in_place=placement.in_place,
            out_of_place=not placement.in_place,
            input_chunks=sizes[0].astype(np.int32),
            output_chunks=sizes[1].astype(np.int32),
            scratch_chunks=(self._table.scratch + staging).astype(np.int32),
            rank_start=rank_start,
            block_send=rows[by_rank, 1].astype(np.int32),
            block_recv=rows[by_rank, 2].astype(np.int32),
            block_channel=rows[by_rank, 3].astype(np.int32),
            step_start=step_start,
            op=columns["op"].astype(np.int8),
            src_buffer=columns["src_buffer"].astype(np.int8),
            src_offset=columns["src_offset"].astype(np.int32),
            dst_buffer=columns["dst_buffer"].astype(np.int8),
            dst_offset=columns["dst_offset"].astype(np.int32),
            count=columns["count"].astype(np.int32),
            dep_start=np.searchsorted(at[waiting][deps], np.arange(int(step_start[-1]) + 1)).astype(np.int64),
            dep_block=(place[other] - rank_start[rank[other]])[deps].astype(np.int32),
            dep_step=position[deps].astype(np.int32),
            **attributes,
        )
        return _without_gaps(program)

    def _own_copies(self) -> tuple[_Ints, _Ints, _Ints]:
        """What ranks copy from their input to their output, each in its thread block with least to do.

        Returns:
            All thread blocks, with one more for each rank that had none but has something to copy; their lines; and
            (thread block, first input slot, first output slot, count) of the copies, sorted.
        """
        placement, accesses = self._placement, self._accesses
        lines: list[int] = np.bincount(self._line_block, minlength=len(self._rows)).tolist()
        rows = [tuple(row) for row in self._rows.tolist()]
        blocks: dict[int, list[int]] = defaultdict(list)
        for row, (rank, *_) in enumerate(rows):
            blocks[rank].append(row)
        run, rank = np.divmod(accesses.value[accesses.write & (accesses.next_write < 0)], placement.ranks)
        buffer, offset = placement.after_receive(rank, run)
        out = buffer == Buffer.OUTPUT
        copier: dict[int, int] = {}
        copies: list[tuple[int, int, int, int]] = []
        for owner, source, target, count in placement.own_copies(
            rank[out], offset[out], placement.units.count[run[out]]
        ):
            if not blocks[owner]:
                blocks[owner].append(len(rows))
                rows.append((owner, -1, -1, 0))
                lines.append(0)
            if owner not in copier:
                copier[owner] = min(blocks[owner], key=lines.__getitem__)
            copies.append((copier[owner], source, target, count))
        table, own, found = (np.array(each, dtype=np.int64) for each in (rows, lines, sorted(copies)))
        return table.reshape(-1, 4), own, found.reshape(-1, 4)

    def _blocks_of_events(self) -> _Ints:
        """Thread block (row) that carries out each event."""
        table, message = self._table, self._message
        sender, receiver = self._blocks.at_ends(table.src, table.dst, table.color)
        return np.where(self._receives, receiver[message], sender[message])

    def _accesses_of_values(self) -> _Accesses:
        table, message = self._table, self._message
        runs = table.runs[message]
        event = np.repeat(np.arange(len(message)), runs)
        rank = np.where(self._receives, table.dst[message], table.src[message])
        value = ranges(table.first[message], runs) * self._placement.ranks + rank[event]
        by = sorted_rows(value, event)
        value, event = value[by], event[by]
        write = self._receives[event]
        return _Accesses(value, event, write, last_before(value, write), next_after(value, write))

    def _joins(self, apart: _Ints | slice | None) -> _Bools:
        """Sends of what the step before them in their thread block receives, of all of it and of nothing else."""
        table, message, accesses = self._table, self._message, self._accesses
        by = np.argsort(self._block, kind="stable")
        before = np.full(len(by), -1, dtype=np.int64)
        if len(by):
            same = self._block[by[1:]] == self._block[by[:-1]]
            before[by[1:][same]] = by[:-1][same]
        joins: _Bools = ~self._receives & (before >= 0)
        joins[joins] = self._receives[before[joins]]
        for kept, passed in (
            (table.dst_buffer, table.src_buffer),
            (table.dst_offset, table.src_offset),
            (table.count, table.count),
        ):
            joins[joins] = kept[message[before[joins]]] == passed[message[joins]]
        reads = np.flatnonzero((accesses.last_write >= 0) & joins[accesses.event])
        wrote, event = accesses.event[accesses.last_write[reads]], accesses.event[reads]
        found = np.zeros(len(joins), dtype=np.bool_)
        found[event[wrote == before[event]]] = True
        joins &= found
        joins[event[wrote != before[event]]] = False
        if apart is not None:
            joins[apart] = False
        self._joined_to[joins] = before[joins]
        return joins

    @cached_property
    def _line_event(self) -> _Ints:
        """Event of each line; lines of a thread block follow each other in its order."""
        return np.repeat(np.arange(len(self._message)), self._lines_of_event)

    @cached_property
    def _adds_apart(self) -> _Bools:
        """Events that receive in one line, and add in the next."""
        if self._fused:
            return np.zeros(len(self._message), dtype=np.bool_)
        return np.asarray(self._receives & (self._table.op[self._message] == Op.REDUCE))

    @cached_property
    def _lines_of_event(self) -> _Ints:
        return 1 + self._adds_apart - self._merged.astype(np.int64)

    @cached_property
    def _line_block(self) -> _Ints:
        return self._block[self._line_event]

    @cached_property
    def _line_position(self) -> _Ints:
        """Position of each line in its thread block."""
        return nth_in_group(self._line_block)

    @cached_property
    def _last_line(self) -> _Ints:
        """Line with which each event is done."""
        done = np.cumsum(self._lines_of_event) - 1
        if self.joins:
            merged = np.flatnonzero(self._merged)
            done[merged] = done[self._joined_to[merged]]
        return done

    def _lines(self) -> tuple[dict[str, _Ints], _Ints]:
        """Columns of all lines, and the slots of scratch that each rank needs as staging buffers."""
        table, event = self._table, self._line_event
        message, receives = self._message[event], self._receives[event]
        adds = receives & (table.op[message] == Op.REDUCE)
        slots = {
            "src_buffer": np.where(receives, Buffer.NONE, table.src_buffer[message]),
            "src_offset": np.where(receives, -1, table.src_offset[message]),
            "dst_buffer": np.where(receives, table.dst_buffer[message], Buffer.NONE),
            "dst_offset": np.where(receives, table.dst_offset[message], -1),
        }
        fresh = table.fresh[message]
        old_buffer = np.where(fresh, table.old_buffer[message], table.dst_buffer[message])
        old_offset = np.where(fresh, table.old_offset[message], table.dst_offset[message])
        staging = np.zeros(self._placement.ranks, dtype=np.int64)
        if self._fused:
            op = np.where(receives, np.where(adds, StepOp.RECV_REDUCE_COPY, StepOp.RECV), StepOp.SEND)
            slots["src_buffer"] = np.where(adds, old_buffer, slots["src_buffer"])
            slots["src_offset"] = np.where(adds, old_offset, slots["src_offset"])
            self._fuse(op, slots)
        else:
            second = ~begins_run(event)
            op = np.where(second, StepOp.REDUCE, np.where(receives, StepOp.RECV, StepOp.SEND))
            slots["src_buffer"] = np.where(second, old_buffer, slots["src_buffer"])
            slots["src_offset"] = np.where(second, old_offset, slots["src_offset"])
            staged = adds & (old_buffer == table.dst_buffer[message])
            staged &= old_offset == table.dst_offset[message]
            where = self._staging(event, staged, staging)
            for side, mask in (("src", staged & second), ("dst", staged & ~second)):
                slots[f"{side}_buffer"] = np.where(mask, Buffer.SCRATCH, slots[f"{side}_buffer"])
                slots[f"{side}_offset"] = np.where(mask, where, slots[f"{side}_offset"])
        return {"op": op, "count": table.count[message], **slots}, staging

    def _staging(self, event: _Ints, staged: _Bools, staging: _Ints) -> _Ints:
        """Slot of scratch of each line that is received to be added; ``staging`` counts them for each rank."""
        most = np.zeros(len(self._rows), dtype=np.int64)
        np.maximum.at(most, self._block[event[staged]], self._table.count[self._message[event[staged]]])
        rank = self._rows[:, 0]
        total = first_rows(most)  # thread blocks are sorted by rank
        start = total[np.searchsorted(rank, rank)] if len(rank) else total
        np.add.at(staging, rank, most)
        slot: _Ints = (self._table.scratch[rank] + total - start)[self._block[event]]
        return slot

    def _fuse(self, op: _Ints, slots: dict[str, _Ints]) -> None:
        """Lines that a send joins, and of them those whose sum nobody reads again and that need not keep it."""
        line = self._last_line[self._merged]
        sums = op[line] == StepOp.RECV_REDUCE_COPY
        op[line] = np.where(sums, StepOp.RECV_REDUCE_COPY_SEND, StepOp.RECV_COPY_SEND)
        if not sums.any():
            return
        placement, accesses = self._placement, self._accesses
        kept = np.ones(len(self._message), dtype=np.bool_)
        kept[self._joined_to[self._merged][sums]] = False
        adds = self._receives & (self._table.op[self._message] == Op.REDUCE)
        reads = (accesses.last_write >= 0) & (
            np.where(accesses.write, adds[accesses.event], ~self._merged[accesses.event])
        )
        kept[accesses.event[accesses.last_write[reads]]] = True
        final = np.flatnonzero(accesses.write & (accesses.next_write < 0))
        run, rank = np.divmod(accesses.value[final], placement.ranks)
        kept[accesses.event[final[placement.wanted(rank, placement.units.slot[run])]]] = True
        passing = self._last_line[~kept]
        op[passing] = StepOp.RECV_REDUCE_SEND
        slots["dst_buffer"][passing] = Buffer.NONE
        slots["dst_offset"][passing] = -1

    def _dependencies(self) -> tuple[_Ints, _Ints, _Ints]:
        """(line, thread block that it waits for, position there), as few as are needed."""
        accesses, table = self._accesses, self._table
        after_write = np.flatnonzero(accesses.last_write >= 0)
        after_read = np.flatnonzero(~accesses.write & (accesses.next_write >= 0))
        earlier = accesses.event[np.concatenate([accesses.last_write[after_write], after_read])]
        later = accesses.event[np.concatenate([after_write, accesses.next_write[after_read]])]
        apart = self._block[earlier] != self._block[later]
        earlier, later = earlier[apart], later[apart]
        line = np.cumsum(self._lines_of_event)[later] - 1
        first = self._adds_apart[later] & table.fresh[self._message[later]]
        old = (table.old_buffer != table.dst_buffer) | (table.old_offset != table.dst_offset)
        line -= first & old[self._message[later]]  # what is received goes straight to where it is added
        block, other = self._line_block[line], self._block[earlier]
        awaited = self._line_position[self._last_line[earlier]]
        by = sorted_rows(block, other, self._line_position[line], awaited)
        block, other, line, awaited = block[by], other[by], line[by], awaited[by]
        begins = begins_run(block, other)
        # Within each pair of thread blocks: only what has not been waited for before.
        group = np.cumsum(begins)
        span = int(awaited.max(initial=0)) + 2
        high = np.maximum.accumulate(group * span + awaited + 1)
        kept = np.flatnonzero(begins | begins_run(high))
        # The last of those that one line waits for in one thread block stands for all of them.
        kept = kept[begins_run(line[kept][::-1], other[kept][::-1])[::-1]]
        return line[kept], other[kept], awaited[kept]


def _without_gaps(program: Program) -> Program:
    """The same program with scratch slots that no step accesses taken out."""
    rank = program.step_rank
    start = first_rows(program.scratch_chunks)
    total = int(program.scratch_chunks.sum())
    change = np.zeros(total + 1, dtype=np.int64)
    operands = (
        (program.src_buffer == Buffer.SCRATCH, program.src_offset),
        (program.dst_buffer == Buffer.SCRATCH, program.dst_offset),
    )
    for mask, offset in operands:
        first = start[rank[mask]] + offset[mask]
        np.add.at(change, first, 1)
        np.add.at(change, first + program.count[mask], -1)
    used = np.cumsum(change[:-1]) > 0
    kept = offsets(used.astype(np.int8))
    moved = [
        np.where(mask, kept[np.where(mask, start[rank] + offset, 0)] - kept[start[rank]], offset)
        for mask, offset in operands
    ]
    return replace(
        program,
        src_offset=moved[0].astype(np.int32),
        dst_offset=moved[1].astype(np.int32),
        scratch_chunks=(kept[start + program.scratch_chunks] - kept[start]).astype(np.int32),
    )
