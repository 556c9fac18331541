"""Reference of cpp/hardware_trees/sharp.h: groups with slots of their own, sums in the order of the children."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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

VALUES, SUM, REQUEST, GRANT = 1, 2, 3, 4


def possible(frame: Frame) -> bool:
    return 0 < frame.extra < 2**30 if frame.type in (REQUEST, GRANT) else frame.extra <= 1


def to_wire(job: Job, values: Words) -> Words:
    """Words on the way of the values of a frame."""
    half = job.number("half")
    if half == 0:
        return values
    if half == 1:
        with np.errstate(over="ignore"):
            bits = values.view(np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)
    else:
        bits = np.asarray((values + 0x7FFF + (values >> 16 & 1)) >> 16, dtype=np.uint32)
    bits = np.concatenate([bits, np.zeros(len(bits) % 2, dtype=np.uint32)])
    return np.asarray(bits[0::2] << 16 | bits[1::2], dtype=np.uint32)


def from_wire(job: Job, words: Words) -> Words:
    half = job.number("half")
    if half == 0:
        return words
    bits = np.stack([words >> 16, words & 0xFFFF], axis=1).reshape(-1)[: job.values]
    if half == 1:
        return bits.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    return np.asarray(bits << 16, dtype=np.uint32)


def combined(job: Job, one: Words, two: Words) -> Words:
    operation = job.number("operation")
    if operation == 0:
        return added(job.element, one, two)
    kind = np.int32 if job.element == "int32" else np.float32
    a, b = one.view(kind), two.view(kind)
    return np.where(b < a if operation == 1 else a < b, b, a).view(np.uint32)


@dataclass
class Buffer:
    number: int
    type: int = 0
    extra: int = 0
    stage: str = "unused"
    given: dict[int, Words] = field(default_factory=dict)
    sum: Words = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))


@dataclass
class Group:
    job: Job
    children: list[int]
    parent: int
    buffers: dict[int, Buffer]  # by place
    streams: bool = False
    to_stream: int = 0

    @property
    def words(self) -> int:
        return (self.job.values + 1) // 2 if self.job.number("half") else self.job.values


class SharpSwitchReference(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[int, Group] = {}
        self.streaming: dict[int, int] = {}
        self.waiting: dict[int, list[int]] = {}

    def open(self, job: Job, children: Sequence[int], parent: int = -1) -> None:
        ring = 1 << (2 * job.window - 1).bit_length()
        numbers = [(job.number("first") + i) % 2**32 for i in range(ring)]
        buffers = {number % ring: Buffer((number - ring) % 2**32) for number in numbers}
        self.groups[job.id] = Group(job, list(children), parent, buffers)

    def close(self, job: int) -> None:
        group = self.groups.pop(job)
        self.leave_tree(group)

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:  # noqa: ARG002
        self.counters["received"] += 1
        frame = read_frame(packet)
        group = self.groups.get(frame.job) if frame is not None else None
        if frame is None:
            self.counters["malformed"] += 1
        elif group is None or not (sender in group.children or sender == group.parent != -1):
            self.counters["unknown_sender"] += 1
        else:
            below = sender in group.children
            words = group.words if frame.type in (VALUES, SUM) else 0
            kinds = (VALUES, REQUEST) if below else (SUM, GRANT)
            if frame.type not in kinds or frame.tree or not possible(frame) or len(frame.words) != words:
                self.counters["malformed"] += 1
            elif below:
                self.from_child(group, group.children.index(sender), frame)
            else:
                self.from_parent(group, frame)
        return self.taken()

    def from_child(self, group: Group, child: int, frame: Frame) -> None:
        buffer = group.buffers[frame.number % len(group.buffers)]
        step = after(frame.number, buffer.number)
        if step < 0 or (step == 0 and buffer.stage == "unused"):
            self.counters["stale"] += 1
            return
        if step > 0:
            if step != len(group.buffers) or buffer.stage not in ("unused", "summed"):
                self.counters["future"] += 1
                return
            if group.parent == -1 and frame.type == VALUES and frame.extra and not group.streams:
                self.counters["over_quota"] += 1
                return
            buffer = Buffer(frame.number, frame.type, frame.extra, "open")
            group.buffers[frame.number % len(group.buffers)] = buffer
        elif (frame.type, frame.extra) != (buffer.type, buffer.extra):
            self.counters["malformed"] += 1
            return
        if child not in buffer.given:
            self.counters["aggregated"] += 1
            buffer.given[child] = frame.words
            if len(buffer.given) == len(group.children):
                self.complete(group, buffer)
        elif buffer.stage == "summed":
            self.counters["answered"] += 1
            self.pass_on(group, buffer, [group.children[child]], down=True)
        else:
            self.counters["duplicate"] += 1
            if buffer.stage == "waits":
                self.serve_tree(group.job.number("tree"))
            if buffer.stage == "passed up":
                self.counters["resent"] += 1
                self.pass_on(group, buffer, [group.parent], down=False)

    def from_parent(self, group: Group, frame: Frame) -> None:
        buffer = group.buffers[frame.number % len(group.buffers)]
        step = after(frame.number, buffer.number)
        if step or buffer.stage == "unused":
            self.counters["future" if step > 0 else "stale"] += 1
        elif buffer.stage == "summed":
            self.counters["duplicate"] += 1
        elif (frame.type, frame.extra, "passed up") != (buffer.type + 1, buffer.extra, buffer.stage):
            self.counters["malformed"] += 1
        else:
            buffer.sum = frame.words
            self.finish(group, buffer)

    def complete(self, group: Group, buffer: Buffer) -> None:
        if buffer.type == VALUES:
            total = from_wire(group.job, buffer.given[0])
            for child in range(1, len(group.children)):
                total = combined(group.job, total, from_wire(group.job, buffer.given[child]))
            buffer.sum = to_wire(group.job, total)
        tree = group.job.number("tree")
        if group.parent != -1:
            self.counters["forwarded"] += 1
            buffer.stage = "passed up"
            self.pass_on(group, buffer, [group.parent], down=False)
        elif buffer.type == REQUEST and (self.waiting.get(tree) or not self.take_tree(group, buffer)):
            buffer.stage = "waits"
            self.waiting.setdefault(tree, []).append(group.job.id)
        else:
            self.finish(group, buffer)

    def finish(self, group: Group, buffer: Buffer) -> None:
        self.counters["completed"] += 1
        buffer.stage = "summed"
        self.pass_on(group, buffer, group.children, down=True)
        if group.streams and buffer.type == VALUES:
            group.to_stream -= 1
            if group.to_stream == 0:
                self.leave_tree(group)
                self.serve_tree(group.job.number("tree"))

    def take_tree(self, group: Group, request: Buffer) -> bool:
        tree = group.job.number("tree")
        if group.streams or self.streaming.get(tree, 0) >= group.job.number("streams", 1):
            return False
        self.streaming[tree] = self.streaming.get(tree, 0) + 1
        group.streams, group.to_stream = True, request.extra
        return True

    def leave_tree(self, group: Group) -> None:
        tree = group.job.number("tree")
        if group.streams:
            self.streaming[tree] -= 1
        group.streams = False
        self.waiting[tree] = [job for job in self.waiting.get(tree, []) if job != group.job.id]

    def serve_tree(self, tree: int) -> None:
        while self.waiting.get(tree):
            group = self.groups[self.waiting[tree][0]]
            request = next(buffer for _, buffer in sorted(group.buffers.items()) if buffer.stage == "waits")
            if not self.take_tree(group, request):
                return
            self.waiting[tree].pop(0)
            self.finish(group, request)

    def pass_on(self, group: Group, buffer: Buffer, to: Sequence[int], *, down: bool) -> None:
        frame = Frame(buffer.type + down, group.job.id, buffer.number, buffer.sum, extra=buffer.extra)
        self.send(to, frame)


class SharpWorkerReference(WindowReference):
    streams = False

    def begin(self, words: Words, now: int) -> Sent:
        values = self.job.values
        frames = -(-len(words) // values)
        self.words = np.zeros(frames * values, dtype=np.uint32)
        self.words[: len(words)] = words
        self.output = np.zeros(frames * values, dtype=np.uint32)
        size = (2 if self.job.number("half") else 4) * len(words)
        self.streams = size > self.job.number("low_latency", 4096)
        self.start(frames + self.streams, now)
        return self.taken()

    def allowed(self, number: int) -> bool:
        return not self.streams or number == self.first or self.base != self.first

    def cut(self, number: int) -> slice:
        at = (after(number, self.first) - self.streams) * self.job.values
        return slice(at, at + self.job.values)

    def frame(self, number: int) -> Frame:
        if self.streams and number == self.first:
            return Frame(REQUEST, self.job.id, number, extra=after(self.end, self.first) - 1)
        words = to_wire(self.job, self.words[self.cut(number)])
        return Frame(VALUES, self.job.id, number, words, extra=int(self.streams))

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        frame = self.read(sender, packet)
        if frame is None:
            return []
        words = ((self.job.values + 1) // 2 if self.job.number("half") else self.job.values) * (
            frame.type == SUM
        )
        wrong = (
            frame.type not in (SUM, GRANT) or frame.tree or not possible(frame) or len(frame.words) != words
        )
        request = self.streams and frame.number == self.first
        if wrong or (self.under_way(frame.number) is None and request != (frame.type == GRANT)):
            self.counters["malformed"] += 1
        elif self.awaited(frame.number):
            if frame.type == SUM:
                self.output[self.cut(frame.number)] = from_wire(self.job, frame.words)
            self.take(frame.number, now)
        return self.taken()
