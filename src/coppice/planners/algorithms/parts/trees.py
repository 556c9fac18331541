"""Shapes of trees, with the root at 0 and every parent before its children.

``k_ary`` is level-strided, as in Open MPI: node v of level l has the children ``v + k^l, .., v + k k^l``, so that
sibling subtrees differ by one node at most. ``k_nomial`` clears the lowest digit of base k that is not 0 to find the
parent, so that a subtree is an interval. ``chains`` cuts the nodes after the root into runs. ``preorder_binary`` halves
the interval after each node. Where subtrees are intervals, a reduction to node 0 joins neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tree", "by_depth", "chains", "growing_k_nomial", "k_ary", "k_nomial", "preorder_binary"]


@dataclass(frozen=True, eq=False)
class Tree:
    """A rooted tree on nodes 0 .. P - 1, edge by edge.

    Attributes:
        parent: Upper end of each edge, in the order in which a broadcast serves them.
        child: Lower end; every node but 0 once.
        level: Step of the edge in a broadcast of one piece.
        contiguous: Every subtree is an interval of nodes, with those of siblings side by side.
    """

    parent: NDArray[np.int64]
    child: NDArray[np.int64]
    level: NDArray[np.int64]
    contiguous: bool = True

    @property
    def height(self) -> int:
        """Number of levels."""
        return int(self.level.max()) + 1 if len(self.level) else 0


def k_ary(size: int, radix: int) -> Tree:
    """The balanced tree with ``radix`` children a node; 1 is a chain, ``size - 1`` a star.

    Examples:
        >>> tree = k_ary(8, 2)
        >>> list(zip(tree.parent.tolist(), tree.child.tolist()))
        [(0, 1), (0, 2), (1, 3), (2, 4), (1, 5), (2, 6), (3, 7)]
    """
    first, width, level = 0, 1, 0
    edges = []
    while first + width < size:
        child = np.arange(first + width, min(size, first + width + width * radix))
        parent = first + (child - first) % width
        edges.append((parent, child, np.full(len(child), level)))
        first, width, level = first + width, width * radix, level + 1
    return _joined(edges, contiguous=radix == 1 or size - 1 <= radix)


def chains(size: int, fanout: int) -> Tree:
    """The root with ``fanout`` chains of nodes in a row; the first ones are longer where lengths differ.

    Examples:
        >>> chains(6, 2).parent.tolist()
        [0, 1, 2, 0, 4]
    """
    rest = size - 1
    if rest < 1:
        return _joined([], contiguous=True)
    count = min(fanout, rest)
    length, longer = divmod(rest, count)
    lengths = length + (np.arange(count) < longer)
    head = 1 + np.cumsum(lengths) - lengths
    child = np.arange(1, size)
    level = child - np.repeat(head, lengths)
    return Tree(np.where(level == 0, 0, child - 1), child, level)


def k_nomial(size: int, radix: int) -> Tree:
    """The k-nomial tree whose first edges reach farthest; radix 2 is binomial, as in MPICH.

    Examples:
        >>> tree = k_nomial(6, 2)
        >>> list(zip(tree.parent.tolist(), tree.child.tolist(), tree.level.tolist()))
        [(0, 4, 0), (0, 2, 1), (0, 1, 2), (2, 3, 2), (4, 5, 2)]
    """
    distances = _powers_below(size, radix)[::-1]
    edges = []
    for level, distance in enumerate(distances):
        parent = np.arange(0, size, distance * radix)
        for digit in range(radix - 1, 0, -1):
            child = parent + digit * distance
            inside = child < size
            edges.append((parent[inside], child[inside], np.full(int(inside.sum()), level)))
    return _joined(edges, contiguous=True)


def growing_k_nomial(size: int, radix: int) -> Tree:
    """The k-nomial tree whose first edges are the shortest: in level i, nodes below k^i serve those k^i away.

    Examples:
        >>> tree = growing_k_nomial(6, 2)
        >>> list(zip(tree.parent.tolist(), tree.child.tolist(), tree.level.tolist()))
        [(0, 1, 0), (0, 2, 1), (1, 3, 1), (0, 4, 2), (1, 5, 2)]
    """
    edges = []
    for level, distance in enumerate(_powers_below(size, radix)):
        child = np.arange(distance, min(size, distance * radix))
        edges.append((child % distance, child, np.full(len(child), level)))
    return _joined(edges, contiguous=size <= radix)


def preorder_binary(size: int) -> Tree:
    """The binary tree in which the nodes after each node are halved between its children, the nearer one's half first.

    Where the halves differ, the nearer child has the smaller one.

    Examples:
        >>> preorder_binary(6).parent.tolist()
        [0, 1, 0, 3, 3]
    """
    parent = np.zeros(max(size, 1), dtype=np.int64)
    level = np.zeros(max(size, 1), dtype=np.int64)
    todo = [(0, size, 0)]
    while todo:
        node, count, depth = todo.pop()
        larger, smaller = size_of_halves(count)
        for child, nodes in ((node + 1, smaller), (node + 1 + smaller, larger)):
            if nodes:
                parent[child], level[child] = node, depth
                todo.append((child, nodes, depth + 1))
    return Tree(parent[1:], np.arange(1, max(size, 1)), level[1:])


def size_of_halves(count: int) -> tuple[int, int]:
    """Sizes of the two subtrees of :func:`preorder_binary` below a node of a subtree of ``count`` nodes."""
    return count // 2, (count - 1) // 2


def by_depth(tree: Tree) -> Tree:
    """The same tree, where a node serves all its children in one step: an edge has the level of its parent's depth."""
    depth = np.zeros(len(tree.child) + 1, dtype=np.int64)
    for edge in np.argsort(tree.child).tolist():
        depth[tree.child[edge]] = depth[tree.parent[edge]] + 1
    return Tree(tree.parent, tree.child, depth[tree.parent], tree.contiguous)


def _powers_below(size: int, radix: int) -> list[int]:
    """1, radix, radix^2, .. while they are smaller than ``size``."""
    powers = []
    power = 1
    while power < size:
        powers.append(power)
        power *= radix
    return powers


def _joined(edges: Sequence[Sequence[NDArray[np.integer]]], *, contiguous: bool) -> Tree:
    columns = (
        [np.concatenate(part) for part in zip(*edges, strict=True)] if edges else [np.zeros(0, np.int64)] * 3
    )
    parent, child, level = (column.astype(np.int64) for column in columns)
    return Tree(parent, child, level, contiguous)
