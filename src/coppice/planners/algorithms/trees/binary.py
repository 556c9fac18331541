"""Two binary trees of Open MPI: a split broadcast, and an in-order reduction.

**Split binary tree.** Each half of the buffer goes down one half of a binary tree, then ranks swap halves in pairs.
Node v of the level-strided binary tree (:mod:`..parts.trees`) is the position v places after the root. The root sends
the first half of the buffer to its first child and the second half to its second, each in S ``segments`` that follow
each other; odd nodes pass on the first half and even ones the second. Then nodes 2 i + 1 and 2 i + 2 swap what they
have. Where P is even, node P - 1 has no partner and gets the second half from the root (with P = 2 that is all there
is).

Steps H + S, where H is the height; time ``(A + (S - 1) d) (alpha + M/(2 S) beta) + alpha + M/2 beta`` with the root's
degree d = min(2, P - 1) and A messages until a piece has reached all (:class:`..parts.trees.Pace`); bytes of a rank up
to 3/2 M (P = 2, 3 and 5: M).

Open MPI, ``coll_base_bcast.c``, ``split_bintree``.

**In-order binary tree.** A reduction that keeps rank order, for any root. The last position is the root of the tree;
the positions before a node are halved, the lower half with one more where they differ, and the last of each half is a
child (the preorder tree of :mod:`..parts.trees`, counted from the end). Every subtree is an interval that ends with its
own root, so neighbouring intervals are added. The buffer is cut into S ``segments``, each a step behind the one before;
where another position wants the result, the last position sends it there as one message.

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
from coppice.planners.algorithms.algorithm import SEGMENTS, Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.trees import k_ary, k_ary_pace, preorder_binary, preorder_binary_pace
from coppice.schedule.schedule import Op, Schedule


def split_binary(case: AlgorithmCase) -> Schedule:
    """Split binary broadcast: segments 0 .. S - 1 are the first half, S .. 2 S - 1 the second."""
    size, segments = case.size, case.number("segments")
    moves = Moves(case, whole(case, 2 * segments))
    tree = k_ary(size, 2)
    parent, child = case.from_root(tree.parent), case.from_root(tree.child)
    half = (tree.child - 1) % 2
    for piece in range(segments):
        moves.add(tree.level + piece, parent, child, half * segments + piece)
    swap = tree.height + segments - 1
    pieces = np.arange(segments)
    first = np.arange(1, size - 1, 2)[:, None]
    moves.add(swap, case.from_root(first), case.from_root(first + 1), pieces)
    moves.add(swap, case.from_root(first + 1), case.from_root(first), segments + pieces)
    if size % 2 == 0:
        moves.add(swap, case.root, case.from_root(size - 1), segments + pieces)
    return moves.schedule()


def _split_binary_cost(case: AlgorithmCase) -> Cost:
    size, segments = case.size, case.number("segments")
    if size == 1:
        return Cost(steps=0, sent=Fraction(0), chains=())
    pace = k_ary_pace(size, 2)
    first = pace.arrival + (segments - 1) * pace.degree
    alone = int(size % 2 == 0)
    return Cost(
        steps=pace.height + segments,
        sent=Fraction(max(pace.degree + alone, pace.inner + (size > 2)), 2),
        chains=(Chain(messages=first + 1, sent=Fraction(first, 2 * segments) + Fraction(1, 2)),),
    )


SPLIT = Algorithm(
    name="split-binary",
    collective=Collective.BROADCAST,
    build=split_binary,
    summary="halves of the buffer go down the halves of a binary tree, then ranks swap halves in pairs",
    source="Open MPI",
    cost=_split_binary_cost,
    parameters={"segments": SEGMENTS},
)


def in_order_binary(case: AlgorithmCase) -> Schedule:
    """In-order binary reduction to the last position, then to the root."""
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


def _in_order_binary_cost(case: AlgorithmCase) -> Cost:
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


IN_ORDER = Algorithm(
    name="in-order-binary",
    collective=Collective.REDUCE,
    build=in_order_binary,
    summary="a binary tree of intervals: keeps rank order for any root",
    source="Open MPI",
    cost=_in_order_binary_cost,
    parameters={"segments": SEGMENTS},
)
