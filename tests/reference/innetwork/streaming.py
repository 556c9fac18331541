"""Reference of cpp/hardware_trees/streaming.h: frames wait in a queue for each port, whose heads are added."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reference.innetwork.frames import (
    Frame,
    WindowReference,
    Words,
    added,
    after,
    read_frame,
)
from reference.innetwork.machine import Job, Machine, Sent

VALUES, SUM, PAUSE, RESUME, MISSING = 1, 2, 3, 4, 5


def well_formed(frame: Frame, values: int) -> bool:
    words = values if frame.type in (VALUES, SUM) else 0
    return VALUES <= frame.type <= MISSING and frame.tree == frame.extra == 0 and len(frame.words) == words


class Port:
    def __init__(self, first: int) -> None:
        self.next = first
        self.told = self.paused = self.overflowed = False
        self.queue: list[Words] = []


class StreamingSwitchReference(Machine):
    def __init__(self, job: Job, children: Sequence[int], parent: int = -1) -> None:
        super().__init__()
        self.job, self.children, self.parent = job, list(children), parent
        self.headroom = job.number("headroom")
        self.added = job.number("first")
        self.ports = [Port(self.added) for _ in children]
        self.kept: dict[int, tuple[str, Words]] = {}  # number: "partial" or "result", and the sum
        self.parent_paused_until = 0

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        self.counters["received"] += 1
        frame = read_frame(packet)
        below = sender in self.children
        if frame is None:
            self.counters["malformed"] += 1
        elif frame.job != self.job.id or not (below or (sender == self.parent != -1)):
            self.counters["unknown_sender"] += 1
        elif not well_formed(frame, self.job.values) or below != (frame.type == VALUES):
            self.counters["malformed"] += 1
        elif below:
            self.from_child(sender, frame, now)
        else:
            self.from_parent(frame, now)
        return self.taken()

    def control(self, kind: int, number: int, to: int) -> None:
        self.send([to], Frame(kind, self.job.id, number))

    def from_child(self, sender: int, frame: Frame, now: int) -> None:
        port = self.ports[self.children.index(sender)]
        step = after(frame.number, port.next)
        if step < 0:
            self.again(sender, frame.number, now)
            self.add(now)
        elif step > 0:
            self.counters["future"] += 1
            if not port.told:
                self.control(MISSING, port.next, sender)
            port.told = True
        elif len(port.queue) == self.job.slots:
            self.counters["over_quota"] += 1
            port.paused = port.told = port.overflowed = True
            self.control(PAUSE, port.next, sender)
            self.add(now)
        else:
            self.counters["aggregated"] += 1
            port.queue.append(frame.words)
            port.next = (port.next + 1) % 2**32
            port.told = False
            self.add(now)
            if not port.paused and len(port.queue) >= self.job.slots - self.headroom:
                port.paused = True
                self.control(PAUSE, port.next, sender)

    def again(self, sender: int, number: int, now: int) -> None:
        behind = after(self.added, number)
        if behind <= 0:
            self.counters["duplicate"] += 1
        elif behind > self.job.window or number not in self.kept:
            self.counters["stale"] += 1
        elif self.kept[number][0] == "result":
            self.counters["answered"] += 1
            self.send([sender], Frame(SUM, self.job.id, number, self.kept[number][1]))
        else:
            self.counters["duplicate"] += 1
            if now >= self.parent_paused_until:
                self.counters["resent"] += 1
                self.send([self.parent], Frame(VALUES, self.job.id, number, self.kept[number][1]))

    def from_parent(self, frame: Frame, now: int) -> None:
        behind = after(self.added, frame.number)
        if frame.type == PAUSE:
            self.parent_paused_until = now + self.job.timeout
        elif frame.type == RESUME:
            self.parent_paused_until = 0
            self.add(now)
        elif frame.type == MISSING and not 0 < behind <= self.job.window:
            self.counters["stale"] += 1
        elif frame.type == MISSING:
            number = frame.number
            while number != self.added:
                stage, words = self.kept.get(number, ("", None))
                if stage == "partial" and words is not None:
                    self.counters["resent"] += 1
                    self.send([self.parent], Frame(VALUES, self.job.id, number, words))
                number = (number + 1) % 2**32
        elif behind <= 0:
            self.counters["future"] += 1
        elif behind > self.job.window:
            self.counters["stale"] += 1
        elif self.kept.get(frame.number, ("",))[0] != "partial":
            self.counters["duplicate"] += 1
        else:
            self.counters["completed"] += 1
            self.kept[frame.number] = ("result", frame.words)
            self.send(self.children, Frame(SUM, self.job.id, frame.number, frame.words))
            self.add(now)

    def add(self, now: int) -> None:
        root = self.parent == -1
        ring = 1 << (self.job.window - 1).bit_length()
        any_added = False
        while all(port.queue for port in self.ports):
            before = (self.added - ring) % 2**32
            if not root and (now < self.parent_paused_until or self.kept.get(before, ("",))[0] == "partial"):
                break
            total = self.ports[0].queue.pop(0)
            for port in self.ports[1:]:
                total = added(self.job.element, total, port.queue.pop(0))
            number, self.added = self.added, (self.added + 1) % 2**32
            self.kept.pop(before, None)
            self.kept[number] = ("result" if root else "partial", total)
            self.counters["completed" if root else "forwarded"] += 1
            to = self.children if root else [self.parent]
            self.send(to, Frame(SUM if root else VALUES, self.job.id, number, total))
            any_added = True
        for child, port in zip(self.children, self.ports, strict=True):
            if any_added and port.paused and 2 * len(port.queue) <= self.job.slots - self.headroom:
                port.paused = False
                self.control(RESUME, port.next, child)
                if port.overflowed:
                    self.control(MISSING, port.next, child)
                port.overflowed = False


class StreamingWorkerReference(WindowReference):
    def begin(self, words: Words, now: int) -> Sent:
        values = self.job.values
        frames = -(-len(words) // values)
        self.words = np.zeros(frames * values, dtype=np.uint32)
        self.words[: len(words)] = words
        self.output = np.zeros(frames * values, dtype=np.uint32)
        self.start(frames, now)
        return self.taken()

    def cut(self, number: int) -> slice:
        at = after(number, self.first) * self.job.values
        return slice(at, at + self.job.values)

    def frame(self, number: int) -> Frame:
        return Frame(VALUES, self.job.id, number, self.words[self.cut(number)])

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        frame = self.read(sender, packet)
        if frame is None:
            return []
        if not well_formed(frame, self.job.values) or frame.type == VALUES:
            self.counters["malformed"] += 1
        elif frame.type == PAUSE:
            if not self.done:
                self.paused_until = now + self.job.timeout
        elif frame.type == RESUME:
            self.paused_until = 0
            self.proceed()
        elif frame.type == MISSING:
            why = self.under_way(frame.number)
            if why is None:
                self.send_again(frame.number)
            else:
                self.counters[why] += 1
        elif self.awaited(frame.number):
            self.output[self.cut(frame.number)] = frame.words
            self.take(frame.number, now)
        return self.taken()
