"""Cayley graphs of abelian groups: rings, complete and bipartite graphs, circulants, tori, hypercubes, Hamming graphs.

Rings:

    uniring(m)   N = m, d = 1, m - 1 steps         bandwidth-optimal
    biring(m)    N = m, d = 2, floor(m / 2) steps  bandwidth-optimal; Moore-optimal for m <= 5

Source: by definition. Each link carries one shard in every step; where m is even, the two links into a node share the
last shard.

Complete and complete bipartite graphs:

    complete(n)    N = n, d = n - 1, 1 step     Moore-optimal and bandwidth-optimal
    bipartite(d)   N = 2 d, d, 2 steps          Moore-optimal and bandwidth-optimal; step loads 1, (d - 1) / d
    crown(n)       N = 2 n, d = n - 1, 3 steps  bipartite(n) without a perfect matching: distance-regular

Source: by definition. A distance-regular graph has exactly c_t shortest ways of arrival for each of the k_t sources
at distance t, so that breadth-first broadcast balances k_t / d on every link.

Circulants, in which node x is linked with x + j modulo N for every jump j:

    circulant(N, j...)     links both ways; d = 2 for each jump, 1 for a jump of N / 2
    two_jump(N)            circulant(N, m, m + 1) with m = floor(sqrt((N - 2) / 2)), N >= 5, d = 4:
                           ceil((sqrt(2 N - 1) - 1) / 2) steps, the least of all circulants of degree 4
    dicirculant(N, j...)   links one way; d = number of jumps
                           dicirculant(d + 2, 1, .., d): 2 steps, loads 1, 1 / d, Moore- and bandwidth-optimal
    diamond                dicirculant(8, 1, 3): N = 8, d = 2, 3 steps, Moore- and bandwidth-optimal

Source: the optimal two-jump circulant and the directed circulants as in Efficient Direct-Connect Topologies
(arXiv 2202.03356). Its graph "Diamond" has the figures of the directed circulant that bears the name here. Figures are
computed from the arrivals at one node, not taken from formulas.

Tori and their like:

    torus(d1, d2...)   N = d1 d2 .., d = 2 for each size, 1 for a size of 2; sum of floor(di / 2) steps
    hypercube(n)       N = 2^n, d = n, n steps; step loads C(n, t) / n
    hamming(n, q)      N = q^n, d = n (q - 1), n steps: the product of n complete graphs of q nodes

Source: by definition. All of them are bandwidth-optimal under breadth-first broadcast, tori of unequal sizes too: they
are Cartesian products of rings and complete graphs (see :mod:`coppice.design.recipes.expansions` for the argument).
"""

from __future__ import annotations

from math import gcd, isqrt, prod

from coppice.design.families.family import Family, Size, at_least, between, optimal
from coppice.design.graph import MAX_NODES, Graph, cayley_graph, with_inverses
from coppice.errors import InputError


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


def two_jumps(n: int) -> tuple[int, int]:
    """Jumps of the optimal two-jump circulant of n nodes.

    >>> two_jumps(13), two_jumps(16)
    ((2, 3), (2, 3))
    """
    m = isqrt((n - 2) // 2)
    return m, m + 1


def _check_jumps(family: str, n: int, jumps: tuple[int, ...], most: int) -> None:
    at_least(family, "N", n, 2)
    if list(jumps) != sorted(set(jumps)) or jumps[0] < 1 or jumps[-1] > most:
        found = ", ".join(map(str, jumps[:16]))
        raise InputError(
            f"expected jumps of {family} that rise within 1 .. {most}, found {found}: sort them, each once."
        )
    if gcd(n, *jumps) > 1:
        raise InputError(
            f"expected jumps of {family} that reach every node, found the common divisor {gcd(n, *jumps)} with N: "
            "choose others."
        )


def _circulant_size(n: int, *jumps: int) -> Size:
    _check_jumps("circulant(N, j...)", n, jumps, n // 2)
    return Size(n, 2 * len(jumps) - (2 * jumps[-1] == n), bidirectional=True)


def _circulant(name: str, n: int, *jumps: int) -> Graph:
    return cayley_graph(name, [n], [[jump] for jump in with_inverses(n, jumps)])


def _two_jump_size(n: int) -> Size:
    at_least("two_jump(N)", "N", n, 5)
    return Size(n, 4, bidirectional=True)


def _two_jump(name: str, n: int) -> Graph:
    return _circulant(name, n, *two_jumps(n))


def _dicirculant_size(n: int, *jumps: int) -> Size:
    _check_jumps("dicirculant(N, j...)", n, jumps, n - 1)
    present = set(jumps) if n <= MAX_NODES else set()
    return Size(n, len(jumps), bidirectional=all(n - jump in present for jump in jumps))


def _dicirculant(name: str, n: int, *jumps: int) -> Graph:
    return cayley_graph(name, [n], [[jump] for jump in jumps])


def _diamond_size() -> Size:
    return Size(8, 2, bidirectional=False)


def _diamond(name: str) -> Graph:
    return _dicirculant(name, 8, 1, 3)


def _torus_size(*sizes: int) -> Size:
    between("torus(d...)", "number of sizes", len(sizes), 1, 32)
    for size in sizes:
        at_least("torus(d...)", "every size", size, 2)
    ranks = prod(sizes)
    degree = sum(1 if size == 2 else 2 for size in sizes)
    return optimal(ranks, degree, sum(size // 2 for size in sizes))


def _torus(name: str, *sizes: int) -> Graph:
    jumps = [
        [jump if other == axis else 0 for other in range(len(sizes))]
        for axis, size in enumerate(sizes)
        for jump in ((1,) if size == 2 else (1, -1))
    ]
    return cayley_graph(name, sizes, jumps)


def _hypercube_size(n: int) -> Size:
    between("hypercube(n)", "n", n, 1, 32)
    return optimal(2**n, n, n)


def _hypercube(name: str, n: int) -> Graph:
    return _torus(name, *[2] * n)


def _hamming_size(n: int, q: int) -> Size:
    between("hamming(n, q)", "n", n, 1, 32)
    at_least("hamming(n, q)", "q", q, 2)
    return optimal(q**n, n * (q - 1), n)


def _hamming(name: str, n: int, q: int) -> Graph:
    jumps = [
        [jump if other == axis else 0 for other in range(n)] for axis in range(n) for jump in range(1, q)
    ]
    return cayley_graph(name, [q] * n, jumps)


FAMILIES = (
    Family("uniring", ("m",), "ring in one direction", _uniring_size, _uniring),
    Family("biring", ("m",), "ring in both directions", _biring_size, _biring),
    Family("complete", ("n",), "every two nodes are linked", _complete_size, _complete),
    Family("bipartite", ("d",), "two sides of d nodes, all pairs across linked", _bipartite_size, _bipartite),
    Family("crown", ("n",), "two sides of n nodes, linked except with one partner", _crown_size, _crown),
    Family("circulant", ("N", "jump..."), "links both ways by each jump", _circulant_size, _circulant),
    Family("two_jump", ("N",), "optimal circulant of two jumps", _two_jump_size, _two_jump),
    Family("dicirculant", ("N", "jump..."), "links one way by each jump", _dicirculant_size, _dicirculant),
    Family("diamond", (), "8 nodes of degree 2, one way, 3 steps", _diamond_size, _diamond),
    Family("torus", ("size...",), "rings in every dimension", _torus_size, _torus),
    Family("hypercube", ("n",), "2^n nodes, linked where one bit differs", _hypercube_size, _hypercube),
    Family("hamming", ("n", "q"), "q^n nodes, linked where one digit differs", _hamming_size, _hamming),
)
