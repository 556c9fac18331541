"""The machine that runs put/signal programs, action by action, with the weakest order that the documents promise.

It knows nothing of the verifier. An *action* is one thing that happens to memory at once: a rank's caller fills its
input and hands over (BEGIN), a put reads its source (READ), its data land at the peer (LAND), a local operation is
carried out (WORK), a rank's caller takes the output and the memory back (END). Everything else, such as a signal that
arrives or a wait that is over, only allows further actions and happens as soon as it can; since a further action may be
put off for as long as one likes, nothing is lost by that.

Races are errors, not luck: an action that may come next has the memory that it will read or write to itself. A put
holds its source until it is read, and its target from the same moment until the data have landed; a rank's caller
holds all of its memory before the rank has begun, and once it may end. Whoever needs what another one holds, where one
of them writes, may as well have come before it.

Memory is int64 numbers: the caller fills it with noise before and after, so that what comes too early or too late shows
in the sums. The same machine, natively, is cpp/put_signal; ``put_signal.fuzzer`` runs that one.
"""

from __future__ import annotations

import enum
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.put_signal.fuzzer import PutSignalContents, PutSignalFault, fault_sentence
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.program.memory import Buffer, ProgramMemory, memory_of


class Happening(enum.IntEnum):
    """What happens."""

    BEGIN = 0
    READ = 1
    LAND = 2
    WORK = 3
    END = 4


Action = tuple[int, int]
"""(:class:`Happening`, rank or operation)"""


@dataclass(frozen=True, eq=False)
class _Operation:
    """An operation with addresses instead of slots."""

    act: int
    call: int
    peer: int
    count: int
    source: int
    addend: int
    target: int
    counter: tuple[int, int, int, int, int]
    chain: tuple[int, int, int, int]

    @property
    def is_identity(self) -> bool:
        """A copy of a stretch onto itself: nothing is done for it."""
        return self.act == PutSignalAct.COPY and self.source == self.target

    def reads(self) -> Iterator[int]:
        """Addresses that are read, but for those that are written by the same operation."""
        written = range(self.target, self.target + self.count)
        for first in (self.source, self.addend) if self.act == PutSignalAct.SUM else (self.source,):
            yield from (slot for slot in range(first, first + self.count) if slot not in written)

    def writes(self) -> range:
        """Addresses that are written."""
        return range(self.target, self.target + self.count)


class RankPhase(enum.IntEnum):
    """How far a rank is, by whose memory it is."""

    CALLERS = 0
    RUNNING = 1
    MAY_END = 2
    GIVEN_BACK = 3


class PutSignalScript:
    """A program as the machine reads it: what never changes while it runs.

    Args:
        program: The program; its form must be sound.
        in_place: Input and output share memory.
    """

    def __init__(self, program: PutSignalProgram, *, in_place: bool) -> None:
        self.program = program
        self.memory: ProgramMemory = memory_of(program, in_place=in_place)
        self.ranks = program.num_ranks
        self.call_rank: list[int] = program.call_rank.tolist()
        self.call_kind: list[int] = program.call_kind.tolist()
        start: list[int] = program.call_start.tolist()
        self.operations_of = [range(start[call], start[call + 1]) for call in range(program.num_calls)]
        self.operations = self._operations()
        self.chains: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
        for number, op in enumerate(self.operations):
            if op.act <= PutSignalAct.SIGNAL:
                self.chains[op.chain].append(number)
        self.after: list[list[int]] = [[] for _ in range(program.num_calls)]
        self.blockers = [1] * program.num_calls  # the rank must begin
        self.calls_of: list[list[int]] = [[] for _ in range(self.ranks)]
        last: dict[tuple[int, int, int], int] = {}
        streams, lines = program.stream.tolist(), program.communicator.tolist()
        for call, rank in enumerate(self.call_rank):
            self.calls_of[rank].append(call)
            queues = [(rank, 0, streams[call])]
            if self.call_kind[call] != PutSignalCall.LOCAL:
                queues.append((rank, 1, lines[call]))
            for each in {last[queue] for queue in queues if queue in last}:
                self.after[each].append(call)
                self.blockers[call] += 1
            last |= dict.fromkeys(queues, call)

    def _operations(self) -> list[_Operation]:
        program, base = self.program, self.memory.base.tolist()
        columns = (
            program.act, program.call_of, program.peer, program.count, program.source_buffer, program.source,
            program.addend_buffer, program.addend, program.target_buffer, program.target, program.context,
            program.signal, program.rank_of, program.communicator[program.call_of],
        )  # fmt: skip
        found = []
        for row in zip(*(column.tolist() for column in columns), strict=True):
            act, call, peer, count, source_buffer, source, addend_buffer, addend, target_buffer, target = row[
                :10
            ]
            context, signal, rank, line = row[10:]
            ends = (peer, rank) if act == PutSignalAct.WAIT else (rank, peer)
            whose = peer if act == PutSignalAct.PUT else rank
            found.append(
                _Operation(
                    act=act,
                    call=call,
                    peer=peer,
                    count=count,
                    source=base[source_buffer][rank] + source if source_buffer >= 0 else -1,
                    addend=base[addend_buffer][rank] + addend if addend_buffer >= 0 else -1,
                    target=base[target_buffer][whose] + target if target_buffer >= 0 else -1,
                    counter=(line, *ends, context, signal),
                    chain=(line, *ends, context),
                )
            )
        return found

    def owned(self, rank: int) -> list[tuple[int, int]]:
        """MemoryIntervals of addresses of a rank's memory: first, count."""
        sizes, bases = self.memory.size[:, rank].tolist(), self.memory.base[:, rank].tolist()
        return [(base, size) for base, size in zip(bases, sizes, strict=True) if size]


class PutSignalMachine:
    """One run of a script.

    Args:
        script: What is run.
        contents: What memory holds.

    Attributes:
        enabled: Actions of which any one may come next, in no order.
        wrong: What went wrong first, a sentence, or empty.
    """

    def __init__(self, script: PutSignalScript, contents: PutSignalContents) -> None:
        self.script, self.contents = script, contents
        self.noise = contents.noise(np.arange(script.memory.words))
        self.memory = self.noise.copy()
        self.held = [0] * script.memory.words  # readers to come, or -1: a writer to come
        self.blockers = list(script.blockers)
        self.left = [0] * len(script.blockers)  # operations of a call that are not over
        self.open_calls = [len(calls) for calls in script.calls_of]
        self.phase: list[int] = [RankPhase.CALLERS] * script.ranks
        self.counted: dict[tuple[int, int, int, int, int], int] = defaultdict(int)
        self.expected: dict[tuple[int, int, int, int, int], int] = defaultdict(int)
        self.waiting: dict[tuple[int, int, int, int, int], list[tuple[int, int]]] = defaultdict(list)
        self.arrived: dict[tuple[int, int, int, int], int] = dict.fromkeys(script.chains, 0)
        self.ready: set[int] = (
            set()
        )  # puts that have landed, and signals, of which the chain may not be so far
        self.flying: dict[int, NDArray[np.int64]] = {}
        self.landing = [0] * script.ranks  # puts to a rank that have begun and not landed
        self.begun: deque[int] = deque()  # calls that begin now, in turn
        self.enabled: list[Action] = [(Happening.BEGIN, rank) for rank in range(script.ranks)]
        self.wrong = ""

    def copy(self) -> PutSignalMachine:
        """The same state, to go on from there in another way."""
        other = object.__new__(PutSignalMachine)
        other.script, other.contents, other.noise = self.script, self.contents, self.noise
        other.memory, other.held = self.memory.copy(), list(self.held)
        other.blockers, other.left = list(self.blockers), list(self.left)
        other.open_calls, other.phase = list(self.open_calls), list(self.phase)
        other.counted, other.expected = self.counted.copy(), self.expected.copy()
        other.waiting = defaultdict(list, {key: list(rows) for key, rows in self.waiting.items()})
        other.arrived, other.ready = dict(self.arrived), set(self.ready)
        other.flying, other.landing = dict(self.flying), list(self.landing)
        other.begun = deque(self.begun)
        other.enabled, other.wrong = list(self.enabled), self.wrong
        return other

    def key(self) -> tuple[object, ...]:
        """What two states that are the same have in common."""
        flying = tuple(sorted((op, data.tobytes()) for op, data in self.flying.items()))
        return tuple(self.phase), tuple(sorted(self.enabled)), flying, self.memory.tobytes()

    @property
    def over(self) -> bool:
        """Every rank's caller has its memory back, and nothing is on its way."""
        return not self.enabled and all(phase == RankPhase.GIVEN_BACK for phase in self.phase)

    def perform(self, place: int) -> None:
        """Let the action at a place of :attr:`enabled` happen."""
        self.enabled[place], self.enabled[-1] = self.enabled[-1], self.enabled[place]
        act, number = self.enabled.pop()
        if act == Happening.BEGIN:
            self._begin(number)
        elif act == Happening.END:
            self._end(number)
        else:
            op = self.script.operations[number]
            if act == Happening.READ:
                self.flying[number] = self.memory[op.source : op.source + op.count].copy()
                self._release(op.reads())
                self.enabled.append((Happening.LAND, number))
                self._finish_one(op.call)
            elif act == Happening.LAND:
                self.memory[op.target : op.target + op.count] = self.flying.pop(number)
                self._release(op.writes())
                self.landing[op.peer] -= 1
                self.ready.add(number)
                self._advance(op.chain)
            else:
                self._work(number, op)
        while self.begun and not self.wrong:
            self._begin_call(self.begun.popleft())

    def _begin(self, rank: int) -> None:
        script = self.script
        self.phase[rank] = RankPhase.RUNNING
        for first, count in script.owned(rank):
            self.memory[first : first + count] = self.noise[first : first + count] + 1
        content = self.contents.filled(rank)
        first = int(script.memory.base[Buffer.INPUT, rank])
        self.memory[first : first + len(content)] = content
        if not script.calls_of[rank]:
            self._may_end(rank)
        for call in script.calls_of[rank]:
            self._unblock(call)

    def _may_end(self, rank: int) -> None:
        self.phase[rank] = RankPhase.MAY_END
        if self.landing[rank]:
            self._blame(PutSignalFault.CALLERS_MEMORY, min(self._puts_to(rank)))
        self.enabled.append((Happening.END, rank))

    def _end(self, rank: int) -> None:
        script = self.script
        self.phase[rank] = RankPhase.GIVEN_BACK
        result = self.contents.wanted(rank)
        first = int(script.memory.base[Buffer.OUTPUT, rank])
        if not np.array_equal(self.memory[first : first + len(result)], result):
            self._blame(PutSignalFault.WRONG_OUTPUT, rank)
        for first, count in script.owned(rank):
            self.memory[first : first + count] = self.noise[first : first + count] + 2

    def _unblock(self, call: int) -> None:
        self.blockers[call] -= 1
        if not self.blockers[call]:
            self.begun.append(call)

    def _begin_call(self, call: int) -> None:
        script = self.script
        operations = script.operations_of[call]
        self.left[call] = len(operations)
        kind = script.call_kind[call]
        if kind == PutSignalCall.LOCAL:
            self._enable_work(operations[0])
        elif kind == PutSignalCall.WAIT:
            for number in operations:
                op = script.operations[number]
                self.expected[op.counter] += op.count
                self.waiting[op.counter].append((self.expected[op.counter], call))
                self._wake(op.counter)
        else:
            for number in operations:
                if self.wrong:
                    return
                op = script.operations[number]
                if op.act == PutSignalAct.PUT:
                    self._enable_put(number, op)
                else:
                    self.ready.add(number)
                    self._advance(op.chain)
                    self._finish_one(call)

    def _enable_put(self, number: int, op: _Operation) -> None:
        if self.phase[op.peer] != RankPhase.RUNNING:
            self._blame(PutSignalFault.CALLERS_MEMORY, number)
        elif self._hold(number, op):
            self.landing[op.peer] += 1
            self.enabled.append((Happening.READ, number))

    def _enable_work(self, number: int) -> None:
        op = self.script.operations[number]
        if op.is_identity or self._hold(number, op):
            self.enabled.append((Happening.WORK, number))

    def _work(self, number: int, op: _Operation) -> None:
        memory = self.memory
        if not op.is_identity:
            data = memory[op.source : op.source + op.count]
            if op.act == PutSignalAct.SUM:
                data = data + memory[op.addend : op.addend + op.count]
            memory[op.target : op.target + op.count] = data.copy()
            self._release(op.reads())
            self._release(op.writes())
        if number + 1 in self.script.operations_of[op.call]:
            self._enable_work(number + 1)
        self._finish_one(op.call)

    def _finish_one(self, call: int) -> None:
        """One operation less of a call."""
        self.left[call] -= 1
        if self.left[call]:
            return
        rank = self.script.call_rank[call]
        self.open_calls[rank] -= 1
        if not self.open_calls[rank]:
            self._may_end(rank)
        for each in self.script.after[call]:
            self._unblock(each)

    def _advance(self, chain: tuple[int, int, int, int]) -> None:
        """Signals arrive, one after the other, each after the data before it."""
        line, at = self.script.chains[chain], self.arrived[chain]
        while at < len(line) and line[at] in self.ready:
            self.ready.remove(line[at])
            counter = self.script.operations[line[at]].counter
            at += 1
            self.arrived[chain] = at
            self.counted[counter] += 1
            self._wake(counter)

    def _wake(self, counter: tuple[int, int, int, int, int]) -> None:
        """Waits whose number of signals has arrived are over."""
        have = self.counted[counter]
        waiting = self.waiting[counter]
        over = [call for number, call in waiting if number <= have]
        self.waiting[counter] = [(number, call) for number, call in waiting if number > have]
        for call in over:
            self._finish_one(call)

    def _hold(self, number: int, op: _Operation) -> bool:
        """Take the memory that an operation will read and write; False if another one has it."""
        for slot in op.reads():
            if self.held[slot] < 0:
                return self._race(number, slot, writes=False)
            self.held[slot] += 1
        for slot in op.writes():
            if self.held[slot]:
                return self._race(number, slot, writes=True)
            self.held[slot] = -1
        return True

    def _release(self, slots: Iterator[int] | range) -> None:
        for slot in slots:
            self.held[slot] = max(self.held[slot] - 1, 0)

    def _race(self, number: int, slot: int, *, writes: bool) -> bool:
        """An operation needs a slot that another one holds."""
        others = []
        for act, other in self.enabled:
            if act in (Happening.BEGIN, Happening.END):
                continue
            op = self.script.operations[other]
            is_read = writes and act != Happening.LAND and slot in op.reads()
            if not op.is_identity and (slot in op.writes() or is_read):
                others.append(other)
        self._blame(PutSignalFault.RACE, number, min(others))
        return False

    def _puts_to(self, rank: int) -> Iterator[int]:
        """Puts to a rank that have begun and not landed."""
        for act, number in self.enabled:
            if act in (Happening.READ, Happening.LAND) and self.script.operations[number].peer == rank:
                yield number

    def _blame(self, fault: PutSignalFault, first: int, second: int = -1) -> None:
        self.wrong = self.wrong or fault_sentence(self.script.program, fault, first, second)
