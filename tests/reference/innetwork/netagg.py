"""NetAgg packet by packet: the reference of cpp/stream_trees/netagg.h, whose head has the format."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from reference.innetwork.machine import Job, Sent
from reference.innetwork.streams import CIRCLE, Received, Sender, combine, distance, signed

HEAD = struct.Struct(">BBBBIIIIIHH")
ACKNOWLEDGEMENT = struct.Struct(">BBHIIQ")
HEARTBEAT = struct.Struct(">BBHI")
PARTIAL, RESULT, ACK, BEAT = 1, 2, 3, 4
OPERATIONS = ("sum", "minimum", "maximum", "largest")
MOST_OUTGOING = 64


@dataclass
class Options(Job):
    @property
    def operation(self) -> str:
        return OPERATIONS[self.number("operation", 0)]

    @property
    def most(self) -> int:
        return self.number("k", 1) if self.operation == "largest" else self.values

    @property
    def first(self) -> int:
        return self.number("sequence", 0)

    @property
    def places(self) -> int:
        return 1 << (self.slots.bit_length() - 1)

    @property
    def outstanding(self) -> int:
        """Requests of a worker: at most half of the places."""
        return min(self.window, self.places // 2, 64)

    @property
    def dead(self) -> int:
        return self.number("dead", 4 * self.number("heartbeat", 0))

    @property
    def again(self) -> int:
        return self.number("again", min(self.give_up_timeout // 4, 1024 * self.timeout))

    @property
    def fallbacks(self) -> list[int]:
        return [self.number(name, -1) for name in ("next", "master") if self.number(name, -1) >= 0]

    def stream(self, receivers: Sequence[int]) -> Sender:
        return Sender(
            receivers, min(2 * self.outstanding, 64), self.first, self.timeout, self.give_up_timeout
        )

    def ordered(self, bits: int) -> int:
        return signed(bits ^ 0x7FFFFFFF if self.element == "float32" and bits >> 31 else bits)

    def prepared(self, values: Sequence[int]) -> list[int]:
        if self.operation != "largest":
            return list(values)
        return sorted(values, key=self.ordered, reverse=True)[: self.most]

    def fits(self, kept: Sequence[int], count: int) -> bool:
        return self.operation == "largest" or len(kept) == count

    def merged(self, kept: Sequence[int], arrived: Sequence[int]) -> list[int]:
        if self.operation == "largest":
            return self.prepared([*kept, *arrived])
        return [combine(self.operation, self.element, a, b) for a, b in zip(kept, arrived, strict=True)]


@dataclass(frozen=True)
class Message:
    kind: int
    alone: bool
    sequence: int
    request: int
    contributors: int
    members: int
    values: tuple[int, ...]

    def packed(self, options: Options, sequence: int) -> bytes:
        operation, application = options.number("operation", 0), options.id
        who = (self.contributors, self.members)
        head = (
            self.kind,
            operation,
            self.alone,
            0,
            application,
            sequence,
            self.request,
            *who,
            len(self.values),
            0,
        )
        return HEAD.pack(*head) + struct.pack(f">{len(self.values)}I", *self.values)


def message_of(packet: bytes, options: Options) -> Message | None:
    """None where the packet is not a message of the application."""
    if len(packet) < HEAD.size:
        return None
    kind, operation, flags, zero, _, sequence, request, contributors, members, count, rest = HEAD.unpack_from(
        packet
    )
    fields = (
        operation == options.number("operation", 0) and flags <= (kind == PARTIAL) and zero == 0 and rest == 0
    )
    bits = contributors != 0 and (members == 0 or contributors & ~members == 0)
    length = 1 <= count <= options.most and len(packet) == HEAD.size + 4 * count
    if not (fields and bits and length):
        return None
    values = struct.unpack_from(f">{count}I", packet, HEAD.size)
    return Message(kind, flags == 1, sequence, request, contributors, members, values)


def tree_of(request: int, trees: int) -> int:
    mixed = (request ^ request >> 16) * 0x85EBCA6B % CIRCLE
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 % CIRCLE
    return (mixed ^ mixed >> 16) % trees


def acknowledgement(application: int, window: Received, again: bool) -> bytes:
    return ACKNOWLEDGEMENT.pack(ACK, again, 0, application, window.next, window.beyond())


class Uplink:
    """A parent and those that take over from it."""

    def __init__(self, options: Options, uppers: Sequence[int]) -> None:
        self.options = options
        self.windows = {each: Received(options.first) for each in uppers}
        self.uppers = list(dict.fromkeys(uppers))
        self.at = 0
        self.heard = 0
        self.stream = options.stream(self.uppers[:1])

    def now_at(self) -> int:
        return self.uppers[self.at]

    def hear(self, sender: int, now: int) -> None:
        if sender == self.now_at():
            self.heard = now

    def suspicion(self, awaiting: bool) -> int | None:
        if self.options.dead == 0 or not awaiting or self.at + 1 >= len(self.uppers):
            return None
        return self.heard + self.options.dead

    def turn(self, now: int) -> None:
        self.at += 1
        self.heard = now
        self.stream = self.options.stream([self.now_at()])


@dataclass
class Child:
    at: int
    window: Received
    down: Sender
    standby: bool
    members: int = 0
    refused: bool = False
    listens: bool = False
    owed: list[int] = field(default_factory=list)


@dataclass
class Slot:
    state: str = "empty"
    request: int = 0
    merged: int = 0
    sent: int = 0
    values: list[int] = field(default_factory=list)


class Box:
    """A box, or the master, for one application."""

    def __init__(self, options: Options, children: Sequence[int], parent: int = -1) -> None:
        self.options = options
        expected = len(children) - options.number("standby", 0)
        self.children = [
            Child(at, Received(options.first), options.stream([at]), place >= expected)
            for place, at in enumerate(children)
        ]
        self.up = None if parent == -1 else Uplink(options, [parent, *options.fallbacks])
        self.slots = [Slot() for _ in range(options.places)]
        self.stragglers: deque[tuple[int, int]] = deque()
        self.outgoing: deque[Message] = deque()
        self.tasks: deque[tuple[Child, Message, int]] = deque()
        self.task_end: int | None = None
        self.beat: int | None = None
        self.asked_child = 0
        self.counters: Counter[str] = Counter()

    def slots_in_use(self) -> int:
        return sum(each.state == "open" for each in self.slots)

    def asked(self) -> bool:
        return any(each.state == "open" and each.sent for each in self.slots)

    def members(self) -> int:
        given = self.options.number("members", 0)
        expected = [each.members for each in self.children if not each.standby]
        if given or 0 in expected:
            return given
        found = 0
        for each in expected:
            found |= each
        return found

    def members_of(self, contributors: int) -> int:
        return self.members() if contributors & ~self.members() == 0 else 0

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        out: Sent = []
        self.counters["received"] += 1
        if len(packet) < HEARTBEAT.size or packet[0] not in (PARTIAL, RESULT, ACK, BEAT):
            self.counters["malformed"] += 1
            return out
        if int.from_bytes(packet[4:8], "big") != self.options.id:
            self.counters["out_of_range"] += 1
            return out
        child = next((each for each in self.children if each.at == sender), None)
        above = self.up.windows.get(sender) if self.up else None
        if child is None and above is None:
            self.counters["unknown_sender"] += 1
            return out
        if above and self.up:
            self.up.hear(sender, now)
        if packet[0] == ACK:
            self.acknowledged(child, sender, packet, now, out)
            return out
        if packet[0] == BEAT:
            self.counters["malformed"] += packet != HEARTBEAT.pack(BEAT, 0, 0, self.options.id)
            return out
        message = message_of(packet, self.options)
        if message is None:
            self.counters["malformed"] += 1
        elif message.kind == PARTIAL and child:
            self.from_child(child, message, len(packet), now, out)
        elif message.kind == RESULT and above:
            self.from_above(above, sender, message, now, out)
        else:
            self.counters["unknown_sender"] += 1
        return out

    def full(self) -> bool:
        limit = 2 * len(self.slots) * len(self.children)
        return len(self.outgoing) >= MOST_OUTGOING or len(self.tasks) >= limit

    def slot_of(self, request: int) -> tuple[Slot, int]:
        slot = self.slots[request % len(self.slots)]
        return slot, 1 if slot.state == "empty" else distance(request, slot.request)

    def from_child(self, child: Child, message: Message, size: int, now: int, out: Sent) -> None:
        arrival = child.window.look(message.sequence)
        slot, after = self.slot_of(message.request)
        if arrival == "future":
            self.counters["future"] += 1
            return
        if arrival == "duplicate":
            self.counters["duplicate"] += 1
        elif slot.state == "open" and after == 0 and not self.options.fits(slot.values, len(message.values)):
            self.counters["out_of_range"] += 1
            return
        elif self.full():
            self.counters["over_quota"] += 1
            child.refused = True
            return
        else:
            child.window.take(message.sequence)
            child.listens = True
            if self.options.number("rate", 0) == 0:
                self.merge(child, message, now, out)
            else:
                self.tasks.append((child, message, size))
                self.start_task(now)
            beat = self.options.number("heartbeat", 0)
            if self.beat is None and beat:
                self.beat = now + beat
        out.append(([child.at], acknowledgement(self.options.id, child.window, False)))

    def merge(self, child: Child, message: Message, now: int, out: Sent) -> None:
        if not message.alone and message.members:
            child.members = message.members
        slot, after = self.slot_of(message.request)
        if after < 0:
            self.counters["stale"] += 1
            return
        if after == 0 and slot.state == "done":
            self.counters["answered"] += 1
            self.send_result(child, slot, now, out)
            return
        if message.alone and self.up:
            self.counters["forwarded"] += 1
            self.send_up(message, now, out)
            return
        if after > 0:
            self.counters["evicted"] += slot.state == "open"
            slot.state, slot.request = "open", message.request
            slot.merged, slot.sent, slot.values = message.contributors, 0, list(message.values)
            straggler = self.options.number("straggler", 0)
            if straggler and self.up:
                self.stragglers.append((now + straggler, message.request))
        elif message.contributors & slot.merged:
            known = message.contributors & ~slot.merged == 0
            self.counters["duplicate" if known else "collided"] += 1
        elif not self.options.fits(slot.values, len(message.values)):
            self.counters["out_of_range"] += 1
        else:
            self.counters["aggregated"] += 1
            slot.values = self.options.merged(slot.values, message.values)
            slot.merged |= message.contributors
            if slot.sent:
                self.counters["forwarded"] += 1
                slot.sent |= message.contributors
                members = self.members_of(message.contributors)
                late = Message(
                    PARTIAL, False, 0, message.request, message.contributors, members, message.values
                )
                self.send_up(late, now, out)
        members = self.members()
        if not slot.sent and members and members & ~slot.merged == 0:
            self.counters["completed"] += 1
            if self.up:
                self.pass_on(slot, now, out)
            else:
                slot.state = "done"
                self.send_down(slot, now, out)

    def pass_on(self, slot: Slot, now: int, out: Sent) -> None:
        if not self.asked() and self.up:
            self.up.heard = now
        slot.sent = slot.merged
        members = self.members_of(slot.merged)
        self.send_up(
            Message(PARTIAL, False, 0, slot.request, slot.merged, members, tuple(slot.values)), now, out
        )

    def send_up(self, message: Message, now: int, out: Sent) -> None:
        assert self.up is not None
        if self.up.stream.room() and not self.outgoing:
            self.put_up(message, now, out)
        else:
            self.outgoing.append(message)

    def put_up(self, message: Message, now: int, out: Sent) -> None:
        assert self.up is not None
        stream = self.up.stream
        stream.send(stream.next, message.packed(self.options, stream.next), now, out, self.counters)

    def send_down(self, slot: Slot, now: int, out: Sent) -> None:
        for each in self.listening():
            self.send_result(each, slot, now, out)

    def listening(self) -> list[Child]:
        return [each for each in self.children if not each.standby or each.listens]

    def send_result(self, child: Child, slot: Slot, now: int, out: Sent) -> None:
        stream = child.down
        if not stream.room():
            if slot.request not in child.owed:
                child.owed.append(slot.request)
            return
        message = Message(RESULT, False, 0, slot.request, slot.merged, 0, tuple(slot.values))
        stream.send(stream.next, message.packed(self.options, stream.next), now, out, self.counters)

    def from_above(self, window: Received, sender: int, message: Message, now: int, out: Sent) -> None:
        arrival = window.look(message.sequence)
        if arrival == "future":
            self.counters["future"] += 1
            return
        if arrival == "fresh":
            window.take(message.sequence)
        slot, after = self.slot_of(message.request)
        if arrival == "duplicate" or (after == 0 and slot.state == "done"):
            self.counters["duplicate"] += 1
        elif after < 0:
            self.counters["stale"] += 1
        else:
            slot.state, slot.request = "done", message.request
            slot.merged = slot.sent = message.contributors
            slot.values = list(message.values)
            self.send_down(slot, now, out)
        out.append(([sender], acknowledgement(self.options.id, window, False)))

    def acknowledged(self, child: Child | None, sender: int, packet: bytes, now: int, out: Sent) -> None:
        if len(packet) != ACKNOWLEDGEMENT.size or packet[1] > 1 or packet[2:4] != b"\0\0":
            self.counters["malformed"] += 1
            return
        if child is None and self.up and sender != self.up.now_at():
            self.counters["stale"] += 1
            return
        _, again, _, _, start, beyond = ACKNOWLEDGEMENT.unpack(packet)
        stream = child.down if child else self.up.stream if self.up else None
        assert stream is not None
        if stream.acknowledge(0, start, beyond, again == 1, now, out, self.counters) == "impossible":
            self.counters["out_of_range"] += 1
        if child is not None:
            while child.owed and child.down.room():
                slot, after = self.slot_of(child.owed.pop(0))
                if slot.state == "done" and after == 0:
                    self.send_result(child, slot, now, out)
        self.proceed(now, out)

    def proceed(self, now: int, out: Sent) -> None:
        while self.outgoing and self.up and self.up.stream.room():
            self.put_up(self.outgoing.popleft(), now, out)
        if len(self.outgoing) >= MOST_OUTGOING // 2 or len(self.tasks) >= len(self.slots) * len(
            self.children
        ):
            return
        for step in range(1, len(self.children) + 1):
            which = (self.asked_child + step) % len(self.children)
            child = self.children[which]
            if child.refused:
                child.refused, self.asked_child = False, which
                out.append(([child.at], acknowledgement(self.options.id, child.window, True)))
                return

    def start_task(self, now: int) -> None:
        if self.task_end is None and self.tasks:
            size, rate = self.tasks[0][2], self.options.number("rate", 0)
            self.task_end = now + self.options.number("latency", 0) + size * 10**9 // rate

    def deadline(self) -> int | None:
        dues = [self.task_end, self.beat, *(each.down.due for each in self.children)]
        if self.up:
            dues += [self.up.stream.due, self.up.suspicion(self.asked())]
        if self.stragglers:
            dues.append(self.stragglers[0][0])
        return min((each for each in dues if each is not None), default=None)

    def wake(self, now: int) -> Sent:
        out: Sent = []
        if self.task_end is not None and now >= self.task_end:
            self.task_end = None
            child, message, _ = self.tasks.popleft()
            self.merge(child, message, now, out)
            self.proceed(now, out)
            self.start_task(now)
        if self.up:
            self.up.stream.wake(now, out, self.counters)
        for each in self.children:
            each.down.wake(now, out, self.counters)
        while self.stragglers and now >= self.stragglers[0][0]:
            slot, after = self.slot_of(self.stragglers.popleft()[1])
            if slot.state == "open" and after == 0 and not slot.sent:
                self.pass_on(slot, now, out)
        suspicion = self.up.suspicion(self.asked()) if self.up else None
        if self.up and suspicion is not None and now >= suspicion:
            self.up.turn(now)
            self.outgoing.clear()
            waiting = [each for each in self.slots if each.state == "open" and each.sent]
            least = waiting[0].request
            for slot in sorted(waiting, key=lambda each: distance(each.request, least)):
                self.pass_on(slot, now, out)
        if self.beat is not None and now >= self.beat:
            awaited = (
                self.slots_in_use() or self.tasks or any(each.down.due is not None for each in self.children)
            )
            self.beat = now + self.options.number("heartbeat", 0) if awaited else None
            beat = HEARTBEAT.pack(BEAT, 0, 0, self.options.id)
            out += [([each.at], beat) for each in self.listening()]
        return out


class Worker:
    """The shim of one worker."""

    def __init__(self, options: Options, index: int, above: int) -> None:
        self.options, self.index = options, index
        self.trees = [Uplink(options, [above, *options.fallbacks])]
        for tree in range(1, options.number("trees", 1)):
            uppers = [options.number(f"{name}_{tree}", -1) for name in ("above", "next")]
            self.trees.append(Uplink(options, [each for each in uppers if each >= 0]))
        self.first = self.base = self.next = 0
        self.chunks: list[list[int]] = []
        self.results: dict[int, list[int]] = {}
        self.open: dict[int, int] = {}  # when each request without an answer was sent
        self.active = False
        self.failed = False
        self.progress = 0
        self.counters: Counter[str] = Counter()

    def begin(self, elements: Sequence[int], now: int) -> Sent:
        out: Sent = []
        size = self.options.values
        if not elements:
            return out
        self.chunks = [list(elements[at : at + size]) for at in range(0, len(elements), size)]
        self.results, self.first, self.active, self.progress = {}, self.next, True, now
        self.fill(now, out)
        return out

    def tensor(self) -> list[int]:
        """What was received for every chunk, with zeros after it where it is shorter."""
        found = []
        for chunk, given in enumerate(self.chunks):
            values = self.results[chunk]
            found += values + [0] * (len(given) - len(values))
        return found

    @property
    def done(self) -> bool:
        return not self.active and not self.failed

    def tree(self, request: int) -> Uplink:
        return self.trees[tree_of(request, len(self.trees))]

    def awaiting(self, tree: Uplink) -> bool:
        return any(self.tree(request) is tree for request in self.open)

    def fill(self, now: int, out: Sent) -> None:
        while (
            distance(self.next, self.first) < len(self.chunks)
            and distance(self.next, self.base) < self.options.outstanding
        ):
            tree = self.tree(self.next)
            if not tree.stream.room():
                return
            if not self.awaiting(tree):
                tree.heard = now
            request, self.next = self.next, (self.next + 1) % CIRCLE
            self.ask(request, False, now, out)

    def ask(self, request: int, alone: bool, now: int, out: Sent) -> None:
        self.open[request] = now
        stream = self.tree(request).stream
        if not stream.room():
            return
        values = tuple(self.options.prepared(self.chunks[distance(request, self.first)]))
        message = Message(PARTIAL, alone, 0, request, 1 << self.index, 1 << self.index, values)
        stream.send(stream.next, message.packed(self.options, stream.next), now, out, self.counters)

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        out: Sent = []
        self.counters["received"] += 1
        if len(packet) < HEARTBEAT.size or packet[0] not in (RESULT, ACK, BEAT):
            self.counters["malformed"] += 1
            return out
        if int.from_bytes(packet[4:8], "big") != self.options.id:
            self.counters["out_of_range"] += 1
            return out
        up = next((each for each in self.trees if sender in each.windows), None)
        if up is None:
            self.counters["unknown_sender"] += 1
            return out
        up.hear(sender, now)
        if packet[0] == ACK:
            self.acknowledged(up, sender, packet, now, out)
            return out
        if packet[0] == BEAT:
            self.counters["malformed"] += packet != HEARTBEAT.pack(BEAT, 0, 0, self.options.id)
            return out
        message = message_of(packet, self.options)
        if message is None or message.contributors != (1 << self.options.workers) - 1:
            self.counters["malformed"] += 1
            return out
        window = up.windows[sender]
        arrival = window.look(message.sequence)
        if arrival == "future":
            self.counters["future"] += 1
            return out
        if arrival == "duplicate":
            self.counters["duplicate"] += 1
        else:
            window.take(message.sequence)
            self.result(message, now, out)
        out.append(([sender], acknowledgement(self.options.id, window, False)))
        return out

    def acknowledged(self, up: Uplink, sender: int, packet: bytes, now: int, out: Sent) -> None:
        if len(packet) != ACKNOWLEDGEMENT.size or packet[1] > 1 or packet[2:4] != b"\0\0":
            self.counters["malformed"] += 1
            return
        if sender != up.now_at():
            self.counters["stale"] += 1
            return
        _, again, _, _, start, beyond = ACKNOWLEDGEMENT.unpack(packet)
        if up.stream.acknowledge(0, start, beyond, again == 1, now, out, self.counters) == "impossible":
            self.counters["out_of_range"] += 1
        elif self.active:
            self.fill(now, out)

    def result(self, message: Message, now: int, out: Sent) -> None:
        request = message.request
        asked = distance(request, self.next) < 0
        if distance(request, self.base) < 0 or (asked and request not in self.open):
            self.counters["duplicate"] += 1
            return
        chunk = distance(request, self.first)
        room = len(self.chunks[chunk]) if asked else 0
        count = len(message.values)
        if count > room or (self.options.operation != "largest" and count != room):
            self.counters["out_of_range"] += 1
            return
        self.counters["completed"] += 1
        self.results[chunk] = list(message.values)
        del self.open[request]
        self.progress = now
        while self.base != self.next and self.base not in self.open:
            self.base = (self.base + 1) % CIRCLE
        if distance(self.base, self.first) == len(self.chunks):
            self.active = False
        else:
            self.fill(now, out)

    def deadline(self) -> int | None:
        dues: list[int | None] = [self.progress + self.options.give_up_timeout] if self.active else []
        for tree in self.trees:
            dues += [tree.stream.due, tree.suspicion(self.awaiting(tree))]
        dues += [asked + self.options.again for asked in self.open.values()]
        return min((each for each in dues if each is not None), default=None)

    def wake(self, now: int) -> Sent:
        out: Sent = []
        waiting = sorted(self.open, key=lambda request: distance(request, self.base))
        for tree in self.trees:
            tree.stream.wake(now, out, self.counters)
            suspicion = tree.suspicion(self.awaiting(tree))
            if suspicion is None or now < suspicion:
                continue
            tree.turn(now)
            for request in waiting:
                if self.tree(request) is tree:
                    self.ask(request, False, now, out)
        for request in waiting:
            if now - self.open[request] >= self.options.again:
                self.ask(request, True, now, out)
        if self.active and now - self.progress >= self.options.give_up_timeout:
            self.active, self.failed = False, True
            self.base = self.next
            self.open.clear()
        return out
