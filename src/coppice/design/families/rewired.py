"""De Bruijn graphs with some links aimed elsewhere, so that breadth-first broadcast is bandwidth-optimal.

A de Bruijn graph wastes its self-loops and spreads shards unevenly. With the graphs here, every node hears from equally
many others at each distance, and all its links carry equal loads. Adding one letter to all letters of a word, modulo
d, is an automorphism of them as of de Bruijn graphs; only the successors of the words that begin with 0 are listed.

    (2, 3)  N = 8,  4 steps,  6 of 16 links differ from those of debruijn(2, 3)
    (2, 4)  N = 16, 5 steps, 12 of 32
    (3, 2)  N = 9,  3 steps, 12 of 27
    (4, 2)  N = 16, 3 steps, 20 of 64

Source: sizes and steps as published for the modified de Bruijn graphs of "Efficient Direct-Connect Topologies for
Collective Communications"; these graphs were found by simulated annealing over links, with few changes preferred.
"""

from __future__ import annotations

from coppice.design.families.family import Family, Size, optimal
from coppice.design.graph import Graph
from coppice.errors import InputError

__all__ = ["FAMILIES", "REWIRED"]

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


def _size(d: int, n: int) -> Size:
    if (d, n) not in _SUCCESSORS:
        msg = (
            f"expected (d, n) out of {', '.join(map(str, REWIRED))} in debruijn_mod(d, n), found ({d}, {n})."
        )
        raise InputError(msg)
    return optimal(d**n, d, _STEPS[d, n], bidirectional=False)


def _plus(word: int, letter: int, d: int, n: int) -> int:
    """The word with ``letter`` added to each of its letters."""
    return sum((word // d**place + letter) % d * d**place for place in range(n))


def _build(name: str, d: int, n: int) -> Graph:
    links = [
        (_plus(word, letter, d, n), _plus(successor, letter, d, n))
        for word, successors in enumerate(_SUCCESSORS[d, n])
        for letter in range(d)
        for successor in successors
    ]
    return Graph.of(name, d**n, [src for src, _ in links], [dst for _, dst in links], degree=d)


FAMILIES = (
    Family(
        "debruijn_mod",
        ("d", "n"),
        "de Bruijn graph rewired to be bandwidth-optimal: (2, 3), (2, 4), (3, 2), (4, 2)",
        _size,
        _build,
    ),
)
