"""An order in which a program can be carried out with connections of finite depth, or the circle in which it waits.

A step takes place once the one before it in its thread block has, once all that it depends on have, once its message
was sent (if it receives), and once its connection has room (if it sends): with depth d, message n is sent after
message n - d was received. No step has a choice, and no step takes away what another one waits for. So if one order
comes to an end, all do, and if one stands still, all stand still at the same steps. A greater depth only takes waits
away: what comes to an end with depth d does so with every greater depth.
"""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np

from coppice.program.program import Program
from coppice.program.structure import Messages, step_name

__all__ = ["Stuck", "execution_order"]

_SHOWN = 8


class Stuck(Exception):  # noqa: N818  (an outcome, caught by the verifier)
    """The program stands still; the message is the circle of waiting, a sentence."""


def execution_order(
    program: Program, messages: Messages, *, depth: int, seed: int | None = None
) -> list[int]:
    """All steps in an order in which they can take place.

    Args:
        program: A program of sound structure.
        messages: Its messages.
        depth: Messages that a connection holds, 1 or more.
        seed: Take a random order rather than one in which thread blocks run as far as they can.

    Raises:
        Stuck: If it stands still.
    """
    return _Run(program, messages, depth).order(seed)


class _Run:
    def __init__(self, program: Program, messages: Messages, depth: int) -> None:
        self.program = program
        steps = program.num_steps
        sent_by = np.full(steps, -1, dtype=np.int64)
        sent_by[messages.recv] = messages.send
        room_by = np.full(steps, -1, dtype=np.int64)
        late = np.flatnonzero(messages.place >= depth)
        room_by[messages.send[late]] = messages.recv[late - depth]
        self.sent_by: list[int] = sent_by.tolist()
        self.room_by: list[int] = room_by.tolist()
        self.dep_start: list[int] = program.dep_start.tolist()
        waiting = program.step_block[np.repeat(np.arange(steps), np.diff(program.dep_start))]
        target = program.rank_start[program.block_rank[waiting]] + program.dep_block
        self.deps: list[int] = (program.step_start[target] + program.dep_step).tolist()
        self.next: list[int] = program.step_start[:-1].tolist()
        self.end: list[int] = program.step_start[1:].tolist()
        self.done = bytearray(steps)

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

    def order(self, seed: int | None) -> list[int]:
        """All steps in order.

        Raises:
            Stuck: If the program stands still.
        """
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
        if len(found) < self.program.num_steps:
            raise Stuck(self._circle())
        return found

    def _circle(self) -> str:
        """The circle of waiting in words."""
        block = next(b for b, (step, end) in enumerate(zip(self.next, self.end, strict=True)) if step < end)
        place: dict[int, int] = {}
        walk: list[int] = []
        while block not in place:
            place[block] = len(walk)
            walk.append(block)
            block = int(self.program.step_block[self.blocker(self.next[block])])
        walk = [*walk[place[block] :], block]
        waits = [
            f"{self._reason(self.next[a])} {step_name(self.program, self.blocker(self.next[a]))}"
            + (
                ""
                if self.blocker(self.next[a]) == self.next[b]
                else f", behind its step {self.program.step_place(self.next[b])[2]}"
            )
            for a, b in pairwise(walk)
        ]
        if len(waits) > _SHOWN:
            waits = [*waits[: _SHOWN - 1], f".. ({len(waits) - _SHOWN} more) ..", waits[-1]]
        return f"{step_name(self.program, self.next[walk[0]])} {'; that '.join(waits)}."

    def _reason(self, step: int) -> str:
        earlier = self.blocker(step)
        if earlier == self.sent_by[step]:
            return "waits for the message of"
        if earlier == self.room_by[step]:
            return "waits for room on its connection, until"
        return "depends on"
