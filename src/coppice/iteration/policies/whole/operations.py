"""Computation and collectives of a step before it is settled how each is cut, routed and ordered.

An operation runs in one of several *ways*. A way is a row of motifs, as SYNDICATE (NSDI 2023) calls the parts of a
collective: a reduce-scatter and an all-gather, a stage inside nodes and one between them. A motif runs on one of
several channels, which do one thing at a time. Operations may be cut in pieces: the motifs of a piece follow each
other, and pieces of operations of one group, such as an exchange of tokens and the experts that wait for them, go
piece by piece. A plan settles all that, and which operations are more urgent; the graph of tasks follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from coppice.errors import InputError
from coppice.iteration.policies.whole.columns import OperationColumns
from coppice.iteration.policies.whole.motifs import Channel, GraphOperation, Motif, MotifChoice, MotifPlan
from coppice.iteration.running import run_tasks
from coppice.iteration.tasks import TaskGraph


@dataclass(frozen=True, kw_only=True)
class OperationGraph:
    """Operations that wait for each other, and the channels that do them.

    Raises:
        InputError: If an operation has no way, comes after one that there is not, or needs a channel that there is not,
            or something is to be decided of one whose channel is parallel.

    Examples:
        >>> work = Motif(kind="forward", amount=3.0, channels=("device",))
        >>> sums = Motif(kind="all_reduce", amount=8.0, channels=("network",))
        >>> graph = OperationGraph(
        ...     operations=(
        ...         GraphOperation(name="layer", ways=((work,),), decision="sums", group="sums"),
        ...         GraphOperation(name="sums", ways=((sums,),), after=(0,), decision="sums", group="sums"),
        ...     ),
        ...     channels={"device": Channel(), "network": Channel(units_per_second=2.0)},
        ... )
        >>> graph.seconds(), graph.seconds(MotifPlan(choices={"sums": MotifChoice(pieces=4)}))
        (7.0, 4.75)
    """

    operations: tuple[GraphOperation, ...]  # In the order in which they are submitted
    channels: Mapping[str, Channel]  # By name

    def __post_init__(self) -> None:
        known: set[tuple[int, bool]] = set()
        for each in self.operations:
            if not each.ways or not all(each.ways):
                raise InputError(
                    f"expected ways of one motif or more for operation {each.name}, found {len(each.ways)} ways."
                )
            for number in each.after:
                if not 0 <= number < len(self.operations):
                    raise InputError(
                        f"expected operation {each.name} after operations below {len(self.operations)}, found "
                        f"{number}."
                    )
            if (id(each.ways), bool(each.decision)) in known:
                continue
            known.add((id(each.ways), bool(each.decision)))
            for motif in (motif for way in each.ways for motif in way):
                for name in motif.channels:
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
        """What is to be decided, with the first operation that has most ways."""
        return self._decisions

    @cached_property
    def _decisions(self) -> dict[str, GraphOperation]:
        found: dict[str, GraphOperation] = {}
        for each in self.operations:
            if each.decision and (
                each.decision not in found or len(each.ways) > len(found[each.decision].ways)
            ):
                found[each.decision] = each
        return found

    def motifs(self, operation: GraphOperation, plan: MotifPlan) -> Iterator[tuple[Motif, str]]:
        """The motifs of an operation under a plan, with their channels."""
        choice = plan.choices.get(operation.decision, _PLAIN) if operation.decision else _PLAIN
        way = operation.ways[choice.way if choice.way < len(operation.ways) else 0]
        for number, motif in enumerate(way):
            chosen = choice.channels[number] if number < len(choice.channels) else 0
            yield motif, motif.channels[chosen if chosen < len(motif.channels) else 0]

    def task_graph(self, plan: MotifPlan | None = None) -> TaskGraph:
        """The tasks under a plan; those of operation i in order of pieces and motifs, operations in order."""
        return self._columns.task_graph(plan or MotifPlan())

    def seconds(self, plan: MotifPlan | None = None) -> float:
        """Time from the start of the first operation to the end of the last one under a plan."""
        wanted = plan or MotifPlan()
        key = wanted.key()
        if key not in self._known:
            self._known[key] = run_tasks(self.task_graph(wanted)).seconds
        return self._known[key]

    def lower_bound_seconds(self) -> float:
        """What no plan beats: what a channel must do in any case, and operations that wait for each other.

        Operations of a group may run side by side, as their pieces may be small; others wait for the whole.
        """
        return self._bound

    @cached_property
    def _columns(self) -> OperationColumns:
        return OperationColumns(self.operations, self.channels, tuple(self._decisions))

    @cached_property
    def _known(self) -> dict[object, float]:
        """Times of the plans that were simulated, by their keys."""
        return {}

    @cached_property
    def _bound(self) -> float:
        busy = dict.fromkeys(self.channels, 0.0)
        forced: dict[int, dict[str, float]] = {}
        shortest: dict[int, float] = {}
        least = []
        for each in self.operations:
            key = id(each.ways)
            if key not in forced:
                forced[key] = self._forced(each.ways)
                shortest[key] = min(max(self._least(motif) for motif in way) for way in each.ways)
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

    def _forced(self, ways: tuple[tuple[Motif, ...], ...]) -> dict[str, float]:
        """Time that an operation takes of each channel whatever a plan says."""
        found: dict[str, float] = {}
        for number, way in enumerate(ways):
            own: dict[str, float] = {}
            for motif in way:
                if len(motif.channels) == 1 and not self.channels[motif.channels[0]].parallel:
                    name = motif.channels[0]
                    own[name] = own.get(name, 0.0) + self._least(motif)
            found = (
                {name: min(seconds, own[name]) for name, seconds in found.items() if name in own}
                if number
                else own
            )
        return found

    def _least(self, motif: Motif) -> float:
        """Time that a motif takes at least."""
        each = [self.channels[name] for name in motif.channels]
        return min(
            motif.starts * channel.start_seconds + motif.amount / channel.units_per_second for channel in each
        )

    def _in_order(self) -> list[int]:
        """Operations, each after those that it comes after; those that wait in a circle are left out."""
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


_PLAIN = MotifChoice()
