"""Verify a one-sided program: structure, deadlock, data races, and the result by symbolic execution.

What passes is right in every order in which threads, proxies and ranks can run, and for every size of messages:
programs with loops are run with chunks of one piece, of three, and of more than fits into scratch memory of a fixed
size. Nothing is left over: there are as many waits as signals, so that the next run begins like the first.

Moving or adding what nothing was written to, and reading packets as data, are failures besides those of
:mod:`coppice.program.judge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coppice.program.dialects.puts.events import Events, SlotSubChunks, events_of, sub_chunkings
from coppice.program.dialects.puts.order import check_every_order, known_order, run_order
from coppice.program.dialects.puts.program import Act, OneSidedProgram
from coppice.program.dialects.puts.races import find_races
from coppice.program.dialects.puts.structure import check_form
from coppice.program.dialects.puts.unroll import EventAccesses
from coppice.program.judge import ChunkNames, Judgement, value_faults
from coppice.program.memory import Buffer
from coppice.program.order import Deadlock
from coppice.schedule.verification.report import Findings, Verdict


@dataclass(frozen=True, kw_only=True)
class OneSidedReport(Verdict):
    """Result of the verification of a one-sided program; the attributes of :class:`Verdict`, and these."""

    subject: ClassVar[str] = "program"

    warnings: tuple[str, ...] = ()  # What is allowed, or works in some cases only


def verify_one_sided(program: OneSidedProgram) -> OneSidedReport:
    """Verify that a one-sided program performs its collective.

    Returns:
        The report; failures are collected, not raised. A program that is malformed or deadlocks is not run.

    Examples:
        Two ranks give each other their halves and say so:

        >>> from coppice.collectives import Collective
        >>> from coppice.program.dialects.puts.program import Block, ChannelEnd, Operation, Slots
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
        ...     channels=tuple(ChannelEnd(rank=rank, peer=1 - rank, port=False,
        ...         peer_channel=1 - rank) for rank in (0, 1)))
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
        for words in sub_chunkings(program):
            _run(words, findings, warnings, checked)
            if findings.failures:
                break
    return OneSidedReport(
        ok=not findings.failures,
        failures=tuple(findings.failures),
        warnings=tuple(dict.fromkeys(warnings)),
        checked=checked,
    )


def _run(words: SlotSubChunks, findings: Findings, warnings: list[str], checked: dict[str, int]) -> None:
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
        edges, strong = known_order(events, packets)
        check_every_order(events, edges)
    except Deadlock as circle:
        findings.add(f"it deadlocks: {circle}")
        return
    _left_over(events, findings)
    made = EventAccesses(events)
    judgement = Judgement(made.execution(order, edges), words.memory)
    races = find_races(made, judgement, strong)
    large = "with messages larger than its scratch memory: " if words.ring else ""
    findings.add_examples([large + each for each in races.failures], races.count, "pairs of operations")
    warnings += races.warnings
    values, count = _value_faults(made, judgement)
    findings.add_examples(values, count, "symbolic checks")
    checked["words"] += len(words.memory.wanted.slot)


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
        and not any(words.ring for words in sub_chunkings(program))
    ):
        warnings.append("messages that do not fit into its scratch memory were not tried.")
    return warnings


def _value_faults(made: EventAccesses, judgement: Judgement) -> tuple[list[str], int]:
    """The first few faults of values, a sentence each, and how many there are."""
    events, accesses = made.events, judgement.execution.accesses
    words = events.words

    def unwritten(access: int, place: int) -> str:
        slots = made.slots[access]
        assert slots is not None
        chunk, buffer = slots.index + place // words.per_chunk, slots.buffer.name.lower()
        return (
            f"{events.name(int(accesses.actor[access]))} reads chunk {chunk} of the {buffer} of rank "
            f"{slots.ranks[0]}, which nothing was written to."
        )

    packets = np.array([slots is not None and slots.packets for slots in made.slots], dtype=np.bool_)
    access = np.repeat(np.arange(len(packets)), accesses.count)
    writers = judgement.writers
    wrong = (writers >= 0) & (packets[np.maximum(writers, 0)] != packets[access])
    strange = np.unique(access[wrong & judgement.values.used[access]])
    strange = strange[~np.isin(strange, access[judgement.values.missing])]
    forms = ("data", "packets")
    misread = {
        row: f"{events.name(int(accesses.actor[row]))} reads as {forms[int(packets[row])]} what was written as "
        f"{forms[1 - int(packets[row])]}."
        for row in strange.tolist()
    }
    return value_faults(
        judgement,
        ChunkNames(words, words.per_chunk, in_pieces=words.piece > 0),
        name=events.name,
        unwritten=unwritten,
        misread=misread,
        slot_noun="chunk",
    )
