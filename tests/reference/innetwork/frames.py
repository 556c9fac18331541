"""Frames of the protocols that add in hardware trees (cpp/hardware_trees/frame.h), and what their nodes share."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reference.innetwork.machine import Job, Machine, Sent

Words = NDArray[np.uint32]

NEVER = None
HEAD = struct.Struct(">BBHIII")
NONE = np.zeros(0, dtype=np.uint32)


@dataclass(frozen=True)
class Frame:
    type: int
    job: int
    number: int
    words: Words = field(default_factory=lambda: NONE)
    tree: int = 0
    extra: int = 0

    def pack(self) -> bytes:
        head = HEAD.pack(self.type, self.tree, len(self.words), self.job, self.number, self.extra)
        return head + self.words.astype(">u4").tobytes()


def read_frame(packet: bytes) -> Frame | None:
    if len(packet) < HEAD.size:
        return None
    kind, tree, count, job, number, extra = HEAD.unpack_from(packet)
    if len(packet) != HEAD.size + 4 * count:
        return None
    words = np.frombuffer(packet, dtype=">u4", offset=HEAD.size).astype(np.uint32)
    return Frame(kind, job, number, words, tree, extra)


def after(a: int, b: int) -> int:
    """How far ``a`` is after ``b`` among numbers modulo 2^32."""
    return (a - b + 2**31) % 2**32 - 2**31


def added(element: str, one: Words, two: Words) -> Words:
    if element == "int32":
        return one + two
    with np.errstate(all="ignore"):
        return (one.view(np.float32) + two.view(np.float32)).view(np.uint32)


class WindowReference(Machine):
    """A worker with a window of numbered frames (cpp/hardware_trees/window.h)."""

    def __init__(self, job: Job, above: int) -> None:
        super().__init__()
        self.job, self.above = job, above
        self.first = self.base = self.next = self.end = job.number("first")
        self.got: set[int] = set()
        self.progress = self.timer = self.paused_until = 0
        self.failed = False

    def frame(self, number: int) -> Frame:
        raise NotImplementedError

    def allowed(self, number: int) -> bool:  # noqa: ARG002
        return True

    @property
    def done(self) -> bool:
        return self.base == self.end

    def start(self, frames: int, now: int) -> None:
        self.first = self.end
        self.end = (self.end + frames) % 2**32
        self.progress, self.timer = now, now + self.job.timeout
        self.proceed()

    def proceed(self) -> None:
        while (
            not self.paused_until
            and self.next != self.end
            and after(self.next, self.base) < self.job.window
            and self.allowed(self.next)
        ):
            self.counters["sent"] += 1
            self.send([self.above], self.frame(self.next))
            self.next = (self.next + 1) % 2**32

    def send_again(self, first: int) -> None:
        while first != self.next:
            if first not in self.got:
                self.counters["resent"] += 1
                self.send([self.above], self.frame(first))
            first = (first + 1) % 2**32

    def read(self, sender: int, packet: bytes) -> Frame | None:
        self.counters["received"] += 1
        frame = read_frame(packet)
        if frame is None:
            self.counters["malformed"] += 1
        elif sender != self.above or frame.job != self.job.id:
            self.counters["unknown_sender"] += 1
        else:
            return frame
        return None

    def under_way(self, number: int) -> str | None:
        """Why a number is not under way."""
        if after(number, self.base) < 0:
            return "stale"
        return "future" if after(number, self.next) >= 0 else None

    def awaited(self, number: int) -> bool:
        why = self.under_way(number) or ("duplicate" if number in self.got else None)
        self.counters[why or "completed"] += 1
        return why is None

    def take(self, number: int, now: int) -> None:
        self.got.add(number)
        while self.base != self.next and self.base in self.got:
            self.got.remove(self.base)
            self.base = (self.base + 1) % 2**32
        self.progress, self.timer = now, now + self.job.timeout
        if self.done:
            self.paused_until = 0
        self.proceed()

    def deadline(self) -> int | None:
        if self.done or self.failed:
            return NEVER
        return min(self.paused_until or self.timer, self.progress + self.job.give_up_timeout)

    def wake(self, now: int) -> Sent:
        deadline = self.deadline()
        if deadline is not None and now >= deadline:
            if now >= self.progress + self.job.give_up_timeout:
                self.failed = True
                return self.taken()
            self.paused_until = 0
            if now >= self.timer:
                self.send_again(self.base)
                self.timer = now + self.job.timeout
            self.proceed()
        return self.taken()
