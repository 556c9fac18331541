"""An order in which a two-sided program can run with FIFOs of finite depth, or the circle of waiting that deadlocks it.

A step takes place once the one before it in its thread block has, once all that it depends on have, once its message
was sent (if it receives), and once its connection has room (if it sends): with depth d, message n is sent after
message n - d was received. No step has a choice, and no step takes away what another one waits for. So if one order
comes to an end, all do, and if one stands still, all stand still at the same steps. A greater depth only takes waits
away: what comes to an end with depth d does so with every greater depth.

Steps are judged whole, or in the parts that a runtime cuts them into (:mod:`coppice.program.two_sided.parts`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.program.deadlock import Deadlock, circle_from, waits_in_words
from coppice.program.two_sided.parts import StepParts, parts_of
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.structure import MessagePairs, step_name
from coppice.rows import grouped, offsets, rows_of_groups

_PATIENCE = 256
_NARROW = 16


@dataclass(frozen=True, eq=False, repr=False)
class StepOrder(Brief):
    """All steps in an order in which they can take place."""

    waves: tuple[NDArray[np.int64], ...]  # Steps that can take place at once, wave after wave (int64 each)
    rest: list[int]  # Steps that follow, one after the other

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
        depth: Messages that a connection holds, 1 or more.
        seed: Take a random order, one step after the other, rather than one in waves.
    """
    return _StepRun(program, parts_of(program, messages), depth).order(seed)


def check_in_parts(program: Program, messages: MessagePairs, *, depth: int, together: int) -> None:
    """Carry a program out with steps cut into messages.

    Args:
        together: Slots that fit into one message.
    """
    _StepRun(program, parts_of(program, messages, together=together), depth).order(None)


class _StepRun:
    """One run of the parts of a program's steps: what each waits for, and which are done.

    Parts that wait for nothing any more take place together, in waves. Where waves are many and narrow, thread blocks
    run one after the other instead, each as far as it can.
    """

    def __init__(self, program: Program, parts: StepParts, depth: int) -> None:
        self.program, self.parts = program, parts
        self._sent_by = np.full(parts.number, -1, dtype=np.int64)
        self._sent_by[parts.recv] = parts.send
        self._room_by = np.full(parts.number, -1, dtype=np.int64)
        beyond = np.flatnonzero(parts.place >= depth)
        self._room_by[parts.send[beyond]] = parts.recv[beyond - depth]
        self._waves: list[NDArray[np.int64]] = []

    def order(self, seed: int | None) -> StepOrder:
        """All parts in order."""
        if seed is None:
            self._in_waves()
        found = sum(map(len, self._waves))
        rest = self._one_by_one(seed) if found < self.parts.number else []
        if found + len(rest) < self.parts.number:
            raise Deadlock(self._circle(), stuck=self._stuck())
        return StepOrder(tuple(self._waves), rest)

    def _in_waves(self) -> None:
        """Carry out whole waves, until nothing can take place or waves are too narrow to be worth it."""
        parts, number = self.parts, self.parts.number
        # Each part's successors: one in its thread block, one that takes its message, one that takes its room; the
        # place behind the last part stands for none.
        successors = np.full((3, number + 1), number, dtype=np.int64)
        begins = np.zeros(number + 1, dtype=np.bool_)
        begins[parts.block_start] = True
        inner = np.flatnonzero(~begins)
        successors[0, inner - 1] = inner
        left = np.append(np.diff(parts.dep_start), 0)
        left[inner] += 1
        for row, earlier in ((1, self._sent_by), (2, self._room_by)):
            later = np.flatnonzero(earlier >= 0)
            successors[row, earlier[later]] = later
            left[later] += 1
        left[number] = np.iinfo(np.int64).max
        waits, start = grouped(parts.dep_target, number)
        waiters = np.repeat(np.arange(number), np.diff(parts.dep_start))[waits]
        mark = np.zeros(number + 1, dtype=np.int64)
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
        parts = self.parts
        self.sent_by: list[int] = self._sent_by.tolist()
        self.room_by: list[int] = self._room_by.tolist()
        self.dep_start: list[int] = parts.dep_start.tolist()
        self.deps: list[int] = parts.dep_target.tolist()
        marks = np.zeros(parts.number, dtype=np.uint8)
        for wave in self._waves:
            marks[wave] = 1
        passed = offsets(marks)
        first, end = parts.block_start[:-1], parts.block_start[1:]
        self.next: list[int] = (first + passed[end] - passed[first]).tolist()
        self.end: list[int] = end.tolist()
        self.done = bytearray(marks.tobytes())

    def blocker(self, part: int) -> int:
        """A part that ``part`` still waits for, or -1."""
        done = self.done
        for earlier in (self.sent_by[part], self.room_by[part]):
            if earlier >= 0 and not done[earlier]:
                return earlier
        for row in range(self.dep_start[part], self.dep_start[part + 1]):
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
            part, end = self.next[block], self.end[block]
            while part < end:
                earlier = self.blocker(part)
                if earlier >= 0:
                    waiting.setdefault(earlier, []).append(block)
                    break
                self.done[part] = 1
                found.append(part)
                if part in waiting:
                    ready.extend(waiting.pop(part))
                part += 1
                if pick is not None and part < end:
                    ready.append(block)
                    break
            self.next[block] = part
        return found

    def _stuck(self) -> list[int]:
        """The step at which each thread block stands that is not at its end."""
        return [
            int(self.parts.step[part]) for part, end in zip(self.next, self.end, strict=True) if part < end
        ]

    def _circle(self) -> str:
        """The circle of waiting in words."""
        step = self.parts.step
        block_of = self.program.step_block
        block = next(b for b, (part, end) in enumerate(zip(self.next, self.end, strict=True)) if part < end)
        walk = circle_from(block, lambda b: int(block_of[step[self.blocker(self.next[b])]]))
        waits = []
        for a, b in pairwise(walk):
            awaited, reached = int(step[self.blocker(self.next[a])]), int(step[self.next[b]])
            behind = "" if awaited == reached else f", behind its step {self.program.step_place(reached)[2]}"
            waits.append(f"{self._reason(self.next[a])} {step_name(self.program, awaited)}{behind}")
        return waits_in_words(step_name(self.program, int(step[self.next[walk[0]]])), waits)

    def _reason(self, part: int) -> str:
        earlier = self.blocker(part)
        if earlier == self.sent_by[part]:
            return "waits for the message of"
        if earlier == self.room_by[part]:
            return "waits for room on its connection, until"
        return "depends on"
