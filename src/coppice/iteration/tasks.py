"""Task graphs: tasks of training iterations with streams and dependencies, when they run, and lower bounds on that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.errors import InputError
from coppice.rows import offsets


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskGraph:
    """Tasks in submission order, as columns."""

    names: Sequence[str]  # Name of each task, for people
    kinds: NDArray[np.int32]  # Index into `kind_names` of each task
    kind_names: tuple[str, ...]  # Kinds of tasks, such as `forward`
    streams: tuple[str, ...]  # Names of the streams; a stream runs one task at a time
    stream: NDArray[np.int32]  # Stream of each task, int32; -1: it starts as soon as it can
    seconds: NDArray[np.float64]  # Time of each task alone, float64
    # A free stream takes the ready task with the least, of equal ones the one submitted first; int64
    priority: NDArray[np.int64]
    after_start: NDArray[np.int64]  # Task t comes after `after[after_start[t]:after_start[t + 1]]`
    after: NDArray[np.int32]  # These tasks, int32
    links: tuple[str, ...]  # Names of the links that tasks share
    load_start: NDArray[np.int64]  # Task t loads `load_link[load_start[t]:load_start[t + 1]]`
    load_link: NDArray[np.int32]  # These links, int32
    load: NDArray[np.float64]  # Share of each that the task takes at full speed, float64
    # Bytes that each window lets out before any come back, float64
    credit: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    # Window of each task, int32; -1: none; empty where there are no windows
    window: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    # Bytes of its window's credit that each task takes, float64
    window_bytes: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    # Task whose credit comes back when each ends, int32; -1: none
    returns: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.stream)

    def __repr__(self) -> str:
        return f"<{len(self)} tasks on {len(self.streams)} streams and {len(self.links)} links>"

    def predecessors(self, task: int) -> NDArray[np.int32]:
        """Predecessors of a task."""
        return self.after[self.after_start[task] : self.after_start[task + 1]]


@dataclass
class TaskGraphBuilder:
    """Builder of a task graph; tasks are numbered in submission order.

    Examples:
        >>> graph = TaskGraphBuilder()
        >>> compute = graph.stream("compute")
        >>> first = graph.add("F0", "forward", compute, 1.0)
        >>> second = graph.add("F1", "forward", compute, 2.0, after=[first])
        >>> graph.build()
        <2 tasks on 1 streams and 0 links>
    """

    _names: list[str] = field(default_factory=list)
    _kinds: list[int] = field(default_factory=list)
    _kind: dict[str, int] = field(default_factory=dict)
    _streams: dict[str, int] = field(default_factory=dict)
    _links: dict[str, int] = field(default_factory=dict)
    _stream: list[int] = field(default_factory=list)
    _seconds: list[float] = field(default_factory=list)
    _priority: list[int] = field(default_factory=list)
    _after: list[list[int]] = field(default_factory=list)
    _load_link: list[int] = field(default_factory=list)
    _load: list[float] = field(default_factory=list)
    _load_start: list[int] = field(default_factory=lambda: [0])
    _credit: list[float] = field(default_factory=list)
    _admitted: list[tuple[int, int, float]] = field(default_factory=list)
    _acknowledged: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._stream)

    def stream(self, name: str) -> int:
        """Number of a stream by name, added on first use."""
        return self._streams.setdefault(name, len(self._streams))

    def add(
        self,
        name: str,
        kind: str,
        stream: int,  # Its stream, or -1
        seconds: float,
        *,
        after: Iterable[int] = (),  # Tasks that it comes after; they may be submitted later
        priority: int = 0,  # A free stream takes the least
        loads: Mapping[str, float] | None = None,  # Share of each link, by name, that it takes at full speed
    ) -> int:
        """Submit a task.

        Returns:
            Its number.
        """
        self._names.append(name)
        self._kinds.append(self._kind.setdefault(kind, len(self._kind)))
        self._stream.append(stream)
        self._seconds.append(seconds)
        self._priority.append(priority)
        self._after.append(list(after))
        for link, share in (loads or {}).items():
            self._load_link.append(self._links.setdefault(link, len(self._links)))
            self._load.append(share)
        self._load_start.append(len(self._load))
        return len(self._stream) - 1

    def name(self, task: int) -> str:
        """Name of a submitted task."""
        return self._names[task]

    def window(self, credit: float) -> int:
        """Add a credit window in bytes; one more task starts while any credit is left.

        Returns:
            Its number.
        """
        self._credit.append(credit)
        return len(self._credit) - 1

    def hold(self, task: int, window: int, size_bytes: float) -> None:
        """Let a submitted task wait for a window, of whose credit it takes some bytes.

        The window admits by priority; its tasks then run in the order of admission. Their credit comes back when they
        end, unless an acknowledgement is named.
        """
        self._admitted.append((task, window, size_bytes))

    def acknowledge(self, task: int, by: int) -> None:
        """Return a task's credit when another one ends."""
        self._acknowledged[task] = by

    def await_tasks(self, task: int, after: Iterable[int]) -> None:
        """Add predecessors to a submitted task."""
        self._after[task].extend(after)

    def barrier(self, name: str, after: Iterable[int]) -> int:
        """Submit a task without time and stream.

        Returns:
            Its number.
        """
        return self.add(name, "barrier", -1, 0.0, after=after)

    def build(self) -> TaskGraph:
        """Build the graph."""
        seconds = np.asarray(self._seconds, dtype=np.float64)
        bad = np.flatnonzero(~(np.isfinite(seconds) & (seconds >= 0)))
        if len(bad):
            task = int(bad[0])
            raise InputError(
                f"expected tasks of 0 or more seconds, found {self._seconds[task]} for {self._names[task]}."
            )
        after = np.asarray([before for each in self._after for before in each], dtype=np.int64)
        if len(after) and not (after.min() >= 0 and after.max() < len(seconds)):
            raise InputError(f"expected tasks to come after tasks below {len(seconds)}, found {after.max()}.")
        held = len(seconds) if self._admitted else 0
        window, window_bytes = np.full(held, -1, dtype=np.int32), np.zeros(held)
        returns = np.full(held, -1, dtype=np.int32)
        for task, number, size_bytes in self._admitted:
            window[task], window_bytes[task] = number, size_bytes
            returns[self._acknowledged.get(task, task)] = task
        return TaskGraph(
            names=tuple(self._names),
            kinds=np.asarray(self._kinds, dtype=np.int32),
            kind_names=tuple(self._kind),
            streams=tuple(self._streams),
            stream=np.asarray(self._stream, dtype=np.int32),
            seconds=seconds,
            priority=np.asarray(self._priority, dtype=np.int64),
            after_start=offsets(np.asarray([len(each) for each in self._after], dtype=np.int64)),
            after=after.astype(np.int32),
            links=tuple(self._links),
            load_start=np.asarray(self._load_start, dtype=np.int64),
            load_link=np.asarray(self._load_link, dtype=np.int32),
            load=np.asarray(self._load, dtype=np.float64),
            credit=np.asarray(self._credit, dtype=np.float64),
            window=window,
            window_bytes=window_bytes,
            returns=returns,
        )


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
