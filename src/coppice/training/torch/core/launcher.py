"""Threads that launch work in a given order, and the training program that waits for what they do.

A queue has a thread, which takes the next item that may start and does it, one at a time. What may start is decided
with one lock held, which guards all that the queues and the program share, so that nothing is taken twice or missed.
An item is a number of the plan, or a job that the program has asked for; what it does is for the caller to say. Queues
whose order was made beforehand go through it once an iteration.

What fails in a thread stops all of them, and is raised in the training program when it next waits. On a GPU nothing is
waited for on the host: a mark is an event, and who follows it lets its stream wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from coppice.errors import CheckError
from coppice.training.torch.core.agree import lost_rank

_Item = TypeVar("_Item")


class Launcher:
    """Queues of work with a thread each.

    Args:
        device: Where tensors lie; None: in the memory of the host.
        timeout_s: Longest wait of the training program.
        task: What the ranks do together, for the error of one that does not answer, such as ``sum gradients``.
        mistake: What ranks may do wrong if they are late for ever, such as ``ranks run other layers``.

    Examples:
        >>> done: list[int] = []
        >>> launcher = Launcher(None, 60.0, "count")
        >>> launcher.follow("numbers", [2, 0, 1], lambda number: True, done.append)
        >>> with launcher.changed:
        ...     launcher.begin()
        >>> launcher.wait(lambda: len(done) == 3, lambda: "three numbers")
        >>> launcher.close()
        >>> done
        [2, 0, 1]
    """

    def __init__(
        self, device: torch.device | None, timeout_s: float, task: str, *, mistake: str = ""
    ) -> None:
        # Guards everything that threads and the program share; who changes something notifies all
        self.changed = threading.Condition()
        self.failure: BaseException | None = None  # The first thing that failed in a thread
        self.timeout_s = timeout_s
        self._cuda = device if device is not None and device.type == "cuda" else None
        self._task, self._mistake = task, mistake
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._places: list[int] = []  # Of queues with an order, the place of the next number

    def serve(
        self,
        name: str,
        take: Callable[[], _Item | None],
        run: Callable[[_Item], None],
        *,
        own_stream: bool = False,
        drains: bool = False,
    ) -> None:
        """Start a queue.

        Args:
            name: Name of its thread.
            take: Takes the next item, with the lock held; None: none may start. What it changes, it changes only where
                it takes one.
            run: Does the item, without the lock; when it returns all are notified, and the next one is taken.
            own_stream: On a GPU, the thread has a stream of its own.
            drains: When the launcher is closed, what may start is done first.
        """

        def work() -> None:
            try:
                self._use_device(own_stream=own_stream)
                while (item := self._next(take, drains=drains)) is not None:
                    run(item)
                    del item  # a queue that waits keeps no tensors
                    with self.changed:
                        self.changed.notify_all()
            except BaseException as error:  # noqa: BLE001 (raised where the training waits)
                self.fail(error)

        thread = threading.Thread(target=work, name=f"coppice {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def follow(
        self,
        name: str,
        order: Sequence[int],
        may_start: Callable[[int], bool],
        run: Callable[[int], None],
        *,
        taken: Callable[[int], None] = lambda _: None,
        own_stream: bool = False,
    ) -> None:
        """Start a queue that goes through an order once an iteration.

        Args:
            name: Name of its thread.
            order: Numbers, in the order in which they are launched.
            may_start: Whether one may start, asked with the lock held.
            run: Launches one.
            taken: Told of one that is about to be launched, with the lock held.
            own_stream: On a GPU, the thread has a stream of its own.
        """
        queue = len(self._places)
        self._places.append(len(order))  # nothing, until an iteration begins

        def take() -> int | None:
            place = self._places[queue]
            if place == len(order) or not may_start(order[place]):
                return None
            self._places[queue] += 1
            taken(order[place])
            return order[place]

        self.serve(name, take, run, own_stream=own_stream)

    def begin(self) -> None:
        """Begin an iteration, with the lock held: queues with an order are at its beginning again."""
        self._places = [0] * len(self._places)
        self.changed.notify_all()

    def wait(self, over: Callable[[], bool], late: Callable[[], str], *, task: str | None = None) -> None:
        """Wait in the training program.

        Args:
            over: Whether what it waits for is there, asked with the lock held.
            late: What is late, for the error.
            task: What ranks do together in what it waits for; None: as always.

        Raises:
            CheckError: If something failed in a thread, or it takes longer than the timeout.
        """
        with self.changed:
            ended = self.changed.wait_for(lambda: self.failure is not None or over(), timeout=self.timeout_s)
            if self.failure is not None:
                raise lost_rank(self.failure, task or self._task) from self.failure
            if not ended:
                mistake = f", or {self._mistake}" if self._mistake else ""
                raise CheckError(
                    f"expected {late()} within {self.timeout_s:g} s, found it under way: a rank is slow or "
                    f"gone{mistake}."
                )

    def fail(self, error: BaseException) -> None:
        """Stop all queues; what fails first is raised where the training waits."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def mark(self) -> Any:
        """On a GPU, an event of the current stream; None: nothing is to be ordered behind it."""
        return None if self._cuda is None else torch.cuda.current_stream(self._cuda).record_event()

    def order_behind(self, marks: Iterable[Any]) -> None:
        """Let the current stream of a GPU wait for marks."""
        for each in marks:
            if each is not None:
                torch.cuda.current_stream(self._cuda).wait_event(each)

    def close(self) -> None:
        """Stop the threads; outstanding work is abandoned."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _next(self, take: Callable[[], _Item | None], *, drains: bool) -> _Item | None:
        """The next item of a queue; None when stopped."""
        found: list[_Item] = []

        def stops() -> bool:
            return self.failure is not None or (self._closed and not drains)

        def may_go_on() -> bool:
            if stops():
                return True
            item = take()
            if item is not None:
                found.append(item)
            return item is not None or self._closed

        with self.changed:
            self.changed.wait_for(may_go_on)
        return found[0] if found else None

    def _use_device(self, *, own_stream: bool) -> None:
        if self._cuda is not None:
            torch.cuda.set_device(self._cuda)
            if own_stream:
                torch.cuda.set_stream(torch.cuda.Stream(self._cuda))  # type: ignore[no-untyped-call]
