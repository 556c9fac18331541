"""In-order queues of gradient messages that yield to more urgent traffic.

Ranks launch the messages of a queue in the order in which they are submitted, which their programs say and nothing
measured: so collectives meet. A queue may only be held back, by tokens: a message starts when no traffic of a more
urgent class is under way on this rank's link, or when the training waits for it. What a rank has done is recorded by
the names that tasks have in simulation.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from coppice.training.torch.core.launcher import Launcher
from coppice.training.torch.core.measure import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    NOTE,
    DeviceClock,
    StepRecord,
    whats,
)


class DeviceRecord(StepRecord):
    """Passes, launches and other events of a device in the order in which they began, by the names of simulation."""

    def __init__(self) -> None:
        super().__init__(DeviceClock())

    @property
    def passes(self) -> list[str]:
        """Passes on the device."""
        return whats(self.current, FORWARD, BACKWARD)

    @property
    def sums(self) -> list[str]:
        """Messages with gradients, when they are launched."""
        return whats(self.current, COMMUNICATION)

    @property
    def events(self) -> list[str]:
        """All of it (`waited`, `updated`), in one order."""
        return whats(self.current, FORWARD, BACKWARD, COMMUNICATION, NOTE)

    def clear(self) -> None:
        """Clear the record."""
        self.current = []


ACTIVATIONS, EMBEDDING, GRADIENTS = range(3)
"""Classes of traffic, the most urgent first."""
_POLL_S = 2e-4


class LinkTokens:
    """Outstanding and waiting traffic by class on this rank's link.

    A thread waits for activations that were sent, one after the other, and keeps them until they have gone.

    Args:
        device: Where tensors lie.
        timeout_s: Longest wait for what is under way.
    """

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        self._device = device
        self.launcher = Launcher(device, timeout_s, "go on with the pipeline")  # Of all traffic of the link
        self.changed = self.launcher.changed
        self._busy = [0, 0, 0]
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()
        self.launcher.serve("activations", self._take, self._await, drains=True)

    def begin(self, urgency: int) -> None:
        """Count traffic of a class as outstanding."""
        with self.changed:
            self._busy[urgency] += 1

    def end(self, urgency: int) -> None:
        """Count it as complete."""
        with self.changed:
            self._busy[urgency] -= 1
            self.changed.notify_all()

    def watch(self, work: Any, tensor: torch.Tensor) -> None:
        """Count an activation as outstanding until its work completes."""
        with self.changed:
            self._busy[ACTIVATIONS] += 1
            self._sent.append((work, tensor))
            self.changed.notify_all()

    def admits(self, urgency: int) -> bool:
        """Whether nothing more urgent is outstanding; call within ``changed``."""
        return not any(self._busy[:urgency])

    def await_sent(self) -> None:
        """Wait until all activations are sent."""
        self.launcher.wait(lambda: not self._busy[ACTIVATIONS], lambda: "all activations to be taken")

    def close(self) -> None:
        """Stop all threads of the link."""
        self.launcher.close()

    def _take(self) -> tuple[Any, torch.Tensor] | None:
        return self._sent.popleft() if self._sent else None

    def _await(self, sent: tuple[Any, torch.Tensor]) -> None:
        work, _ = sent
        if self._device.type == "cuda":  # its `wait` would order this thread's stream alone
            while not work.is_completed():
                time.sleep(_POLL_S)
        else:
            work.wait()
        self.end(ACTIVATIONS)


@dataclass(eq=False)
class LaunchedMessage:
    """A gradient message."""

    name: str  # As in simulation
    start: Callable[[], Iterable[Any]]  # Starts its collectives; it may wait for some
    urgency: int = GRADIENTS  # Its class
    due: bool = False  # The training waits for it
    done: bool = False  # It has ended on this rank
    works: list[Any] = field(default_factory=list)  # Its collectives
    ready: Any = None  # On a device, what its gradients are ordered behind


class MessageQueues:
    """Launch all-reduces of gradients from in-order queues, one thread each.

    Args:
        record: What is told of launches.
        tokens: What is told of messages, and launches them.
        holds: They hold less urgent messages back.
    """

    def __init__(self, record: DeviceRecord, tokens: LinkTokens, *, holds: bool) -> None:
        self._record, self._tokens, self._holds = record, tokens, holds
        self._launcher, self._changed = tokens.launcher, tokens.changed
        self._queues: dict[str, deque[LaunchedMessage]] = {}

    def submit(self, queue: str, each: LaunchedMessage) -> None:
        """Append a message to a queue."""
        each.ready = self._launcher.mark()
        self._record.mark(NOTE, f"{each.name} asked for")
        with self._changed:
            self._tokens.begin(each.urgency)
            new = queue not in self._queues
            self._queues.setdefault(queue, deque()).append(each)
            self._changed.notify_all()
        if new:
            self._launcher.serve(queue, partial(self._take, queue), self._launch, drains=not self._holds)

    def wait(self, sums: Iterable[LaunchedMessage]) -> None:
        """Wait for messages."""
        for each in sums:
            with self._changed:
                each.due = True
                self._changed.notify_all()
            self._launcher.wait(
                lambda each=each: each.done,  # type: ignore[misc]
                lambda each=each: each.name,  # type: ignore[misc]
                task="go on with their gradient all-reduces",
            )
            for work in each.works:  # on a device the result is ordered behind the collective, not waited for
                work.wait()

    def _take(self, queue: str) -> LaunchedMessage | None:
        """The next message of a queue, if it may start."""
        row = self._queues[queue]
        if not row:
            return None
        first = row[0]
        return row.popleft() if not self._holds or first.due or self._tokens.admits(first.urgency) else None

    def _launch(self, each: LaunchedMessage) -> None:
        self._launcher.order_behind([each.ready])
        self._record.mark(COMMUNICATION, each.name)
        each.works = [work for work in each.start() if work is not None]
        for work in each.works:
            work.wait()
        with self._changed:
            each.done = True
        self._tokens.end(each.urgency)
