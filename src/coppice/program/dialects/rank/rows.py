"""Lower one rank: order its messages and copies, with addresses and dependencies."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.rank.layout import LocalCopy, TransferEnds, TransferMemory
from coppice.program.dialects.rank.program import RankBuffer, RankProgram, RowKind, message_tags
from coppice.program.dialects.rank.steps import Accesses, predecessors_of
from coppice.rows import begins_run, positions
from coppice.schedule.schedule import Op

_Column = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class _RowTable:
    """Rows of a program before they are in order.

    Rows of a step and kind are sorted alike at both ends of a message, by what the receiver does (``dst_kind``), the
    order of writes into one value, the transfer (the first one of a message) and the part of a message that was split.
    """

    step: _Column
    kind: _Column
    dst_kind: _Column
    write_order: _Column
    transfer: _Column
    part: _Column
    peer: _Column
    buffer: _Column
    offset: _Column
    length: _Column
    source: _Column
    source_offset: _Column

    def taken(self, rows: _Column) -> _RowTable:
        """The rows ``rows``."""
        return _RowTable(**{name: column[rows] for name, column in vars(self).items()})


class RankRows:
    """Builder of the program of ``rank``."""

    def __init__(self, memory: TransferMemory, rank: int) -> None:
        self._memory, self._rank = memory, rank
        self._steps, self._layout = memory.steps, memory.layout

    def program(self) -> RankProgram:
        """Build the program."""
        memory, rank, steps, layout = self._memory, self._rank, self._steps, self._layout
        schedule = memory.schedule
        rows = steps.rank_rows[steps.rank_start[rank] : steps.rank_start[rank + 1]]
        rows = rows[layout.chunk_length[schedule.chunk[rows]] > 0]
        given, needed, staged = layout.sizes(rank)
        address, scratch = self._addresses(staged)
        messages = self._messages(rows, address)
        shift = 1 if layout.staging_copies(rank) else 0  # steps, behind the copies that come first
        table = _joined(
            [replace(messages, step=messages.step + shift), *self._copies(messages, rows, address, shift)]
        )
        order = np.lexsort(
            (table.part, table.transfer, table.write_order, table.dst_kind, table.kind, table.step)
        )
        table = table.taken(order)
        predecessors_start, predecessors = predecessors_of(_accesses(table), len(order))
        first, elements = layout.result(rank)
        copies = table.kind == RowKind.COPY
        return RankProgram(
            rank=rank,
            ranks=layout.ranks,
            collective=schedule.collective,
            root=schedule.root,
            count=layout.count,
            in_place=layout.in_place,
            input_elements=given,
            output_elements=needed,
            scratch_elements=scratch,
            result_offset=first,
            result_elements=elements,
            step=table.step.astype(np.int32),
            kind=table.kind.astype(np.int8),
            peer=np.where(copies, -1, table.peer).astype(np.int32),
            tag=np.where(copies, -1, message_tags(table.peer, table.kind == RowKind.SEND)).astype(np.int32),
            buffer=table.buffer.astype(np.int8),
            offset=table.offset,
            length=table.length,
            source=table.source.astype(np.int8),
            source_offset=table.source_offset,
            predecessors_start=predecessors_start,
            predecessors=predecessors,
            pieces=memory.pieces,
        )

    def _addresses(self, staged: int) -> tuple[_Column, int]:
        """Address of piece p of value v in this rank's scratch memory at ``v * pieces + p``; elements in all."""
        memory, pieces = self._memory, self._memory.pieces
        values = np.flatnonzero((memory.value_rank == self._rank) & (memory.allocation >= 0))
        address = np.zeros(len(memory.value_rank) * pieces if len(values) else 0, dtype=np.int64)
        if not len(values):
            return address, staged
        length = self._layout.chunk_length[memory.value_chunk[values]]
        first, last = memory.live_from[values], memory.live_until[values]
        if pieces == 1:
            allocations, member = np.unique(memory.allocation[values], return_inverse=True)
            begin = np.full(len(allocations), np.iinfo(np.int64).max)
            end, size = np.zeros((2, len(allocations)), dtype=np.int64)
            np.minimum.at(begin, member, first)
            np.maximum.at(end, member, last)
            np.add.at(size, member, length)
            offset, total = allocate(begin, end, size)
            address[values] = offset[member] + memory.value_offset[values]
        else:
            piece = np.tile(np.arange(pieces), len(values))
            _, size = _cut(np.repeat(length, pieces), piece, pieces)
            kept = size > 0
            offset, total = allocate(
                (np.repeat(first, pieces) + piece)[kept], (np.repeat(last, pieces) + piece)[kept], size[kept]
            )
            address[(np.repeat(values, pieces) * pieces + piece)[kept]] = offset
        return address + staged, total + staged

    def _messages(self, rows: _Column, address: _Column) -> _RowTable:
        """The messages of the transfers ``rows``."""
        memory, steps, pieces = self._memory, self._steps, self._memory.pieces
        schedule = memory.schedule
        op = schedule.op[rows].astype(np.int64)
        columns = (
            schedule.chunk[rows],
            schedule.dst[rows],
            schedule.src[rows],
            steps.write_order[rows],
            op,
            steps.step[rows],
        )
        order = np.lexsort(columns)
        sorted_rows = rows[order]
        length = self._layout.chunk_length[schedule.chunk[sorted_rows]]
        ends = (memory.sent(sorted_rows), memory.receive_buffer(sorted_rows), memory.operand(sorted_rows))
        piece = np.zeros(len(rows), dtype=np.int64)
        within = np.zeros(len(rows), dtype=np.int64)
        if pieces == 1:
            begins = begins_run(*(column[order] for column in columns[1:]))
            for end in ends:
                begins |= ~_contiguous(end, memory.allocation, length)
            repeat = np.arange(len(rows))
        else:
            repeat = np.repeat(np.arange(len(rows)), pieces)
            piece = np.tile(np.arange(pieces), len(rows))
            within, length = _cut(length[repeat], piece, pieces)
            kept = length > 0
            repeat, piece, within, length = repeat[kept], piece[kept], within[kept], length[kept]
            begins = np.ones(len(repeat), dtype=np.bool_)
        rows_of = sorted_rows[repeat]
        firsts = np.flatnonzero(begins)
        if not len(firsts):
            return _nothing()
        transfer = np.minimum.reduceat(rows_of, firsts)
        total = np.add.reduceat(length, firsts)
        lead, lead_piece, lead_within = rows_of[firsts], piece[firsts], within[firsts]
        sends = schedule.src[lead] == self._rank
        reduces = schedule.op[lead] == Op.REDUCE
        sent, receive_buffer, operand = (
            self._located(end, repeat[firsts], lead_piece, lead_within, address) for end in ends
        )
        nowhere = np.full(len(lead), -1, dtype=np.int64)
        adds = ~sends & reduces
        table = _RowTable(
            step=steps.step[lead] + lead_piece,
            kind=np.where(sends, RowKind.SEND, np.where(reduces, RowKind.RECV_REDUCE, RowKind.RECV)).astype(
                np.int64
            ),
            dst_kind=np.where(reduces, RowKind.RECV_REDUCE, RowKind.RECV).astype(np.int64),
            write_order=steps.write_order[lead],
            transfer=transfer,
            part=np.zeros(len(lead), dtype=np.int64),
            peer=np.where(sends, schedule.dst[lead], schedule.src[lead]).astype(np.int64),
            buffer=np.where(sends, sent[0], receive_buffer[0]),
            offset=np.where(sends, sent[1], receive_buffer[1]),
            length=total,
            source=np.where(adds, operand[0], nowhere),
            source_offset=np.where(adds, operand[1], 0),
        )
        return self._split(table)

    def _split(self, table: _RowTable) -> _RowTable:
        """Messages no longer than a piece."""
        longest = self._memory.piece_elements
        if longest is None or not (table.length > longest).any():
            return table
        parts = -(-table.length // longest)
        whole = table.taken(np.repeat(np.arange(len(parts)), parts))
        part = positions(parts)
        return replace(
            whole,
            part=part,
            offset=whole.offset + part * longest,
            length=np.minimum(longest, whole.length - part * longest),
            source_offset=np.where(whole.source >= 0, whole.source_offset + part * longest, 0),
        )

    def _located(
        self, end: TransferEnds, rows: _Column, piece: _Column, within: _Column, address: _Column
    ) -> tuple[_Column, _Column]:
        """Buffer and first element of a piece at one end, as far as it lies at this rank."""
        value = end.value[rows]
        mine = (value >= 0) & (self._memory.value_rank[value] == self._rank)
        offset = end.offset[rows] + within
        offset[mine] = address[value[mine] * self._memory.pieces + piece[mine]]
        return end.buffer[rows], offset

    def _copies(self, messages: _RowTable, rows: _Column, address: _Column, shift: int) -> list[_RowTable]:
        """Copies before everything, of what stays here, and from bounce buffers."""
        memory, schedule, pieces = self._memory, self._memory.schedule, self._memory.pieces
        found = [_copy_row(copy, 0, 0) for copy in self._layout.staging_copies(self._rank)]
        written: list[tuple[int, int]] = []
        bounced = rows[
            (schedule.dst[rows] == self._rank) & (memory.bounce[rows] >= 0) & ~memory.redundant[rows]
        ]
        if len(bounced):
            row = np.repeat(np.arange(len(bounced)), pieces)
            piece = np.tile(np.arange(pieces), len(bounced))
            within, length = _cut(self._layout.chunk_length[schedule.chunk[bounced]][row], piece, pieces)
            receive_buffer = self._located(memory.receive_buffer(bounced), row, piece, within, address)
            final = self._located(memory.final(bounced), row, piece, within, address)
            for index in np.flatnonzero(length).tolist():
                copy = LocalCopy(
                    RankBuffer(int(receive_buffer[0][index])),
                    int(receive_buffer[1][index]),
                    RankBuffer(int(final[0][index])),
                    int(final[1][index]),
                    int(length[index]),
                )
                if copy.buffer is RankBuffer.OUTPUT:
                    written.append((copy.offset, copy.length))
                step = int(self._steps.step[bounced[row[index]]] + piece[index]) + shift
                found.append(_copy_row(copy, step, 2))
        received = (messages.kind == RowKind.RECV) & (messages.buffer == RankBuffer.OUTPUT)
        written += zip(messages.offset[received].tolist(), messages.length[received].tolist(), strict=True)
        found += [
            _copy_row(part, 0, 1)
            for copy in self._layout.own_copies(self._rank)
            for part in _without(copy, sorted(written))
        ]
        return found


def _cut(length: _Column, piece: _Column, pieces: int) -> tuple[_Column, _Column]:
    """First element and length of a piece of a chunk; what is left over goes to the first ones."""
    whole, rest = length // pieces, length % pieces
    return whole * piece + np.minimum(piece, rest), whole + (piece < rest)


def _contiguous(end: TransferEnds, allocation: _Column, length: _Column) -> NDArray[np.bool_]:
    """Each row's memory follows that of the row before."""
    follows = np.zeros(len(length), dtype=np.bool_)
    own = np.where(end.value >= 0, allocation[end.value], -1)
    follows[1:] = (
        (end.buffer[1:] == end.buffer[:-1])
        & (own[1:] == own[:-1])
        & (end.offset[1:] == end.offset[:-1] + length[:-1])
    )
    return follows


def _copy_row(copy: LocalCopy, step: int, write_order: int) -> _RowTable:
    """One COPY row."""
    values = {
        "step": step,
        "kind": RowKind.COPY,
        "dst_kind": RowKind.COPY,
        "write_order": write_order,
        "transfer": copy.offset,
        "part": 0,
        "peer": -1,
        **copy._asdict(),
    }
    return _RowTable(**{name: np.array([int(value)], dtype=np.int64) for name, value in values.items()})


def _nothing() -> _RowTable:
    copy = LocalCopy(RankBuffer.INPUT, 0, RankBuffer.OUTPUT, 0, 0)
    return _copy_row(copy, 0, 0).taken(np.zeros(0, dtype=np.int64))


def _joined(tables: list[_RowTable]) -> _RowTable:
    return _RowTable(
        **{name: np.concatenate([vars(table)[name] for table in tables]) for name in vars(tables[0])}
    )


def _without(copy: LocalCopy, written: list[tuple[int, int]]) -> list[LocalCopy]:
    """A copy without the parts of its target that something else writes (offset and length, ascending)."""
    parts: list[LocalCopy] = []
    begin, end = copy.offset, copy.offset + copy.length
    for first, size in [*written, (end, 0)]:
        until = min(first, end)
        if until > begin:
            source_offset = copy.source_offset + begin - copy.offset
            parts.append(copy._replace(source_offset=source_offset, offset=begin, length=until - begin))
        begin = max(begin, first + size)
    return parts


def _accesses(table: _RowTable) -> Accesses:
    """Memory that the rows read and write."""
    rows = np.arange(len(table.kind))
    sends, adds, copies = (table.kind == kind for kind in (RowKind.SEND, RowKind.RECV_REDUCE, RowKind.COPY))
    own = np.flatnonzero(adds | copies)
    return Accesses(
        row=np.concatenate([rows, own]),
        writes=np.concatenate([~sends, np.zeros(len(own), dtype=np.bool_)]),
        buffer=np.concatenate([table.buffer, table.source[own]]),
        offset=np.concatenate([table.offset, table.source_offset[own]]),
        length=np.concatenate([table.length, table.length[own]]),
    )


def allocate(
    first: NDArray[np.int64], last: NDArray[np.int64], size: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Assign offsets so that concurrently live values do not overlap; return them with the total size.

    A value takes the lowest hole that is long enough, which is free again in the step after the last one of the value.

    Args:
        first: First step of each value; values are placed in the order of their first steps, then of their rows.
        last: Last step of each value, not before its first.
        size: Elements of each value, 1 or more.

    Examples:
        Each of three values lives for two steps, so that the third takes the memory of the first:

        >>> offset, total = allocate(np.array([0, 1, 2]), np.array([1, 2, 3]), np.array([4, 4, 4]))
        >>> offset.tolist(), total
        ([0, 4, 0], 8)
    """
    offset = np.zeros(len(first), dtype=np.int64)
    order = np.argsort(first, kind="stable").tolist()
    starts: list[int] = first.tolist()
    ends: list[int] = last.tolist()
    sizes: list[int] = size.tolist()
    alive: list[tuple[int, int, int]] = []
    holes: list[tuple[int, int]] = []  # (offset, elements), ascending, never next to each other
    total = 0
    for value in order:
        now, wanted = starts[value], sizes[value]
        while alive and alive[0][0] < now:
            _, at, length = heappop(alive)
            total = _free(holes, at, length, total)
        for index, (at, length) in enumerate(holes):
            if length >= wanted:
                if length == wanted:
                    del holes[index]
                else:
                    holes[index] = (at + wanted, length - wanted)
                break
        else:
            at = total
            total += wanted
        offset[value] = at
        heappush(alive, (ends[value], at, wanted))
    return offset, int((offset + size).max()) if len(offset) else 0


def _free(holes: list[tuple[int, int]], at: int, length: int, total: int) -> int:
    """Give memory back; returns where memory that was never or no longer used begins."""
    index = bisect_left(holes, (at, 0))
    if index < len(holes) and at + length == holes[index][0]:
        length += holes.pop(index)[1]
    if index and sum(holes[index - 1]) == at:
        at, before = holes.pop(index - 1)
        length += before
    if at + length == total:
        return at
    insort(holes, (at, length))
    return total
