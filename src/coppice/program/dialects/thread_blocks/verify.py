"""Verification of a two-sided program: form, freedom from deadlock, races, symbolic execution, outcome.

What passes is right in every order in which thread blocks can run, for every depth of connections that is not smaller
than the one asked for, and at every size that it is meant for: execution does not deadlock
(``order``), nor where a runtime cuts steps into several messages
(``cutting``), all orders give the
same result (``races``), and in one of them, which is executed symbolically, the outcome
is what the collective promises. Every message that is sent is received, with the length that its receiver expects.

Sending, copying or adding what nothing was written to is a failure, besides those of :mod:`coppice.program.judge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.thread_blocks.cutting import (
    SMALLEST,
    Buffers,
    fewest_together,
    fifo_depth,
    largest_safe,
    most_in_passes,
)
from coppice.program.dialects.thread_blocks.order import execution_order
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.races import (
    early_sentence,
    race_sentence,
    races_of,
    written_early,
)
from coppice.program.dialects.thread_blocks.structure import MessagePairs, check_structure, step_name
from coppice.program.dialects.thread_blocks.unroll import early_sends, unroll
from coppice.program.judge import ChunkNames, Judgement, value_faults
from coppice.program.memory import Buffer, ProgramMemory, buffer_sizes, memory_of
from coppice.program.order import Deadlock
from coppice.schedule.verification.report import Findings, Verdict

_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class ProgramReport(Verdict):
    """Result of the verification of a program; the attributes of :class:`Verdict`, and these."""

    subject: ClassVar[str] = "program"

    warnings: tuple[str, ...] = ()  # What is allowed, but a caller should know
    depth: int  # Messages that a connection was taken to hold
    # Largest M at which it does not deadlock with the smallest buffers of any runtime; None: no limit
    safe_bytes: int | None = None


def verify_program(
    program: Program, *, depth: int | None = None, seed: int | None = None, buffers: Buffers = SMALLEST
) -> ProgramReport:
    """Check that a program performs its collective, in place or not, as it claims.

    Args:
        depth: Messages that a connection holds, 1 or more; what its protocol gives by default.
        seed: Carry it out in a random order. The verdict does not depend on it.
        buffers: The runtime that is to run it; by default it has to be right in all of them.

    Returns:
        The report; failures are collected, not raised. A program that is malformed or deadlocks is not run.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.program.dialects.thread_blocks.program import ProgramBuilder
        >>> from coppice.program.dialects.thread_blocks.program import StepOp
        >>> build = ProgramBuilder(2)
        >>> for rank in range(2):
        ...     block = build.block(rank, send=1 - rank, recv=1 - rank)
        ...     _ = build.step(block, StepOp.RECV, dst=(Buffer.OUTPUT, 1 - rank))
        ...     _ = build.step(block, StepOp.SEND, src=(Buffer.OUTPUT, rank))
        >>> swap = build.program(collective=Collective.ALL_GATHER, num_chunks=2, in_place=True,
        ...                      out_of_place=False, input_chunks=[1, 1], output_chunks=[2, 2])
        >>> print(verify_program(swap).failures[0])
        it deadlocks with connections of 2 messages: rank 0, thread block 0, step 0 (recv) waits for the message of \
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
    limit: int | None = 0
    if messages is not None:
        warnings.extend(_warnings(program))
        checked["messages"] = len(messages.send)
        try:
            order = execution_order(program, messages, depth=depth, seed=seed)
        except Deadlock as circle:
            findings.add(f"it deadlocks with connections of {depth} messages: {circle}")
        else:
            limit, sentence = _limit_of_sizes(program, messages, depth, buffers)
            if sentence:
                findings.add(sentence)
            warnings.extend(_warnings_of_sizes(program, buffers))
            checked["slots"] = 0
            both = program.in_place and program.out_of_place
            for in_place in [
                way for way in (True, False) if (program.in_place, program.out_of_place)[not way]
            ]:
                memory = memory_of(program, in_place=in_place)
                judgement = Judgement(unroll(program, messages, order, memory), memory)
                way = _prefix(in_place=in_place) if both else ""
                races, count = _races(judgement, memory, program, messages, order, buffers)
                findings.add_examples([way + each for each in races], count, "pairs of steps")
                values, count = _value_faults(judgement, program)
                findings.add_examples([way + each for each in values], count, "symbolic checks")
                checked["slots"] += len(memory.wanted.slot)
    return ProgramReport(
        ok=not findings.failures,
        failures=tuple(findings.failures),
        warnings=tuple(warnings),
        depth=depth,
        safe_bytes=limit,
        checked=checked,
    )


def _limit_of_sizes(
    program: Program, messages: MessagePairs, depth: int, buffers: Buffers
) -> tuple[int | None, str]:
    """Largest M at which it does not deadlock, and what is to be said where it is meant for more."""
    together, circle = fewest_together(program, messages, depth=depth)
    limit = largest_safe(program, together, buffers)
    if limit is None or (program.max_bytes is not None and program.max_bytes <= limit):
        return limit, ""
    remedy = f'; state that as its largest size (maxBytes="{limit}" in MSCCL XML).' if limit else "."
    return limit, (
        f"it deadlocks with messages of more than {limit} bytes, where runtimes cut its steps of up to "
        f"{int(program.count.max())} slots into several messages and a connection holds {depth}: "
        f"{circle.rstrip('.')}{remedy}"
    )


def _warnings_of_sizes(program: Program, buffers: Buffers) -> list[str]:
    most = most_in_passes(program, buffers)
    if most is None or (program.max_bytes is not None and program.max_bytes <= most):
        return []
    words = (
        f"above {most} bytes a slot takes more passes than the flags of runtimes can count, and thread blocks that "
        "wait for others wait for ever: state a smaller range of sizes."
    )
    return [words]


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


def _races(
    judgement: Judgement,
    memory: ProgramMemory,
    program: Program,
    messages: MessagePairs,
    order: NDArray[np.int64],
    buffers: Buffers,
) -> tuple[list[str], int]:
    """The first few races, a sentence each, and how many pairs of steps there are."""
    early = early_sends(program, buffers)
    races = races_of(judgement)
    sentences = [
        race_sentence(program, memory, races, row) for row in range(min(_EXAMPLES, len(races.first)))
    ]
    if not early.any():
        return sentences, len(races.first)
    fresh = written_early(program, memory, messages, order, early).without(races)
    shown = range(min(_EXAMPLES - len(sentences), len(fresh.first)))
    sentences += [early_sentence(program, memory, fresh, row) for row in shown]
    return sentences, len(races.first) + len(fresh.first)


def _value_faults(judgement: Judgement, program: Program) -> tuple[list[str], int]:
    """The first few faults of values, a sentence each, and how many there are."""
    actor, sources = judgement.execution.accesses.actor, int(program.reads_src.sum())

    def unwritten(access: int, place: int) -> str:
        step = int(actor[access])
        src, dst = (program.src_buffer, program.src_offset), (program.dst_buffer, program.dst_offset)
        buffer, offset = src if access < sources else dst
        slot = int(offset[step]) + place
        name = ("input", "output", "scratch")[int(buffer[step])]
        return f"{step_name(program, step)} reads slot {slot} of the {name}, which nothing was written to."

    return value_faults(
        judgement, ChunkNames(program), name=lambda step: step_name(program, step), unwritten=unwritten
    )
