"""Execution order of a two-sided program with bounded FIFOs, or its deadlock cycle.

A step takes place once the one before it in its thread block has, once all that it depends on have, once its message
was sent (if it receives), and once its connection has room (if it sends): with depth d, message n is sent after
message n - d was received. No step has a choice, and no step takes away what another one waits for. So if one order
comes to an end, all do, and if one deadlocks, all deadlock at the same steps. A greater depth only takes waits
away: what comes to an end with depth d does so with every greater depth.

Steps are judged whole, or in the parts that a runtime cuts them into: it sends as many slots in one message as fit into
its buffers. A step of more slots becomes several messages, one after the other, and takes that much more room on its
connection; a step that receives and sends does so part by part. Another step that depends on it waits for the last of
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.structure import MessagePairs, step_name
from coppice.program.order import Deadlock, circle_from, levels, waits_in_words
from coppice.rows import nth_in_run, offsets, ranges

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class StepParts(Brief):
    """Parts of steps, with dependencies."""

    step: _Ints  # Step that each part is of (int64)
    block_start: _Ints  # First part of each thread block, and the number of all parts (int64)
    # Part p waits for the parts in rows `dep_start[p] .. dep_start[p + 1] - 1` of the next column (int64).
    dep_start: _Ints
    dep_target: _Ints  # Part that is waited for (int64)
    send: _Ints  # Part that sends each message, by (connection, place on it) (int64)
    recv: _Ints  # Part that receives it (int64)
    place: _Ints  # Place on its connection, from 0 (int64)

    @property
    def number(self) -> int:
        """Number of parts."""
        return len(self.step)


def parts_of(program: Program, messages: MessagePairs, *, together: int | None = None) -> StepParts:
    """Parts of all steps.

    Args:
        together: Slots that fit into one message; None: all of a step.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.dialects.thread_blocks.lower import lower_to_program
        >>> from coppice.program.dialects.thread_blocks.structure import message_pairs
        >>> from coppice.schedule.verification.report import Findings
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("star", gpus=3), collective=Collective.BROADCAST, root=0)).plan
        >>> program = lower_to_program(made.body, channels=1)
        >>> pairs = message_pairs(program, Findings())
        >>> parts_of(program, pairs).number == program.num_steps
        True
    """
    if together is None or together >= int(program.count.max(initial=1)):
        return StepParts(
            np.arange(program.num_steps),
            program.step_start,
            program.dep_start,
            program.dep_target,
            messages.send,
            messages.recv,
            messages.place,
        )
    number = -(-program.count.astype(np.int64) // together)
    number[~(program.sends | program.receives)] = 1
    start = offsets(number)
    pieces = number[messages.send]
    connection = np.repeat(np.cumsum(messages.place == 0), pieces)
    waits = np.zeros(int(start[-1]), dtype=np.int64)
    waits[start[:-1]] = np.diff(
        program.dep_start
    )  # the first part of a step waits for all that the step waits for
    return StepParts(
        np.repeat(np.arange(program.num_steps), number),
        start[program.step_start],
        offsets(waits),
        start[program.dep_target + 1] - 1,
        ranges(start[messages.send], pieces),
        ranges(start[messages.recv], pieces),
        nth_in_run(connection),
    )


_LONGEST_PAUSE = 8


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
