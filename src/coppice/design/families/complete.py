"""Complete graphs and complete bipartite graphs.

    complete(n)    N = n, d = n - 1, 1 step     Moore-optimal and bandwidth-optimal
    bipartite(d)   N = 2 d, d, 2 steps          Moore-optimal and bandwidth-optimal; step loads 1, (d - 1) / d
    crown(n)       N = 2 n, d = n - 1, 3 steps  bipartite(n) without a perfect matching: distance-regular

Source: by definition. A distance-regular graph has exactly c_t shortest ways of arrival for each of the k_t sources
at distance t, so that breadth-first broadcast balances k_t / d on every link.
"""

from __future__ import annotations

from coppice.design.cayley import cayley_graph
from coppice.design.families.family import Family, Size, at_least, optimal
from coppice.design.graph import Graph

__all__ = ["FAMILIES"]


def _complete_size(n: int) -> Size:
    at_least("complete(n)", "n", n, 2)
    return optimal(n, n - 1, 1)


def _complete(name: str, n: int) -> Graph:
    return cayley_graph(name, [n], [[jump] for jump in range(1, n)])


def _bipartite_size(d: int) -> Size:
    at_least("bipartite(d)", "d", d, 2)
    return optimal(2 * d, d, 2)


def _bipartite(name: str, d: int) -> Graph:
    return cayley_graph(name, [2 * d], [[jump] for jump in range(1, 2 * d, 2)])


def _crown_size(n: int) -> Size:
    at_least("crown(n)", "n", n, 3)
    return optimal(2 * n, n - 1, 3)


def _crown(name: str, n: int) -> Graph:
    return cayley_graph(name, [2, n], [[1, jump] for jump in range(1, n)])


FAMILIES = (
    Family("complete", ("n",), "every two nodes are linked", _complete_size, _complete),
    Family("bipartite", ("d",), "two sides of d nodes, all pairs across linked", _bipartite_size, _bipartite),
    Family("crown", ("n",), "two sides of n nodes, linked except with one partner", _crown_size, _crown),
)
