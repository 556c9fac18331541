"""Two complementary binary trees over P positions (double binary tree).

The first tree joins x > 0, whose lowest one bit is b, to ``(x xor b) or 2b``, and to ``x xor b`` where that is beyond
the last position. Odd positions are leaves. The second is the same tree on other names, so that the roles of leaf and
inner vertex change places: the mirror image for even P, shifted by one for odd P.
"""

from __future__ import annotations


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
