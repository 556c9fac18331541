"""The operations of a graph as columns, from which the tasks of a plan are made natively.

A search looks at thousands of plans of graphs of a hundred thousand tasks: what operations are is written down once,
and a plan is a few numbers for each decision. The rules are those of ``cpp/tasks/operations.h``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.errors import InputError
from coppice.iteration.policies.whole.motifs import Channel, GraphOperation, MotifPlan
from coppice.iteration.tasks import TaskGraph
from coppice.rows import first_rows, offsets, ranges


class OperationColumns:
    """Operations and channels as columns; ways that operations share are written down once.

    Args:
        operations: In the order in which they are submitted.
        channels: By name.
        decisions: All that is to be decided.
    """

    def __init__(
        self,
        operations: Sequence[GraphOperation],
        channels: Mapping[str, Channel],
        decisions: Iterable[str],
    ) -> None:
        self.operations = operations
        self.decisions = {name: number for number, name in enumerate(decisions)}
        groups: dict[str, int] = {"": -1}
        known: dict[int, int] = {}
        self.shared = list({id(each.ways): each.ways for each in operations}.values())
        for number, ways in enumerate(self.shared):
            known[id(ways)] = number
        self.columns: dict[str, NDArray[Any]] = {
            "decision": _column((self.decisions.get(each.decision, -1) for each in operations), np.int32),
            "group": _column((groups.setdefault(each.group, len(groups)) for each in operations), np.int32),
            "priority": _column((each.priority for each in operations), np.int64),
            "ways": _column((known[id(each.ways)] for each in operations), np.int32),
            "after_start": offsets(_column((len(each.after) for each in operations), np.int64)),
            "after": _column((other for each in operations for other in each.after), np.int32),
            **self._options(channels),
        }
        links: dict[str, int] = {}
        rows = [each.loads for each in channels.values()]
        self.load_count = _column((len(row) for row in rows), np.int64)
        self.load_first = first_rows(self.load_count)
        self.load_link = _column(
            (links.setdefault(name, len(links)) for row in rows for name in row), np.int32
        )
        self.load = _column((share for row in rows for share in row.values()), np.float64)
        self.links = tuple(links)

    def _options(self, channels: Mapping[str, Channel]) -> dict[str, NDArray[Any]]:
        """Ways, their motifs, and the channels of these."""
        self.streams = tuple(name for name, each in channels.items() if not each.parallel)
        number = {name: stream for stream, name in enumerate(self.streams)}
        place = {name: at for at, name in enumerate(channels)}
        ways = [way for ways in self.shared for way in ways]
        motifs = [motif for way in ways for motif in way]
        options = [(motif, name) for motif in motifs for name in motif.channels]
        of_option = [channels[name] for _, name in options]
        kinds: dict[str, int] = {"barrier": 0}
        self.kind = _column((kinds.setdefault(each.kind, len(kinds)) for each, _ in options), np.int32)
        self.kind_names = tuple(kinds)
        self.channel = _column((place[name] for _, name in options), np.int64)
        self.width = max(map(len, ways), default=0)
        return {
            "way_start": offsets(_column(map(len, self.shared), np.int64)),
            "motif_start": offsets(_column(map(len, ways), np.int64)),
            "option_start": offsets(_column((len(each.channels) for each in motifs), np.int64)),
            "stream": _column((number.get(name, -1) for _, name in options), np.int32),
            "starting": _column(
                (
                    motif.starts * each.start_seconds
                    for (motif, _), each in zip(options, of_option, strict=True)
                ),
                np.float64,
            ),
            "amount": _column((motif.amount for motif, _ in options), np.float64),
            "rate": _column((each.units_per_second for each in of_option), np.float64),
        }

    def task_graph(self, plan: MotifPlan) -> TaskGraph:
        """The tasks under a plan."""
        settled = self._settled(plan)
        operation, piece, option, stream, seconds, priority, after_start, after = _core.operation_tasks(
            **self.columns, **settled, width=self.width
        )
        kinds = np.where(option < 0, 0, self.kind[option]) if len(self.kind) else option
        names = _TaskNames(self.operations, operation, piece, option, (kinds, self.kind_names))
        bad = np.flatnonzero(~(np.isfinite(seconds) & (seconds >= 0)))
        if len(bad):
            task = int(bad[0])
            raise InputError(f"expected tasks of 0 or more seconds, found {seconds[task]} for {names[task]}.")
        counts, loaded = np.zeros(len(option), dtype=np.int64), np.zeros(0, dtype=np.int64)
        if self.links:
            channel = self.channel[option]
            counts = np.where(option < 0, 0, self.load_count[channel])
            loaded = ranges(self.load_first[channel], counts)
        return TaskGraph(
            names=names,
            kinds=kinds,
            kind_names=self.kind_names,
            streams=self.streams,
            stream=stream,
            seconds=seconds,
            priority=priority,
            after_start=after_start,
            after=after,
            links=self.links,
            load_start=offsets(counts),
            load_link=self.load_link[loaded],
            load=self.load[loaded],
        )

    def _settled(self, plan: MotifPlan) -> dict[str, NDArray[Any]]:
        """What a plan settles for each decision."""
        number = len(self.decisions)
        pieces, way = np.ones(number, dtype=np.int32), np.zeros(number, dtype=np.int32)
        ranked, rank = np.zeros(number, dtype=np.uint8), np.zeros(number, dtype=np.int64)
        options = np.zeros((number, self.width), dtype=np.int32)
        for name, choice in plan.choices.items():
            if choice.pieces < 1:
                raise InputError(
                    f"expected a plan that cuts {name} in 1 piece or more, found {choice.pieces}."
                )
            at = self.decisions.get(name)
            if at is not None:
                pieces[at], way[at] = choice.pieces, choice.way
                kept = choice.channels[: self.width]
                options[at, : len(kept)] = kept
        for name, value in plan.ranks.items():
            at = self.decisions.get(name)
            if at is not None:
                ranked[at], rank[at] = 1, value
        return {"pieces": pieces, "way": way, "ranked": ranked, "rank": rank, "options": options.ravel()}


class _TaskNames(Sequence[str]):
    """Names of tasks, made when they are asked for."""

    def __init__(
        self,
        operations: Sequence[GraphOperation],
        operation: NDArray[np.int32],
        piece: NDArray[np.int32],
        option: NDArray[np.int32],
        kinds: tuple[NDArray[np.int32], tuple[str, ...]],
    ) -> None:
        self._operations, self._operation = operations, operation
        self._piece, self._option, self._kinds = piece, option, kinds

    def __len__(self) -> int:
        return len(self._operation)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        number = int(self._operation[index])
        name = self._operations[number].name
        if self._option[index] < 0:
            return name
        last = int(np.searchsorted(self._operation, number, side="right")) - 1
        first = int(np.searchsorted(self._operation, number))
        cut = self._option[last] < 0
        pieces = int(self._piece[last]) if cut else 1
        if last - first + 1 - cut > pieces:
            kinds, kind_names = self._kinds
            name = f"{name}: {kind_names[kinds[index]]}"
        return f"{name} ({self._piece[index] + 1} of {pieces})" if cut else name


def _column(values: Iterable[float], kind: type) -> NDArray[Any]:
    return np.fromiter(values, dtype=kind)
