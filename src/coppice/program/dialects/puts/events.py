"""Unroll a one-sided program into events, with dependencies and accesses at the granularity of sub-chunks.

Between two joins of a thread block its threads are not in step, so the only order there is that of a single thread: the
n-th channel or semaphore of an operation is the business of thread n, and an operation on data is everybody's. An event
of the data comes after the last join and before the next one, and has no order with its neighbours. What a proxy does
comes after what its thread did before it gave the order, and after earlier orders on that channel.

Every rank has two events more: its beginning, before all its thread blocks, and its end, after all of them. At both,
the caller may do with the memory of that rank what it likes.

Addresses of a one-sided program at the granularity of sub-chunks. A chunk is cut into equal *words*. Thread blocks that
share an operation take whole words, and a loop walks through so many of them at a time. Where scratch memory has a
fixed size, each of its slots is a ring of words, in which a loop goes round. Packets take twice their size: packet k of
the scratch memory lies where data 2 k and 2 k + 1 would.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.puts.program import Act, OneSidedProgram, Operation, Slots
from coppice.program.memory import Buffer, ProgramMemory, memory_of

_MOST_PIECES = 192
_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SlotSubChunks:
    """One division of a program's chunks into sub-chunks."""

    program: OneSidedProgram  # The program
    per_chunk: int  # SlotSubChunks of a chunk
    piece: int  # Bytes of a word of a loop, 0 where there are no loops
    # SlotSubChunks of a slot of scratch memory in which loops go round; 0 where slots are as large as chunks
    ring: int
    in_place: bool  # Input and output are the same memory

    @property
    def collective(self) -> Collective:
        """Of the program."""
        return self.program.collective

    @property
    def num_ranks(self) -> int:
        """Of the program."""
        return self.program.num_ranks

    @property
    def num_chunks(self) -> int:
        """SlotSubChunks of M bytes."""
        return self.program.num_chunks * self.per_chunk

    @property
    def root(self) -> int:
        """No root."""
        return -1

    @property
    def scratch_chunks(self) -> _Ints:
        """SlotSubChunks of each rank's scratch memory."""
        wide = 2 if self.program.uses_packets else 1
        return self.program.scratch_chunks * (self.ring or self.per_chunk) * wide

    @cached_property
    def memory(self) -> ProgramMemory:
        """Addresses and values of all words."""
        return memory_of(self, in_place=self.in_place)

    def rounds(self, loop: Operation) -> int:
        """Number of repetitions of a loop."""
        step = loop.piece_bytes // self.piece
        return -(-loop.pieces_of * self.per_chunk // step)

    def part(self, op: Operation, slots: Slots, loop: Operation | None, iteration: int) -> tuple[int, int]:
        """(first, number) of the sub-chunks of ``slots`` that an operation handles.

        Args:
            loop: The loop that it is in.
            iteration: How often that has been carried out before.
        """
        total = slots.size * self.per_chunk
        which, of = op.share
        first, end = total * which // of, total * (which + 1) // of
        if loop is None:
            return first, end - first
        step = loop.piece_bytes // self.piece
        begin = iteration * step
        return first + begin, max(0, min(end - first - begin, step))

    def addresses(self, slots: Slots, rank: int, first: int, count: int) -> _Ints:
        """Addresses of sub-chunks; -1 for those beyond the end of their buffer.

        Args:
            first: First word, from the first slot.
        """
        memory = self.memory
        size = int(memory.size[slots.buffer, rank])
        if slots.buffer is Buffer.SCRATCH and self.ring:
            first = slots.index * self.ring + first % self.ring
        else:
            first += slots.index * self.per_chunk
        if slots.packets:
            first, count = 2 * first, 2 * count
        base = int(memory.base[slots.buffer, rank])
        if first >= 0 and first + count <= size:
            return np.arange(base + first, base + first + count, dtype=np.int64)
        words = np.arange(first, first + count, dtype=np.int64)
        return np.where((words >= 0) & (words < size), words + base, -1)


def sub_chunkings(program: OneSidedProgram, *, finest: bool = False) -> Iterator[SlotSubChunks]:
    """Divisions of chunks that represent all message sizes.

    Without loops there is one. With loops: chunks of one piece, of three, and, where scratch memory has a fixed size,
    of more than it holds.
    """
    even = 1
    loops = []
    for _, op in program.operations():
        if op.act is Act.LOOP:
            loops.append(op)
        for slots in (*op.sources, *op.targets):
            even = lcm(even, op.share[1] // gcd(op.share[1], slots.size))
    if even > _MOST_PIECES:
        raise InputError(
            f"expected operations shared by few thread blocks, found a need for {even} parts of every chunk."
        )
    if not loops:
        yield SlotSubChunks(program, even, 0, 0, program.in_place)
        return
    piece = gcd(*(loop.piece_bytes for loop in loops))
    longest = max(loop.piece_bytes // piece for loop in loops)
    if longest > _MOST_PIECES:
        raise InputError(
            f"expected loops by pieces of similar sizes, found one by {longest} times the common {piece} bytes."
        )
    yield SlotSubChunks(program, _multiple(longest, even), piece, 0, program.in_place)
    if finest:
        return
    yield SlotSubChunks(program, _multiple(3 * longest, even), piece, 0, program.in_place)
    if program.scratch_bytes is not None and max(program.scratch, default=0):
        ring = program.scratch_bytes // max(program.scratch) // piece
        chunk = _multiple(ring + 2 * longest, even)
        low_enough = program.max_bytes is None or chunk * piece * program.num_chunks <= program.max_bytes
        if ring and low_enough and chunk <= _MOST_PIECES:
            yield SlotSubChunks(program, chunk, piece, ring, program.in_place)


def _multiple(least: int, of: int) -> int:
    return -(-least // of) * of


# Kinds of chains
_BEGIN, _END, _JOIN, _THREAD, _DATA, _PROXY = range(6)


@dataclass(frozen=True, slots=True)
class EventStep:
    """Execution of one operation, in a loop one per iteration."""

    row: int  # Row of its thread block; -1 for the beginning of a rank
    position: int  # Its place in the thread block
    inner: int  # Its place in the loop there, or -1
    iteration: int  # How often the loop went round before
    op: Operation | None  # The operation; None at the beginning of a rank and at the end of a thread block
    events: tuple[int, ...]  # Its events


@dataclass(frozen=True, slots=True)
class Touch:
    """Addresses read or written by an event."""

    slots: Slots  # As the operation names them
    parts: tuple[_Ints, ...]  # Addresses at each of its ranks


@dataclass(slots=True)
class SignalCounter:
    """Counter incremented by some events and decremented by others: a channel direction, or a semaphore."""

    name: str  # In words
    start: int = 0  # Count at the start
    posts: list[int] = field(default_factory=list)  # Events that add one
    waits: list[int] = field(default_factory=list)  # Events that take one


@dataclass
class Events:
    """All events of a program."""

    words: SlotSubChunks  # The addresses
    # All steps; those of a thread block follow each other
    steps: list[EventStep] = field(default_factory=list)
    step_of: list[int] = field(default_factory=list)  # Step of each event
    # (earlier, later) events; the later one cannot come first
    before: list[tuple[int, int]] = field(default_factory=list)
    # Chain of each event: events of one always take place in the order of their numbers
    chain: list[int] = field(default_factory=list)
    chains: dict[tuple[int, ...], int] = field(default_factory=dict)  # Number of each chain
    # Counters by (`channel`, row) or (`semaphore`, rank, id)
    counters: dict[tuple[int, ...], SignalCounter] = field(default_factory=dict)
    reads: dict[int, tuple[Touch, ...]] = field(default_factory=dict)  # What events of data read, by event
    writes: dict[int, tuple[Touch, ...]] = field(default_factory=dict)  # What they write
    begins: list[int] = field(default_factory=list)  # Beginning of each rank
    ends: list[int] = field(default_factory=list)  # End of each rank
    # Events of each round of each barrier: (arrivals, departures)
    barriers: dict[tuple[int, int, int], tuple[list[int], list[int]]] = field(default_factory=dict)
    # (event, slots) that reach beyond their buffer
    out_of_bounds: list[tuple[int, Slots]] = field(default_factory=list)

    @property
    def program(self) -> OneSidedProgram:
        """The program."""
        return self.words.program

    @property
    def count(self) -> int:
        """Number of events."""
        return len(self.step_of)

    def name(self, event: int) -> str:
        """Describe an event."""
        step = self.steps[self.step_of[event]]
        if step.row < 0:
            return f"the {'beginning' if event in self.begins else 'end'} of rank {step.position}"
        if step.op is None:
            row = step.row
            return (
                f"the end of rank {self.program.blocks[row].rank}, thread block {self.program.block_ids[row]}"
            )
        place = self.program.place(step.row, step.position, step.inner)
        return place if step.inner < 0 else f"{place} of round {step.iteration}"

    def rank(self, event: int) -> int:
        """Rank of an event."""
        step = self.steps[self.step_of[event]]
        return step.position if step.row < 0 else self.program.blocks[step.row].rank

    def block(self, event: int) -> int:
        """Row of its thread block, or -1."""
        return self.steps[self.step_of[event]].row

    def add(self, *chain: int) -> int:
        """Add an event of the next step.

        Args:
            chain: What its chain is known by.
        """
        self.step_of.append(len(self.steps))
        self.chain.append(self.chains.setdefault(chain, len(self.chains)))
        return len(self.step_of) - 1


def events_of(words: SlotSubChunks) -> Events:
    """Unroll a program.

    Args:
        words: A program of sound form and its addresses.
    """
    events = Events(words)
    program = events.program
    for rank in range(program.num_ranks):
        event = events.add(_BEGIN, rank)
        events.steps.append(EventStep(-1, rank, -1, 0, None, (event,)))
        events.begins.append(event)
    last: list[list[int]] = [[event] for event in events.begins]
    for row, block in enumerate(program.blocks):
        last[block.rank].append(_Thread(events, row, events.begins[block.rank]).run())
    for rank, finals in enumerate(last):
        event = events.add(_END, rank)
        events.steps.append(EventStep(-1, rank, -1, 0, None, (event,)))
        events.ends.append(event)
        events.before.extend((earlier, event) for earlier in finals)
    for arrivals, departures in events.barriers.values():
        events.before.extend((one, two) for one in arrivals for two in departures)
    return events


class _Thread:
    """Unrolls one thread block."""

    def __init__(self, events: Events, row: int, begin: int) -> None:
        self.events, self.row = events, row
        self.program, self.words = events.program, events.words
        self.rank = self.program.blocks[row].rank
        self.join = begin
        self.phase = 0
        self.heads: dict[int, int] = {}  # last event of a thread, where it is not the join
        self.loose: list[int] = []  # events of data since the join
        # Channel: last order, its thread, its phase, and the first order of its chain
        self.orders: dict[int, tuple[int, int, int, int]] = {}
        self.rounds: dict[int, int] = defaultdict(int)  # of barriers

    def run(self) -> int:
        """Add all events; the last one, a join."""
        for position, op in enumerate(self.program.blocks[self.row].operations):
            if op.act is not Act.LOOP:
                self._step(position, -1, 0, op, None)
                continue
            for iteration in range(self.words.rounds(op)):
                for inner, each in enumerate(op.body):
                    self._step(position, inner, iteration, each, op)
        final = self._joined()
        self.events.steps.append(
            EventStep(self.row, len(self.program.blocks[self.row].operations), -1, 0, None, (final,))
        )
        return final

    def _step(self, position: int, inner: int, iteration: int, op: Operation, loop: Operation | None) -> None:
        match op.act:
            case Act.JOIN:
                made = [self._joined()]
            case Act.BARRIER:
                made = self._barrier(op)
            case Act.SIGNAL:
                made = [self._signal(thread, channel) for thread, channel in enumerate(op.channels)]
            case Act.WAIT:
                made = [self._wait(thread, (0, channel)) for thread, channel in enumerate(op.channels)]
            case Act.ACQUIRE:
                made = [self._wait(thread, (1, self.rank, number)) for thread, number in enumerate(op.ids)]
            case Act.RELEASE:
                made = [self._post(thread, (1, self.rank, number)) for thread, number in enumerate(op.ids)]
            case Act.IDLE:
                made = []
            case _ if op.port:
                made = [self._order(thread, op, loop, iteration) for thread in range(len(op.targets))]
            case _:
                made = [self._data(op, loop, iteration)]
        self.events.steps.append(EventStep(self.row, position, inner, iteration, op, tuple(made)))

    def _after(self, event: int, earlier: int) -> None:
        self.events.before.append((earlier, event))

    def _joined(self) -> int:
        self.phase += 1
        event = self.events.add(_JOIN, self.row)
        self._after(event, self.join)
        for earlier in (*self.heads.values(), *self.loose):
            self._after(event, earlier)
        self.join, self.heads, self.loose = event, {}, []
        return event

    def _barrier(self, op: Operation) -> list[int]:
        number = op.ids[0]
        arrival = self._joined()
        departure = self._joined()
        arrivals, departures = self.events.barriers.setdefault(
            (self.rank, number, self.rounds[number]), ([], [])
        )
        self.rounds[number] += 1
        arrivals.append(arrival)
        departures.append(departure)
        return [arrival, departure]

    def _by(self, thread: int) -> int:
        """A new event of one thread."""
        event = self.events.add(_THREAD, self.row, thread)
        self._after(event, self.heads.get(thread, self.join))
        self.heads[thread] = event
        return event

    def _counter(self, key: tuple[int, ...]) -> SignalCounter:
        counter = self.events.counters.get(key)
        if counter is None:
            if key[0]:
                start = self.program.semaphores[self.rank][key[2]]
                counter = SignalCounter(f"semaphore {key[2]} of rank {self.rank}", start)
            else:
                end = self.program.channels[key[1]]
                counter = SignalCounter(
                    f"a {'port' if end.port else 'memory'} channel from rank {end.peer} to {end.rank}"
                )
            self.events.counters[key] = counter
        return counter

    def _signal(self, thread: int, channel: int) -> int:
        end = self.program.channels[channel]
        if not end.port:
            return self._post(thread, (0, end.peer_channel))
        event = self._ordered(thread, channel)
        self._counter((0, end.peer_channel)).posts.append(event)
        return event

    def _post(self, thread: int, key: tuple[int, ...]) -> int:
        event = self._by(thread)
        self._counter(key).posts.append(event)
        return event

    def _wait(self, thread: int, key: tuple[int, ...]) -> int:
        event = self._by(thread)
        self._counter(key).waits.append(event)
        return event

    def _ordered(self, thread: int, channel: int) -> int:
        """A new event of the proxy, on the order of a thread."""
        earlier = self.orders.get(channel)
        if earlier is not None and earlier[1] != thread and earlier[2] == self.phase:
            earlier = None
        head = len(self.events.chain) if earlier is None else earlier[3]
        event = self.events.add(_PROXY, head)
        self._after(event, self.heads.get(thread, self.join))
        if earlier is not None:
            self._after(event, earlier[0])
        self.orders[channel] = (event, thread, self.phase, head)
        return event

    def _order(self, thread: int, op: Operation, loop: Operation | None, iteration: int) -> int:
        channel = op.channels[thread]
        event = self._ordered(thread, channel)
        self._touch(event, op, (op.sources[thread],), (op.targets[thread],), loop, iteration)
        if op.signals:
            self._counter((0, self.program.channels[channel].peer_channel)).posts.append(event)
        if op.flushes:
            self.heads[thread] = event
        return event

    def _data(self, op: Operation, loop: Operation | None, iteration: int) -> int:
        event = self.events.add(_DATA, self.row, len(self.loose))
        self._after(event, self.join)
        self.loose.append(event)
        self._touch(event, op, op.sources, op.targets, loop, iteration)
        return event

    def _touch(
        self,
        event: int,
        op: Operation,
        sources: tuple[Slots, ...],
        targets: tuple[Slots, ...],
        loop: Operation | None,
        iteration: int,
    ) -> None:
        for slots, into in (
            *((each, self.events.reads) for each in sources),
            *((each, self.events.writes) for each in targets),
        ):
            first, count = self.words.part(op, slots, loop, iteration)
            parts = tuple(self.words.addresses(slots, rank, first, count) for rank in slots.ranks)
            if any((part < 0).any() for part in parts):
                self.events.out_of_bounds.append((event, slots))
            into[event] = (*into.get(event, ()), Touch(slots, parts))
