"""Slots in a switch, workers with time-outs, and packets that get lost: packet by packet, to check the closed form."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field


@dataclass
class LossyWindow:
    """One tensor of so many packets."""

    packets: int
    window: int
    workers: int
    wire_us: float
    rtt_us: float
    timeout_us: float
    loss: float
    seed: int
    events: list[tuple[float, int, str, int, int]] = field(default_factory=list)

    def run(self) -> float:
        """When the last worker has its last sum."""
        self.dice = random.Random(self.seed)
        self.free = [0.0] * self.workers
        self.arrived = [set[int]() for _ in range(self.packets)]
        self.have = [set[int]() for _ in range(self.workers)]
        self.end = 0.0
        for packet in range(min(self.window, self.packets)):
            for worker in range(self.workers):
                self.send(0.0, worker, packet)
        while self.events:
            now, _, kind, worker, packet = heapq.heappop(self.events)
            getattr(self, kind)(now, worker, packet)
        assert all(len(each) == self.packets for each in self.have)
        return self.end

    def at(self, time: float, kind: str, worker: int, packet: int) -> None:
        heapq.heappush(self.events, (time, self.dice.getrandbits(60), kind, worker, packet))

    def lost(self) -> bool:
        return self.dice.random() < self.loss

    def send(self, now: float, worker: int, packet: int) -> None:
        self.free[worker] = max(now, self.free[worker]) + self.wire_us
        if not self.lost():
            self.at(self.free[worker] + self.rtt_us / 2, "at_switch", worker, packet)
        self.at(now + self.timeout_us, "timed_out", worker, packet)

    def timed_out(self, now: float, worker: int, packet: int) -> None:
        if packet not in self.have[worker]:
            self.send(now, worker, packet)

    def at_switch(self, now: float, worker: int, packet: int) -> None:
        before = len(self.arrived[packet])
        self.arrived[packet].add(worker)
        if len(self.arrived[packet]) < self.workers:
            return
        for each in [worker] if before == self.workers else range(self.workers):
            if not self.lost():
                self.at(now + self.rtt_us / 2, "at_worker", each, packet)

    def at_worker(self, now: float, worker: int, packet: int) -> None:
        if packet in self.have[worker]:
            return
        self.have[worker].add(packet)
        self.end = now
        if packet + self.window < self.packets:
            self.send(now, worker, packet + self.window)
