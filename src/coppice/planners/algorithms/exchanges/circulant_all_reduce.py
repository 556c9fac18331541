"""All-reduce on a circulant graph: its reduce-scatter, then its all-gather (:mod:`.circulant_blocks`), for any P.

Steps 2 ceil(lg P); time ``2 ceil(lg P) alpha + 2 (P - 1)/P M beta + (P - 1)/P M gamma``; bytes per rank 2 (P - 1)/P
M, the fewest there are. Sums do not keep rank order.

Traff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.exchanges import circulant_blocks
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.sequence import all_reduce_of
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def all_reduce(case: Case) -> Schedule:
    """Both, one after the other."""
    return all_reduce_of(
        circulant_blocks.reduce_scatter(replace(case, collective=Collective.REDUCE_SCATTER)),
        circulant_blocks.all_gather(replace(case, collective=Collective.ALL_GATHER)),
    )


def _cost(case: Case) -> Cost:
    steps = 2 * (case.size - 1).bit_length()
    moved = Fraction(case.size - 1, case.size)
    chains = (Chain(messages=steps, sent=2 * moved, reduced=moved),) if steps else ()
    return Cost(steps=steps, sent=2 * moved, chains=chains)


ALGORITHMS = (
    Algorithm(
        name="circulant",
        collective=Collective.ALL_REDUCE,
        build=all_reduce,
        summary="distances halve, rounded up: the fewest bytes, in few steps for any number of ranks",
        source="Traff 2024",
        cost=_cost,
    ),
)
