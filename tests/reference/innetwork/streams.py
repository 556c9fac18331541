"""Streams of packets over links that lose, double and reorder them, packet by packet: the reference of
cpp/stream_trees/stream.h, and of combine.h for what the packets carry."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from reference.innetwork.machine import Sent

CIRCLE = 1 << 32
MOST_WINDOW = 64


def distance(a: int, b: int) -> int:
    """How far `a` lies after `b` in the circle of sequence numbers; negative where it lies before."""
    ahead = (a - b) % CIRCLE
    return ahead - CIRCLE if ahead >= CIRCLE // 2 else ahead


class Received:
    """What one receiver has: everything before `next`, and the set of what lies beyond."""

    def __init__(self, first: int) -> None:
        self.next = first
        self.later: set[int] = set()

    def look(self, sequence: int) -> str:
        after = distance(sequence, self.next)
        if after < 0 or sequence in self.later:
            return "duplicate"
        return "fresh" if after <= MOST_WINDOW else "future"

    def take(self, sequence: int) -> None:
        self.later.add(sequence)
        while self.next in self.later:
            self.later.remove(self.next)
            self.next = (self.next + 1) % CIRCLE

    def beyond(self) -> int:
        return sum(1 << (distance(each, self.next) - 1) for each in self.later)


@dataclass
class Receiver:
    to: int
    next: int
    later: set[int] = field(default_factory=set)
    hurried: set[int] = field(default_factory=set)
    since: int = 0


class Sender:
    """One stream to every one of `receivers`."""

    def __init__(
        self, receivers: Sequence[int], window: int, first: int, timeout: int, give_up_timeout: int
    ) -> None:
        self.window, self.timeout, self.give_up_timeout = window, timeout, give_up_timeout
        self.base = self.next = first
        self.due: int | None = None
        self.backoff = 0
        self.receivers = [Receiver(to, first) for to in receivers]
        self.packets: dict[int, bytes] = {}

    def fits(self, sequence: int) -> bool:
        return 0 <= distance(sequence, self.base) < self.window

    def room(self) -> bool:
        return self.fits(self.next)

    def send(self, sequence: int, packet: bytes, now: int, out: Sent, counters: Counter[str]) -> None:
        if self.due is None:
            self.due = now + self.timeout
        for each in self.receivers:
            if each.next == self.next:
                each.since = now
        self.packets[sequence] = packet
        if distance(sequence, self.next) >= 0:
            self.next = (sequence + 1) % CIRCLE
        counters["sent"] += len(self.receivers)
        out.append(([each.to for each in self.receivers], packet))

    def lacking(self, receiver: Receiver) -> list[int]:
        count = distance(self.next, receiver.next)
        places = [(receiver.next + after) % CIRCLE for after in range(count)]
        return [each for each in places if each not in receiver.later and each in self.packets]

    def resend(self, receiver: Receiver, which: list[int], out: Sent, counters: Counter[str]) -> None:
        for each in which:
            counters["resent"] += 1
            out.append(([receiver.to], self.packets[each]))

    def acknowledge(
        self, which: int, start: int, beyond: int, again: bool, now: int, out: Sent, counters: Counter[str]
    ) -> str:
        receiver = self.receivers[which]
        if distance(self.next, start) < 0:
            return "impossible"
        ahead = distance(start, receiver.next)
        if ahead < 0:
            return "nothing new"
        places = {(start + 1 + bit) % CIRCLE for bit in range(64) if beyond >> bit & 1}
        later = {each for each in places if distance(each, self.next) < 0}
        if ahead == 0:
            later |= receiver.later
        progress = ahead > 0 or later != receiver.later
        receiver.next, receiver.later, receiver.since = start, later, now
        receiver.hurried = {each for each in receiver.hurried if distance(each, start) >= 0}
        if progress:
            least = min(distance(each.next, self.base) for each in self.receivers)
            for _ in range(least):
                self.packets.pop(self.base, None)
                self.base = (self.base + 1) % CIRCLE
            self.backoff = 0
            self.due = None if self.base == self.next else now + self.timeout
            lost = []
            for after in range(64):
                place = (start + after) % CIRCLE
                overtaken = sum(distance(each, place) > 0 and distance(each, start) <= 63 for each in later)
                if place not in later and overtaken >= 3 and place not in receiver.hurried:
                    lost.append(place)
            receiver.hurried |= set(lost)
            if not again:
                self.resend(
                    receiver, [each for each in lost if each in self.lacking(receiver)], out, counters
                )
        if again and self.lacking(receiver):
            self.resend(receiver, self.lacking(receiver), out, counters)
            self.due = now + self.timeout
        if self.due is None and self.base != self.next:
            self.due = now + self.timeout
        return "progress" if progress else "nothing new"

    def wake(self, now: int, out: Sent, counters: Counter[str]) -> None:
        if self.due is None or now < self.due:
            return
        found = False
        for each in self.receivers:
            if now - each.since > self.give_up_timeout:
                continue
            lacking = self.lacking(each)
            self.resend(each, lacking, out, counters)
            found = found or bool(lacking)
        self.due = now + (self.timeout << self.backoff) if found else None
        self.backoff = min(self.backoff + 1, 5)


def signed(bits: int) -> int:
    return bits - CIRCLE if bits >= CIRCLE // 2 else bits


def combine(operation: str, element: str, a: int, b: int) -> int:
    """Two elements as their 32 bits."""
    if element == "int32":
        if operation == "sum":
            return (a + b) % CIRCLE
        return (min if operation == "minimum" else max)(a, b, key=signed)
    if operation == "sum":
        x, y = (struct.unpack(">f", struct.pack(">I", each))[0] for each in (a, b))
        return rounded(x + y)  # twice the precision and rounded once more: the same as one rounding
    if any(each & 0x7FFFFFFF > 0x7F800000 for each in (a, b)):
        return 0x7FC00000
    order = {each: signed(each ^ (0x7FFFFFFF if each >> 31 else 0)) for each in (a, b)}
    return (min if operation == "minimum" else max)(a, b, key=lambda bits: order[bits])


def rounded(value: float) -> int:
    try:
        return int(struct.unpack(">I", struct.pack(">f", value))[0])
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000
