"""The split binary tree: each half of the buffer goes down one half of a binary tree, then ranks swap halves in pairs.

Node v of the level-strided binary tree (:mod:`.trees`) is the position v places after the root. The root sends the
first half of the buffer to its first child and the second half to its second, each in S ``segments`` that follow each
other; odd nodes pass on the first half and even ones the second. Then nodes 2 i + 1 and 2 i + 2 swap what they have.
Where P is even, node P - 1 has no partner and gets the second half from the root (with P = 2 that is all there is).

Steps H + S, where H is the height; time ``(A + (S - 1) d) (alpha + M/(2 S) beta) + alpha + M/2 beta`` with the
root's degree d = min(2, P - 1) and A messages until a piece has reached all (:mod:`.tree_pace`); bytes of a rank up to
3/2 M (P = 2, 3 and 5: M).

Open MPI, ``coll_base_bcast.c``, ``split_bintree``.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.tree_pace import k_ary_pace
from coppice.planners.algorithms.parts.tree_shapes import SEGMENTS
from coppice.planners.algorithms.parts.trees import k_ary
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def broadcast(case: Case) -> Schedule:
    """Pieces 0 .. S - 1 are the first half, S .. 2 S - 1 the second."""
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


def _cost(case: Case) -> Cost:
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


ALGORITHMS = (
    Algorithm(
        name="split-binary",
        collective=Collective.BROADCAST,
        build=broadcast,
        summary="halves of the buffer go down the halves of a binary tree, then ranks swap halves in pairs",
        source="Open MPI",
        cost=_cost,
        parameters={"segments": SEGMENTS},
    ),
)
