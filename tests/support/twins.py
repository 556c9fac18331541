"""Native nodes of aggregation and their readable twins, driven side by side with the same packets: every packet sent,
every deadline and every counter must be the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from coppice._switch import AggregationJob, Element

Sent = list[tuple[list[int], bytes]]


class Twin(Protocol):
    counters: Counter[str]

    def receive(self, sender: int, packet: bytes, now: int) -> Sent: ...
    def wake(self, now: int) -> Sent: ...
    def deadline(self) -> int | None: ...


@dataclass
class Both:
    """A node and its twin."""

    native: Any
    twin: Any

    def agree(self, native: Sent, twin: Sent) -> Sent:
        assert native == twin
        assert self.native.deadline_ns() == self.twin.deadline()
        assert {name: count for name, count in self.native.counters().items() if count} == +self.twin.counters
        return native

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        return self.agree(self.native.receive(sender, packet, now), self.twin.receive(sender, packet, now))

    def wake(self, now: int) -> Sent:
        return self.agree(self.native.wake(now), self.twin.wake(now))


class Exchange:
    """Packets on their way between nodes, delivered in random order, some lost, doubled, or followed by garbage."""

    def __init__(self, seed: int, drop: float, duplicate: float, garbage: float) -> None:
        self.random = random.Random(seed)
        self.drop, self.duplicate, self.garbage = drop, duplicate, garbage
        self.nodes: dict[int, Both] = {}
        self.on_the_way: list[tuple[int, int, bytes]] = []
        self.now = 0

    def put(self, sender: int, sent: Sent) -> None:
        for receivers, packet in sent:
            for to in receivers:
                copies = 0 if self.random.random() < self.drop else 1
                copies += self.random.random() < self.duplicate
                self.on_the_way += [(sender, to, packet)] * copies

    def step(self) -> None:
        """One packet delivered, or one node woken; time goes on by a little."""
        self.now += self.random.randrange(1, 2_000)
        if not self.on_the_way or self.random.random() < 0.05:
            due = [(at, node.twin.deadline()) for at, node in self.nodes.items()]
            waiting = [(time, at) for at, time in due if time is not None]
            if waiting:
                time, at = min(waiting)
                if not self.on_the_way:
                    self.now = max(self.now, time)
                self.put(at, self.nodes[at].wake(self.now))
            return
        place = self.random.randrange(min(len(self.on_the_way), 6))  # not too far out of order
        sender, to, packet = self.on_the_way.pop(place)
        if to not in self.nodes:
            return
        self.put(to, self.nodes[to].receive(sender, packet, self.now))
        if self.random.random() < self.garbage:
            spoilt, stranger = self.spoil(packet), self.random.choice([sender, sender, 999, -1])
            if spoilt != packet or stranger != sender:
                self.put(to, self.nodes[to].receive(stranger, spoilt, self.now))

    def spoil(self, packet: bytes) -> bytes:
        """A packet that no node of this exchange can take for one of its own."""
        kind = self.random.randrange(4)
        if kind == 0:
            return packet[: self.random.randrange(len(packet))]
        if kind == 1:
            return packet + self.random.randbytes(self.random.randrange(1, 9))
        if kind == 2:
            return bytes([self.random.choice([0, 200, 255])]) + packet[1:]
        return self.random.randbytes(self.random.randrange(100))

    def run(self, done: Callable[[], bool], steps: int = 200_000) -> None:
        for _ in range(steps):
            if done():
                return
            self.step()
        raise AssertionError("no end after so many steps")


class Altering(Exchange):
    """An exchange whose garbage may be taken for packets: all must agree, but sums may come out wrong, or never."""

    def spoil(self, packet: bytes) -> bytes:
        if self.random.random() < 0.2:
            return super().spoil(packet)
        changed = bytearray(packet)
        for _ in range(self.random.randrange(1, 4)):
            at = self.random.randrange(min(len(packet), 24) if self.random.random() < 0.8 else len(packet))
            flipped = changed[at] ^ 1 << self.random.randrange(8)
            changed[at] = self.random.choice([0, 1, 2, 255, flipped, self.random.randrange(256)])
        return bytes(changed)

    def run_for(self, steps: int, done: Callable[[], bool]) -> None:
        """So many steps, or until the end if there is one."""
        for _ in range(steps):
            if done():
                return
            self.step()


def drawn_exchange(generator: random.Random, seed: int) -> Exchange:
    return Exchange(seed, generator.choice([0, 0.01, 0.1, 0.2]), generator.choice([0, 0.1]), 0.1)


def both_jobs(kind: Any, **fields: object) -> tuple[AggregationJob, Any]:
    """A job as native machines and as their references take it."""
    twin = kind(**fields)
    native = AggregationJob(
        id=twin.id,
        workers=twin.workers,
        slots=twin.slots,
        values=twin.values,
        window=twin.window,
        element=Element.float32 if twin.floats else Element.int32,
        timeout_ns=twin.timeout_ns,
        give_up_timeout_ns=2**62,
        settings=twin.settings,
    )
    return native, twin
