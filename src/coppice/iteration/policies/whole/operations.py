"""Operations of a step, plans that decide partition, routes and order of its collectives, and policies that make them.

An operation runs by one of several *decompositions*, sequences of phases (the motifs of SYNDICATE, NSDI 2023): a
reduce-scatter and an all-gather, a stage inside nodes and one between them. A phase runs on one of several channels,
which do one thing at a time. Operations may be cut in pieces: the phases of a piece follow each
other, and pieces of operations of one group, such as an exchange of tokens and the experts that wait for them, go
piece by piece. A plan settles all that, and which operations are more urgent; the graph of tasks follows.

A search looks at thousands of plans of graphs of a hundred thousand tasks: what operations are is written down once, as
columns, a plan is a few numbers for each decision, and its tasks are made natively. The rules are those of
``cpp/tasks/operations.h``.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.errors import InputError
from coppice.iteration.policies.policy import ConfiguredPolicy
from coppice.iteration.tasks import TaskGraph, run_tasks
from coppice.rows import first_rows, offsets, ranges


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Resource that serves one phase at a time: a device's compute stream, a node's links, its NIC."""

    units_per_second: float = 1.0  # Bytes, or seconds of computation, that it does in a second
    start_seconds: float = 0.0  # Time that a phase takes to start
    # Share of each link, by name, that it takes meanwhile; links are shared with other channels
    loads: Mapping[str, float] = field(default_factory=dict)
    parallel: bool = False  # What it is given does not wait for its turn


@dataclass(frozen=True, kw_only=True)
class CollectivePhase:
    """CollectivePhase of an operation, executed by one channel."""

    kind: str  # What it is, such as `reduce_scatter`
    amount: float  # Bytes, or seconds of computation
    channels: tuple[str, ...]  # Channels of which any can do it
    starts: int = 1  # Steps, each of which takes the time that its channel takes to start


@dataclass(frozen=True, kw_only=True)
class GraphOperation:
    """Operation of a step."""

    name: str  # Its name
    # Decompositions into phases, the plain one first
    decompositions: tuple[tuple[CollectivePhase, ...], ...]
    labels: tuple[str, ...] = ()  # Names of decompositions; missing: none
    after: tuple[int, ...] = ()  # Numbers of the operations that it comes after
    # Operations with the same one are cut, routed and ordered alike; empty: nothing is to be decided
    decision: str = ""
    group: str = ""  # Operations of a group go piece by piece; empty: it is alone
    layer: str = ""  # What it is part of: a layer in a direction
    priority: int = 0  # Of those that wait for a channel the least runs first, unless a plan says otherwise
    # Bytes of its buffer, where its phases are in other units; None: those of the plain decomposition
    size_bytes: float | None = None

    @property
    def bytes(self) -> float:
        """Size of the operation for rules about sizes."""
        return (
            sum(phase.amount for phase in self.decompositions[0])
            if self.size_bytes is None
            else self.size_bytes
        )


class OperationRows:
    """Operations under construction, numbered in the order in which they are added."""

    def __init__(self) -> None:
        self.operations: list[GraphOperation] = []

    def add(
        self,
        name: str,
        decompositions: tuple[tuple[CollectivePhase, ...], ...],
        after: Iterable[int],
        **others: Any,  # Further fields of the operation
    ) -> int:
        """Add an operation; return its number."""
        self.operations.append(
            GraphOperation(name=name, decompositions=decompositions, after=tuple(after), **others)
        )
        return len(self.operations) - 1


class OperationChoice(NamedTuple):
    """Choice of a plan for one decision."""

    pieces: int = 1
    """Pieces of equal size."""
    decomposition: int = 0
    """Number of the decomposition; operations that have fewer use their first."""
    channels: tuple[int, ...] = ()
    """For each phase of the decomposition the number of its channel; what is missing is 0."""


@dataclass(frozen=True, kw_only=True)
class WholePlan:
    """Plan of a step."""

    # For each decision what is settled; missing: in one piece, the plain decomposition, the first channels
    choices: Mapping[str, OperationChoice] = field(default_factory=dict)
    # For each decision its priority, the least first; missing: as operations say
    ranks: Mapping[str, int] = field(default_factory=dict)

    def key(self) -> tuple[tuple[tuple[str, OperationChoice], ...], tuple[tuple[str, int], ...]]:
        """Hashable value of the plan."""
        return tuple(sorted(self.choices.items())), tuple(sorted(self.ranks.items()))


class OperationColumns:
    """Operations and channels as columns; shared decompositions are stored once.

    Args:
        operations: In the order in which they are submitted.
        channels: By name.
        decisions: All that is to be decided.
    """

    def __init__(
        self, operations: Sequence[GraphOperation], channels: Mapping[str, Channel], decisions: Iterable[str]
    ) -> None:
        self.operations = operations
        self.decisions = {name: number for number, name in enumerate(decisions)}
        groups: dict[str, int] = {"": -1}
        known: dict[int, int] = {}
        self.shared = list({id(each.decompositions): each.decompositions for each in operations}.values())
        for number, decompositions in enumerate(self.shared):
            known[id(decompositions)] = number
        self.columns: dict[str, NDArray[Any]] = {
            "decision": _column((self.decisions.get(each.decision, -1) for each in operations), np.int32),
            "group": _column((groups.setdefault(each.group, len(groups)) for each in operations), np.int32),
            "priority": _column((each.priority for each in operations), np.int64),
            "ways": _column((known[id(each.decompositions)] for each in operations), np.int32),
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
        """Columns of decompositions, their phases, and the channels of these."""
        self.streams = tuple(name for name, each in channels.items() if not each.parallel)
        number = {name: stream for stream, name in enumerate(self.streams)}
        place = {name: at for at, name in enumerate(channels)}
        decompositions = [decomposition for decompositions in self.shared for decomposition in decompositions]
        phases = [phase for decomposition in decompositions for phase in decomposition]
        options = [(phase, name) for phase in phases for name in phase.channels]
        of_option = [channels[name] for _, name in options]
        kinds: dict[str, int] = {"barrier": 0}
        self.kind = _column((kinds.setdefault(each.kind, len(kinds)) for each, _ in options), np.int32)
        self.kind_names = tuple(kinds)
        self.channel = _column((place[name] for _, name in options), np.int64)
        self.width = max(map(len, decompositions), default=0)
        return {
            "way_start": offsets(_column(map(len, self.shared), np.int64)),
            "motif_start": offsets(_column(map(len, decompositions), np.int64)),
            "option_start": offsets(_column((len(each.channels) for each in phases), np.int64)),
            "stream": _column((number.get(name, -1) for _, name in options), np.int32),
            "starting": _column(
                (
                    phase.starts * each.start_seconds
                    for (phase, _), each in zip(options, of_option, strict=True)
                ),
                np.float64,
            ),
            "amount": _column((phase.amount for phase, _ in options), np.float64),
            "rate": _column((each.units_per_second for each in of_option), np.float64),
        }

    def tasks(self, plan: WholePlan) -> OperationTasks:
        """Tasks under a plan."""
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
        graph = TaskGraph(
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
        return OperationTasks(graph=graph, operation=operation, piece=piece, waits=option < 0)

    def _settled(self, plan: WholePlan) -> dict[str, NDArray[Any]]:
        """Columns of a plan's choices."""
        number = len(self.decisions)
        pieces, decomposition = np.ones(number, dtype=np.int32), np.zeros(number, dtype=np.int32)
        ranked, rank = np.zeros(number, dtype=np.uint8), np.zeros(number, dtype=np.int64)
        options = np.zeros((number, self.width), dtype=np.int32)
        for name, choice in plan.choices.items():
            if choice.pieces < 1:
                raise InputError(
                    f"expected a plan that cuts {name} in 1 piece or more, found {choice.pieces}."
                )
            at = self.decisions.get(name)
            if at is not None:
                pieces[at], decomposition[at] = choice.pieces, choice.decomposition
                kept = choice.channels[: self.width]
                options[at, : len(kept)] = kept
        for name, value in plan.ranks.items():
            at = self.decisions.get(name)
            if at is not None:
                ranked[at], rank[at] = 1, value
        return {
            "pieces": pieces,
            "way": decomposition,
            "ranked": ranked,
            "rank": rank,
            "options": options.ravel(),
        }


class OperationTasks(NamedTuple):
    """Tasks of operations, by numbers."""

    graph: TaskGraph  # The tasks, ordered by operation, piece and phase
    operation: NDArray[np.int32]  # The operation of each
    piece: NDArray[np.int32]  # The piece of it; of one that waits for all pieces, how many there are
    waits: NDArray[np.bool_]  # It only waits for all pieces


class _TaskNames(Sequence[str]):
    """Names of tasks, made on demand."""

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


@dataclass(frozen=True, kw_only=True)
class OperationGraph:
    """Dependent operations, and the channels that execute them.

    Raises:
        InputError: If an operation has no decomposition, comes after one that there is not, or needs a channel that
            there is not, or something is to be decided of one whose channel is parallel.

    Examples:
        >>> work = CollectivePhase(kind="forward", amount=3.0, channels=("device",))
        >>> sums = CollectivePhase(kind="all_reduce", amount=8.0, channels=("network",))
        >>> graph = OperationGraph(
        ...     operations=(
        ...         GraphOperation(name="layer", decompositions=((work,),), decision="sums", group="sums"),
        ...         GraphOperation(name="sums", decompositions=((sums,),), after=(0,), decision="sums", group="sums"),
        ...     ),
        ...     channels={"device": Channel(), "network": Channel(units_per_second=2.0)},
        ... )
        >>> graph.seconds(), graph.seconds(WholePlan(choices={"sums": OperationChoice(pieces=4)}))
        (7.0, 4.75)
    """

    operations: tuple[GraphOperation, ...]  # In the order in which they are submitted
    channels: Mapping[str, Channel]  # By name

    def __post_init__(self) -> None:
        known: set[tuple[int, bool]] = set()
        for each in self.operations:
            if not each.decompositions or not all(each.decompositions):
                raise InputError(
                    f"expected decompositions of one phase or more for operation {each.name}, found "
                    f"{len(each.decompositions)} decompositions."
                )
            for number in each.after:
                if not 0 <= number < len(self.operations):
                    raise InputError(
                        f"expected operation {each.name} after operations below {len(self.operations)}, found "
                        f"{number}."
                    )
            if (id(each.decompositions), bool(each.decision)) in known:
                continue
            known.add((id(each.decompositions), bool(each.decision)))
            for phase in (phase for decomposition in each.decompositions for phase in decomposition):
                for name in phase.channels:
                    if name not in self.channels:
                        has = ", ".join(self.channels) or "none"
                        raise InputError(
                            f"expected channels of operation {each.name} that there are ({has}), found {name!r}."
                        )
                    if each.decision and self.channels[name].parallel:
                        raise InputError(
                            f"expected nothing to be decided of operation {each.name}, whose channel {name} does "
                            f"any number of things at once, found decision {each.decision!r}."
                        )

    def decisions(self) -> Mapping[str, GraphOperation]:
        """Decisions, with the first operation that has the most decompositions."""
        return self._decisions

    @cached_property
    def _decisions(self) -> dict[str, GraphOperation]:
        found: dict[str, GraphOperation] = {}
        for each in self.operations:
            if each.decision and (
                each.decision not in found
                or len(each.decompositions) > len(found[each.decision].decompositions)
            ):
                found[each.decision] = each
        return found

    def phases(self, operation: GraphOperation, plan: WholePlan) -> Iterator[tuple[CollectivePhase, str]]:
        """Phases of an operation under a plan, with their channels."""
        choice = plan.choices.get(operation.decision, _PLAIN) if operation.decision else _PLAIN
        decomposition = operation.decompositions[
            choice.decomposition if choice.decomposition < len(operation.decompositions) else 0
        ]
        for number, phase in enumerate(decomposition):
            chosen = choice.channels[number] if number < len(choice.channels) else 0
            yield phase, phase.channels[chosen if chosen < len(phase.channels) else 0]

    def task_graph(self, plan: WholePlan | None = None) -> TaskGraph:
        """Task graph under a plan, ordered by operation, chunk and phase."""
        return self.tasks(plan).graph

    def tasks(self, plan: WholePlan | None = None) -> OperationTasks:
        """Tasks under a plan with the operation and the piece of each."""
        return self._columns.tasks(plan or WholePlan())

    def seconds(self, plan: WholePlan | None = None) -> float:
        """Makespan under a plan."""
        wanted = plan or WholePlan()
        key = wanted.key()
        if key not in self._known:
            self._known[key] = run_tasks(self.task_graph(wanted)).seconds
        return self._known[key]

    def lower_bound_seconds(self) -> float:
        """Lower bound over all plans: the least load of a channel, and the critical path.

        Operations of a group may run side by side, as their pieces may be small; others wait for the whole.
        """
        return self._bound

    @cached_property
    def _columns(self) -> OperationColumns:
        return OperationColumns(self.operations, self.channels, tuple(self._decisions))

    @cached_property
    def _known(self) -> dict[object, float]:
        """Times of simulated plans, by key."""
        return {}

    @cached_property
    def _bound(self) -> float:
        busy = dict.fromkeys(self.channels, 0.0)
        forced: dict[int, dict[str, float]] = {}
        shortest: dict[int, float] = {}
        least = []
        for each in self.operations:
            key = id(each.decompositions)
            if key not in forced:
                forced[key] = self._forced(each.decompositions)
                shortest[key] = min(
                    max(self._least(phase) for phase in decomposition)
                    for decomposition in each.decompositions
                )
            for name, seconds in forced[key].items():
                busy[name] += seconds
            least.append(shortest[key])
        start = [0.0] * len(least)
        end = [0.0] * len(least)
        for number in self._in_order():
            each = self.operations[number]
            begin = over = 0.0
            for other in each.after:
                if each.group and each.group == self.operations[other].group:
                    begin, over = max(begin, start[other]), max(over, end[other])
                else:
                    begin = max(begin, end[other])
            start[number], end[number] = begin, max(over, begin + least[number])
        return max(*busy.values(), *end, 0.0)

    def _forced(self, decompositions: tuple[tuple[CollectivePhase, ...], ...]) -> dict[str, float]:
        """Least time of an operation on each channel over all plans."""
        found: dict[str, float] = {}
        for number, decomposition in enumerate(decompositions):
            own: dict[str, float] = {}
            for phase in decomposition:
                if len(phase.channels) == 1 and not self.channels[phase.channels[0]].parallel:
                    name = phase.channels[0]
                    own[name] = own.get(name, 0.0) + self._least(phase)
            found = (
                {name: min(seconds, own[name]) for name, seconds in found.items() if name in own}
                if number
                else own
            )
        return found

    def _least(self, phase: CollectivePhase) -> float:
        """Least time of a phase."""
        each = [self.channels[name] for name in phase.channels]
        return min(
            phase.starts * channel.start_seconds + phase.amount / channel.units_per_second for channel in each
        )

    def _in_order(self) -> list[int]:
        """Operations in topological order, without those in cycles."""
        waits = [len(each.after) for each in self.operations]
        then: list[list[int]] = [[] for _ in waits]
        for number, each in enumerate(self.operations):
            for other in each.after:
                then[other].append(number)
        found = [number for number, count in enumerate(waits) if not count]
        for number in found:
            for later in then[number]:
                waits[later] -= 1
                if not waits[later]:
                    found.append(later)
        return found


_PLAIN = OperationChoice()


MOVES = ("pieces", "decomposition", "channel", "order")
"""What a plan may settle otherwise than the plain one."""


class PlanSpace:
    """Plans of an operation graph that vary some decisions.

    Examples:
        >>> from coppice.iteration.policies.whole.operations import Channel, CollectivePhase
        >>> sums = CollectivePhase(kind="all_reduce", amount=8.0, channels=("NIC", "host"))
        >>> operation = GraphOperation(name="sums", decompositions=((sums,),), decision="sums")
        >>> graph = OperationGraph(operations=(operation,), channels={"NIC": Channel(), "host": Channel()})
        >>> PlanSpace(graph, pieces=(1, 2, 4)).count()
        6
    """

    def __init__(
        self, graph: OperationGraph, *, pieces: Sequence[int] = (1,), moves: Sequence[str] = MOVES
    ) -> None:
        self.graph = graph  # The graph
        # Numbers of pieces that an operation may be cut in
        self.pieces = tuple(pieces) if "pieces" in moves else (1,)
        self.moves = frozenset(moves)  # What may be settled, of :data:`MOVES`
        self._decisions = graph.decisions()

    def choices(self, operation: GraphOperation) -> list[OperationChoice]:
        """All choices for an operation, the plain one first."""
        decompositions = range(len(operation.decompositions) if "decomposition" in self.moves else 1)
        found = []
        for decomposition, pieces in itertools.product(decompositions, self.pieces):
            options = [
                range(len(phase.channels) if "channel" in self.moves else 1)
                for phase in operation.decompositions[decomposition]
            ]
            for channels in itertools.product(*options):
                # What is missing is 0: one name for each choice.
                kept = channels[: max((at + 1 for at, each in enumerate(channels) if each), default=0)]
                found.append(OperationChoice(pieces=pieces, decomposition=decomposition, channels=kept))
        return sorted(found, key=lambda each: each != OperationChoice())

    def count(self) -> int:
        """Number of plans."""
        each = math.prod(len(self.choices(operation)) for operation in self._decisions.values())
        return each * (math.factorial(len(self._decisions)) if "order" in self.moves else 1)

    def plans(self) -> Iterator[WholePlan]:
        """All plans, the plain one first."""
        names = list(self._decisions)
        orders: Iterator[tuple[str, ...]] = itertools.permutations(names)
        rows = [self.choices(operation) for operation in self._decisions.values()]
        for number, order in enumerate(orders if "order" in self.moves else [()]):
            ranks = {name: rank for rank, name in enumerate(order)} if number else {}
            for row in itertools.product(*rows):
                choices = {
                    name: choice
                    for name, choice in zip(names, row, strict=True)
                    if choice != OperationChoice()
                }
                yield WholePlan(choices=choices, ranks=ranks)

    def best(self) -> tuple[WholePlan, float]:
        """Fastest plan, and its time; ties go to the first."""
        found, least = WholePlan(), math.inf
        for plan in self.plans():
            seconds = self.graph.seconds(plan)
            if seconds < least:
                found, least = plan, seconds
        return found, least


class WholePolicy(ConfiguredPolicy):
    """Partition, route and order collectives together with computation."""

    kind: ClassVar[str] = "a policy of the whole iteration"
    # Gradients of weights are computed beside what is exchanged for gradients of inputs
    beside: ClassVar[bool] = False

    @abstractmethod
    def plan(self, graph: OperationGraph) -> WholePlan:
        """Plan of a step's operations."""
