"""Simulation of a task graph: start and end of each task, what it waited for, and lower bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.errors import InputError
from coppice.iteration.tasks import TaskGraph

GRID_SECONDS = 2.0**-34
"""Simulated times are multiples of this."""
_SHOWN = 12  # tasks of a circle that are named


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskTimes:
    """Start and end times of the tasks of a graph."""

    graph: TaskGraph  # The graph
    start: NDArray[np.float64]  # Seconds at which each task starts
    finish: NDArray[np.float64]  # Seconds at which each ends
    # Task whose end let it start, by a dependency or by leaving the stream; -1: none
    cause: NDArray[np.int32]

    @property
    def seconds(self) -> float:
        """Makespan."""
        return float(self.finish.max(initial=0.0))

    def busy_seconds(self, stream: int) -> float:
        """Busy time of a stream."""
        own = self.graph.stream == stream
        return float((self.finish[own] - self.start[own]).sum())


def run_tasks(graph: TaskGraph) -> TaskTimes:
    """Simulate a task graph: natively, by the rules of ``cpp/tasks/tasks.h``.

    A task is ready when all that it comes after has ended; a free stream takes the ready task with the least
    priority, of equal ones the one submitted first, and runs it to its end. Tasks that load links beyond their capacity
    get max-min fair speeds. Tasks of a window wait until it has credit. Times are multiples of 2^-34 s.

    Examples:
        >>> from coppice.iteration.tasks import TaskGraphBuilder
        >>> graph = TaskGraphBuilder()
        >>> network = graph.stream("network")
        >>> for name, priority in (("a", 0), ("b", 2), ("c", 1)):
        ...     number = graph.add(name, "all_reduce", network, 1.5, priority=priority)
        >>> run_tasks(graph.build()).start.tolist()
        [0.0, 3.0, 1.5]
    """
    start, finish, cause, finished = _core.run_tasks(
        graph.stream,
        graph.seconds,
        graph.priority,
        graph.after_start,
        graph.after,
        graph.load_start,
        graph.load_link,
        graph.load,
        num_streams=len(graph.streams),
        num_links=len(graph.links),
        window=graph.window,
        window_bytes=graph.window_bytes,
        returns=graph.returns,
        credit=graph.credit,
    )
    if finished < len(graph):
        if len(head := _core.path_lengths(graph.seconds, graph.after_start, graph.after)[0]):
            held = graph.names[int(np.flatnonzero(start < 0)[head[start < 0].argmin()])]
            raise InputError(
                f"expected credit that comes back to every window, found {held} waiting for it forever."
            )
        names = [graph.names[task] for task in _circle(graph, start < 0)]
        if len(names) > _SHOWN:
            names[_SHOWN // 2 : -_SHOWN // 2] = [f"{len(names) - _SHOWN} others"]
        circle = " after ".join(names)
        raise InputError(f"expected tasks that do not wait for themselves, found {circle}.")
    return TaskTimes(graph=graph, start=start, finish=finish, cause=cause)


def _circle(graph: TaskGraph, stuck: NDArray[np.bool_]) -> list[int]:
    """Tasks of a dependency cycle, the first one repeated at the end."""
    at, seen = int(np.flatnonzero(stuck)[0]), {}
    path: list[int] = []
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = next(int(before) for before in graph.predecessors(at) if stuck[before])
    return [*path[seen[at] :], at]


def on_grid(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round times to those that are simulated."""
    rounded: NDArray[np.float64] = np.rint(seconds / GRID_SECONDS) * GRID_SECONDS
    return rounded


@dataclass(frozen=True, kw_only=True)
class LowerBounds:
    """Lower bounds over all orders of a graph's tasks on their streams, in seconds."""

    path: float  # The longest path of tasks that wait for each other
    stream: str = ""  # Name of the busiest stream; empty: there is none
    stream_seconds: float = 0.0  # All its tasks, and the least time before and after any of them
    link: str = ""  # Name of the busiest link; empty: there is none
    link_seconds: float = 0.0  # The same with the share that tasks take of it

    @property
    def seconds(self) -> float:
        """Largest bound."""
        return max(self.path, self.stream_seconds, self.link_seconds)


def lower_bounds(graph: TaskGraph) -> LowerBounds:
    """Lower bounds over all orders of the tasks on their streams.

    Examples:
        >>> from coppice.iteration.tasks import TaskGraphBuilder
        >>> graph = TaskGraphBuilder()
        >>> network = graph.stream("network")
        >>> for name in "ab":
        ...     number = graph.add(name, "all_reduce", network, 1.5)
        >>> found = lower_bounds(graph.build())
        >>> found.path, found.stream, found.stream_seconds
        (1.5, 'network', 3.0)
    """
    if not len(graph):
        return LowerBounds(path=0.0)
    head, tail = _core.path_lengths(graph.seconds, graph.after_start, graph.after)
    if not len(head):
        run_tasks(graph)  # which says where
    seconds = on_grid(graph.seconds)
    after = tail - seconds

    def busiest(
        owner: NDArray[np.int32],
        tasks: NDArray[np.int64],
        seconds: NDArray[np.float64],
        names: tuple[str, ...],
    ) -> tuple[str, float]:
        """The largest sum of an owner with what comes before and after it in any case."""
        if not names:
            return "", 0.0
        total = np.bincount(owner, weights=seconds, minlength=len(names))
        first, last = np.full(len(names), np.inf), np.full(len(names), np.inf)
        np.minimum.at(first, owner, head[tasks])
        np.minimum.at(last, owner, after[tasks])
        whole = np.where(np.isfinite(first), total + first + last, 0.0)
        return names[int(whole.argmax())], float(whole.max())

    on_streams = np.flatnonzero(graph.stream >= 0)
    stream = busiest(graph.stream[on_streams], on_streams, seconds[on_streams], graph.streams)
    on_links = np.repeat(np.arange(len(graph)), np.diff(graph.load_start))
    # What a link carries ends on the grid after every task.
    carried = np.maximum(graph.load * seconds[on_links] - GRID_SECONDS, 0.0)
    link = busiest(graph.load_link, on_links, carried, graph.links)
    return LowerBounds(
        path=float((head + tail).max()),
        stream=stream[0],
        stream_seconds=stream[1],
        link=link[0],
        link_seconds=link[1],
    )


def lower_bound_seconds(graph: TaskGraph) -> float:
    """Lower bound over all orders of the tasks on their streams: the largest of :func:`lower_bounds`."""
    return lower_bounds(graph).seconds
