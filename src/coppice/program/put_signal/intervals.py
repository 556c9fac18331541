"""Memory intervals of a put/signal program, whose slots are run as one (:mod:`coppice.program.intervals`).

In the same way all words of a chunk do the same, whatever its size.

The work grows with the slots that operations touch, for every round until no cut is new.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.program.intervals import aligned_cuts, heads_of
from coppice.program.memory import ProgramMemory
from coppice.program.put_signal.program import PutSignalAct, PutSignalProgram
from coppice.program.put_signal.unroll import addresses_of

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryIntervals:
    """A program's memory in intervals."""

    first: _Ints  # First address of each interval
    number: _Ints  # Interval that begins at an address, at the first addresses and the end of memory
    source: _Ints  # Interval where the operand of each operation begins; where it has none, any number
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
    cuts = [np.array([0, memory.words]), memory.base.reshape(-1), (memory.base + memory.size).reshape(-1)]
    for held in (memory.given, memory.wanted):
        heads = heads_of(held.address, held.chunk, held.member)
        cuts += [held.address[heads], held.address[heads[1:] - 1] + 1, held.address[-1:] + 1]
    for first in (source, addend, target):
        used = moves & (first >= 0)
        cuts += [first[used], first[used] + program.count[used]]
    sums = moves & (addend >= 0)
    one, other = np.concatenate([source[moves], addend[sums]]), np.concatenate([target[moves], target[sums]])
    count = np.concatenate([program.count[moves], program.count[sums]])
    found = aligned_cuts(np.unique(np.concatenate(cuts)), one, other, count)
    number = np.searchsorted(found, np.arange(memory.words + 1), side="right") - 1
    size = np.where(moves, program.count, 0)
    return MemoryIntervals(
        first=found[:-1],
        number=number,
        source=number[source],
        addend=number[addend],
        target=number[target],
        count=np.where(moves, number[target + size] - number[target], program.count),
    )
