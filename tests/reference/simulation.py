"""The simulator's plain twin: quadratic, row by row, straight from the definition of a schedule's messages.

Every message keeps the list of all moments that it waits for, every waiting message is looked at whenever anything
happens, and fair rates are found by raising all of them together. Durations are rounded as the simulator rounds them
(multiples of 2^-20 ns), so that first-in-first-out timelines must agree to the last bit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from coppice.schedule.layout import chunk_bounds
from coppice.schedule.schedule import Op, Schedule
from coppice.simulation import Model, Sharing

__all__ = ["Message", "messages_of", "simulated"]

GRID = 2.0**-20
ARRIVED, DONE, DRAINED, EMPTY_HEAD, HEAD, FREE = range(6)


def on_grid(ns: float) -> float:
    return round(ns / GRID) * GRID


@dataclass(eq=False)
class Message:
    """Rows that travel together; times are in ns."""

    number: int
    src: int
    dst: int
    nodes: tuple[int, ...]
    rows: list[int]
    bytes: int = 0
    added: int = 0
    waits: list[tuple[Message, bool]] = field(
        default_factory=list
    )  # (message, must be done and not just arrived)
    start: float = -1.0
    arrived: float = -1.0
    done: float = -1.0
    hops: list[float] = field(default_factory=list)  # begin on each link

    @property
    def links(self) -> list[tuple[int, int]]:
        return list(pairwise(self.nodes))

    @property
    def ready(self) -> bool:
        return self.start < 0 and all((m.done if done else m.arrived) >= 0 for m, done in self.waits)


def messages_of(schedule: Schedule, size_bytes: int) -> list[Message]:
    """Messages of a schedule in which every transfer names its path."""
    length = chunk_bounds(schedule, size_bytes)[1].tolist()
    columns = (schedule.src, schedule.dst, schedule.chunk, schedule.op, schedule.path, schedule.step)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    found: dict[object, Message] = {}
    of_row: list[Message] = []
    for row, (src, dst, chunk, op, path, step) in enumerate(rows):
        nodes = tuple(schedule.path_nodes[schedule.path_start[path] : schedule.path_start[path + 1]].tolist())
        key = (step, nodes) if step >= 0 else row
        message = found.setdefault(key, Message(len(found), src, dst, nodes, []))
        message.rows.append(row)
        message.bytes += length[chunk]
        message.added += length[chunk] if op == Op.REDUCE else 0
        of_row.append(message)
    for row, (src, dst, chunk, op, _, step) in enumerate(rows):
        for earlier in range(row):
            other, kind = rows[earlier], of_row[earlier]
            if step >= 0:
                if other[5] < step:
                    of_row[row].waits += [(kind, False)] * (other[0] in (src, dst))
                    of_row[row].waits += [(kind, True)] * (other[1] in (src, dst))
            elif other[2] == chunk:
                if other[1] == src:  # what it sends
                    of_row[row].waits.append((kind, True))
                if other[0] == dst:  # what it would spoil
                    of_row[row].waits.append((kind, False))
                if other[1] == dst and Op.COPY in (op, other[3]):  # additions alone may come in any order
                    of_row[row].waits.append((kind, True))
        for earlier in schedule.after[schedule.after_start[row] : schedule.after_start[row + 1]].tolist():
            of_row[row].waits.append((of_row[earlier], True))
    return list(found.values())


class Machine:
    """Rates, latencies and engines in nanoseconds."""

    def __init__(self, schedule: Schedule, model: Model) -> None:
        topology = schedule.topology
        self.model = model
        self.rate: dict[tuple[int, int], Fraction] = {}
        self.latency: dict[tuple[int, int], float] = {}
        for ends, link in topology.link_index.items():
            self.rate[ends] = topology.gb_per_s(link)
            self.latency[ends] = on_grid(float(topology.latency_us[link]) * 1000.0)
        self.overhead = on_grid(model.overhead_us * 1000.0)
        self.events: list[tuple[float, int, int]] = []
        self.sending = [0] * topology.num_ranks
        self.receiving = [0] * topology.num_ranks

    def at(self, time: float, kind: int, message: Message) -> None:
        heapq.heappush(self.events, (time, kind, message.number))

    def head_at(self, time: float, message: Message) -> None:
        self.at(time, HEAD if message.bytes else EMPTY_HEAD, message)

    def duration(self, amount: int, link: tuple[int, int]) -> float:
        return on_grid(amount / float(self.rate[link]))

    def may_start(self, message: Message) -> bool:
        send, receive = self.model.send_engines, self.model.receive_engines
        return (
            message.ready
            and (not send or self.sending[message.src] < send)
            and (not receive or self.receiving[message.dst] < receive)
        )

    def adding(self, message: Message) -> float:
        rate = self.model.reduce_gb_per_s
        return 0.0 if rate is None else on_grid(message.added / rate)


def simulated(schedule: Schedule, size_bytes: int, model: Model, *, pieces: int = 1) -> list[Message]:
    """All messages with their times; ``pieces`` says how many pieces the rows are cut into, piece after piece."""
    messages = messages_of(schedule, size_bytes)
    machine = Machine(schedule, model)
    network = (
        FairNetwork(machine)
        if model.sharing is Sharing.FAIR
        else FifoNetwork(machine, len(messages) // pieces)
    )
    now = 0.0
    while True:
        same_instant = bool(machine.events) and machine.events[0][0] == now
        if not (same_instant and machine.events[0][1] < HEAD):
            started = list(starting(machine, messages, now))
            if started:
                continue
            if not same_instant:
                network.settle(now)
        if not machine.events:
            return messages
        now, kind, number = heapq.heappop(machine.events)
        if kind == FREE:
            network.free_link(number, now)
            continue
        message = messages[number]
        if kind in (EMPTY_HEAD, HEAD):
            network.head(message, now)
        elif kind == DRAINED:
            network.drained(message, now)
        elif kind == ARRIVED:
            message.arrived = now
            machine.sending[message.src] -= 1
            machine.at(now + machine.adding(message), DONE, message)
        else:
            message.done = now
            machine.receiving[message.dst] -= 1


def starting(machine: Machine, messages: list[Message], now: float) -> Iterator[Message]:
    """Start what can start, in row order."""
    for message in messages:
        if machine.may_start(message):
            message.start = now
            machine.sending[message.src] += 1
            machine.receiving[message.dst] += 1
            machine.head_at(now + machine.overhead, message)
            yield message


class FifoNetwork:
    """Links that serve one message at a time: of those that wait the one of the earliest piece, then by arrival."""

    def __init__(self, machine: Machine, messages_of_a_piece: int) -> None:
        self.machine = machine
        self.messages_of_a_piece = max(1, messages_of_a_piece)
        self.links = list(machine.rate)
        self.free = dict.fromkeys(machine.rate, 0.0)
        self.waiting: dict[tuple[int, int], list[Message]] = {link: [] for link in machine.rate}
        self.tail: dict[Message, float] = {}  # when the last byte comes to the next node

    def head(self, message: Message, now: float) -> None:
        link = message.links[len(message.hops)]
        if self.free[link] <= now and not self.waiting[link]:
            self.serve(message, link, now)
            return
        if not self.waiting[link]:
            heapq.heappush(self.machine.events, (self.free[link], FREE, self.links.index(link)))
        self.waiting[link].append(message)

    def free_link(self, number: int, now: float) -> None:
        link = self.links[number]
        waiting = self.waiting[link]
        message = min(waiting, key=lambda m: (m.number // self.messages_of_a_piece, waiting.index(m)))
        waiting.remove(message)
        self.serve(message, link, now)
        if waiting:
            heapq.heappush(self.machine.events, (self.free[link], FREE, number))

    def serve(self, message: Message, link: tuple[int, int], now: float) -> None:
        machine = self.machine
        message.hops.append(now)
        served = self.free[link] = now + machine.duration(message.bytes, link)
        self.tail[message] = max(served, self.tail.get(message, 0.0)) + machine.latency[link]
        if len(message.hops) == len(message.links):
            machine.at(self.tail[message], ARRIVED, message)
        elif machine.model.store_and_forward:
            machine.head_at(self.tail[message], message)
        else:
            machine.head_at(now + machine.latency[link], message)

    def drained(self, message: Message, now: float) -> None:
        raise NotImplementedError

    def settle(self, now: float) -> None:
        """Nothing is shared."""


@dataclass
class Flow:
    """Messages of one path, one after the other."""

    queue: list[Message]
    left: float  # bytes of the first that are left at `since`
    since: float
    rate: float = 0.0
    end: float = -1.0


class FairNetwork:
    """Links shared at max-min fair rates."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.flows: dict[tuple[int, ...], Flow] = {}

    def head(self, message: Message, now: float) -> None:
        flow = self.flows.get(message.nodes)
        if flow is not None:
            flow.queue.append(message)
            return
        message.hops.append(now)
        if message.bytes:
            self.flows[message.nodes] = Flow([message], float(message.bytes), now)
        else:
            self.leave(message, now)

    def leave(self, message: Message, now: float) -> None:
        latency = sum(self.machine.latency[link] for link in message.links)
        self.machine.at(now + latency, ARRIVED, message)

    def drained(self, message: Message, now: float) -> None:
        flow = self.flows.get(message.nodes)
        if flow is None or flow.queue[0] is not message or flow.end != now:
            return  # an old forecast
        while True:
            self.leave(flow.queue.pop(0), now)
            if not flow.queue:
                del self.flows[message.nodes]
                return
            flow.queue[0].hops.append(now)
            if flow.queue[0].bytes:
                flow.left, flow.since = float(flow.queue[0].bytes), now
                self.foresee(flow)
                return

    def foresee(self, flow: Flow) -> None:
        flow.end = flow.since + on_grid(flow.left / flow.rate)
        self.machine.at(flow.end, DRAINED, flow.queue[0])

    def free_link(self, number: int, now: float) -> None:
        raise NotImplementedError

    def settle(self, now: float) -> None:
        for nodes, rate in fair_rates(
            sorted(self.flows, key=lambda n: (len(n), n)), self.machine.rate
        ).items():
            flow = self.flows[nodes]
            if rate != flow.rate:
                flow.left = max(0.0, flow.left - flow.rate * (now - flow.since))
                flow.since, flow.rate = now, rate
                self.foresee(flow)


def fair_rates(
    paths: list[tuple[int, ...]], capacity: dict[tuple[int, int], Fraction]
) -> dict[tuple[int, ...], float]:
    """Progressive filling: again and again the link that is full first settles the flows on it."""
    links = {path: list(pairwise(path)) for path in paths}
    left = {link: float(rate) for link, rate in capacity.items()}
    settled: dict[tuple[int, ...], float] = {}
    while len(settled) < len(paths):
        growing = {
            link: [path for path in paths if path not in settled and link in links[path]]
            for link in sorted(left)
        }
        full = min((link for link in growing if growing[link]), key=lambda x: (left[x] / len(growing[x]), x))
        share = left[full] / len(growing[full])
        for path in growing[full]:
            settled[path] = share
            for link in links[path]:
                left[link] -= share
    return settled
