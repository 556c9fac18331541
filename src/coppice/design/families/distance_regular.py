"""Distance-regular graphs that are no Cayley graphs of abelian groups, or are better known by other names.

    octahedron         N = 6, d = 4, 2 steps        circulant(6, 1, 2)
    petersen           N = 10, d = 3, 2 steps       odd(3)
    petersen_edges     N = 15, d = 4, 3 steps       edges of the Petersen graph, linked where they meet
    odd(k)             N = C(2k-1, k-1), d = k, k - 1 steps: sets of k - 1 out of 2 k - 1, linked where disjoint
    doubled_odd(k)     N = 2 C(2k-1, k-1), d = k, 2 k - 1 steps: sets of k - 1 and of k, linked by inclusion

All are bandwidth-optimal: a source at distance t arrives over exactly c_t links of a node, whichever the source, so
that breadth-first broadcast balances the k_t sources over d links. petersen, odd(k) and petersen_edges for their size
have few steps; petersen is Moore-optimal.

Source: Brouwer, Cohen and Neumaier, Distance-Regular Graphs, by definition of the graphs.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

from coppice.design.cayley import cayley_graph
from coppice.design.families.family import Family, Size, between, optimal
from coppice.design.graph import Graph

__all__ = ["FAMILIES", "edges_of", "two_way"]


def two_way(name: str, num_nodes: int, pairs: list[tuple[int, int]]) -> Graph:
    """The graph with a link each way between every pair."""
    src = [a for a, _ in pairs] + [b for _, b in pairs]
    dst = [b for _, b in pairs] + [a for a, _ in pairs]
    return Graph.of(name, num_nodes, src, dst)


def edges_of(name: str, num_nodes: int, pairs: list[tuple[int, int]]) -> Graph:
    """The graph whose nodes are the pairs, linked where they share an end."""
    at: list[list[int]] = [[] for _ in range(num_nodes)]
    for edge, ends in enumerate(pairs):
        for v in ends:
            at[v].append(edge)
    return two_way(name, len(pairs), [pair for edges in at for pair in combinations(edges, 2)])


def _octahedron(name: str) -> Graph:
    return cayley_graph(name, [6], [[jump] for jump in (1, 2, 4, 5)])


def _odd_pairs(k: int) -> list[tuple[int, int]]:
    sets = [sum(1 << i for i in chosen) for chosen in combinations(range(2 * k - 1), k - 1)]
    place = {members: number for number, members in enumerate(sets)}
    everything = (1 << (2 * k - 1)) - 1
    left_out = [
        (a, everything & ~members & ~(1 << i)) for a, members in enumerate(sets) for i in range(2 * k - 1)
    ]
    return [(a, place[others]) for a, others in left_out if a < place.get(others, -1)]


def _odd_size(k: int) -> Size:
    between("odd(k)", "k", k, 2, 16)
    return optimal(comb(2 * k - 1, k - 1), k, k - 1)


def _odd(name: str, k: int) -> Graph:
    return two_way(name, comb(2 * k - 1, k - 1), _odd_pairs(k))


def _doubled_odd_size(k: int) -> Size:
    between("doubled_odd(k)", "k", k, 2, 16)
    return optimal(2 * comb(2 * k - 1, k - 1), k, 2 * k - 1)


def _doubled_odd(name: str, k: int) -> Graph:
    half = comb(2 * k - 1, k - 1)
    pairs = _odd_pairs(k)
    return two_way(name, 2 * half, [(a, half + b) for a, b in pairs] + [(b, half + a) for a, b in pairs])


def _petersen_edges(name: str) -> Graph:
    return edges_of(name, 10, _odd_pairs(3))


FAMILIES = (
    Family("octahedron", (), "6 nodes, each linked with all but one", lambda: optimal(6, 4, 2), _octahedron),
    Family(
        "petersen", (), "10 nodes of degree 3, 2 steps", lambda: optimal(10, 3, 2), lambda name: _odd(name, 3)
    ),
    Family("petersen_edges", (), "15 nodes of degree 4, 3 steps", lambda: optimal(15, 4, 3), _petersen_edges),
    Family("odd", ("k",), "sets of k - 1 out of 2 k - 1, linked where disjoint", _odd_size, _odd),
    Family(
        "doubled_odd",
        ("k",),
        "sets of k - 1 and k out of 2 k - 1, by inclusion",
        _doubled_odd_size,
        _doubled_odd,
    ),
)
