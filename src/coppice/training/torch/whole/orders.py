"""Plan as one sequence of tasks, valid and equal on all ranks.

The graph of operations is simulated under the plan; tasks go in the order in which they start there, which never sets
one before another that it waits for. Every channel does its tasks in that order. Rank 0 decides, and ranks compare a
digest of all that must be alike before anything is sent.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch.distributed as dist

from coppice.errors import CheckError, InputError
from coppice.iteration.policies.catalogue import policy_named
from coppice.iteration.policies.whole.centauri import Centauri
from coppice.iteration.policies.whole.operations import (
    OperationChoice,
    OperationGraph,
    WholePlan,
    WholePolicy,
)
from coppice.iteration.policies.whole.syndicate import Syndicate
from coppice.iteration.tasks import run_tasks
from coppice.training.torch.core.agree import broadcast_from_first, first_other, gathered

BARRIER = -1
"""CollectivePhase of a task that only waits for all pieces."""


class OrderedTask(NamedTuple):
    """Task: a collective phase of a chunk of an operation."""

    operation: int  # Number of the operation
    piece: int  # Number of the piece
    phase: int  # Number of the phase in its decomposition; -1: it only waits for all pieces
    stream: str  # The channel; empty where it only waits
    after: tuple[int, ...]  # Numbers of the tasks that it comes after


@dataclass(frozen=True, eq=False, kw_only=True)
class OrderedPlan:
    """A plan with the order of its tasks."""

    graph: OperationGraph  # Operations and channels
    plan: WholePlan  # How they are done
    tasks: tuple[OrderedTask, ...]  # All tasks, those of an operation in a row
    sequence: tuple[int, ...]  # Numbers of the tasks in the order in which they are launched
    predicted_seconds: float  # Time of all by the simulation

    @classmethod
    def of(
        cls, graph: OperationGraph, plan: WholePlan | None = None, *, sequence: Sequence[int] | None = None
    ) -> OrderedPlan:
        """Order the tasks of a plan of a graph.

        Args:
            graph: Operations and channels.
            plan: How they are done; None: plainly.
            sequence: Order of the tasks; None: that of the simulation.

        Raises:
            InputError: If the order leaves something out or sets a task before one that it waits for, or a channel is
                parallel.

        Examples:
            >>> from coppice.iteration.policies.whole.operations import Channel, GraphOperation, CollectivePhase
            >>> work = CollectivePhase(kind="forward", amount=3.0, channels=("device",))
            >>> sums = CollectivePhase(kind="all_reduce", amount=8.0, channels=("network",))
            >>> graph = OperationGraph(
            ...     operations=(
            ...         GraphOperation(name="layer", decompositions=((work,),), decision="a", group="a"),
            ...         GraphOperation(name="sums", decompositions=((sums,),), after=(0,), decision="a", group="a"),
            ...     ),
            ...     channels={"device": Channel(), "network": Channel(units_per_second=2.0)},
            ... )
            >>> found = OrderedPlan.of(graph, WholePlan(choices={"a": OperationChoice(pieces=2)}))
            >>> found.names()
            ['layer 0.0', 'layer 1.0', 'sums 0.0', 'sums 1.0']
            >>> OrderedPlan.of(graph, found.plan, sequence=(0, 3, 4, 5, 1, 2))
            Traceback (most recent call last):
            coppice.errors.InputError: expected sums 1.0 after layer 1.0, found it before: the order is not legal.
        """
        wanted = plan or WholePlan()
        rows = graph.task_graph(wanted)
        times = run_tasks(rows)
        tasks: list[OrderedTask] = []
        for number, operation in enumerate(graph.operations):
            choice = (
                wanted.choices.get(operation.decision, OperationChoice())
                if operation.decision
                else OperationChoice()
            )
            phases = list(graph.phases(operation, wanted))
            for piece in range(choice.pieces):
                for phase, (_, channel) in enumerate(phases):
                    if graph.channels[channel].parallel:
                        raise InputError(
                            f"expected channels that do one thing at a time, found {channel} of {operation.name}."
                        )
                    after = tuple(int(each) for each in rows.predecessors(len(tasks)))
                    tasks.append(OrderedTask(number, piece, phase, channel, after))
            if choice.pieces > 1:
                after = tuple(int(each) for each in rows.predecessors(len(tasks)))
                tasks.append(OrderedTask(number, choice.pieces, BARRIER, "", after))
        order = _by_start(tasks, times.start.tolist()) if sequence is None else tuple(sequence)
        made = cls(
            graph=graph, plan=wanted, tasks=tuple(tasks), sequence=order, predicted_seconds=times.seconds
        )
        made._require_legal()
        return made

    def order(self, stream: str) -> tuple[int, ...]:
        """Task numbers of a channel in order."""
        return tuple(each for each in self.sequence if self.tasks[each].stream == stream)

    def name(self, task: int) -> str:
        """Name of a task: operation, chunk and phase."""
        each = self.tasks[task]
        return f"{self.graph.operations[each.operation].name} {each.piece}.{each.phase}"

    def names(self, stream: str | None = None) -> list[str]:
        """Task names in order, of a channel or of all."""
        numbers = self.sequence if stream is None else self.order(stream)
        return [self.name(each) for each in numbers if self.tasks[each].phase != BARRIER]

    def pieces(self, operation: int) -> int:
        """Number of chunks of an operation."""
        decision = self.graph.operations[operation].decision
        return self.plan.choices.get(decision, OperationChoice()).pieces if decision else 1

    def phase_tasks(self, operation: int) -> int:
        """Number of tasks of an operation."""
        each = self.graph.operations[operation]
        return self.pieces(operation) * sum(1 for _ in self.graph.phases(each, self.plan))

    def label(self, operation: int) -> str:
        """Decomposition of an operation."""
        each = self.graph.operations[operation]
        decomposition = (
            self.plan.choices.get(each.decision, OperationChoice()).decomposition if each.decision else 0
        )
        return (
            each.labels[decomposition if decomposition < len(each.decompositions) else 0]
            if each.labels
            else "plain"
        )

    def digest(self) -> str:
        """Hash of everything that must be equal on all ranks."""
        operations = [
            (
                each.name,
                each.labels,
                [[m.kind for m in decomposition] for decomposition in each.decompositions],
            )
            for each in self.graph.operations
        ]
        told = repr((operations, self.plan.key(), self.tasks, self.sequence))
        return hashlib.sha256(told.encode()).hexdigest()

    def _require_legal(self) -> None:
        """Check that every task occurs once, after its predecessors."""
        if sorted(self.sequence) != list(range(len(self.tasks))):
            raise InputError(
                f"expected an order of the {len(self.tasks)} tasks of the plan, each once, found {len(self.sequence)} "
                f"of which {len(set(self.sequence))} differ."
            )
        place = {task: at for at, task in enumerate(self.sequence)}
        for number, task in enumerate(self.tasks):
            for other in task.after:
                if place[other] > place[number]:
                    raise InputError(
                        f"expected {self.name(number)} after {self.name(other)}, found it before: the order is not "
                        "legal."
                    )


def whole_policy(policy: str | WholePolicy, settings: Mapping[str, object] | None = None) -> WholePolicy:
    """Look up a whole-step policy with its settings."""
    if isinstance(policy, WholePolicy):
        return policy
    if policy not in (Syndicate.name, Centauri.name):
        raise InputError(
            f"expected {Syndicate.name} or {Centauri.name} as the policy of a whole step, found {policy!r}."
        )
    found = policy_named(policy, WholePolicy)  # type: ignore[type-abstract]  # it is looked up, not made
    return found.of(**(settings or {}))


def agreed_plan(
    graph: OperationGraph, policy: str | WholePolicy, group: dist.ProcessGroup | None = None, **settings: Any
) -> OrderedPlan:
    """Plan of rank 0's policy for its graph, on all ranks.

    Graphs of ranks may differ in what things take, not in what there is to do.

    Args:
        graph: What this rank knows.
        policy: ``syndicate``, ``centauri``, or a policy with its settings.
        group: The ranks; None: all.
        settings: Options of the policy.

    Raises:
        InputError: If there is no such policy, or its options do not fit.
        CheckError: If ranks have other operations, or another plan of the same.
    """
    chosen = whole_policy(policy, settings)
    first = dist.get_process_group_ranks(group)[0] if group is not None else 0
    made: OrderedPlan | None = None
    require_alike(graph, group)

    def planned() -> tuple[Any, ...]:
        nonlocal made
        made = OrderedPlan.of(graph, chosen.plan(graph))
        return made.plan, made.sequence, made.predicted_seconds

    plan, sequence, seconds = broadcast_from_first(planned, first=first, group=group)
    if made is None:
        made = replace(OrderedPlan.of(graph, plan, sequence=sequence), predicted_seconds=seconds)
    require_agreed(made, group)
    return made


def require_alike(graph: OperationGraph, group: dist.ProcessGroup | None = None) -> None:
    """Check that all ranks have the same operations."""
    own = [(each.name, each.labels, each.after, each.decision, each.size_bytes) for each in graph.operations]
    other = first_other(gathered(own, group))
    if other is not None:
        raise CheckError(
            f"expected the same operations on all ranks, found others on rank {other}: build the same collectives, of "
            "the same sizes and in the same order, on all."
        )


def require_agreed(ordered: OrderedPlan, group: dist.ProcessGroup | None = None) -> None:
    """Check that all ranks execute the same plan, by its digest."""
    other = first_other(gathered(ordered.digest(), group))
    if other is not None:
        raise CheckError(
            f"expected the same plan on all ranks, found another on rank {other}: load "
            "the plan of one rank on all."
        )


def _by_start(tasks: Sequence[OrderedTask], start: Sequence[float]) -> tuple[int, ...]:
    """Tasks by start time, each after its predecessors."""
    waits = [len(set(task.after)) for task in tasks]
    then: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for other in set(task.after):
            then[other].append(number)
    ready = [(start[number], number) for number, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        _, number = heapq.heappop(ready)
        found.append(number)
        for later in then[number]:
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(ready, (start[later], later))
    return tuple(found)
