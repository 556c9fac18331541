"""Executor of a plan on one rank: an in-order queue with a thread for every channel.

A task starts when its turn on its channel has come and all that it waits for has ended. Computation is done by the
training program itself, in the order of the plan too. On a GPU a channel has a stream, and "ended" means submitted,
with an event that followers' streams wait for. What fails in a thread is raised where the training next waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from coppice.errors import CheckError
from coppice.training.torch.chunked.orders import BARRIER, OrderedPlan

TaskRun = Callable[[int, int], None]
"""Does a piece and a phase of an operation."""


class TaskExecutor:
    """Execute the tasks of a plan in order, iteration by iteration.

    Args:
        ordered: The plan and its order.
        channels: Channels that have threads; tasks of others are done by :meth:`advance`.
        device: Where tensors lie.
        timeout_s: Longest wait for a task.
    """

    def __init__(
        self, ordered: OrderedPlan, channels: Iterable[str], device: torch.device, timeout_s: float
    ) -> None:
        self.ordered = ordered
        # Names of the tasks of the last iteration in the order of their start, by channel
        self.launched: dict[str, list[str]] = {}
        self._timeout_s = timeout_s
        self._device = device
        wanted = set(channels)
        self._orders = {name: ordered.order(name) for name in ordered.graph.channels if name in wanted}
        self._orders = {name: order for name, order in self._orders.items() if order}
        own = {task for order in self._orders.values() for task in order}
        self._computed = tuple(
            each for each in ordered.sequence if each not in own and ordered.tasks[each].phase != BARRIER
        )
        self._of_operation: dict[int, list[int]] = {}
        for number, task in enumerate(ordered.tasks):
            self._of_operation.setdefault(task.operation, []).append(number)
        self._changed = threading.Condition()
        self._runs: dict[int, TaskRun] = {}
        self._done: set[int] = set(range(len(ordered.tasks)))
        self._events: dict[int, Any] = {}
        self._next = len(self._computed)
        self._error: BaseException | None = None
        self._closed = False
        self._generation = 0
        self.seconds: dict[int, float] = {}
        """Time that each operation was computed for in the last iteration, without waiting."""
        self._threads = [
            threading.Thread(target=self._run_all, args=(name,), name=f"coppice {name}", daemon=True)
            for name in self._orders
        ]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        """Whether a task of the iteration is outstanding."""
        return len(self._done) < len(self.ordered.tasks)

    def begin(self, runs: Mapping[int, TaskRun] | None = None) -> None:
        """Start an iteration.

        Args:
            runs: What does each operation; others follow by :meth:`bind`.
        """
        with self._changed:
            self._runs = dict(runs or {})
            self._done = set()
            self._events = {}
            self._next = 0
            self.seconds = {}
            self.launched = {name: [] for name in self.ordered.graph.channels}
            self._generation += 1
            self._changed.notify_all()

    def bind(self, operation: int, run: TaskRun) -> None:
        """Set the action of an operation, before its inputs complete."""
        with self._changed:
            self._runs[operation] = run
            self._changed.notify_all()

    def advance(self, operation: int | None = None) -> None:
        """Compute in plan order, up to the last chunk of an operation, or to the end."""
        last = (
            len(self._computed)
            if operation is None
            else 1 + max(self._computed.index(each) for each in self._tasks(operation))
        )
        while self._next < last:
            number = self._computed[self._next]
            self._next += 1
            task = self.ordered.tasks[number]
            self._await(task.after)
            run = self._runs.get(task.operation)
            self.launched[task.stream].append(self.ordered.name(number))
            begin = time.perf_counter()
            if run is not None:
                run(task.piece, task.phase)
            spent = time.perf_counter() - begin
            self.seconds[task.operation] = self.seconds.get(task.operation, 0.0) + spent
            self._finish(number)

    def wait(self, operations: Iterable[int]) -> None:
        """Wait for the results of operations."""
        self._await([task for operation in operations for task in self._of_operation[operation]])

    def wait_all(self) -> None:
        """Wait for everything."""
        self._await(range(len(self.ordered.tasks)))

    def close(self) -> None:
        """Stop the threads; outstanding work is abandoned."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _tasks(self, operation: int) -> list[int]:
        return [each for each in self._of_operation[operation] if self.ordered.tasks[each].phase != BARRIER]

    def _ended(self, task: int) -> bool:
        """Whether a task has ended; a barrier has when all others have."""
        if task in self._done:
            return True
        each = self.ordered.tasks[task]
        if each.phase != BARRIER or not all(self._ended(other) for other in each.after):
            return False
        self._done.add(task)
        return True

    def _await(self, tasks: Iterable[int]) -> None:
        """Block the training program until tasks end."""
        wanted = list(tasks)
        with self._changed:
            ended = self._changed.wait_for(
                lambda: self._error is not None or all(self._ended(each) for each in wanted),
                timeout=self._timeout_s,
            )
            if self._error is not None:
                reason = str(self._error).strip().splitlines()
                raise CheckError(
                    f"expected all ranks to carry the plan out, found one that does not answer "
                    f"({reason[0] if reason else type(self._error).__name__}): start the training again from its "
                    "last checkpoint."
                ) from self._error
            if not ended:
                late = next(each for each in wanted if not self._ended(each))
                raise CheckError(
                    f"expected {self.ordered.name(late)} within {self._timeout_s:g} s, found it under way: a rank is "
                    "slow or gone, or ranks do other things."
                )
        self._follow(wanted)

    def _follow(self, tasks: Iterable[int]) -> None:
        """Make the current GPU stream wait for tasks."""
        if self._device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self._device)
        todo, seen = list(tasks), set()
        while todo:
            each = todo.pop()
            if each in seen:
                continue
            seen.add(each)
            if each in self._events:
                stream.wait_event(self._events[each])
            elif self.ordered.tasks[each].phase == BARRIER:
                todo += self.ordered.tasks[each].after

    def _finish(self, task: int) -> None:
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
        with self._changed:
            if event is not None:
                self._events[task] = event
            self._done.add(task)
            self._changed.notify_all()

    def _stream(self) -> AbstractContextManager[Any]:
        """GPU stream of a thread's tasks."""
        if self._device.type != "cuda":
            return nullcontext()
        torch.cuda.set_device(self._device)
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def _run_all(self, channel: str) -> None:
        """Thread of a channel."""
        seen = 0
        try:
            with self._stream(), torch.no_grad():
                while self._await_iteration(seen):
                    seen = self._generation
                    for number in self._orders[channel]:
                        run = self._await_turn(number)
                        if run is None:
                            return
                        task = self.ordered.tasks[number]
                        self._follow(task.after)
                        self.launched[channel].append(self.ordered.name(number))
                        run(task.piece, task.phase)
                        self._finish(number)
        except BaseException as error:  # noqa: BLE001 (raised where the training waits)
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _await_iteration(self, seen: int) -> bool:
        """Wait for the next iteration; False when stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._generation > seen)
            return not self._closed

    def _await_turn(self, number: int) -> TaskRun | None:
        """Wait until a task may start; return its action, or None when stopped."""
        task = self.ordered.tasks[number]

        def may_start() -> bool:
            if self._closed or self._error is not None:
                return True
            return task.operation in self._runs and all(self._ended(each) for each in task.after)

        with self._changed:
            self._changed.wait_for(may_start)
            return None if self._closed or self._error is not None else self._runs[task.operation]
