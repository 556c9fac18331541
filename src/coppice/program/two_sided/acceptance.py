"""A quick answer for large programs: everything is right, or look more closely.

The same execution as in :mod:`coppice.program.two_sided.contents`, but of whole waves of steps at a time, with
arrays instead of values: each slot holds the number of a chunk and the number of a set of contributors, and sets get
numbers as they come up. It says nothing about what is wrong; whatever is not right is run again, slowly, to be told
in words.

Steps of one wave do not wait for each other. So it is only for programs without races: then no two of them use the
same slot while one of them writes it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from coppice.program.memory import EVERYONE, Buffer, ProgramMemory, end_columns, start_columns
from coppice.program.two_sided.program import Program, StepOp
from coppice.program.two_sided.structure import MessagePairs, step_addresses
from coppice.rows import first_rows, positions

__all__ = ["accepts"]

_Ints = NDArray[np.int64]
_Value = tuple[_Ints, _Ints]
"""(chunk, number of the set of contributors), of some slots."""


def accepts(
    program: Program, memory: ProgramMemory, messages: MessagePairs, waves: Iterable[NDArray[np.int64]]
) -> int | None:
    """Carry out a program, and judge the outcome.

    Args:
        program: A program of sound structure without races.
        memory: Its slots.
        messages: Its messages.
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
