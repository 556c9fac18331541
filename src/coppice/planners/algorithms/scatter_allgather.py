"""Broadcast by scattering the buffer and gathering it everywhere.

The root scatters P blocks along a binomial tree (longest distance first); then every rank gathers all blocks, by
recursive doubling (``scatter-allgather``) or around a ring (``scatter-ring-allgather``). Positions count from the
root, and position v keeps block v. Where P is no power of two, dissemination takes the place of recursive doubling: in
step k, position v sends the first min(2^k, P - 2^k) blocks from v on to position v - 2^k.

With q = ceil(lg P): steps 2 q and q + P - 1; time ``(2 q) alpha + 2 (P - 1)/P M beta`` and
``(q + P - 1) alpha + 2 (P - 1)/P M beta``; bytes per rank up to 2 (P - 1)/P M, at the root.

Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, "Interprocessor collective communication library", SHPCC 1994;
Open MPI, MPICH and MVAPICH2 have both.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.cost import Chain, Cost
from coppice.planners.algorithms.moves import Moves, whole
from coppice.planners.algorithms.trees import k_nomial
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def scatter_allgather(case: Case) -> Schedule:
    """Recursive doubling, or dissemination where P is no power of two."""
    size = case.size
    moves = Moves(case, whole(case, size))
    first_step = _scatter(moves)
    rounds = (size - 1).bit_length()
    node = np.arange(size)[:, None]
    for k in range(rounds):
        distance = 1 << k
        held = np.arange(min(distance, size - distance))
        if size == 1 << rounds:
            to, block = node ^ distance, (node & ~(distance - 1)) + held
        else:
            to, block = (node - distance) % size, (node + held) % size
        moves.add(first_step + k, case.from_root(node), case.from_root(to), block)
    return moves.schedule()


def scatter_ring_allgather(case: Case) -> Schedule:
    """Every block travels around the ring."""
    size = case.size
    moves = Moves(case, whole(case, size))
    first_step = _scatter(moves)
    node = np.arange(size)
    for step in range(size - 1):
        moves.add(first_step + step, case.from_root(node), case.from_root(node + 1), (node - step) % size)
    return moves.schedule()


def _scatter(moves: Moves) -> int:
    """Blocks go to their owners, those of a whole subtree together; the number of steps."""
    case = moves.case
    tree = k_nomial(case.size, 2)
    for level in range(tree.height):
        at = tree.level == level
        distance = 1 << (tree.height - 1 - level)
        for parent, child in zip(tree.parent[at].tolist(), tree.child[at].tolist(), strict=True):
            subtree = np.arange(child, min(child + distance, case.size))
            moves.add(level, case.from_root(parent), case.from_root(child), subtree)
    return tree.height


def _cost(case: Case, gather_steps: int) -> Cost:
    if case.size == 1:
        return Cost(steps=0, sent=Fraction(0), chains=())
    steps = (case.size - 1).bit_length() + gather_steps
    moved = Fraction(2 * (case.size - 1), case.size)
    return Cost(steps=steps, sent=moved, chains=(Chain(messages=steps, sent=moved),))


ALGORITHMS = (
    Algorithm(
        name="scatter-allgather",
        collective=Collective.BROADCAST,
        build=scatter_allgather,
        summary="a binomial scatter, then an all-gather by recursive doubling",
        source="van de Geijn et al., SHPCC 1994; Open MPI, MPICH, MVAPICH2",
        cost=lambda case: _cost(case, (case.size - 1).bit_length()),
    ),
    Algorithm(
        name="scatter-ring-allgather",
        collective=Collective.BROADCAST,
        build=scatter_ring_allgather,
        summary="a binomial scatter, then an all-gather around the ring",
        source="van de Geijn et al., SHPCC 1994; Open MPI, MPICH, MVAPICH2",
        cost=lambda case: _cost(case, case.size - 1),
    ),
)
