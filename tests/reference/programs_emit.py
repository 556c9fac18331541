"""Writes messages down step by step, keeping for every value who wrote it last and who has read it since.

The slow reference of :mod:`coppice.program.dialects.thread_blocks.emit`: same interface, same results.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.program.buffer_layout import BufferLayout
from coppice.program.dialects.thread_blocks.assignment import Blocks
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.lower import MessageTable
from coppice.program.memory import Buffer, buffer_sizes
from coppice.schedule.schedule import Op

_Slot = tuple[int, int]
_NOWHERE: _Slot = (Buffer.NONE, -1)
_Step = tuple[int, int]
"""(thread block row, position)"""
_JOINED = (StepOp.RECV_COPY_SEND, StepOp.RECV_REDUCE_SEND, StepOp.RECV_REDUCE_COPY_SEND)


@dataclass(slots=True)
class _Line:
    """A step under construction."""

    op: int
    src: _Slot
    dst: _Slot
    count: int
    after: list[_Step]
    message: int = -1


@dataclass(slots=True)
class _Cell:
    """Who last wrote a value, and who has read it since."""

    writer: _Step | None = None
    readers: list[_Step] = field(default_factory=list)


class Emitter:
    """Turns messages into a program.

    Args:
        placement: Where values lie.
        table: Messages and their order.
        blocks: Thread blocks.
        fused: Receiving and reducing may be one step.
        apart: Events of sends that are not to be one step with a receive; a slice means all.
    """

    def __init__(
        self,
        placement: BufferLayout,
        table: MessageTable,
        blocks: Blocks,
        *,
        fused: bool,
        apart: NDArray[np.int64] | slice | None = None,
    ) -> None:
        self._placement, self._table = placement, table
        self._rows: list[tuple[int, int, int, int]] = [tuple(row) for row in blocks.rows.tolist()]
        self._sender = {(rank, to, channel): row for row, (rank, to, _, channel) in enumerate(self._rows)}
        self._receiver = {(source, rank, ch): row for row, (rank, _, source, ch) in enumerate(self._rows)}
        self._fused, self._joined = fused, fused and not isinstance(apart, slice)
        self._apart = set() if apart is None or isinstance(apart, slice) else set(apart.tolist())
        self._lines: list[list[_Line]] = [[] for _ in self._rows]
        self._cells: dict[int, _Cell] = {}
        self._waited: list[dict[int, int]] = [{} for _ in self._rows]
        self._staging: list[int] = [0] * len(
            self._rows
        )  # slots that a thread block receives into before it adds
        self._unread: set[_Step] = set()  # joined steps whose sum is kept but not read again

    @property
    def joins(self) -> bool:
        """Whether some step receives and sends."""
        return any(line.op in _JOINED for lines in self._lines for line in lines)

    def program(self, **attributes: Any) -> Program:
        """The program, in place or not as ``placement`` says, with further attributes."""
        self._steps()
        self._drop_unread()
        rows = [*self._rows]
        self._own_copies(rows)
        return self._columns(rows, attributes)

    def _steps(self) -> None:
        table = self._table
        columns = (
            table.src, table.dst, table.color, table.op, table.first, table.runs, table.count,
            table.src_buffer, table.src_offset, table.dst_buffer, table.dst_offset, table.fresh,
            table.old_buffer, table.old_offset,
        )  # fmt: skip
        messages = list(zip(*(column.tolist() for column in columns), strict=True))
        senders, receivers, ranks = self._sender, self._receiver, self._placement.ranks
        for place, event in enumerate(table.events.tolist()):
            number = event >> 1
            (src, dst, color, op, first, runs, count, sb, so, db, do, fresh, ob, oo) = messages[number]
            link = (src, dst, color)
            if event & 1:
                cells = range(first * ranks + dst, (first + runs) * ranks + dst, ranks)
                old = (ob, oo) if fresh else (db, do)
                self._receive(receivers[link], op, cells, (db, do), old, count, number)
            else:
                cells = range(first * ranks + src, (first + runs) * ranks + src, ranks)
                self._send(senders[link], cells, (sb, so), count, joins=place not in self._apart)

    def _add(self, block: int, line: _Line) -> _Step:
        self._lines[block].append(line)
        return block, len(self._lines[block]) - 1

    def _cell(self, key: int) -> _Cell:
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell()
        return cell

    def _needs(self, block: int, steps: set[_Step]) -> list[_Step]:
        """Of the steps to wait for, those that ``block`` has not waited for yet, the last of each thread block."""
        if not steps:
            return []
        if len(steps) == 1:
            ((other, position),) = steps
            if other == block or position <= self._waited[block].get(other, -1):
                return []
            self._waited[block][other] = position
            return [(other, position)]
        last: dict[int, int] = {}
        for other, position in steps:
            if other != block and position > last.get(other, -1):
                last[other] = position
        waited = self._waited[block]
        needed = [(other, position) for other, position in last.items() if position > waited.get(other, -1)]
        waited.update(needed)
        return sorted(needed)

    def _send(self, block: int, cells: range, src: _Slot, count: int, *, joins: bool) -> None:
        wrote = {writer for key in cells if (writer := self._cell(key).writer) is not None}
        lines = self._lines[block]
        here = (block, len(lines) - 1)
        line = lines[-1] if lines else None
        joins = joins and self._joined and line is not None
        if line is not None and joins and wrote == {here} and line.dst == src and line.count == count:
            if line.op == StepOp.RECV:
                line.op = StepOp.RECV_COPY_SEND
                step = here
            elif line.op == StepOp.RECV_REDUCE_COPY:
                line.op = StepOp.RECV_REDUCE_COPY_SEND
                self._unread.add(here)
                return  # it passes on what it adds up, and does not read it
            else:
                step = self._add(block, _Line(StepOp.SEND, src, _NOWHERE, count, []))
        else:
            needs = self._needs(block, wrote)
            step = self._add(block, _Line(StepOp.SEND, src, _NOWHERE, count, needs))
        self._unread -= wrote
        for key in cells:
            self._cell(key).readers.append(step)

    def _receive(
        self, block: int, op: int, cells: range, home: _Slot, old: _Slot, count: int, message: int
    ) -> None:
        before: set[_Step] = set()
        read: set[_Step] = set()
        for key in cells:
            cell = self._cell(key)
            before.update(cell.readers)
            if cell.writer is not None:
                before.add(cell.writer)
                read.add(cell.writer)
        if op == Op.COPY:
            step = self._add(
                block, _Line(StepOp.RECV, _NOWHERE, home, count, self._needs(block, before), message)
            )
        elif self._fused:
            self._unread -= read
            step = self._add(
                block, _Line(StepOp.RECV_REDUCE_COPY, old, home, count, self._needs(block, before), message)
            )
        elif old != home:
            self._add(block, _Line(StepOp.RECV, _NOWHERE, home, count, self._needs(block, before), message))
            step = self._add(block, _Line(StepOp.REDUCE, old, home, count, []))
        else:
            staged = (Buffer.NONE, block)  # its place is known once all of them are
            self._staging[block] = max(self._staging[block], count)
            self._add(block, _Line(StepOp.RECV, _NOWHERE, staged, count, [], message))
            step = self._add(block, _Line(StepOp.REDUCE, staged, home, count, self._needs(block, before)))
        for key in cells:
            self._cells[key] = _Cell(writer=step)

    def _drop_unread(self) -> None:
        """Sums that are passed on and neither read again nor wanted in the end are not kept."""
        if not self._unread:
            return
        placement, ranks = self._placement, self._placement.ranks
        final: dict[_Step, list[int]] = {}
        for key, cell in self._cells.items():
            if cell.writer in self._unread:
                final.setdefault(cell.writer, []).append(key)
        for step, keys in final.items():
            rank = np.array(keys) % ranks
            if placement.wanted(rank, placement.units.slot[np.array(keys) // ranks]).any():
                self._unread.discard(step)
        for block, position in self._unread:
            line = self._lines[block][position]
            line.op, line.dst = StepOp.RECV_REDUCE_SEND, _NOWHERE

    def _own_copies(self, rows: list[tuple[int, int, int, int]]) -> None:
        """Data that stay at their rank go from its input to its output, in the thread block that has least to do."""
        copies = self._placement.own_copies(*np.zeros((3, 0), dtype=np.int64))
        if not copies:
            return
        received = self._received_anyway(copies)
        mine: dict[int, list[int]] = {}
        for row, block in enumerate(rows):
            mine.setdefault(block[0], []).append(row)
        for rank, first, target, count in copies:
            if rank not in mine:
                mine[rank] = [len(rows)]
                rows.append((rank, -1, -1, 0))
                self._lines.append([])
            row = min(mine[rank], key=lambda row: len(self._lines[row]))
            begin = 0
            for offset, length in [*received.get(rank, ()), (target + count, 0)]:
                if offset - target > begin:
                    source, place = (Buffer.INPUT, first + begin), (Buffer.OUTPUT, target + begin)
                    line = _Line(StepOp.COPY, source, place, offset - target - begin, [])
                    self._lines[row].append(line)
                begin = offset - target + length

    def _received_anyway(self, copies: list[tuple[int, int, int, int]]) -> dict[int, list[tuple[int, int]]]:
        """(output slot, count) of what ranks receive although it is theirs, in ascending order."""
        placement, ranks = self._placement, self._placement.ranks
        keys = np.array([key for key, cell in self._cells.items() if cell.writer is not None], dtype=np.int64)
        begin, end = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
        for rank, _, target, count in copies:
            begin[rank], end[rank] = target, target + count
        owner, run = keys % ranks, keys // ranks
        buffer, offset = placement.after_receive(owner, run)
        hits = np.flatnonzero((buffer == Buffer.OUTPUT) & (offset >= begin[owner]) & (offset < end[owner]))
        found: dict[int, list[tuple[int, int]]] = {}
        for hit in hits[np.argsort(offset[hits], kind="stable")].tolist():
            found.setdefault(int(owner[hit]), []).append(
                (int(offset[hit]), int(placement.units.count[run[hit]]))
            )
        return found

    def _columns(self, rows: list[tuple[int, int, int, int]], attributes: dict[str, Any]) -> Program:
        placement = self._placement
        ranks = placement.ranks
        order = sorted(range(len(rows)), key=lambda row: rows[row][0])
        block_rank = np.array([rows[row][0] for row in order], dtype=np.int64)
        rank_start = np.searchsorted(block_rank, np.arange(ranks + 1)).astype(np.int64)
        place = np.empty(len(rows), dtype=np.int64)
        place[order] = np.arange(len(rows)) - rank_start[block_rank]
        scratch = self._place_staging(rows)
        lines = [line for row in order for line in self._lines[row]]
        waits = [wait for line in lines for wait in line.after]
        sizes = buffer_sizes(placement.collective, ranks, placement.units.num_chunks, int(placement.root))
        program = Program(
            collective=placement.collective,
            num_ranks=ranks,
            num_chunks=placement.units.num_chunks,
            root=placement.root,
            in_place=placement.in_place,
            out_of_place=not placement.in_place,
            input_chunks=sizes[0].astype(np.int32),
            output_chunks=sizes[1].astype(np.int32),
            scratch_chunks=scratch.astype(np.int32),
            rank_start=rank_start,
            block_send=np.array([rows[row][1] for row in order], dtype=np.int32),
            block_recv=np.array([rows[row][2] for row in order], dtype=np.int32),
            block_channel=np.array([rows[row][3] for row in order], dtype=np.int32),
            step_start=np.cumsum([0, *(len(self._lines[row]) for row in order)], dtype=np.int64),
            op=np.array([line.op for line in lines], dtype=np.int8),
            src_buffer=np.array([line.src[0] for line in lines], dtype=np.int8),
            src_offset=np.array([line.src[1] for line in lines], dtype=np.int32),
            dst_buffer=np.array([line.dst[0] for line in lines], dtype=np.int8),
            dst_offset=np.array([line.dst[1] for line in lines], dtype=np.int32),
            count=np.array([line.count for line in lines], dtype=np.int32),
            dep_start=np.cumsum([0, *(len(line.after) for line in lines)], dtype=np.int64),
            dep_block=np.array([place[block] for block, _ in waits], dtype=np.int32),
            dep_step=np.array([position for _, position in waits], dtype=np.int32),
            **attributes,
        )
        return _without_gaps(program)

    def _place_staging(self, rows: list[tuple[int, int, int, int]]) -> NDArray[np.int64]:
        """Slots for what is received before it is added, behind the other scratch slots; how many there are."""
        scratch = self._table.scratch.copy()
        for block, count in enumerate(self._staging):
            if not count:
                continue
            rank = rows[block][0]
            staged, slot = (Buffer.NONE, block), (int(Buffer.SCRATCH), int(scratch[rank]))
            scratch[rank] += count
            for line in self._lines[block]:
                if line.dst == staged:
                    line.dst = slot
                if line.src == staged:
                    line.src = slot
        return scratch


def _without_gaps(program: Program) -> Program:
    """The same program with scratch slots that no step uses taken out."""
    rank = program.block_rank[program.step_block]
    start = np.cumsum(program.scratch_chunks, dtype=np.int64) - program.scratch_chunks
    total = int(program.scratch_chunks.sum())
    change = np.zeros(total + 1, dtype=np.int64)
    sides = (
        (program.src_buffer == Buffer.SCRATCH, program.src_offset),
        (program.dst_buffer == Buffer.SCRATCH, program.dst_offset),
    )
    for mask, offset in sides:
        first = start[rank[mask]] + offset[mask]
        np.add.at(change, first, 1)
        np.add.at(change, first + program.count[mask], -1)
    used = np.cumsum(change[:-1]) > 0
    kept = np.concatenate([[0], np.cumsum(used)])
    moved = [
        np.where(mask, kept[np.where(mask, start[rank] + offset, 0)] - kept[start[rank]], offset)
        for mask, offset in sides
    ]
    return replace(
        program,
        src_offset=moved[0].astype(np.int32),
        dst_offset=moved[1].astype(np.int32),
        scratch_chunks=(kept[start + program.scratch_chunks] - kept[start]).astype(np.int32),
    )
