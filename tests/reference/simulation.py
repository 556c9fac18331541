"""The simulator's plain reference: quadratic, row by row, straight from the definition of a schedule's messages.

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

from coppice.schedule.lower import chunk_bounds
from coppice.schedule.schedule import Op, Schedule
from coppice.simulation import Model, Sharing

GRID = 2.0**-20
ARRIVED, DONE, LEFT, HANDLED, DRAINED, EMPTY_HEAD, HEAD, FREE = range(8)


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
    sent: float = -1.0  # left its sender, or arrived where sends are not buffered
    arrived: float = -1.0
    done: float = -1.0
    hops: list[float] = field(default_factory=list)  # begin on each link

    @property
    def links(self) -> list[tuple[int, int]]:
        return list(pairwise(self.nodes))

    @property
    def ready(self) -> bool:
        return self.start < 0 and all((m.done if done else m.sent) >= 0 for m, done in self.waits)


def messages_of(
    schedule: Schedule, size_bytes: int, *, steps_bind: bool = True, packed: bool = True
) -> list[Message]:
    """Messages of a schedule in which every transfer names its path."""
    length = chunk_bounds(schedule, size_bytes)[1].tolist()
    columns = (schedule.src, schedule.dst, schedule.chunk, schedule.op, schedule.path, schedule.step)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    found: dict[object, Message] = {}
    of_row: list[Message] = []
    run = _runs(rows)
    for row, (src, dst, chunk, op, path, step) in enumerate(rows):
        nodes = tuple(schedule.path_nodes[schedule.path_start[path] : schedule.path_start[path + 1]].tolist())
        key = row
        if step >= 0 and steps_bind:
            key = (step, nodes) if packed else run[row]
        message = found.setdefault(key, Message(len(found), src, dst, nodes, []))
        message.rows.append(row)
        message.bytes += length[chunk]
        message.added += length[chunk] if op == Op.REDUCE else 0
        of_row.append(message)
    for row, (src, dst, chunk, op, _, step) in enumerate(rows):
        for earlier in range(row):
            other, kind = rows[earlier], of_row[earlier]
            if step >= 0:
                if other[5] < step and (steps_bind or other[2] == chunk):
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


def _runs(rows: list[tuple[int, ...]]) -> list[tuple[str, int]]:
    """Which run of chunks that follow each other, and go the same way in the same step, each row belongs to."""
    found = [("run", row) for row in range(len(rows))]
    by_chunk = sorted(found, key=lambda each: (*rows[each[1]][:1:-1], each[1]))
    for (_, before), (_, row) in pairwise(by_chunk):
        if rows[row][3:] == rows[before][3:] and rows[row][2] == rows[before][2] + 1:
            found[row] = found[before]
    return found


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
        works = bool(model.workers)
        self.occupancy = [on_grid(us * 1000.0) for us in (model.send_us, model.receive_us)]
        more = 0.0 if works else model.send_us + model.receive_us
        self.overhead = on_grid((model.overhead_us + more) * 1000.0)
        groups = 1 if model.shared_workers else topology.num_ranks
        self.free = [model.workers] * groups
        self.lines: list[list[tuple[Message, int]]] = [[] for _ in range(groups)]
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

    def handling(self, message: Message, side: int) -> float:
        """Time that a worker takes for a message where it is sent (0) or received (1)."""
        if not self.model.workers:
            return 0.0
        rate = self.model.copy_gb_per_s
        return self.occupancy[side] + (0.0 if rate is None else on_grid(message.bytes / rate))

    def group(self, message: Message, side: int) -> int:
        return 0 if self.model.shared_workers else (message.src, message.dst)[side]

    def adding(self, message: Message) -> float:
        rate = self.model.reduce_gb_per_s
        return 0.0 if rate is None else on_grid(message.added / rate)


def simulated(schedule: Schedule, size_bytes: int, model: Model, *, pieces: int = 1) -> list[Message]:
    """All messages with their times; ``pieces`` says how many pieces compete for links by turn."""
    messages = messages_of(schedule, size_bytes, steps_bind=model.steps_bind, packed=model.packed)
    machine = Machine(schedule, model)
    network = (
        FairNetwork(machine)
        if model.sharing is Sharing.FAIR
        else FifoNetwork(machine, waves_of(schedule, messages, pieces), by_turns=pieces > 1)
    )
    now = 0.0
    while True:
        same_instant = bool(machine.events) and machine.events[0][0] == now
        if not (same_instant and machine.events[0][1] < HEAD):
            started = list(starting(machine, network, messages, now))
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
            if not model.buffered:
                sent(machine, message, now)
            if machine.handling(message, 1):
                take_turn(machine, network, message, 1, now)
            else:
                machine.at(now + machine.adding(message), DONE, message)
        elif kind == LEFT:
            sent(machine, message, now)
        elif kind == HANDLED:
            release(machine, network, message, 0, now)
        else:
            if machine.handling(message, 1):
                release(machine, network, message, 1, now)
            message.done = now
            machine.receiving[message.dst] -= 1


def sent(machine: Machine, message: Message, now: float) -> None:
    """Its sender goes on."""
    message.sent = now
    machine.sending[message.src] -= 1


def take_turn(machine: Machine, network: Network, message: Message, side: int, now: float) -> None:
    """Take a free worker, or wait for one."""
    group = machine.group(message, side)
    if machine.free[group]:
        machine.free[group] -= 1
        work(machine, network, message, side, now)
    else:
        machine.lines[group].append((message, side))


def work(machine: Machine, network: Network, message: Message, side: int, now: float) -> None:
    """A worker begins with a message."""
    whole = machine.handling(message, side)
    if side:
        machine.at(now + whole + machine.adding(message), DONE, message)
        return
    message.start = now
    machine.at(now + whole, HANDLED, message)
    leave_sender(machine, network, message, machine.occupancy[0], whole, now)


def release(machine: Machine, network: Network, message: Message, side: int, now: float) -> None:
    """A worker is free: it goes on with what has waited longest."""
    group = machine.group(message, side)
    if machine.lines[group]:
        work(machine, network, *machine.lines[group].pop(0), now)
    else:
        machine.free[group] += 1


def leave_sender(
    machine: Machine, network: Network, message: Message, head: float, tail: float, now: float
) -> None:
    """The head leaves in so long, the last byte not before it is copied."""
    model = machine.model
    begin = now + (0.0 if model.buffered else machine.overhead)
    streams = isinstance(network, FifoNetwork) and not model.store_and_forward
    if streams and isinstance(network, FifoNetwork):
        network.tail[message] = begin + tail
    machine.head_at(begin + (head if streams else tail), message)


def starting(machine: Machine, network: Network, messages: list[Message], now: float) -> Iterator[Message]:
    """Start what can start, in row order."""
    for message in messages:
        if machine.may_start(message):
            message.start = now
            machine.sending[message.src] += 1
            machine.receiving[message.dst] += 1
            if machine.handling(message, 0):
                take_turn(machine, network, message, 0, now)
            else:
                leave_sender(machine, network, message, 0.0, 0.0, now)
            yield message


def waves_of(schedule: Schedule, messages: list[Message], pieces: int) -> dict[Message, int]:
    """Piece of each message; the pieces of a chunk follow each other."""
    return {message: int(schedule.chunk[message.rows[0]]) % pieces for message in messages}


class FifoNetwork:
    """Links that serve one message at a time: of those that wait the one of the earliest piece, then by arrival."""

    def __init__(self, machine: Machine, wave: dict[Message, int], *, by_turns: bool) -> None:
        self.machine = machine
        self.wave = wave
        self.by_turns = by_turns
        self.links = list(machine.rate)
        self.free = dict.fromkeys(machine.rate, 0.0)
        burst = machine.model.burst_bytes
        self.burst = {link: on_grid(burst / float(rate)) for link, rate in machine.rate.items()}
        self.spent = {link: -self.burst[link] for link in machine.rate}
        self.waiting: dict[tuple[int, int], list[Message]] = {link: [] for link in machine.rate}
        self.tail: dict[Message, float] = {}  # when the last byte comes to the next node

    def head(self, message: Message, now: float) -> None:
        link = message.links[len(message.hops)]
        if not self.by_turns:  # what waits is served in the order in which it comes, so when is known
            self.serve(message, link, max(now, self.free[link]))
            return
        if self.free[link] <= now and not self.waiting[link]:
            self.serve(message, link, now)
            return
        if not self.waiting[link]:
            heapq.heappush(self.machine.events, (self.free[link], FREE, self.links.index(link)))
        self.waiting[link].append(message)

    def free_link(self, number: int, now: float) -> None:
        link = self.links[number]
        waiting = self.waiting[link]
        message = min(waiting, key=lambda m: (self.wave[m], waiting.index(m)))
        waiting.remove(message)
        self.serve(message, link, now)
        if waiting:
            heapq.heappush(self.machine.events, (self.free[link], FREE, number))

    def serve(self, message: Message, link: tuple[int, int], now: float) -> None:
        machine = self.machine
        message.hops.append(now)
        # As if the bucket had been empty all the time, but as much earlier as it takes to fill.
        self.spent[link] = max(now - self.burst[link], self.spent[link]) + machine.duration(
            message.bytes, link
        )
        served = self.free[link] = max(now, self.spent[link])
        last = max(served, self.tail.get(message, 0.0))
        if len(message.hops) == 1 and machine.model.buffered:
            machine.at(last, LEFT, message)
        self.tail[message] = last + machine.latency[link]
        if len(message.hops) == len(message.links):
            flight = machine.overhead if machine.model.buffered else 0.0
            machine.at(self.tail[message] + flight, ARRIVED, message)
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
        if self.machine.model.buffered:
            self.machine.at(now, LEFT, message)
            latency += self.machine.overhead
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


Network = FifoNetwork | FairNetwork


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
