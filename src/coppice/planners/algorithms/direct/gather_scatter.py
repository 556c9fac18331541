"""Gather and scatter: straight to or from the root, or along k-nomial trees.

Positions are counted from the root in the trees, r = position - root modulo P.

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
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.planners.algorithms.parts.radix import levels, num_messages, radix_parameter, spans
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def tree(case: AlgorithmCase) -> Schedule:
    """Blocks of subtrees."""
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
    """One block a step, or all of them at once."""
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

ALGORITHMS = (
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
