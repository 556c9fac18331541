"""One exchange between two ranks: all-gather, all-to-all and barrier for P = 2.

Steps 1; bytes per rank M/2 (barrier 0); time on a crossbar ``alpha + M/2 beta`` (barrier ``alpha``).

Open MPI (two_proc).
"""

from __future__ import annotations

from fractions import Fraction

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks, pairs, whole
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def build(case: Case) -> Schedule:
    """Both send what the other one needs."""
    if case.collective is Collective.ALL_TO_ALL:
        moves = Moves(case, pairs(case))
        moves.add(0, [0, 1], [1, 0], [1, 2])
    elif case.collective is Collective.ALL_GATHER:
        moves = Moves(case, blocks(case))
        moves.add(0, [0, 1], [1, 0], [0, 1])
    else:
        moves = Moves(case, whole(case))
        moves.add(0, [0, 1], [1, 0], 0, Op.REDUCE)
    return moves.schedule()


def _needs(case: Case) -> str | None:
    if case.size == 2:
        return None
    return f"two-proc needs exactly 2 ranks, found {case.size}: choose another algorithm."


def _cost(case: Case) -> Cost:
    sent = Fraction(0) if case.collective is Collective.BARRIER else Fraction(1, 2)
    return Cost(steps=1, sent=sent, chains=(Chain(messages=1, sent=sent),))


ALGORITHMS = tuple(
    Algorithm(
        name="two-proc",
        collective=collective,
        build=build,
        summary="two ranks exchange what they have",
        source="Open MPI",
        cost=_cost,
        needs=_needs,
    )
    for collective in (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.BARRIER)
)
