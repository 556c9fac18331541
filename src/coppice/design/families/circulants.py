"""Circulants: node x is linked with x + j modulo N for every jump j.

    circulant(N, j...)     links both ways; d = 2 for each jump, 1 for a jump of N / 2
    two_jump(N)            circulant(N, m, m + 1) with m = floor(sqrt((N - 2) / 2)), N >= 5, d = 4:
                           ceil((sqrt(2 N - 1) - 1) / 2) steps, the least of all circulants of degree 4
    dicirculant(N, j...)   links one way; d = number of jumps
                           dicirculant(d + 2, 1, .., d): 2 steps, loads 1, 1 / d, Moore- and bandwidth-optimal
    diamond                dicirculant(8, 1, 3): N = 8, d = 2, 3 steps, Moore- and bandwidth-optimal

Source: the optimal two-jump circulant and the directed circulants as in Efficient Direct-Connect Topologies
(arXiv 2202.03356). Its graph "Diamond" has the figures of the directed circulant that bears the name here. Figures are
computed from the arrivals at one node, not taken from formulas.
"""

from __future__ import annotations

from math import gcd, isqrt

from coppice.design.cayley import cayley_graph, with_inverses
from coppice.design.families.family import Family, Size, at_least
from coppice.design.graph import MAX_NODES, Graph
from coppice.errors import InputError

__all__ = ["FAMILIES", "two_jumps"]


def two_jumps(n: int) -> tuple[int, int]:
    """The jumps of the optimal two-jump circulant of n nodes.

    >>> two_jumps(13), two_jumps(16)
    ((2, 3), (2, 3))
    """
    m = isqrt((n - 2) // 2)
    return m, m + 1


def _check_jumps(family: str, n: int, jumps: tuple[int, ...], most: int) -> None:
    at_least(family, "N", n, 2)
    if list(jumps) != sorted(set(jumps)) or jumps[0] < 1 or jumps[-1] > most:
        found = ", ".join(map(str, jumps[:16]))
        msg = f"expected jumps of {family} that rise within 1 .. {most}, found {found}: sort them, each once."
        raise InputError(msg)
    if gcd(n, *jumps) > 1:
        msg = (
            f"expected jumps of {family} that reach every node, found the common divisor {gcd(n, *jumps)} with N: "
            "choose others."
        )
        raise InputError(msg)


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


FAMILIES = (
    Family("circulant", ("N", "jump..."), "links both ways by each jump", _circulant_size, _circulant),
    Family("two_jump", ("N",), "optimal circulant of two jumps", _two_jump_size, _two_jump),
    Family("dicirculant", ("N", "jump..."), "links one way by each jump", _dicirculant_size, _dicirculant),
    Family("diamond", (), "8 nodes of degree 2, one way, 3 steps", _diamond_size, _diamond),
)
