"""Symbolic execution of all of an execution at once: which chunk with whose contributions every slot holds.

A *place* is an address as it is at the start, or a slot of a value. What a read sees is what the write before it has
written. Places that only pass something on are followed back to where it comes from, by pointer jumping; what is left
are sums, which are carried out level by level. A set of contributors has a number; equal sets may have several.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.program.memory import EVERYONE, NO_CHUNK, JudgedMemory
from coppice.program.order import ProgramExecution, levels
from coppice.rows import grouped, offsets, ranges

_BITS = 64
_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WrongSums:
    """Slots of sums that cannot be added, as columns."""

    value: _Ints  # Row of values (int64)
    one: _Ints  # Chunk of the first term (int64)
    other: _Ints  # Chunk of the second; where it is the same, some have contributed to both (int64)


@dataclass(frozen=True, eq=False)
class WrongSlots:
    """Slots of outputs that do not hold what they must, as columns."""

    rank: _Ints  # Rank (int64)
    slot: _Ints  # Slot of its output (int64)
    have: _Ints  # Chunk that it holds, or NO_CHUNK (int64)
    want: _Ints  # Chunk that it must hold (int64)


class SymbolicValues:
    """What every read sees, and every output holds in the end.

    Args:
        execution: What is run.
        memory: Its addresses, what they hold at the start and must hold at the end.
        address: The addresses of all accesses.
        sees: For each of them, the one of these that is the last write of it before, or -1.
        last: For each address of memory, the one of these that is its last write, or -1.
    """

    def __init__(
        self, execution: ProgramExecution, memory: JudgedMemory, address: _Ints, sees: _Ints, last: _Ints
    ) -> None:
        self._execution, self._memory = execution, memory
        self._start, self._words = offsets(execution.values.count), memory.words
        held = self._places(address, sees, last)
        given = memory.given
        chunk, member = np.full((2, self._words), NO_CHUNK)
        chunk[given.address], member[given.address] = given.chunk, given.member
        self._add(*self._follow(chunk), chunk, member)
        self._held = self._root[held]

    def _places(self, address: _Ints, sees: _Ints, last: _Ints) -> _Ints:
        """Find the place that every address of every access sees or writes; the one that memory holds in the end."""
        accesses = self._execution.accesses
        # Of a write the place that it writes; of a read the one that it sees.
        place = ranges(self._words + self._start[np.maximum(accesses.value, 0)], accesses.count)
        made = np.repeat(accesses.write & (accesses.value >= 0), accesses.count)
        place = np.where(made, place, address)
        self._seen = np.where(made | (sees < 0), place, place[sees])
        every = np.arange(self._words)
        return np.where(last >= 0, place[last], every) if len(place) else every

    def _operands(self, operand: _Ints) -> _Ints:
        """The place of each slot of the operands of all values, -1 where there is none; nothing if no value has one."""
        accesses, count = self._execution.accesses, self._execution.values.count
        number, slots = len(accesses.count), int(self._start[-1])
        if not (operand >= 0).any():
            return np.zeros(0, dtype=np.int64)
        start = np.concatenate([offsets(accesses.count)[:-1], self._words + self._start[:-1], [-slots]])
        found = ranges(start[operand], count)
        rows = np.flatnonzero(np.repeat((operand >= 0) & (operand < number), count))
        found[rows] = self._seen[found[rows]]
        return np.maximum(found, -1, out=found)

    def _follow(self, chunk: _Ints) -> tuple[_Ints, _Ints, _Ints]:
        """Find the origin of what every place holds, an address or a sum.

        Args:
            chunk: What addresses hold at the start.

        Returns:
            The slots of values that are sums, and their terms: addresses or, behind these, sums.
        """
        words, values = self._words, self._execution.values
        one, other = self._operands(values.one), self._operands(values.other)
        sums = np.flatnonzero(other >= 0)
        up = np.concatenate([np.arange(words), one])
        terms = one[sums], other[sums]
        del one, other
        while True:
            up[words + sums] = words + sums
            _follow_up(up)
            found = [up[term] for term in terms]
            empty = [(term < words) & (chunk[np.minimum(term, words - 1)] == NO_CHUNK) for term in found]
            broken = empty[0] | empty[1]
            if not broken.any():
                break
            # What cannot be added is passed on, so that one fault is told once.
            up[words + sums[broken]] = np.where(empty[0], found[1], found[0])[broken]
            sums, terms = sums[~broken], (terms[0][~broken], terms[1][~broken])
        if not len(sums):
            self._root = up
            return sums, *terms
        label = np.arange(len(up))
        label[words + sums] = words + np.arange(len(sums))
        self._root = label[up]
        return sums, label[found[0]], label[found[1]]

    def _add(self, sums: _Ints, one: _Ints, other: _Ints, chunk: _Ints, member: _Ints) -> None:
        """Carry out all sums, of terms that are addresses or, behind these, sums."""
        ranks, words, number = self._memory.num_ranks, self._words, len(sums)
        self._chunk = np.concatenate([chunk, np.zeros(number, dtype=np.int64)])
        self._set = np.concatenate([np.where(member < 0, ranks, member), np.zeros(number, dtype=np.int64)])
        edges = [(term[term >= words] - words, np.flatnonzero(term >= words)) for term in (one, other)]
        level = levels(number, *(np.concatenate(ends) for ends in zip(*edges, strict=True)))
        del edges
        made, unions = ranks + 1, []
        by_level, start = grouped(level, int(level.max(initial=-1)) + 1)
        for depth in range(len(start) - 1):
            rows = by_level[start[depth] : start[depth + 1]]
            first, second = one[rows], other[rows]
            pairs, which = np.unique(self._set[first] << 32 | self._set[second], return_inverse=True)
            self._set[words + rows] = made + which
            self._chunk[words + rows] = self._chunk[first]
            made += len(pairs)
            unions.append(pairs)
        self._sets = np.zeros((made, -(-ranks // _BITS)), dtype=np.uint64)
        every = np.arange(ranks)
        self._sets[every, every // _BITS] = np.uint64(1) << (every % _BITS).astype(np.uint64)
        again, made = np.zeros(made, dtype=np.bool_), ranks + 1
        for pairs in unions:
            left, right, to = self._sets[pairs >> 32], self._sets[pairs & 0xFFFFFFFF], made + len(pairs)
            self._sets[made:to], again[made:to] = left | right, (left & right).any(axis=1)
            made = to
        rows = np.flatnonzero(again[self._set[words:]] | (self._chunk[one] != self._chunk[other]))
        self._wrong_terms = one[rows], other[rows]
        self.wrong_sums = WrongSums(
            value=np.searchsorted(self._start, sums[rows], side="right") - 1,
            one=self._chunk[one[rows]],
            other=self._chunk[other[rows]],
        )

    def common(self, row: int) -> int:
        """Ranks that have contributed to both terms of a wrong sum, a bit for each."""
        one, other = (self._sets[self._set[terms[row]]] for terms in self._wrong_terms)
        return _bits(one & other)

    @cached_property
    def used(self) -> NDArray[np.bool_]:
        """Whether something is made of each access."""
        accesses, values = self._execution.accesses, self._execution.values
        used = np.zeros(len(accesses.count), dtype=np.bool_)
        for operand in (values.one, values.other):
            used[operand[(operand >= 0) & (operand < len(used))]] = True
        return used

    @property
    def missing(self) -> NDArray[np.bool_]:
        """For each address of each access, whether something is made of it that nothing was written to."""
        nothing = self._chunk[self._root[self._seen]] == NO_CHUNK
        return np.asarray(nothing & np.repeat(self.used, self._execution.accesses.count))

    @cached_property
    def wrong_slots(self) -> WrongSlots:
        """What outputs hold that they must not."""
        wanted, ranks = self._memory.wanted, self._memory.num_ranks
        found = self._held[wanted.address]
        wrong = self._chunk[found] != wanted.chunk
        # The set of a rank alone has its number: others are compared member by member.
        others = np.flatnonzero(~wrong & (self._set[found] != wanted.member))
        pairs, which = np.unique(
            self._set[found[others]] * (ranks + 1) + wanted.member[others] + 1, return_inverse=True
        )
        have, want = np.divmod(pairs, ranks + 1)
        wrong[others] = (self._sets[have] != self._wanted(want - 1)).any(axis=1)[which]
        rows = np.flatnonzero(wrong)
        self._wrong_members = self._set[found[rows]], wanted.member[rows]
        return WrongSlots(wanted.rank[rows], wanted.slot[rows], self._chunk[found[rows]], wanted.chunk[rows])

    def differing(self, row: int) -> tuple[int, int]:
        """Ranks whose contributions a wrong slot lacks, and those that do not belong there, a bit for each."""
        held, member = self._wrong_members
        have, want = self._sets[held[row]], self._wanted(member[row : row + 1])[0]
        return _bits(want & ~have), _bits(have & ~want)

    def _wanted(self, member: _Ints) -> NDArray[np.uint64]:
        """Sets of single members, or EVERYONE."""
        ranks = self._memory.num_ranks
        every = np.bitwise_or.reduce(self._sets[:ranks], axis=0)
        return np.where((member == EVERYONE)[:, None], every, self._sets[np.maximum(member, 0)])


def _bits(members: NDArray[np.uint64]) -> int:
    """A set as one number."""
    return int.from_bytes(members.astype("<u8").tobytes(), "little")


def _follow_up(up: _Ints) -> None:
    """Let pointers lead to where they lead to in the end."""
    rows = np.flatnonzero(up != np.arange(len(up)))
    while len(rows):
        current = up[rows]
        further = up[current]
        moved = further != current
        rows = rows[moved]
        up[rows] = further[moved]
