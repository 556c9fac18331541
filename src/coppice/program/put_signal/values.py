"""Symbolic execution of a put/signal program: what every slot holds, and whether the end is right.

A value is a chunk with the set of ranks whose contributions it has (:mod:`coppice.program.memory`). Operations of one
level of the order touch nothing in common, or there would be a race, and are carried out together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.program.memory import EVERYONE, Buffer, ProgramMemory, end_columns, start_columns
from coppice.program.put_signal.order import CallOrder
from coppice.program.put_signal.program import PutSignalAct, PutSignalCall
from coppice.program.put_signal.races import addresses_of, is_identity
from coppice.rows import grouped, ranges
from coppice.schedule.verification.report import Findings

_Ints = NDArray[np.int64]
_NOTHING = -1
_BITS = 64


def check_values(order: CallOrder, memory: ProgramMemory, findings: Findings, *, way: str) -> int:
    """Carry out a program that has no races, and judge every slot of every output.

    Args:
        way: How it is run, for the failures; may be empty.

    Returns:
        Slots that were compared with what they must hold.
    """
    values = _SymbolicValues(order, memory, way)
    values.run()
    values.check_end()
    findings.add_examples(values.failures, values.count, "symbolic checks")
    return values.slots


class _SymbolicValues:
    """Chunk and contributors at every address while a program is carried out."""

    def __init__(self, order: CallOrder, memory: ProgramMemory, way: str) -> None:
        self.order, self.memory, self.way = order, memory, way
        self.program = program = order.program
        self.failures: list[str] = []
        self.count = self.slots = 0
        width = -(-program.num_ranks // _BITS) if program.collective.reduces else 0
        self.chunk = np.full(memory.words, _NOTHING, dtype=np.int64)
        self.members = np.zeros((memory.words, width), dtype=np.uint64)
        for rank in range(program.num_ranks):
            chunks, member = start_columns(program, rank)
            first = int(memory.base[Buffer.INPUT, rank])
            self.chunk[first : first + len(chunks)] = chunks
            if width and len(chunks):
                self.members[first : first + len(chunks)] |= self._bits(int(member[0]))
        whose = np.where(program.act == PutSignalAct.PUT, program.peer, program.rank_of)
        whose = np.maximum(whose, 0)
        self.source = addresses_of(memory, program.source_buffer, program.source, program.rank_of)
        self.addend = addresses_of(memory, program.addend_buffer, program.addend, program.rank_of)
        self.target = addresses_of(memory, program.target_buffer, program.target, whose)
        self.idle = is_identity(program, memory)

    def _bits(self, member: int) -> NDArray[np.uint64]:
        row = np.zeros(self.members.shape[1], dtype=np.uint64)
        if member == EVERYONE:
            ranks = self.program.num_ranks
            row[:] = ~np.uint64(0)
            if ranks % _BITS:
                row[-1] = np.uint64((1 << ranks % _BITS) - 1)
        elif len(row):
            row[member // _BITS] = np.uint64(1 << member % _BITS)
        return row

    def fail(self, count: int, sentence: str) -> None:
        """Note failures of one kind, with an example."""
        self.count += count
        if len(self.failures) < 6:
            self.failures.append(self.way + sentence)

    def run(self) -> None:
        """Carry out all operations."""
        program = self.program
        does = np.flatnonzero((program.act != PutSignalAct.WAIT) & (program.act != PutSignalAct.SIGNAL))
        does = does[~self.idle[does]]
        level = self.order.level[program.call_of[does]]
        by_level, start = grouped(level, int(level.max(initial=-1)) + 1)
        for number in range(len(start) - 1):
            rows = does[by_level[start[number] : start[number + 1]]]
            local = program.call_kind[program.call_of[rows]] == PutSignalCall.LOCAL
            self._carry_out(rows[~local])
            mine = rows[local]
            if not len(mine):
                continue
            if self._apart(mine):
                self._carry_out(mine)
                continue
            place = mine - program.call_start[program.call_of[mine]]
            for turn in np.unique(place).tolist():
                self._carry_out(mine[place == turn])

    def _apart(self, rows: _Ints) -> bool:
        """No operation touches what another one writes."""
        count = self.program.count[rows]
        written = ranges(self.target[rows], count)
        owner = np.repeat(np.arange(len(rows)), count)
        by = np.argsort(written, kind="stable")
        if (np.diff(written[by]) == 0).any():
            return False
        for column in (self.source, self.addend):
            has = column[rows] >= 0
            read = ranges(column[rows][has], count[has])
            reader = np.repeat(np.flatnonzero(has), count[has])
            at = np.minimum(np.searchsorted(written[by], read), len(by) - 1)
            if ((written[by][at] == read) & (owner[by][at] != reader)).any():
                return False
        return True

    def _carry_out(self, rows: _Ints) -> None:
        """Operations that touch nothing in common: all read, then all write."""
        if not len(rows):
            return
        count = self.program.count[rows]
        owner = np.repeat(rows, count)
        source, target = ranges(self.source[rows], count), ranges(self.target[rows], count)
        chunk, members = self.chunk[source], self.members[source]
        self._missing(chunk == _NOTHING, owner)
        sums = self.program.act[owner] == PutSignalAct.SUM
        if sums.any():
            at = np.flatnonzero(sums)
            addend = ranges(self.addend[rows], count)[at]
            other, more = self.chunk[addend], self.members[addend]
            self._missing(other == _NOTHING, owner[at])
            known = (other != _NOTHING) & (chunk[at] != _NOTHING)
            different = np.flatnonzero(known & (other != chunk[at]))
            if len(different):
                op = self.program.place(int(owner[at][different[0]]))
                one, two = chunk[at][different[0]], other[different[0]]
                self.fail(len(different), f"{op} adds chunk {two} to chunk {one}: expected the same.")
            twice = np.flatnonzero(
                known & (other == chunk[at]) & ((members[at] & more).any(axis=1) | (not members.shape[1]))
            )
            if len(twice):
                op = self.program.place(int(owner[at][twice[0]]))
                self.fail(
                    len(twice), f"{op} adds a contribution to chunk {other[twice[0]]} that it has already."
                )
            members[at] |= more
        self.chunk[target], self.members[target] = chunk, members

    def _missing(self, missing: NDArray[np.bool_], owner: _Ints) -> None:
        wrong = np.flatnonzero(missing)
        if len(wrong):
            self.fail(
                len(wrong), f"{self.program.place(int(owner[wrong[0]]))} reads what nothing was written to."
            )

    def check_end(self) -> None:
        """Compare every slot of every output with what the collective promises."""
        for rank in range(self.program.num_ranks):
            chunks, member = end_columns(self.program, rank)
            first = int(self.memory.base[Buffer.OUTPUT, rank])
            self.slots += len(chunks)
            found = self.chunk[first : first + len(chunks)]
            wrong = np.flatnonzero(found != chunks)
            if len(wrong):
                have, want = int(found[wrong[0]]), int(chunks[wrong[0]])
                words = "is never written" if have == _NOTHING else f"ends with chunk {have}"
                self.fail(
                    len(wrong),
                    f"chunk {wrong[0]} of the output of rank {rank} {words}: expected chunk {want}.",
                )
            if not self.members.shape[1] or not len(chunks):
                continue
            lacks = self._bits(int(member[0])) & ~self.members[first : first + len(chunks)]
            short = np.flatnonzero((found == chunks) & lacks.any(axis=1))
            if len(short):
                bits = int.from_bytes(lacks[short[0]].astype("<u8").tobytes(), "little")
                name = (bits & -bits).bit_length() - 1
                self.fail(
                    len(short),
                    f"chunk {short[0]} of the output of rank {rank} ends without the contribution of rank {name} "
                    f"({bits.bit_count()} missing).",
                )
