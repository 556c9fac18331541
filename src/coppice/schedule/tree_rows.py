"""How the edges of a forest hang together, for whole columns at once.

Every edge has a *child*, the vertex farther from the root (the receiver in a broadcast tree, the sender in a
reduce tree), and a *parent*. Each vertex but the root is the child of exactly one edge, so the edge above the
parent is unique: its row is the *parent row*. Chains of parent rows are followed by pointer doubling, which
takes log2(height) passes over the columns instead of one step per hop.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.schedule.forest import Forest, Phase

__all__ = ["NO_PARENT", "ROOT_PARENT", "children", "parent_rows", "parents", "sums_to_root", "tree_blocks"]

ROOT_PARENT = -1
"""Parent row of an edge at the root."""
NO_PARENT = -2
"""Parent row of an edge whose parent is neither the root nor the child of any edge of the tree."""

_BLOCK_CELLS = 2**22

_Number = TypeVar("_Number", np.int64, np.float64)


def children(forest: Forest) -> NDArray[np.int32]:
    """Child of each edge: the vertex farther from the root."""
    return np.where(_broadcasts(forest), forest.edge_dst, forest.edge_src).astype(np.int32, copy=False)


def parents(forest: Forest) -> NDArray[np.int32]:
    """Parent of each edge: the vertex nearer to the root."""
    return np.where(_broadcasts(forest), forest.edge_src, forest.edge_dst).astype(np.int32, copy=False)


def _broadcasts(forest: Forest) -> NDArray[np.bool_]:
    return np.repeat(forest.tree_phase == Phase.BROADCAST, np.diff(forest.tree_start))


def tree_blocks(forest: Forest) -> list[tuple[int, int]]:
    """Ranges of trees so small that a table (tree, node) of one range stays within some tens of MiB."""
    step = max(1, _BLOCK_CELLS // max(1, forest.topology.num_nodes))
    return [(low, min(low + step, forest.num_trees)) for low in range(0, forest.num_trees, step)]


def parent_rows(forest: Forest) -> NDArray[np.int64]:
    """Row of the edge above each edge, `ROOT_PARENT` at the root, `NO_PARENT` where the parent has none.

    Where a vertex is the child of several edges (the forest is then wrong) the last of them counts.
    """
    num_nodes = forest.topology.num_nodes
    child, parent = children(forest), parents(forest)
    above = np.empty(forest.num_edges, dtype=np.int64)
    for low, high in tree_blocks(forest):
        rows = slice(int(forest.tree_start[low]), int(forest.tree_start[high]))
        base = (forest.edge_tree[rows].astype(np.int64) - low) * num_nodes
        row_of = np.full((high - low) * num_nodes, NO_PARENT, dtype=np.int64)
        row_of[base + child[rows]] = np.arange(rows.start, rows.stop)
        row_of[np.arange(high - low) * num_nodes + forest.tree_root[low:high]] = ROOT_PARENT
        above[rows] = row_of[base + parent[rows]]
    return above


def sums_to_root(parent_row: NDArray[np.int64], value: NDArray[_Number]) -> NDArray[_Number]:
    """For each edge the sum of ``value`` over the edges from the root down to it, itself included.

    Raises:
        InputError: If an edge does not lead to the root (the forest is not one of trees).

    Examples:
        >>> sums_to_root(np.array([-1, 0, 1]), np.array([1, 1, 1]))
        array([1, 2, 3])
    """
    total, pointer = value.copy(), parent_row.copy()
    active = np.flatnonzero(pointer >= 0)
    for _ in range(len(value).bit_length() + 1):
        if not len(active):
            break
        ahead = pointer[active]
        total[active] += total[ahead]
        pointer[active] = pointer[ahead]
        active = active[pointer[active] >= 0]
    if len(active) or (pointer == NO_PARENT).any():
        msg = "expected trees, found an edge that does not lead to the root: verify the forest first."
        raise InputError(msg)
    return total
