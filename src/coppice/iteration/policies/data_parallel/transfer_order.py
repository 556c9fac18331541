"""TIC and TAC of TicTac (Hashemi et al., MLSys 2019): in which order a graph of operations gets what it waits for.

Some nodes of the graph receive parameters, the others compute. dep(op) are the receives that an operation waits for,
directly or not. Of the outstanding receives O,

    P(r)  = time of the operations that wait for r alone in O: what can be computed once r is there
    M+(r) = least time of the receives of an operation that waits for r and others in O

TIC takes all receives for alike (M = 1, operations 0), and sorts by M+. TAC picks one at a time: A goes before B if
min(P(B), M(A)) < min(P(A), M(B)), of equal ones the one of less M+; then P and M+ are computed anew. That comparison is
not transitive, so the first is found by going through the receives in their order and keeping the better of two; every
rank finds the same. Source: sections 3 and 4 of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from coppice.errors import InputError
from coppice.iteration.running import run_tasks
from coppice.iteration.tasks import TaskGraphBuilder


@dataclass(frozen=True, kw_only=True)
class TransferGraph:
    """Receives and the operations that wait for them.

    Raises:
        InputError: If an operation waits for what there is not, or for one after it.
    """

    receives: tuple[float, ...]  # Seconds of each receive
    operations: tuple[float, ...]  # Seconds of each operation
    needs_receives: tuple[tuple[int, ...], ...]  # Receives that each operation waits for, by number
    needs_operations: tuple[tuple[int, ...], ...]  # Operations that each waits for, all before it

    def __post_init__(self) -> None:
        columns = (len(self.operations), len(self.needs_receives), len(self.needs_operations))
        if len(set(columns)) != 1:
            raise InputError(
                f"expected what each of {columns[0]} operations needs, found {columns[1]} and {columns[2]}."
            )
        for number in range(columns[0]):
            found = [*self.needs_receives[number], *self.needs_operations[number]]
            late = [each for each in self.needs_operations[number] if each >= number]
            gone = [each for each in self.needs_receives[number] if each >= len(self.receives)]
            if late or gone or min(found, default=0) < 0:
                raise InputError(
                    f"expected operation {number} after receives and operations before it, found {found}."
                )

    def dependencies(self) -> list[frozenset[int]]:
        """Receives that each operation waits for, directly or not."""
        found: list[frozenset[int]] = []
        for own, before in zip(self.needs_receives, self.needs_operations, strict=True):
            found.append(frozenset(own).union(*(found[each] for each in before)))
        return found


def _properties(
    needs: Sequence[frozenset[int]],
    outstanding: set[int],
    transfer: Sequence[float],
    compute: Sequence[float],
) -> tuple[dict[int, float], dict[int, float]]:
    """P and M+ of the outstanding receives."""
    unlocked = dict.fromkeys(outstanding, 0.0)
    together = dict.fromkeys(outstanding, inf)
    for own, seconds in zip(needs, compute, strict=True):
        waiting = own & outstanding
        if len(waiting) == 1:
            unlocked[next(iter(waiting))] += seconds
        elif waiting:
            whole = sum(transfer[each] for each in sorted(waiting))
            for each in waiting:
                together[each] = min(together[each], whole)
    return unlocked, together


def tic_priorities(graph: TransferGraph) -> list[int]:
    """Priority of each receive by structure alone, the least first; receives that are alike share one.

    Examples:
        >>> chain = TransferGraph(
        ...     receives=(1, 1, 1),
        ...     operations=(1, 1, 1),
        ...     needs_receives=((0,), (1,), (2,)),
        ...     needs_operations=((), (0,), (1,)),
        ... )
        >>> tic_priorities(chain)
        [0, 0, 1]
    """
    count = len(graph.receives)
    together = _properties(
        graph.dependencies(), set(range(count)), [1.0] * count, [0.0] * len(graph.operations)
    )[1]
    levels = sorted(set(together.values()))
    return [levels.index(together[each]) for each in range(count)]


def tac_order(graph: TransferGraph) -> list[int]:
    """Receives in the order of TAC.

    Examples:
        >>> two = TransferGraph(
        ...     receives=(1, 3), operations=(5, 1), needs_receives=((0,), (1,)), needs_operations=((), ())
        ... )
        >>> tac_order(two), order_seconds(two, [0, 1]), order_seconds(two, [1, 0])
        ([0, 1], 7.0, 9.0)
    """
    transfer = graph.receives
    needs = graph.dependencies()
    outstanding = set(range(len(transfer)))
    found: list[int] = []
    while outstanding:
        unlocked, together = _properties(needs, outstanding, transfer, graph.operations)
        first, *rest = sorted(outstanding)
        for each in rest:
            own, other = min(unlocked[first], transfer[each]), min(unlocked[each], transfer[first])
            if own < other or (own == other and together[each] < together[first]):
                first = each
        found.append(first)
        outstanding.remove(first)
    return found


def order_seconds(graph: TransferGraph, order: Sequence[int]) -> float:
    """Time until all operations are done, receives one at a time in an order, operations one at a time as they can."""
    tasks = TaskGraphBuilder()
    network, compute = tasks.stream("network"), tasks.stream("compute")
    rank = {receive: place for place, receive in enumerate(order)}
    for number, seconds in enumerate(graph.receives):
        tasks.add(f"receive {number}", "receive", network, seconds, priority=rank[number])
    base = len(graph.receives)
    for number, seconds in enumerate(graph.operations):
        after = [*graph.needs_receives[number], *(base + each for each in graph.needs_operations[number])]
        tasks.add(f"operation {number}", "operation", compute, seconds, after=after)
    return run_tasks(tasks.build()).seconds


def order_efficiency(graph: TransferGraph, seconds: float) -> float:
    """How much of what can overlap does: 1 at the load of the busiest resource, 0 where nothing overlaps.

    Examples:
        >>> two = TransferGraph(
        ...     receives=(1, 3), operations=(5, 1), needs_receives=((0,), (1,)), needs_operations=((), ())
        ... )
        >>> order_efficiency(two, 7.0), order_efficiency(two, 9.0)
        (0.75, 0.25)
    """
    loads = sum(graph.receives), sum(graph.operations)
    apart = sum(loads)
    return (apart - seconds) / (apart - max(loads)) if min(loads) else 1.0
