"""Tori, hypercubes and Hamming graphs.

    torus(d1, d2...)   N = d1 d2 .., d = 2 for each size, 1 for a size of 2; sum of floor(di / 2) steps
    hypercube(n)       N = 2^n, d = n, n steps; step loads C(n, t) / n
    hamming(n, q)      N = q^n, d = n (q - 1), n steps: the product of n complete graphs of q nodes

Source: by definition. All of them are bandwidth-optimal under breadth-first broadcast, tori of unequal sizes too: they
are Cartesian products of rings and complete graphs (see :mod:`coppice.design.recipes.recipe` for the argument).
"""

from __future__ import annotations

from math import prod

from coppice.design.cayley import cayley_graph
from coppice.design.families.family import Family, Size, at_least, between, optimal
from coppice.design.graph import Graph

__all__ = ["FAMILIES"]


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
    Family("torus", ("size...",), "rings in every dimension", _torus_size, _torus),
    Family("hypercube", ("n",), "2^n nodes, linked where one bit differs", _hypercube_size, _hypercube),
    Family("hamming", ("n", "q"), "q^n nodes, linked where one digit differs", _hamming_size, _hamming),
)
