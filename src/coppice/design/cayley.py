"""Cayley graphs of abelian groups: every node x has links to x + s for the same set of jumps s.

Translations are automorphisms that map every node to every other one, so that what one node receives decides the
schedule of all. Rings, circulants, tori, hypercubes, Hamming graphs and complete (bipartite) graphs are of this kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from coppice.design.graph import Graph

__all__ = ["cayley_graph", "digits", "translated", "with_inverses"]


def cayley_graph(name: str, orders: Sequence[int], jumps: Iterable[Sequence[int]]) -> Graph:
    """The Cayley graph of ``Z_n1 x Z_n2 x ...`` with the given jumps, repeated ones as parallel links.

    Args:
        name: Name of the graph.
        orders: n1, n2, ...
        jumps: One digit for each factor, taken modulo its order.

    Examples:
        >>> cayley_graph("square", [4], [[1], [-1]]).dst.tolist()
        [1, 3, 0, 2, 1, 3, 0, 2]
    """
    size = tuple(orders)
    nodes = prod(size)
    steps = np.array([list(jump) for jump in jumps], dtype=np.int64).reshape(-1, len(size))
    place = np.array([prod(size[axis + 1 :]) for axis in range(len(size))], dtype=np.int64)
    heads = (digits(np.arange(nodes), size)[:, None, :] + steps[None, :, :]) % np.array(size) @ place
    return Graph.of(name, nodes, np.repeat(np.arange(nodes), len(steps)), heads.ravel(), orders=size)


def with_inverses(order: int, jumps: Iterable[int]) -> list[int]:
    """Jumps and their inverses in ``Z_order``, each once."""
    return sorted({sign * jump % order for jump in jumps for sign in (1, -1)})


def digits(element: NDArray[np.integer], orders: Sequence[int]) -> NDArray[np.int64]:
    """Digits of group elements in mixed radix, along a new last axis."""
    rest = np.asarray(element, dtype=np.int64)
    columns = []
    for order in reversed(orders):
        columns.append(rest % order)
        rest = rest // order
    return np.stack(columns[::-1], axis=-1) if columns else np.zeros((*rest.shape, 0), dtype=np.int64)


def translated(graph: Graph) -> NDArray[np.int32]:
    """``table[x, v]``: the image of node v under element x of the known group of automorphisms.

    Examples:
        >>> translated(cayley_graph("triangle", [3], [[1], [2]])).tolist()
        [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    """
    orders = graph.orders
    elements = np.arange(prod(orders), dtype=np.int32)
    total = np.zeros((len(elements), len(elements)), dtype=np.int32)
    unit = 1
    for order in reversed(orders):
        digit = elements // unit % order
        total += (digit[:, None] + digit[None, :]) % np.int32(order) * np.int32(unit)
        unit *= order
    if graph.block == 1:
        return total
    inner = np.arange(graph.block, dtype=np.int32)
    return (total[:, :, None] * np.int32(graph.block) + inner).reshape(len(elements), graph.num_nodes)
