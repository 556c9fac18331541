"""In-order queues of gradient messages that yield to more urgent traffic.

Ranks launch the messages of a queue in the order in which they are submitted, which their programs say and nothing
measured: so collectives meet. A queue may only be held back, by tokens: a message starts when no traffic of a more
urgent class is under way on this rank's link, or when the training waits for it. What a rank has done is recorded by
the names that tasks have in simulation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch

from coppice.errors import CheckError


class DeviceRecord:
    """Names of tasks by stream, in start order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.passes: list[str] = []  # Passes on the device
        self.sums: list[str] = []  # Messages with gradients, when they are launched
        self.events: list[str] = []  # Both and more (`waited`, `updated`), in one order

    def ran(self, name: str) -> None:
        """Record the start of a pass."""
        with self._lock:
            self.passes.append(name)
            self.events.append(name)

    def launched(self, name: str) -> None:
        """Record the launch of a message."""
        with self._lock:
            self.sums.append(name)
            self.events.append(name)

    def noted(self, name: str) -> None:
        """Record another event."""
        with self._lock:
            self.events.append(name)

    def clear(self) -> None:
        """Clear the record."""
        with self._lock:
            self.passes, self.sums, self.events = [], [], []


ACTIVATIONS, EMBEDDING, GRADIENTS = range(3)
"""Classes of traffic, the most urgent first."""
_POLL_S = 2e-4


def lost_rank(error: BaseException, what: str) -> CheckError:
    """Error about an unresponsive rank."""
    reason = str(error).strip().splitlines()
    return CheckError(
        f"expected all ranks to go on with {what}, found one that does not answer "
        f"({reason[0] if reason else type(error).__name__}): start the training again from its last checkpoint."
    )


class LinkTokens:
    """Outstanding and waiting traffic by class on this rank's link.

    A thread waits for activations that were sent, one after the other, and keeps them until they have gone.

    Args:
        device: Where tensors lie.
    """

    def __init__(self, device: torch.device) -> None:
        self.changed = threading.Condition()
        self._device = device
        self._busy = [0, 0, 0]
        self._sent: SimpleQueue[tuple[Any, torch.Tensor] | None] = SimpleQueue()
        self._error: RuntimeError | None = None
        self._watcher = threading.Thread(target=self._watch, name="coppice activations", daemon=True)
        self._watcher.start()

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
        self.begin(ACTIVATIONS)
        self._sent.put((work, tensor))

    def admits(self, urgency: int) -> bool:
        """Whether nothing more urgent is outstanding; call within ``changed``."""
        return not any(self._busy[:urgency])

    def await_sent(self, timeout_s: float) -> None:
        """Wait until all activations are sent."""
        with self.changed:
            gone = self.changed.wait_for(lambda: not self._busy[ACTIVATIONS], timeout=timeout_s)
        if self._error is not None:
            raise lost_rank(self._error, "the pipeline") from self._error
        if not gone:
            raise CheckError(
                f"expected activations to be taken within {timeout_s:g} s, found some under way: a rank is slow or "
                "gone."
            )

    def close(self) -> None:
        """Stop the thread."""
        self._sent.put(None)
        self._watcher.join(timeout=1.0)

    def _watch(self) -> None:
        while (sent := self._sent.get()) is not None:
            work, _ = sent
            try:
                if self._device.type == "cuda":  # its `wait` would order this thread's stream alone
                    while not work.is_completed():
                        time.sleep(_POLL_S)
                else:
                    work.wait()
            except RuntimeError as error:
                self._error = self._error or error
            del sent, work
            self.end(ACTIVATIONS)


@dataclass(eq=False)
class RunningSum:
    """A gradient message."""

    name: str  # As in simulation
    start: Callable[[], Iterable[Any]]  # Starts its collectives; it may wait for some
    urgency: int = GRADIENTS  # Its class
    due: bool = False  # The training waits for it
    done: bool = False  # It has ended on this rank
    works: list[Any] = field(default_factory=list)  # Its collectives
    ready: Any = None  # On a device, what its gradients are ordered behind


class GradientSums:
    """Launch all-reduces of gradients from in-order queues, one thread each.

    Args:
        device: Where gradients lie.
        timeout_s: Longest wait for a message.
        record: What is told of launches.
        tokens: What is told of messages.
        holds: They hold less urgent messages back.
    """

    def __init__(
        self, device: torch.device, timeout_s: float, record: DeviceRecord, tokens: LinkTokens, *, holds: bool
    ) -> None:
        self._device, self._timeout_s, self._record = device, timeout_s, record
        self._tokens, self._holds = tokens, holds
        self._changed = self._tokens.changed
        self._queues: dict[str, SimpleQueue[RunningSum | None]] = {}
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._closed = False

    def submit(self, queue: str, each: RunningSum) -> None:
        """Append a message to a queue."""
        if self._device.type == "cuda":
            each.ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            each.ready.record(torch.cuda.current_stream(self._device))
        self._record.noted(f"{each.name} asked for")
        self._tokens.begin(each.urgency)
        if queue not in self._queues:
            self._queues[queue] = SimpleQueue()
            thread = threading.Thread(target=self._carry, args=(queue,), name=f"coppice {queue}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queues[queue].put(each)

    def wait(self, sums: Iterable[RunningSum]) -> None:
        """Wait for messages."""
        for each in sums:
            with self._changed:
                each.due = True
                self._changed.notify_all()
                ended = self._changed.wait_for(
                    lambda each=each: each.done or self._error is not None,  # type: ignore[misc]
                    timeout=self._timeout_s,
                )
                if self._error is not None:
                    raise lost_rank(self._error, "their gradient all-reduces") from self._error
                if not ended:
                    raise CheckError(
                        f"expected {each.name} within {self._timeout_s:g} s, found it under way: a rank is slow or "
                        "gone."
                    )
            for work in each.works:  # on a device the result is ordered behind the collective, not waited for
                work.wait()

    def close(self) -> None:
        """Stop the threads; outstanding messages are abandoned."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _carry(self, queue: str) -> None:
        """Thread of a queue."""
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            while (each := self._queues[queue].get()) is not None:
                if self._holds and not self._admitted(each):
                    return
                if each.ready is not None:
                    torch.cuda.current_stream(self._device).wait_event(each.ready)
                self._record.launched(each.name)
                each.works = [work for work in each.start() if work is not None]
                for work in each.works:
                    work.wait()
                with self._changed:
                    each.done = True
                self._tokens.end(each.urgency)
        except BaseException as error:  # noqa: BLE001 (raised where the training waits)
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _admitted(self, each: RunningSum) -> bool:
        """Wait until a message may start; False when stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or each.due or self._tokens.admits(each.urgency))
            return not self._closed
