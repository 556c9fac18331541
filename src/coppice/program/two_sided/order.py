"""An order in which a two-sided program can run with FIFOs of finite depth, or the circle of waiting that deadlocks it.

A step takes place once the one before it in its thread block has, once all that it depends on have, once its message
was sent (if it receives), and once its connection has room (if it sends): with depth d, message n is sent after
message n - d was received. No step has a choice, and no step takes away what another one waits for. So if one order
comes to an end, all do, and if one stands still, all stand still at the same steps. A greater depth only takes waits
away: what comes to an end with depth d does so with every greater depth.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.program.deadlock import Deadlock, circle_from, waits_in_words
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.structure import MessagePairs, step_name
from coppice.rows import grouped, rows_of_groups

__all__ = ["StepOrder", "execution_order", "find_order"]

_PATIENCE = 256
_NARROW = 16


@dataclass(frozen=True, eq=False, repr=False)
class StepOrder(Brief):
    """All steps in an order in which they can take place.

    Attributes:
        waves: Steps that can take place at once, wave after wave (int64 each).
        rest: Steps that follow, one after the other.
    """

    waves: tuple[NDArray[np.int64], ...]
    rest: list[int]

    @property
    def steps(self) -> list[int]:
        """All of them one after the other."""
        found: list[int] = np.concatenate([np.zeros(0, dtype=np.int64), *self.waves]).tolist()
        return found + self.rest


def execution_order(
    program: Program, messages: MessagePairs, *, depth: int, seed: int | None = None
) -> list[int]:
    """All steps one after the other; see :func:`find_order`."""
    return find_order(program, messages, depth=depth, seed=seed).steps


def find_order(program: Program, messages: MessagePairs, *, depth: int, seed: int | None = None) -> StepOrder:
    """All steps in an order in which they can take place.

    Args:
        program: A program of sound structure.
        messages: Its messages.
        depth: Messages that a connection holds, 1 or more.
        seed: Take a random order, one step after the other, rather than one in waves.

    Raises:
        Deadlock: If it stands still.
    """
    return _StepRun(program, messages, depth).order(seed)


class _StepRun:
    """One run of a program: what every step waits for, and which steps are done.

    Steps that wait for nothing any more take place together, in waves. Where waves are many and narrow, thread blocks
    run one after the other instead, each as far as it can.
    """

    def __init__(self, program: Program, messages: MessagePairs, depth: int) -> None:
        self.program = program
        steps = program.num_steps
        self._sent_by = np.full(steps, -1, dtype=np.int64)
        self._sent_by[messages.recv] = messages.send
        self._room_by = np.full(steps, -1, dtype=np.int64)
        beyond = np.flatnonzero(messages.place >= depth)
        self._room_by[messages.send[beyond]] = messages.recv[beyond - depth]
        self._waves: list[NDArray[np.int64]] = []

    def order(self, seed: int | None) -> StepOrder:
        """All steps in order.

        Raises:
            Deadlock: If the program stands still.
        """
        if seed is None:
            self._in_waves()
        found = sum(map(len, self._waves))
        rest = self._one_by_one(seed) if found < self.program.num_steps else []
        if found + len(rest) < self.program.num_steps:
            raise Deadlock(self._circle())
        return StepOrder(tuple(self._waves), rest)

    def _in_waves(self) -> None:
        """Carry out whole waves, until nothing can take place or waves are too narrow to be worth it."""
        steps = self.program.num_steps
        # Each step's successors: one in its thread block, one that takes its message, one that takes its room; the
        # place behind the last step stands for none.
        successors = np.full((3, steps + 1), steps, dtype=np.int64)
        begins = np.zeros(steps + 1, dtype=np.bool_)
        begins[self.program.step_start] = True
        inner = np.flatnonzero(~begins)
        successors[0, inner - 1] = inner
        left = np.bincount(self.program.dep_waiter, minlength=steps + 1)
        left[inner] += 1
        for row, earlier in ((1, self._sent_by), (2, self._room_by)):
            later = np.flatnonzero(earlier >= 0)
            successors[row, earlier[later]] = later
            left[later] += 1
        left[steps] = np.iinfo(np.int64).max
        waits, start = grouped(self.program.dep_target, steps)
        waiters = self.program.dep_waiter[waits]
        mark = np.zeros(steps + 1, dtype=np.int64)
        ready = np.flatnonzero(left == 0)
        waves = 0
        done = 0
        while len(ready):
            self._waves.append(ready)
            waves, done = waves + 1, done + len(ready)
            if waves % _PATIENCE == 0 and done < waves * _NARROW:
                return
            reached = np.concatenate([successors[:, ready].ravel(), waiters[rows_of_groups(start, ready)[0]]])
            np.subtract.at(left, reached, 1)
            reached = reached[left[reached] == 0]
            mark[reached] = np.arange(len(reached))
            ready = reached[mark[reached] == np.arange(len(reached))]

    def _lists(self) -> None:
        """The same as lists, which are quicker to look into one at a time."""
        program = self.program
        self.sent_by: list[int] = self._sent_by.tolist()
        self.room_by: list[int] = self._room_by.tolist()
        self.dep_start: list[int] = program.dep_start.tolist()
        self.deps: list[int] = program.dep_target.tolist()
        done = np.concatenate([np.zeros(0, dtype=np.int64), *self._waves])
        passed = np.bincount(program.step_block[done], minlength=program.num_blocks)
        self.next: list[int] = (program.step_start[:-1] + passed).tolist()
        self.end: list[int] = program.step_start[1:].tolist()
        marks = np.zeros(program.num_steps, dtype=np.uint8)
        marks[done] = 1
        self.done = bytearray(marks.tobytes())

    def blocker(self, step: int) -> int:
        """A step that ``step`` still waits for, or -1."""
        done = self.done
        for earlier in (self.sent_by[step], self.room_by[step]):
            if earlier >= 0 and not done[earlier]:
                return earlier
        for row in range(self.dep_start[step], self.dep_start[step + 1]):
            if not done[self.deps[row]]:
                return self.deps[row]
        return -1

    def _one_by_one(self, seed: int | None) -> list[int]:
        """Go on after the waves, as long as anything can."""
        self._lists()
        found: list[int] = []
        waiting: dict[int, list[int]] = {}
        ready = list(range(len(self.next)))[::-1]
        pick = None if seed is None else random.Random(seed)
        while ready:
            if pick is not None:
                place = pick.randrange(len(ready))
                ready[place], ready[-1] = ready[-1], ready[place]
            block = ready.pop()
            step, end = self.next[block], self.end[block]
            while step < end:
                earlier = self.blocker(step)
                if earlier >= 0:
                    waiting.setdefault(earlier, []).append(block)
                    break
                self.done[step] = 1
                found.append(step)
                if step in waiting:
                    ready.extend(waiting.pop(step))
                step += 1
                if pick is not None and step < end:
                    ready.append(block)
                    break
            self.next[block] = step
        return found

    def _circle(self) -> str:
        """The circle of waiting in words."""
        block = next(b for b, (step, end) in enumerate(zip(self.next, self.end, strict=True)) if step < end)
        walk = circle_from(block, lambda b: int(self.program.step_block[self.blocker(self.next[b])]))
        waits = [
            f"{self._reason(self.next[a])} {step_name(self.program, self.blocker(self.next[a]))}"
            + (
                ""
                if self.blocker(self.next[a]) == self.next[b]
                else f", behind its step {self.program.step_place(self.next[b])[2]}"
            )
            for a, b in pairwise(walk)
        ]
        return waits_in_words(step_name(self.program, self.next[walk[0]]), waits)

    def _reason(self, step: int) -> str:
        earlier = self.blocker(step)
        if earlier == self.sent_by[step]:
            return "waits for the message of"
        if earlier == self.room_by[step]:
            return "waits for room on its connection, until"
        return "depends on"
