"""All-reduce in one step: every rank sends its buffer to every other, and adds what it receives in rank order.

Steps 1; time ``(P - 1) (alpha + M (beta + gamma))``; bytes per rank (P - 1) M.

Open MPI (allgather_reduce) gathers first and adds afterwards; here a buffer is added as it arrives. Messages are
posted so that no rank is sent to by two at a time, and yet each adds its neighbours nearest first (:mod:`.exchange`).
"""

from __future__ import annotations

from fractions import Fraction

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.exchange import Exchange
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def all_reduce(case: Case) -> Schedule:
    """One group of all positions."""
    moves = Moves(case, whole(case))
    Exchange(case.positions, case.size, 1).whole(moves, 0)
    return moves.schedule(ordered=True)


def _cost(case: Case) -> Cost:
    messages = case.size - 1
    moved = Fraction(messages)
    chains = (Chain(messages=messages, sent=moved, reduced=moved),) if messages else ()
    return Cost(steps=int(messages > 0), sent=moved, chains=chains)


ALGORITHMS = (
    Algorithm(
        name="allgather-reduce",
        collective=Collective.ALL_REDUCE,
        build=all_reduce,
        summary="every rank sends its buffer to all others, and adds theirs",
        source="Open MPI",
        cost=_cost,
    ),
)
