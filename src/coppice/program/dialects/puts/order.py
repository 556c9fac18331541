"""Execution order of a one-sided program, or its deadlock cycle; and the order that always holds.

Thread blocks carry out their steps one after the other, in turns. A signal or a release never waits; a wait goes on as
soon as there is something to take, a barrier once all have come, a reader of packets once all of them are written.

Where one thread block alone takes from each counter, no step takes away what another one waits for: if one order comes
to an end, all do. Where several take from one, a second run lets each of them go on only if there is enough for all
that could come before it; a program that comes to an end even so does in every order.

**What comes before what in every order.** Edges between events come from the program itself, and from what signals,
semaphores and packets say: the k-th event that takes from a counter comes after k - s posts, s being its count at the
start. If one thread block posts, and one thread block takes, in order, this tells which posts. Otherwise a post is
known to come before an event that takes only if all posts that need not come after it are too few: with w takers known
to come before, and n posts that are not known to come later than the post in question, itself not counted, it comes
before if n < w + 1 - s. What is found out this way may tell more, and is asked again until nothing new comes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.puts.events import Events, EventStep, SignalCounter
from coppice.program.dialects.puts.program import Act
from coppice.program.dialects.puts.unroll import points_of
from coppice.program.order import Deadlock, PointOrder, circle_from, waits_in_words


def run_order(
    events: Events, *, required: Mapping[int, int] | None = None
) -> tuple[list[int], list[tuple[int, int]]]:
    """All events in an executable order.

    Args:
        required: How many posts the counter must have seen before an event that takes from it; by default as many
            as there were takers before it, less what the counter held at the start.

    Returns:
        The events, and pairs (writer, reader) of events where a packet that one writes ends the waiting of the other.
    """
    return _EventRun(events, required).order()


class _EventRun:
    def __init__(self, events: Events, required: Mapping[int, int] | None) -> None:
        self.events, self.required = events, required
        self.counters: list[SignalCounter] = list(events.counters.values())
        self.posts_to: dict[int, int] = {}
        self.takes_from: dict[int, int] = {}
        for number, counter in enumerate(self.counters):
            self.posts_to.update((event, number) for event in counter.posts)
            self.takes_from.update((event, number) for event in counter.waits)
        self.barrier_of = {
            arrivals[place]: barrier
            for barrier, (arrivals, _) in enumerate(events.barriers.values())
            for place in range(len(arrivals))
        }
        self.size_of = [len(arrivals) for arrivals, _ in events.barriers.values()]
        self.arrived: dict[int, int] = defaultdict(int)
        self.posted: dict[int, int] = defaultdict(int)
        self.taken: dict[int, int] = defaultdict(int)
        self.packets: dict[int, int] = {}  # address: event that wrote it first
        self.pairs: set[tuple[int, int]] = set()
        lines: dict[int, list[EventStep]] = defaultdict(list)
        for step in events.steps:
            if step.row >= 0:
                lines[step.row].append(step)
        self.lines = [lines[row] for row in sorted(lines)]
        self.next = [0] * len(self.lines)
        self.came = [False] * len(self.lines)
        self.waiting: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.ready: list[int] = []

    def order(self) -> tuple[list[int], list[tuple[int, int]]]:
        """All events in order."""
        found = list(self.events.begins)
        self.ready = list(range(len(self.lines)))[::-1]
        while self.ready:
            line = self.ready.pop()
            steps = self.lines[line]
            while self.next[line] < len(steps):
                step = steps[self.next[line]]
                blocked = self._blocked(line, step)
                if blocked is not None:
                    self.waiting[blocked].add(line)
                    break
                self._carry_out(step)
                found.extend(step.events)
                self.next[line] += 1
                self.came[line] = False
        if any(self.next[line] < len(steps) for line, steps in enumerate(self.lines)):
            raise Deadlock(self._circle())
        found.extend(self.events.ends)
        return found, sorted(self.pairs)

    def _wake(self, reason: tuple[str, int]) -> None:
        if reason in self.waiting:
            self.ready.extend(sorted(self.waiting.pop(reason), reverse=True))

    def _blocked(self, line: int, step: EventStep) -> tuple[str, int] | None:
        """What a step waits for, or None."""
        op = step.op
        if op is None:
            return None
        if op.act is Act.BARRIER:
            barrier = self.barrier_of[step.events[0]]
            if not self.came[line]:
                self.came[line] = True
                self.arrived[barrier] += 1
                if self.arrived[barrier] == self.size_of[barrier]:
                    self._wake(("barrier", barrier))
            return None if self.arrived[barrier] == self.size_of[barrier] else ("barrier", barrier)
        if op.act in (Act.WAIT, Act.ACQUIRE):
            asked: dict[int, int] = defaultdict(int)
            for event in step.events:
                number = self.takes_from[event]
                asked[number] += 1
                need = self.taken[number] + asked[number] - self.counters[number].start
                if self.required is not None:
                    need = self.required.get(event, need)
                if self.posted[number] < need:
                    return ("counter", number)
            return None
        for event in step.events:
            for touch in self.events.reads.get(event, ()):
                if touch.slots.packets:
                    for part in touch.parts:
                        for address in part.tolist():
                            if address not in self.packets:
                                return ("packet", address)
        return None

    def _carry_out(self, step: EventStep) -> None:
        for event in step.events:
            if event in self.takes_from:
                self.taken[self.takes_from[event]] += 1
            if event in self.posts_to:
                number = self.posts_to[event]
                self.posted[number] += 1
                self._wake(("counter", number))
            for touch in self.events.reads.get(event, ()):
                if touch.slots.packets:
                    for part in touch.parts:
                        self.pairs.update((self.packets[address], event) for address in part.tolist())
            for touch in self.events.writes.get(event, ()):
                if touch.slots.packets:
                    for part in touch.parts:
                        for address in part.tolist():
                            if self.packets.setdefault(address, event) == event:
                                self._wake(("packet", address))

    def _circle(self) -> str:
        """Why the program deadlocks, in words."""
        waits = {
            line: blocked
            for line, steps in enumerate(self.lines)
            if self.next[line] < len(steps) and (blocked := self._blocked(line, steps[self.next[line]]))
        }
        walk = circle_from(next(iter(waits)), lambda line: self._able_to_end(waits[line], line))
        if len(walk) == 1:
            return f"{self._name(walk[0])} waits for {self._missing(waits[walk[0]])}."
        parts = [
            f"waits for {self._told(waits[one])} {self._name(two)} is ahead" for one, two in pairwise(walk)
        ]
        return waits_in_words(self._name(walk[0]), parts)

    def _name(self, line: int) -> str:
        return self.events.name(self.lines[line][self.next[line]].events[0])

    def _rest(self, line: int) -> list[EventStep]:
        return self.lines[line][self.next[line] :]

    def _able_to_end(self, reason: tuple[str, int], line: int) -> int | None:
        """A thread block that still has to do what is waited for."""
        kind, number = reason
        others: list[int] = [*range(line + 1, len(self.lines)), *range(line + 1)]
        for other in others:
            for step in self._rest(other):
                for event in step.events:
                    if kind == "counter" and self.posts_to.get(event) == number:
                        return other
                    if kind == "barrier" and self.barrier_of.get(event) == number and not self.came[other]:
                        return other
                    if kind == "packet" and self._writes_packet(event, number):
                        return other
        return None

    def _writes_packet(self, event: int, address: int) -> bool:
        return any(
            touch.slots.packets and any(bool((part == address).any()) for part in touch.parts)
            for touch in self.events.writes.get(event, ())
        )

    def _told(self, reason: tuple[str, int]) -> str:
        kind, number = reason
        if kind == "counter":
            counter = self.counters[number]
            what = "a release of" if counter.name.startswith("semaphore") else "a signal on"
            return f"{what} {counter.name}, before which"
        if kind == "barrier":
            return "a barrier, before which"
        return "packets, before which"

    def _missing(self, reason: tuple[str, int]) -> str:
        kind, number = reason
        if kind == "counter":
            counter = self.counters[number]
            what = "release of" if counter.name.startswith("semaphore") else "signal on"
            return (
                f"one more {what} {counter.name} than there is: {len(counter.posts)} come, {len(counter.waits)} are "
                "waited for"
            )
        if kind == "barrier":
            return "a barrier that not all thread blocks reach"
        return "packets that nothing writes"


_Edges = list[tuple[int, int]]


def known_order(events: Events, packets: _Edges) -> tuple[_Edges, _Edges]:
    """Happens-before pairs, and those of them that carry data."""
    strong: _Edges = list(events.before)
    weak: _Edges = list(packets)
    unclear: list[SignalCounter] = []
    counters = list(events.counters.values())
    clear = _in_line(events, [each.posts for each in counters]) & _in_line(
        events, [each.waits for each in counters]
    )
    for counter, sure in zip(counters, clear.tolist(), strict=True):
        if not sure:
            unclear.append(counter)
            continue
        unpaired = max(-counter.start, 0)
        posts, waits = counter.posts[unpaired:], counter.waits[max(counter.start, 0) :]
        for post, wait in zip(posts, waits, strict=False):  # what is left over waits for nobody
            (weak if _relaxed(events, post, wait) else strong).append((post, wait))
    while unclear:
        found = _further(order_of(events, strong + weak), unclear, set(strong) | set(weak))
        if not found:
            break
        for post, wait in found:
            (weak if _relaxed(events, post, wait) else strong).append((post, wait))
    return strong + weak, strong


def order_of(events: Events, edges: _Edges) -> PointOrder:
    """The order of events that edges make known."""
    points = points_of(events, edges)
    return PointOrder(points.chain, points.earlier, points.later)


def check_every_order(events: Events, edges: _Edges) -> None:
    """Check that no order deadlocks, where several thread blocks consume from one counter."""
    shared = [
        counter
        for counter in events.counters.values()
        if len({events.block(event) for event in counter.waits}) > 1
    ]
    if not shared:
        return
    known = order_of(events, edges)
    required: dict[int, int] = {}
    for counter in shared:
        later = _among(known, counter.waits).sum(axis=1)
        required.update(
            (wait, len(counter.waits) - after - counter.start)
            for wait, after in zip(counter.waits, later.tolist(), strict=True)
        )
    try:
        run_order(events, required=required)
    except Deadlock as circle:
        raise Deadlock(f"in an order in which others take first, {circle}") from None


def _in_line(events: Events, groups: list[list[int]]) -> NDArray[np.bool_]:
    """Groups of events that are all in one thread block, and each after the one before."""
    found = np.array(
        [len({events.block(event) for event in members}) < 2 for members in groups], dtype=np.bool_
    )
    pairs = [(number, *pair) for number, members in enumerate(groups) for pair in pairwise(members)]
    group, one, two = np.array(pairs, dtype=np.int64).reshape(-1, 3).T
    found[group[~order_of(events, events.before).holds(one, two)]] = False
    return found


def _relaxed(events: Events, post: int, wait: int) -> bool:
    return any(
        (op := events.steps[events.step_of[event]].op) is not None and op.relaxed for event in (post, wait)
    )


def _further(order: PointOrder, counters: list[SignalCounter], known: set[tuple[int, int]]) -> _Edges:
    """Posts that must come before events that take, as far as it is known by now."""
    found: _Edges = []
    for counter in counters:
        if not counter.posts or not counter.waits:
            continue
        # Posts that need not come after each post, itself not counted, and takers that come before each taker.
        free = len(counter.posts) - 1 - _among(order, counter.posts).sum(axis=1)
        before = _among(order, counter.waits).sum(axis=0)
        sure = free[None, :] < (before + 1 - counter.start)[:, None]
        found += [
            pair
            for wait, post in np.argwhere(sure).tolist()
            if (pair := (counter.posts[post], counter.waits[wait])) not in known
        ]
    return found


def _among(order: PointOrder, events: Sequence[int]) -> NDArray[np.bool_]:
    """Whether each of some events (row) always comes before each other one (column)."""
    members = np.array(events, dtype=np.int64)
    count = len(members)
    found = order.holds(np.repeat(members, count), np.tile(members, count)).reshape(count, count)
    np.fill_diagonal(found, val=False)
    return found
