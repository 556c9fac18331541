"""Reconstruct the schedule of a one-sided program.

The program is run symbolically, as in the one of thread blocks. Whatever goes from the memory of
one rank to that of another is a transfer of each chunk that it holds: a copy where it takes the place of what the
receiver has, a reduction once it is added. What lies in scratch memory to be added counts from the operation that
adds it. Several ranks that are read or written through a switch count one by one.

A schedule knows one value of a chunk at a rank at a time. A rank may still send the one before it, as in exchanges, but
may not add to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.errors import InputError
from coppice.program.dialects.puts.events import Events, Touch, events_of, sub_chunkings
from coppice.program.dialects.puts.order import run_order
from coppice.program.dialects.puts.program import Act, OneSidedProgram
from coppice.program.dialects.puts.structure import check_form
from coppice.program.memory import NOTHING
from coppice.program.moves import ChunkTrace, Move, check_ranks, schedule_of_moves
from coppice.program.order import Deadlock
from coppice.schedule.schedule import Op, Schedule
from coppice.schedule.verification.report import Findings
from coppice.topology.model import Topology


def one_sided_to_schedule(program: OneSidedProgram, topology: Topology) -> Schedule:
    """Schedule of a one-sided program, over default routes.

    Returns:
        Transfers without steps if an order of rows says it all; otherwise with the fewest steps.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.dialects.puts.lower import lower_one_sided
        >>> from coppice.topology.presets import preset
        >>> ring = preset("ring", gpus=4)
        >>> made = plan(ring, "all_gather").plan
        >>> one_sided_to_schedule(lower_one_sided(made.body).program(2), ring).num_transfers
        24
    """
    check_ranks(program, topology)
    findings = Findings()
    check_form(program, findings)
    if findings.failures:
        raise InputError(f"expected a program that verifies: {findings.failures[0]}")
    words = next(iter(sub_chunkings(program, finest=True)))
    events = events_of(words)
    try:
        order, _ = run_order(events)
    except Deadlock as circle:
        raise InputError(f"expected a program that verifies: {circle}") from None
    trace = _EventTrace(events)
    trace.run(order)
    return schedule_of_moves(words, topology, trace.unit_moves())


@dataclass(frozen=True, slots=True)
class _Staged:
    """What came from another rank and is not used yet."""

    src: int
    sent: int
    before: int


class _EventTrace(ChunkTrace):
    """Carries out events and notes the moves of every chunk."""

    def __init__(self, events: Events) -> None:
        super().__init__(events.words.memory)
        self.events = events  # What is run
        self.gone: dict[tuple[int, int, int], int] = {}  # Time when (rank, chunk) had that value last
        self.staged: dict[int, _Staged] = {}  # By address, what came from another rank to be added
        self.time = 0  # Twice the place of the event that is carried out

    def run(self, order: list[int]) -> None:
        """Carry out all events in an order in which they can take place."""
        for place, event in enumerate(order):
            if event not in self.events.writes:
                continue
            self.time = 2 * place
            op = self.events.steps[self.events.step_of[event]].op
            reads, writes = self.events.reads[event], self.events.writes[event]
            if op is not None and op.act is Act.MOVE:
                for source, target in zip(reads, writes, strict=True):
                    self._copy(event, source, target)
            elif len(reads) == 1 and len(reads[0].parts) == 1:
                for target in writes:
                    self._copy(event, reads[0], target)
            else:
                self._sum(event, reads, writes)

    def _strange(self, event: int) -> InputError:
        return self.several_values(self.events.name(event))

    def _hold(self, rank: int, value: int) -> None:
        chunk = self.chunk_of(value)
        before = self.held.get((rank, chunk), NOTHING)
        if before != value:
            self.gone[rank, chunk, before] = self.time - 1
            self.held[rank, chunk] = value

    def _sent(self, event: int, rank: int, address: int) -> int:
        """When a rank sent what lies at an address: now, or at the latest when it still was its value."""
        value = self.words[address]
        chunk = self.chunk_of(value)
        waiting = self.staged.pop(address, None)
        if waiting is not None:  # used by itself, it takes the place of what the rank held
            if self.held.get((rank, chunk), NOTHING) != waiting.before:
                raise self._strange(event)
            self._hold(rank, value)
            self.moves[chunk].append(Move(waiting.src, rank, Op.COPY, waiting.sent, self.time))
        if self.held.get((rank, chunk)) == value:
            return self.time
        if (rank, chunk, value) not in self.gone:
            raise self._strange(event)
        return self.gone[rank, chunk, value]

    def _copy(self, event: int, source: Touch, target: Touch) -> None:
        (owner,), (places,) = source.slots.ranks, source.parts
        froms = places.tolist()[:: 2 if source.slots.packets else 1]
        for rank, part in zip(target.slots.ranks, target.parts, strict=True):
            stride = 2 if target.slots.packets else 1
            addresses = part.tolist()
            for place, origin in enumerate(froms):
                here = addresses[place * stride : (place + 1) * stride]
                if here[0] == origin:
                    continue
                value = self.words[origin]
                if rank != owner:
                    self._arrive(rank, here, value, owner, self._sent(event, owner, origin))
                    continue
                self._write(here, value)
                waiting = self.staged.get(origin)
                if waiting is not None:
                    self.staged[here[0]] = waiting

    def _write(self, addresses: list[int], value: int) -> None:
        for address in addresses:
            self.staged.pop(address, None)
            self.words[address] = value

    def _arrive(self, rank: int, addresses: list[int], value: int, src: int, sent: int) -> None:
        """A value is written into the memory of another rank: in place of what that holds, or to be added later."""
        chunk = self.chunk_of(value)
        held = self.held.get((rank, chunk), NOTHING)
        later = self.added_later(held, value, self.words[addresses[0]])
        self._write(addresses, value)
        if later:
            self.staged[addresses[0]] = _Staged(src, sent, held)
            return
        self._hold(rank, value)
        self.moves[chunk].append(Move(src, rank, Op.COPY, sent, self.time))

    def _sum(self, event: int, reads: tuple[Touch, ...], writes: tuple[Touch, ...]) -> None:
        """What a rank holds, and what waits with it or lies at others, becomes what it holds."""
        here = self.events.rank(event)
        terms = [
            (rank, part.tolist()[:: 2 if touch.slots.packets else 1])
            for touch in reads
            for rank, part in zip(touch.slots.ranks, touch.parts, strict=True)
        ]
        totals = []
        for place in range(len(terms[0][1])):
            own, total, chunk = NOTHING, NOTHING, 0
            found: list[tuple[int, int]] = []
            for rank, addresses in terms:
                address = addresses[place]
                value = self.words[address]
                chunk = self.chunk_of(value)
                total |= value
                if rank != here:
                    found.append((rank, self._sent(event, rank, address)))
                elif (waiting := self.staged.pop(address, None)) is not None:
                    found.append((waiting.src, waiting.sent))
                elif own:
                    raise self._strange(event)
                else:
                    own = value
            if not own or self.held.get((here, chunk)) != own:
                raise self._strange(event)
            self.moves[chunk] += [Move(src, here, Op.REDUCE, sent, self.time) for src, sent in found]
            self._hold(here, total)
            totals.append(total)
        for touch in writes:
            stride = 2 if touch.slots.packets else 1
            for rank, part in zip(touch.slots.ranks, touch.parts, strict=True):
                addresses = part.tolist()
                for place, total in enumerate(totals):
                    into = addresses[place * stride : (place + 1) * stride]
                    if rank == here:
                        self._write(into, total)
                    else:
                        self._arrive(rank, into, total, here, self.time + 1)
