"""Task graphs: tasks of training iterations with streams and dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

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
