"""Memory intervals that every operation of a put/signal program uses whole, or not at all.

Slots of an interval do the same, one beside the other: whoever reads, writes or adds one does so with all of them at
once, and the slots that it brings together lie at equal places of intervals of equal length. So an interval may stand
for its slots: what goes wrong with one of them goes wrong with the first. Inputs and outputs are cut where chunks or
contributors do not follow each other, so that the first slot of an interval holds what it must if and only if the
others do. In the same way all words of a chunk do the same, whatever its size.

The work grows with the slots that operations touch, for every round until no cut is new.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.program.memory import Buffer, ProgramMemory, end_columns, start_columns
from coppice.program.put_signal.program import PutSignalAct, PutSignalProgram
from coppice.program.put_signal.unroll import addresses_of
from coppice.rows import ranges

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryIntervals:
    """A program's memory in intervals."""

    first: _Ints  # First address of each interval
    number: _Ints  # Stretch that begins at an address, at the first addresses and the end of memory
    source: _Ints  # Stretch where the operand of each operation begins; where it has none, any number
    addend: _Ints  # Likewise
    target: _Ints  # Likewise
    count: _Ints  # MemoryIntervals of each operation; of a wait its signals

    def begins_in(self, base: int, size: int) -> _Ints:
        """First slots of the intervals in memory of so many slots from an address."""
        return np.flatnonzero(np.diff(self.number[base : base + size + 1]))


def intervals_of(program: PutSignalProgram, memory: ProgramMemory) -> MemoryIntervals:
    """Cut the memory of a program into maximal intervals."""
    own = program.rank_of
    source = addresses_of(memory, program.source_buffer, program.source, own)
    addend = addresses_of(memory, program.addend_buffer, program.addend, own)
    target = addresses_of(
        memory, program.target_buffer, program.target, np.where(program.peer >= 0, program.peer, own)
    )
    moves = np.isin(program.act, (PutSignalAct.PUT, PutSignalAct.COPY, PutSignalAct.SUM))
    cut = _cuts_of_contents(program, memory)
    for first in (source, addend, target):
        used = moves & (first >= 0)
        cut[first[used]] = True
        cut[first[used] + program.count[used]] = True
    long = moves & (program.count > 1)
    sums = long & (addend >= 0)
    _align(cut, source[long], target[long], program.count[long])
    while _align(cut, addend[sums], target[sums], program.count[sums]):
        _align(cut, source[long], target[long], program.count[long])
    number = np.cumsum(cut) - 1
    size = np.where(moves, program.count, 0)
    return MemoryIntervals(
        first=np.flatnonzero(cut[:-1]),
        number=number,
        source=number[source],
        addend=number[addend],
        target=number[target],
        count=np.where(moves, number[target + size] - number[target], program.count),
    )


def _cuts_of_contents(program: PutSignalProgram, memory: ProgramMemory) -> NDArray[np.bool_]:
    """Buffers begin and end there, and what they hold goes on with another chunk than the next, or another rank's."""
    cut = np.zeros(memory.words + 1, dtype=np.bool_)
    cut[[0, -1]] = True
    for rank in range(program.num_ranks):
        for base, size in zip(memory.base[:, rank].tolist(), memory.size[:, rank].tolist(), strict=True):
            cut[[base, base + size]] = True
        for buffer, columns in ((Buffer.INPUT, start_columns), (Buffer.OUTPUT, end_columns)):
            chunks, member = columns(program, rank)
            new = (np.diff(chunks) != 1) | (np.diff(member) != 0)
            base = int(memory.base[buffer, rank])
            cut[base + 1 + np.flatnonzero(new)] = True
            cut[base + len(chunks)] = True
    return cut


def _align(cut: NDArray[np.bool_], one: _Ints, other: _Ints, count: _Ints) -> bool:
    """Cut pairs of ranges at equal places, until no cut is new; whether any was."""
    changed = False
    while True:
        before = np.cumsum(cut)
        inside = [before[first + count - 1] > before[first] for first in (one, other)]
        rows = np.flatnonzero(inside[0] | inside[1])
        a, b = ranges(one[rows], count[rows]), ranges(other[rows], count[rows])
        differ = cut[a] != cut[b]
        if not differ.any():
            return changed
        cut[a[differ]] = cut[b[differ]] = changed = True
