"""SwitchAgg packet by packet: the reference of cpp/stream_trees/switchagg.h, whose head has the format."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from reference.innetwork.machine import Job, Sent
from reference.innetwork.streams import CIRCLE, MOST_WINDOW, Received, Sender, combine, distance

HEAD = struct.Struct(">BBBBIIIHH")
ACKNOWLEDGEMENT = struct.Struct(">BBHIIQ")
UP, DOWN, ACK = 1, 2, 3
OPERATIONS = ("sum", "minimum", "maximum")
Values = tuple[int, ...]


def hash_of(key: bytes, start: int) -> int:
    found = start
    for each in key:
        found = (found ^ each) * 16777619 % CIRCLE
    found ^= found >> 16
    found = found * 0x85EBCA6B % CIRCLE
    found ^= found >> 13
    found = found * 0xC2B2AE35 % CIRCLE
    return found ^ found >> 16


class Engine:
    """A small memory with one place a hash in front of a large one."""

    def __init__(self, front: int, back: int, operation: str, element: str) -> None:
        self.front_size, self.back_size = front, back
        self.operation, self.element = operation, element
        self.front: dict[int, tuple[bytes, Values]] = {}
        self.back: dict[bytes, Values] = {}
        self.drained = 0  # entries of the back that were handed out

    def combined(self, a: Values, b: Values) -> Values:
        return tuple(combine(self.operation, self.element, x, y) for x, y in zip(a, b, strict=True))

    def add(self, key: bytes, values: Values, counters: Counter[str]) -> list[tuple[bytes, Values]]:
        place = hash_of(key, 2166136261) * self.front_size >> 32
        over = []
        if place in self.front and self.front[place][0] != key:
            counters["evicted"] += 1
            over = self.settle(place, counters)
        if place in self.front:
            counters["aggregated"] += 1
            self.front[place] = (key, self.combined(self.front[place][1], values))
        else:
            self.front[place] = (key, values)
        return over

    def settle(self, place: int, counters: Counter[str]) -> list[tuple[bytes, Values]]:
        key, values = self.front.pop(place)
        if key in self.back:
            counters["aggregated"] += 1
            self.back[key] = self.combined(self.back[key], values)
        elif len(self.back) < self.back_size:
            self.back[key] = values
        else:
            counters["forwarded"] += 1
            return [(key, values)]
        return []

    def drain(self, counters: Counter[str]) -> list[tuple[bytes, Values]] | None:
        """At most one pair; None once there are no more."""
        if self.front:
            return self.settle(min(self.front), counters)
        if self.drained < len(self.back):
            self.drained += 1
            return [list(self.back.items())[self.drained - 1]]
        self.back.clear()
        self.drained = 0
        return None


@dataclass
class Options(Job):
    @property
    def lanes(self) -> int:
        return self.number("lanes", self.values)

    @property
    def key_bytes(self) -> int:
        return self.number("key_bytes", 4)

    @property
    def back(self) -> int:
        return self.number("back", 16 * self.slots)

    @property
    def round(self) -> int:
        return self.number("round", max(self.back, 1))

    @property
    def first(self) -> int:
        return self.number("sequence", 0)

    @property
    def operation(self) -> str:
        return OPERATIONS[self.number("operation", 0)]

    @property
    def most_pairs(self) -> int:
        return self.values // self.lanes

    def stream(self, receivers: Sequence[int]) -> Sender:
        return Sender(receivers, min(self.window, 64), self.first, self.timeout, self.give_up_timeout)


def engine_of(length: int) -> int:
    return next(engine for engine in range(5) if length <= 4 << engine)


def pairs_of(packet: bytes, options: Options) -> list[tuple[bytes, Values]] | None:
    """The pairs of a packet; None where it is not one of the job."""
    _, operation, flags, zero, _, _, _, _, count = HEAD.unpack_from(packet)
    if operation != options.number("operation", 0) or flags > 1 or zero != 0:
        return None
    if count > options.most_pairs or (count == 0 and flags == 0):
        return None
    found, at = [], HEAD.size
    for _ in range(count):
        if at >= len(packet) or not 1 <= packet[at] <= options.key_bytes:
            return None
        key = packet[at + 1 : at + 1 + packet[at]]
        at += 1 + packet[at]
        if at + 4 * options.lanes > len(packet):
            return None
        found.append((key, struct.unpack_from(f">{options.lanes}I", packet, at)))
        at += 4 * options.lanes
    return found if at == len(packet) else None


def packed(key: bytes, values: Values) -> bytes:
    return bytes([len(key)]) + key + struct.pack(f">{len(values)}I", *values)


@dataclass
class Child:
    at: int
    window: Received
    end: int = 0
    ending: bool = False
    complete: bool = False
    refused: bool = False
    early: bool = False


class Switch:
    def __init__(self, options: Options, children: Sequence[int], parent: int = -1) -> None:
        self.options, self.parent = options, parent
        self.children = [Child(at, Received(options.first)) for at in children]
        self.from_parent = Received(options.first)
        self.up = options.stream([] if parent == -1 else [parent])
        self.down = options.stream(children)
        self.top = self.down if parent == -1 else self.up
        last = engine_of(options.key_bytes)
        self.engines = [
            Engine(options.slots, options.back, options.operation, options.element) for _ in range(last + 1)
        ]
        self.filling: list[bytes] = []
        self.round = self.draining = self.asked = 0
        self.answered = options.first
        self.counters: Counter[str] = Counter()

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        out: Sent = []
        self.counters["received"] += 1
        if len(packet) < HEAD.size or packet[0] not in (UP, DOWN, ACK):
            self.counters["malformed"] += 1
            return out
        if int.from_bytes(packet[4:8], "big") != self.options.id:
            self.counters["out_of_range"] += 1
            return out
        index = next((at for at, child in enumerate(self.children) if child.at == sender), None)
        above = sender == self.parent and sender != -1
        if packet[0] == ACK:
            self.acknowledged(index, above, packet, now, out)
            return out
        pairs = pairs_of(packet, self.options)
        if pairs is None:
            self.counters["malformed"] += 1
        elif packet[0] == UP and index is not None:
            self.from_child(index, packet, pairs, now, out)
        elif packet[0] == DOWN and above:
            self.relay(packet, now, out)
        else:
            self.counters["unknown_sender"] += 1
        return out

    def from_child(
        self, index: int, packet: bytes, pairs: list[tuple[bytes, Values]], now: int, out: Sent
    ) -> None:
        child = self.children[index]
        _, _, flags, _, _, sequence, acknowledged, round_, _ = HEAD.unpack_from(packet)
        heard = self.down.acknowledge(index, acknowledged, 0, False, now, out, self.counters)
        arrival = child.window.look(sequence)
        later = (round_ - self.round + 0x8000) % 0x10000 - 0x8000
        if heard == "impossible":
            self.counters["out_of_range"] += 1
        elif arrival == "duplicate":
            self.counters["duplicate"] += 1
            self.answer(child, False, out)
        elif arrival == "future":
            self.counters["future"] += 1
        elif later != 0:
            self.counters["future" if later > 0 else "stale"] += 1
            child.early = child.early or later > 0
        elif child.ending and (flags == 1 or distance(sequence, child.end) > 0):
            self.counters["out_of_range"] += 1
        elif not self.top.room():
            self.counters["over_quota"] += 1
            child.refused = True
        else:
            child.window.take(sequence)
            for key, values in pairs:
                for over in self.engines[engine_of(len(key))].add(key, values, self.counters):
                    self.emit(over, now, out)
            if flags == 1:
                child.ending, child.end = True, sequence
            child.complete = child.ending and distance(child.window.next, child.end) > 0
            self.answer(child, False, out)
        self.proceed(now, out)

    def relay(self, packet: bytes, now: int, out: Sent) -> None:
        sequence = HEAD.unpack_from(packet)[5]
        arrival = self.from_parent.look(sequence)
        if arrival == "future":
            self.counters["future"] += 1
            return
        if arrival == "duplicate":
            self.counters["duplicate"] += 1
            self.answer_parent(out)
        elif not self.down.fits(sequence):
            self.counters["over_quota"] += 1
        else:
            self.from_parent.take(sequence)
            self.down.send(sequence, packet, now, out, self.counters)

    def acknowledged(self, index: int | None, above: bool, packet: bytes, now: int, out: Sent) -> None:
        if len(packet) != ACKNOWLEDGEMENT.size or packet[1] > 1:
            self.counters["malformed"] += 1
            return
        if index is None and not above:
            self.counters["unknown_sender"] += 1
            return
        _, again, _, _, start, beyond = ACKNOWLEDGEMENT.unpack(packet)
        stream, which = (self.up, 0) if index is None else (self.down, index)
        if stream.acknowledge(which, start, beyond, again == 1, now, out, self.counters) == "impossible":
            self.counters["out_of_range"] += 1
        self.proceed(now, out)

    def answer(self, child: Child, again: bool, out: Sent) -> None:
        awaited = next((at + 1 for at, each in enumerate(self.children) if not each.complete), 0)
        fields = (ACK, again, awaited, self.options.id, child.window.next, child.window.beyond())
        out.append(([child.at], ACKNOWLEDGEMENT.pack(*fields)))

    def answer_parent(self, out: Sent) -> None:
        """What all children have."""
        self.answered = self.down.base
        out.append(([self.parent], ACKNOWLEDGEMENT.pack(ACK, 0, 0, self.options.id, self.answered, 0)))

    def emit(self, pair: tuple[bytes, Values], now: int, out: Sent) -> None:
        self.filling.append(packed(*pair))
        if len(self.filling) == self.options.most_pairs:
            self.send_filled(False, now, out)

    def send_filled(self, end: bool, now: int, out: Sent) -> None:
        root = self.parent == -1
        operation = self.options.number("operation", 0)
        acknowledged = 0 if root else self.down.base
        kind, tree, sequence = DOWN if root else UP, self.options.id, self.top.next
        head = HEAD.pack(kind, operation, end, 0, tree, sequence, acknowledged, self.round, len(self.filling))
        self.top.send(sequence, head + b"".join(self.filling), now, out, self.counters)
        self.filling = []

    def proceed(self, now: int, out: Sent) -> None:
        while all(each.complete for each in self.children) and self.top.room():
            if self.draining < len(self.engines):
                found = self.engines[self.draining].drain(self.counters)
                if found is None:
                    self.draining += 1
                for pair in found or []:
                    self.emit(pair, now, out)
                continue
            self.send_filled(True, now, out)
            self.counters["completed"] += 1
            self.round = (self.round + 1) % 0x10000
            self.draining = 0
            for each in self.children:
                each.refused = each.refused or each.early
                each.ending = each.complete = each.early = False
        half = min(self.options.window, 64) // 2
        if not all(each.complete for each in self.children) and self.top.fits(self.top.next + half):
            for step in range(1, len(self.children) + 1):
                which = (self.asked + step) % len(self.children)
                child = self.children[which]
                if child.refused:
                    child.refused, self.asked = False, which
                    self.answer(child, True, out)
                    break
        if self.parent != -1 and self.down.base != self.answered:
            self.answer_parent(out)

    def deadline(self) -> int | None:
        return min((each for each in (self.up.due, self.down.due) if each is not None), default=None)

    def wake(self, now: int) -> Sent:
        out: Sent = []
        self.up.wake(now, out, self.counters)
        self.down.wake(now, out, self.counters)
        return out

    def slots_in_use(self) -> int:
        return sum(len(each.front) + len(each.back) for each in self.engines)


class Worker:
    """Sends rounds of pairs, and combines what comes back in order."""

    def __init__(self, options: Options, above: int) -> None:
        self.options, self.above = options, above
        self.up = options.stream([above])
        self.received = Received(options.first)
        self.delivered = options.first
        self.waiting: dict[int, bytes] = {}
        self.rounds: list[list[tuple[bytes, Values]]] = []
        self.given = 0
        self.end_sent = True
        self.round = 0
        self.combined: dict[bytes, Values] = {}
        self.progress = 0
        self.probed = False
        self.failed = False
        self.counters: Counter[str] = Counter()

    def begin(self, rounds: list[list[tuple[bytes, Values]]], now: int) -> Sent:
        out: Sent = []
        self.rounds, self.combined = rounds, {}
        self.given, self.end_sent = 0, False
        self.progress, self.probed = now, False
        self.fill(now, out)
        self.deliver(now, out)
        return out

    def begin_tensor(self, elements: Sequence[int], now: int) -> Sent:
        lanes = self.options.lanes
        padded = [*elements, *[0] * (-len(elements) % lanes)]
        pairs = [
            (struct.pack(">I", block), tuple(padded[block * lanes : (block + 1) * lanes]))
            for block in range(len(padded) // lanes)
        ]
        size = self.options.round
        return self.begin([pairs[at : at + size] for at in range(0, len(pairs), size)], now) if pairs else []

    def tensor(self, count: int) -> list[int]:
        return [value for _, values in sorted(self.combined.items()) for value in values][:count]

    @property
    def done(self) -> bool:
        return not self.rounds and not self.failed

    def fill(self, now: int, out: Sent) -> None:
        while not self.end_sent and self.up.room():
            pairs = self.rounds[0][self.given : self.given + self.options.most_pairs]
            self.given += len(pairs)
            self.end_sent = self.given == len(self.rounds[0])
            head = self.head(self.end_sent, self.up.next, len(pairs))
            self.up.send(
                self.up.next, head + b"".join(packed(*each) for each in pairs), now, out, self.counters
            )

    def head(self, end: bool, sequence: int, count: int) -> bytes:
        operation, tree = self.options.number("operation", 0), self.options.id
        return HEAD.pack(UP, operation, end, 0, tree, sequence, self.received.next, self.round, count)

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        out: Sent = []
        self.counters["received"] += 1
        if len(packet) < HEAD.size or packet[0] not in (DOWN, ACK):
            self.counters["malformed"] += 1
        elif int.from_bytes(packet[4:8], "big") != self.options.id:
            self.counters["out_of_range"] += 1
        elif sender != self.above:
            self.counters["unknown_sender"] += 1
        elif packet[0] == ACK:
            self.acknowledged(packet, now, out)
        elif pairs_of(packet, self.options) is None:
            self.counters["malformed"] += 1
        else:
            self.result(packet, now, out)
        return out

    def acknowledged(self, packet: bytes, now: int, out: Sent) -> None:
        if len(packet) != ACKNOWLEDGEMENT.size or packet[1] > 1:
            self.counters["malformed"] += 1
            return
        _, again, _, _, start, beyond = ACKNOWLEDGEMENT.unpack(packet)
        heard = self.up.acknowledge(0, start, beyond, again == 1, now, out, self.counters)
        if heard == "impossible":
            self.counters["out_of_range"] += 1
        elif heard == "progress":
            self.progress, self.probed = now, False
            if self.rounds:
                self.fill(now, out)

    def result(self, packet: bytes, now: int, out: Sent) -> None:
        sequence = HEAD.unpack_from(packet)[5]
        arrival = self.received.look(sequence)
        if arrival == "future" or distance(sequence, self.delivered) >= MOST_WINDOW:
            self.counters["future"] += 1
            return
        if arrival == "duplicate":
            self.counters["duplicate"] += 1
        else:
            self.received.take(sequence)
            self.waiting[sequence] = packet
            self.progress, self.probed = now, False
            self.deliver(now, out)
        fields = (ACK, 0, 0, self.options.id, self.received.next, self.received.beyond())
        out.append(([self.above], ACKNOWLEDGEMENT.pack(*fields)))

    def deliver(self, now: int, out: Sent) -> None:
        while self.rounds and distance(self.received.next, self.delivered) > 0:
            packet = self.waiting.pop(self.delivered)
            self.delivered = (self.delivered + 1) % CIRCLE
            head = HEAD.unpack_from(packet)
            end = head[2] == 1
            if head[7] != self.round or (end and not self.end_sent):
                self.counters["stale"] += 1
                continue
            self.add(pairs_of(packet, self.options) or [])
            if not end:
                continue
            self.up.acknowledge(0, self.up.next, 0, False, now, out, self.counters)
            self.counters["completed"] += 1
            self.round = (self.round + 1) % 0x10000
            self.rounds = self.rounds[1:]
            if self.rounds:
                self.given, self.end_sent = 0, False
                self.fill(now, out)

    def add(self, pairs: list[tuple[bytes, Values]]) -> None:
        operation, element = self.options.operation, self.options.element
        for key, values in pairs:
            if key not in self.combined:
                self.combined[key] = values
                continue
            self.counters["aggregated"] += 1
            known = self.combined[key]
            self.combined[key] = tuple(
                combine(operation, element, a, b) for a, b in zip(known, values, strict=True)
            )

    def deadline(self) -> int | None:
        dues = [] if self.up.due is None else [self.up.due]
        if self.rounds:
            give_up_timeout = self.options.give_up_timeout
            dues.append(self.progress + (give_up_timeout if self.probed else give_up_timeout // 2))
        return min(dues, default=None)

    def wake(self, now: int) -> Sent:
        out: Sent = []
        self.up.wake(now, out, self.counters)
        if not self.rounds:
            return out
        if now - self.progress >= self.options.give_up_timeout:
            self.rounds, self.failed = [], True
        elif not self.probed and now - self.progress >= self.options.give_up_timeout // 2:
            self.probed = True
            out.append(([self.above], self.head(True, (self.up.base - 1) % CIRCLE, 0)))
        return out
