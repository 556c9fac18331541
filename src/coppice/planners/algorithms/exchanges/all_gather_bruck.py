"""All-gather by growing runs of blocks: Bruck and sparbit, for any P.

Bruck, radix k: before step i every position p has the blocks p .. p + k^i - 1. It sends the first min(k^i, P - j k^i)
of them to p - j k^i, for every j = 1 .. k - 1 with j k^i < P. Steps ceil(log_k P); messages per rank the sum of those
j; bytes per rank (P - 1)/P M; time on a crossbar ``messages alpha + (P - 1)/P M beta``. A library rotates the blocks
into place in the end, which moves no data between ranks.

Sparbit: the same number of steps and bytes with the longest distance first, so that most data travel short ways.
A step of distance d exchanges one block less where P - 1 has a 0 in the place of d, as that block is there already:
every block arrives exactly once. A step is one message here, where the library sends each block by itself.

Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8(11), 1997; Loch and Koslovski, "Sparbit: a new logarithmic-cost
and data locality-aware MPI Allgather algorithm", 2021. Open MPI (both), MPICH and MVAPICH2 (Bruck).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.planners.algorithms.parts.radix import levels, num_messages, radix_parameter
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def bruck(case: Case) -> Schedule:
    """Runs of blocks grow by the factor k."""
    moves = Moves(case, blocks(case))
    position, size = case.positions[:, None], case.size
    for step, (distance, shifts) in enumerate(levels(size, case.number("radix"))):
        for shift in shifts:
            run = np.arange(min(distance, size - shift))
            moves.add(step, position, (position - shift) % size, (position + run) % size)
    return moves.schedule()


def sparbit(case: Case) -> Schedule:
    """Every other block of a run that grows inwards."""
    moves = Moves(case, blocks(case))
    position, size = case.positions[:, None], case.size
    held = 1
    for step, (distance, _) in enumerate(reversed(levels(size, 2))):
        skipped = int((size - 1) & distance == 0)
        sent = np.arange(held - skipped)
        moves.add(step, position, (position + distance) % size, (position - 2 * sent * distance) % size)
        held += len(sent)
    return moves.schedule()


def _bruck_cost(case: Case) -> Cost:
    radix = case.number("radix")
    return _cost(case, steps=len(levels(case.size, radix)), messages=num_messages(case.size, radix))


def _sparbit_cost(case: Case) -> Cost:
    steps = len(levels(case.size, 2))
    return _cost(case, steps=steps, messages=steps)


def _cost(case: Case, *, steps: int, messages: int) -> Cost:
    moved = Fraction(case.size - 1, case.size)
    chains = (Chain(messages=messages, sent=moved),) if steps else ()
    return Cost(steps=steps, sent=moved, chains=chains)


ALGORITHMS = (
    Algorithm(
        name="bruck",
        collective=Collective.ALL_GATHER,
        build=bruck,
        summary="every rank's run of blocks grows by the factor k in each step",
        source="Bruck et al., IEEE TPDS 1997; Open MPI, MPICH, MVAPICH2",
        cost=_bruck_cost,
        parameters=radix_parameter(),
    ),
    Algorithm(
        name="sparbit",
        collective=Collective.ALL_GATHER,
        build=sparbit,
        summary="as many steps as Bruck, far distances first, while there is little to send",
        source="Loch and Koslovski 2021; Open MPI",
        cost=_sparbit_cost,
    ),
)
