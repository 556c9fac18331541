"""SwitchML packet by packet: two sets for each slot, and ids that tell a late duplicate from a new packet.

After Sapio et al. (NSDI 2021) and the published packets; the rule of ids is the one of cpp/aggregation/switchml.h.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tests.reference.innetwork.numerics import block_exponent, block_quantised, block_scale

from reference.innetwork.machine import Job, Sent

CIRCLE = 2**32
KINDS = {64: 0x11, 256: 0x13}


@dataclass
class Options(Job):
    @property
    def first(self) -> int:
        return self.number("first_packet")

    @property
    def head(self) -> bytes:
        return bytes([KINDS.get(self.values, 0x14), self.id % 256])

    @property
    def size(self) -> int:
        return 10 + 4 * self.values


@dataclass
class Packet:
    id: int
    set: int
    slot: int
    exponents: tuple[int, int]
    values: list[int]

    def written(self, options: Options) -> bytes:
        pool = self.set << 15 | self.slot
        return (
            options.head
            + struct.pack("<I", self.id)
            + struct.pack(">Hbb", pool, *self.exponents)
            + struct.pack(f">{len(self.values)}i", *self.values)
        )


def read(packet: bytes) -> Packet:
    pool, first, second = struct.unpack(">Hbb", packet[6:10])
    values = list(struct.unpack(f">{(len(packet) - 10) // 4}i", packet[10:]))
    return Packet(struct.unpack("<I", packet[2:6])[0], pool >> 15, pool & 0x7FFF, (first, second), values)


def refusal(options: Options, packet: bytes) -> str | None:
    """What a packet is counted as that is none of the job, whatever its sender."""
    if len(packet) != options.size or packet[0] != options.head[0]:
        return "malformed"
    if packet[1] != options.head[1]:
        return "unknown_sender"
    return "out_of_range" if read(packet).slot >= options.slots else None


def wrong_id(expected: int, found: int) -> str:
    return "future" if 0 < (found - expected) % CIRCLE < CIRCLE // 2 else "stale"


def wrapped(value: int) -> int:
    return (value + 2**31) % CIRCLE - 2**31


@dataclass
class Set:
    """One of a slot's two."""

    id: int
    seen: set[int] = field(default_factory=set)
    missing: int = 0
    settled: bool = True
    values: list[int] = field(default_factory=list)
    exponents: tuple[int, int] = (0, 0)


class Switch:
    def __init__(self, options: Options, children: Sequence[int], parent: int = -1) -> None:
        self.options, self.children, self.parent = options, list(children), parent
        self.slots: dict[int, list[Set]] = {}
        self.latest: dict[int, int] = {}
        self.counters: Counter[str] = Counter()

    def deadline(self) -> None:
        return None

    def wake(self, now: int) -> Sent:  # noqa: ARG002
        raise AssertionError("a switch has no clock")

    def slots_in_use(self) -> int:
        return sum(not self.slots[slot][latest].settled for slot, latest in self.latest.items())

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:  # noqa: ARG002
        self.counters["received"] += 1
        if sender not in (*self.children, self.parent) or sender < 0:
            self.counters["unknown_sender"] += 1
            return []
        why = refusal(self.options, packet)
        if why is not None:
            self.counters[why] += 1
            return []
        found = read(packet)
        return self.settle(found) if sender == self.parent else self.contribute(sender, found)

    def contribute(self, child: int, packet: Packet) -> Sent:
        rounds = self.options.slots
        if packet.slot not in self.latest:
            first = (self.options.first + packet.slot) % CIRCLE
            if packet.id != first:
                return self.refuse(wrong_id(first, packet.id))
            self.slots[packet.slot] = [Set((first - rounds) % CIRCLE), Set((first - rounds) % CIRCLE)]
        else:
            one = self.slots[packet.slot][packet.set]
            if packet.id == one.id:
                return self.known(child, packet, one)
            latest = self.slots[packet.slot][self.latest[packet.slot]]
            if packet.id != (latest.id + rounds) % CIRCLE:
                return self.refuse(wrong_id(latest.id, packet.id))
            if one is latest or not latest.settled:
                return self.refuse("future")
        self.latest[packet.slot] = packet.set
        one = self.slots[packet.slot][packet.set]
        one.id, one.missing, one.settled = packet.id, len(self.children), False
        one.values, one.exponents = [0] * self.options.values, (-128, -128)
        return self.add(child, packet, one)

    def known(self, child: int, packet: Packet, one: Set) -> Sent:
        """A packet of an id that is summed, or was."""
        if child not in one.seen:
            return self.add(child, packet, one) if one.missing else self.refuse("stale")
        if one.settled:
            self.counters["answered"] += 1
            return self.reply(packet, one, [child])
        self.counters["duplicate"] += 1
        if one.missing:
            return []
        self.counters["resent"] += 1
        return self.reply(packet, one, [self.parent])

    def add(self, child: int, packet: Packet, one: Set) -> Sent:
        one.values = [wrapped(a + b) for a, b in zip(one.values, packet.values, strict=True)]
        one.exponents = (
            max(one.exponents[0], packet.exponents[0]),
            max(one.exponents[1], packet.exponents[1]),
        )
        one.seen.add(child)
        self.slots[packet.slot][1 - packet.set].seen.discard(child)
        one.missing -= 1
        self.counters["aggregated"] += 1
        if one.missing:
            return []
        self.counters.update(["completed", "sent"])
        one.settled = self.parent < 0
        return self.reply(packet, one, self.children if one.settled else [self.parent])

    def settle(self, packet: Packet) -> Sent:
        """The sum of all, from the parent."""
        one = self.slots[packet.slot][packet.set] if packet.slot in self.slots else None
        if one is None:
            return self.refuse("future")
        if packet.id != one.id:
            return self.refuse(wrong_id(one.id, packet.id))
        if one.settled:
            return self.refuse("stale")
        if one.missing:
            return self.refuse("future")
        one.values, one.exponents, one.settled = packet.values, packet.exponents, True
        self.counters["forwarded"] += 1
        return self.reply(packet, one, self.children)

    def reply(self, packet: Packet, one: Set, to: Sequence[int]) -> Sent:
        answer = Packet(one.id, packet.set, packet.slot, one.exponents, one.values)
        return [(list(to), answer.written(self.options))]

    def refuse(self, why: str) -> Sent:
        self.counters[why] += 1
        return []


class Worker:
    """Packet i of a tensor carries block i - lead and announces the exponent of block i; slots follow each other."""

    def __init__(self, options: Options, index: int, above: int) -> None:
        self.options, self.index, self.above = options, index, above
        self.counters: Counter[str] = Counter()
        self.passed = 0  # packets of all tensors before
        self.packets = self.lead = 0
        self.turns = [0] * options.slots  # how often each slot was used
        self.returned: set[int] = set()
        self.sent: dict[int, int] = {}  # packet under way: when it was sent, the oldest first
        self.again: set[int] = set()
        self.ready: deque[int] = deque()
        self.agreed: dict[int, int] = {}  # exponents, of blocks
        self.progress = self.silent = self.smooth = self.spread = 0
        self.failed = False
        self.result: list[np.ndarray] = []

    def begin(self, values: np.ndarray, now: int) -> Sent:
        size = self.options.values
        self.passed += self.packets
        self.blocks = [values[at : at + size] for at in range(0, len(values), size)]
        self.lead = min(self.options.window, len(self.blocks)) if self.options.element == "float32" else 0
        self.packets = len(self.blocks) + self.lead
        self.result = [np.zeros_like(block) for block in self.blocks]
        self.returned, self.agreed, self.again = set(), {}, set()
        self.progress, self.silent = now, 0
        out: Sent = []
        for packet in range(min(self.lead or self.packets, self.options.slots)):
            self.offer(packet, now, out)
        return out

    @property
    def done(self) -> bool:
        return len(self.returned) == self.packets

    def slot(self, packet: int) -> int:
        return (self.passed + packet) % self.options.slots

    def id(self, packet: int) -> int:
        return (self.options.first + self.passed + packet) % CIRCLE

    def offer(self, packet: int, now: int, out: Sent) -> None:
        needs = [packet - self.options.slots] + ([packet - self.lead] if self.lead else [])
        if packet >= self.packets or any(each >= 0 and each not in self.returned for each in needs):
            return
        if len(self.sent) < self.options.window:
            self.send(packet, now, out)
        else:
            self.ready.append(packet)

    def send(self, packet: int, now: int, out: Sent) -> None:
        self.sent[packet] = now
        self.counters["sent"] += 1
        out.append(([self.above], self.written(packet)))

    def written(self, packet: int) -> bytes:
        options, block = self.options, packet - self.lead
        values = [0] * options.values
        if block >= 0:
            for i, value in enumerate(self.blocks[block]):
                quantised = self.lead and block_quantised(value, self.agreed[block], options.workers)
                values[i] = quantised if self.lead else int(value)
        exponents = (0, 0)
        if self.lead:
            own = block_exponent(self.blocks[packet]) if packet < len(self.blocks) else -126
            exponents = (127, 1) if own is None else (own, 0)
        slot = self.slot(packet)
        return Packet(self.id(packet), self.turns[slot] % 2, slot, exponents, values).written(options)

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        self.counters["received"] += 1
        why = "unknown_sender" if sender != self.above else refusal(self.options, packet)
        if why is not None:
            self.counters[why] += 1
            return []
        found = read(packet)
        waiting = [each for each in self.sent if self.slot(each) == found.slot]
        if not waiting:
            self.counters["stale"] += 1
            return []
        mine = waiting[0]
        if self.failed or found.id != self.id(mine) or found.set != self.turns[found.slot] % 2:
            self.counters[wrong_id(self.id(mine), found.id)] += 1
            return []
        sent = self.sent.pop(mine)
        if mine not in self.again:
            self.learn(now - sent)
        self.turns[found.slot] += 1
        self.returned.add(mine)
        self.progress, self.silent = now, 0
        self.counters["completed"] += 1
        self.take(mine, found)
        out: Sent = []
        if self.failed:
            return out
        self.offer(mine + self.options.slots, now, out)
        if self.lead and self.lead != self.options.slots:
            self.offer(mine + self.lead, now, out)
        while self.ready and len(self.sent) < self.options.window:
            self.send(self.ready.popleft(), now, out)
        return out

    def take(self, packet: int, found: Packet) -> None:
        block = packet - self.lead
        if block >= 0:
            sums = np.array(found.values[: len(self.blocks[block])])
            if self.lead:
                step = 1 / float(block_scale(self.agreed[block], self.options.workers))
                with np.errstate(over="ignore"):
                    self.result[block][:] = (sums * step).astype(np.float32)
            else:
                self.result[block][:] = sums
        if self.lead and packet < len(self.blocks):
            self.agreed[packet] = found.exponents[0]
            self.failed = found.exponents[1] != 0

    def learn(self, took: int) -> None:
        if not self.options.number("adaptive_timeout"):
            return
        if self.smooth == 0:
            self.smooth, self.spread = took, took // 2
            return
        self.spread += int((abs(self.smooth - took) - self.spread) / 4)
        self.smooth += int((took - self.smooth) / 8)

    def timeout(self) -> int:
        wait = self.options.timeout
        if self.options.number("adaptive_timeout") and self.smooth > 0:
            wait = min(wait, 2 * self.smooth + 4 * self.spread)
        after = self.options.number("doubled_after", 100)
        return wait << min((self.silent // after + 1).bit_length() - 1, 20) if after > 0 else wait

    def deadline(self) -> int | None:
        if not self.sent or self.failed:
            return None
        return min(
            next(iter(self.sent.values())) + self.timeout(), self.progress + self.options.give_up_timeout
        )

    def wake(self, now: int) -> Sent:
        due = self.deadline()
        if due is None or now < due:
            return []
        if now >= self.progress + self.options.give_up_timeout:
            self.failed = True
            return []
        wait, out = self.timeout(), []
        for packet, sent in list(self.sent.items()):
            if sent + wait > now:
                break
            del self.sent[packet]
            self.sent[packet] = now
            self.again.add(packet)
            self.silent += 1
            self.counters["resent"] += 1
            out.append(([self.above], self.written(packet)))
        return out
