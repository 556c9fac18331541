"""Native machines and their references, driven side by side: every packet sent, every deadline and every count must be
the same, whatever the network between them does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice import _switch
from reference.innetwork.frames import HEAD, Words
from reference.innetwork.machine import Job, Sent


def native_job(job: Job) -> _switch.AggregationJob:
    return _switch.AggregationJob(
        id=job.id,
        workers=job.workers,
        slots=job.slots,
        values=job.values,
        window=job.window,
        element=getattr(_switch.Element, job.element),
        timeout_ns=job.timeout,
        give_up_timeout_ns=job.give_up_timeout,
        settings=dict(job.settings),
    )


@dataclass
class Both:
    """A native node and its reference."""

    native: Any
    reference: Any
    output: Words = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))

    @classmethod
    def worker(cls, protocol: str, job: Job, index: int, above: int, reference: Any) -> Both:
        return cls(_switch.aggregation_worker(protocol, native_job(job), index, above), reference)

    @classmethod
    def switch(
        cls, protocol: str, slots: int, job: Job, children: Sequence[int], parent: int, reference: Any
    ) -> Both:
        """A switch of one job, which the reference knows already."""
        both = cls(_switch.aggregation_switch(protocol, slots), reference)
        both.native.open(native_job(job), list(children), parent)
        return both

    def agree(self, native: Sent, reference: Sent) -> Sent:
        assert native == reference
        assert self.native.deadline_ns() == self.reference.deadline()
        assert {
            name: count for name, count in self.native.counters().items() if count
        } == +self.reference.counters
        return native

    def open(self, job: Job, children: Sequence[int], parent: int = -1) -> None:
        self.native.open(native_job(job), list(children), parent)
        self.reference.open(job, list(children), parent)

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        return self.agree(
            self.native.receive(sender, packet, now), self.reference.receive(sender, packet, now)
        )

    def wake(self, now: int) -> Sent:
        return self.agree(self.native.wake(now), self.reference.wake(now))

    def begin(
        self, given: NDArray[Any], output: NDArray[Any], reference: Sent, now: int, count: int = -1
    ) -> Sent:
        """Begin with ``count`` elements, all by default, as the reference has begun."""
        size = given.size if count < 0 else count
        return self.agree(self.native.begin(given.ctypes.data, output.ctypes.data, size, now), reference)

    def begin_words(self, words: Words, now: int, *, pairs: bool = False, room: int = 0) -> Sent:
        self.words = np.array(words, dtype=np.uint32)
        self.output = np.full(max(room, len(words)), 7, dtype=np.uint32)
        count = len(words) // 2 if pairs else len(words)
        return self.begin(self.words, self.output, self.reference.begin(self.words, now), now, count)

    @property
    def done(self) -> bool:
        assert self.native.done() == self.reference.done
        return bool(self.reference.done)

    @property
    def slots_in_use(self) -> int:
        assert self.native.slots_in_use() == self.reference.slots_in_use()
        return int(self.native.slots_in_use())


def all_done(workers: Sequence[Both]) -> bool:
    return all([worker.done for worker in workers])  # noqa: C419 (all of them are compared)


class Exchange:
    """Packets on their way between nodes, delivered in random order, some lost, doubled, or followed by garbage."""

    def __init__(
        self, seed: int, drop: float, duplicate: float, garbage: float, *, in_order: float = 0
    ) -> None:
        self.random = random.Random(seed)
        self.drop, self.duplicate, self.garbage, self.in_order = drop, duplicate, garbage, in_order
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
            due = [(at, node.reference.deadline()) for at, node in self.nodes.items()]
            waiting = [(time, at) for at, time in due if time is not None]
            if waiting:
                time, at = min(waiting)
                if not self.on_the_way:
                    self.now = max(self.now, time)
                self.put(at, self.nodes[at].wake(self.now))
            return
        most = 1 if self.in_order and self.random.random() < self.in_order else 6  # not too far out of order
        sender, to, packet = self.on_the_way.pop(self.random.randrange(min(len(self.on_the_way), most)))
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
        if not self.run_for(steps, done):
            raise AssertionError("no end after so many steps")

    def run_for(self, steps: int, done: Callable[[], bool]) -> bool:
        """So many steps, or until the end if there is one."""
        for _ in range(steps):
            if done():
                return True
            self.step()
        return False


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


class AlteringFrames(Exchange):
    """Likewise for frames, with numbers near by; values stay small, so that no float is NaN."""

    def spoil(self, packet: bytes) -> bytes:
        way = self.random.randrange(5)
        if way < 3:
            return super().spoil(packet)
        if way == 3 and len(packet) >= HEAD.size:
            number = (int.from_bytes(packet[8:12], "big") + self.random.randrange(-12, 13)) % 2**32
            return packet[:8] + number.to_bytes(4, "big") + packet[12:]
        changed = bytearray(packet)
        changed[self.random.randrange(min(len(packet), HEAD.size + 4))] ^= 1 << self.random.randrange(8)
        return bytes(changed)


def drawn_exchange(generator: random.Random, seed: int) -> Exchange:
    return Exchange(seed, generator.choice([0, 0.01, 0.1, 0.2]), generator.choice([0, 0.1]), 0.1)


def frames_exchange(generator: random.Random, seed: int, in_order: Sequence[float]) -> Exchange:
    """Hostile to a third of the seeds: packets are spoilt, and sums need not come."""
    chances = generator.choice([0, 0.05, 0.2]), generator.choice([0, 0.1])
    kind, garbage = (AlteringFrames, 0.2) if seed % 3 == 0 else (Exchange, 0)
    return kind(seed, *chances, garbage, in_order=generator.choice(in_order))


def drawn_job(generator: random.Random, **settings: float) -> Job:
    """A small job of numbered frames."""
    return Job(
        id=generator.choice([0, 7, 2**32 - 1]),
        workers=generator.randint(1, 6),
        slots=generator.randint(1, 5),
        values=generator.randint(1, 4),
        window=generator.randint(1, 7),
        element=generator.choice(["int32", "float32"]),
        timeout=200_000,
        give_up_timeout=2**61,
        settings={"first": generator.choice([0, 2**32 - 3]), **settings},
    )


def inputs_of(generator: random.Random, element: str, workers: int, count: int) -> tuple[list[Words], Words]:
    """Words of every worker, and their sum; floats are whole numbers, so that it is exact."""
    numbers = [[generator.randrange(-1000, 1001) for _ in range(count)] for _ in range(workers)]
    kind = np.int32 if element == "int32" else np.float32
    words = [np.array(each, dtype=kind).view(np.uint32) for each in numbers]
    return words, np.array(numbers, dtype=np.int64).sum(axis=0).astype(kind).view(np.uint32)


def in_tree(workers: int, fanout: int) -> list[tuple[list[int], int]]:
    """(children, parent) of every switch; workers are 0, 1, .., switches follow level by level."""
    level, following, found = list(range(workers)), workers, []
    while True:
        groups: Sequence[list[int]] = [level[i : i + fanout] for i in range(0, len(level), fanout)]
        first = following + len(groups)
        for at, group in enumerate(groups):
            found.append((group, -1 if len(groups) == 1 else first + at // fanout))
        level = list(range(following, following + len(groups)))
        following += len(groups)
        if len(level) == 1:
            return found


def under_switches(workers: int, leaves: int, root: int) -> tuple[list[int], dict[int, list[int]]]:
    """The switch above every worker, and the children of all: one root, or leaves, root + 1 and so on, below it."""
    leaves = min(leaves, workers)
    above = [root + 1 + rank % leaves if leaves else root for rank in range(workers)]
    children: dict[int, list[int]] = {}
    for rank, at in enumerate(above):
        children.setdefault(at, []).append(rank)
    if leaves:
        children[root] = sorted(children)
    return above, children
