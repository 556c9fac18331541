"""Gather and scatter, direct and along trees, and broadcast as scatter and all-gather.

**Gather and scatter.** Positions are counted from the root in the trees, r = position - root modulo P.

linear: gather, all others send at once and the root takes one after the other, 1 step; scatter, the root sends one
block after the other, waiting for each, P - 1 steps.
linear-nb (scatter): the root sends all blocks at once. Steps 1.
linear-sync (gather): the root calls for one block after the other. Steps P - 1. What calls, a message of no bytes to
every sender, is not in the schedule and not in the cost (it would add P - 1 alpha), nor is the first part of a block
that a library sends ahead of the rest.
All three: time on a crossbar (P - 1) (``alpha + M/P beta``); the root moves (P - 1)/P M, another rank M/P.

binomial, k-nomial: in the tree of radix k, r passes the blocks of r .. r + k^i - 1 to r - j k^i, where j is the
lowest digit of r in base k that is not 0, in place i. A gather begins with the shortest distance, a scatter goes
backwards. Steps ceil(log_k P); bytes, (P - 1)/P M at the root of a scatter, those of the largest subtree but the
root's in a gather; time ``messages alpha + (P - 1)/P M beta`` with as many messages as the root has children, the
pairs (i, j) with j k^i < P: ceil(log2 P) for k = 2.

Open MPI (linear, binomial, linear_sync, linear_nb), MPICH (binomial; k-nomial in the non-blocking ones), MVAPICH2.

**Broadcast.** The root scatters P blocks along a binomial tree (longest distance first); then every rank gathers all
blocks, by recursive doubling (``scatter-allgather``) or around a ring (``scatter-ring-allgather``). Positions count
from the root, and position v keeps block v. Where P is no power of two, recursive doubling takes further steps, in
which those whose subtree met a smaller one pass on what it had; some get back what they passed down (all as in
:mod:`..exchanges.doubling`).

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
from coppice.planners.algorithms.exchanges.doubling import doubling_steps
from coppice.planners.algorithms.parts.cost import Clocks, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.planners.algorithms.parts.radix import levels, num_messages, radix_parameter, spans
from coppice.planners.algorithms.parts.trees import k_nomial
from coppice.schedule.schedule import Schedule


def tree(case: AlgorithmCase) -> Schedule:
    """Blocks of subtrees along a tree."""
    moves = Moves(case, blocks(case))
    found = levels(case.size, _radix(case))
    scatters = case.collective is Collective.SCATTER
    for step, (distance, _) in enumerate(reversed(found) if scatters else found):
        span = distance * _radix(case)
        child = np.arange(distance, case.size, distance)
        child = child[child % span != 0]
        row, block = spans(child, np.minimum(distance, case.size - child))
        lower = case.from_root(child[row])
        upper = case.from_root((child - child % span)[row])
        src, dst = (upper, lower) if scatters else (lower, upper)
        moves.add(step, src, dst, case.from_root(block))
    return moves.schedule()


def straight(case: AlgorithmCase, *, one_by_one: bool) -> Schedule:
    """One block per step, or all at once."""
    moves = Moves(case, blocks(case))
    others = case.positions[case.positions != case.root]
    step = np.arange(len(others)) if one_by_one else 0
    src, dst = (case.root, others) if case.collective is Collective.SCATTER else (others, case.root)
    moves.add(step, src, dst, others)
    return moves.schedule()


def _radix(case: AlgorithmCase) -> int:
    return case.number("radix") if "radix" in case.parameters else 2


def _straight_cost(case: AlgorithmCase, *, steps: int) -> Cost:
    size = case.size
    moved = Fraction(size - 1, size)
    sent = moved if case.collective is Collective.SCATTER else Fraction(1, size)
    return Cost.of_one_chain(steps=steps, sent=sent, messages=size - 1, moved=moved)


def _tree_cost(case: AlgorithmCase) -> Cost:
    size, radix = case.size, _radix(case)
    found = levels(size, radix)
    moved = Fraction(size - 1, size)
    largest = max(
        (min(distance, size - child) for distance, children in found for child in children), default=0
    )
    sent = moved if case.collective is Collective.SCATTER else Fraction(largest, size)
    return Cost.of_one_chain(steps=len(found), sent=sent, messages=num_messages(size, radix), moved=moved)


_GATHER, _SCATTER = Collective.GATHER, Collective.SCATTER

GATHER_SCATTER = (
    Algorithm(
        name="linear",
        collective=_GATHER,
        build=lambda case: straight(case, one_by_one=False),
        summary="all ranks send to the root at once",
        source="Open MPI, MVAPICH2 (direct)",
        cost=lambda case: _straight_cost(case, steps=1),
    ),
    Algorithm(
        name="linear-sync",
        collective=_GATHER,
        build=lambda case: straight(case, one_by_one=True),
        summary="the root calls for one block after the other",
        source="Open MPI",
        cost=lambda case: _straight_cost(case, steps=case.size - 1),
    ),
    Algorithm(
        name="linear",
        collective=_SCATTER,
        build=lambda case: straight(case, one_by_one=True),
        summary="the root sends one block after the other",
        source="Open MPI, MVAPICH2 (direct)",
        cost=lambda case: _straight_cost(case, steps=case.size - 1),
    ),
    Algorithm(
        name="linear-nb",
        collective=_SCATTER,
        build=lambda case: straight(case, one_by_one=False),
        summary="the root sends all blocks at once",
        source="Open MPI",
        cost=lambda case: _straight_cost(case, steps=1),
    ),
    *(
        Algorithm(
            name="binomial",
            collective=collective,
            build=tree,
            summary="blocks of whole subtrees move along a binomial tree",
            source="Open MPI, MPICH, MVAPICH2",
            cost=_tree_cost,
        )
        for collective in (_GATHER, _SCATTER)
    ),
    *(
        Algorithm(
            name="k-nomial",
            collective=collective,
            build=tree,
            summary="blocks of whole subtrees move along a k-nomial tree",
            source="MPICH (non-blocking)",
            cost=_tree_cost,
            parameters=radix_parameter(4),
        )
        for collective in (_GATHER, _SCATTER)
    ),
)


def scatter_allgather(case: AlgorithmCase) -> Schedule:
    """Scatter, then all-gather by recursive doubling."""
    moves = Moves(case, whole(case, case.size))
    first_step = _scatter(moves)
    for number, step in enumerate(doubling_steps(case.size)):
        first, last = step.data
        row, block = spans(first, last - first)
        moves.add(first_step + number, case.from_root(step.src[row]), case.from_root(step.dst[row]), block)
    return moves.schedule()


def scatter_ring_allgather(case: AlgorithmCase) -> Schedule:
    """Scatter, then all-gather around the ring."""
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


BROADCAST = (
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
