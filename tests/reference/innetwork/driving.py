"""Drives a native machine and its twin with the same packets, and a network of such pairs at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from coppice import _switch
from reference.innetwork.frames import HEAD, Sent, TwinJob, Words


def native_job(job: TwinJob) -> _switch.AggregationJob:
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


class Both:
    """A native node and its twin; every answer, deadline and count is compared."""

    def __init__(self, native: Any, twin: Any) -> None:
        self.native, self.twin = native, twin
        self.output: Words = np.zeros(0, dtype=np.uint32)

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        return self.same(self.native.receive(sender, packet, now), self.twin.receive(sender, packet, now))

    def wake(self, now: int) -> Sent:
        return self.same(self.native.wake(now), self.twin.wake(now))

    def begin(self, words: Words, now: int, *, pairs: bool = False, room: int = 0) -> Sent:
        self.words = np.array(words, dtype=np.uint32)
        self.output = np.full(max(room, len(words)), 7, dtype=np.uint32)
        count = len(words) // 2 if pairs else len(words)
        native = self.native.begin(self.words.ctypes.data, self.output.ctypes.data, count, now)
        return self.same(native, self.twin.begin(self.words, now))

    def same(self, native: Sent, twin: Sent) -> Sent:
        assert native == twin
        if hasattr(self.twin, "deadline_ns"):
            assert self.native.deadline_ns() == self.twin.deadline_ns()
        else:
            assert self.native.deadline_ns() is None
        assert {name: count for name, count in self.native.counters().items() if count} == +self.twin.counts
        return native

    @property
    def done(self) -> bool:
        assert self.native.done() == self.twin.done
        return bool(self.twin.done)


class RandomNetwork:
    """Pairs by endpoint; a packet is delivered at any time, lost, doubled, or spoilt, by seed."""

    def __init__(self, seed: int, *, loss: float, doubled: float, spoilt: float, in_order: float) -> None:
        self.random = Random(seed)
        self.loss, self.doubled, self.spoilt, self.in_order = loss, doubled, spoilt, in_order
        self.nodes: dict[int, Both] = {}
        self.flying: list[tuple[int, int, bytes]] = []
        self.now = 0

    def post(self, sender: int, sent: Sent) -> None:
        for receivers, packet in sent:
            for receiver in receivers:
                copies = (self.random.random() >= self.loss) + (self.random.random() < self.doubled)
                self.flying += [(sender, receiver, packet)] * copies

    def step(self) -> None:
        self.now += self.random.randrange(200)
        if self.flying:
            at = 0 if self.random.random() < self.in_order else self.random.randrange(len(self.flying))
            sender, receiver, packet = self.flying.pop(at)
            if receiver in self.nodes:
                self.post(receiver, self.nodes[receiver].receive(sender, packet, self.now))
                if self.random.random() < self.spoilt:
                    strange = self.random.choice([sender, receiver, -1, 99, *self.nodes])
                    self.post(receiver, self.nodes[receiver].receive(strange, self.spoil(packet), self.now))
        due = [at for at, node in self.nodes.items() if (node.native.deadline_ns() or 2**63) <= self.now]
        if due:
            at = self.random.choice(due)
            self.post(at, self.nodes[at].wake(self.now))
        elif not self.flying:
            times = [node.native.deadline_ns() for node in self.nodes.values()]
            self.now = min((time for time in times if time is not None), default=self.now)

    def spoil(self, packet: bytes) -> bytes:
        way = self.random.randrange(5)
        if way == 0:
            return packet[: self.random.randrange(len(packet))]
        if way == 1:
            return packet + self.random.randbytes(self.random.choice([1, 4]))
        if way == 2:
            return self.random.randbytes(self.random.randrange(40))
        if way == 3 and len(packet) >= HEAD.size:  # a number near by
            number = (int.from_bytes(packet[8:12], "big") + self.random.randrange(-12, 13)) % 2**32
            return packet[:8] + number.to_bytes(4, "big") + packet[12:]
        # Another number, type or so; values stay small, so that no float is NaN.
        changed = bytearray(packet)
        at = self.random.randrange(min(len(packet), HEAD.size + 4))
        changed[at] ^= 1 << self.random.randrange(8)
        return bytes(changed)

    def run(self, over: Callable[[], bool], most: int = 200_000) -> bool:
        for _ in range(most):
            if over():
                break
            self.step()
        return over()


def inputs_of(random: Random, element: str, workers: int, count: int) -> tuple[list[Words], Words]:
    """Words of every worker, and their sum; floats are whole numbers, so that it is exact."""
    numbers = [[random.randrange(-1000, 1001) for _ in range(count)] for _ in range(workers)]
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
