"""Two half micro-batches, each computing while the other is all-reduced, and recomputation without communication.

Source: Li et al., "Automated Tensor Model Parallelism with Overlapped Communication for Efficient Foundation Model
Training" (Oases, arXiv 2305.16121), and its released code.

Theory. A block (attention, or the MLP) of a tensor-parallel layer ends with a sum over its ranks, on which its next
block waits. Two halves of the micro-batch do not wait for each other: while one is summed, the other computes.
One sum at a time is outstanding. In the notation of the code, where | waits for the sum before and starts that of what
was just computed:

    forward    attention 1 | attention 2 | MLP 1 | MLP 2 | next layer: attention 1 | ...
    backward   again MLP 2, again MLP 1, MLP 2 | MLP 1 | again attention 2, again attention 1, attention 2 | ...

What follows a sum (bias, dropout, residual) is computed with the next block of the same half. In the backward pass what
was dropped is computed again ("again") for both halves before the gradients. Where a checkpoint is right behind every
sum, the sum itself is never computed again: six sums a layer become four. Otherwise each "again" has its sum, too.

As every sum is waited for before the next starts, a pass is a row of segments, each beside the sum of the one before:
with computations c(1) .. c(m) between sums s(1) .. s(m) it takes

    c(1) + max(c(2), s(1)) + ... + max(c(m), s(m - 1)) + s(m)        serial: c(1) + s(1) + ... + c(m) + s(m),

for n blocks alike, a for half of one and b for its sum, 2 n max(a, b) and the shorter of both. Backwards the segments
are 2 r + g and g, with r for what is computed again and g for gradients.

No times make it slower than serial, as long as half the batch takes half the time. Assumes that all ranks start sums in
this order, and keep tensors while they are summed.

Blocks may have several tensor-parallel degrees (costs: :mod:`~coppice.iteration.policies.tensor.degrees`). Where those
of neighbours differ, nothing overlaps: the last sum of a row of one degree is waited for, both halves change over
together, and the next row begins. The seconds of a step are those of its rows and of the changes between them, forward
and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from coppice.errors import InputError
from coppice.iteration.policies.tensor.degrees import DegreeProblem
from coppice.iteration.tasks import TaskGraph, TaskGraphBuilder


@dataclass(frozen=True, kw_only=True)
class HalvedBlock:
    """A block as one rank runs it on half of a micro-batch."""

    forward: float  # Seconds of its forward pass
    gradients: float = 0.0  # Seconds of its backward pass
    recompute: float = 0.0  # Seconds of what is computed again before it
    forward_sum: float = 0.0  # Seconds of the sum that ends the forward pass
    backward_sum: float = 0.0  # Seconds of the sum that ends the backward pass

    def __post_init__(self) -> None:
        times = (self.forward, self.gradients, self.recompute, self.forward_sum, self.backward_sum)
        if min(times) < 0:
            raise InputError(f"expected 0 or more seconds for each part of a block, found {times}.")


@dataclass(frozen=True, kw_only=True)
class HalfPass:
    """Computation of one half block without a pause."""

    kind: str  # `F` (forward), `R` (computed again) or `B` (gradients)
    block: int  # Number of the block
    half: int  # 1 or 2
    seconds: float  # Time that it takes
    first: int = 0  # Number of the first block in a longer row

    @property
    def name(self) -> str:
        """Name in graphs and records."""
        return f"{self.kind}{self.first + self.block} of {self.half}"


@dataclass(frozen=True, kw_only=True)
class HalfSegment:
    """Computation between two waits for all-reduces, and the all-reduce that starts after it."""

    passes: tuple[HalfPass, ...]  # What is computed, in this order; the last of it is summed
    seconds: float  # Time of the sum

    @property
    def summed(self) -> str:
        """Name of the all-reduce."""
        return f"sum of {self.passes[-1].name}"

    @property
    def waited(self) -> str:
        """Name of the wait before the segment."""
        return f"before {self.summed}"


PASS_IS_OVER = "pass is over"
"""The name of the wait for the last sum of a pass."""


@dataclass(frozen=True, kw_only=True)
class HalfBatches:
    """Blocks that run in two halves.

    Examples:
        The published example of 48 blocks, 192 seconds without overlap:

        >>> from coppice.iteration.tasks import run_tasks
        >>> for seconds in (1.0, 0.5, 2.0):
        ...     halves = HalfBatches(blocks=[HalvedBlock(forward=1.0, forward_sum=seconds)] * 48)
        ...     run_tasks(halves.graph(backward=False)).seconds, halves.forward_seconds
        (97.0, 97.0)
        (96.5, 96.5)
        (193.0, 193.0)
    """

    blocks: Sequence[HalvedBlock]  # The blocks in the order of the forward pass
    silent: bool = True  # Nothing is summed again where blocks are computed again
    first: int = 0  # Number of the first block, for names

    @property
    def serial_seconds(self) -> float:
        """Time of both passes on whole micro-batches without overlap."""
        again = 0 if self.silent else 1
        return 2 * sum(
            each.forward
            + each.forward_sum * (1 + again * (each.recompute > 0))
            + each.recompute
            + each.gradients
            + each.backward_sum
            for each in self.blocks
        )

    @property
    def forward_seconds(self) -> float:
        """Closed-form time of the forward pass, equal to the simulation."""
        return _in_a_row(self.forward_segments())

    @property
    def backward_seconds(self) -> float:
        """Closed-form time of the backward pass, equal to the simulation."""
        return _in_a_row(self.backward_segments())

    def graph(self, *, forward: bool = True, backward: bool = True) -> TaskGraph:
        """Task graph of one rank, forward then backward; all ranks are alike."""
        graph = TaskGraphBuilder()
        before: list[int] = []
        for segments in ([self.forward_segments()] if forward else []) + (
            [self.backward_segments()] if backward else []
        ):
            before = add_pass(graph, segments, before)
        return graph.build()

    def forward_segments(self) -> list[HalfSegment]:
        """Segments of the forward pass, and its last all-reduce."""
        return [
            HalfSegment(passes=(self._passed("F", number, half, block.forward),), seconds=block.forward_sum)
            for number, block in enumerate(self.blocks)
            for half in (1, 2)
        ]

    def backward_segments(self) -> list[HalfSegment]:
        """Segments of the backward pass, the other half first."""
        segments: list[HalfSegment] = []
        for number, block in reversed(list(enumerate(self.blocks))):
            again = [self._passed("R", number, half, block.recompute) for half in (2, 1) if block.recompute]
            if not self.silent:
                segments += [HalfSegment(passes=(each,), seconds=block.forward_sum) for each in again]
                again = []
            first, other = (self._passed("B", number, half, block.gradients) for half in (2, 1))
            segments.append(HalfSegment(passes=(*again, first), seconds=block.backward_sum))
            segments.append(HalfSegment(passes=(other,), seconds=block.backward_sum))
        return segments

    def _passed(self, kind: str, block: int, half: int, seconds: float) -> HalfPass:
        return HalfPass(kind=kind, block=block, half=half, seconds=seconds, first=self.first)


def add_pass(graph: TaskGraphBuilder, segments: Sequence[HalfSegment], before: Sequence[int]) -> list[int]:
    """Append the tasks of a pass; return those that the next pass waits for."""
    compute, network = graph.stream("compute"), graph.stream("network")
    outstanding: list[int] = []
    for segment in segments:
        for each in segment.passes:
            before = [graph.add(each.name, _KINDS[each.kind], compute, each.seconds, after=before)]
        before = [graph.barrier(segment.waited, [*before, *outstanding])]
        outstanding = [graph.add(segment.summed, "all_reduce", network, segment.seconds, after=before)]
    return [graph.barrier(PASS_IS_OVER, [*before, *outstanding])]


_KINDS = {"F": "forward", "R": "recompute", "B": "backward"}


def _in_a_row(segments: Sequence[HalfSegment]) -> float:
    """Time of segments, each overlapped with the all-reduce of the one before."""
    total = summed = 0.0
    for segment in segments:
        total += max(summed, sum(each.seconds for each in segment.passes))
        summed = segment.seconds
    return total + summed


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
        >>> from coppice.iteration.tasks import run_tasks
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
