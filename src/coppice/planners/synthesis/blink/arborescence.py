"""The shortest spanning tree from a root in a directed graph (Y. J. Chu and T. H. Liu 1965, J. Edmonds 1967)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

from coppice.errors import UnreachableError

Length = TypeVar("Length", float, Fraction)


def shortest_arborescence(
    num_nodes: int, root: int, edges: Sequence[tuple[int, int]], lengths: Sequence[Length]
) -> list[int]:
    """The edges of a spanning tree from ``root`` whose lengths have the least sum.

    Every node takes its shortest edge in; a circle among these is drawn together into one node, where an edge in
    costs what it adds to the one that it replaces. Ties go to the edge that comes first.

    Args:
        num_nodes: Nodes are 0 .. num_nodes - 1.
        lengths: Length of each edge, 0 or more; whole numbers, floats or fractions.

    Returns:
        Numbers of the edges, ascending.

    Examples:
        >>> shortest_arborescence(3, 0, [(0, 1), (1, 2), (2, 1), (0, 2)], [5, 1, 1, 5])
        [0, 1]
    """
    best: list[int] = [-1] * num_nodes
    for number, (src, dst) in enumerate(edges):
        if dst != root and src != dst and (best[dst] < 0 or lengths[number] < lengths[best[dst]]):
            best[dst] = number
    for node in range(num_nodes):
        if node != root and best[node] < 0:
            raise UnreachableError(
                f"expected a spanning tree from node {root}, found that none of its edges leads to node {node}."
            )
    circle: list[int] = _circle([edges[each][0] if each >= 0 else -1 for each in best], root)
    if not circle:
        return sorted(each for each in best if each >= 0)
    inside = set(circle)
    drawn, names = [0] * num_nodes, 0
    for node in range(num_nodes):
        if node not in inside:
            drawn[node] = names
            names += 1
    for node in circle:
        drawn[node] = names
    outer = [e for e, (src, dst) in enumerate(edges) if drawn[src] != drawn[dst]]
    added = [lengths[e] - lengths[best[edges[e][1]]] if edges[e][1] in inside else lengths[e] for e in outer]
    chosen = shortest_arborescence(
        names + 1, drawn[root], [(drawn[edges[e][0]], drawn[edges[e][1]]) for e in outer], added
    )
    taken: list[int] = [outer[each] for each in chosen]
    entered: int = next(edges[e][1] for e in taken if edges[e][1] in inside)
    return sorted([*taken, *(best[node] for node in circle if node != entered)])


def _circle(parent: list[int], root: int) -> list[int]:
    """Nodes of a circle that ``parent`` leads round, or none."""
    seen = [-1] * len(parent)
    for start in range(len(parent)):
        node = start
        while node != root and seen[node] < 0:
            seen[node] = start
            node = parent[node]
        if node != root and seen[node] == start:
            found = [node]
            while parent[found[-1]] != node:
                found.append(parent[found[-1]])
            return found
    return []
