"""Execution order of a two-sided program with bounded FIFOs, or its deadlock cycle.

A step takes place once the one before it in its thread block has, once all that it depends on have, once its message
was sent (if it receives), and once its connection has room (if it sends): with depth d, message n is sent after
message n - d was received. No step has a choice, and no step takes away what another one waits for. So if one order
comes to an end, all do, and if one deadlocks, all deadlock at the same steps. A greater depth only takes waits
away: what comes to an end with depth d does so with every greater depth.

Steps are judged whole, or in the parts that a runtime cuts them into (:mod:`coppice.program.two_sided.parts`).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.program.deadlock import Deadlock, circle_from, waits_in_words
from coppice.program.order import levels
from coppice.program.two_sided.parts import StepParts, parts_of
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.structure import MessagePairs, step_name

_LONGEST_PAUSE = 8
_Ints = NDArray[np.int64]


def execution_order(
    program: Program, messages: MessagePairs, *, depth: int, seed: int | None = None
) -> _Ints:
    """All steps in an executable order.

    Args:
        depth: Messages that a connection holds, 1 or more.
        seed: Take a random order, in which every step waits a while longer than it has to.
    """
    return _StepRun(program, parts_of(program, messages), depth).order(seed)


def check_in_parts(program: Program, messages: MessagePairs, *, depth: int, together: int) -> None:
    """Execute a program with steps cut into messages.

    Args:
        together: Slots that fit into one message.
    """
    _StepRun(program, parts_of(program, messages, together=together), depth).order(None)


class _StepRun:
    """One run of the parts of a program's steps: what each waits for, and which are done."""

    def __init__(self, program: Program, parts: StepParts, depth: int) -> None:
        self.program, self.parts = program, parts
        self.sent_by = np.full(parts.number, -1, dtype=np.int64)
        self.sent_by[parts.recv] = parts.send
        self.room_by = np.full(parts.number, -1, dtype=np.int64)
        beyond = np.flatnonzero(parts.place >= depth)
        self.room_by[parts.send[beyond]] = parts.recv[beyond - depth]

    def order(self, seed: int | None) -> _Ints:
        """All parts in order."""
        parts = self.parts
        begins = np.zeros(parts.number + 1, dtype=np.bool_)
        begins[parts.block_start] = True
        inner = np.flatnonzero(~begins[:-1])
        waiters = np.repeat(np.arange(parts.number), np.diff(parts.dep_start))
        room = np.flatnonzero(self.room_by >= 0)
        source = np.concatenate([inner - 1, parts.send, self.room_by[room], parts.dep_target])
        target = np.concatenate([inner, parts.recv, room, waiters])
        rng = None if seed is None else np.random.default_rng(seed)
        pause = None if rng is None else rng.integers(1, _LONGEST_PAUSE, len(source))
        level = levels(parts.number, source, target, pause)
        self.done = level >= 0
        if not self.done.all():
            raise Deadlock(self._circle(), stuck=parts.step[self._standing()].tolist())
        return (
            np.argsort(level, kind="stable") if rng is None else np.lexsort((rng.random(len(level)), level))
        )

    def _standing(self) -> _Ints:
        """The part at which each thread block stands that is not at its end."""
        left = np.flatnonzero(~self.done)
        block = np.searchsorted(self.parts.block_start, left, side="right")
        return left[np.flatnonzero(np.diff(block, prepend=-1))]

    def _blocker(self, part: int) -> int:
        """A part that ``part`` still waits for."""
        deps = self.parts.dep_target[self.parts.dep_start[part] : self.parts.dep_start[part + 1]]
        awaited = np.array([self.sent_by[part], self.room_by[part], *deps])
        return int(awaited[(awaited >= 0) & ~self.done[awaited]][0])

    def _circle(self) -> str:
        """The circle of waiting in words."""
        step, block_of = self.parts.step, self.program.step_block
        next_of = {int(block_of[step[part]]): part for part in self._standing().tolist()}
        walk = circle_from(
            next(iter(next_of)), lambda block: int(block_of[step[self._blocker(next_of[block])]])
        )
        waits = []
        for a, b in pairwise(walk):
            awaited, reached = int(step[self._blocker(next_of[a])]), int(step[next_of[b]])
            behind = "" if awaited == reached else f", behind its step {self.program.step_place(reached)[2]}"
            waits.append(f"{self._reason(next_of[a])} {step_name(self.program, awaited)}{behind}")
        return waits_in_words(step_name(self.program, int(step[next_of[walk[0]]])), waits)

    def _reason(self, part: int) -> str:
        earlier = self._blocker(part)
        if earlier == self.sent_by[part]:
            return "waits for the message of"
        if earlier == self.room_by[part]:
            return "waits for room on its connection, until"
        return "depends on"
