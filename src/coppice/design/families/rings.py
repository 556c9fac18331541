"""Rings, in one direction and in both.

    uniring(m)   N = m, d = 1, m - 1 steps         bandwidth-optimal
    biring(m)    N = m, d = 2, floor(m / 2) steps  bandwidth-optimal; Moore-optimal for m <= 5

Source: by definition. Each link carries one shard in every step; where m is even, the two links into a node share the
last shard.
"""

from __future__ import annotations

from coppice.design.cayley import cayley_graph
from coppice.design.families.family import Family, Size, at_least, optimal
from coppice.design.graph import Graph

__all__ = ["FAMILIES"]


def _uniring_size(m: int) -> Size:
    at_least("uniring(m)", "m", m, 2)
    return optimal(m, 1, m - 1, bidirectional=m == 2)


def _uniring(name: str, m: int) -> Graph:
    return cayley_graph(name, [m], [[1]])


def _biring_size(m: int) -> Size:
    at_least("biring(m)", "m", m, 3, "complete(2) is a pair of nodes")
    return optimal(m, 2, m // 2)


def _biring(name: str, m: int) -> Graph:
    return cayley_graph(name, [m], [[1], [-1]])


FAMILIES = (
    Family("uniring", ("m",), "ring in one direction", _uniring_size, _uniring),
    Family("biring", ("m",), "ring in both directions", _biring_size, _biring),
)
