"""A cut that proves the bound of an all-to-all, where one does: a level set of its link lengths.

Link lengths are the dual of concurrent flow. Often they stand for one bottleneck: then the nodes within some
distance of a rank are a cut whose demand over its capacity is the bound itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.all_to_all.distances import distances
from coppice.bounds.problem import Problem
from coppice.topology.model import Topology

__all__ = ["proving_cut"]

_STARTS = 32
"""Nodes from which level sets are tried: a bottleneck shows from every rank of its side."""


def proving_cut(problem: Problem, length: Sequence[int], inv_rate: Fraction) -> tuple[int, ...]:
    """The sending side of a cut that alone proves ``inv_rate``, or () if none is found.

    Args:
        problem: An all_to_all.
        length: Length of each link: integers of 0 or more whose sum stays below 2**62.
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
    for backwards in (False, True):
        starts, lengths = topology.rank_nodes[:_STARTS], np.array(length, dtype=np.int64)
        for distance in distances(topology, starts, lengths, backwards=backwards):
            for level in np.unique(distance)[:-1]:
                near = distance <= level
                yield ~near if backwards else near


def _demand(problem: Problem, inside: NDArray[np.bool_]) -> int:
    """Shards from ranks inside to ranks outside."""
    sends = inside[problem.topology.rank_nodes]
    if problem.demands is None:
        return int(sends.sum()) * int((~sends).sum())
    outside = np.flatnonzero(~sends).tolist()
    return sum(problem.demands[i][j] for i in np.flatnonzero(sends).tolist() for j in outside)
