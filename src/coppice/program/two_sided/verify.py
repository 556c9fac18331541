"""Verification of a two-sided program: form, freedom from deadlock, races, symbolic execution, outcome.

What passes is right in every order in which thread blocks can run, for every depth of connections that is not smaller
than the one asked for, and at every size that it is meant for: execution does not stand still
(:mod:`coppice.program.two_sided.order`), nor where a runtime cuts steps into several messages
(:mod:`coppice.program.two_sided.cutting`), all orders give the
same result (:mod:`coppice.program.two_sided.races`), and in one of them, which is executed symbolically, the outcome
is what the collective promises. Every message that is sent is received, with the length that its receiver expects.

Symbolic execution says which chunk with whose contributions every slot holds. It is done step by step, to say in words
what is wrong: sending, copying or adding what nothing was written to is a failure, besides those of
:mod:`coppice.program.symbolic`. For large programs it is done in whole waves of steps first, with arrays instead of
values: each slot holds the number of a chunk and the number of a set of contributors, and sets get numbers as they come
up. That says nothing about what is wrong. Steps of one wave do not wait for each other, so it is only for programs
without races: then no two of them use the same slot while one of them writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coppice.program.deadlock import Deadlock
from coppice.program.memory import (
    EVERYONE,
    NOTHING,
    Buffer,
    ProgramMemory,
    buffer_sizes,
    end_columns,
    memory_of,
    start_columns,
)
from coppice.program.symbolic import SymbolicMemory
from coppice.program.two_sided.cutting import (
    SMALLEST,
    Buffers,
    fewest_together,
    fifo_depth,
    largest_safe,
    most_in_passes,
)
from coppice.program.two_sided.early_sends import early_sends
from coppice.program.two_sided.order import StepOrder, find_order
from coppice.program.two_sided.program import Program, StepOp
from coppice.program.two_sided.races import find_races
from coppice.program.two_sided.structure import MessagePairs, check_structure, step_addresses, step_name
from coppice.rows import first_rows, positions
from coppice.schedule.verification.report import Findings, Verdict

_WIDE = 128


@dataclass(frozen=True, kw_only=True)
class ProgramReport(Verdict):
    """Result of the verification of a program; the attributes of :class:`Verdict`, and these."""

    subject: ClassVar[str] = "program"

    warnings: tuple[str, ...] = ()  # What is allowed, but a caller should know
    depth: int  # Messages that a connection was taken to hold
    # Largest M at which it does not stand still with the smallest buffers of any runtime; None: no limit
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
    limit: int | None = 0
    if messages is not None:
        warnings.extend(_warnings(program))
        checked["messages"] = len(messages.send)
        try:
            order = find_order(program, messages, depth=depth, seed=seed)
        except Deadlock as circle:
            findings.add(f"it stands still with connections of {depth} messages: {circle}")
        else:
            limit, sentence = _limit_of_sizes(program, messages, depth, buffers)
            if sentence:
                findings.add(sentence)
            warnings.extend(_warnings_of_sizes(program, buffers))
            early = early_sends(program, buffers)
            checked["slots"] = 0
            steps = order.steps
            for in_place in [
                way for way in (True, False) if (program.in_place, program.out_of_place)[not way]
            ]:
                memory = memory_of(program, in_place=in_place)
                prefix = "" if program.in_place != program.out_of_place else _prefix(in_place=in_place)
                races, count = find_races(program, memory, messages, steps, early=early)
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
        safe_bytes=limit,
        checked=checked,
    )


def _limit_of_sizes(
    program: Program, messages: MessagePairs, depth: int, buffers: Buffers
) -> tuple[int | None, str]:
    """Largest M at which it does not stand still, and what is to be said where it is meant for more."""
    together, circle = fewest_together(program, messages, depth=depth)
    limit = largest_safe(program, together, buffers)
    if limit is None or (program.max_bytes is not None and program.max_bytes <= limit):
        return limit, ""
    remedy = f'; state that as its largest size (maxBytes="{limit}" in MSCCL XML).' if limit else "."
    return limit, (
        f"it stands still with messages of more than {limit} bytes, where runtimes cut its steps of up to "
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


_Ints = NDArray[np.int64]


class Contents(SymbolicMemory):
    """Runs the steps of a program one after the other.

    Args:
        program: What is run.
        memory: Its slots.
    """

    def __init__(self, program: Program, memory: ProgramMemory) -> None:
        super().__init__(memory)
        self.program = program

    def name(self, actor: int) -> str:
        """A step in words."""
        return step_name(self.program, actor)

    def run(self, order: list[int], messages: MessagePairs) -> None:
        """Carry out all steps in an order in which they can take place, and judge the outcome."""
        program, held = self.program, self.held
        src, dst = (each.tolist() for each in step_addresses(program, self.memory))
        count, ops = program.count.tolist(), program.op.tolist()
        receives, sends = program.receives.tolist(), program.sends.tolist()
        reads, writes = program.reads_src.tolist(), program.writes_dst.tolist()
        message_of: list[int] = [-1] * program.num_steps
        for send, recv in zip(messages.send.tolist(), messages.recv.tolist(), strict=True):
            message_of[recv] = send
        travelling: dict[int, list[int]] = {}
        for step in order:
            length, op = count[step], ops[step]
            value: list[int] = []
            if reads[step]:
                value = held[src[step] : src[step] + length]
                if NOTHING in value:
                    self.fail(self._unwritten(step, program.src_buffer, program.src_offset, value))
            if receives[step]:
                message = travelling.pop(message_of[step])
                value = self.sum(step, value, message) if reads[step] else message
            elif op == StepOp.REDUCE:
                there = held[dst[step] : dst[step] + length]
                if NOTHING in there:
                    self.fail(self._unwritten(step, program.dst_buffer, program.dst_offset, there))
                value = self.sum(step, there, value)
            if writes[step]:
                held[dst[step] : dst[step] + length] = value
            if sends[step]:
                travelling[step] = value
        self.check_end()

    def _unwritten(
        self, step: int, buffer: NDArray[np.int8], offset: NDArray[np.int32], values: list[int]
    ) -> str:
        slot = int(offset[step]) + values.index(NOTHING)
        name = ("input", "output", "scratch")[int(buffer[step])]
        where = step_name(self.program, step)
        return f"{where} reads slot {slot} of the {name}, which nothing was written to."


def accepts(
    program: Program, memory: ProgramMemory, messages: MessagePairs, waves: Iterable[NDArray[np.int64]]
) -> int | None:
    """Carry out a program, and judge the outcome.

    Args:
        program: A program of sound structure without races.
        waves: All its steps; those of a wave can take place at once.

    Returns:
        Number of final slots if everything is right, otherwise None.
    """
    execution = _WaveExecution(program, memory, messages)
    return execution.final_slots() if all(map(execution.carried_out, waves)) else None


class _WaveExecution:
    def __init__(self, program: Program, memory: ProgramMemory, messages: MessagePairs) -> None:
        self.program, self.memory = program, memory
        ranks = program.num_ranks
        self.sets: list[int] = [0, *(1 << rank for rank in range(ranks))]  # no one, then every rank alone
        self.number = {members: number for number, members in enumerate(self.sets)}
        self.chunk = np.zeros(memory.words, dtype=np.int64)
        self.members = np.zeros(memory.words, dtype=np.int64)
        for rank in range(ranks):
            chunk, member = start_columns(program, rank)
            first = memory.base[Buffer.INPUT, rank]
            self.chunk[first : first + len(chunk)] = chunk
            self.members[first : first + len(chunk)] = member + 1
        self.src, self.dst = step_addresses(program, memory)
        # Where each step finds what it receives, and leaves what it sends, among all that travels.
        length = program.count[messages.send].astype(np.int64)
        self.place = np.zeros((2, program.num_steps), dtype=np.int64)
        self.place[0, messages.recv] = self.place[1, messages.send] = first_rows(length)
        self.travelling = np.zeros((2, int(length.sum())), dtype=np.int64)

    def carried_out(self, wave: NDArray[np.int64]) -> bool:
        """Carry out the steps of a wave; whether they all can be."""
        program = self.program
        count = program.count[wave].astype(np.int64)
        step, within = np.repeat(wave, count), positions(count)
        chunk, members = np.zeros(len(step), dtype=np.int64), np.zeros(len(step), dtype=np.int64)
        reads, receives = program.reads_src[step], program.receives[step]
        at = self.src[step[reads]] + within[reads]
        chunk[reads], members[reads] = self.chunk[at], self.members[at]
        if not self.members[at].all():
            return False
        at = self.place[0, step[receives]] + within[receives]
        came = self.travelling[0, at], self.travelling[1, at]
        adds = program.op[step] == StepOp.REDUCE
        at = self.dst[step[adds]] + within[adds]
        held = self.chunk[at], self.members[at]
        if not held[1].all():
            return False
        both = reads[receives]
        fresh = np.flatnonzero(receives)[~both]
        chunk[fresh], members[fresh] = came[0][~both], came[1][~both]
        for rows, (other_chunk, other) in (
            (np.flatnonzero(receives)[both], (came[0][both], came[1][both])),
            (np.flatnonzero(adds), held),
        ):
            if len(rows):
                total = self._together(members[rows], other)
                if total is None or (chunk[rows] != other_chunk).any():
                    return False
                members[rows] = total
        writes, sends = program.writes_dst[step], program.sends[step]
        at = self.dst[step[writes]] + within[writes]
        self.chunk[at], self.members[at] = chunk[writes], members[writes]
        at = self.place[1, step[sends]] + within[sends]
        self.travelling[0, at], self.travelling[1, at] = chunk[sends], members[sends]
        return True

    def _together(self, one: _Ints, other: _Ints) -> _Ints | None:
        """Numbers of the unions of sets, or None if some of them have a member in common."""
        pairs, which = np.unique(one << 32 | other, return_inverse=True)
        unions = []
        for a, b in zip((pairs >> 32).tolist(), (pairs & 0xFFFFFFFF).tolist(), strict=True):
            first, second = self.sets[a], self.sets[b]
            if first & second:
                return None
            members = first | second
            found = self.number.get(members)
            if found is None:
                found = self.number[members] = len(self.sets)
                self.sets.append(members)
            unions.append(found)
        return np.array(unions, dtype=np.int64)[which]

    def final_slots(self) -> int | None:
        """How many slots were compared with what they must hold, if all hold it."""
        everyone = self.number.get((1 << self.program.num_ranks) - 1, -1)
        slots = 0
        for rank in range(self.program.num_ranks):
            chunk, member = end_columns(self.program, rank)
            first = int(self.memory.base[Buffer.OUTPUT, rank])
            here = slice(first, first + len(chunk))
            wanted = np.where(member == EVERYONE, everyone, member + 1)
            if (self.chunk[here] != chunk).any() or (self.members[here] != wanted).any():
                return None
            slots += len(chunk)
        return slots
