"""The programs of all ranks as an execution: what rows read, make and write, and which rows wait for which.

Elements of which all rows do the same are judged together (:mod:`coppice.program.memory`): memory is cut at both
ends of everything that a row uses, that inputs hold and that results must hold, and where what they meet is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.program.dialects.rank.program import RankBuffer, RankProgram, RowKind
from coppice.program.memory import SlotContents, aligned_cuts, given_columns, heads_of, wanted_columns
from coppice.program.order import MemoryAccesses, Points, ProgramExecution, Values
from coppice.rows import offsets, ranges

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ElementIntervals:
    """Intervals of the memory of all ranks."""

    num_ranks: int
    base: _Ints  # First element of each buffer (column, as RankBuffer) of each rank (row), of all memory
    cuts: _Ints  # First element of each interval, and the number of all elements
    given: SlotContents  # What intervals hold at the start
    wanted: SlotContents  # What intervals must hold at the end; slots are elements of the result

    @property
    def words(self) -> int:
        """Number of intervals."""
        return len(self.cuts) - 1

    def element(self, rank: int, address: int) -> tuple[RankBuffer, int]:
        """Buffer of a rank, and element there, where an interval begins."""
        place = int(self.cuts[address])
        buffer = int(np.searchsorted(self.base[rank], place, side="right")) - 1
        return RankBuffer(buffer), place - int(self.base[rank, buffer])


class RankRuns:
    """The rows of all ranks, one rank after the other.

    Args:
        programs: Programs of sound rows, whose messages pair up.
        starts: First element of every rank's block, and M.
    """

    def __init__(self, programs: Sequence[RankProgram], starts: list[int]) -> None:
        self.programs, self.start = programs, offsets(np.array([program.num_rows for program in programs]))
        sizes = np.array([(p.input_elements, p.output_elements, p.scratch_elements) for p in programs])
        base = offsets(sizes.reshape(-1))
        rank = np.repeat(np.arange(len(programs)), np.diff(self.start))
        self.rank, self.kind = rank, self._column("kind")
        self.step, length = self._column("step"), self._column("length")
        first = base[rank * 3 + self._column("buffer")] + self._column("offset")
        own = np.flatnonzero(np.isin(self.kind, (RowKind.RECV_REDUCE, RowKind.COPY)))
        source = base[rank[own] * 3 + self._column("source")[own]] + self._column("source_offset")[own]
        sends, receives = self._messages(rank)
        given = _segments(programs, base, starts, outputs=False)
        wanted = _segments(programs, base, starts, outputs=True)
        pairs = (np.concatenate([first[sends], source]), np.concatenate([first[receives], first[own]]))
        ends = [np.stack([each, each + count]) for each, count in ((first, length), (source, length[own]))]
        ends += [np.stack([each[1], each[1] + each[2]]) for each in (given, wanted)]
        cuts = np.unique(np.concatenate([base, *(each.reshape(-1) for each in ends)]))
        cuts = aligned_cuts(cuts, *pairs, np.concatenate([length[receives], length[own]]))
        self.memory = ElementIntervals(
            num_ranks=len(programs),
            base=base[:-1].reshape(-1, 3),
            cuts=cuts,
            given=_stretches(given, cuts),
            wanted=_stretches(wanted, cuts),
        )
        self.execution = self._execution(first, length, own, source, sends, receives)

    def row(self, row: int) -> tuple[RankProgram, int]:
        """The program of a row, and its place there."""
        rank = int(self.rank[row])
        return self.programs[rank], row - int(self.start[rank])

    def _column(self, name: str) -> _Ints:
        return np.concatenate([getattr(program, name) for program in self.programs]).astype(np.int64)

    def _messages(self, rank: _Ints) -> tuple[_Ints, _Ints]:
        """Rows that send, and rows that receive, message by message."""
        peer, tag = self._column("peer"), self._column("tag")
        sends = np.flatnonzero(self.kind == RowKind.SEND)
        receives = np.flatnonzero(np.isin(self.kind, (RowKind.RECV, RowKind.RECV_REDUCE)))
        sends = sends[np.lexsort((tag[sends], peer[sends], rank[sends]))]
        return sends, receives[np.lexsort((tag[receives], rank[receives], peer[receives]))]

    def _execution(
        self, first: _Ints, length: _Ints, own: _Ints, source: _Ints, sends: _Ints, receives: _Ints
    ) -> ProgramExecution:
        cuts, rows = self.memory.cuts, len(first)
        begin, end = np.searchsorted(cuts, first), np.searchsorted(cuts, first + length)
        makes = np.flatnonzero(self.kind != RowKind.SEND)
        actor = np.concatenate([sends, own, makes])
        value, read, sent = np.full((3, rows), -1)
        value[makes] = np.arange(len(makes))
        read[own] = len(sends) + np.arange(len(own))
        sent[receives] = np.arange(len(sends))
        adds = self.kind == RowKind.RECV_REDUCE
        waits = [
            (
                program.predecessors + start,
                np.repeat(np.arange(start, stop), np.diff(program.predecessors_start)),
            )
            for program, (start, stop) in zip(self.programs, pairwise(self.start.tolist()), strict=True)
        ]
        earlier, later = (np.concatenate(ends).astype(np.int64) for ends in zip(*waits, strict=True))
        return ProgramExecution(
            accesses=MemoryAccesses(
                actor=actor,
                first=np.concatenate([begin[sends], np.searchsorted(cuts, source), begin[makes]]),
                count=(end - begin)[actor],
                stride=np.broadcast_to(np.int64(1), len(actor)),
                write=np.arange(len(actor)) >= len(sends) + len(own),
                value=value[actor],
                time=actor,
                begin=actor,
                end=actor,
                also=actor,
            ),
            values=Values(
                actor=makes,
                count=(end - begin)[makes],
                one=np.where(read >= 0, read, sent)[makes],
                other=np.where(adds, sent, -1)[makes],
            ),
            points=Points(chain=np.arange(rows), earlier=earlier, later=later),
        )


def _segments(programs: Sequence[RankProgram], base: _Ints, starts: list[int], *, outputs: bool) -> _Ints:
    """Columns rank, first address, elements, first datum, member, first slot of what inputs hold or results must."""
    found = []
    for rank, program in enumerate(programs):
        columns = wanted_columns if outputs else given_columns
        datum, member = columns(program.collective, program.root, np.array(starts), rank)
        buffer = RankBuffer.OUTPUT if outputs or program.in_place else RankBuffer.INPUT
        at = program.result_offset if outputs else _given_at(program, starts)
        size = (program.input_elements, program.output_elements)[buffer]
        if outputs and program.result_elements != len(datum):
            raise CheckError(
                f"expected a result of {len(datum)} elements at rank {rank}, found {program.result_elements}: lower "
                "again."
            )
        if not outputs and size < at + len(datum):
            raise CheckError(
                f"expected memory for {len(datum)} elements that rank {rank} gives, found {size}."
            )
        heads = heads_of(np.arange(len(datum)), datum, member)
        count = np.diff(np.append(heads, len(datum)))
        place = base[rank * 3 + buffer] + at + heads
        found.append(np.stack([np.full(len(heads), rank), place, count, datum[heads], member[heads], heads]))
    return np.concatenate(found, axis=1).astype(np.int64)


def _given_at(program: RankProgram, starts: list[int]) -> int:
    """Where in its buffer what a rank gives begins: its own block in place lies where it belongs."""
    own = program.collective is Collective.ALL_GATHER
    own |= program.collective is Collective.GATHER and program.rank == program.root
    return starts[program.rank] if program.in_place and own else 0


def _stretches(segments: _Ints, cuts: _Ints) -> SlotContents:
    """Segments cut into intervals."""
    rank, place, count, datum, member, slot = segments
    first = np.searchsorted(cuts, place)
    number = np.searchsorted(cuts, place + count) - first
    address = ranges(first, number)
    within = cuts[address] - np.repeat(place, number)
    return SlotContents(
        rank=np.repeat(rank, number),
        slot=np.repeat(slot, number) + within,
        address=address,
        chunk=np.repeat(datum, number) + within,
        member=np.repeat(member, number),
    )
