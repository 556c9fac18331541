"""Judge of all programs: data races, the chunk and contributions that every slot holds, and faults in words.

Accesses are sorted by address and time once. Two accesses of one address conflict if one of them is a write. It is
enough to look at neighbours along any one order of execution: a read with the writes next to it on either side, and a
write with the next one. If all these pairs are always in order, so are all conflicting accesses; those that are not are
races. The write before a read is also the one that the read sees, so that values need not be followed step by step
(:mod:`coppice.program.values`). Of a program without races they are the same in every order in which it can run,
otherwise those of the order that accesses have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.program.memory import NO_CHUNK, JudgedMemory, MemoryLayout
from coppice.program.order import PointOrder, ProgramExecution
from coppice.program.values import SymbolicValues
from coppice.rows import begins_run, last_before, next_after, offsets, positions, sorted_rows

_EXAMPLES = 5
_NO_OTHERS: Mapping[int, str] = MappingProxyType({})
_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Conflicts:
    """Pairs of accesses to one address, one of them a write."""

    first: _Ints  # Row of the earlier access (int64)
    second: _Ints  # Row of the later one (int64)
    address: _Ints  # The first address that both use (int64)


class Judgement:
    """Faults of an execution, computed on demand.

    Args:
        execution: What is judged.
        memory: Its addresses, what they hold at the start and must hold at the end.
    """

    def __init__(self, execution: ProgramExecution, memory: JudgedMemory) -> None:
        self.execution, self.memory = execution, memory
        accesses = execution.accesses
        self._access = np.repeat(np.arange(len(accesses.count)), accesses.count)
        within = positions(accesses.count) * accesses.stride[self._access]
        self._at = accesses.first[self._access] + within
        del within
        write = accesses.write[self._access]
        self._order = sorted_rows(self._at, accesses.time[self._access], write)
        self._address, self._write = self._at[self._order], write[self._order]
        before = last_before(self._address, self._write)
        found = np.flatnonzero(before >= 0)
        # For each address of each access, the one of these that is the last write of it before, or -1
        self._sees = np.full(len(self._order), -1, dtype=np.int64)
        self._sees[self._order[found]] = self._order[before[found]]

    @cached_property
    def conflicts(self) -> Conflicts:
        """Pairs of accesses that must be ordered."""
        after = next_after(self._address, self._write)
        reads = np.flatnonzero(~self._write & (after >= 0))
        seeing = self._order[self._sees[self._order] >= 0]
        earlier = np.concatenate([self._sees[seeing], self._order[reads]])
        later = np.concatenate([seeing, self._order[after[reads]]])
        first, second = self._access[earlier], self._access[later]
        rows = np.unique(first * len(self.execution.accesses.count) + second, return_index=True)[1]
        rows.sort()
        return Conflicts(first[rows], second[rows], self._at[later[rows]])

    @cached_property
    def known(self) -> PointOrder:
        """Happens-before relation."""
        points = self.execution.points
        return PointOrder(points.chain, points.earlier, points.later)

    @cached_property
    def races(self) -> _Ints:
        """Conflicts of different operations that are unordered."""
        accesses, conflicts = self.execution.accesses, self.conflicts
        rows = np.flatnonzero(accesses.actor[conflicts.first] != accesses.actor[conflicts.second])
        for ends in (accesses.end, accesses.also):
            over, begin = ends[conflicts.first[rows]], accesses.begin[conflicts.second[rows]]
            rows = rows[~self.known.holds(over, begin)]
        return rows

    @cached_property
    def values(self) -> SymbolicValues:
        """Value of every slot."""
        last = np.full(self.memory.words, -1, dtype=np.int64)
        writes = np.flatnonzero(self._write)
        writes = writes[self.execution.accesses.value[self._access[self._order[writes]]] >= 0]
        last[self._address[writes]] = self._order[writes]  # of several writes the last one stays
        return SymbolicValues(self.execution, self.memory, self._at, self._sees, last)

    @property
    def writers(self) -> _Ints:
        """For each address of each access, the access (row) that wrote last before, or -1."""
        return np.where(self._sees >= 0, self._access[self._sees], -1)


@dataclass(frozen=True)
class ChunkNames:
    """Chunks of a program in words."""

    layout: MemoryLayout  # What decides on the values
    per_chunk: int = 1  # Slots of a chunk
    in_pieces: bool = False  # The piece of a chunk is named as well

    def __call__(self, number: int) -> str:
        """A chunk in words."""
        chunk, piece = divmod(number, self.per_chunk)
        of = f"piece {piece} of " if self.in_pieces else ""
        if self.layout.collective is Collective.ALL_TO_ALL:
            source, chunk = divmod(chunk, self.layout.num_chunks // self.per_chunk)
            return f"{of}chunk {chunk} of rank {source}"
        return f"{of}chunk {chunk}"


def value_faults(
    judgement: Judgement,
    names: ChunkNames,
    *,
    name: Callable[[int], str],  # An operation in words
    # The sentence for an access (row) of whose slots the given one is the first that nothing was written to
    unwritten: Callable[[int, int], str],
    misread: Mapping[int, str] = _NO_OTHERS,  # Other faults of accesses (rows), a sentence each
    slot_noun: str = "slot",  # What a slot of an output is called
) -> tuple[list[str], int]:
    """First faults in time, a sentence each, and their number."""
    values, accesses = judgement.values, judgement.execution.accesses
    start = offsets(accesses.count)
    empty = np.flatnonzero(values.missing)
    access = np.searchsorted(start, empty, side="right") - 1
    heads = begins_run(access)
    first = dict(zip(access[heads].tolist(), (empty - start[access])[heads].tolist(), strict=True))
    access = np.array([*first, *misread], dtype=np.int64)
    sums, actor = values.wrong_sums, judgement.execution.values.actor
    adder = actor[sums.value]
    time = np.zeros(int(max(accesses.actor.max(initial=0), actor.max(initial=0))) + 1, dtype=np.int64)
    time[accesses.actor] = accesses.time
    when = np.concatenate([time[accesses.actor[access]] * 2, time[adder] * 2 + 1])
    sentences = []
    for row in np.argsort(when, kind="stable")[:_EXAMPLES].tolist():
        if row < len(access):
            mine = int(access[row])
            sentences.append(unwritten(mine, first[mine]) if mine in first else misread[mine])
            continue
        row -= len(access)
        one, other = int(sums.one[row]), int(sums.other[row])
        what = (
            f"adds {names(other)} to {names(one)}: expected the same."
            if one != other
            else f"adds the contribution of rank {_lowest(values.common(row))} to {names(one)} a second time."
        )
        sentences.append(f"{name(int(adder[row]))} {what}")
    slots = values.wrong_slots
    for row in range(min(_EXAMPLES - len(sentences), len(slots.slot))):
        where = f"{slot_noun} {slots.slot[row] // names.per_chunk} of the output of rank {slots.rank[row]}"
        have, want = int(slots.have[row]), int(slots.want[row])
        sentences.append(f"{where} {_difference(have, want, names, values.differing(row))}")
    return sentences, len(access) + len(adder) + len(slots.slot)


def _difference(have: int, want: int, names: ChunkNames, differing: tuple[int, int]) -> str:
    """What is wrong with a slot of an output, as the end of a sentence."""
    if have == NO_CHUNK:
        return f"is never written: expected {names(want)}."
    if have != want:
        return f"ends with {names(have)}: expected {names(want)}."
    lacks, extra = differing
    if lacks:
        return (
            f"ends with {names(want)} without the contribution of rank {_lowest(lacks)} "
            f"({lacks.bit_count()} missing)."
        )
    return (
        f"ends with {names(want)} and the contribution of rank {_lowest(extra)}, which does not belong there."
    )


def _lowest(members: int) -> int:
    """Smallest member of a set of ranks."""
    return (members & -members).bit_length() - 1
