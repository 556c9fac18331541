"""The schedule that a two-sided program carries out.

The program is run symbolically. Every message becomes a transfer of each chunk that it brings, a copy where it takes
the place of what the receiver had, a reduction where it is added; values that wait in scratch memory to be added count
from the step that adds them, and those that are never used do not count. Chunks that travel
together all the way become one chunk of the schedule.

A schedule knows one value of a chunk at a rank, which a program need not keep to: a rank that passes on what it
received apart from its own contribution, say. Such programs verify, but are no schedules.
"""

from __future__ import annotations

from coppice.errors import InputError
from coppice.program.dialects.thread_blocks.cutting import fifo_depth
from coppice.program.dialects.thread_blocks.nics import NicRoutes
from coppice.program.dialects.thread_blocks.order import execution_order
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.dialects.thread_blocks.structure import (
    MessagePairs,
    check_structure,
    step_addresses,
    step_name,
)
from coppice.program.memory import ProgramMemory, memory_of
from coppice.program.moves import Move, StagedTrace, check_ranks, schedule_of_moves
from coppice.program.order import Deadlock
from coppice.schedule.schedule import Op, Schedule
from coppice.schedule.verification.report import Findings
from coppice.topology.model import Topology

_TAKES = frozenset(op for op in StepOp if op.reads_src and (op.sends or op.receives))


def to_schedule(program: Program, topology: Topology) -> Schedule:
    """The schedule that a program carries out.

    Transfers take default routes; where a rank has several NICs to itself, the one of these that leaves by the NIC
    that the channel picks (:mod:`coppice.program.dialects.thread_blocks.nics`).

    Returns:
        Transfers without steps if an order of rows says it all; otherwise, as where two ranks exchange what they
        have, with the fewest steps.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.dialects.thread_blocks.lower import lower_to_program
        >>> from coppice.topology.presets import preset
        >>> ring = preset("ring", gpus=4)
        >>> made = plan(ring, "all_gather").plan
        >>> to_schedule(lower_to_program(made.body), ring).num_transfers
        24
    """
    check_ranks(program, topology)
    findings = Findings()
    messages = check_structure(program, findings)
    if messages is None:
        raise InputError(f"expected a program that verifies: {findings.failures[0]}")
    try:
        order = execution_order(program, messages, depth=fifo_depth(program.protocol)).tolist()
    except Deadlock as circle:
        raise InputError(f"expected a program that verifies: {circle}") from None
    trace = _StepTrace(program, memory_of(program, in_place=program.in_place))
    trace.run(order, messages)
    routes = NicRoutes(topology)

    def path_of(move: Move) -> tuple[int, ...] | None:
        block = program.step_block[order[move.sent]]
        return routes.path(move.src, move.dst, int(program.block_channel[block]))

    return schedule_of_moves(program, topology, trace.unit_moves(), path_of=path_of)


class _StepTrace(StagedTrace):
    """Runs a program and notes the moves of every chunk."""

    def __init__(self, program: Program, memory: ProgramMemory) -> None:
        super().__init__(memory)
        self.program, self.memory = program, memory

    def run(self, order: list[int], messages: MessagePairs) -> None:
        """Carry out all steps in an order in which they can take place."""
        program, words = self.program, self.words
        src, dst = (each.tolist() for each in step_addresses(program, self.memory))
        sender = dict(zip(messages.recv.tolist(), messages.send.tolist(), strict=True))
        travelling: dict[int, tuple[int, list[int]]] = {}
        at: list[int] = program.step_rank.tolist()
        for time, step in enumerate(order):
            op, count, here = StepOp(program.op[step]), int(program.count[step]), at[step]
            out: list[int] = []
            message: list[int] = []
            sent = origin = -1
            if op.receives:
                origin = at[sender[step]]
                sent, message = travelling.pop(sender[step])
            for k in range(count if op is not StepOp.NOP else 0):
                value = words[src[step] + k] if op.reads_src else 0
                if src[step] + k in self.staged and op in _TAKES:
                    self.take(step, here, value, src[step] + k)
                if op.receives and op.reads_src:
                    self.add(step, here, value, message[k], Move(origin, here, Op.REDUCE, sent, time))
                    value |= message[k]
                elif op.receives:
                    value = message[k]
                    self.arrive(here, value, dst[step] + k, Move(origin, here, Op.COPY, sent, time))
                elif op is StepOp.REDUCE:
                    value = self.reduce(step, here, src[step] + k, dst[step] + k, time)
                elif op is StepOp.COPY and (waiting := self.staged.get(src[step] + k)):
                    self.staged[dst[step] + k] = waiting
                if op.sends:
                    if self.held.get((here, self.chunk_of(value))) != value:
                        raise self.strange(step)
                    out.append(value)
                if op.writes_dst:
                    words[dst[step] + k] = value
            if op.sends:
                travelling[step] = (time, out)

    def strange(self, actor: int) -> InputError:
        """The error for a step that handles another value than the one of its rank."""
        return self.several_values(step_name(self.program, actor))
