"""Reduction along a binary tree that keeps rank order, for any root.

The last position is the root of the tree; the positions before a node are halved, the lower half with one more where
they differ, and the last of each half is a child (the preorder tree of :mod:`.trees`, counted from the end). Every
subtree is an interval that ends with its own root, so neighbouring intervals are added. The buffer is cut into S
``segments``, each a step behind the one before; where another position wants the result, the last position sends it
there as one message.

Steps H + S - 1, one more where the result moves; time ``(C + (S - 1) d) (alpha + M/S (beta + gamma))``, where the
root's degree is d = min(2, P - 1) and C(P) = max(C(small) + d - 1, C(large)) + 1 for its subtrees of floor(P/2) and
floor((P - 1)/2) nodes, C(1) = 0; ``alpha + M beta`` more where the result moves. Every rank but the last sends M; the
last sends M where the result moves.

Open MPI, ``coll_base_reduce.c``, ``in_order_binary``.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.tree_pace import preorder_binary_pace
from coppice.planners.algorithms.parts.tree_shapes import SEGMENTS
from coppice.planners.algorithms.parts.trees import preorder_binary
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def reduction(case: Case) -> Schedule:
    """To the last position, then to the root."""
    last, segments = case.size - 1, case.number("segments")
    moves = Moves(case, whole(case, segments))
    tree = preorder_binary(case.size)
    up = np.argsort(tree.child)
    parent, child, level = last - tree.parent[up], last - tree.child[up], tree.height - 1 - tree.level[up]
    for piece in range(segments):
        moves.add(level + piece, child, parent, piece, Op.REDUCE)
    if case.root != last:
        moves.add(tree.height + segments - 1, last, case.root, np.arange(segments))
    return moves.schedule(ordered=True)


def _cost(case: Case) -> Cost:
    segments = case.number("segments")
    cost = preorder_binary_pace(case.size).reduction(segments)
    if case.root == case.size - 1:
        return cost
    move = Chain(messages=1, sent=Fraction(1))
    chains = tuple(
        replace(chain, messages=chain.messages + move.messages, sent=chain.sent + move.sent)
        for chain in cost.chains
    )
    return replace(cost, steps=cost.steps + 1, chains=chains)


ALGORITHMS = (
    Algorithm(
        name="in-order-binary",
        collective=Collective.REDUCE,
        build=reduction,
        summary="a binary tree of intervals: keeps rank order for any root",
        source="Open MPI",
        cost=_cost,
        parameters={"segments": SEGMENTS},
    ),
)
