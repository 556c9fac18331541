"""A cut that proves the bound of an all-to-all, where one does: a level set of its link lengths.

Link lengths are the dual of concurrent flow. Often they stand for one bottleneck: then the nodes within some
distance of a rank are a cut whose demand over its capacity is the bound itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.topology.model import Topology

__all__ = ["proving_cut"]

_STARTS = 32
"""Nodes from which level sets are tried: a bottleneck shows from every rank of its side."""


def proving_cut(problem: Problem, length: Sequence[int], inv_rate: Fraction) -> tuple[int, ...]:
    """The sending side of a cut that alone proves ``inv_rate``, or () if none is found.

    Args:
        problem: An all_to_all.
        length: Length of each link.
        inv_rate: The bound, time per shard.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.model import Link, Node
        >>> path = Topology.of("path", [Node(id=f"g{i}") for i in range(4)],
        ...     [Link(src=f"g{i}", dst=f"g{i + 1}", gb_per_s=Fraction(8)) for i in range(3)])
        >>> problem = Problem(topology=path, collective=Collective.ALL_TO_ALL)
        >>> proving_cut(problem, [0, 0, 1, 1, 0, 0], Fraction(4, 8))
        (0, 1)
    """
    topology = problem.topology
    tried: set[bytes] = set()
    for inside in _level_sets(topology, length):
        key = inside.tobytes()
        if key in tried:
            continue
        tried.add(key)
        leaving = inside[topology.src] & ~inside[topology.dst]
        capacity = Fraction(int(topology.capacity[leaving].sum()), topology.denominator)
        if capacity and _demand(problem, inside) / capacity == inv_rate:
            return tuple(np.flatnonzero(inside).tolist())
    return ()


def _level_sets(topology: Topology, length: Sequence[int]) -> Iterator[NDArray[np.bool_]]:
    """Nodes within each distance of a rank, along the links and against them."""
    starts = topology.rank_nodes[:_STARTS].tolist()
    for forward in (True, False):
        tails, heads = (topology.src, topology.dst) if forward else (topology.dst, topology.src)
        arcs: list[list[tuple[int, int]]] = [[] for _ in range(topology.num_nodes)]
        for tail, head, steps in zip(tails.tolist(), heads.tolist(), length, strict=True):
            arcs[tail].append((head, steps))
        for start in starts:
            distance = _distances(arcs, start)
            for level in sorted(set(distance))[:-1]:
                near = np.array([there <= level for there in distance], dtype=np.bool_)
                yield near if forward else ~near


def _distances(arcs: list[list[tuple[int, int]]], start: int) -> list[int | float]:
    """Distance from ``start`` to every node, infinite where it is not reached (Dijkstra)."""
    distance: list[int | float] = [float("inf")] * len(arcs)
    distance[start] = 0
    heap: list[tuple[int | float, int]] = [(0, start)]
    while heap:
        near, node = heappop(heap)
        if near > distance[node]:
            continue
        for head, steps in arcs[node]:
            if near + steps < distance[head]:
                distance[head] = near + steps
                heappush(heap, (distance[head], head))
    return distance


def _demand(problem: Problem, inside: NDArray[np.bool_]) -> int:
    """Shards from ranks inside to ranks outside."""
    sends = inside[problem.topology.rank_nodes]
    if problem.demands is None:
        return int(sends.sum()) * int((~sends).sum())
    outside = np.flatnonzero(~sends).tolist()
    return sum(problem.demands[i][j] for i in np.flatnonzero(sends).tolist() for j in outside)
