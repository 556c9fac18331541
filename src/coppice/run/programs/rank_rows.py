"""The rows of one rank: its messages and copies in order, with their memory and what they wait for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coppice.run.programs.dependencies import Accesses, needs_of
from coppice.run.programs.placement import Span
from coppice.run.programs.rank_program import Kind, Place, RankProgram
from coppice.run.programs.scratch import allocate
from coppice.run.programs.sides import Side, Sides
from coppice.schedule.schedule import Op

__all__ = ["RankRows"]

_Column = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Rows:
    """Rows that are not yet in order.

    ``order`` are columns that sort the rows of a step and kind alike at both ends; ``number`` is the transfer (the
    first one of a message) or -1; ``dst_kind`` what the receiver does.
    """

    step: _Column
    kind: _Column
    dst_kind: _Column
    turn: _Column
    number: _Column
    part: _Column
    peer: _Column
    place: _Column
    offset: _Column
    length: _Column
    source: _Column
    source_offset: _Column

    def taken(self, rows: _Column) -> _Rows:
        """The rows ``rows``."""
        return _Rows(**{name: column[rows] for name, column in vars(self).items()})


class RankRows:
    """Builds the program of ``rank``."""

    def __init__(self, sides: Sides, rank: int) -> None:
        self._sides, self._rank = sides, rank
        self._flow, self._homes = sides.flow, sides.homes

    def program(self) -> RankProgram:
        """The program."""
        sides, rank, flow, homes = self._sides, self._rank, self._flow, self._homes
        schedule = sides.schedule
        rows = flow.rank_rows[flow.rank_start[rank] : flow.rank_start[rank + 1]]
        rows = rows[homes.chunk_length[schedule.chunk[rows]] > 0]
        given, needed, staged = homes.sizes(rank)
        address, scratch = self._addresses(staged)
        messages = self._messages(rows, address)
        late = 1 if homes.staging(rank) else 0
        table = _joined(
            [replace(messages, step=messages.step + late), *self._copies(messages, rows, address, late)]
        )
        order = np.lexsort((table.part, table.number, table.turn, table.dst_kind, table.kind, table.step))
        table = table.taken(order)
        needs_start, needs = needs_of(_accesses(table), len(order))
        first, elements = homes.result(rank)
        copies = table.kind == Kind.COPY
        return RankProgram(
            rank=rank,
            ranks=homes.ranks,
            collective=schedule.collective,
            root=schedule.root,
            count=homes.count,
            in_place=homes.in_place,
            input_elements=given,
            output_elements=needed,
            scratch_elements=scratch,
            result_offset=first,
            result_elements=elements,
            step=table.step.astype(np.int32),
            kind=table.kind.astype(np.int8),
            peer=np.where(copies, -1, table.peer).astype(np.int32),
            tag=_tags(table).astype(np.int32),
            place=table.place.astype(np.int8),
            offset=table.offset,
            length=table.length,
            source=table.source.astype(np.int8),
            source_offset=table.source_offset,
            needs_start=needs_start,
            needs=needs,
        )

    def _addresses(self, staged: int) -> tuple[_Column, int]:
        """Address of (cell, piece) in this rank's scratch memory at ``cell * pieces + piece``; elements in all."""
        sides, pieces = self._sides, self._sides.pieces
        cells = np.flatnonzero((sides.cell_rank == self._rank) & (sides.cell_group >= 0))
        address = np.zeros(len(sides.cell_rank) * pieces if len(cells) else 0, dtype=np.int64)
        if not len(cells):
            return address, staged
        length = self._homes.chunk_length[sides.cell_chunk[cells]]
        first, last = sides.cell_first[cells], sides.cell_last[cells]
        if pieces == 1:
            groups, member = np.unique(sides.cell_group[cells], return_inverse=True)
            begin, end = np.full(len(groups), np.iinfo(np.int64).max), np.zeros(len(groups), dtype=np.int64)
            np.minimum.at(begin, member, first)
            np.maximum.at(end, member, last)
            size = np.zeros(len(groups), dtype=np.int64)
            np.add.at(size, member, length)
            offset, total = allocate(begin, end, size)
            address[cells] = offset[member] + sides.cell_offset[cells]
        else:
            piece = np.tile(np.arange(pieces), len(cells))
            begin, size = _cut(np.repeat(length, pieces), piece, pieces)
            kept = size > 0
            offset, total = allocate(
                (np.repeat(first, pieces) + piece)[kept], (np.repeat(last, pieces) + piece)[kept], size[kept]
            )
            address[(np.repeat(cells, pieces) * pieces + piece)[kept]] = offset
        return address + staged, total + staged

    def _messages(self, rows: _Column, address: _Column) -> _Rows:
        """The messages of the transfers ``rows``."""
        sides, flow, schedule, pieces = self._sides, self._flow, self._sides.schedule, self._sides.pieces
        op = schedule.op[rows].astype(np.int64)
        columns = (
            schedule.chunk[rows],
            schedule.dst[rows],
            schedule.src[rows],
            flow.turn[rows],
            op,
            flow.step[rows],
        )
        order = np.lexsort(columns)
        sorted_rows = rows[order]
        length = self._homes.chunk_length[schedule.chunk[sorted_rows]]
        ends = (sides.sent(sorted_rows), sides.arrival(sorted_rows), sides.held(sorted_rows))
        piece = np.zeros(len(rows), dtype=np.int64)
        within = np.zeros(len(rows), dtype=np.int64)
        if pieces == 1:
            begins = np.zeros(len(rows), dtype=np.bool_)
            for column in columns[1:]:
                begins |= np.diff(column[order], prepend=-1) != 0
            for side in ends:
                begins |= ~_contiguous(side, sides.cell_group, length)
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
        number = np.minimum.reduceat(rows_of, firsts)
        total = np.add.reduceat(length, firsts)
        lead, lead_piece, lead_within = rows_of[firsts], piece[firsts], within[firsts]
        sends = schedule.src[lead] == self._rank
        reduces = schedule.op[lead] == Op.REDUCE
        sent, arrival, held = (
            self._memory(side, repeat[firsts], lead_piece, lead_within, address) for side in ends
        )
        nowhere = np.full(len(lead), -1, dtype=np.int64)
        adds = ~sends & reduces
        table = _Rows(
            step=flow.step[lead] + lead_piece,
            kind=np.where(sends, Kind.SEND, np.where(reduces, Kind.RECV_REDUCE, Kind.RECV)).astype(np.int64),
            dst_kind=np.where(reduces, Kind.RECV_REDUCE, Kind.RECV).astype(np.int64),
            turn=flow.turn[lead],
            number=number,
            part=np.zeros(len(lead), dtype=np.int64),
            peer=np.where(sends, schedule.dst[lead], schedule.src[lead]).astype(np.int64),
            place=np.where(sends, sent[0], arrival[0]),
            offset=np.where(sends, sent[1], arrival[1]),
            length=total,
            source=np.where(adds, held[0], nowhere),
            source_offset=np.where(adds, held[1], 0),
        )
        return self._split(table)

    def _split(self, table: _Rows) -> _Rows:
        """Messages no longer than a piece."""
        longest = self._sides.piece_elements
        if longest is None or not (table.length > longest).any():
            return table
        parts = -(-table.length // longest)
        row = np.repeat(np.arange(len(parts)), parts)
        first = np.cumsum(parts) - parts
        part = np.arange(len(row)) - first[row]
        whole = table.taken(row)
        return replace(
            whole,
            part=part,
            offset=whole.offset + part * longest,
            length=np.minimum(longest, whole.length - part * longest),
            source_offset=np.where(whole.source >= 0, whole.source_offset + part * longest, 0),
        )

    def _memory(
        self, side: Side, rows: _Column, piece: _Column, within: _Column, address: _Column
    ) -> tuple[_Column, _Column]:
        """Place and first element of a piece at one end, as far as it lies at this rank."""
        cell = side.cell[rows]
        mine = (cell >= 0) & (self._sides.cell_rank[cell] == self._rank)
        offset = side.offset[rows] + within
        offset[mine] = address[cell[mine] * self._sides.pieces + piece[mine]]
        return side.place[rows], offset

    def _copies(self, messages: _Rows, rows: _Column, address: _Column, late: int) -> list[_Rows]:
        """Copies before everything, of what stays here, and of what took a detour."""
        sides, schedule, pieces = self._sides, self._sides.schedule, self._sides.pieces
        found = [_copy(span, 0, 0) for span in self._homes.staging(self._rank)]
        detours = rows[(schedule.dst[rows] == self._rank) & (sides.detour[rows] >= 0) & ~sides.dropped[rows]]
        around: list[Span] = []
        if len(detours):
            row = np.repeat(np.arange(len(detours)), pieces)
            piece = np.tile(np.arange(pieces), len(detours))
            within, length = _cut(self._homes.chunk_length[schedule.chunk[detours]][row], piece, pieces)
            via = self._memory(sides.arrival(detours), row, piece, within, address)
            home = self._memory(sides.target(detours), row, piece, within, address)
            for index in np.flatnonzero(length).tolist():
                span: Span = (
                    Place(int(via[0][index])),
                    int(via[1][index]),
                    Place(int(home[0][index])),
                    int(home[1][index]),
                    int(length[index]),
                )
                around.append(span)
                step = int(self._flow.step[detours[row[index]]] + piece[index]) + late
                found.append(_copy(span, step, 2))
        received = messages.kind == Kind.RECV
        written = [
            *zip(
                messages.offset[received & (messages.place == Place.OUTPUT)].tolist(),
                messages.length[received & (messages.place == Place.OUTPUT)].tolist(),
                strict=True,
            ),
            *((span[3], span[4]) for span in around if span[2] is Place.OUTPUT),
        ]
        found += [
            _copy(part, 0, 1)
            for span in self._homes.own(self._rank)
            for part in _without(span, sorted(written))
        ]
        return found


def _cut(length: _Column, piece: _Column, pieces: int) -> tuple[_Column, _Column]:
    """First element and length of a piece of a chunk; what is left over goes to the first ones."""
    whole, rest = length // pieces, length % pieces
    return whole * piece + np.minimum(piece, rest), whole + (piece < rest)


def _contiguous(side: Side, group: _Column, length: _Column) -> NDArray[np.bool_]:
    """Each row's memory follows that of the row before."""
    follows = np.zeros(len(length), dtype=np.bool_)
    own = np.where(side.cell >= 0, group[side.cell], -1)
    follows[1:] = (
        (side.place[1:] == side.place[:-1])
        & (own[1:] == own[:-1])
        & (side.offset[1:] == side.offset[:-1] + length[:-1])
    )
    return follows


def _copy(span: Span, step: int, turn: int) -> _Rows:
    """One COPY row."""
    source, source_offset, place, offset, length = span
    values = {
        "step": step,
        "kind": Kind.COPY,
        "dst_kind": Kind.COPY,
        "turn": turn,
        "number": offset,
        "part": 0,
        "peer": -1,
        "place": place,
        "offset": offset,
        "length": length,
        "source": source,
        "source_offset": source_offset,
    }
    return _Rows(**{name: np.array([int(value)], dtype=np.int64) for name, value in values.items()})


def _nothing() -> _Rows:
    return _copy((Place.INPUT, 0, Place.OUTPUT, 0, 0), 0, 0).taken(np.zeros(0, dtype=np.int64))


def _joined(tables: list[_Rows]) -> _Rows:
    return _Rows(
        **{name: np.concatenate([vars(table)[name] for table in tables]) for name in vars(tables[0])}
    )


def _without(span: Span, written: list[tuple[int, int]]) -> list[Span]:
    """A copy without the parts of its target that something else writes (offset and length, ascending)."""
    source, source_offset, place, offset, length = span
    parts: list[Span] = []
    begin, end = offset, offset + length
    for first, size in [*written, (end, 0)]:
        until = min(first, end)
        if until > begin:
            parts.append((source, source_offset + begin - offset, place, begin, until - begin))
        begin = max(begin, first + size)
    return parts


def _accesses(table: _Rows) -> Accesses:
    """Memory that the rows read and write."""
    rows = np.arange(len(table.kind))
    sends, adds, copies = (table.kind == kind for kind in (Kind.SEND, Kind.RECV_REDUCE, Kind.COPY))
    own = np.flatnonzero(adds | copies)
    return Accesses(
        row=np.concatenate([rows, own]),
        writes=np.concatenate([~sends, np.zeros(len(own), dtype=np.bool_)]),
        place=np.concatenate([table.place, table.source[own]]),
        offset=np.concatenate([table.offset, table.source_offset[own]]),
        length=np.concatenate([table.length, table.length[own]]),
    )


def _tags(table: _Rows) -> _Column:
    """Number of each message among those of its pair and direction, -1 for copies."""
    kind = np.where(table.kind == Kind.SEND, 0, 1)
    total, place = len(kind), np.arange(len(kind))
    order = np.lexsort((place, kind, table.peer))
    begins = (np.diff(table.peer[order], prepend=-2) != 0) | (np.diff(kind[order], prepend=-2) != 0)
    tag = np.empty(total, dtype=np.int64)
    tag[order] = place - np.maximum.accumulate(np.where(begins, place, 0)) if total else place
    return np.where(table.kind == Kind.COPY, -1, tag)
