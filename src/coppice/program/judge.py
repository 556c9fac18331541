"""Judge of all programs: symbolic execution, data races, the contributions that every slot holds, faults in words.

Accesses are sorted by address and time once. Two accesses of one address conflict if one of them is a write. It is
enough to look at neighbours along any one order of execution: a read with the writes next to it on either side, and a
write with the next one. If all these pairs are always in order, so are all conflicting accesses; those that are not are
races. The write before a read is also the one that the read sees, so that values need not be followed step by step. Of
a program without races they are the same in every order in which it can run, otherwise those of the order that accesses
have.

Symbolic execution of all of an execution at once: which chunk with whose contributions every slot holds. A *place* is
an address as it is at the start, or a slot of a value. What a read sees is what the write before it has written. Places
that only pass something on are followed back to where it comes from, by pointer jumping; what is left are sums, which
are carried out level by level. A set of contributors has a number; equal sets may have several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.program.memory import EVERYONE, NO_CHUNK, JudgedMemory, MemoryLayout
from coppice.program.order import PointOrder, ProgramExecution, levels
from coppice.rows import begins_run, grouped, last_before, next_after, offsets, positions, ranges, sorted_rows

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


_EXAMPLES = 5
_NO_OTHERS: Mapping[int, str] = MappingProxyType({})


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
