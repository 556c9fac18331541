"""Schedules carried out by ranks that share nothing but connections of a few slots, in any order that these allow.

The model is that of :mod:`coppice.schedule.verification.transfers`, told event by event: at any moment some messages
can be put into their connection and some can be taken out; one of them, chosen at random, happens. The run ends when
nothing can. What each event waits for is looked up in the rows themselves, with no graph.
"""

from __future__ import annotations

import random
from collections import defaultdict

from coppice.schedule.schedule import Op, Schedule
from reference.payloads import Buffers, initial, join, rows_of

Connection = tuple[int, int, int]


class _Run:
    def __init__(self, schedule: Schedule, slots: int) -> None:
        self.schedule, self.slots = schedule, slots
        self.rows = rows_of(schedule)
        paths = schedule.path.tolist()
        grouped: dict[tuple[int, ...], list[int]] = {}
        for number, (_, src, dst, _, step) in enumerate(self.rows):
            key = (src, dst, paths[number], step) if step >= 0 else (-1, number)
            grouped.setdefault(key, []).append(number)
        self.messages = list(grouped.values())
        self.connection: list[Connection] = [
            (self.rows[m[0]][1], self.rows[m[0]][2], paths[m[0]]) for m in self.messages
        ]
        self.of_connection: defaultdict[Connection, list[int]] = defaultdict(list)
        for message, connection in enumerate(self.connection):
            self.of_connection[connection].append(message)
        start, after = schedule.after_start.tolist(), schedule.after.tolist()
        self.after = [after[start[row] : start[row + 1]] for row in range(len(self.rows))]
        self.sent: set[int] = set()  # rows
        self.received: set[int] = set()  # rows
        self.in_flight: defaultdict[Connection, list[int]] = defaultdict(list)
        self.buffers: Buffers = initial(schedule)
        self.carried: dict[int, object] = {}

    def all_earlier_done(self, rank: int, step: int) -> bool:
        """Everything that the rank does in smaller steps is done."""
        return all(
            (src != rank or row in self.sent) and (dst != rank or row in self.received)
            for row, (_, src, dst, _, other) in enumerate(self.rows)
            if 0 <= other < step
        )

    def same_step(self, row: int, other: int) -> bool:
        return self.rows[row][4] == self.rows[other][4] >= 0

    def can_send(self, message: int) -> bool:
        connection = self.connection[message]
        line = self.of_connection[connection]
        earlier = line[: line.index(message)]
        if self.messages[message][0] in self.sent or len(self.in_flight[connection]) >= self.slots:
            return False
        if any(self.messages[other][0] not in self.sent for other in earlier):
            return False
        for row in self.messages[message]:
            chunk, src, _, _, step = self.rows[row]
            if any(other not in self.received for other in self.after[row]):
                return False
            if step >= 0 and not self.all_earlier_done(src, step):
                return False
            for other in range(row):
                writes_it = self.rows[other][0] == chunk and self.rows[other][2] == src
                if writes_it and not self.same_step(row, other) and other not in self.received:
                    return False
        return True

    def can_receive(self, message: int) -> bool:
        queue = self.in_flight[self.connection[message]]
        if not queue or queue[0] != message:
            return False
        for row in self.messages[message]:
            chunk, _, dst, _, step = self.rows[row]
            if step >= 0 and not self.all_earlier_done(dst, step):
                return False
            for other, (its_chunk, its_src, its_dst, _, _) in enumerate(self.rows):
                if its_chunk != chunk or other == row:
                    continue
                together = self.same_step(row, other)
                if its_src == dst and (other < row or together) and other not in self.sent:
                    return False
                if its_dst == dst and other < row and not together and other not in self.received:
                    return False
        return True

    def send(self, message: int) -> None:
        for row in self.messages[message]:
            chunk, src, *_ = self.rows[row]
            self.carried[row] = self.buffers[chunk, src]
            self.sent.add(row)
        self.in_flight[self.connection[message]].append(message)

    def receive(self, message: int) -> None:
        for row in self.messages[message]:
            chunk, _, dst, op, _ = self.rows[row]
            value = self.carried.pop(row)
            held = self.buffers[chunk, dst]
            self.buffers[chunk, dst] = join(self.schedule, held, value) if op == Op.REDUCE else value
            self.received.add(row)
        self.in_flight[self.connection[message]].pop(0)


def fifo_run(schedule: Schedule, *, slots: int, seed: int) -> tuple[bool, Buffers]:
    """Whether all rows were carried out, and the buffers in the end.

    Args:
        schedule: What to run; rows of one step must not be ordered among each other by what they add.
        slots: Messages that fit into each connection.
        seed: Chooses among the events that are possible.
    """
    rng = random.Random(seed)
    run = _Run(schedule, slots)
    while True:
        possible = [
            (act, message)
            for check, act in ((run.can_send, run.send), (run.can_receive, run.receive))
            for message in range(len(run.messages))
            if check(message)
        ]
        if not possible:
            return len(run.received) == len(run.rows), run.buffers
        act, message = rng.choice(possible)
        act(message)
