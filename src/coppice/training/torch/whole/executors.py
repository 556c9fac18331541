"""Executor of a plan on one rank: an in-order queue with a thread for every channel.

A task starts when its turn on its channel has come and all that it waits for has ended. Computation is done by the
training program itself, in the order of the plan too. On a GPU a channel has a stream, and "ended" means submitted,
with an event that followers' streams wait for. What fails in a thread is raised where the training next waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from coppice.training.torch.core.launcher import Launcher
from coppice.training.torch.core.measure import COMPUTE, StepEvent, StepRecord, now
from coppice.training.torch.whole.orders import BARRIER, OrderedPlan

TaskRun = Callable[[int, int], None]
"""Does a piece and a phase of an operation."""


class TaskExecutor:
    """Execute the tasks of a plan in order, iteration by iteration.

    Args:
        ordered: The plan and its order.
        channels: Channels that have threads; tasks of others are done by :meth:`advance`.
        device: Where tensors lie.
        timeout_s: Longest wait for a task.
        record: Gets the times of what the training program computes, without waiting; None: nobody wants them.
    """

    def __init__(
        self,
        ordered: OrderedPlan,
        channels: Iterable[str],
        device: torch.device,
        timeout_s: float,
        record: StepRecord | None = None,
    ) -> None:
        self.ordered, self._record = ordered, record
        self._launched: dict[str, list[int]] = {}
        self._launcher = Launcher(device, timeout_s, "carry the plan out", mistake="ranks do other things")
        self._changed = self._launcher.changed
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
        self._runs: dict[int, TaskRun] = {}
        self._done: set[int] = set(range(len(ordered.tasks)))
        self._events: dict[int, Any] = {}
        self._next = len(self._computed)
        for name, order in self._orders.items():
            self._launcher.follow(name, order, self._may_start, partial(self._run, name), own_stream=True)

    @property
    def launched(self) -> dict[str, list[str]]:
        """Names of the tasks of the last iteration in the order of their start, by channel."""
        return {name: [self.ordered.name(each) for each in row] for name, row in self._launched.items()}

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
            self._launched = {name: [] for name in self.ordered.graph.channels}
            self._launcher.begin()

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
            self._launched[task.stream].append(number)
            if run is not None:
                begin = now()
                run(task.piece, task.phase)
                if self._record is not None:
                    name = self.ordered.graph.operations[task.operation].name
                    self._record.add(StepEvent(COMPUTE, name, begin, now()))
            self._finish(number)

    def wait(self, operations: Iterable[int]) -> None:
        """Wait for the results of operations."""
        self._await([task for operation in operations for task in self._of_operation[operation]])

    def wait_all(self) -> None:
        """Wait for everything."""
        self._await(range(len(self.ordered.tasks)))

    def close(self) -> None:
        """Stop the threads; outstanding work is abandoned."""
        self._launcher.close()

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
        self._launcher.wait(
            lambda: all(self._ended(each) for each in wanted),
            lambda: self.ordered.name(next(each for each in wanted if not self._ended(each))),
        )
        self._follow(wanted)

    def _follow(self, tasks: Iterable[int]) -> None:
        """Make the current GPU stream wait for tasks."""
        if not self._events:
            return
        todo, seen = list(tasks), set()
        while todo:
            each = todo.pop()
            if each in seen:
                continue
            seen.add(each)
            if each in self._events:
                self._launcher.order_behind([self._events[each]])
            elif self.ordered.tasks[each].phase == BARRIER:
                todo += self.ordered.tasks[each].after

    def _finish(self, task: int) -> None:
        event = self._launcher.mark()
        with self._changed:
            if event is not None:
                self._events[task] = event
            self._done.add(task)
            self._changed.notify_all()

    def _may_start(self, number: int) -> bool:
        """Whether a task may start."""
        task = self.ordered.tasks[number]
        return task.operation in self._runs and all(self._ended(each) for each in task.after)

    def _run(self, channel: str, number: int) -> None:
        """Do a task in the thread of its channel."""
        task = self.ordered.tasks[number]
        with torch.no_grad():
            self._follow(task.after)
            self._launched[channel].append(number)
            self._runs[task.operation](task.piece, task.phase)
            self._finish(number)
