"""All-gather and reduce-scatter on a circulant graph: the fewest rounds and the fewest bytes, for any P.

The distances are s = ceil(P/2), ceil(P/4), .. 1, each half of the one before, rounded up. All-gather, shortest
distance first: a position p that has the blocks p .. p + s - 1 sends the first t - s of them to p - s, t being the
next distance (P after the last). Reduce-scatter is the reverse: p sends its partial sums of the blocks p + s .. p +
t - 1 to p + s, which adds them.

Steps ceil(log2 P); bytes per rank (P - 1)/P M; time on a crossbar ``ceil(log2 P) alpha + (P - 1)/P M beta``, and
``(P - 1)/P M gamma`` where it adds. No rank can do with fewer steps or bytes, so there is nothing to pipeline. The
sums do not keep the ranks in order.

Traff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024. MPICH (circ_graph) has the all-gather
with every block cut in pieces.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def all_gather(case: Case) -> Schedule:
    """Runs of blocks that double, or a little less."""
    moves = Moves(case, blocks(case))
    position, size = case.positions[:, None], case.size
    for step, (distance, following) in enumerate(_distances(size)):
        run = np.arange(following - distance)
        moves.add(step, position, (position - distance) % size, (position + run) % size)
    return moves.schedule()


def reduce_scatter(case: Case) -> Schedule:
    """The all-gather backwards."""
    moves = Moves(case, blocks(case))
    position, size = case.positions[:, None], case.size
    for step, (distance, following) in enumerate(reversed(_distances(size))):
        run = np.arange(distance, following)
        moves.add(step, position, (position + distance) % size, (position + run) % size, Op.REDUCE)
    return moves.schedule()


def _distances(size: int) -> list[tuple[int, int]]:
    """Every distance with the next longer one, from 1 to ``size``."""
    found = []
    following = size
    while following > 1:
        distance = (following + 1) // 2
        found.append((distance, following))
        following = distance
    return found[::-1]


def _cost(case: Case) -> Cost:
    steps = (case.size - 1).bit_length()
    moved = Fraction(case.size - 1, case.size)
    reduced = moved if case.collective.reduces else Fraction(0)
    chains = (Chain(messages=steps, sent=moved, reduced=reduced),) if steps else ()
    return Cost(steps=steps, sent=moved, chains=chains)


ALGORITHMS = tuple(
    Algorithm(
        name="circulant",
        collective=collective,
        build=build,
        summary="distances halve, rounded up: the fewest steps and bytes for any number of ranks",
        source="Traff 2024; MPICH (all-gather)",
        cost=_cost,
    )
    for collective, build in (
        (Collective.ALL_GATHER, all_gather),
        (Collective.REDUCE_SCATTER, reduce_scatter),
    )
)
