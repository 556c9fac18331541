"""Kautz, generalized Kautz and de Bruijn graphs, all in one direction.

    kautz(d, n)     N = d^n + d^(n-1), n steps: Moore-optimal; the line graph of the line graph .. of K_{d+1}.
                    Shortest paths are unique; bandwidth time d / N (1 + d + .. + d^(n-1))
    gkautz(d, m)    N = m, links x -> -(d x + a) mod m for a = 1 .. d: at most ceil(log_d m) steps for any m; those
                    that d + 1 does not divide have self-loops. Kautz graphs are the case m = d^n + d^(n-1)
    debruijn(d, n)  N = d^n, n steps: Moore-optimal, d self-loops; bandwidth time (d^n - 1) / (d - 1) d / N

Source: Imase and Itoh's generalized Kautz digraphs; de Bruijn and Kautz graphs by definition.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.design.families.family import Family, Size, at_least, between
from coppice.design.graph import MAX_LINKS, MAX_NODES, Graph

__all__ = ["FAMILIES"]


def _geometric(d: int, n: int) -> int:
    """1 + d + .. + d^(n-1)."""
    return sum(d**power for power in range(n))


def _kautz_size(d: int, n: int) -> Size:
    between("kautz(d, n)", "d", d, 2, MAX_NODES)
    between("kautz(d, n)", "n", n, 1, 32)
    ranks = d**n + d ** (n - 1)
    return Size(ranks, d, bidirectional=n == 1, steps=n, bandwidth_time=Fraction(d * _geometric(d, n), ranks))


def _kautz(name: str, d: int, n: int) -> Graph:
    return _gkautz(name, d, d**n + d ** (n - 1))


def _gkautz_size(d: int, m: int) -> Size:
    between("gkautz(d, m)", "d", d, 2, MAX_NODES)
    at_least("gkautz(d, m)", "m", m, 2)
    # Node 0 hears back from -2 only if 2 d - b is a multiple of m for some b = 1 .. d.
    both_ways = m < 2 * d and m * d <= MAX_LINKS and _gkautz("", d, m).bidirectional
    # x is its own successor if (d + 1) x = -a; links to x and from it coincide only if there are more than nodes.
    return Size(m, d, bidirectional=both_ways, simple=m >= d and m % (d + 1) == 0)


def _gkautz(name: str, d: int, m: int) -> Graph:
    x = np.arange(m)[:, None]
    return Graph.of(
        name, m, np.repeat(np.arange(m), d), (-(d * x + np.arange(1, d + 1)) % m).ravel(), degree=d
    )


def _debruijn_size(d: int, n: int) -> Size:
    between("debruijn(d, n)", "d", d, 2, MAX_NODES)
    between("debruijn(d, n)", "n", n, 1, 32)
    return Size(d**n, d, bidirectional=n == 1, simple=False)


def _debruijn(name: str, d: int, n: int) -> Graph:
    x = np.arange(d**n)[:, None]
    return Graph.of(
        name, d**n, np.repeat(np.arange(d**n), d), ((d * x + np.arange(d)) % d**n).ravel(), degree=d
    )


FAMILIES = (
    Family(
        "kautz", ("d", "n"), "line graphs of line graphs of a complete graph, one way", _kautz_size, _kautz
    ),
    Family("gkautz", ("d", "m"), "generalized Kautz graph of any size", _gkautz_size, _gkautz),
    Family("debruijn", ("d", "n"), "d^n words, linked where they overlap", _debruijn_size, _debruijn),
)
