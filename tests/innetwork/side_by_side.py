"""Native machines and their twins, driven by the same packets: each reply, counter and time-out compared."""

from __future__ import annotations

import random
from typing import Any

Sent = list[tuple[list[int], bytes]]


class Both:
    """A native node and its twin as one; methods of the twin mean the same."""

    def __init__(self, native: Any, twin: Any) -> None:
        self.native, self.twin = native, twin

    def same(self, native: Sent, twin: Sent) -> Sent:
        assert native == twin
        return native

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        return self.same(self.native.receive(sender, packet, now), self.twin.receive(sender, packet, now))

    def check(self) -> None:
        counters = {name: count for name, count in self.native.counters().items() if count}
        assert counters == {name: count for name, count in self.twin.counts.items() if count}


class BothWorkers(Both):
    def begin(self, values: Any, now: int) -> Sent:
        """Starts an all-reduce; the results are compared at the end."""
        self.values = values.copy()
        self.results = (values.copy(), values.copy())
        native = self.native.begin(self.values.ctypes.data, self.results[0].ctypes.data, len(values), now)
        return self.same(native, self.twin.begin(self.values, self.results[1], now))

    def deadline(self) -> int | None:
        assert self.native.deadline_ns() == self.twin.deadline()
        return self.twin.deadline()

    def wake(self, now: int) -> Sent:
        return self.same(self.native.wake(now), self.twin.wake(now))

    def check(self) -> None:
        super().check()
        assert self.native.done() == self.twin.done
        assert self.results[0].tobytes() == self.results[1].tobytes()


def spoilt(packet: bytes, chance: random.Random) -> bytes:
    """The packet cut, lengthened, or with some bytes changed, most of them in its head."""
    kind = chance.randrange(4)
    if kind == 0:
        return packet[: chance.randrange(len(packet))]
    if kind == 1:
        return packet + chance.randbytes(chance.randrange(1, 9))
    changed = bytearray(packet)
    for _ in range(chance.randrange(1, 4)):
        at = (
            chance.randrange(min(len(packet), 24)) if chance.random() < 0.8 else chance.randrange(len(packet))
        )
        changed[at] = chance.choice(
            [0, 1, 2, 0xFF, changed[at] ^ 1 << chance.randrange(8), chance.randrange(256)]
        )
    return bytes(changed)


def run(
    nodes: dict[int, Both],
    first: list[tuple[int, Sent]],
    *,
    seed: int,
    loss: float,
    copy: float,
    reach: int,
    garbage: float,
    steps: int = 3000,
) -> None:
    """Delivers until all workers are done: each packet in turn is any of the first ``reach`` under way."""
    chance = random.Random(seed)
    under_way: list[tuple[int, int, bytes]] = []
    now = 0

    def take(sender: int, sent: Sent) -> None:
        under_way.extend((sender, to, packet) for receivers, packet in sent for to in receivers)

    for sender, sent in first:
        take(sender, sent)
    workers = {at: node for at, node in nodes.items() if isinstance(node, BothWorkers)}
    for _ in range(steps):
        if all(worker.twin.done for worker in workers.values()):
            break
        if not under_way:
            due = [(when, at) for at, node in workers.items() if (when := node.deadline()) is not None]
            if not due:
                break
            now = max(now, min(due)[0])
            for when, at in due:
                if when <= now:
                    take(at, workers[at].wake(now))
            continue
        sender, to, packet = under_way.pop(chance.randrange(min(reach, len(under_way))))
        now += 100
        if chance.random() < copy:
            under_way.append((sender, to, packet))
        if chance.random() < garbage:
            wrong = chance.choice([sender, sender, sender, chance.choice(list(nodes))])
            take(to, nodes[to].receive(wrong, spoilt(packet, chance), now))
        if chance.random() >= loss:
            take(to, nodes[to].receive(sender, packet, now))
    for node in nodes.values():
        node.check()
