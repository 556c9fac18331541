"""Deadlock freedom under finite buffers.

Model of execution. A *connection* is a triple (sender, receiver, path). It is a FIFO of b slots, b >= 1, and a slot
holds one message: all rows of one step on that connection, or one row that has no step. Messages enter and leave a
connection in row order. A message is *sent* when it has been put into a slot, and *received* when its rows have been
written into the receiver's buffers, the rows of a step in row order; then its slot is free. An event takes place only
after all those that it waits for:

* a message is received after it was sent, and events of one end of a connection follow each other;
* with b slots, a message is sent after the one b places before it on its connection was received;
* a row sends what earlier rows (not those of its own step) wrote into its buffer: it waits until they are received;
* a row overwrites a buffer after earlier rows, and all rows of its own step, have sent what was there, and after
  earlier rows (not those of its own step) have been written;
* a row is sent after the rows that its column ``after`` names were received;
* a rank begins with a step when all its messages, in and out, of smaller steps are sent or received.

Every event whose predecessors have taken place can take place, so execution comes to an end if these waits have no
cycle, and stands still if they have one. Slot reuse with b slots follows from slot reuse with one and the order at the
receiving end, so b = 1 is the hardest case: what is free of cycles there is so for all b.

Theorem. Let rows without steps wait (``after``) only for earlier rows; or let all rows have steps that do not decrease,
and wait only for rows of smaller steps. Then there is no cycle. Proof: order the events by (row, sent before written),
with steps by (step, sent before written, row). Go through the list: each wait leads to a smaller event. (A connection
has one message per step at most, so that with steps slot reuse waits for a smaller step.) The order is total, so
this holds as well if a rank does one thing at a time, in this order, or shares out its connections among workers that
each do. Where the premises fail, the waits themselves are searched for a cycle.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np

from coppice.schedule.schedule import Schedule

_SHOWN = 8


def num_connections(schedule: Schedule) -> int:
    """Number of different (sender, receiver, path)."""
    pair = schedule.src.astype(np.int64) * schedule.topology.num_ranks + schedule.dst
    return len(np.unique(pair * len(schedule.path_start) + schedule.path + 1))


def find_deadlock(schedule: Schedule) -> str | None:
    """A cycle of waiting with one slot per connection, as a sentence; None if execution always comes to an end.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.presets import preset
        >>> from dataclasses import replace
        >>> from coppice.schedule.schedule import Schedule
        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> chain = Schedule(topology=preset("ring", gpus=3), collective=Collective.BROADCAST, root=0,
        ...                  slot_weight=column(1), chunk_slot=column(0), chunk_share=column(1),
        ...                  src=column(0, 1), dst=column(1, 2), chunk=column(0, 0), op=column(0, 0),
        ...                  path=column(-1, -1), step=column(-1, -1), after_start=column(0, 0, 0), after=column(),
        ...                  path_start=column(0), path_nodes=column())
        >>> find_deadlock(chain) is None
        True
        >>> print(find_deadlock(replace(chain, after_start=column(0, 1, 1), after=column(1))))
        transfers wait for each other in a circle: sending transfer 0 waits for receiving transfer 1 (its `after`), \
that for sending transfer 1 (it must be sent first), that for receiving transfer 0 (it sends what that brings), \
that for sending transfer 0 (it must be sent first).
    """
    if _row_order_suffices(schedule):
        return None
    return _BufferWaits(schedule).cycle()


def _row_order_suffices(schedule: Schedule) -> bool:
    """The premises of the theorem."""
    step = schedule.step
    waiting = np.repeat(np.arange(schedule.num_transfers), np.diff(schedule.after_start))
    if not len(step) or int(step.max()) < 0:
        return bool((schedule.after < waiting).all())
    return bool(
        int(step.min()) >= 0 and (np.diff(step) >= 0).all() and (step[schedule.after] < step[waiting]).all()
    )


class _BufferWaits:
    """The graph of waits: which events each event waits for, and why.

    Events 2 m and 2 m + 1 are the sending and the receiving of message m, later ones the ends of steps at ranks.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.src, self.dst = schedule.src.tolist(), schedule.dst.tolist()
        self.chunk, self.step = schedule.chunk.tolist(), schedule.step.tolist()
        self.path = schedule.path.tolist()
        self.message: list[int] = []  # message of each row
        self.first_row: list[int] = []  # first row of each message
        self._group()
        self.before: list[dict[int, str]] = [{} for _ in range(2 * len(self.first_row))]
        self.step_ends: list[tuple[int, int]] = []  # (rank, step) of each further event
        self._connections()
        self._data()
        self._after()
        self._steps()

    def cycle(self) -> str | None:
        """A cycle in words, or None."""
        waiting = [len(reasons) for reasons in self.before]
        following: list[list[int]] = [[] for _ in self.before]
        for event, reasons in enumerate(self.before):
            for earlier in reasons:
                following[earlier].append(event)
        ready = [event for event, count in enumerate(waiting) if not count]
        while ready:
            for event in following[ready.pop()]:
                waiting[event] -= 1
                if not waiting[event]:
                    ready.append(event)
        stuck = [event for event, count in enumerate(waiting) if count]
        if not stuck:
            return None
        place: dict[int, int] = {}
        walk = [stuck[0]]
        while walk[-1] not in place:
            place[walk[-1]] = len(walk) - 1
            walk.append(next(event for event in self.before[walk[-1]] if waiting[event]))
        return self._told(walk[place[walk[-1]] :])

    def _told(self, walk: list[int]) -> str:
        """A closed walk, each event waiting for the next."""
        start = min(range(len(walk) - 1), key=lambda place: walk[place])
        events = [*walk[start:-1], *walk[: start + 1]]
        waits = [
            f"{self._name(later)} ({self.before[earlier][later]})" for earlier, later in pairwise(events)
        ]
        if len(waits) > _SHOWN:
            waits = [*waits[: _SHOWN - 1], f".. ({len(waits) - _SHOWN} more) ..", waits[-1]]
        told = ", that for ".join(waits)
        return f"transfers wait for each other in a circle: {self._name(events[0])} waits for {told}."

    def _name(self, event: int) -> str:
        messages = len(self.first_row)
        if event >= 2 * messages:
            rank, step = self.step_ends[event - 2 * messages]
            return f"the end of step {step} at rank {rank}"
        return f"{'receiving' if event % 2 else 'sending'} transfer {self.first_row[event // 2]}"

    def _wait(self, event: int, earlier: int, why: str) -> None:
        self.before[event].setdefault(earlier, why)

    def _group(self) -> None:
        """Rows of one step and connection are one message."""
        known: dict[tuple[int, int, int, int], int] = {}
        for row, key in enumerate(zip(self.src, self.dst, self.path, self.step, strict=True)):
            if key[3] < 0 or key not in known:
                known[key] = len(self.first_row)
                self.first_row.append(row)
            self.message.append(known[key])

    def _connections(self) -> None:
        """One slot; both ends in row order."""
        last: dict[tuple[int, int, int], int] = {}
        for message, row in enumerate(self.first_row):
            self._wait(2 * message + 1, 2 * message, "it must be sent first")
            key = (self.src[row], self.dst[row], self.path[row])
            if key in last:
                self._wait(2 * message, 2 * last[key], "the same connection, in row order")
                self._wait(2 * message, 2 * last[key] + 1, "the only slot of their connection")
                self._wait(2 * message + 1, 2 * last[key] + 1, "the same connection, in row order")
            last[key] = message

    def _data(self) -> None:
        """Buffers are read after they were written, and written again after they were read."""
        readers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        writers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for row, (chunk, src) in enumerate(zip(self.chunk, self.src, strict=True)):
            readers[chunk, src].append(row)
        for row, (chunk, src, dst, step) in enumerate(
            zip(self.chunk, self.src, self.dst, self.step, strict=True)
        ):
            sent, received = 2 * self.message[row], 2 * self.message[row] + 1
            for earlier in writers[chunk, src]:
                if step < 0 or self.step[earlier] != step:
                    self._wait(sent, 2 * self.message[earlier] + 1, "it sends what that brings")
            for reader in readers[chunk, dst]:
                if reader != row and (reader < row or (step >= 0 and self.step[reader] == step)):
                    self._wait(received, 2 * self.message[reader], "it overwrites what that sends")
            for earlier in writers[chunk, dst]:
                if step < 0 or self.step[earlier] != step:
                    self._wait(received, 2 * self.message[earlier] + 1, "the same buffer, in row order")
            writers[chunk, dst].append(row)

    def _after(self) -> None:
        """The column ``after``."""
        start, after = self.schedule.after_start.tolist(), self.schedule.after.tolist()
        for row, message in enumerate(self.message):
            for earlier in after[start[row] : start[row + 1]]:
                self._wait(2 * message, 2 * self.message[earlier] + 1, "its `after`")

    def _steps(self) -> None:
        """A rank goes from step to step."""
        events: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for message, row in enumerate(self.first_row):
            if self.step[row] >= 0:
                events[self.src[row]][self.step[row]].append(2 * message)
                events[self.dst[row]][self.step[row]].append(2 * message + 1)
        for rank, by_step in sorted(events.items()):
            end = -1
            for step in sorted(by_step):
                for event in by_step[step]:
                    if end >= 0:
                        self._wait(event, end, "a later step of that rank")
                reasons = dict.fromkeys(by_step[step], "a part of that step")
                if end >= 0:
                    reasons[end] = "a later step of that rank"
                end = len(self.before)
                self.before.append(reasons)
                self.step_ends.append((rank, step))
