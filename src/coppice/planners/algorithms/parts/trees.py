"""Tree shapes, rooted at 0 with parents before children, and their costs.

``k_ary`` is level-strided, as in Open MPI: node v of level l has the children ``v + k^l, .., v + k k^l``, so that
sibling subtrees differ by one node at most. ``k_nomial`` clears the lowest digit of base k that is not 0 to find the
parent, so that a subtree is an interval. ``chains`` cuts the nodes after the root into runs. ``preorder_binary`` halves
the interval after each node. Where subtrees are intervals, a reduction to node 0 joins neighbours.

A :class:`Pace` says exactly how fast a tree works with one port: counts of equal messages, found from sizes and not
from edges. A node serves its children one after the other. With S pieces, each a step behind the one before, the root
serves ``degree`` children for every piece, and no node has more, so that a broadcast takes ``arrival + (S - 1) degree``
messages and a reduction ``completion + (S - 1) degree``: the first piece runs through the whole tree, and every further
piece costs the root one more round of its children. A node that adds takes whichever child is ready, so ``completion``
does not depend on the order of the children.

Two complementary binary trees over P positions (double binary tree). The first tree joins x > 0, whose lowest one bit
is b, to ``(x xor b) or 2b``, and to ``x xor b`` where that is beyond the last position. Odd positions are leaves. The
second is the same tree on other names, so that the roles of leaf and inner vertex change places: the mirror image for
even P, shifted by one for odd P.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.planners.algorithms.parts.cost import Cost
from coppice.rows import positions


@dataclass(frozen=True, eq=False, repr=False)
class PositionTree(Brief):
    """Rooted tree on nodes 0 .. P - 1, as edges."""

    parent: NDArray[np.int64]  # Upper end of each edge, in the order in which a broadcast serves them
    child: NDArray[np.int64]  # Lower end; every node but 0 once
    level: NDArray[np.int64]  # Step of the edge in a broadcast of one piece
    contiguous: bool = True  # Every subtree is an interval of nodes, with those of siblings side by side

    @property
    def height(self) -> int:
        """Number of levels."""
        return int(self.level.max()) + 1 if len(self.level) else 0


def k_ary(size: int, radix: int) -> PositionTree:
    """Balanced tree with ``radix`` children per node; 1 is a chain, ``size - 1`` a star.

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


def chains(size: int, fanout: int) -> PositionTree:
    """Root with ``fanout`` chains; the first ones are longer where lengths differ.

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
    child = np.arange(1, size)
    level = positions(lengths)
    return PositionTree(np.where(level == 0, 0, child - 1), child, level)


def k_nomial(size: int, radix: int) -> PositionTree:
    """K-nomial tree with the longest edges first; radix 2 is binomial, as in MPICH.

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


def growing_k_nomial(size: int, radix: int) -> PositionTree:
    """K-nomial tree with the shortest edges first: in level i, nodes below k^i send k^i away.

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


def preorder_binary(size: int) -> PositionTree:
    """Binary tree in preorder: the nodes after each are halved between its children, the nearer half first.

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
    return PositionTree(parent[1:], np.arange(1, max(size, 1)), level[1:])


def size_of_halves(count: int) -> tuple[int, int]:
    """Sizes of the two subtrees in :func:`preorder_binary` of a subtree of ``count`` nodes."""
    return count // 2, (count - 1) // 2


def by_depth(tree: PositionTree) -> PositionTree:
    """The same tree with all children of a node served in one step: edges get the depth of the parent."""
    depth = np.zeros(len(tree.child) + 1, dtype=np.int64)
    for edge in np.argsort(tree.child).tolist():
        depth[tree.child[edge]] = depth[tree.parent[edge]] + 1
    return PositionTree(tree.parent, tree.child, depth[tree.parent], tree.contiguous)


def _powers_below(size: int, radix: int) -> list[int]:
    """1, radix, radix^2, .. while they are smaller than ``size``."""
    powers = []
    power = 1
    while power < size:
        powers.append(power)
        power *= radix
    return powers


def _joined(edges: Sequence[Sequence[NDArray[np.integer]]], *, contiguous: bool) -> PositionTree:
    columns = (
        [np.concatenate(part) for part in zip(*edges, strict=True)] if edges else [np.zeros(0, np.int64)] * 3
    )
    parent, child, level = (column.astype(np.int64) for column in columns)
    return PositionTree(parent, child, level, contiguous)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Cost parameters of a tree."""

    height: int = 0  # Levels
    degree: int = 0  # Children of the root; no node has more
    inner: int = 0  # Most children of any other node
    arrival: int = 0  # Messages, one after the other, until the last node has one piece from the root
    completion: int = 0  # Messages, one after the other, until the root has added one piece of all

    def broadcast(self, segments: int = 1) -> Cost:
        """Cost of a broadcast in ``segments`` segments."""
        return self._cost(self.arrival, segments, Fraction(self.degree), adds=False)

    def reduction(self, segments: int = 1) -> Cost:
        """Cost of a reduction in ``segments`` segments."""
        return self._cost(self.completion, segments, Fraction(min(self.degree, 1)), adds=True)

    def _cost(self, first: int, segments: int, sent: Fraction, *, adds: bool) -> Cost:
        messages = first + (segments - 1) * self.degree
        moved = Fraction(messages, segments)
        return Cost.of_one_chain(
            steps=self.height + segments - 1, sent=sent, messages=messages, moved=moved, reduced=moved * adds
        )


@cache
def k_ary_pace(size: int, radix: int) -> Pace:
    """Cost of :func:`k_ary` for a radix of 2 or more, or a radix of 1 and few nodes.

    Examples:
        >>> k_ary_pace(7, 2)
        Pace(height=2, degree=2, inner=2, arrival=4, completion=4)
    """
    if size <= 1:
        return Pace()
    # The first `more` children of the root have subtrees of one node more than the others.
    nodes, more = divmod(size - 1, radix)
    small = k_ary_pace(nodes, radix)
    large = k_ary_pace(nodes + 1, radix) if more else small
    equal = radix - more if nodes else 0
    arrival = max(more + large.arrival if more else 0, more + equal + small.arrival)
    completion = small.completion + equal
    if more:
        completion = max(completion, large.completion) + more
    return Pace(
        height=1 + large.height,
        degree=more + equal,
        inner=large.degree,
        arrival=arrival,
        completion=completion,
    )


def chains_pace(size: int, fanout: int) -> Pace:
    """Cost of :func:`chains`.

    Examples:
        >>> chains_pace(6, 2)
        Pace(height=3, degree=2, inner=1, arrival=3, completion=3)
    """
    if size <= 1:
        return Pace()
    count = min(fanout, size - 1)
    length, longer = divmod(size - 1, count)
    slowest = max(length + longer, length - 1 + count)
    height = length + bool(longer)
    return Pace(height=height, degree=count, inner=int(height > 1), arrival=slowest, completion=slowest)


def k_nomial_pace(size: int, radix: int) -> Pace:
    """Cost of :func:`k_nomial`, whose root is busy throughout.

    :func:`growing_k_nomial` differs in ``inner`` only.

    Examples:
        >>> k_nomial_pace(8, 2)
        Pace(height=3, degree=3, inner=2, arrival=3, completion=3)
    """
    if size <= 1:
        return Pace()
    height, reach = 1, radix
    while reach < size:
        height, reach = height + 1, reach * radix
    reach //= radix
    degree = (radix - 1) * (height - 1) + -(-size // reach) - 1
    inner = max(k_nomial_pace(min(reach, size - reach), radix).degree, (radix - 1) * (height - 2))
    return Pace(height=height, degree=degree, inner=inner, arrival=degree, completion=degree)


def k_nomial_by_depth_pace(size: int, radix: int) -> Pace:
    """Cost of :func:`k_nomial` with all children served in one step.

    The deepest node has the most digits that are not 0; the smallest number with d of them is d ones.

    Examples:
        >>> k_nomial_by_depth_pace(9, 2)
        Pace(height=3, degree=4, inner=2, arrival=4, completion=4)
    """
    pace = k_nomial_pace(size, radix)
    ones = (radix**pace.height - 1) // (radix - 1)
    return replace(pace, height=pace.height - (ones >= size))


@cache
def preorder_binary_pace(size: int) -> Pace:
    """Cost of :func:`preorder_binary`.

    Examples:
        >>> preorder_binary_pace(4)
        Pace(height=2, degree=2, inner=1, arrival=3, completion=2)
    """
    if size <= 1:
        return Pace()
    large, small = (preorder_binary_pace(nodes) for nodes in size_of_halves(size))
    degree = 1 + (size > 2)
    completion = max(small.completion + degree - 1, large.completion) + 1
    arrival = max(1 + small.arrival, degree + large.arrival)
    return Pace(
        height=1 + large.height, degree=degree, inner=large.degree, arrival=arrival, completion=completion
    )


def binary_tree(size: int) -> list[int]:
    """Parent of every position, -1 for position 0, the root.

    Examples:
        >>> binary_tree(8)
        [-1, 2, 4, 2, 0, 6, 4, 6]
    """
    parents = [-1]
    for x in range(1, size):
        low = x & -x
        up = (x ^ low) | (low << 1)
        parents.append(up if up < size else x ^ low)
    return parents


def pair_of_trees(size: int) -> tuple[list[int], list[int]]:
    """Parents in both trees; the second root is P - 1 for even P, else 1 (0 if P is 1).

    Examples:
        >>> pair_of_trees(7)
        ([-1, 2, 4, 2, 0, 6, 4], [5, -1, 3, 5, 3, 1, 0])
    """
    first = binary_tree(size)
    name = [size - 1 - x if size % 2 == 0 else (x + 1) % size for x in range(size)]
    return first, _renamed(first, name)


def rooted_pair(size: int) -> tuple[list[int], list[int]]:
    """Parents in two complementary trees rooted at position 0.

    The other positions change roles: by a shift for even P, by a mirror for odd P.

    Examples:
        >>> rooted_pair(6)
        ([-1, 2, 4, 2, 0, 4], [-1, 5, 3, 5, 3, 0])
    """
    first = binary_tree(size)
    rest = size - 1
    name = [0, *(x % rest + 1 if size % 2 == 0 else size - x for x in range(1, size))]
    return first, _renamed(first, name)


def _renamed(parents: list[int], name: list[int]) -> list[int]:
    """The tree in which ``name[x]`` stands where x stood."""
    renamed = [-1] * len(parents)
    for x, parent in enumerate(parents):
        renamed[name[x]] = -1 if parent < 0 else name[parent]
    return renamed


def depths(parents: list[int]) -> list[int]:
    """Edges from the root to every vertex.

    Examples:
        >>> depths([-1, 2, 4, 2, 0, 6, 4, 6])
        [0, 3, 2, 3, 1, 3, 2, 3]
    """
    found = [-1] * len(parents)
    for vertex in range(len(parents)):
        way = []
        while found[vertex] < 0 and parents[vertex] >= 0:
            way.append(vertex)
            vertex = parents[vertex]
        above = max(found[vertex], 0)
        found[vertex] = above
        for below in reversed(way):
            above += 1
            found[below] = above
    return found


def two_colours(trees: tuple[list[int], ...]) -> list[list[int]]:
    """Colour the tree edges with 0 and 1, so that edges with one sender, or one receiver, differ.

    A vertex sends to at most two children in all trees together and receives in at most two trees, so edges that share
    an end form paths and cycles of even length, along which colours alternate. Edges near a root choose first.

    Returns:
        ``colour[t][v]`` of the edge to v from its parent in tree t; -1 at roots.

    Examples:
        >>> two_colours(([-1, 0, 0], [2, 2, -1]))
        [[-1, 0, 1], [0, 1, -1]]
    """
    colour = [[-1] * len(parents) for parents in trees]
    ends: dict[tuple[str, int], list[tuple[int, int]]] = {}
    edges = [
        (tree, v) for tree, parents in enumerate(trees) for v, parent in enumerate(parents) if parent >= 0
    ]
    for tree, v in edges:
        ends.setdefault(("sender", trees[tree][v]), []).append((tree, v))
        ends.setdefault(("receiver", v), []).append((tree, v))
    depth = [depths(parents) for parents in trees]
    for start in sorted(edges, key=lambda edge: (depth[edge[0]][edge[1]], edge)):
        if colour[start[0]][start[1]] >= 0:
            continue
        todo = [(start, 0)]
        while todo:
            (tree, v), wanted = todo.pop()
            if colour[tree][v] >= 0:
                continue
            colour[tree][v] = wanted
            for end in (("sender", trees[tree][v]), ("receiver", v)):
                todo += [(other, 1 - wanted) for other in ends[end] if other != (tree, v)]
    return colour
