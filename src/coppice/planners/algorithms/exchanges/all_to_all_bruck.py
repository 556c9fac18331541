"""All-to-all in few messages: every block hops the digits of its distance in base k.

In step i, position p sends to p + j k^i, for every j = 1 .. k - 1, all blocks that it holds whose distance (receiver
minus sender, modulo P) has the digit j in place i. A block thus hops once for every digit that is not 0.

Steps ceil(log_k P); messages per rank the number of pairs (i, j) with j k^i < P; bytes per rank and time the blocks
that these messages hold: ``messages alpha + hops/P M beta``, hops being the number of digits other than 0 of all
numbers below P together, (P/2) log2 P for k = 2 and P a power of two. Rotating the blocks before and after moves no
data between ranks.

Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8(11), 1997; Open MPI (modified Bruck), MPICH (brucks, k_brucks),
MVAPICH2.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, pairs
from coppice.planners.algorithms.parts.radix import levels, num_messages, radix_parameter
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def build(case: Case) -> Schedule:
    """Hop by hop, the lowest digit first."""
    moves = Moves(case, pairs(case))
    size, radix = case.size, case.number("radix")
    position, away = case.positions[:, None], np.arange(size)
    for step, (distance, shifts) in enumerate(levels(size, radix)):
        for shift in shifts:
            hopping = away[away // distance % radix == shift // distance]
            source = (position - hopping % distance) % size
            target = (source + hopping) % size
            moves.add(step, position, (position + shift) % size, source * size + target)
    return moves.schedule()


def _cost(case: Case) -> Cost:
    size, radix = case.size, case.number("radix")
    found = levels(size, radix)
    hops = sum(size - _with_zero(size, distance, radix) for distance, _ in found)
    chain = Chain(messages=num_messages(size, radix), sent=Fraction(hops, size))
    return Cost(steps=len(found), sent=chain.sent, chains=(chain,) if found else ())


def _with_zero(size: int, distance: int, radix: int) -> int:
    """How many numbers below ``size`` have a 0 in the place of ``distance``."""
    rounds, rest = divmod(size, radix * distance)
    return rounds * distance + min(rest, distance)


ALGORITHMS = (
    Algorithm(
        name="bruck",
        collective=Collective.ALL_TO_ALL,
        build=build,
        summary="blocks hop the digits of their distance in base k, many in a message",
        source="Bruck et al., IEEE TPDS 1997; Open MPI, MPICH, MVAPICH2",
        cost=_cost,
        parameters=radix_parameter(),
    ),
)
