"""Times of a device's work and of what ranks do together: the only clock of recorded trainings.

Recorded times are those of the work, not of its submission. What all ranks of a group do takes what the slowest of them
takes, as the median over rounds of which the first, with its set-up, does not count.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

_SMALL_BYTES = 16 * 1024
_IN_A_ROW_BYTES = 256 * 1024
_LARGE_COUNT = 2
_LARGEST_BYTES = 32 * 2**20
_ENOUGH_S = 0.03
_ROUNDS = 5


def now() -> float:
    """Seconds of the clock of the host."""
    return time.perf_counter()


class DeviceClock:
    """DeviceClock of a device; without one, of the host."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device if device is not None and device.type != "cpu" else None

    def synchronize(self) -> None:
        """Wait for the work of the device."""
        if self._device is not None:
            torch.get_device_module(self._device).synchronize(self._device)

    def now(self) -> float:
        """Seconds at which the work so far is done."""
        self.synchronize()
        return time.perf_counter()


class Timings:
    """Seconds of things that happen several times, by what they are.

    Args:
        clock: The clock.
        kept: Of each the last so many are kept; None: all.
    """

    def __init__(self, clock: DeviceClock, *, kept: int | None = None) -> None:
        self._clock, self._kept = clock, kept
        self._seconds: dict[object, deque[float]] = {}

    @contextmanager
    def timed(self, what: object) -> Iterator[None]:
        """Time something."""
        begin = self._clock.now()
        yield
        self.add(what, self._clock.now() - begin)

    def add(self, what: object, seconds: float) -> None:
        """Record a time."""
        self._seconds.setdefault(what, deque(maxlen=self._kept)).append(seconds)

    def forget(self) -> None:
        """Discard all times, such as those of an untypical first iteration."""
        self._seconds.clear()

    def median(self, *whats: object) -> float:
        """Median of the times of some things together; 0 where there are none."""
        seconds = [each for what in whats for each in self._seconds.get(what, ())]
        return statistics.median(seconds) if seconds else 0.0

    def medians(self) -> dict[object, float]:
        """Median time of each."""
        return {what: statistics.median(seconds) for what, seconds in self._seconds.items()}


def slowest_seconds(
    act: Callable[[], None],
    group: dist.ProcessGroup | None,
    device: torch.device,
    *,
    rounds: int = _ROUNDS,
    count: int = 1,  # How often it does what is timed
) -> float:
    """Time of what all ranks of a group do: median over rounds, of the slowest rank."""
    clock = DeviceClock(device)
    times = torch.zeros(rounds, dtype=torch.float64, device=device)
    for turn in range(-1, rounds):
        dist.barrier(group=group)
        begin = time.perf_counter()
        act()
        spent = clock.now() - begin
        if turn >= 0:
            times[turn] = spent / count
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=group)
    return float(times.median())


def rate_and_start(small: float, large: float, small_bytes: float, large_bytes: float) -> tuple[float, float]:
    """Bytes per second and seconds per message, of the times of two sizes.

    Examples:
        >>> rate_and_start(3.0, 5.0, 100, 300)
        (100.0, 2.0)
    """
    rate = max((large_bytes - small_bytes) / max(large - small, 1e-9), 1.0)
    return rate, max(small - small_bytes / rate, 0.0)


def measure_network(
    group: dist.ProcessGroup, device: torch.device, *, small_bytes: int = _SMALL_BYTES
) -> tuple[float, float]:
    """Bytes per second and seconds per message of an all-reduce, equal on all ranks.

    Messages follow each other as in training, each handed over before the one before it has ended. Sizes grow until one
    takes long enough to be told from noise.

    Args:
        small_bytes: The smaller size. Among more than two ranks short messages wait for their rounds, not for their
            bytes, so that the cost per message is that of messages about as short as those to be sent.
    """

    def seconds(size_bytes: int, count: int) -> float:
        tensors = [torch.zeros(size_bytes // 4, device=device) for _ in range(count)]

        def act() -> None:
            for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
                work.wait()

        return slowest_seconds(act, group, device, count=count)

    small = seconds(small_bytes, max(4, _IN_A_ROW_BYTES // small_bytes))
    size, large = small_bytes, small
    while large < _ENOUGH_S and size < _LARGEST_BYTES:
        size *= 8
        large = seconds(size, _LARGE_COUNT)
    if size == small_bytes:
        size *= 2
        large = seconds(size, _LARGE_COUNT)
    return rate_and_start(small, large, small_bytes, size)
