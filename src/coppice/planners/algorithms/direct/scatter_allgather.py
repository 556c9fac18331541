"""Broadcast by scattering the buffer and gathering it everywhere.

The root scatters P blocks along a binomial tree (longest distance first); then every rank gathers all blocks, by
recursive doubling (``scatter-allgather``) or around a ring (``scatter-ring-allgather``). Positions count from the
root, and position v keeps block v. Where P is no power of two, recursive doubling takes further steps, in which those
whose subtree met a smaller one pass on what it had; some get back what they passed down (all as in
:mod:`..exchanges.recursive_doubling_blocks`).

With q = ceil(lg P): steps 2 q for a power of two, and q + P - 1; time ``(2 q) alpha + 2 (P - 1)/P M beta`` and
``(q + P - 1) alpha + 2 (P - 1)/P M beta``; bytes per rank up to 2 (P - 1)/P M, at the root. Recursive doubling among
other numbers of ranks takes as long as its longest chain of messages, followed from position to position.

Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, "Interprocessor collective communication library", SHPCC 1994;
Open MPI, MPICH and MVAPICH2 have both.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase
from coppice.planners.algorithms.exchanges.recursive_doubling_blocks import doubling_steps
from coppice.planners.algorithms.parts.cost import Clocks, Cost
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.radix import spans
from coppice.planners.algorithms.parts.trees import k_nomial
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def scatter_allgather(case: AlgorithmCase) -> Schedule:
    """Recursive doubling."""
    moves = Moves(case, whole(case, case.size))
    first_step = _scatter(moves)
    for number, step in enumerate(doubling_steps(case.size)):
        first, last = step.data
        row, block = spans(first, last - first)
        moves.add(first_step + number, case.from_root(step.src[row]), case.from_root(step.dst[row]), block)
    return moves.schedule()


def scatter_ring_allgather(case: AlgorithmCase) -> Schedule:
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
    height = 0
    for height, (parent, child, count) in enumerate(_subtrees(case.size), start=1):
        row, block = spans(child, count)
        moves.add(height - 1, case.from_root(parent[row]), case.from_root(child[row]), block)
    return height


def _subtrees(size: int) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """For each step of the scatter: parents, children, and the numbers of nodes below these and themselves."""
    tree = k_nomial(size, 2)
    for level in range(tree.height):
        at = tree.level == level
        child = tree.child[at]
        yield tree.parent[at], child, np.minimum(1 << (tree.height - 1 - level), size - child)


def _scatter_allgather_cost(case: AlgorithmCase) -> Cost:
    size = case.size
    rounds = (size - 1).bit_length()
    if size == 1 << rounds:
        return _cost(case, rounds)
    clocks = Clocks(size, unit=size)
    for columns in _subtrees(size):
        clocks.step((*message, 0) for message in zip(*(column.tolist() for column in columns), strict=True))
    for step in doubling_steps(size):
        columns = (step.src, step.dst, np.diff(step.data, axis=0)[0])
        clocks.step((*message, 0) for message in zip(*(column.tolist() for column in columns), strict=True))
    return clocks.cost()


def _cost(case: AlgorithmCase, gather_steps: int) -> Cost:
    steps = (case.size - 1).bit_length() + gather_steps
    return Cost.of_one_chain(steps=steps, sent=Fraction(2 * (case.size - 1), case.size))


ALGORITHMS = (
    Algorithm(
        name="scatter-allgather",
        collective=Collective.BROADCAST,
        build=scatter_allgather,
        summary="a binomial scatter, then an all-gather by recursive doubling",
        source="van de Geijn et al., SHPCC 1994; Open MPI, MPICH, MVAPICH2",
        cost=_scatter_allgather_cost,
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
