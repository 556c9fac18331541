"""Pairwise exchange: every block travels straight to its place, a partner at a time.

Reduce-scatter: in step i = 1 .. P - 1 position p sends its part of block p + i to p + i, which adds it. All-to-all:
the same where P is not a power of two, otherwise the partners are p and p xor i. Steps P - 1; bytes per rank
(P - 1)/P M; time on a crossbar (P - 1) (``alpha + M/P beta``), and ``M/P gamma`` more each where it adds.

All-to-all in place (sendrecv-replace): every pair i < j swaps two blocks, so that no second buffer is needed. A
position swaps with 0, 1, 2 .. in this order, and so pair (i, j) has its turn in step i + j - 1. Steps 2 P - 3; bytes
per rank (P - 1)/P M; time (2 P - 3) (``alpha + M/P beta``).

Thakur, Rabenseifner and Gropp, IJHPCA 2005; Open MPI, MPICH, MVAPICH2 (pairwise); MPICH, MVAPICH2 (in place).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks, pairs
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def reduce_scatter(case: Case) -> Schedule:
    """Every part of a block goes straight to the block's owner."""
    moves = Moves(case, blocks(case))
    position, shift = case.positions, np.arange(1, case.size)[:, None]
    partner = (position + shift) % case.size
    moves.add(shift - 1, position, partner, partner, Op.REDUCE)
    return moves.schedule()


def all_to_all(case: Case) -> Schedule:
    """Partners by exclusive or, or by shifts."""
    moves = Moves(case, pairs(case))
    position, shift, size = case.positions, np.arange(1, case.size)[:, None], case.size
    partner = (position + shift) % size if size & (size - 1) else position ^ shift
    moves.add(shift - 1, position, partner, position * size + partner)
    return moves.schedule()


def in_place(case: Case) -> Schedule:
    """Every pair swaps, in the order of the pairs."""
    moves = Moves(case, pairs(case))
    low, high = np.triu_indices(case.size, 1)
    moves.add(low + high - 1, low, high, low * case.size + high)
    moves.add(low + high - 1, high, low, high * case.size + low)
    return moves.schedule()


def _cost(case: Case) -> Cost:
    return _of(case, steps=case.size - 1)


def _in_place_cost(case: Case) -> Cost:
    return _of(case, steps=max(2 * case.size - 3, 0))


def _of(case: Case, *, steps: int) -> Cost:
    time = Fraction(steps, case.size)
    reduced = time if case.collective.reduces else Fraction(0)
    chains = (Chain(messages=steps, sent=time, reduced=reduced),) if steps else ()
    return Cost(steps=steps, sent=Fraction(case.size - 1, case.size), chains=chains)


ALGORITHMS = (
    Algorithm(
        name="pairwise",
        collective=Collective.REDUCE_SCATTER,
        build=reduce_scatter,
        summary="in step i every rank sends its part of a block to the owner, i ranks further",
        source="Thakur et al. 2005; MPICH, MVAPICH2",
        cost=_cost,
    ),
    Algorithm(
        name="pairwise",
        collective=Collective.ALL_TO_ALL,
        build=all_to_all,
        summary="in step i every rank exchanges with one partner, rank xor i or i ranks further",
        source="Thakur et al. 2005; Open MPI, MPICH, MVAPICH2",
        cost=_cost,
    ),
    Algorithm(
        name="sendrecv-replace",
        collective=Collective.ALL_TO_ALL,
        build=in_place,
        summary="every pair of ranks swaps two blocks in place, in the order of the pairs",
        source="MPICH, MVAPICH2 (in-place all-to-all)",
        cost=_in_place_cost,
    ),
)
