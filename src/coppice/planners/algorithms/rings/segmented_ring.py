"""The ring all-reduce whose reduce-scatter runs in phases, so that a rank can add one part while the next arrives.

Every block is cut into S ``segments``. In phase j, the ring's reduce-scatter runs for segment j of all blocks; then
one all-gather brings the finished blocks around (:mod:`.ring`).

Steps (S + 1) (P - 1); time on a crossbar ``(P - 1) ((S + 1) alpha + 2 M/P beta + M/P gamma)``, as the model's receive
engine does not take in data while it adds; bytes per rank 2 (P - 1)/P M.

Open MPI (``ring_segmented``).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.planners.algorithms.parts.tree_shapes import SEGMENTS
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def all_reduce(case: Case) -> Schedule:
    """Phase after phase."""
    size, segments = case.size, case.number("segments")
    moves = Moves(case, blocks(case, segments))
    position = case.positions
    following = (position + 1) % size
    for phase in range(segments):
        for step in range(size - 1):
            block = (position - 1 - step) % size
            moves.add(phase * (size - 1) + step, position, following, block * segments + phase, Op.REDUCE)
    for step in range(size - 1):
        block = ((position - step) % size)[:, None]
        moves.add(
            segments * (size - 1) + step,
            position[:, None],
            following[:, None],
            block * segments + np.arange(segments),
        )
    return moves.schedule()


def _cost(case: Case) -> Cost:
    size, segments = case.size, case.number("segments")
    steps = (segments + 1) * (size - 1)
    moved = Fraction(size - 1, size)
    chains = (Chain(messages=steps, sent=2 * moved, reduced=moved),) if steps else ()
    return Cost(steps=steps, sent=2 * moved, chains=chains)


ALGORITHMS = (
    Algorithm(
        name="segmented-ring",
        collective=Collective.ALL_REDUCE,
        build=all_reduce,
        summary="the ring, whose reduce-scatter runs in phases of a segment each",
        source="Open MPI",
        cost=_cost,
        parameters={"segments": SEGMENTS},
    ),
)
