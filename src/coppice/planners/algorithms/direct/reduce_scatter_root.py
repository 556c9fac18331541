"""Reduce-scatter through position 0: reduce the whole buffer, then scatter its blocks.

linear: all P - 1 others send at once and position 0 adds what arrives in rank order; then it sends every block.
Steps 2; the others send M, position 0 (P - 1)/P M; time on a crossbar (P - 1) (``2 alpha + (1 + 1/P) M beta + M
gamma``).

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
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.planners.algorithms.parts.radix import levels
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def linear(case: Case) -> Schedule:
    """Everybody to position 0, and back."""
    moves = Moves(case, blocks(case))
    moves.add(0, case.positions[1:, None], 0, case.positions, Op.REDUCE)
    _scatter(moves, step=1)
    return moves.schedule(ordered=True)


def nonoverlapping(case: Case) -> Schedule:
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


def _linear_cost(case: Case) -> Cost:
    others = case.size - 1
    return _cost(case, reductions=others, reduce_steps=1)


def _nonoverlapping_cost(case: Case) -> Cost:
    depth = len(levels(case.size, 2))
    return _cost(case, reductions=depth, reduce_steps=depth)


def _cost(case: Case, *, reductions: int, reduce_steps: int) -> Cost:
    others = case.size - 1
    if not others:
        return Cost(steps=0, sent=Fraction(0), chains=())
    chain = Chain(
        messages=reductions + others,
        sent=reductions + Fraction(others, case.size),
        reduced=Fraction(reductions),
    )
    return Cost(steps=reduce_steps + 1, sent=Fraction(1), chains=(chain,))


ALGORITHMS = (
    Algorithm(
        name="linear",
        collective=Collective.REDUCE_SCATTER,
        build=linear,
        summary="one rank adds the buffers of all in rank order and sends out the blocks",
        source="Open MPI",
        cost=_linear_cost,
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
