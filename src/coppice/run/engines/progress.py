"""Dataflow execution of a program: a row starts when its predecessors are complete, without step barriers.

Rows open in step order, so many steps at a time as the window is wide: it bounds the messages under way and the memory
for arrivals. What a step can start starts before the next one opens, so that links have work while the rest is posted.
A program that is free of deadlock step by step is so with any window, since the rows of the first step that is not
complete are always open.

What is added up arrives in memory of its own, for which nothing has to be waited. So may what is only received: where
a sender holds messages back until the receiver is known to be ready, a receive that waits until its memory is free
comes too late by a round trip, behind all that the connection carries. For the same reason a step's receives
start before its sends.
"""

from __future__ import annotations

import os
import time
from collections import deque
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.rank.program import RankProgram, RowKind
from coppice.rows import first_rows
from coppice.run.engines.interpreter import RankMemory
from coppice.run.errors import TimedOut

WINDOW = 4
_MANY, _LEAST_WINDOW = 24, 2
"""With so many messages under way, at most so many steps are open."""
_SPINS = 10
_YIELDS = 50
_FIRST_NAP_S, _LONGEST_NAP_S = 20e-6, 500e-6
_CHECK_S = 0.02


class Transport(Protocol):
    """Start messages and report their completion."""

    def start(self, row: int) -> None:
        """Start the message of a row."""

    def completed(self) -> list[int]:
        """Rows whose messages have completed since the last call; empty if none has."""

    def look_around(self) -> None:
        """Check for failures; called periodically while nothing completes."""


class ExecutionOrder:
    """Buffer-independent part of a program: dependencies and receive offsets.

    Args:
        program: The program.
        window: Steps that are open at a time.
        early: RECV rows that would have to wait for their memory arrive in staging memory, too.
    """

    def __init__(self, program: RankProgram, window: int = WINDOW, *, early: bool = False) -> None:
        rows = program.num_rows
        self.program, self.window = program, window
        self.waits: list[int] = np.diff(program.predecessors_start).tolist()
        waiting = np.repeat(np.arange(rows), np.diff(program.predecessors_start))
        by_predecessor = np.argsort(program.predecessors, kind="stable")
        ends = np.searchsorted(program.predecessors[by_predecessor], np.arange(rows + 1)).tolist()
        waiters = waiting[by_predecessor].tolist()
        self.dependents: list[list[int]] = [waiters[ends[row] : ends[row + 1]] for row in range(rows)]
        self.kind: list[int] = program.kind.tolist()
        bounds = program.step_start.tolist()
        self.steps = [range(begin, end) for begin, end in pairwise(bounds)]
        self.step_of = np.repeat(np.arange(len(self.steps)), np.diff(program.step_start)).tolist()
        early_receives = (program.kind == RowKind.RECV) & (np.diff(program.predecessors_start) > 0) & early
        staged = (program.kind == RowKind.RECV_REDUCE) | early_receives
        self.staged: list[bool] = staged.tolist()  # Whether each row's message arrives in staging memory
        arrives = np.where(staged, program.length, 0)
        before = first_rows(arrives)
        inside = before - before[program.step_start[:-1]][self.step_of] if rows else before
        longest = int((inside + arrives).max(initial=0))
        lanes = np.array(self.step_of, dtype=np.int64) % window
        self._offset: list[int] = (inside + lanes * longest).tolist()
        self._length: list[int] = program.length.tolist()
        self.staging_elements = window * longest  # Elements of that memory

    def arrival(self, row: int, staging: NDArray[Any]) -> NDArray[Any]:
        """Receive buffer of a staged row's message."""
        return staging[self._offset[row] : self._offset[row] + self._length[row]]


def carry_out(
    order: ExecutionOrder,
    memory: RankMemory,
    staging: NDArray[Any],
    transport: Transport,
    *,
    timeout_s: float,
) -> None:
    """Execute the program of ``order`` on ``memory``.

    Args:
        order: Made of the program, used any number of times.
        memory: The rank's buffers.
        staging: ``order.staging_elements`` elements.
        transport: Moves the messages.
        timeout_s: Longest time without any progress, in seconds.

    Raises:
        TimedOut: If nothing completed for that long.
        RunError: As the transport finds.
    """
    waits, kinds, dependents, step_of = list(order.waits), order.kind, order.dependents, order.step_of
    staged = order.staged
    left = [len(rows) for rows in order.steps]
    arrived = bytearray(len(kinds))
    opened = frontier = under_way = 0
    ready: deque[int] = deque()

    def complete(row: int) -> None:
        left[step_of[row]] -= 1
        for waiter in dependents[row]:
            waits[waiter] -= 1
            open_now = not waits[waiter] and step_of[waiter] < opened
            if open_now and (not staged[waiter] or arrived[waiter]):
                ready.append(waiter)

    idle = _PollBackoff(order.program, transport, timeout_s)
    while True:
        while ready:
            row = ready.popleft()
            if kinds[row] == RowKind.COPY:
                memory.copy(row)
                complete(row)
            elif staged[row]:
                memory.take(row, order.arrival(row, staging))
                complete(row)
            else:
                transport.start(row)
                under_way += 1
        while frontier < opened and not left[frontier]:
            frontier += 1
        if frontier == len(left):
            break
        most = order.window if under_way < _MANY else _LEAST_WINDOW
        if opened < min(frontier + most, len(left)):
            for row in order.steps[opened]:
                if staged[row] or (kinds[row] == RowKind.RECV and not waits[row]):
                    transport.start(row)
                    under_way += 1
                elif not waits[row]:
                    ready.append(row)
            opened += 1
            continue
        done = transport.completed() if under_way else []
        if not done:
            idle.wait()
            continue
        idle.over()
        under_way -= len(done)
        for row in done:
            if not staged[row]:
                complete(row)
            elif waits[row]:
                arrived[row] = 1
            else:
                ready.append(row)
    memory.finish()


class _PollBackoff:
    """Back off between polls, up to the give-up timeout: spin, then yield the core, then sleep."""

    def __init__(self, program: RankProgram, transport: Transport, timeout_s: float) -> None:
        self._program, self._transport, self._timeout_s = program, transport, timeout_s
        self._looks = 0
        self._since = self._checked = 0.0

    def over(self) -> None:
        """Something completed."""
        self._looks = 0

    def wait(self) -> None:
        """Nothing completed."""
        self._looks += 1
        if self._looks < _SPINS:
            return
        now = time.monotonic()
        if self._looks == _SPINS:
            self._since = self._checked = now
        if self._looks < _SPINS + _YIELDS:
            os.sched_yield()
        else:  # whoever waits for a slow network leaves the cores to those that can go on
            naps = self._looks - _SPINS - _YIELDS
            time.sleep(min(_LONGEST_NAP_S, _FIRST_NAP_S * (1 + naps)))
        if now - self._checked > _CHECK_S:
            self._checked = now
            self._transport.look_around()
            if now - self._since > self._timeout_s:
                program = self._program
                raise TimedOut(
                    f"rank {program.rank} waited {self._timeout_s:g} s in {program.collective} without a message "
                    "from any rank: see what the other ranks do, or allow more time."
                )
