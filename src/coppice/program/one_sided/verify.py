"""Verification of a one-sided program: form, freedom from deadlock, races, symbolic execution, outcome.

What passes is right in every order in which threads, proxies and ranks can run, and for every size of messages:
programs with loops are run with chunks of one piece, of three, and of more than fits into scratch memory of a fixed
size. Nothing is left over: there are as many waits as signals, so that the next run begins like the first.

Moving or adding what nothing was written to, and reading packets as data, are failures besides those of
:mod:`coppice.program.symbolic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coppice.program.deadlock import Deadlock
from coppice.program.memory import NOTHING, Buffer
from coppice.program.one_sided.events import Events, Touch, events_of
from coppice.program.one_sided.order import check_every_order, known_order, run_order
from coppice.program.one_sided.program import Act, OneSidedProgram
from coppice.program.one_sided.races import find_races
from coppice.program.one_sided.structure import check_form
from coppice.program.one_sided.words import Words, words_of
from coppice.program.symbolic import SymbolicMemory
from coppice.schedule.verification.report import Findings, Verdict


@dataclass(frozen=True, kw_only=True)
class OneSidedReport(Verdict):
    """Result of the verification of a one-sided program; the attributes of :class:`Verdict`, and these."""

    subject: ClassVar[str] = "program"

    warnings: tuple[str, ...] = ()  # What is allowed, or works in some cases only


def verify_one_sided(program: OneSidedProgram) -> OneSidedReport:
    """Check that a one-sided program performs its collective.

    Returns:
        The report; failures are collected, not raised. A program that is malformed or stands still is not run.

    Examples:
        Two ranks give each other their halves and say so:

        >>> from coppice.collectives import Collective
        >>> from coppice.program.one_sided.program import Block, ChannelEnd, Operation, Slots
        >>> def block(rank):
        ...     mine = Slots(ranks=(rank,), buffer=Buffer.OUTPUT, index=rank, size=1)
        ...     there = Slots(ranks=(1 - rank,), buffer=Buffer.OUTPUT, index=rank, size=1)
        ...     act = lambda act: Operation(act=act, name=act.name.lower(), channels=(rank,))
        ...     move = Operation(act=Act.MOVE, name="put", sources=(mine,), targets=(there,))
        ...     join = Operation(act=Act.JOIN, name="join")
        ...     return Block(rank=rank, operations=(act(Act.SIGNAL), act(Act.WAIT), join, move, join,
        ...                                         act(Act.SIGNAL), act(Act.WAIT)))
        >>> program = OneSidedProgram(
        ...     collective=Collective.ALL_GATHER, num_ranks=2, num_chunks=2, in_place=True, scratch=(0, 0),
        ...     blocks=(block(0), block(1)), semaphores=((), ()),
        ...     channels=tuple(ChannelEnd(rank=rank, peer=1 - rank, port=False, twin=1 - rank) for rank in (0, 1)))
        >>> verify_one_sided(program).ok
        True
    """
    findings = Findings()
    checked = {"thread_blocks": len(program.blocks), "operations": program.num_operations}
    warnings: list[str] = []
    check_form(program, findings)
    if not findings.failures:
        warnings += _warnings(program)
        checked["events"] = checked["words"] = 0
        for words in words_of(program):
            _run(words, findings, warnings, checked)
            if findings.failures:
                break
    return OneSidedReport(
        ok=not findings.failures,
        failures=tuple(findings.failures),
        warnings=tuple(dict.fromkeys(warnings)),
        checked=checked,
    )


def _run(words: Words, findings: Findings, warnings: list[str], checked: dict[str, int]) -> None:
    """Verify a program with chunks cut in one way."""
    events = events_of(words)
    checked["events"] += events.count
    beyond = [
        f"{events.name(event)} goes beyond the end of the {slots.buffer.name.lower()} of rank {slots.ranks[0]}"
        + (": its scratch memory has a fixed size." if words.ring else ".")
        for event, slots in events.out_of_bounds
    ]
    if beyond:
        findings.add_examples(beyond, len(beyond), "operations")
        return
    try:
        order, packets = run_order(events)
        edges, strong = known_order(events, order, packets)
        check_every_order(events, order, edges)
    except Deadlock as circle:
        findings.add(f"it stands still: {circle}")
        return
    _left_over(events, findings)
    races = find_races(events, order, edges, strong)
    large = "with messages larger than its scratch memory: " if words.ring else ""
    findings.add_examples([large + each for each in races.failures], races.count, "pairs of operations")
    warnings += races.warnings
    contents = OneSidedContents(events)
    contents.run(order)
    findings.add_examples(contents.failures, contents.count, "symbolic checks")
    checked["words"] += contents.slots


def _left_over(events: Events, findings: Findings) -> None:
    """Counters that do not come back to what they were at the start."""
    wrong = [
        f"{counter.name} counts {len(counter.posts)} up and {len(counter.waits)} down: the next run would begin with "
        "what is left."
        for counter in events.counters.values()
        if len(counter.posts) != len(counter.waits)
    ]
    findings.add_examples(wrong, len(wrong), "channels and semaphores")


def _warnings(program: OneSidedProgram) -> list[str]:
    """What is allowed, but a caller should know."""
    warnings = []
    idle = [op.name for _, op in program.operations() if op.act is Act.IDLE]
    if idle:
        warnings.append(
            f"{len(idle)} operations ({', '.join(sorted(set(idle)))}) do nothing in the current executor."
        )
    if not program.in_place and any(
        slots.buffer is Buffer.INPUT for _, op in program.operations() for slots in op.targets
    ):
        warnings.append("out of place it overwrites the input of its caller.")
    if (
        program.scratch_bytes is not None
        and any(op.act is Act.LOOP for _, op in program.operations())
        and not any(words.ring for words in words_of(program))
    ):
        warnings.append("messages that do not fit into its scratch memory were not tried.")
    return warnings


class OneSidedContents(SymbolicMemory):
    """Carries out events one after the other.

    Args:
        events: What is run.
    """

    slot_noun: ClassVar[str] = "chunk"

    def __init__(self, events: Events) -> None:
        words = events.words
        super().__init__(words.memory, words.per_chunk, in_pieces=words.piece > 0)
        self.events = events
        self._packed = bytearray(words.memory.words)

    def name(self, actor: int) -> str:
        """An event in words."""
        return self.events.name(actor)

    def run(self, order: Sequence[int]) -> None:
        """Carry out all events in an order in which they can take place, and judge the outcome."""
        for event in order:
            if event in self.events.writes:
                self._carry_out(event)
        self.check_end()

    def _carry_out(self, event: int) -> None:
        op = self.events.steps[self.events.step_of[event]].op
        reads, writes = self.events.reads.get(event, ()), self.events.writes[event]
        if op is not None and op.act is Act.SUM:
            total = self._read(event, reads[0])
            for touch in reads[1:]:
                total = self.sum(event, total, self._read(event, touch))
            for touch in writes:
                self._write(touch, total)
            return
        for source, target in zip(reads, writes, strict=True):
            self._write(target, self._read(event, source))

    def _read(self, event: int, touch: Touch) -> list[int]:
        """The values of some words; of several ranks, their sum."""
        total: list[int] | None = None
        stride = 2 if touch.slots.packets else 1
        for part in touch.parts:
            places = part.tolist()[::stride]
            values = [self.held[place] for place in places]
            if NOTHING in values:
                self.fail(
                    f"{self.name(event)} reads {self._slot(touch, values)}, which nothing was written to."
                )
            elif any(bool(self._packed[place]) != touch.slots.packets for place in places):
                forms = ("data", "packets") if touch.slots.packets else ("packets", "data")
                self.fail(f"{self.name(event)} reads as {forms[1]} what was written as {forms[0]}.")
            total = values if total is None else self.sum(event, total, values)
        return total or []

    def _slot(self, touch: Touch, values: list[int]) -> str:
        slots, words = touch.slots, self.events.words
        chunk = slots.index + values.index(NOTHING) // words.per_chunk
        return f"chunk {chunk} of the {slots.buffer.name.lower()} of rank {slots.ranks[0]}"

    def _write(self, touch: Touch, values: list[int]) -> None:
        stride = 2 if touch.slots.packets else 1
        for part in touch.parts:
            places = part.tolist()
            for place, address in enumerate(places):
                self.held[address] = values[place // stride]
                self._packed[address] = touch.slots.packets
