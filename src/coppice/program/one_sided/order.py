"""An order in which a one-sided program can run, or the circle of waiting that deadlocks it.

Thread blocks carry out their steps one after the other, in turns. A signal or a release never waits; a wait goes on as
soon as there is something to take, a barrier once all have come, a reader of packets once all of them are written.

Where one thread block alone takes from each counter, no step takes away what another one waits for: if one order comes
to an end, all do. Where several take from one, a second run lets each of them go on only if there is enough for all
that could come before it; a program that comes to an end even so does in every order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

from coppice.program.deadlock import Deadlock, circle_from, waits_in_words
from coppice.program.one_sided.events import Events, EventStep, SignalCounter
from coppice.program.one_sided.program import Act

__all__ = ["run_order"]


def run_order(
    events: Events, *, required: Mapping[int, int] | None = None
) -> tuple[list[int], list[tuple[int, int]]]:
    """All events in an order in which they can take place.

    Args:
        events: The unrolled program.
        required: How many posts the counter must have seen before an event that takes from it; by default as many as
            there were takers before it, less what the counter held at the start.

    Returns:
        The events, and pairs (writer, reader) of events where a packet that one writes ends the waiting of the other.

    Raises:
        Deadlock: If it stands still.
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
        """All events in order.

        Raises:
            Deadlock: If the program stands still.
        """
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
        """Why the program stands still, in words."""
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
