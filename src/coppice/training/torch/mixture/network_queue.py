"""In-order network queue: all-to-all and all-reduce one at a time, in the same order on all ranks.

A thread starts them one after the other, each when the one before is over. Exchanges come in the order in which the
program asks for them. In a backward pass whose order was made beforehand, sums have places between exchanges: one is
started if its gradients are there and no exchange has its turn. An exchange does not wait for sums whose gradients
come later than itself: these go behind it. Which ones are there when a program asks for an exchange follows from the
program, not from the clock, so what is started, and in which order, is the same on all ranks.

Exchanges and sums run on process groups of their own. On a device nothing waits on the host: what is started is
ordered behind what came before on a stream.

Of the steps that are watched it is known what is computed between exchanges, how long these take, and when gradients
are there.
"""

from __future__ import annotations

import contextlib
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from coppice.errors import InputError
from coppice.training.torch.core.launcher import Launcher
from coppice.training.torch.core.measure import DeviceClock, now
from coppice.training.torch.mixture.exchanges import (
    TASK,
    DirectExchanges,
    PostedExchange,
    Start,
    all_to_all,
)

COMPUTE, SENT, WAITED, GRADIENT, BOUNDARY = "compute", "sent", "waited", "gradient", "boundary"


@dataclass(eq=False)
class NetworkJob:
    """A network job."""

    name: str  # What it is
    start: Callable[[], Sequence[Any]]  # Starts it, and gives what is to be waited for
    before: Any = None  # Event of a device after which its tensors are there
    after: Any = None  # Event of a device after which its result is there
    done: bool = False  # It is over; on a device: it is ordered behind `after`
    seconds: float = 0.0  # Time from its start to its end


class StepItem(NamedTuple):
    """An event of a step, in program order."""

    # :data:`COMPUTE`; :data:`SENT`, an exchange was asked for; :data:`WAITED`, the program went on when it
    # was there; :data:`GRADIENT`; :data:`BOUNDARY`, the forward pass was over
    kind: str
    name: str = ""  # Of an exchange
    seconds: float = 0.0  # Of computation, or of an exchange on the network
    place: int = -1  # Of the tensor whose gradient it is


class StepEvents:
    """Recorded steps of this rank.

    Args:
        clock: The clock of the device.
    """

    def __init__(self, clock: DeviceClock) -> None:
        self.now = clock.now
        self._steps: list[list[StepItem]] = []
        self._after: list[float] = []
        self._items: list[StepItem] = []
        self._at = 0.0
        self._ended = 0.0
        # Exchanges of the step under way, in the order in which they were asked for
        self.jobs: list[NetworkJob] = []

    def begin(self) -> None:
        """Start a step."""
        self._at = self.now()
        if self._ended:
            self._after.append(self._at - self._ended)
        self._items, self.jobs = [], []

    def exchange(self, name: str) -> None:
        """Record a posted exchange."""
        self._compute(self.now())
        self._items.append(StepItem(SENT, name))

    def waited(self, name: str, begin: float) -> None:
        """Record a wait for an exchange, from its start."""
        self._compute(begin)
        self._items.append(StepItem(WAITED, name))
        self._at = self.now()

    def gradient(self, place: int) -> None:
        """Record an available gradient."""
        self._compute(self.now())
        self._items.append(StepItem(GRADIENT, place=place))

    def forward_ended(self) -> None:
        """Record the boundary between forward and backward."""
        self._compute(self.now())
        self._items.append(StepItem(BOUNDARY))

    def end_backward(self) -> None:
        """Record the end of the backward pass; all-reduces may be outstanding."""
        self._compute(self.now())
        jobs = iter(self.jobs)
        self._steps.append(
            [each._replace(seconds=next(jobs).seconds) if each.kind == SENT else each for each in self._items]
        )

    def ended(self) -> None:
        """Record the end of all all-reduces."""
        self._ended = self.now()

    def _compute(self, until: float) -> None:
        self._items.append(StepItem(COMPUTE, seconds=max(0.0, until - self._at)))
        self._at = until

    def alike(self) -> list[list[StepItem]]:
        """Recorded steps with the same events as the last one."""
        form = _form(self._steps[-1])
        return [step for step in self._steps if _form(step) == form]

    def medians(self) -> list[StepItem]:
        """Step with median times of this rank."""
        return _median_step(self.alike())

    def between(self) -> float:
        """Median time between steps."""
        return statistics.median(self._after) if self._after else 0.0


def agreed_step(events: StepEvents, group: Any) -> tuple[list[StepItem], float]:
    """Merged step of all ranks, and the time between steps."""
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, (events.alike(), events.between()), group=group)
    return merged_steps([steps for steps, _ in told]), max(after for _, after in told)


def merged_steps(told: Sequence[Sequence[Sequence[StepItem]]]) -> list[StepItem]:
    """Merge the steps of all ranks, by median times.

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
    """Elementwise slowest of one step on all ranks."""
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


EXCHANGE = -1
"""In an order: the next exchange that is asked for."""


@dataclass(eq=False)
class _QueuedExchange:
    """An exchange in the queue."""

    queue: NetworkQueue
    job: NetworkJob
    output: torch.Tensor
    given: torch.Tensor = field(repr=False)

    def wait(self) -> torch.Tensor:
        """See :meth:`PostedExchange.wait`."""
        watch = self.queue.watch
        begin = watch.now() if watch is not None else 0.0
        self.queue.wait(self.job)
        if watch is not None:
            watch.waited(self.job.name, begin)
        return self.output


class NetworkQueue:
    """In-order network queue of a rank.

    Args:
        device: Where tensors lie.
        timeout_s: Longest wait for a job.
        exchange: Starts an exchange.
    """

    def __init__(self, device: torch.device, timeout_s: float, exchange: Start = all_to_all) -> None:
        self._exchange = exchange
        self._launcher = Launcher(device, timeout_s, TASK, mistake="ranks run other layers")
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._changed = self._launcher.changed
        self._asked: deque[NetworkJob] = deque()
        self._order: deque[int] = deque()
        self._sums: dict[int, NetworkJob] = {}
        self.started: list[str] = []  # Names of what was started since the last :meth:`begin`, in their order
        # What the program did since then: what it asked for, what had its gradients and what it noted
        self.told: list[str] = []
        self.watch: StepEvents | None = None  # Gets the times of exchanges; None: nobody wants them
        self._launcher.serve("queue", self._next, self._execute)

    def post(
        self, name: str, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any
    ) -> PostedExchange:
        """See :meth:`Exchanges.post`."""
        rows = rows.contiguous()
        if group is None:
            return DirectExchanges().post(name, rows, sent, received, None)
        output = rows.new_empty((sum(received), *rows.shape[1:]))

        def start() -> Sequence[Any]:
            return [self._exchange(output, rows, received, sent, group)]

        if self.watch is not None:
            self.watch.exchange(name)
        job = self._job(name, start)
        if self.watch is not None:
            self.watch.jobs.append(job)
        with self._changed:
            self.told.append(f"asked for {name}")
            self._asked.append(job)
            self._let_pass()
            self._changed.notify_all()
        return _QueuedExchange(self, job, output, rows)

    def note(self, name: str) -> None:
        """See :meth:`Exchanges.note`."""
        self.told.append(name)

    def begin(self, order: Sequence[int]) -> None:
        """Start a backward pass.

        Args:
            order: Numbers of sums, and :data:`EXCHANGE` for each exchange.
        """
        with self._changed:
            self._order, self._sums = deque(order), {}
            self.started, self.told = [], []

    def ready(self, number: int, name: str, start: Callable[[], Sequence[Any]]) -> None:
        """Mark the gradients of an all-reduce as available."""
        job = self._job(name, start)
        with self._changed:
            self.told.append(f"ready for {name}")
            self._sums[number] = job
            self._changed.notify_all()

    def drain(self) -> None:
        """End a backward pass: no more exchanges; wait for the queue."""
        with self._changed:
            self._order = deque(each for each in self._order if each != EXCHANGE)
            self._changed.notify_all()
            self._launcher.wait(lambda: not self._order, lambda: "the gradient all-reduces")
            jobs = list(self._sums.values())
        for job in jobs:
            self.wait(job)

    def wait(self, job: NetworkJob) -> None:
        """Wait for a job."""
        self._launcher.wait(lambda: job.done, lambda: job.name)
        self._launcher.order_behind([job.after])

    def close(self) -> None:
        """Stop the thread; jobs that have not begun are dropped."""
        self._launcher.close()

    def _job(self, name: str, start: Callable[[], Sequence[Any]]) -> NetworkJob:
        return NetworkJob(name, start, before=self._launcher.mark())

    def _let_pass(self) -> None:
        """Move the newest all-to-all ahead of all-reduces that are not ready.

        An exchange that no order has foreseen goes behind those sums that are.
        """
        turn, head, late = len(self._asked), [], []
        order = self._order
        while order:
            entry = order.popleft()
            if entry == EXCHANGE:
                turn -= 1
            elif entry not in self._sums:
                late.append(entry)
                continue
            head.append(entry)
            if not turn:
                break
        head.extend([EXCHANGE] * turn)
        self._order = deque([*head, *late, *order])

    def _next(self) -> NetworkJob | None:
        """Take the next job that may start; None: none."""
        job = self._following()
        if job is not None:
            self.started.append(job.name)
        return job

    def _following(self) -> NetworkJob | None:
        if self._order and self._order[0] != EXCHANGE:
            job = self._sums.get(self._order[0])
            if job is not None:
                self._order.popleft()
            return job
        if not self._asked:
            return None
        if self._order:
            self._order.popleft()
        return self._asked.popleft()

    def _execute(self, job: NetworkJob) -> None:
        stream = self._stream
        with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
            self._launcher.order_behind([job.before])
            begin = now()
            for work in job.start():
                work.wait()
            if (
                stream is not None and self.watch is not None
            ):  # times are those of the work, not of its submission
                stream.synchronize()
            job.seconds = now() - begin
            job.after = self._launcher.mark()
        with self._changed:
            job.done = True
