"""Schedule fuzzer: run a put/signal program with data under adversarial schedules.

What a GPU and its network might do, a seed decides: which of the allowed actions comes next. The adversary of a run is
one of eleven kinds, in turn: any action; arrivals as late, or as early, as they may; late reads; ranks that begin last;
ranks, streams or links that pause for as long as anything else can happen; the newest action first; one rank as far as
it goes; and random priorities (PCT). The tests hold the same machine in Python.

Every rank contributes some 64-bit words to every chunk, hashes of rank, chunk and seed; sums are modulo 2^64. So a slot
that holds another multiset of contributions than it should is found out but for one chance in some 2^60.

Slots of an interval of memory that operations use whole are run as one (:mod:`coppice.program.memory`); in the same way
all words of a chunk do the same, whatever its size. The work grows with the slots that operations touch, for every
round until no cut is new.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.native import _run
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalProgram
from coppice.program.dialects.put_signal.unroll import addresses_of
from coppice.program.memory import (
    EVERYONE,
    Buffer,
    MemoryLayout,
    ProgramMemory,
    aligned_cuts,
    end_columns,
    heads_of,
    memory_of,
    start_columns,
)
from coppice.rows import offsets

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


@dataclass(frozen=True, kw_only=True)
class PutSignalContents:
    """Words of slots by contributing rank."""

    layout: MemoryLayout  # What decides on the values
    elements: int = 1  # Words of a slot
    seed: int = 0  # What all words are drawn from

    def noise(self, addresses: _Ints) -> _Ints:
        """Words of unwritten memory, a row per address."""
        return self._words(addresses, np.full(len(addresses), self.layout.num_ranks))

    def filled(self, rank: int, slots: _Ints | None = None) -> _Ints:
        """Words of a rank's input, a row per slot."""
        chunks, member = start_columns(self.layout, rank)
        return self._contributed(*_some(chunks, member, slots))

    def wanted(self, rank: int, slots: _Ints | None = None) -> _Ints:
        """Words required in a rank's output, by NumPy alone; arguments as for :meth:`filled`."""
        chunks, member = _some(*end_columns(self.layout, rank), slots)
        if not len(member) or int(member[0]) != EVERYONE:
            return self._contributed(chunks, member)
        total = np.zeros((len(chunks), self.elements), dtype=np.int64)
        for one in range(self.layout.num_ranks):
            total += self._contributed(chunks, np.full(len(chunks), one))
        return total

    def _contributed(self, chunks: _Ints, member: _Ints) -> _Ints:
        """Chunks of an all-to-all are numbered through all ranks; each is what its source contributes."""
        if self.layout.collective is Collective.ALL_TO_ALL:
            chunks = chunks % self.layout.num_chunks
        return self._words(chunks, member)

    def _words(self, place: _Ints, member: _Ints) -> _Ints:
        """Hashes of (seed, member, place, element), two rounds of splitmix64."""
        start = np.full(len(member), self.seed % 2**64, dtype=np.uint64)
        row = _mixed(_mixed(start, member), place)
        return _mixed(row[:, None], np.arange(self.elements)).view(np.int64)


def _some(chunks: _Ints, member: _Ints, slots: _Ints | None) -> tuple[_Ints, _Ints]:
    return (chunks, member) if slots is None else (chunks[slots], member[slots])


def _mixed(state: NDArray[np.uint64], value: _Ints) -> NDArray[np.uint64]:
    """The next states of chained splitmix64 that take in values."""
    state = state + np.asarray(value, dtype=np.uint64)
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))


class PutSignalFault(enum.IntEnum):
    """Fault of a run."""

    NONE = 0
    STANDS_STILL = 1
    """Nothing may happen, and some rank has not ended."""
    CALLERS_MEMORY = 2
    """A put that may land in memory of a rank that has not begun, or may end."""
    RACE = 3
    """Two operations that may come in either order use a slot, and one of them writes it."""
    WRONG_OUTPUT = 4
    """A rank ends with another output than the collective's."""


def fault_sentence(
    program: PutSignalProgram, fault: PutSignalFault, first: int = -1, second: int = -1
) -> str:
    """Describe a fault.

    Args:
        first: Operation, or the rank of a wrong output.
        second: The other operation of a race, which began before.
    """
    match fault:
        case PutSignalFault.NONE:
            return ""
        case PutSignalFault.STANDS_STILL:
            return "it deadlocks"
        case PutSignalFault.CALLERS_MEMORY:
            return f"{program.place(first)} may write into memory that is the caller's"
        case PutSignalFault.RACE:
            one, other = program.place(second), program.place(first)
            return f"{one} and {other} may come in either order, and use the same slots"
        case PutSignalFault.WRONG_OUTPUT:
            return f"rank {first} ends with a wrong output"


@dataclass(frozen=True, kw_only=True)
class FuzzRuns:
    """Result of some runs."""

    runs: int  # How many there were, up to the first that went wrong
    actions: int  # Actions of all runs
    fault: str = ""  # What went wrong, a sentence with the run's seed; empty where nothing did


def fuzz(
    program: PutSignalProgram, *, in_place: bool, elements: int = 1, schedules: int = 1, seed: int = 0
) -> FuzzRuns:
    """Run a program under adversarial schedules, and compare every output with NumPy's.

    Args:
        elements: 64-bit words of a chunk.
        schedules: Runs, each with a schedule of its own.
        seed: The first run's seed; the others' follow it.
    """
    found = fuzz_runs(program, in_place=in_place, elements=elements, schedules=schedules, seed=seed)
    if found.fault:
        raise CheckError(f"{found.fault}: verify the program.")
    return found


def fuzz_runs(
    program: PutSignalProgram, *, in_place: bool, elements: int = 1, schedules: int = 1, seed: int = 0
) -> FuzzRuns:
    """As :func:`fuzz`, but return a fault instead of raising it."""
    native = native_runs(program, in_place=in_place, elements=elements, seed=seed)
    fault, first, second, number, runs, actions = native.run(seed, schedules)
    words = fault_sentence(program, PutSignalFault(fault), first, second)
    return FuzzRuns(
        runs=runs,
        actions=actions,
        fault=words and f"under the adversarial schedule of seed {number}, {words}",
    )


def native_runs(
    program: PutSignalProgram, *, in_place: bool, elements: int = 1, seed: int = 0
) -> _run.PutSignalRuns:
    """Native runner of a program with random memory contents.

    Args:
        elements: 64-bit words of a chunk.
    """
    memory = memory_of(program, in_place=in_place)
    parts = intervals_of(program, memory)
    contents = PutSignalContents(layout=program, elements=elements, seed=seed)
    begin = contents.noise(parts.first)
    results, outputs = [], []
    for rank in range(program.num_ranks):
        source, target = int(memory.base[Buffer.INPUT, rank]), int(memory.base[Buffer.OUTPUT, rank])
        content = contents.filled(rank, parts.begins_in(source, len(start_columns(program, rank)[0])))
        begin[parts.number[source] : parts.number[source] + len(content)] = content
        outputs.append(int(parts.number[target]))
        results.append(contents.wanted(rank, parts.begins_in(target, len(end_columns(program, rank)[0]))))
    return _run.PutSignalRuns(
        num_slots=len(parts.first),
        rank_start=program.rank_start,
        call_start=program.call_start,
        stream=program.stream,
        communicator=program.communicator,
        act=program.act,
        peer=program.peer,
        context=program.context,
        signal=program.signal,
        count=parts.count,
        source=parts.source,
        addend=parts.addend,
        target=parts.target,
        words=elements,
        begin=begin.reshape(-1).view(np.uint64),
        output=np.array(outputs),
        wanted_start=offsets(np.array([len(result) for result in results])),
        wanted=np.concatenate(results).reshape(-1).view(np.uint64),
    )
