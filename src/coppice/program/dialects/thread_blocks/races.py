"""Data races of a two-sided program, described, and the repair of sends that complete too early.

Two steps race if they use a slot, one of them writes it, and nothing puts them in order. Without a race, all orders of
execution give the same result, so that one of them stands for all.

Where a send counts as done too early (``unroll``), the remedy is a step with a barrier at its end that changes nothing:
a copy of a slot that was sent onto itself, right behind the send. What waited for the send waits for the copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.thread_blocks.cutting import Buffers, fifo_depth
from coppice.program.dialects.thread_blocks.order import execution_order
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.dialects.thread_blocks.structure import MessagePairs, check_structure, step_name
from coppice.program.dialects.thread_blocks.unroll import early_sends, unroll
from coppice.program.judge import Judgement
from coppice.program.memory import Buffer, ProgramMemory, memory_of
from coppice.program.order import Deadlock
from coppice.schedule.verification.report import Findings

_Ints = NDArray[np.int64]


class StepRaces(NamedTuple):
    """Racing pairs of steps."""

    first: _Ints  # The earlier step (row) of each
    second: _Ints  # The later one
    address: _Ints  # An address that both use

    def without(self, others: StepRaces) -> StepRaces:
        """Pairs that are not in another set."""
        known = set(zip(others.first.tolist(), others.second.tolist(), strict=True))
        pairs = zip(self.first.tolist(), self.second.tolist(), strict=True)
        kept = np.array([pair not in known for pair in pairs], dtype=np.bool_)
        return StepRaces(self.first[kept], self.second[kept], self.address[kept])


def races_of(judgement: Judgement) -> StepRaces:
    """Data races by steps."""
    actor, conflicts, races = judgement.execution.accesses.actor, judgement.conflicts, judgement.races
    first, second = actor[conflicts.first[races]], actor[conflicts.second[races]]
    _, rows = np.unique(first * (int(actor.max(initial=0)) + 1) + second, return_index=True)
    return StepRaces(first[rows], second[rows], conflicts.address[races[rows]])


def written_early(
    program: Program, memory: ProgramMemory, messages: MessagePairs, order: _Ints, early: NDArray[np.bool_]
) -> StepRaces:
    """Slots written while an early send may still read them.

    Args:
        order: An order in which its steps can take place.
        early: Sends that count as done before all their threads have read.
    """
    found = races_of(Judgement(unroll(program, messages, order, memory, early), memory))
    rows = early[found.first]
    return StepRaces(*(column[rows] for column in found))


def race_sentence(program: Program, memory: ProgramMemory, races: StepRaces, row: int) -> str:
    """Describe a data race."""
    one, other = int(races.first[row]), int(races.second[row])
    slot = _slot_name(program, memory, other, int(races.address[row]))
    return (
        f"{step_name(program, one)} and {step_name(program, other)} both use {slot}, one of them writes it, "
        "and nothing puts them in order: let one wait for the other."
    )


def early_sentence(program: Program, memory: ProgramMemory, races: StepRaces, row: int) -> str:
    """Describe a write while an early send may still read."""
    one, other = int(races.first[row]), int(races.second[row])
    return (
        f"{step_name(program, other)} writes {_slot_name(program, memory, other, int(races.address[row]))} while "
        f"threads of {step_name(program, one)} may still read it: with {program.protocol}, a send of RCCL (ROCm 6.0 "
        "and later) counts as done before all its threads have read; put a copy of the slot onto itself behind the "
        "send and wait for that, or use Simple or LL128."
    )


def _slot_name(program: Program, memory: ProgramMemory, step: int, address: int) -> str:
    """The slot that ``step`` uses at an address."""
    rank = program.step_rank[step]
    op = StepOp(program.op[step])
    for used, buffer, offset in (
        (op.writes_dst, program.dst_buffer, program.dst_offset),
        (op.reads_src, program.src_buffer, program.src_offset),
    ):
        place = address - int(memory.base[buffer[step], rank])
        if used and 0 <= place - int(offset[step]) < int(program.count[step]):
            return f"slot {place} of the {Buffer(buffer[step]).name.lower()}"
    return "a slot"


def settled(program: Program, buffers: Buffers) -> Program:
    """The program without early completion of sends that others wait for.

    Returns:
        The program itself where nothing is to be done.
    """
    needed = np.zeros(program.num_steps, dtype=np.bool_)
    needed[_awaited_early(program, buffers)] = True
    if not needed.any():
        return program
    before = np.concatenate([[0], np.cumsum(needed)])  # copies before each step
    # Row of each step, and behind it the row of its copy.
    row = np.arange(program.num_steps) + before[:-1]
    total = program.num_steps + int(before[-1])
    source = np.empty(total, dtype=np.int64)
    source[row] = np.arange(program.num_steps)
    copies = row[needed] + 1
    source[copies] = np.flatnonzero(needed)
    columns = {
        name: getattr(program, name)[source]
        for name in ("op", "src_buffer", "src_offset", "dst_buffer", "dst_offset", "count")
    }
    columns["op"][copies] = StepOp.COPY
    columns["dst_buffer"][copies] = columns["src_buffer"][copies]
    columns["dst_offset"][copies] = columns["src_offset"][copies]
    columns["count"][copies] = 1
    target = program.dep_target
    first = program.step_start[program.dep_target_block]
    moved = row[target] + needed[target] - (first + before[first])
    waits = np.zeros(total, dtype=np.int64)
    waits[row] = np.diff(program.dep_start)
    return replace(
        program,
        step_start=program.step_start + before[program.step_start],
        dep_start=np.concatenate([[0], np.cumsum(waits)]),
        dep_step=moved.astype(np.int32),
        **columns,
    )


def _awaited_early(program: Program, buffers: Buffers) -> NDArray[np.int64]:
    """Early sends whose slots are written while they may still be read; none of a program that is not sound."""
    early = early_sends(program, buffers)
    messages = check_structure(program, Findings()) if early.any() else None
    if messages is None:
        return np.zeros(0, dtype=np.int64)
    try:
        order = execution_order(program, messages, depth=fifo_depth(program.protocol))
    except Deadlock:
        return np.zeros(0, dtype=np.int64)
    ways = [way for way in (True, False) if (program.in_place if way else program.out_of_place)]
    memories = (memory_of(program, in_place=way) for way in ways)
    return np.unique(
        np.concatenate([written_early(program, memory, messages, order, early).first for memory in memories])
    )
