"""Broadcasts and reductions along a tree, in pieces that follow each other."""

from __future__ import annotations

import numpy as np

from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.trees import Tree
from coppice.schedule.pieces import in_pieces
from coppice.schedule.schedule import Op, Schedule

__all__ = ["tree_broadcast", "tree_reduction"]


def tree_broadcast(case: Case, tree: Tree, segments: int = 1) -> Schedule:
    """From the root down ``tree``, whose node v is the position v places after the root."""
    moves = Moves(case, whole(case))
    moves.add(tree.level, case.from_root(tree.parent), case.from_root(tree.child), 0)
    return in_pieces(moves.schedule(), segments)


def tree_reduction(case: Case, tree: Tree, segments: int = 1) -> Schedule:
    """Up ``tree`` to the root: the broadcast in reverse.

    A node adds those of its children that lie after the root first, nearest first, and then those before the root,
    nearest first. That keeps rank order in a star, and where subtrees are intervals and the root is position 0.
    """
    moves = Moves(case, whole(case))
    parent, child = case.from_root(tree.parent), case.from_root(tree.child)
    nearest = np.argsort(np.where(child > case.root, child - case.root, case.size + case.root - child))
    moves.add((tree.height - 1 - tree.level)[nearest], child[nearest], parent[nearest], 0, Op.REDUCE)
    ordered = tree.height <= 1 or (tree.contiguous and case.root == 0)
    return in_pieces(moves.schedule(ordered=ordered), segments)
