"""De Bruijn and Kautz graphs, generalized and rewired; all links are one-way.

    kautz(d, n)     N = d^n + d^(n-1), n steps: Moore-optimal; the line graph of the line graph .. of K_{d+1}.
                    Shortest paths are unique; bandwidth time d / N (1 + d + .. + d^(n-1))
    gkautz(d, m)    N = m, links x -> -(d x + a) mod m for a = 1 .. d: at most ceil(log_d m) steps for any m; those
                    that d + 1 does not divide have self-loops. Kautz graphs are the case m = d^n + d^(n-1)
    debruijn(d, n)  N = d^n, n steps: Moore-optimal, d self-loops; bandwidth time (d^n - 1) / (d - 1) d / N

Source: Imase and Itoh's generalized Kautz digraphs; de Bruijn and Kautz graphs by definition.

Rewired de Bruijn graphs, debruijn_mod(d, n), have some links aimed elsewhere, so that breadth-first broadcast is
bandwidth-optimal. A de Bruijn graph wastes its self-loops and spreads shards unevenly. With the graphs here, every node
hears from equally many others at each distance, and all its links carry equal loads. Adding one letter to all letters
of a word, modulo d, is an automorphism of them as of de Bruijn graphs; only the successors of the words that begin with
0 are listed.

    (2, 3)  N = 8,  4 steps,  6 of 16 links differ from those of debruijn(2, 3)
    (2, 4)  N = 16, 5 steps, 12 of 32
    (3, 2)  N = 9,  3 steps, 12 of 27
    (4, 2)  N = 16, 3 steps, 20 of 64

Source: sizes and steps as published for the modified de Bruijn graphs of "Efficient Direct-Connect Topologies for
Collective Communications"; these graphs were found by simulated annealing over links, with few changes preferred.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.design.families.family import Family, Size, at_least, between, optimal
from coppice.design.graph import MAX_LINKS, MAX_NODES, Graph
from coppice.errors import InputError


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


_SUCCESSORS = {
    (2, 3): ((1, 7), (2, 6), (4, 5), (4, 7)),
    (2, 4): ((7, 10), (2, 3), (4, 14), (6, 15), (5, 8), (9, 11), (12, 13), (14, 15)),
    (3, 2): ((1, 3, 4), (4, 5, 7), (3, 6, 8)),
    (4, 2): ((1, 2, 3, 15), (2, 4, 7, 11), (8, 10, 11, 15), (4, 12, 14, 15)),
}
"""Successors of the words 0 .. d^(n-1) - 1, those that begin with the letter 0, by (d, n)."""

_STEPS = {(2, 3): 4, (2, 4): 5, (3, 2): 3, (4, 2): 3}

REWIRED = tuple(_SUCCESSORS)
"""The (d, n) that there are."""


def _rewired_size(d: int, n: int) -> Size:
    if (d, n) not in _SUCCESSORS:
        raise InputError(
            f"expected (d, n) out of {', '.join(map(str, REWIRED))} in debruijn_mod(d, n), found ({d}, {n})."
        )
    return optimal(d**n, d, _STEPS[d, n], bidirectional=False)


def _plus(word: int, letter: int, d: int, n: int) -> int:
    """The word with ``letter`` added to each of its letters."""
    return sum((word // d**place + letter) % d * d**place for place in range(n))


def _rewired(name: str, d: int, n: int) -> Graph:
    links = [
        (_plus(word, letter, d, n), _plus(successor, letter, d, n))
        for word, successors in enumerate(_SUCCESSORS[d, n])
        for letter in range(d)
        for successor in successors
    ]
    return Graph.of(name, d**n, [src for src, _ in links], [dst for _, dst in links], degree=d)


FAMILIES = (
    Family(
        "kautz", ("d", "n"), "line graphs of line graphs of a complete graph, one way", _kautz_size, _kautz
    ),
    Family("gkautz", ("d", "m"), "generalized Kautz graph of any size", _gkautz_size, _gkautz),
    Family("debruijn", ("d", "n"), "d^n words, linked where they overlap", _debruijn_size, _debruijn),
    Family(
        "debruijn_mod",
        ("d", "n"),
        "de Bruijn graph rewired to be bandwidth-optimal: (2, 3), (2, 4), (3, 2), (4, 2)",
        _rewired_size,
        _rewired,
    ),
)
