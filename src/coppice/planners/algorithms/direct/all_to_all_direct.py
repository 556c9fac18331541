"""All-to-all straight from sender to receiver, with as many messages at once as wanted.

Position p sends to p + 1, p + 2 .. in this order, so that nobody is the target of all.

linear: all P - 1 messages at once. Steps 1.
linear-sync: ``window`` messages at a time. Steps ceil((P - 1) / window). A library sends the next message when any
of these is complete, here when all are; on a crossbar it is the same.
scattered: the P messages, that to oneself included, in batches of ``batch``. Steps ceil(P / batch); with a batch of
one, whose first is empty, P - 1.

Bytes per rank (P - 1)/P M; time on a crossbar (P - 1) (``alpha + M/P beta``) for all three.

Open MPI (linear, linear_sync), MPICH (scattered, 32 at a time), MVAPICH2 (scatter_dest).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, Parameter
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, pairs
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def build(case: Case) -> Schedule:
    """All messages, in the steps that :func:`_steps` gives them."""
    moves = Moves(case, pairs(case))
    position, size = case.positions, case.size
    target = (position + np.arange(1, size)[:, None]) % size
    moves.add(_steps(case)[:, None], position, target, position * size + target)
    return moves.schedule()


def _steps(case: Case) -> NDArray[np.int64]:
    """Step of the message to the next position, the one after it, and so on."""
    shift = np.arange(1, case.size)
    if "window" in case.parameters:
        return (shift - 1) // case.number("window")
    if "batch" in case.parameters:
        batch = case.number("batch")
        return shift // batch - (batch == 1)
    return shift * 0


def _cost(case: Case) -> Cost:
    steps = _steps(case)
    moved = Fraction(case.size - 1, case.size)
    chains = (Chain(messages=case.size - 1, sent=moved),) if len(steps) else ()
    return Cost(steps=int(steps[-1]) + 1 if len(steps) else 0, sent=moved, chains=chains)


ALGORITHMS = (
    Algorithm(
        name="linear",
        collective=Collective.ALL_TO_ALL,
        build=build,
        summary="every rank sends all its blocks at once",
        source="Open MPI",
        cost=_cost,
    ),
    Algorithm(
        name="linear-sync",
        collective=Collective.ALL_TO_ALL,
        build=build,
        summary="every rank has a limited number of messages under way",
        source="Open MPI",
        cost=_cost,
        parameters={"window": Parameter(default=4, summary="messages that a rank has under way")},
    ),
    Algorithm(
        name="scattered",
        collective=Collective.ALL_TO_ALL,
        build=build,
        summary="every rank sends its blocks in batches",
        source="MPICH, MVAPICH2",
        cost=_cost,
        parameters={"batch": Parameter(default=32, summary="messages in a batch, that to oneself included")},
    ),
)
