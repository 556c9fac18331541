"""All-gather and reduce-scatter through one rank, position 0.

**All-gather.** linear: position 0 receives all blocks and sends the whole buffer to everybody. Steps 2; position 0
sends (P - 1) M; time (P - 1) (``2 alpha + (1/P + 1) M beta``).

gather-broadcast: the same along binomial trees, with L = ceil(log2 P). Steps 2 L; position 0 sends L M; time ``2 L
alpha + ((P - 1)/P + L) M beta``.

The whole buffer is broadcast, the receiver's own block included, as libraries do it. Open MPI (linear),
MVAPICH2 (gather and broadcast).

**Reduce-scatter:** reduce the whole buffer, then scatter its blocks. linear: all P - 1 others send at once and position
0 adds what arrives in rank order; then it sends every block. Steps 2; the others send M, position 0 (P - 1)/P M; time
on a crossbar (P - 1) (``2 alpha + (1 + 1/P) M beta + M gamma``).

nonoverlapping: a binomial reduction, in which position p adds what p + 1, p + 2, p + 4 .. have summed up, L =
ceil(log2 P) steps; then the same scatter. Steps L + 1; bytes as above; time ``(L + P - 1) alpha + (L + (P - 1)/P) M
beta + L M gamma``.

Both add neighbouring intervals of ranks only, so that the operator need not commute.

Open MPI (basic linear, nonoverlapping), MVAPICH2 (basic).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.planners.algorithms.parts.radix import levels, spans
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALL_GATHER", "REDUCE_SCATTER"]


def linear_all_gather(case: AlgorithmCase) -> Schedule:
    """Everything to position 0, the whole from there."""
    moves = Moves(case, blocks(case))
    others = case.positions[1:]
    moves.add(0, others, 0, others)
    moves.add(1, 0, others[:, None], case.positions)
    return moves.schedule()


def gather_broadcast(case: AlgorithmCase) -> Schedule:
    """Subtrees up a binomial tree, the whole down again."""
    moves = Moves(case, blocks(case))
    distances = [distance for distance, _ in levels(case.size, 2)]
    for step, distance in enumerate(distances):
        child = np.arange(distance, case.size, 2 * distance)
        row, block = spans(child, np.minimum(distance, case.size - child))
        moves.add(step, child[row], child[row] - distance, block)
    for step, distance in enumerate(reversed(distances), start=len(distances)):
        child = np.arange(distance, case.size, 2 * distance)[:, None]
        moves.add(step, child - distance, child, case.positions)
    return moves.schedule()


def _linear_all_gather_cost(case: AlgorithmCase) -> Cost:
    others = case.size - 1
    return Cost.of_one_chain(
        steps=2, sent=Fraction(others), messages=2 * others, moved=others + Fraction(others, case.size)
    )


def _gather_broadcast_cost(case: AlgorithmCase) -> Cost:
    depth = len(levels(case.size, 2))
    moved = Fraction(case.size - 1, case.size)
    return Cost.of_one_chain(steps=2 * depth, sent=Fraction(depth), moved=depth + moved)


ALL_GATHER = (
    Algorithm(
        name="linear",
        collective=Collective.ALL_GATHER,
        build=linear_all_gather,
        summary="one rank gathers all blocks and sends the whole to each",
        source="Open MPI",
        cost=_linear_all_gather_cost,
    ),
    Algorithm(
        name="gather-broadcast",
        collective=Collective.ALL_GATHER,
        build=gather_broadcast,
        summary="blocks go up a binomial tree and the whole comes down",
        source="MVAPICH2",
        cost=_gather_broadcast_cost,
    ),
)


def linear_reduce_scatter(case: AlgorithmCase) -> Schedule:
    """Everybody to position 0, and back."""
    moves = Moves(case, blocks(case))
    moves.add(0, case.positions[1:, None], 0, case.positions, Op.REDUCE)
    _scatter(moves, step=1)
    return moves.schedule(ordered=True)


def nonoverlapping(case: AlgorithmCase) -> Schedule:
    """Up a binomial tree, and back at once."""
    moves = Moves(case, blocks(case))
    found = levels(case.size, 2)
    for step, (distance, _) in enumerate(found):
        child = np.arange(distance, case.size, 2 * distance)[:, None]
        moves.add(step, child, child - distance, case.positions, Op.REDUCE)
    _scatter(moves, step=len(found))
    return moves.schedule(ordered=True)


def _scatter(moves: Moves, *, step: int) -> None:
    others = moves.case.positions[1:]
    moves.add(step, 0, others, others)


def _nonoverlapping_cost(case: AlgorithmCase) -> Cost:
    depth = len(levels(case.size, 2))
    return _reduce_scatter_cost(case, reductions=depth, reduce_steps=depth)


def _reduce_scatter_cost(case: AlgorithmCase, *, reductions: int, reduce_steps: int) -> Cost:
    others = case.size - 1
    return Cost.of_one_chain(
        steps=reduce_steps + 1,
        sent=Fraction(1),
        messages=reductions + others,
        moved=reductions + Fraction(others, case.size),
        reduced=Fraction(reductions),
    )


REDUCE_SCATTER = (
    Algorithm(
        name="linear",
        collective=Collective.REDUCE_SCATTER,
        build=linear_reduce_scatter,
        summary="one rank adds the buffers of all in rank order and sends out the blocks",
        source="Open MPI",
        cost=lambda case: _reduce_scatter_cost(case, reductions=case.size - 1, reduce_steps=1),
    ),
    Algorithm(
        name="nonoverlapping",
        collective=Collective.REDUCE_SCATTER,
        build=nonoverlapping,
        summary="a binomial reduction, then a scatter",
        source="Open MPI, MVAPICH2",
        cost=_nonoverlapping_cost,
    ),
)
