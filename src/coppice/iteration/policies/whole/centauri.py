"""Centauri: collectives partitioned along three axes, scheduled in three tiers.

Source: Chen et al., "Centauri: Enabling Efficient Scheduling for Communication-Computation Overlap in Large Model
Training via Communication Partitioning" (ASPLOS 2024), after its abstract; the search is a reconstruction.

The axes are those of :mod:`coppice.iteration.policies.whole.partition`. The *operation* tier chooses the partition of
a collective with the computation that gives and takes its pieces. The *layer* tier chooses again and orders what runs
side by side in a layer of a pass: gradients of weights beside tensor-parallel collectives, gathering ahead. The *model*
tier does the same over the whole step: gradient all-reduces, gathers of weights and sends by the longest path that
follows them. A tier starts with what those below it have found. Where there are few plans all are tried, and the best
is proved; otherwise one decision is changed at a time until none helps. Results of each axis alone are starting points
of the search over all, which is therefore never worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import msgspec

from coppice import _core
from coppice.iteration.policies.whole.operations import (
    GraphOperation,
    OperationChoice,
    OperationGraph,
    PlanSpace,
    WholePlan,
    WholePolicy,
)
from coppice.iteration.policies.whole.partition import AXES, AXES_OF_LABEL
from coppice.iteration.tasks import run_tasks

TIERS = ("operation", "layer", "model")
"""The tiers, from the smallest."""
_SWEEPS = 4


class _TierSearch:
    """Greedy search along some axes, up to some tier."""

    def __init__(
        self, graph: OperationGraph, *, axes: frozenset[str], pieces: tuple[int, ...], budget: int
    ) -> None:
        self.graph, self.axes, self.budget = graph, axes, budget
        space = PlanSpace(graph, pieces=pieces if "workload" in axes else (1,))
        self.choices = {
            decision: [each for each in space.choices(operation) if self._allowed(operation, each)]
            for decision, operation in graph.decisions().items()
        }

    def _allowed(self, operation: GraphOperation, choice: OperationChoice) -> bool:
        """Whether a choice lies along the axes."""
        label = operation.labels[choice.decomposition] if choice.decomposition < len(operation.labels) else ""
        return AXES_OF_LABEL.get(label, frozenset()) <= self.axes

    def descend(self, graph: OperationGraph, plan: WholePlan, *, order: bool) -> WholePlan:
        """Coordinate descent: change one decision after the other while the step gets faster."""
        known: dict[object, float] = {}

        def seconds(plan: WholePlan) -> float:
            key = plan.key()
            if key not in known:
                known[key] = graph.seconds(plan)
            return known[key]

        decisions = list(graph.decisions())
        least = seconds(plan)
        bound = graph.lower_bound_seconds() * (1 + 1e-12)
        for _ in range(_SWEEPS):
            before = least
            changes = [_choosing(name, choice) for name in decisions for choice in self.choices[name]]
            if order:
                changes += [_by_path(graph), *(_urgent(decisions, name) for name in decisions)]
            for change in changes:
                if len(known) >= self.budget or least <= bound:
                    return plan
                changed = change(plan)
                then = seconds(changed)
                if then < least - 1e-12:
                    plan, least = changed, then
            if least >= before:
                break
        return plan

    def tiers(self, most: int) -> WholePlan:
        """Plans of the tiers, one after the other."""
        plan = WholePlan()
        for label, order in (("group", False), ("layer", True))[:most]:
            parts: dict[str, list[int]] = {}
            for number, each in enumerate(self.graph.operations):
                name = getattr(each, label) or (each.decision if label == "group" else "")
                if name:
                    parts.setdefault(name, []).append(number)
            seen: set[str] = set()
            for numbers in parts.values():
                # Of what is decided alike in several places, the first one decides.
                own = {self.graph.operations[number].decision for number in numbers} - {""}
                if own and not own <= seen:
                    plan = self.descend(_part(self.graph, numbers), plan, order=order)
                    seen |= own
        return self.descend(self.graph, plan, order=True) if most == len(TIERS) else plan


def tiered_plan(
    graph: OperationGraph,  # Operations whose decompositions are labelled as those of `collective_decompositions`
    *,
    axes: Iterable[str] = AXES,  # What may be done, of `AXES` of the partitions
    tiers: int = len(TIERS),  # How many of the tiers decide, from the smallest
    most_pieces: int = 16,  # Pieces of an operation at most, a power of two
    budget: int = 2000,  # Plans that are simulated at most in each part; where there are no more, all are
) -> WholePlan:
    """Search a plan tier by tier along some axes; never worse than the plain one."""
    wanted = frozenset(axes)
    pieces = tuple(2**k for k in range(most_pieces.bit_length()))
    space = PlanSpace(graph, pieces=pieces)
    if wanted == frozenset(AXES) and tiers == len(TIERS) and space.count() <= budget:
        return space.best()[0]
    search = _TierSearch(graph, axes=wanted, pieces=pieces, budget=budget)
    found = [WholePlan(), *(search.tiers(count) for count in range(1, tiers + 1))]
    if len(wanted) > 1:
        found += [
            tiered_plan(graph, axes=(axis,), tiers=tiers, most_pieces=most_pieces, budget=budget)
            for axis in sorted(wanted)
        ]
    best = min(found, key=graph.seconds)
    return search.descend(graph, best, order=True) if tiers == len(TIERS) else best


def _choosing(decision: str, choice: OperationChoice) -> Callable[[WholePlan], WholePlan]:
    """Change of one decision."""

    def change(plan: WholePlan) -> WholePlan:
        choices = {name: kept for name, kept in plan.choices.items() if name != decision}
        if choice != OperationChoice():
            choices[decision] = choice
        return replace(plan, choices=choices)

    return change


def _urgent(decisions: list[str], decision: str) -> Callable[[WholePlan], WholePlan]:
    """Change that gives a decision the highest priority."""

    def change(plan: WholePlan) -> WholePlan:
        ranks = {name: plan.ranks.get(name, number) for number, name in enumerate(decisions)}
        ranks[decision] = min(ranks.values(), default=0) - 1
        order = sorted(ranks, key=lambda name: ranks[name])
        return replace(plan, ranks=_merged(plan.ranks, order))

    return change


def _merged(ranks: Mapping[str, int], order: list[str]) -> dict[str, int]:
    """Ranks in an order; those that it lacks keep theirs."""
    return dict(ranks) | {name: number for number, name in enumerate(order)}


def _by_path(graph: OperationGraph) -> Callable[[WholePlan], WholePlan]:
    """Change that orders decisions by their longest path to the end."""

    def change(plan: WholePlan) -> WholePlan:
        tail = path_tails(graph)
        most: dict[str, float] = {}
        for each, seconds in zip(graph.operations, tail, strict=True):
            if each.decision:
                most[each.decision] = max(most.get(each.decision, 0.0), seconds)
        order = sorted(most, key=lambda name: -most[name])
        return replace(plan, ranks=_merged(plan.ranks, order))

    return change


def path_tails(graph: OperationGraph) -> list[float]:
    """Longest path from each operation's start to the end, without contention for channels."""
    tasks = graph.task_graph()
    _, tail = _core.path_lengths(tasks.seconds, tasks.after_start, tasks.after)
    if not len(tail):
        run_tasks(tasks)  # which says who waits in a circle
    first, at = [], 0
    for each in graph.operations:
        first.append(float(tail[at]))
        at += len(each.decompositions[0])
    return first


def _part(graph: OperationGraph, numbers: list[int]) -> OperationGraph:
    """Subgraph of some operations, without predecessors outside."""
    place = {number: at for at, number in enumerate(numbers)}
    return OperationGraph(
        operations=tuple(
            replace(
                graph.operations[number],
                after=tuple(place[each] for each in graph.operations[number].after if each in place),
            )
            for number in numbers
        ),
        channels=graph.channels,
    )


class CentauriOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the search."""

    # How many of the tiers decide: 1: operations; 2: and layers; 3: and the whole step
    tiers: Annotated[int, msgspec.Meta(ge=1, le=3)] = 3
    most_pieces: Annotated[int, msgspec.Meta(ge=1)] = 16  # Pieces of an operation at most
    budget: Annotated[int, msgspec.Meta(ge=1)] = 2000  # Plans that are simulated at most in each part


class Centauri(WholePolicy):
    """Partition and schedule collectives in tiers."""

    name = "centauri"
    about = "collectives partitioned on three axes, three tiers (Centauri, ASPLOS'24)"
    assumes = "collectives that take nothing of the device's own speed; the same plan on all ranks"
    decides = frozenset({"gradients", "tensor", "experts", "weights"})
    beside: ClassVar[bool] = True
    options: ClassVar[type[msgspec.Struct]] = CentauriOptions

    def plan(self, graph: OperationGraph) -> WholePlan:
        """Best plan of the tiers, never worse than the plain one."""
        settings = self.settings
        return tiered_plan(
            graph, tiers=settings.tiers, most_pieces=settings.most_pieces, budget=settings.budget
        )
