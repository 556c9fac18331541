"""Verification of a two-sided program: form, freedom from deadlock, races, symbolic execution, outcome.

What passes is right in every order in which thread blocks can run, for every depth of connections that is not smaller
than the one asked for: execution does not stand still (:mod:`coppice.program.two_sided.order`), all orders give the
same result (:mod:`coppice.program.two_sided.races`), and in one of them the outcome is what the collective promises
(:mod:`coppice.program.two_sided.contents`).
Every message that is sent is received, with the length that its receiver expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coppice.program.deadlock import Deadlock
from coppice.program.memory import Buffer, buffer_sizes, memory_of
from coppice.program.two_sided.contents import Contents, accepts
from coppice.program.two_sided.order import StepOrder, find_order
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.races import find_races
from coppice.program.two_sided.structure import check_structure
from coppice.schedule.verification.report import Findings, Verdict

__all__ = ["ProgramReport", "fifo_depth", "verify_program"]

_DEPTHS = {"LL": 8, "LL128": 8}
_USUAL_DEPTH = 2
_WIDE = 128


@dataclass(frozen=True, kw_only=True)
class ProgramReport(Verdict):
    """Result of the verification of a program; the attributes of :class:`Verdict`, and these.

    Attributes:
        warnings: What is allowed, but a caller should know.
        depth: Messages that a connection was taken to hold.
    """

    subject: ClassVar[str] = "program"

    warnings: tuple[str, ...] = ()
    depth: int


def fifo_depth(protocol: str) -> int:
    """Messages that a connection holds at least: 8 with LL and LL128, otherwise 2."""
    return _DEPTHS.get(protocol, _USUAL_DEPTH)


def verify_program(program: Program, *, depth: int | None = None, seed: int | None = None) -> ProgramReport:
    """Check that a program performs its collective, in place or not, as it claims.

    Args:
        program: The program.
        depth: Messages that a connection holds, 1 or more; what its protocol gives by default.
        seed: Carry it out in a random order. The verdict does not depend on it.

    Returns:
        The report; failures are collected, not raised. A program that is malformed or stands still is not run.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.program.two_sided.builder import ProgramBuilder
        >>> from coppice.program.two_sided.program import StepOp
        >>> build = ProgramBuilder(2)
        >>> for rank in range(2):
        ...     block = build.block(rank, send=1 - rank, recv=1 - rank)
        ...     _ = build.step(block, StepOp.RECV, dst=(Buffer.OUTPUT, 1 - rank))
        ...     _ = build.step(block, StepOp.SEND, src=(Buffer.OUTPUT, rank))
        >>> swap = build.program(collective=Collective.ALL_GATHER, num_chunks=2, in_place=True,
        ...                      out_of_place=False, input_chunks=[1, 1], output_chunks=[2, 2])
        >>> print(verify_program(swap).failures[0])
        it stands still with connections of 2 messages: rank 0, thread block 0, step 0 (recv) waits for the message of \
rank 1, thread block 0, step 1 (send), behind its step 0; that waits for the message of rank 0, thread block 0, \
step 1 (send), behind its step 0.
    """
    depth = fifo_depth(program.protocol) if depth is None else depth
    findings = Findings()
    warnings: list[str] = []
    checked = {"thread_blocks": program.num_blocks, "steps": program.num_steps}
    if not (program.in_place or program.out_of_place):
        findings.add("the program is meant to run neither in place nor out of place: expected one of them.")
    messages = check_structure(program, findings)
    if messages is not None:
        warnings.extend(_warnings(program))
        checked["messages"] = len(messages.send)
        try:
            order = find_order(program, messages, depth=depth, seed=seed)
        except Deadlock as circle:
            findings.add(f"it stands still with connections of {depth} messages: {circle}")
        else:
            checked["slots"] = 0
            steps = order.steps
            for in_place in [
                way for way in (True, False) if (program.in_place, program.out_of_place)[not way]
            ]:
                memory = memory_of(program, in_place=in_place)
                prefix = "" if program.in_place != program.out_of_place else _prefix(in_place=in_place)
                races, count = find_races(program, memory, messages, steps)
                findings.add_examples([prefix + each for each in races], count, "pairs of steps")
                slots = None if count or not _wide(order) else accepts(program, memory, messages, order.waves)
                if slots is None:
                    contents = Contents(program, memory)
                    contents.run(steps, messages)
                    findings.add_examples(
                        [prefix + each for each in contents.failures], contents.count, "symbolic checks"
                    )
                    slots = contents.slots
                checked["slots"] += slots
    return ProgramReport(
        ok=not findings.failures,
        failures=tuple(findings.failures),
        warnings=tuple(warnings),
        depth=depth,
        checked=checked,
    )


def _wide(order: StepOrder) -> bool:
    """Whether waves are so wide that they are quicker than one step after the other."""
    return not order.rest and sum(map(len, order.waves)) >= _WIDE * len(order.waves)


def _prefix(*, in_place: bool) -> str:
    return "in place: " if in_place else "out of place: "


def _warnings(program: Program) -> list[str]:
    """What is allowed, but strange."""
    warnings = []
    if program.out_of_place:
        written = program.writes_dst & (program.dst_buffer == Buffer.INPUT)
        if written.any():
            rank = int(program.step_rank[np.flatnonzero(written)[0]])
            warnings.append(f"out of place it overwrites the input of its caller, at rank {rank} first.")
    sizes = buffer_sizes(program.collective, program.num_ranks, program.num_chunks, program.root)
    for given, size, name in (
        (program.input_chunks, sizes[Buffer.INPUT], "input"),
        (program.output_chunks, sizes[Buffer.OUTPUT], "output"),
    ):
        wrong = np.flatnonzero((given != 0) & (given != size))
        if len(wrong) and not program.collective.rooted:
            rank = int(wrong[0])
            warnings.append(
                f"rank {rank} declares {given[rank]} slots of {name}: {program.collective} has {size[rank]}."
            )
    return warnings
