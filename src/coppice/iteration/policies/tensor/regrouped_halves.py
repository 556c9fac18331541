"""Half batches over blocks of several tensor-parallel degrees, with activations regrouped between them.

Source: the planner of Oases (arXiv 2305.16121), whose costs are in :mod:`~coppice.iteration.policies.tensor.degrees`:
where degrees of neighbours differ, nothing overlaps. So the last sum of a row of one degree is waited for, both halves
change over together, and the next row begins: the seconds of a step are those of its rows
(:mod:`~coppice.iteration.policies.tensor.half_batches`) and of the changes between them, forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from coppice.errors import InputError
from coppice.iteration.policies.tensor.degrees import DegreeProblem
from coppice.iteration.policies.tensor.half_batches import HalfBatches, HalvedBlock, add_pass
from coppice.iteration.tasks import TaskGraph, TaskGraphBuilder


def regrouped_before(kind: str, block: int) -> str:
    """Name of a change of degree in graphs and records.

    Args:
        kind: ``F`` or ``B``: before the forward pass of a block or before its gradients.
    """
    return f"regroup before {kind}{block}"


@dataclass(frozen=True, kw_only=True)
class RegroupedHalves:
    """Runs of blocks of one degree each.

    Raises:
        InputError: If there is not one change less than rows.

    Examples:
        >>> from coppice.iteration.running import run_tasks
        >>> rows = RegroupedHalves.of([HalvedBlock(forward=1.0, forward_sum=0.5)] * 3, [2, 2, 4], [(0.25, 0.0)])
        >>> run_tasks(rows.graph()).seconds, rows.seconds
        (7.25, 7.25)
    """

    rows: Sequence[HalfBatches]  # The rows in the order of the forward pass
    changes: Sequence[tuple[float, float]]  # Seconds of each change between two rows: forward, backward

    def __post_init__(self) -> None:
        if not self.rows or len(self.changes) != len(self.rows) - 1:
            raise InputError(
                f"expected 1 row or more and a change between two, found {len(self.rows)} and {len(self.changes)}."
            )

    @classmethod
    def of(
        cls, blocks: Sequence[HalvedBlock], degrees: Sequence[int], changes: Sequence[tuple[float, float]]
    ) -> RegroupedHalves:
        """Blocks with their degrees; neighbours of one degree form a run."""
        if len(blocks) != len(degrees):
            raise InputError(f"expected a degree for each of {len(blocks)} blocks, found {len(degrees)}.")
        firsts = [
            number for number in range(len(blocks)) if not number or degrees[number] != degrees[number - 1]
        ]
        ends = [*firsts[1:], len(blocks)]
        rows = [
            HalfBatches(blocks=blocks[first:end], first=first)
            for first, end in zip(firsts, ends, strict=True)
        ]
        return cls(rows=rows, changes=changes)

    @classmethod
    def planned(cls, problem: DegreeProblem, degrees: Sequence[int]) -> RegroupedHalves:
        """Passes of a plan, with its planner's times.

        Args:
            degrees: Degree of each block, such as :attr:`DegreePlan.degrees`.
        """
        known = list(problem.degrees)
        if len(degrees) != len(problem.forward) or not {*degrees} <= {*known}:
            raise InputError(
                f"expected one of {known} for each of {len(problem.forward)} blocks, found {list(degrees)}."
            )
        places = [known.index(degree) for degree in degrees]
        sums = [problem.sums[block][place] for block, place in enumerate(places)]
        blocks = [
            HalvedBlock(
                forward=problem.forward[block][place],
                gradients=problem.backward[block][place],
                recompute=problem.recompute[block][place] if problem.recompute else 0.0,
                forward_sum=sums[block],
                backward_sum=sums[block],
            )
            for block, place in enumerate(places)
        ]
        changes = [
            (sums[block] * following / own, sums[block + 1] * own / following)
            for block, (own, following) in enumerate(pairwise(degrees))
            if own != following
        ]
        return cls.of(blocks, degrees, changes)

    @property
    def seconds(self) -> float:
        """Closed-form time of a step, equal to the simulation."""
        rows = sum(row.forward_seconds + row.backward_seconds for row in self.rows)
        return rows + sum(sum(change) for change in self.changes)

    def timed(self, blocks: Sequence[HalvedBlock], changes: Sequence[tuple[float, float]]) -> RegroupedHalves:
        """The same runs with other times."""
        rows = [replace(row, blocks=blocks[row.first : row.first + len(row.blocks)]) for row in self.rows]
        return replace(self, rows=rows, changes=changes)

    def graph(self) -> TaskGraph:
        """Task graph of one rank, forward then backward; all ranks are alike."""
        graph = TaskGraphBuilder()
        network = graph.stream("network")
        before: list[int] = []
        for number, row in enumerate(self.rows):
            if number:
                name, seconds = regrouped_before("F", row.first), self.changes[number - 1][0]
                before = [graph.add(name, "regroup", network, seconds, after=before)]
            before = add_pass(graph, row.forward_segments(), before)
        for number, row in reversed(list(enumerate(self.rows))):
            if number < len(self.rows) - 1:
                name = regrouped_before("B", row.first + len(row.blocks) - 1)
                before = [graph.add(name, "regroup", network, self.changes[number][1], after=before)]
            before = add_pass(graph, row.backward_segments(), before)
        return graph.build()
