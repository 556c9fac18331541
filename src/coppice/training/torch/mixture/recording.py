"""Steps of a training watched: what is computed between exchanges, how long these take, when gradients are there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch.distributed as dist

from coppice.errors import InputError

COMPUTE, SENT, WAITED, GRADIENT, TURN = "compute", "sent", "waited", "gradient", "turn"


@dataclass(eq=False)
class LineJob:
    """Something for the network."""

    name: str  # What it is
    start: Callable[[], Sequence[Any]]  # Starts it, and gives what is to be waited for
    before: Any = None  # Event of a device after which its tensors are there
    after: Any = None  # Event of a device after which its result is there
    done: bool = False  # It is over; on a device: it is ordered behind `after`
    seconds: float = 0.0  # Time from its start to its end


class StepItem(NamedTuple):
    """Something in a step, in the order of the program."""

    # :data:`COMPUTE`; :data:`SENT`, an exchange was asked for; :data:`WAITED`, the program went on when it
    # was there; :data:`GRADIENT`; :data:`TURN`, the forward pass was over
    kind: str
    name: str = ""  # Of an exchange
    seconds: float = 0.0  # Of computation, or of an exchange on the network
    place: int = -1  # Of the tensor whose gradient it is


class StepEvents:
    """Times of a few steps on this rank.

    Args:
        synchronize: Waits for the device, so that times are those of the work and not of its submission.
    """

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self._synchronize = synchronize
        self._steps: list[list[StepItem]] = []
        self._after: list[float] = []
        self._items: list[StepItem] = []
        self._at = 0.0
        self._ended = 0.0
        # Exchanges of the step under way, in the order in which they were asked for
        self.jobs: list[LineJob] = []

    def now(self) -> float:
        """The time, when the device has done what it was given."""
        self._synchronize()
        return time.perf_counter()

    def begin(self) -> None:
        """A step begins: the model starts."""
        self._at = self.now()
        if self._ended:
            self._after.append(self._at - self._ended)
        self._items, self.jobs = [], []

    def exchange(self, name: str) -> None:
        """An exchange is asked for."""
        self._compute(self.now())
        self._items.append(StepItem(SENT, name))

    def waited(self, name: str, begin: float) -> None:
        """The program has waited for an exchange, from a time on."""
        self._compute(begin)
        self._items.append(StepItem(WAITED, name))
        self._at = self.now()

    def gradient(self, place: int) -> None:
        """A gradient is there."""
        self._compute(self.now())
        self._items.append(StepItem(GRADIENT, place=place))

    def turn(self) -> None:
        """The model has returned."""
        self._compute(self.now())
        self._items.append(StepItem(TURN))

    def end_backward(self) -> None:
        """The backward pass is over; sums are still to come."""
        self._compute(self.now())
        jobs = iter(self.jobs)
        self._steps.append(
            [each._replace(seconds=next(jobs).seconds) if each.kind == SENT else each for each in self._items]
        )

    def ended(self) -> None:
        """All sums are there."""
        self._ended = self.now()

    def _compute(self, until: float) -> None:
        self._items.append(StepItem(COMPUTE, seconds=max(0.0, until - self._at)))
        self._at = until

    def alike(self) -> list[list[StepItem]]:
        """The steps that were as the last one, but for their times."""
        form = _form(self._steps[-1])
        return [step for step in self._steps if _form(step) == form]

    def medians(self) -> list[StepItem]:
        """A step of median times of this rank."""
        return _median_step(self.alike())

    def between(self) -> float:
        """Median time from the end of a step to the next one."""
        return statistics.median(self._after) if self._after else 0.0


def agreed_step(events: StepEvents, group: Any) -> tuple[list[StepItem], float]:
    """A step of all ranks, and the time between steps."""
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, (events.alike(), events.between()), group=group)
    return merged_steps([steps for steps, _ in told]), max(after for _, after in told)


def merged_steps(told: Sequence[Sequence[Sequence[StepItem]]]) -> list[StepItem]:
    """One step of those of all ranks, of median times.

    In each step computation from one exchange to the next is that of the rank for which it took longest, as the others
    wait for it; an exchange is as long as for the rank that came last, which waits for nobody.

    Args:
        told: For each rank its steps; the last ones of all count.

    Examples:
        >>> fast = [StepItem("compute", seconds=1.0), StepItem("sent", "a", 5.0)]
        >>> slow = [StepItem("compute", seconds=3.0), StepItem("sent", "a", 3.0)]
        >>> [each.seconds for each in merged_steps([[fast], [slow]])]
        [3.0, 3.0]
    """
    forms = [[(each.kind, each.name) for each in steps[-1]] for steps in told]
    differing = next((rank for rank, form in enumerate(forms) if form != forms[0]), None)
    if differing is not None:
        raise InputError(
            f"expected steps of the same exchanges and gradients on all ranks, found others on rank {differing}: run "
            "the same layers on all."
        )
    count = min(len(steps) for steps in told)
    return _median_step([_slowest([steps[at - count] for steps in told]) for at in range(count)])


def _slowest(steps: Sequence[Sequence[StepItem]]) -> list[StepItem]:
    """One step of the same one on all ranks."""
    found: list[StepItem] = []
    first = 0
    ends = [at for at, each in enumerate(steps[0]) if each.kind == SENT]
    for end in [*ends, len(steps[0])]:
        found += max((step[first:end] for step in steps), key=lambda part: sum(each.seconds for each in part))
        if end < len(steps[0]):
            found.append(steps[0][end]._replace(seconds=min(step[end].seconds for step in steps)))
        first = end + 1
    return [own._replace(place=each.place) for own, each in zip(found, steps[0], strict=True)]


def _median_step(steps: Sequence[Sequence[StepItem]]) -> list[StepItem]:
    return [
        each._replace(seconds=statistics.median(step[at].seconds for step in steps))
        for at, each in enumerate(steps[-1])
    ]


def _form(step: Sequence[StepItem]) -> list[tuple[str, str, int]]:
    return [(each.kind, each.name, each.place) for each in step]
