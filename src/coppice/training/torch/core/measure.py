"""Clock and record of training steps: what ranks computed, sent and waited for, and when; and what a network takes.

Whoever records a training adds events to a `StepRecord`, and estimates of any policy read them from there. Recorded
times are those of the work, not of its submission. Between two events of the training program it computes; what happens
beside the program (an exchange on the network, in a thread) is an event of its own, known by its name.

What all ranks of a group do takes what the slowest of them takes, as the median over rounds of which the first, with
its set-up, does not count.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from coppice.errors import InputError

_SMALL_BYTES = 16 * 1024
_IN_A_ROW_BYTES = 256 * 1024
_LARGE_COUNT = 2
_LARGEST_BYTES = 32 * 2**20
_ENOUGH_S = 0.03
_ROUNDS = 5

BEGIN, END = "begin", "end"
"""Of a step."""
READ = "read"
"""A module that reads a tensor started."""
BOUNDARY = "boundary"
"""The forward pass was over."""
GRADIENT = "gradient"
"""Autograd has made the gradient of a tensor."""
SENT, WAITED = "sent", "waited"
"""An exchange was posted; the program waited for it."""
COMMUNICATION = "communication"
"""An exchange was on the network, or a message was launched."""
COMPUTE, FORWARD, BACKWARD, RECOMPUTE = "compute", "forward", "backward", "recompute"
"""Computation: any, of a pass, and what a pass computes again."""
SAVED = "saved"
"""Tensors were kept for a later pass."""
NOTE = "note"
"""Anything else that is known by its name."""


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


class StepEvent(NamedTuple):
    """What a rank did, or what happened to it, by its clock."""

    kind: str
    what: Any = None  # A name, the place of a tensor, a pass
    begin: float = 0.0  # Seconds of the clock
    end: float = 0.0  # The same, later if it takes time
    size_bytes: int = 0  # Bytes that it is about

    @property
    def seconds(self) -> float:
        """Time that it took."""
        return self.end - self.begin


class StepItem(NamedTuple):
    """An event in the program order of a step, or the computation between two of them."""

    kind: str
    what: Any = None
    seconds: float = 0.0  # Time of the computation; of an exchange on the network


class StepRecord:
    """Events of the steps of this rank.

    Args:
        clock: Its clock.
        kept: The last so many steps are kept; None: all.

    Examples:
        >>> record = StepRecord(DeviceClock())
        >>> record.begin()
        >>> with record.timed(FORWARD, "layer 0"):
        ...     pass
        >>> record.mark(GRADIENT, 0, 1)
        >>> record.end()
        >>> [(each.kind, each.what) for each in record.steps[0]]
        [('begin', None), ('forward', 'layer 0'), ('gradient', 0), ('gradient', 1), ('end', None)]
    """

    def __init__(self, clock: DeviceClock, *, kept: int | None = None) -> None:
        self.now = clock.now
        self.steps: deque[list[StepEvent]] = deque(maxlen=kept)  # Those that have ended, and count
        self.last: list[StepEvent] = []  # The one that ended last, whether it counts or not
        self.current: list[StepEvent] = []  # The one under way
        self._between: list[float] = []  # Seconds from the end of a step to the next one
        self._ended: float | None = None

    def begin(self) -> None:
        """Begin a step; one that has not ended is dropped."""
        now = self.now()
        if self._ended is not None:
            self._between.append(now - self._ended)
            self._ended = None
        self.current = [StepEvent(BEGIN, None, now, now)]

    def end(self, *, counts: bool = True) -> None:
        """End the step.

        Args:
            counts: It is kept; otherwise it is untypical, as the first one is.
        """
        now = self.now()
        self.current.append(StepEvent(END, None, now, now))
        self.last, self.current = self.current, []
        if counts:
            self.steps.append(self.last)
            self._ended = now

    def next(self) -> None:
        """End the step under way, if there is one, and begin the next."""
        if self.current:
            self.end()
        self.begin()

    def settle(self) -> None:
        """End what the last step has left under way: until here it was not over."""
        if self._ended is not None:
            self._ended = self.now()

    def add(self, event: StepEvent) -> None:
        """Add an event of the step under way; any thread may."""
        self.current.append(event)

    def mark(self, kind: str, *whats: Hashable) -> None:
        """Add an event of no length, or several at the same time."""
        now = self.now()
        self.current.extend([StepEvent(kind, what, now, now) for what in whats or (None,)])

    @contextmanager
    def timed(self, kind: str, what: Hashable) -> Iterator[None]:
        """Add an event that takes as long as its context."""
        begin = self.now()
        yield
        self.add(StepEvent(kind, what, begin, self.now()))

    def between_seconds(self) -> float:
        """Median time from the end of a step to the next one."""
        return statistics.median(self._between) if self._between else 0.0

    def all_events(self) -> Iterator[StepEvent]:
        """Events of all steps, that under way included."""
        for step in self.steps:
            yield from step
        yield from self.current


def whats(events: Iterable[StepEvent], *kinds: str) -> list[Any]:
    """What events of some kinds are about, in their order."""
    return [each.what for each in events if each.kind in kinds]


def median_seconds(events: Iterable[StepEvent], *kinds: str) -> dict[Any, float]:
    """Median time of events of some kinds, by what they are about.

    Examples:
        >>> median_seconds([StepEvent(FORWARD, 0, 1.0, 2.0), StepEvent(FORWARD, 0, 2.0, 5.0)], FORWARD)
        {0: 2.0}
    """
    found: dict[Any, list[float]] = {}
    for each in events:
        if each.kind in kinds:
            found.setdefault(each.what, []).append(each.seconds)
    return {what: statistics.median(seconds) for what, seconds in found.items()}


def total_seconds(step: Iterable[StepEvent]) -> dict[Any, float]:
    """Time of the computation of a step, by what it is about."""
    found: dict[Any, float] = {}
    for each in step:
        if each.kind == COMPUTE:
            found[each.what] = found.get(each.what, 0.0) + each.seconds
    return found


def slowest_totals(everyone: Sequence[Sequence[Mapping[Any, float]]]) -> dict[Any, float]:
    """Median of times over steps; within a step that of the slowest rank.

    Args:
        everyone: For each rank the times of each step; all have as many steps.

    Examples:
        >>> slowest_totals([[{"a": 1.0}, {"a": 1.0}, {"a": 4.0}], [{"a": 2.0}, {"a": 3.0}, {"a": 1.0}]])
        {'a': 3.0}
    """
    names = dict.fromkeys(name for steps in everyone for step in steps for name in step)
    return {
        name: statistics.median(
            max(step.get(name, 0.0) for step in row) for row in zip(*everyone, strict=True)
        )
        for name in names
    }


def items_of(step: Sequence[StepEvent]) -> list[StepItem]:
    """Program order of a step: its events, with the computation before each of them.

    Examples:
        >>> posted, sent = StepEvent(SENT, "a", 2.0, 2.0), StepEvent(COMMUNICATION, "a", 2.0, 5.0)
        >>> [tuple(each) for each in items_of([StepEvent(BEGIN), posted, sent, StepEvent(END, None, 2.0, 2.0)])]
        [('compute', None, 2.0), ('sent', 'a', 3.0), ('compute', None, 0.0)]
    """
    exchanges = iter([each for each in step if each.kind == COMMUNICATION])
    found: list[StepItem] = []
    at = step[0].begin
    for each in step:
        if each.kind in (BEGIN, COMMUNICATION):
            continue
        found.append(StepItem(COMPUTE, seconds=max(0.0, each.begin - at)))
        at = each.end
        if each.kind == SENT:
            found.append(StepItem(SENT, each.what, next(exchanges, each).seconds))
        elif each.kind != END:
            found.append(StepItem(each.kind, each.what))
    return found


def alike_steps(record: StepRecord) -> list[list[StepItem]]:
    """Program order of the steps with the same events as the last one."""
    steps = [items_of(step) for step in record.steps]
    form = [(each.kind, each.what) for each in steps[-1]]
    return [step for step in steps if [(each.kind, each.what) for each in step] == form]


def median_step(steps: Sequence[Sequence[StepItem]]) -> list[StepItem]:
    """Step with the median times of steps with the same events."""
    return [
        each._replace(seconds=statistics.median(step[at].seconds for step in steps))
        for at, each in enumerate(steps[-1])
    ]


def merged_steps(everyone: Sequence[Sequence[Sequence[StepItem]]]) -> list[StepItem]:
    """Merge the steps of all ranks, by median times.

    In each step computation from one exchange to the next is that of the rank for which it took longest, as the others
    wait for it; an exchange is as long as for the rank that came last, which waits for nobody.

    Args:
        everyone: For each rank its steps; the last ones of all count.

    Examples:
        >>> fast = [StepItem(COMPUTE, seconds=1.0), StepItem(SENT, "a", 5.0)]
        >>> slow = [StepItem(COMPUTE, seconds=3.0), StepItem(SENT, "a", 3.0)]
        >>> [each.seconds for each in merged_steps([[fast], [slow]])]
        [3.0, 3.0]
    """
    forms = [
        [(each.kind, each.what if each.kind != GRADIENT else None) for each in steps[-1]]
        for steps in everyone
    ]
    differing = next((rank for rank, form in enumerate(forms) if form != forms[0]), None)
    if differing is not None:
        raise InputError(
            f"expected steps of the same exchanges and gradients on all ranks, found others on rank {differing}: run "
            "the same layers on all."
        )
    count = min(len(steps) for steps in everyone)
    return median_step([_slowest([steps[at - count] for steps in everyone]) for at in range(count)])


def _slowest(steps: Sequence[Sequence[StepItem]]) -> list[StepItem]:
    """Elementwise slowest of one step on all ranks."""
    found: list[StepItem] = []
    first = 0
    ends = [at for at, each in enumerate(steps[0]) if each.kind == SENT]
    for end in [*ends, len(steps[0])]:
        found += max((step[first:end] for step in steps), key=lambda part: sum(each.seconds for each in part))
        if end < len(steps[0]):
            found.append(steps[0][end]._replace(seconds=min(step[end].seconds for step in steps)))
        first = end + 1
    return [own._replace(what=each.what) for own, each in zip(found, steps[0], strict=True)]


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
