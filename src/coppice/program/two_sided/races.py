"""Data races of a two-sided program, described: unordered accesses to a slot, one of them a write.

Without a race, all orders of execution give the same result, so that one of them stands for all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice.program.judge import Judgement
from coppice.program.memory import Buffer, ProgramMemory
from coppice.program.two_sided.program import Program, StepOp
from coppice.program.two_sided.structure import MessagePairs, step_name
from coppice.program.two_sided.unroll import unroll

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
