"""The operations of a graph as columns, from which the tasks of any plan are made at once.

Tasks of operation i come before those of operation i + 1; those of an operation in order of pieces, those of a piece in
order of motifs, and where there are several pieces a barrier behind them. A search looks at thousands of plans of
graphs of a hundred thousand tasks, so that only what a plan changes is computed for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.iteration.tasks import TaskGraph
from coppice.rows import first_rows, offsets, ranges

if TYPE_CHECKING:
    from coppice.iteration.policies.whole.operations import Channel, GraphOperation, MotifPlan

__all__ = ["OperationColumns"]

_Ints = NDArray[np.int64]


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
        decisions: Sequence[str],
    ) -> None:
        self.operations = operations
        self.decisions = {name: number for number, name in enumerate(decisions)}
        self._channels(channels)
        self._ways(channels)
        groups: dict[str, int] = {"": -1}
        self.group = _ints(groups.setdefault(each.group, len(groups)) for each in operations)
        self.decision = _ints(self.decisions.get(each.decision, -1) for each in operations)
        self.priority = _ints(each.priority for each in operations)
        self.degree = _ints(len(each.after) for each in operations)
        self.after_first = first_rows(self.degree)
        self.after = _ints(other for each in operations for other in each.after)
        self.owner = np.repeat(np.arange(len(operations)), self.degree)
        group = self.group[self.owner]
        self.alike = (group >= 0) & (group == self.group[self.after])

    def _channels(self, channels: Mapping[str, Channel]) -> None:
        self.streams = tuple(name for name, each in channels.items() if not each.parallel)
        number = {name: stream for stream, name in enumerate(self.streams)}
        self.stream = np.asarray([number.get(name, -1) for name in channels] or [-1], dtype=np.int32)
        links: dict[str, int] = {}
        rows = [each.loads for each in channels.values()]
        self.load_count = _ints([len(row) for row in rows] or [0])
        self.load_first = first_rows(self.load_count)
        self.load_link = np.asarray(
            [links.setdefault(name, len(links)) for row in rows for name in row], dtype=np.int32
        )
        self.load = np.asarray([share for row in rows for share in row.values()], dtype=np.float64)
        self.links = tuple(links)

    def _ways(self, channels: Mapping[str, Channel]) -> None:
        """Ways of operations, motifs of ways, and for each motif the channels that can do it."""
        number = {name: channel for channel, name in enumerate(channels)}
        known: dict[int, int] = {}
        ways, motifs, options = [], [], []
        of_ways: list[int] = []
        kinds: dict[str, int] = {"barrier": 0}
        kind: list[int] = []
        row: list[int] = []
        for each in self.operations:
            if id(each.ways) not in known:
                known[id(each.ways)] = len(of_ways)
                of_ways.append(len(each.ways))
                for way in each.ways:
                    ways.append(len(way))
                    for motif in way:
                        motifs.append(len(motif.channels))
                        kind.append(kinds.setdefault(motif.kind, len(kinds)))
                        options += [(motif, name) for name in motif.channels]
            row.append(known[id(each.ways)])
        alternatives = _ints(of_ways)
        self.number_of_ways = alternatives[row]
        self.first_way = first_rows(alternatives)[row]
        self.length = _ints(ways)
        self.first_motif = first_rows(self.length)
        self.number_of_options = _ints(motifs)
        self.first_option = first_rows(self.number_of_options)
        self.kind_names, self.kind = tuple(kinds), np.asarray(kind, dtype=np.int32)
        self.channel = _ints(number[name] for _, name in options)
        self.amount = np.asarray([motif.amount for motif, _ in options], dtype=np.float64)
        rates = [channels[name] for _, name in options]
        self.rate = np.asarray([each.units_per_second for each in rates], dtype=np.float64)
        self.starting = np.asarray(
            [motif.starts * each.start_seconds for (motif, _), each in zip(options, rates, strict=True)],
            dtype=np.float64,
        )

    def task_graph(self, plan: MotifPlan) -> TaskGraph:
        """The tasks under a plan.

        Raises:
            InputError: If a task takes a negative or infinite time, or the plan cuts in less than one piece.
        """
        pieces, way, options, priority = self._settled(plan)
        length = self.length[way]
        count = pieces * length + (pieces > 1)
        first = first_rows(count)
        operation = np.repeat(np.arange(len(count)), count)
        task = np.arange(len(operation))
        own = length[operation]
        piece, motif = np.divmod(task - first[operation], own)
        barrier = np.flatnonzero(piece == pieces[operation])
        motif_row = self.first_motif[way][operation] + motif
        chosen = options[self.decision[operation], motif]
        chosen[(chosen < 0) | (chosen >= self.number_of_options[motif_row])] = 0
        option = self.first_option[motif_row] + chosen
        seconds = self.starting[option] + self.amount[option] / pieces[operation] / self.rate[option]
        stream = self.stream[self.channel[option]]
        kinds, rank = self.kind[motif_row], priority[operation]
        seconds[barrier], stream[barrier], kinds[barrier], rank[barrier] = 0.0, -1, 0, 0
        names = _TaskNames(self.operations, operation, piece, kinds, self.kind_names, pieces, length)
        _check_seconds(seconds, names)
        loads = np.where(piece == pieces[operation], 0, self.load_count[self.channel[option]])
        loaded = ranges(self.load_first[self.channel[option]], loads)
        after_start, after = self._edges(pieces, length, first, (operation, piece, motif, barrier))
        return TaskGraph(
            names=names,
            kinds=kinds,
            kind_names=self.kind_names,
            streams=self.streams,
            stream=stream,
            seconds=seconds,
            priority=rank,
            after_start=after_start,
            after=after,
            links=self.links,
            load_start=offsets(loads),
            load_link=self.load_link[loaded],
            load=self.load[loaded],
        )

    def _settled(self, plan: MotifPlan) -> tuple[_Ints, _Ints, _Ints, _Ints]:
        """Pieces and way of each operation, channels of motifs of each decision, priority of each operation."""
        number = len(self.decisions)
        pieces = np.ones(number + 1, dtype=np.int64)
        way = np.zeros(number + 1, dtype=np.int64)
        options = np.zeros((number + 1, int(self.length.max(initial=1))), dtype=np.int64)
        for name, choice in plan.choices.items():
            if choice.pieces < 1:
                msg = f"expected a plan that cuts {name} in 1 piece or more, found {choice.pieces}."
                raise InputError(msg)
            if name in self.decisions:
                at = self.decisions[name]
                pieces[at], way[at] = choice.pieces, choice.way
                kept = choice.channels[: options.shape[1]]
                options[at, : len(kept)] = kept
        ranked = np.zeros(number + 1, dtype=np.bool_)
        rank = np.zeros(number + 1, dtype=np.int64)
        for name, value in plan.ranks.items():
            if name in self.decisions:
                ranked[self.decisions[name]], rank[self.decisions[name]] = True, value
        # What is not decided, -1, is the last row.
        own = way[self.decision]
        own[(own < 0) | (own >= self.number_of_ways)] = 0
        priority = np.where(ranked[self.decision], rank[self.decision], self.priority)
        return pieces[self.decision], self.first_way + own, options, priority

    def _edges(
        self, pieces: _Ints, length: _Ints, first: _Ints, tasks: tuple[_Ints, _Ints, _Ints, _Ints]
    ) -> tuple[_Ints, NDArray[np.int32]]:
        """What each task comes after."""
        operation, piece, motif, barrier = tasks
        count = np.where(motif > 0, 1, self.degree[operation])
        count[barrier] = pieces[operation[barrier]]
        start = offsets(count)
        after = np.empty(start[-1], dtype=np.int32)
        later = np.flatnonzero(motif > 0)
        after[start[later]] = later - 1
        begins = motif == 0
        begins[barrier] = False
        begin = np.flatnonzero(begins)
        degree = self.degree[operation[begin]]
        edge = ranges(self.after_first[operation[begin]], degree)
        # The end of all of an operation, or of the piece of it that goes before a piece.
        alike = self.alike & (pieces[self.owner] == pieces[self.after])
        over = first + pieces * length - (pieces == 1)
        ends = over[self.after]
        step = np.where(alike, length[self.after], 0)
        ends[alike] = (first + length - 1)[self.after[alike]]
        after[ranges(start[begin], degree)] = ends[edge] + step[edge] * np.repeat(piece[begin], degree)
        cut = operation[barrier]
        last = np.repeat((first + length - 1)[cut], pieces[cut])
        turn = ranges(np.zeros(len(cut), dtype=np.int64), pieces[cut])
        after[ranges(start[barrier], pieces[cut])] = last + turn * np.repeat(length[cut], pieces[cut])
        return start, after


class _TaskNames(Sequence[str]):
    """Names of tasks, made when they are asked for."""

    def __init__(
        self,
        operations: Sequence[GraphOperation],
        operation: _Ints,
        piece: _Ints,
        kinds: NDArray[np.int32],
        kind_names: tuple[str, ...],
        pieces: _Ints,
        length: _Ints,
    ) -> None:
        self._operations, self._operation, self._piece = operations, operation, piece
        self._kinds, self._kind_names = kinds, kind_names
        self._pieces, self._length = pieces, length

    def __len__(self) -> int:
        return len(self._operation)

    @overload
    def __getitem__(self, task: int) -> str: ...

    @overload
    def __getitem__(self, task: slice) -> Sequence[str]: ...

    def __getitem__(self, task: int | slice) -> str | Sequence[str]:
        if isinstance(task, slice):
            return [self[each] for each in range(*task.indices(len(self)))]
        number, piece = int(self._operation[task]), int(self._piece[task])
        name, pieces = self._operations[number].name, int(self._pieces[number])
        if piece == pieces:
            return name
        if self._length[number] > 1:
            name = f"{name}: {self._kind_names[self._kinds[task]]}"
        return name if pieces == 1 else f"{name} ({piece + 1} of {pieces})"


def _check_seconds(seconds: NDArray[np.float64], names: Sequence[str]) -> None:
    bad = np.flatnonzero(~(np.isfinite(seconds) & (seconds >= 0)))
    if len(bad):
        task = int(bad[0])
        msg = f"expected tasks of 0 or more seconds, found {seconds[task]} for {names[task]}."
        raise InputError(msg)


def _ints(values: Sequence[int] | object) -> _Ints:
    return np.asarray(list(values), dtype=np.int64)  # type: ignore[call-overload]
