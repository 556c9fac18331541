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

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from coppice.training.torch.core.launcher import Launcher
from coppice.training.torch.core.measure import COMMUNICATION, SENT, WAITED, StepEvent, StepRecord, now
from coppice.training.torch.whole.mixture.exchanges import (
    TASK,
    DirectExchanges,
    PostedExchange,
    Start,
    all_to_all,
)


@dataclass(eq=False)
class NetworkJob:
    """A network job."""

    name: str  # What it is
    start: Callable[[], Sequence[Any]]  # Starts it, and gives what is to be waited for
    before: Any = None  # Event of a device after which its tensors are there
    after: Any = None  # Event of a device after which its result is there
    done: bool = False  # It is over; on a device: it is ordered behind `after`
    events: list[StepEvent] | None = None  # Of the step that it is recorded in


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
        with nullcontext() if watch is None else watch.timed(WAITED, self.job.name):
            self.queue.wait(self.job)
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
        self.watch: StepRecord | None = None  # Gets the events of exchanges; None: nobody wants them
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
            self.watch.mark(SENT, name)
        job = self._job(name, start)
        if self.watch is not None:
            job.events = self.watch.current
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
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            self._launcher.order_behind([job.before])
            begin = now()
            for work in job.start():
                work.wait()
            if (
                stream is not None and self.watch is not None
            ):  # times are those of the work, not of its submission
                stream.synchronize()
            if job.events is not None:
                job.events.append(StepEvent(COMMUNICATION, job.name, begin, now()))
            job.after = self._launcher.mark()
        with self._changed:
            job.done = True
