"""ATP once more, as lists and dictionaries (Lao et al., NSDI 2021); cpp/aggregation has its packet."""

from __future__ import annotations

import math
import struct
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from reference.innetwork.machine import Job, Machine, Sent

NOBODY = -1
VALUES = 62
TOP, BOTTOM = 2**31 - 1, -(2**31)
OVERFLOW, SERVER, HALF, CONGESTED, RESEND, COLLISION, ACK = 0x80, 0x60, 0x10, 0x08, 0x04, 0x02, 0x01
WIRE = 308


@dataclass(frozen=True)
class Packet:
    bitmap: int
    workers: int
    flags: int
    application: int
    aggregator: int
    next: int
    key: int
    length: int
    values: tuple[int, ...] = (0,) * VALUES

    def has(self, flag: int) -> bool:
        return bool(self.flags & flag)

    def pack(self) -> bytes:
        head = (
            self.bitmap,
            self.workers,
            self.flags,
            self.application,
            self.key % 2**16,
            self.aggregator,
            self.next,
        )
        return struct.pack(">IBBHHHH62iQI", *head, *self.values, self.key, self.length)


def parse(packet: bytes) -> Packet | None:
    if len(packet) != 274:
        return None
    fields = struct.unpack(">IBBHHHH62iQI", packet)
    bitmap, workers, flags, application, sequence, aggregator, following = fields[:7]
    key, length = fields[-2:]
    good = (
        1 <= workers <= 32
        and 0 < bitmap < 2**workers
        and not flags & (SERVER | HALF)
        and sequence == key % 2**16
        and 1 <= length <= VALUES
        and key < 2**63
    )
    return (
        Packet(bitmap, workers, flags, application, aggregator, following, key, length, fields[7:-2])
        if good
        else None
    )


def mixed(state: int) -> int:
    """The output of splitmix64 for this state."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def sticking(a: int, b: int) -> int:
    for one in (a, b):
        if one in (TOP, BOTTOM):
            return one
    return min(max(a + b, BOTTOM), TOP)


def added(a: tuple[int, ...], b: tuple[int, ...], counts: Counter[str]) -> tuple[int, ...]:
    total = tuple(map(sticking, a, b))
    counts["saturated"] += sum(
        x not in (TOP, BOTTOM) and y in (TOP, BOTTOM) for x, y in zip(a, total, strict=True)
    )
    return total


def bits(bitmap: int) -> list[int]:
    return [at for at in range(32) if bitmap >> at & 1]


def addressed(ways: list[int], bitmap: int) -> list[int]:
    return list(dict.fromkeys(ways[w] for w in bits(bitmap) if ways[w] != NOBODY))


def owned(ways: list[int], sender: int, bitmap: int) -> bool:
    return sender != NOBODY and all(w < len(ways) and ways[w] == sender for w in bits(bitmap))


class Answered:
    """The keys of the last 256; those before are answered."""

    def __init__(self) -> None:
        self.end = 0
        self.keys: set[int] = set()

    def add(self, key: int) -> None:
        if key not in self:
            self.keys.add(key)
            self.end = max(self.end, key + 1)

    def __contains__(self, key: int) -> bool:
        return key in self.keys or key < self.end - 256


@dataclass
class Slot:
    application: int
    key: int
    length: int
    bitmap: int
    flags: int
    values: tuple[int, ...]


@dataclass
class Served:
    job: Job
    ways: list[int]
    parent: int
    answered: Answered = field(default_factory=Answered)

    @property
    def mask(self) -> int:
        return sum(1 << w for w, way in enumerate(self.ways) if way != NOBODY)

    @property
    def marks(self) -> bool:
        """No queue is ever seen: packets are marked if none is needed."""
        return self.job.settings.get("mark_bytes", 80_000) <= 0


class Switch(Machine):
    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots: list[Slot | None] = [None] * slots
        self.jobs: dict[int, Served] = {}

    def open(self, job: Job, children: list[int], parent: int) -> None:
        self.jobs[job.id] = Served(job, children, parent)

    def receive(self, sender: int, packet: bytes, _now: int) -> Sent:
        self.counters["received"] += 1
        found = parse(packet)
        if found is None:
            self.counters["malformed"] += 1
            return []
        served = self.jobs.get(found.application)
        if served is None or (sender != served.parent and not owned(served.ways, sender, found.bitmap)):
            self.counters["unknown_sender"] += 1
        elif found.workers != served.job.workers:
            self.counters["malformed"] += 1
        elif max(found.aggregator, found.next) >= len(self.slots):
            self.counters["out_of_range"] += 1
        elif sender == served.parent:
            self.down(served, found)
        else:
            self.up(served, found)
        return self.taken()

    def up(self, served: Served, packet: Packet) -> None:
        if served.marks and not packet.has(CONGESTED):
            packet = replace(packet, flags=packet.flags | CONGESTED)
            self.counters["marked"] += 1
        slot = self.slots[packet.aggregator]
        mine = slot is not None and (slot.application, slot.key) == (packet.application, packet.key)
        if packet.has(ACK | OVERFLOW) or (packet.has(RESEND) and not mine):
            self.forward(served, packet)
            return
        if packet.has(RESEND):
            assert slot is not None
            self.evict(served, slot, packet)
            return
        if packet.key in served.answered:
            self.counters["stale"] += 1
            return
        if slot is not None and not mine:
            past = slot.application == packet.application and slot.key + 100 <= packet.key
            if not past and slot.key not in self.jobs[slot.application].answered:
                self.counters["collided"] += 1
                self.forward(served, replace(packet, flags=packet.flags | COLLISION))
                return
            self.counters["evicted"] += 1
            slot = None
        sticky = packet.flags & (CONGESTED | COLLISION)
        if slot is None:
            slot = Slot(packet.application, packet.key, packet.length, packet.bitmap, sticky, packet.values)
            self.slots[packet.aggregator] = slot
        elif slot.length != packet.length:
            self.counters["malformed"] += 1
            return
        elif slot.bitmap & packet.bitmap:
            self.counters["duplicate"] += 1
            return
        else:
            slot.values = added(slot.values, packet.values, self.counters)
            slot.bitmap |= packet.bitmap
            slot.flags |= sticky
        self.counters["aggregated"] += 1
        if slot.bitmap == served.mask:
            self.counters["completed"] += 1
            whole = replace(packet, bitmap=slot.bitmap, flags=slot.flags, values=slot.values)
            self.send([served.parent], whole)

    def evict(self, served: Served, slot: Slot, packet: Packet) -> None:
        if slot.length != packet.length:
            self.counters["malformed"] += 1
            return
        self.counters["evicted"] += 1
        self.slots[packet.aggregator] = None
        flags = packet.flags | slot.flags
        if not slot.bitmap & packet.bitmap:
            slot.values = added(slot.values, packet.values, self.counters)
            slot.bitmap |= packet.bitmap
        elif packet.bitmap & ~slot.bitmap:
            self.forward(served, replace(packet, flags=flags))
            if not slot.bitmap & ~packet.bitmap:
                return
        self.send([served.parent], replace(packet, bitmap=slot.bitmap, flags=flags, values=slot.values))

    def down(self, served: Served, packet: Packet) -> None:
        if packet.has(ACK):
            slot = self.slots[packet.aggregator]
            if slot is not None and (slot.application, slot.key) == (packet.application, packet.key):
                self.slots[packet.aggregator] = None
            served.answered.add(packet.key)
        if not packet.bitmap & served.mask:
            self.counters["unknown_sender"] += 1
            return
        self.counters["forwarded"] += 1
        if served.marks and not packet.has(CONGESTED):
            self.counters["marked"] += 1
            packet = replace(packet, flags=packet.flags | CONGESTED)
        self.send(addressed(served.ways, packet.bitmap), packet)

    def forward(self, served: Served, packet: Packet) -> None:
        self.counters["forwarded"] += 1
        self.send([served.parent], packet)


@dataclass
class Chunk:
    key: int
    length: int
    bitmap: int = 0
    flags: int = 0
    next: int = 0
    values: tuple[int, ...] = (0,) * VALUES
    each: dict[int, tuple[int, ...]] | None = None  # in a round of floats, by worker
    done: bool = False


def float_of(pattern: int) -> float:
    return struct.unpack(">f", struct.pack(">i", pattern))[0]


def pattern_of(number: float) -> int:
    with np.errstate(over="ignore"):
        rounded = np.float32(np.nan if math.isnan(number) else number)
    return int(rounded.view(np.int32))


class Server(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, tuple[Served, dict[int, Chunk]]] = {}

    def open(self, job: Job, children: list[int], parent: int = NOBODY) -> None:
        ways = children if parent == NOBODY else [parent] * job.workers
        self.jobs[job.id] = (Served(job, ways, NOBODY), {})

    def receive(self, sender: int, packet: bytes, _now: int) -> Sent:
        self.counters["received"] += 1
        found = parse(packet)
        if found is None:
            self.counters["malformed"] += 1
        elif found.application not in self.jobs:
            self.counters["unknown_sender"] += 1
        else:
            self.take(*self.jobs[found.application], sender, found)
        return self.taken()

    def take(self, served: Served, chunks: dict[int, Chunk], sender: int, packet: Packet) -> None:
        job, counts = served.job, self.counters
        if not owned(served.ways, sender, packet.bitmap):
            counts["unknown_sender"] += 1
            return
        floats = packet.has(OVERFLOW)
        if (
            packet.workers != job.workers
            or (floats and (not job.floats or len(bits(packet.bitmap)) > 1))
            or (packet.has(OVERFLOW | ACK) and not packet.has(RESEND))
        ):
            counts["malformed"] += 1
            return
        if max(packet.aggregator, packet.next) >= job.slots:
            counts["out_of_range"] += 1
            return
        place = packet.key % 256
        chunk = chunks.get(place)
        if chunk is not None and chunk.key > packet.key:
            counts["stale"] += 1
            return
        if chunk is not None and chunk.key < packet.key:
            chunk = None
        if chunk is not None and chunk.length != packet.length:
            counts["malformed"] += 1
            return
        if chunk is not None and chunk.done:
            again = packet.has(RESEND) and not packet.has(ACK)
            counts["answered" if again else "duplicate"] += 1
            if again:
                self.answer(served, chunk, packet, packet.bitmap)
            return
        if chunk is None:
            if packet.has(ACK):
                counts["stale"] += 1
                return
            chunk = chunks[place] = Chunk(packet.key, packet.length)
        chunk.flags |= packet.flags & (CONGESTED | COLLISION)
        if packet.has(ACK):
            chunk.done, chunk.values, chunk.next = True, packet.values, packet.next
            chunk.flags = (chunk.flags & CONGESTED) | (packet.flags & OVERFLOW)
            counts["completed"] += 1
            self.answer(served, chunk, packet, served.mask)
        elif floats:
            self.as_float(served, chunk, packet)
        else:
            self.contribution(served, chunk, packet)

    def contribution(self, served: Served, chunk: Chunk, packet: Packet) -> None:
        missing = served.mask & ~chunk.bitmap
        if chunk.each is not None:
            self.counters["duplicate"] += 1
            if packet.has(RESEND):
                self.ask(served, packet, OVERFLOW, missing)
            return
        if chunk.bitmap & packet.bitmap == chunk.bitmap != packet.bitmap:
            chunk.values = packet.values
        elif not chunk.bitmap & packet.bitmap:
            chunk.values = added(chunk.values, packet.values, self.counters)
        else:
            self.counters["duplicate"] += 1
            if packet.has(RESEND) and not packet.bitmap & ~chunk.bitmap:
                self.ask(served, packet, 0, missing)
            return
        chunk.bitmap |= packet.bitmap
        self.counters["aggregated"] += 1
        if chunk.bitmap != served.mask:
            return
        if served.job.floats and any(value in (TOP, BOTTOM) for value in chunk.values):
            chunk.each, chunk.bitmap = {}, 0
            self.ask(served, packet, OVERFLOW, served.mask)
        else:
            self.finish(served, chunk, packet)

    def as_float(self, served: Served, chunk: Chunk, packet: Packet) -> None:
        if chunk.each is None:
            chunk.each, chunk.bitmap = {}, 0
        if chunk.bitmap & packet.bitmap:
            self.counters["duplicate"] += 1
            self.ask(served, packet, OVERFLOW, served.mask & ~chunk.bitmap)
            return
        chunk.each[bits(packet.bitmap)[0]] = packet.values
        chunk.bitmap |= packet.bitmap
        self.counters["aggregated"] += 1
        if chunk.bitmap == served.mask:
            rows = [[float_of(each) for each in chunk.each[w]] for w in range(served.job.workers)]
            totals = []
            for column in zip(*rows, strict=True):
                total = 0.0
                for value in column:
                    total += value
                totals.append(pattern_of(total))
            chunk.values = tuple(totals)
            chunk.each = None
            chunk.flags |= OVERFLOW
            self.finish(served, chunk, packet)

    def finish(self, served: Served, chunk: Chunk, packet: Packet) -> None:
        chunk.done, chunk.next = True, packet.aggregator
        if chunk.flags & COLLISION:
            chunk.next = mixed(packet.application << 16 | packet.aggregator) % served.job.slots
            self.counters["collided"] += 1
        self.counters["completed"] += 1
        self.answer(served, chunk, packet, served.mask)

    def answer(self, served: Served, chunk: Chunk, packet: Packet, whom: int) -> None:
        result = replace(packet, bitmap=whom, flags=chunk.flags | ACK, next=chunk.next, values=chunk.values)
        self.send(addressed(served.ways, whom), result)

    def ask(self, served: Served, packet: Packet, flags: int, whom: int) -> None:
        if whom:
            silent = (0,) * VALUES
            question = replace(
                packet, bitmap=whom, flags=flags | RESEND, next=packet.aggregator, values=silent
            )
            self.send(addressed(served.ways, whom), question)


@dataclass
class Pending:
    deadline: int
    timeout: int
    answered: bool = False
    hurried: bool = False
    floats: bool = False


class Worker(Machine):
    def __init__(self, job: Job, index: int, above: int) -> None:
        super().__init__()
        self.job, self.index, self.above = job, index, above
        self.short = int(job.settings.get("short_timeout", 200_000))
        self.factor = job.settings.get("factor", 1e6)
        self.window_bytes = job.window * WIRE
        self.round = self.calm = 0
        self.first = self.base = self.next = self.end = 0
        start = mixed(job.id)
        self.aggregators = [(start % job.slots + at) % job.slots for at in range(job.window)]
        self.pending: dict[int, Pending] = {}
        self.results: dict[int, Packet] = {}
        self.input = self.output = np.zeros(0)

    @property
    def done(self) -> bool:
        return self.base == self.end

    def begin(self, values: np.ndarray, output: np.ndarray, now: int) -> Sent:
        self.input, self.output = values, output
        self.first = self.end
        self.end += -(-len(values) // self.job.values)
        self.refill(now)
        return self.taken()

    def length(self, key: int) -> int:
        return min(self.job.values, len(self.input) - (key - self.first) * self.job.values)

    def refill(self, now: int) -> None:
        window = min(max(self.window_bytes // WIRE, 1), self.job.window)
        while self.next < min(self.end, self.base + window):
            self.pending[self.next] = Pending(now + self.job.timeout, min(self.short, self.job.timeout))
            self.counters["sent"] += 1
            self.emit(self.next, 0)
            self.next += 1

    def emit(self, key: int, flags: int) -> None:
        pending, start = self.pending[key], (key - self.first) * self.job.values
        part = self.input[start : start + self.length(key)]
        if pending.floats:
            flags |= OVERFLOW | RESEND
        values = (
            part.view(np.int32).tolist()
            if pending.floats or not self.job.floats
            else map(self.fixed, part.tolist())
        )
        padded = tuple(values) + (0,) * (VALUES - len(part))
        place = self.aggregators[key % self.job.window]
        head = (1 << self.index, self.job.workers, flags, self.job.id, place, place, key, len(part))
        self.send([self.above], Packet(*head, padded))

    def fixed(self, value: float) -> int:
        scaled = value * self.factor
        if math.isnan(scaled) or scaled == math.inf:
            return TOP
        return BOTTOM if scaled == -math.inf else min(max(round(scaled), BOTTOM), TOP)

    def again(self, key: int, now: int) -> None:
        pending = self.pending[key]
        pending.deadline = now + pending.timeout
        pending.timeout = min(2 * pending.timeout, max(self.job.timeout, self.short))
        self.counters["resent"] += 1
        self.emit(key, RESEND)

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        self.counters["received"] += 1
        found = parse(packet)
        if found is None:
            self.counters["malformed"] += 1
        elif sender != self.above or found.application != self.job.id or not found.bitmap >> self.index & 1:
            self.counters["unknown_sender"] += 1
        elif (
            found.workers != self.job.workers
            or (found.has(OVERFLOW) and not self.job.floats)
            or not found.has(ACK | RESEND)
        ):
            self.counters["malformed"] += 1
        elif max(found.aggregator, found.next) >= self.job.slots:
            self.counters["out_of_range"] += 1
        elif found.has(ACK):
            self.result(found, now)
        else:
            self.asked(found, now)
        return self.taken()

    def result(self, packet: Packet, now: int) -> None:
        key = packet.key
        if key >= self.next:
            self.counters["future"] += 1
            return
        if key < self.base or self.pending[key].answered:
            self.counters["duplicate"] += 1
            return
        if packet.length != self.length(key):
            self.counters["malformed"] += 1
            return
        self.counters["completed"] += 1
        self.pending[key].answered = True
        self.results[key] = packet
        self.results.pop(key - 256, None)
        start = (key - self.first) * self.job.values
        values = np.array(packet.values[: packet.length], np.int32)
        if self.job.floats and not packet.has(OVERFLOW):
            self.output[start : start + packet.length] = (values / self.factor).astype(np.float32)
        else:
            self.output[start : start + packet.length] = values.view(self.output.dtype)
        self.aggregators[key % self.job.window] = packet.next
        while self.base < self.next and self.pending[self.base].answered:
            del self.pending[self.base]
            self.base += 1
        self.adapt(packet)
        for earlier in range(self.base, key):
            late = self.pending[earlier]
            if not late.answered and not late.hurried:
                late.hurried = True
                self.again(earlier, now)
        self.refill(now)

    def adapt(self, packet: Packet) -> None:
        if packet.has(CONGESTED):
            self.counters["marked"] += 1
            if packet.key >= self.calm:
                self.window_bytes = max(self.window_bytes // 2, WIRE)
                self.calm = self.round = self.next
        elif self.base >= self.round:
            self.window_bytes = min(self.window_bytes + 1500, self.job.window * WIRE)
            self.round = self.next

    def asked(self, packet: Packet, now: int) -> None:
        key = packet.key
        if key >= self.next:
            self.counters["future"] += 1
        elif key >= self.base and not self.pending[key].answered:
            self.pending[key].floats |= packet.has(OVERFLOW)
            self.again(key, now)
        elif key in self.results:
            self.counters["answered"] += 1
            kept = self.results[key]
            flags = kept.flags & OVERFLOW | ACK | RESEND
            self.send([self.above], replace(kept, bitmap=1 << self.index, flags=flags, aggregator=kept.next))
        else:
            self.counters["stale"] += 1

    def deadline(self) -> int | None:
        if self.done:
            return None
        return min(each.deadline for each in self.pending.values() if not each.answered)

    def wake(self, now: int) -> Sent:
        for key in range(self.base, self.next):
            if not self.pending[key].answered and self.pending[key].deadline <= now:
                self.again(key, now)
        return self.taken()
