"""Measure the cost of puts, signals, waits and launches: the constants of the put/signal simulation.

Rank 0 measures, rank 1 and one rank of another host are who it puts to. Everything is issued behind a wait for a signal
that rank 1 sends when all is issued, so that the host's own time does not count; a cost is what one more call adds to
the time from that signal to the end.

A canary looks for data that come after their signal: when a wait is over, are the data there that came before it? Every
rank puts a pattern that changes from round to round to each of its peers in turn. Behind the wait, on the same stream,
what has arrived is copied aside, and the copy is compared: what is still old was missing when the wait was over,
however soon it came. A user of NCCL 2.30 has seen that on GB300, with puts by copy engines outside of graphs
(NVIDIA/nccl issue 2375).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import msgspec
import numpy as np

from coppice.decoding import decodable
from coppice.errors import CheckError, InputError
from coppice.run.communicator.groups import host_of_process
from coppice.run.engines.put_signal.device import Awaited, Put
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.errors import RunError
from coppice.text import plural

_BYTES = 1 << 20
_MOST_PEERS = 8
_PATTERNS = 251


def check_arrivals(
    engine: PutSignalEngine, *, rounds: int = 16, num_bytes: int = _BYTES, timeout_s: float = 60.0
) -> int:
    """Put, signal and check; collective over the ranks.

    Args:
        engine: This rank's end of the group.
        timeout_s: Longest wait for another rank, in seconds.

    Returns:
        How many puts of all ranks were looked at.
    """
    rank, ranks, device = engine.rank, engine.ranks, engine.device
    engine.try_out(timeout_s, num_bytes=3 * num_bytes, communicators=1)
    found: list[tuple[int, int, int]] = []
    arrived = np.empty(num_bytes, dtype=np.uint8)
    shifts = range(1, min(ranks, _MOST_PEERS + 1))
    try:
        for number in range(rounds * len(shifts)):
            shift = shifts[number % len(shifts)]
            to, source = (rank + shift) % ranks, (rank - shift) % ranks
            device.write(0, np.full(num_bytes, _pattern(number, rank), dtype=np.uint8))
            engine.exchange(b"")  # all have looked at what came before
            device.begin()
            device.transfer(0, 0, [Put(to, 0, num_bytes, num_bytes, 0, 0)])
            device.wait(0, 0, [Awaited(source, 1, 0, 0)])
            device.copy(0, num_bytes, 2 * num_bytes, num_bytes)
            device.finish("a look at what has arrived", timeout_s)
            device.read(2 * num_bytes, arrived)
            old = int(np.count_nonzero(arrived != _pattern(number, source)))
            if old:
                found.append((number, source, old))
    except RunError as error:
        device.abort(str(error))
        raise
    told: list[list[tuple[int, int, int]]] = [
        msgspec.json.decode(each, type=decodable(list[tuple[int, int, int]]))
        for each in engine.exchange(msgspec.json.encode(found))
    ]
    count = sum(map(len, told))
    if count:
        receiver = next(each for each, entries in enumerate(told) if entries)
        number, source, old = told[receiver][0]
        raise CheckError(
            f"expected the data of a put when the wait for its signal is over, found {old} of {num_bytes} bytes still "
            f"old at rank {receiver}, from rank {source}, in round {number} ({plural(count, 'put')} of "
            f"{rounds * len(shifts) * ranks}): do not use puts of {device.name} here (NVIDIA/nccl issue 2375 tells of "
            "GB300 with NCCL 2.30), or capture them as a graph and probe again."
        )
    return rounds * len(shifts) * ranks


def _pattern(number: int, rank: int) -> int:
    """What a rank sends in a round: never what it, or its neighbours, sent in the rounds before."""
    return (number * 17 + rank) % _PATTERNS + 1


_GATE, _LINES = 0, 7
_SMALL_BYTES, _COPY_BYTES = 64, 8 << 20
_FEW, _MANY = 16, 128
_LEAST_US = 1e-3


def measure_put_signal_costs(
    engine: PutSignalEngine,  # This rank's end of the group, of two ranks or more
    *,
    rounds: int = 7,  # Times each experiment is made; the median counts
    timeout_s: float = 60.0,  # Longest wait for another rank, in seconds
    clock: Callable[[], float] = time.perf_counter,  # Gives seconds
    host: str | None = None,  # What ranks of one host have in common, None for what the system says
) -> dict[str, float]:
    """Measure the costs; collective over the ranks, equal on all.

    Returns:
        Fields of :class:`coppice.simulation.put_signal.PutSignalCosts`; those of the network only where ranks are on
        several hosts.
    """
    if engine.ranks < 2:
        raise InputError("expected two ranks or more, found one: there is nobody to put to.")
    hosts = engine.exchange((host_of_process() if host is None else host).encode())
    far = next((rank for rank, host in enumerate(hosts) if host != hosts[0]), -1)
    near = next((rank for rank, host in enumerate(hosts) if rank and host == hosts[0]), -1)
    try:
        found = _CostProbe(engine, rounds, timeout_s, clock).measured(near, far)
    except RunError as error:
        engine.device.abort(str(error))
        raise
    told: dict[str, float] = msgspec.json.decode(engine.exchange(msgspec.json.encode(found))[0])
    return told


class _CostProbe:
    def __init__(
        self, engine: PutSignalEngine, rounds: int, timeout_s: float, clock: Callable[[], float]
    ) -> None:
        self._engine, self._device = engine, engine.device
        self._rounds, self._timeout_s, self._clock = rounds, timeout_s, clock
        engine.try_out(timeout_s, num_bytes=2 * _COPY_BYTES, communicators=1 + _LINES)
        self._counters = [(1, 0)]
        if self._device.single:  # a counter holds one signal
            signals = range(self._device.signals)
            self._counters = [(line, signal) for line in range(1, 1 + _LINES) for signal in signals]
        self._many = len(self._counters) if self._device.single else _MANY
        self._few = self._many // 8 if self._device.single else _FEW

    def measured(self, near: int, far: int) -> dict[str, float]:
        """All experiments; what rank 0 finds counts."""
        size = _COPY_BYTES // 2
        tiny, one, two = (self._copies_us(num_bytes) for num_bytes in (_SMALL_BYTES, size, 2 * size))
        found = {"launch_us": tiny, "memory_gb_per_s": 2 * size / max(two - one, _LEAST_US) / 1e3}
        peer = near if near >= 0 else far
        found["wait_us"] = self._each(lambda number: self._wait_for(peer, number), gives=peer)
        if near >= 0:
            signal = self._each(lambda number: self._put(near, number, 0), takes=near)
            put = self._each(lambda number: self._put(near, number, _SMALL_BYTES), takes=near)
            found["signal_us"] = min(signal, put)
            found["wave_us"] = put - found["signal_us"]
        if far >= 0:
            alone = self._each(lambda number: self._put(far, number, _SMALL_BYTES), takes=far)
            grouped = self._each(lambda number: self._put(far, number, _SMALL_BYTES, group=True), takes=far)
            found["request_us"] = min(grouped, alone)
            found["proxy_us"] = found["told_us"] = (alone - found["request_us"]) / 2
        return found

    def _each(self, issue: Callable[[int], object], *, gives: int = -1, takes: int = -1) -> float:
        """What one more call costs, us: 0 where it costs less than can be told.

        Args:
            gives: Rank whose signals they wait for.
            takes: Rank that takes their signals afterwards.
        """
        few = self._seconds(self._few, issue, gives=gives, takes=takes)
        many = self._seconds(self._many, issue, gives=gives, takes=takes)
        return max(0.0, 1e6 * (many - few) / (self._many - self._few))

    def _seconds(
        self, number: int, issue: Callable[[int], object], *, gives: int = -1, takes: int = -1
    ) -> float:
        times = [self._once(number, issue, gives, takes) for _ in range(1 + self._rounds)]
        return statistics.median(times[1:])

    def _once(self, number: int, issue: Callable[[int], object], gives: int, takes: int) -> float:
        engine, device = self._engine, self._device
        if engine.rank == gives:
            self._put(0, number, 0)
            self._finish()
        engine.exchange(b"")
        if engine.rank == 0:
            device.begin()
            device.wait(_GATE, 0, [Awaited(1, 1, 0, 0)])
            issue(number)
        engine.exchange(b"")
        begin = self._clock()
        if engine.rank == 1:
            device.transfer(_GATE, 0, [Put(0, 0, 0, 0, 0, 0)])
        if engine.rank < 2:
            self._finish()
        seconds = self._clock() - begin
        engine.exchange(b"")
        if engine.rank == takes:
            self._wait_for(0, number)
            self._finish()
        engine.exchange(b"")
        return seconds

    def _finish(self) -> None:
        self._device.finish("a measurement of costs", self._timeout_s)

    def _copies_us(self, num_bytes: int) -> float:
        """Time of a copy within the own memory."""

        def issue(number: int) -> None:
            for _ in range(number):
                self._device.copy(0, 0, _COPY_BYTES, num_bytes)

        return self._each(issue)

    def _put(self, peer: int, number: int, num_bytes: int, *, group: bool = False) -> None:
        puts = []
        for at in range(number):
            line, signal = self._counters[at % len(self._counters)]
            puts.append((line, Put(peer, 0, _COPY_BYTES, num_bytes, signal, 0)))
        if group:
            self._device.transfer(puts[0][0], 0, [put for _, put in puts])
            return
        for line, put in puts:
            self._device.transfer(line, 0, [put])

    def _wait_for(self, peer: int, number: int) -> None:
        for at in range(number):
            line, signal = self._counters[at % len(self._counters)]
            self._device.wait(line, 0, [Awaited(peer, 1, signal, 0)])
