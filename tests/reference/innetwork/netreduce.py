"""NetReduce once more, as lists and dictionaries (Liu et al., ASPLOS 2023); cpp/aggregation has its packet."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

import numpy as np

from reference.innetwork import machine
from reference.innetwork.machine import Sent

NOBODY = -1
DATA, ACKNOWLEDGED, MISSING = 1, 2, 3
HEADER, LAST, FROM_SWITCH = 1, 2, 4
M32 = 2**32
PATIENCE = 2**62


@dataclass
class Packet:
    kind: int
    flags: int
    flow: int
    psn: int
    job: int = 0
    message: int = 0
    packets: int = 0
    position: int = 0
    payload: bytes = b""

    def has(self, flag: int) -> bool:
        return bool(self.flags & flag)

    @property
    def values(self) -> int:
        return len(self.payload) // 4

    def pack(self) -> bytes:
        head = struct.pack(">BBHI", self.kind, self.flags, self.flow, self.psn)
        if self.has(HEADER):
            head += struct.pack(">IIHH", self.job, self.message, self.packets, self.position)
        return head + self.payload


def parse(packet: bytes) -> Packet | None:
    if len(packet) < 8 or not 1 <= packet[0] <= 3 or packet[1] > 7:
        return None
    found = Packet(*struct.unpack(">BBHI", packet[:8]))
    if found.kind != DATA:
        return found if len(packet) == 8 and found.flags == 0 else None
    rest = packet[8:]
    if found.has(HEADER):
        if len(rest) < 12:
            return None
        found.job, found.message, found.packets, found.position = struct.unpack(">IIHH", rest[:12])
        rest = rest[12:]
        if found.position >= found.packets or (found.position + 1 == found.packets) != found.has(LAST):
            return None
    elif found.has(FROM_SWITCH):
        return None
    found.payload = rest
    return found if rest and len(rest) % 4 == 0 else None


def mixed(state: int) -> int:
    """The output of splitmix64 for this state."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def before(one: int, other: int) -> bool:
    """In numbers that wrap at 2^32."""
    return (one - other) % M32 >= 2**31


def power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


@dataclass
class Job(machine.Job):
    @property
    def packets(self) -> int:
        return int(self.settings.get("message_packets", 16))

    @property
    def fixed_point(self) -> float:
        return self.settings.get("fixed_point", 0) if self.floats else 0


@dataclass
class Slot:
    given: dict[int, np.ndarray] = field(default_factory=dict)  # by child
    values: int = 0
    summed: bool = False
    final: bool = False
    total: bytes = b""


@dataclass
class Message:
    number: int
    packets: int
    starts: dict[int, int] = field(default_factory=dict)  # by child, the number of the first packet
    switches: set[int] = field(default_factory=set)
    slots: dict[int, Slot] = field(default_factory=dict)

    @property
    def final(self) -> bool:
        return len(self.slots) == self.packets and all(slot.final for slot in self.slots.values())


@dataclass
class Served:
    job: Job
    children: list[int]
    parent: int
    messages: dict[int, Message] = field(default_factory=dict)  # by place in the ring
    flows: dict[int, int] = field(default_factory=dict)

    @property
    def ring(self) -> int:
        return power_of_two(2 * self.job.window)

    def total(self, given: dict[int, np.ndarray]) -> bytes:
        rows = [given[child] for child in range(len(self.children))]
        if not self.job.floats or self.job.fixed_point:
            return np.sum(np.array(rows, np.int64), axis=0).astype(np.uint32).astype(">u4").tobytes()
        with np.errstate(over="ignore", invalid="ignore"):
            total = rows[0].astype(np.uint32).view(np.float32).copy()
            for row in rows[1:]:
                total = total + row.astype(np.uint32).view(np.float32)
        patterns = np.where(np.isnan(total), np.uint32(0x7FC00000), total.view(np.uint32))
        return patterns.astype(">u4").tobytes()


class Machine(machine.Machine):
    def send(self, to: int, packet: Packet) -> None:  # type: ignore[override]
        super().send([to], packet)


class Switch(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, Served] = {}

    def open(self, job: Job, children: list[int], parent: int = NOBODY) -> None:
        self.jobs[job.id] = Served(job, children, parent)

    def receive(self, sender: int, packet: bytes, _now: int) -> Sent:
        self.counters["received"] += 1
        found = parse(packet)
        if found is None:
            self.counters["malformed"] += 1
            return []
        served = next((job for job in self.jobs.values() if sender in job.children), None)
        if served is None:
            above = self.jobs.get(found.job) if found.kind == DATA and found.has(HEADER) else None
            if above is None or sender == NOBODY or above.parent != sender or not found.has(FROM_SWITCH):
                self.counters["unknown_sender"] += 1
            else:
                self.down(above, found)
        elif found.kind != DATA:
            self.acknowledgement(served, served.children.index(sender), found)
        else:
            self.data(served, served.children.index(sender), found)
        return self.taken()

    def acknowledgement(self, served: Served, child: int, packet: Packet) -> None:
        earlier = (child - 1) % len(served.children)
        if packet.flow != served.flows.get(earlier):
            self.counters["unknown_sender"] += 1
        else:
            self.counters["forwarded"] += 1
            self.send(served.children[earlier], packet)

    def data(self, served: Served, child: int, packet: Packet) -> None:
        job = served.job
        if packet.flow != served.flows.get(child, packet.flow) or (
            packet.has(HEADER) and packet.job != job.id
        ):
            self.counters["unknown_sender"] += 1
            return
        if packet.values > job.values or (not packet.has(LAST) and packet.values != job.values):
            self.counters["malformed"] += 1
            return
        found = (
            self.by_header(served, child, packet)
            if packet.has(HEADER)
            else self.by_number(served, child, packet)
        )
        if found is None:
            return
        message, position = found
        slot = message.slots.setdefault(position, Slot())
        if slot.given and slot.values != packet.values:
            self.counters["malformed"] += 1
        elif child in slot.given:
            if slot.final:
                self.counters["answered"] += 1
                self.on(served, child, message, position)
            elif slot.summed:
                self.counters["forwarded"] += 1
                self.up(served, message, position)
            else:
                self.counters["duplicate"] += 1
        else:
            slot.values = packet.values
            slot.given[child] = np.frombuffer(packet.payload, ">u4")
            self.counters["aggregated"] += 1
            if len(slot.given) == len(served.children):
                self.counters["completed"] += 1
                slot.total = served.total(slot.given)
                if served.parent == NOBODY:
                    self.finish(served, message, position)
                else:
                    slot.summed = True
                    self.up(served, message, position)

    def by_header(self, served: Served, child: int, packet: Packet) -> tuple[Message, int] | None:
        job, as_switch = served.job, packet.has(FROM_SWITCH)
        if packet.packets > job.packets or (packet.position and not as_switch):
            self.counters["malformed"] += 1
            return None
        place = packet.message % served.ring
        for at, other in served.messages.items():
            if as_switch or at == place or child not in other.starts or child in other.switches:
                continue
            start = other.starts[child]
            if (packet.psn - start) % M32 < other.packets or (start - packet.psn) % M32 < packet.packets:
                self.counters["malformed"] += 1
                return None
        message = served.messages.get(place)
        if message is None or message.number != packet.message:
            if message is not None and before(packet.message, message.number):
                self.counters["stale"] += 1
                return None
            earlier = served.messages.get((packet.message - job.window) % served.ring)
            received = (
                earlier is not None
                and earlier.number == (packet.message - job.window) % M32
                and earlier.final
            )
            if packet.message >= job.window and not received:
                self.counters["future"] += 1
                return None
            message = served.messages[place] = Message(packet.message, packet.packets)
        elif message.packets != packet.packets or (
            child in message.starts
            and (message.starts[child] != packet.psn or (child in message.switches) != as_switch)
        ):
            self.counters["malformed"] += 1
            return None
        message.starts[child] = packet.psn
        if as_switch:
            message.switches.add(child)
        served.flows[child] = packet.flow
        return message, packet.position

    def by_number(self, served: Served, child: int, packet: Packet) -> tuple[Message, int] | None:
        for message in served.messages.values():
            if child not in message.starts or child in message.switches:
                continue
            position = (packet.psn - message.starts[child]) % M32
            if position < message.packets:
                if position == 0 or (position + 1 == message.packets) != packet.has(LAST):
                    self.counters["malformed"] += 1
                    return None
                return message, position
        self.counters["future"] += 1
        return None

    def finish(self, served: Served, message: Message, position: int) -> None:
        message.slots[position].final = True
        for child in range(len(served.children)):
            self.on(served, child, message, position)

    def sum_of(
        self, served: Served, message: Message, position: int, flags: int, flow: int, psn: int
    ) -> Packet:
        flags |= LAST if position + 1 == message.packets else 0
        numbers = (served.job.id, message.number, message.packets, position)
        return Packet(DATA, flags, flow, psn, *numbers, message.slots[position].total)

    def up(self, served: Served, message: Message, position: int) -> None:
        self.send(served.parent, self.sum_of(served, message, position, HEADER | FROM_SWITCH, 0, 0))

    def on(self, served: Served, child: int, message: Message, position: int) -> None:
        flow = served.flows[child]
        if child in message.switches:
            back = self.sum_of(served, message, position, HEADER | FROM_SWITCH, flow, 0)
            self.send(served.children[child], back)
            return
        psn = (message.starts[child] + position) % M32
        following = served.children[(child + 1) % len(served.children)]
        self.send(
            following, self.sum_of(served, message, position, HEADER if position == 0 else 0, flow, psn)
        )

    def down(self, served: Served, packet: Packet) -> None:
        message = served.messages.get(packet.message % served.ring)
        if message is None or message.number != packet.message:
            late = message is not None and before(packet.message, message.number)
            self.counters["stale" if late else "future"] += 1
            return
        slot = message.slots.get(packet.position)
        if packet.packets != message.packets or (
            slot is not None and slot.given and slot.values != packet.values
        ):
            self.counters["malformed"] += 1
        elif slot is None or not (slot.summed or slot.final):
            self.counters["future"] += 1
        elif slot.final:
            self.counters["duplicate"] += 1
        else:
            slot.total = packet.payload
            self.finish(served, message, packet.position)


@dataclass
class Outgoing:
    start: int
    packets: int
    last: int


class Worker(Machine):
    def __init__(self, job: Job, index: int, above: int) -> None:
        super().__init__()
        self.job, self.index, self.above = job, index, above
        self.linger = int(job.settings.get("linger", 8))
        self.top = math.floor((2**31 - 1) / job.workers)
        self.unacked = self.next_psn = self.expected = mixed(job.id) % M32
        self.messages: dict[int, Outgoing] = {}
        self.oldest = self.sent_messages = self.received = self.first = self.total = 0
        self.position = self.armed = self.tries = self.progress = 0
        self.flow: int | None = None
        self.told = False
        self.failure = ""
        self.input = self.output = np.zeros(0)

    @property
    def done(self) -> bool:
        return self.received == self.total and (self.unacked == self.next_psn or self.tries >= self.linger)

    def begin(self, values: np.ndarray, output: np.ndarray, now: int) -> Sent:
        self.input, self.output = values, output
        self.first, self.progress = self.total, now
        self.total += -(-len(values) // (self.job.values * self.job.packets))
        self.refill(now)
        return self.taken()

    def element(self, number: int, position: int) -> int:
        return ((number - self.first) * self.job.packets + position) * self.job.values

    def refill(self, now: int) -> None:
        job = self.job
        while self.sent_messages < min(self.total, self.received + job.window) and not self.failure:
            left = len(self.input) - self.element(self.sent_messages, 0)
            packets = min(job.packets, -(-left // job.values))
            if self.unacked == self.next_psn:
                self.armed, self.tries = now, 0
            last = min(left - (packets - 1) * job.values, job.values)
            self.messages[self.sent_messages] = Outgoing(self.next_psn, packets, last)
            self.next_psn = (self.next_psn + packets) % M32
            self.counters["sent"] += packets
            for position in range(packets):
                self.emit(self.sent_messages, position)
            self.sent_messages += 1

    def emit(self, number: int, position: int) -> None:
        of = self.messages[number]
        last = position + 1 == of.packets
        count = of.last if last else self.job.values
        if (number, position) < (self.received, self.position):
            payload = bytes(4 * count)
        else:
            start = self.element(number, position)
            part = self.input[start : start + count]
            if self.job.fixed_point:
                scaled = [float(value) * self.job.fixed_point for value in part.tolist()]
                if not all(
                    abs(value) <= self.top + 0.5 and abs(round(value)) <= self.top for value in scaled
                ):
                    self.failure = "beyond the fixed point"
                    return
                payload = np.array([round(value) for value in scaled], ">i4").tobytes()
            else:
                payload = part.view(np.int32).astype(">i4").tobytes()
        flags = (HEADER if position == 0 else 0) | (LAST if last else 0)
        numbers = (self.job.id, number % M32, of.packets, position)
        self.send(self.above, Packet(DATA, flags, self.index, (of.start + position) % M32, *numbers, payload))

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        self.counters["received"] += 1
        found = parse(packet)
        if found is None:
            self.counters["malformed"] += 1
            return []
        flow = self.index if found.kind != DATA else found.flow if self.flow is None else self.flow
        if sender != self.above or found.flow != flow or found.has(FROM_SWITCH):
            self.counters["unknown_sender"] += 1
        elif found.kind == DATA:
            self.data(found, now)
        else:
            self.acknowledged(found, now)
        return self.taken()

    def data(self, packet: Packet, now: int) -> None:
        if before(packet.psn, self.expected):
            self.counters["duplicate"] += 1
            self.acknowledge(ACKNOWLEDGED, packet.flow)
            return
        if packet.psn != self.expected:
            self.counters["future"] += 1
            if not self.told:
                self.acknowledge(MISSING, packet.flow)
            self.told = True
            return
        if self.received >= self.sent_messages:
            self.counters["future"] += 1
            return
        of = self.messages[self.received]
        last = self.position + 1 == of.packets
        header = (self.job.id, self.received % M32, of.packets)
        if (
            packet.values != (of.last if last else self.job.values)
            or packet.has(LAST) != last
            or packet.has(HEADER) != (self.position == 0)
            or (packet.has(HEADER) and (packet.job, packet.message, packet.packets) != header)
        ):
            self.counters["malformed"] += 1
            return
        start = self.element(self.received, self.position)
        values = np.frombuffer(packet.payload, ">i4").astype(np.int32)
        if self.job.fixed_point:
            self.output[start : start + packet.values] = (values / self.job.fixed_point).astype(np.float32)
        else:
            self.output[start : start + packet.values] = values.view(self.output.dtype)
        self.flow, self.told, self.progress = packet.flow, False, now
        self.expected = (self.expected + 1) % M32
        if not last:
            self.position += 1
            return
        self.position = 0
        self.received += 1
        self.counters["completed"] += 1
        self.acknowledge(ACKNOWLEDGED, packet.flow)
        # Every host has received what is a window before.
        past = self.received - self.job.window
        if past > 0 and self.oldest < past:
            self.advance(self.messages[past].start, now)
        self.refill(now)

    def acknowledge(self, kind: int, flow: int) -> None:
        self.send(self.above, Packet(kind, 0, flow, self.expected))

    def acknowledged(self, packet: Packet, now: int) -> None:
        if before(packet.psn, self.unacked):
            self.counters["stale"] += 1
        elif before(self.next_psn, packet.psn):
            self.counters["future"] += 1
        else:
            self.advance(packet.psn, now)
            if packet.kind == MISSING:
                self.go_back(now)

    def advance(self, psn: int, now: int) -> None:
        if psn == self.unacked:
            return
        self.unacked, self.armed, self.tries = psn, now, 0
        while self.oldest < self.sent_messages:
            of = self.messages[self.oldest]
            if before(self.unacked, (of.start + of.packets) % M32):
                break
            self.oldest += 1

    def go_back(self, now: int) -> None:
        self.armed = now
        for number in range(self.oldest, self.sent_messages):
            of = self.messages[number]
            for position in range(of.packets):
                if not before((of.start + position) % M32, self.unacked):
                    self.counters["resent"] += 1
                    self.emit(number, position)

    def deadline(self) -> int | None:
        if self.failure or (self.unacked == self.next_psn and self.received == self.total):
            return None
        if self.unacked == self.next_psn:
            return self.progress + PATIENCE
        return self.armed + (self.job.timeout << min(self.tries, 6))

    def wake(self, now: int) -> Sent:
        if not self.failure and self.unacked != self.next_psn and self.deadline() <= now:  # type: ignore[operator]
            self.tries += 1
            self.go_back(now)
        return self.taken()
